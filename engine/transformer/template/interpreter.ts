/** Runs a template: statements write texts, expressions give values. */
import { attributeOf, itemOf, sliceOf } from './access.ts';
import { operate, signed } from './arithmetic.ts';
import type { Bounds } from './bounds.ts';
import { compared } from './compare.ts';
import { TemplateFault } from './fault.ts';
import { FILTERS } from './filters.ts';
import { Loop } from './globals.ts';
import type { Arguments, Expression, Macro, Statement, Target } from './nodes.ts';
import { TESTS } from './tests.ts';
import { Text } from './text.ts';
import {
  type Call,
  Callable,
  Dict,
  isTrue,
  itemsOf,
  type Machine,
  Namespace,
  Tuple,
  typeName,
  Undefined,
  type Value,
} from './values.ts';
import { textOf } from './written.ts';

/** Names and what they stand for, within those around them. */
class Scope {
  readonly #values = new Map<string, Value>();
  readonly #outer: Scope | null;

  constructor(outer: Scope | null) {
    this.#outer = outer;
  }

  get(name: string): Value | undefined {
    const own = this.#values.get(name);
    return own === undefined ? this.#outer?.get(name) : own;
  }

  set(name: string, value: Value): void {
    this.#values.set(name, value);
  }
}

/** How a body ended. */
type End = 'whole' | 'break' | 'continue';

type Of<K> = Extract<Expression, { kind: K }>;
type StatementOf<K> = Extract<Statement, { kind: K }>;

export class Interpreter implements Machine {
  readonly bounds: Bounds;
  #written: Text[] = [];

  constructor(bounds: Bounds) {
    this.bounds = bounds;
  }

  run(statements: readonly Statement[], values: ReadonlyMap<string, Value>): Text {
    const globals = new Scope(null);
    for (const [name, value] of values) globals.set(name, value);
    this.#body(statements, new Scope(globals));
    return Text.join(this.#written);
  }

  filter(name: string, value: Value, args: readonly Value[], named: ReadonlyMap<string, Value> = new Map()): Value {
    const filter = FILTERS.get(name);
    if (filter === undefined) throw new TemplateFault(`there is no filter ${name}`);
    return filter(value, { args, named, machine: this });
  }

  test(name: string, value: Value, args: readonly Value[]): boolean {
    if (name === 'filter' || name === 'test')
      return (name === 'filter' ? FILTERS : TESTS).has(textOf(value, this.bounds).value);
    const test = TESTS.get(name);
    if (test === undefined) throw new TemplateFault(`there is no test ${name}`);
    return test(value, { args, named: new Map(), machine: this });
  }

  #write(text: Text): void {
    this.bounds.letters(text.value.length);
    if (text.value !== '') this.#written.push(text);
  }

  /** What a body writes, instead of its being written. */
  #captured(work: () => void): Text {
    const outer = this.#written;
    this.#written = [];
    work();
    const text = Text.join(this.#written);
    this.#written = outer;
    return text;
  }

  #body(statements: readonly Statement[], scope: Scope): End {
    this.bounds.enter();
    let end: End = 'whole';
    for (const statement of statements) {
      end = this.#statement(statement, scope);
      if (end !== 'whole') break;
    }
    this.bounds.leave();
    return end;
  }

  #statement(statement: Statement, scope: Scope): End {
    this.bounds.step();
    switch (statement.kind) {
      case 'text':
        this.#write(statement.text);
        return 'whole';
      case 'output':
        this.#write(textOf(this.#value(statement.value, scope), this.bounds));
        return 'whole';
      case 'if':
        return this.#if(statement, scope);
      case 'for':
        this.#for(statement, this.#value(statement.among, scope), scope, 0);
        return 'whole';
      case 'with':
        return this.#with(statement, scope);
      case 'break':
      case 'continue':
        return statement.kind;
      default:
        this.#setting(statement, scope);
        return 'whole';
    }
  }

  #setting(statement: StatementOf<'set' | 'setBlock' | 'macro' | 'callBlock' | 'filterBlock'>, scope: Scope): void {
    switch (statement.kind) {
      case 'set':
        this.#assign(statement.target, this.#value(statement.value, scope), scope);
        break;
      case 'setBlock': {
        const text = this.#captured(() => this.#body(statement.body, new Scope(scope)));
        const { filter } = statement;
        this.#assign(statement.target, filter === null ? text : this.#value(filter, scope, text), scope);
        break;
      }
      case 'macro':
        scope.set(statement.macro.name, this.#macro(statement.macro, scope));
        break;
      case 'callBlock': {
        const { of, args } = statement.call as Of<'call'>;
        const call = this.#arguments(args, scope);
        const named = new Map([...call.named, ['caller', this.#macro(statement.caller, scope)]]);
        this.#write(textOf(this.#called(this.#value(of, scope), { ...call, named }), this.bounds));
        break;
      }
      case 'filterBlock': {
        const text = this.#captured(() => this.#body(statement.body, new Scope(scope)));
        this.#write(textOf(this.#value(statement.filter, scope, text), this.bounds));
      }
    }
  }

  #if({ branches, otherwise }: StatementOf<'if'>, scope: Scope): End {
    const branch = branches.find(({ test }) => isTrue(this.#value(test, scope)));
    return this.#body(branch === undefined ? otherwise : branch.body, scope);
  }

  #with({ values, body }: StatementOf<'with'>, scope: Scope): End {
    const inner = new Scope(scope);
    for (const { target, value } of values) this.#assign(target, this.#value(value, scope), inner);
    return this.#body(body, inner);
  }

  #for(statement: StatementOf<'for'>, among: Value, scope: Scope, depth: number): void {
    const { target, test, recursive, body, otherwise } = statement;
    const passes = (item: Value): boolean => {
      if (test === null) return true;
      const inner = new Scope(scope);
      this.#assign(target, item, inner);
      return isTrue(this.#value(test, inner));
    };
    const items = itemsOf(among, this.bounds).filter(passes);
    const again = (inner: Value): Value =>
      this.bounds.within(() => this.#captured(() => this.#for(statement, inner, scope, depth + 1)));
    const loop = new Loop(items, depth, recursive ? again : null);
    for (const item of items) {
      const inner = new Scope(scope);
      inner.set('loop', loop);
      this.#assign(target, item, inner);
      if (this.#body(body, inner) === 'break') return;
      loop.at++;
    }
    if (items.length === 0) this.#body(otherwise, new Scope(scope));
  }

  #assign(target: Target, value: Value, scope: Scope): void {
    if (target.kind === 'name') {
      scope.set(target.name, value);
      return;
    }
    if (target.kind === 'field') {
      const of = scope.get(target.of);
      if (!(of instanceof Namespace)) throw new TemplateFault(`${target.of} is no namespace`);
      of.fields.set(target.name, value);
      return;
    }
    const items = itemsOf(value, this.bounds);
    if (items.length !== target.targets.length)
      throw new TemplateFault(`${target.targets.length} names are set to ${items.length} values`);
    for (const [index, one] of target.targets.entries()) this.#assign(one, items[index]!, scope);
  }

  #macro(macro: Macro, scope: Scope): Callable {
    return new Callable(macro.name, (call) => this.bounds.within(() => this.#runMacro(macro, call, scope)));
  }

  #runMacro({ name, parameters, body, reads }: Macro, { args, named }: Call, scope: Scope): Text {
    const inner = new Scope(scope);
    const rest = new Map(named);
    for (const [index, { name: parameter, otherwise }] of parameters.entries()) {
      let value = rest.get(parameter);
      rest.delete(parameter);
      if (index < args.length) value = args[index]!;
      if (value === undefined)
        value = otherwise === null ? new Undefined(`parameter ${parameter}`) : this.#value(otherwise, inner);
      inner.set(parameter, value);
    }
    if (reads.has('caller')) {
      inner.set('caller', rest.get('caller') ?? new Undefined('caller'));
      rest.delete('caller');
    }
    if (reads.has('kwargs'))
      inner.set('kwargs', new Dict([...rest].map(([key, value]) => [Text.own(key), value] as const)));
    else if (rest.size > 0) throw new TemplateFault(`${name} takes no argument ${[...rest.keys()][0]}`);
    if (reads.has('varargs')) inner.set('varargs', new Tuple(args.slice(parameters.length)));
    else if (args.length > parameters.length) throw new TemplateFault(`${name} takes ${parameters.length} arguments`);
    return this.#captured(() => this.#body(body, inner));
  }

  /** text: what a block wrote, for the filter of it. */
  #value(expression: Expression, scope: Scope, text: Text | null = null): Value {
    this.bounds.step();
    this.bounds.enter();
    const value = this.#valueOf(expression, scope, text);
    this.bounds.leave();
    return value;
  }

  #valueOf(expression: Expression, scope: Scope, text: Text | null): Value {
    switch (expression.kind) {
      case 'constant':
        return expression.value;
      case 'name':
        return this.#named(expression.name, scope);
      case 'attribute':
        return attributeOf(this.#value(expression.of, scope), expression.name);
      case 'item':
        return itemOf(this.#value(expression.of, scope), this.#value(expression.at, scope));
      case 'either': {
        const left = this.#value(expression.left, scope);
        return isTrue(left) === (expression.sign === 'or') ? left : this.#value(expression.right, scope);
      }
      case 'comparison':
        return this.#comparison(expression, scope);
      case 'call':
        return this.#called(this.#value(expression.of, scope), this.#arguments(expression.args, scope));
      case 'filter': {
        const of = expression.of === null ? text! : this.#value(expression.of, scope, text);
        const { args, named } = this.#arguments(expression.args, scope);
        return this.filter(expression.name, of, args, named);
      }
      case 'test': {
        const of = this.#value(expression.of, scope);
        return this.test(expression.name, of, this.#arguments(expression.args, scope).args) !== expression.negated;
      }
      default:
        return this.#made(expression, scope);
    }
  }

  #named(name: string, scope: Scope): Value {
    const found = scope.get(name);
    return found === undefined ? new Undefined(name) : found;
  }

  #made(
    expression: Of<'list' | 'tuple' | 'dict' | 'operation' | 'joined' | 'unary' | 'choice' | 'slice'>,
    scope: Scope,
  ): Value {
    const value = (one: Expression): Value => this.#value(one, scope);
    switch (expression.kind) {
      case 'list':
        return expression.items.map(value);
      case 'tuple':
        return new Tuple(expression.items.map(value));
      case 'dict':
        return new Dict(expression.entries.map(([key, one]) => [value(key), value(one)] as const));
      case 'operation':
        return operate(expression.sign, value(expression.left), value(expression.right), this.bounds);
      case 'joined': {
        const parts = expression.parts.map((part) => textOf(value(part), this.bounds));
        this.bounds.letters(parts.reduce((sum, part) => sum + part.value.length, 0));
        return Text.join(parts);
      }
      case 'unary':
        return expression.sign === 'not'
          ? !isTrue(value(expression.of))
          : signed(expression.sign, value(expression.of));
      case 'choice':
        if (isTrue(value(expression.test))) return value(expression.yes);
        return expression.no === null ? new Undefined('a condition without else') : value(expression.no);
      case 'slice': {
        const bounds = expression.bounds.map((bound) => (bound === null ? null : value(bound)));
        return sliceOf(value(expression.of), bounds, this.bounds);
      }
    }
  }

  #comparison({ first, rest }: Of<'comparison'>, scope: Scope): boolean {
    let left = this.#value(first, scope);
    for (const { sign, value } of rest) {
      const right = this.#value(value, scope);
      if (!compared(sign, left, right, this.bounds)) return false;
      left = right;
    }
    return true;
  }

  #arguments({ positional, named }: Arguments, scope: Scope): Call {
    const args: Value[] = [];
    for (const { value, spread } of positional) {
      const one = this.#value(value, scope);
      if (spread) args.push(...itemsOf(one, this.bounds));
      else args.push(one);
    }
    const names = new Map<string, Value>();
    for (const { name, value } of named) {
      const one = this.#value(value, scope);
      if (name !== null) names.set(name, one);
      else if (one instanceof Dict)
        for (const [key, field] of one.entries()) names.set(textOf(key, this.bounds).value, field);
      else throw new TemplateFault(`** of a ${typeName(one)}`);
    }
    return { args, named: names, machine: this };
  }

  #called(of: Value, call: Call): Value {
    if (of instanceof Callable) return of.call(call);
    if (of instanceof Loop) return of.again.call(call);
    if (of instanceof Undefined) return of.fail();
    throw new TemplateFault(`a ${typeName(of)} is called`);
  }
}
