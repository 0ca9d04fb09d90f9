/** Reads the expressions of a template, in the order of precedence that Jinja has. */
import { DEPTH_MAX } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import type { Token } from './lexer.ts';
import type { Arguments, Comparison, Expression, Operator, Target } from './nodes.ts';
import { Text } from './text.ts';
import type { Value } from './values.ts';

const NO_ARGUMENTS: Arguments = { positional: [], named: [] };
const CONSTANTS: ReadonlyMap<string, Value> = new Map<string, Value>([
  ['true', true],
  ['True', true],
  ['false', false],
  ['False', false],
  ['none', null],
  ['None', null],
]);
const COMPARISONS: readonly string[] = ['==', '!=', '<', '<=', '>', '>='];

export class ExpressionReader {
  readonly #tokens: readonly Token[];
  #at = 0;
  #depth = 0;
  /** Names that were read since it was set. */
  names = new Set<string>();

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  get token(): Token {
    return this.#tokens[this.#at]!;
  }

  next(): Token {
    const token = this.token;
    if (token.kind !== 'eof') this.#at++;
    return token;
  }

  is(kind: Token['kind'], text: string, ahead = 0): boolean {
    const token = this.#tokens[this.#at + ahead];
    return token?.kind === kind && token.text === text;
  }

  /** Steps over a sign or a word where it is there. */
  skip(text: string): boolean {
    const found = this.is('sign', text) || this.is('name', text);
    if (found) this.#at++;
    return found;
  }

  expect(text: string): void {
    if (!this.skip(text)) throw this.fault(`${text} is missing`);
  }

  name(): string {
    if (this.token.kind !== 'name') throw this.fault('a name is missing');
    return this.next().text;
  }

  fault(what: string): TemplateFault {
    const { line, text, kind } = this.token;
    const found = kind === 'eof' ? 'the end' : JSON.stringify(text.slice(0, 40));
    return new TemplateFault(`line ${line}: ${what} before ${found}`);
  }

  /** Expressions with commas are a tuple. */
  tuple(condition = true): Expression {
    const items: Expression[] = [];
    let isTuple = false;
    while (!this.#endsTuple()) {
      items.push(condition ? this.expression() : this.#or());
      if (!this.skip(',')) break;
      isTuple = true;
    }
    if (!isTuple && items.length === 0) throw this.fault('an expression is missing');
    return isTuple ? { kind: 'tuple', items } : items[0]!;
  }

  #endsTuple(): boolean {
    const { kind } = this.token;
    return kind === 'end' || kind === 'eof' || this.is('sign', ')') || this.is('name', 'in');
  }

  expression(): Expression {
    return this.#nested(() => {
      let value = this.#or();
      while (this.skip('if')) {
        const test = this.#or();
        const no = this.skip('else') ? this.expression() : null;
        value = { kind: 'choice', test, yes: value, no };
      }
      return value;
    });
  }

  /** Without a condition behind it, as the list of a loop is. */
  condition(): Expression {
    return this.#or();
  }

  #nested<T>(read: () => T): T {
    if (++this.#depth > DEPTH_MAX) throw this.fault('too many brackets are open');
    const result = read();
    this.#depth--;
    return result;
  }

  #or(): Expression {
    let left = this.#and();
    while (this.skip('or')) left = { kind: 'either', sign: 'or', left, right: this.#and() };
    return left;
  }

  #and(): Expression {
    let left = this.#not();
    while (this.skip('and')) left = { kind: 'either', sign: 'and', left, right: this.#not() };
    return left;
  }

  #not(): Expression {
    if (!this.skip('not')) return this.#comparison();
    return this.#nested(() => ({ kind: 'unary', sign: 'not', of: this.#not() }));
  }

  #comparison(): Expression {
    const first = this.#sum();
    const rest: { sign: Comparison; value: Expression }[] = [];
    for (let sign = this.#comparing(); sign !== null; sign = this.#comparing()) rest.push({ sign, value: this.#sum() });
    return rest.length === 0 ? first : { kind: 'comparison', first, rest };
  }

  #comparing(): Comparison | null {
    if (this.token.kind === 'sign' && COMPARISONS.includes(this.token.text)) return this.next().text as Comparison;
    if (this.skip('in')) return 'in';
    if (!this.is('name', 'not') || !this.is('name', 'in', 1)) return null;
    this.#at += 2;
    return 'not in';
  }

  #operations(signs: readonly string[], operand: () => Expression): Expression {
    let left = operand();
    while (this.token.kind === 'sign' && signs.includes(this.token.text)) {
      const sign = this.next().text as Operator;
      left = { kind: 'operation', sign, left, right: operand() };
    }
    return left;
  }

  #sum(): Expression {
    return this.#operations(['+', '-'], () => this.#joined());
  }

  #joined(): Expression {
    const parts = [this.#product()];
    while (this.skip('~')) parts.push(this.#product());
    return parts.length === 1 ? parts[0]! : { kind: 'joined', parts };
  }

  #product(): Expression {
    return this.#operations(['*', '/', '//', '%'], () => this.#operations(['**'], () => this.#unary(true)));
  }

  #unary(filters: boolean): Expression {
    const signed = this.is('sign', '-') || this.is('sign', '+');
    const value = signed ? this.#signed() : this.#primary();
    const whole = this.#postfix(value);
    return filters ? this.#filtered(whole) : whole;
  }

  #signed(): Expression {
    const sign = this.next().text as '-' | '+';
    return this.#nested(() => ({ kind: 'unary', sign, of: this.#unary(false) }));
  }

  #primary(): Expression {
    const token = this.next();
    const { kind, text } = token;
    if (kind === 'name') {
      const constant = CONSTANTS.get(text);
      if (constant === undefined) this.names.add(text);
      return constant === undefined ? { kind: 'name', name: text } : { kind: 'constant', value: constant };
    }
    if (kind === 'string') {
      let whole = text;
      while (this.token.kind === 'string') whole += this.next().text;
      return { kind: 'constant', value: Text.own(whole) };
    }
    if (kind === 'integer') return { kind: 'constant', value: BigInt(text.replaceAll('_', '')) };
    if (kind === 'float') return { kind: 'constant', value: Number(text.replaceAll('_', '')) };
    if (kind === 'sign' && text === '(') return this.#nested(() => this.#parenthesised());
    if (kind === 'sign' && text === '[') return { kind: 'list', items: this.#list(']') };
    if (kind === 'sign' && text === '{') return this.#dict();
    this.#at -= kind === 'eof' ? 0 : 1;
    throw this.fault('an expression is missing');
  }

  #parenthesised(): Expression {
    if (this.skip(')')) return { kind: 'tuple', items: [] };
    const value = this.tuple();
    this.expect(')');
    return value;
  }

  #list(end: string): Expression[] {
    const items: Expression[] = [];
    while (!this.skip(end)) {
      if (items.length > 0) this.expect(',');
      if (this.skip(end)) break;
      items.push(this.expression());
    }
    return items;
  }

  #dict(): Expression {
    const entries: [Expression, Expression][] = [];
    while (!this.skip('}')) {
      if (entries.length > 0) this.expect(',');
      if (this.skip('}')) break;
      const key = this.expression();
      this.expect(':');
      entries.push([key, this.expression()]);
    }
    return { kind: 'dict', entries };
  }

  #postfix(value: Expression): Expression {
    let of = value;
    for (;;) {
      if (this.skip('.')) of = this.#attribute(of);
      else if (this.skip('[')) of = this.#subscript(of);
      else if (this.skip('(')) of = { kind: 'call', of, args: this.#arguments() };
      else return of;
    }
  }

  #attribute(of: Expression): Expression {
    if (this.token.kind !== 'integer') return { kind: 'attribute', of, name: this.name() };
    return { kind: 'item', of, at: { kind: 'constant', value: BigInt(this.next().text) } };
  }

  #subscript(of: Expression): Expression {
    const bounds: (Expression | null)[] = [];
    while (bounds.length < 3) {
      bounds.push(this.is('sign', ':') || this.is('sign', ']') ? null : this.expression());
      if (!this.skip(':')) break;
      if (bounds.length < 3 && this.is('sign', ']')) bounds.push(null);
      if (this.is('sign', ']')) break;
    }
    if (bounds.length > 1) {
      this.expect(']');
      return { kind: 'slice', of, bounds };
    }
    const [at] = bounds;
    if (at == null) throw this.fault('an index is missing');
    const items = [at];
    while (this.skip(',')) items.push(this.expression());
    this.expect(']');
    return { kind: 'item', of, at: items.length === 1 ? at : { kind: 'tuple', items } };
  }

  #arguments(): Arguments {
    const positional: { value: Expression; spread: boolean }[] = [];
    const named: { name: string | null; value: Expression }[] = [];
    for (let first = true; !this.skip(')'); first = false) {
      if (!first) {
        this.expect(',');
        if (this.skip(')')) break;
      }
      if (this.skip('**')) named.push({ name: null, value: this.expression() });
      else if (this.skip('*')) positional.push({ value: this.expression(), spread: true });
      else if (this.token.kind === 'name' && this.is('sign', '=', 1)) {
        const name = this.name();
        this.expect('=');
        named.push({ name, value: this.expression() });
      } else {
        if (named.length > 0) throw this.fault('an argument without a name stands behind one with a name');
        positional.push({ value: this.expression(), spread: false });
      }
    }
    return { positional, named };
  }

  #filtered(value: Expression): Expression {
    let of = value;
    for (;;) {
      if (this.is('sign', '|')) of = this.filters(of, true);
      else if (this.is('name', 'is')) of = this.#test(of);
      else if (this.skip('(')) of = { kind: 'call', of, args: this.#arguments() };
      else return of;
    }
  }

  /** Filters one behind the other; bar: the first has a bar before it. */
  filters(value: Expression | null, bar: boolean): Expression {
    let of = value;
    for (let first = !bar; first || this.skip('|'); first = false) {
      const name = this.#dotted();
      const args = this.skip('(') ? this.#arguments() : NO_ARGUMENTS;
      of = { kind: 'filter', of, name, args };
    }
    return of!;
  }

  #dotted(): string {
    let name = this.name();
    while (this.skip('.')) name += `.${this.name()}`;
    return name;
  }

  #test(of: Expression): Expression {
    this.next();
    const negated = this.skip('not');
    const name = this.#dotted();
    const { kind, text } = this.token;
    let args = NO_ARGUMENTS;
    if (this.skip('(')) args = this.#arguments();
    else if (
      (kind === 'name' && !['else', 'or', 'and', 'if', 'in', 'not', 'recursive', 'is'].includes(text)) ||
      ['string', 'integer', 'float'].includes(kind) ||
      (kind === 'sign' && (text === '[' || text === '{'))
    )
      args = { positional: [{ value: this.#postfix(this.#primary()), spread: false }], named: [] };
    return { kind: 'test', of, name, args, negated };
  }

  /** Names that are assigned to, with commas or an attribute of a namespace. */
  target(fields: boolean): Target {
    const targets: Target[] = [];
    let several = false;
    do {
      if (several && !(this.token.kind === 'name' || this.is('sign', '('))) break;
      targets.push(this.#oneTarget(fields));
      several ||= this.is('sign', ',');
    } while (this.skip(','));
    return several ? { kind: 'names', targets } : targets[0]!;
  }

  #oneTarget(fields: boolean): Target {
    if (this.skip('(')) {
      const inner = this.#nested(() => this.target(fields));
      this.expect(')');
      return inner;
    }
    const name = this.name();
    if (CONSTANTS.has(name)) throw this.fault(`${name} cannot be set`);
    if (!fields || !this.skip('.')) return { kind: 'name', name };
    return { kind: 'field', of: name, name: this.name() };
  }
}
