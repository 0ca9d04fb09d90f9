/** Reads the statements of a template. */
import { DEPTH_MAX } from './bounds.ts';
import { ExpressionReader } from './expressions.ts';
import { type Token, tokensOf } from './lexer.ts';
import type { Expression, Macro, Statement, Target } from './nodes.ts';
import { Text } from './text.ts';

export function parseTemplate(source: string): readonly Statement[] {
  return new StatementReader(tokensOf(source)).all();
}

/** True if a template reads a variable of this name. */
export function readsVariable(source: string, name: string): boolean {
  const reader = new StatementReader(tokensOf(source));
  reader.all();
  return reader.names.has(name);
}

type Statements = readonly Statement[];

class StatementReader {
  readonly #reader: ExpressionReader;
  #depth = 0;
  readonly #tags: ReadonlyMap<string, () => Statement> = new Map<string, () => Statement>([
    ['for', () => this.#for()],
    ['if', () => this.#if()],
    ['set', () => this.#set()],
    ['macro', () => this.#macro()],
    ['call', () => this.#call()],
    ['filter', () => this.#filter()],
    ['with', () => this.#with()],
    ['generation', () => this.#scope('generation')],
    ['block', () => this.#block()],
    ['break', () => this.#jump('break')],
    ['continue', () => this.#jump('continue')],
  ]);

  constructor(tokens: readonly Token[]) {
    this.#reader = new ExpressionReader(tokens);
  }

  /** Names that it reads. */
  get names(): ReadonlySet<string> {
    return this.#reader.names;
  }

  all(): Statements {
    const statements = this.#until();
    if (this.#reader.token.kind !== 'eof') throw this.#reader.fault('nothing is open that could end here');
    return statements;
  }

  /** Statements up to a tag with one of these names, which has been begun then, or to the end. */
  #until(...ends: readonly string[]): Statement[] {
    if (++this.#depth > DEPTH_MAX) throw this.#reader.fault('too many blocks are open');
    const statements: Statement[] = [];
    for (let token = this.#reader.token; token.kind !== 'eof'; token = this.#reader.token) {
      if (token.kind === 'begin' && token.text === '{%' && ends.some((end) => this.#reader.is('name', end, 1))) {
        this.#reader.next();
        break;
      }
      this.#reader.next();
      if (token.kind === 'data') statements.push({ kind: 'text', text: Text.own(token.text) });
      else if (token.text === '{{') statements.push(this.#output());
      else statements.push(this.#tag());
    }
    if (ends.length > 0 && this.#reader.token.kind === 'eof') throw this.#reader.fault(`${ends.at(-1)} is missing`);
    this.#depth--;
    return statements;
  }

  /** The same with the tag at its end. */
  #through(end: string): Statement[] {
    const statements = this.#until(end);
    this.#reader.next();
    this.#endTag();
    return statements;
  }

  #endTag(): void {
    if (this.#reader.token.kind !== 'end') throw this.#reader.fault('the tag does not end');
    this.#reader.next();
  }

  #output(): Statement {
    const value = this.#reader.tuple();
    this.#endTag();
    return { kind: 'output', value };
  }

  #tag(): Statement {
    const read = this.#tags.get(this.#reader.token.text);
    if (read === undefined) throw this.#reader.fault('a tag that prompts do not have');
    this.#reader.next();
    return read();
  }

  #for(): Statement {
    const reader = this.#reader;
    const target = reader.target(false);
    reader.expect('in');
    const among = reader.tuple(false);
    const test = reader.skip('if') ? reader.expression() : null;
    const recursive = reader.skip('recursive');
    this.#endTag();
    const body = this.#until('else', 'endfor');
    const otherwise = this.#else('endfor');
    return { kind: 'for', target, among, test, recursive, body, otherwise };
  }

  /** What stands behind `else`, if that is what was found, up to the end. */
  #else(end: string): Statements {
    const hasElse = this.#reader.next().text === 'else';
    this.#endTag();
    return hasElse ? this.#through(end) : [];
  }

  #if(): Statement {
    const branches: { test: Expression; body: Statements }[] = [];
    do {
      const test = this.#reader.tuple(false);
      this.#endTag();
      branches.push({ test, body: this.#until('elif', 'else', 'endif') });
    } while (this.#reader.skip('elif'));
    return { kind: 'if', branches, otherwise: this.#else('endif') };
  }

  #set(): Statement {
    const reader = this.#reader;
    const target: Target = reader.target(true);
    if (reader.skip('=')) {
      const value = reader.tuple();
      this.#endTag();
      return { kind: 'set', target, value };
    }
    const filter = reader.is('sign', '|') ? reader.filters(null, true) : null;
    this.#endTag();
    return { kind: 'setBlock', target, filter, body: this.#through('endset') };
  }

  #macro(): Statement {
    const name = this.#reader.name();
    return { kind: 'macro', macro: this.#macroOf(name, this.#parameters(), 'endmacro') };
  }

  #parameters(): Macro['parameters'] {
    const reader = this.#reader;
    const parameters: { name: string; otherwise: Expression | null }[] = [];
    reader.expect('(');
    while (!reader.skip(')')) {
      if (parameters.length > 0) reader.expect(',');
      parameters.push({ name: reader.name(), otherwise: reader.skip('=') ? reader.expression() : null });
    }
    return parameters;
  }

  #macroOf(name: string, parameters: Macro['parameters'], end: string): Macro {
    this.#endTag();
    const outer = this.#reader.names;
    this.#reader.names = new Set();
    const body = this.#through(end);
    const reads = this.#reader.names;
    this.#reader.names = new Set([...outer, ...reads]);
    return { name, parameters, body, reads };
  }

  #call(): Statement {
    const parameters = this.#reader.is('sign', '(') ? this.#parameters() : [];
    const call = this.#reader.expression();
    if (call.kind !== 'call') throw this.#reader.fault('a call is missing');
    return { kind: 'callBlock', call, caller: this.#macroOf('caller', parameters, 'endcall') };
  }

  #filter(): Statement {
    const filter = this.#reader.filters(null, false);
    this.#endTag();
    return { kind: 'filterBlock', filter, body: this.#through('endfilter') };
  }

  #with(): Statement {
    const reader = this.#reader;
    const values: { target: Target; value: Expression }[] = [];
    while (reader.token.kind !== 'end') {
      if (values.length > 0) reader.expect(',');
      const target = reader.target(false);
      reader.expect('=');
      values.push({ target, value: reader.expression() });
    }
    this.#endTag();
    return { kind: 'with', values, body: this.#through('endwith') };
  }

  #scope(name: string): Statement {
    this.#endTag();
    return { kind: 'with', values: [], body: this.#through(`end${name}`) };
  }

  /** Nothing extends a chat template, so a block stands where it is. */
  #block(): Statement {
    const name = this.#reader.name();
    this.#endTag();
    const body = this.#until('endblock');
    this.#reader.next();
    this.#reader.skip(name);
    this.#endTag();
    return { kind: 'with', values: [], body };
  }

  #jump(kind: 'break' | 'continue'): Statement {
    this.#endTag();
    return { kind };
  }
}
