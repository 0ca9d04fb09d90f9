/** Functions that a template finds: those of Jinja that prompts use, and the two of transformers. */

import { equal } from './compare.ts';
import { TemplateFault, TemplateRefusal } from './fault.ts';
import { strftime } from './strftime.ts';
import { Text } from './text.ts';
import { intOf, textOfArgument } from './text-methods.ts';
import { argumentsOf, type Call, Callable, Dict, itemsOf, Namespace, Range, Thing, type Value } from './values.ts';
import { textOf } from './written.ts';

/** What the sandbox of Jinja allows. */
const RANGE_MAX = 100_000;

function range({ args, machine }: Call): Value {
  if (args.length < 1 || args.length > 3) throw new TemplateFault('range takes one to three whole numbers');
  const [one, two, by] = args.map((arg) => intOf(arg, 0, 'range'));
  const [from, to, step] = two === undefined ? [0, one!, 1] : [one!, two, by ?? 1];
  if (step === 0) throw new TemplateFault('range has no step');
  const count = Math.ceil((to - from) / step);
  if (count > RANGE_MAX) throw new TemplateFault(`range counts up to ${RANGE_MAX}`);
  machine.bounds.step(Math.max(0, count));
  return new Range(from, to, step);
}

/** What `dict` and `namespace` are given: a dict or pairs, and names. */
function fieldsOf({ args, named, machine }: Call): (readonly [Value, Value])[] {
  const pairs = args.flatMap((arg) =>
    arg instanceof Dict
      ? arg.entries()
      : itemsOf(arg, machine.bounds).map((pair) => {
          const [key = null, value = null] = itemsOf(pair, machine.bounds);
          return [key, value] as const;
        }),
  );
  return [...pairs, ...[...named].map(([name, value]) => [Text.own(name), value] as const)];
}

function namespace(call: Call): Namespace {
  const made = new Namespace();
  for (const [name, value] of fieldsOf(call)) made.fields.set(textOfArgument(name, 'namespace').value, value);
  return made;
}

class Cycler extends Thing {
  readonly #items: readonly Value[];
  #at = 0;

  constructor(items: readonly Value[]) {
    super('Cycler');
    if (items.length === 0) throw new TemplateFault('cycler takes something');
    this.#items = items;
  }

  override attribute(name: string): Value | undefined {
    if (name === 'current') return this.#items[this.#at]!;
    if (name === 'next')
      return new Callable(name, () => {
        const current = this.#items[this.#at]!;
        this.#at = (this.#at + 1) % this.#items.length;
        return current;
      });
    if (name !== 'reset') return undefined;
    return new Callable(name, () => {
      this.#at = 0;
      return null;
    });
  }
}

function joiner(call: Call): Callable {
  const [between = Text.own(', ')] = argumentsOf(call, 'joiner', 'sep');
  let used = false;
  return new Callable('joiner', () => {
    const text = used ? between : Text.empty;
    used = true;
    return text;
  });
}

/** A prompt is made again for every answer, to count it, and when a log is replayed: it must be the same each time. */
export function undetermined(name: string): never {
  throw new TemplateFault(`${name} gives something else each time, and a prompt has to be the same`);
}

function raise(call: Call): never {
  const [message = null] = call.args;
  throw new TemplateRefusal(textOf(message, call.machine.bounds).value);
}

/** The loop of a `for`, as its body sees it. */
export class Loop extends Thing {
  readonly #items: readonly Value[];
  readonly #depth: number;
  readonly #again: ((items: Value) => Value) | null;
  #changed: readonly Value[] | null = null;
  at = 0;

  constructor(items: readonly Value[], depth: number, again: ((items: Value) => Value) | null) {
    super('LoopContext');
    this.#items = items;
    this.#depth = depth;
    this.#again = again;
  }

  /** What `loop(items)` does in a recursive loop. */
  get again(): Callable {
    return new Callable('loop', ({ args: [items = null] }) => {
      if (this.#again === null) throw new TemplateFault('the loop is not recursive');
      return this.#again(items);
    });
  }

  override attribute(name: string): Value | undefined {
    const [at, count] = [this.at, this.#items.length];
    const numbers: Readonly<Record<string, number>> = {
      index: at + 1,
      index0: at,
      revindex: count - at,
      revindex0: count - at - 1,
      length: count,
      depth: this.#depth + 1,
      depth0: this.#depth,
    };
    if (Object.hasOwn(numbers, name)) return BigInt(numbers[name]!);
    switch (name) {
      case 'first':
        return at === 0;
      case 'last':
        return at === count - 1;
      case 'previtem':
        return this.#items[at - 1];
      case 'nextitem':
        return this.#items[at + 1];
      case 'cycle':
        return new Callable(name, ({ args }) => {
          if (args.length === 0) throw new TemplateFault('cycle takes something');
          return args[at % args.length]!;
        });
      case 'changed':
        return new Callable(name, ({ args, machine: { bounds } }) => this.#isChanged(args, bounds));
      default:
        return undefined;
    }
  }

  #isChanged(values: readonly Value[], bounds: Call['machine']['bounds']): boolean {
    const isSame = this.#changed !== null && equal([...this.#changed], [...values], bounds);
    this.#changed = values;
    return !isSame;
  }
}

/** date: what `strftime_now` tells. */
export function globalsAt(date: Date): ReadonlyMap<string, Value> {
  const functions: Readonly<Record<string, (call: Call) => Value>> = {
    range,
    dict: (call) => new Dict(fieldsOf(call)),
    namespace,
    cycler: ({ args }) => new Cycler(args),
    joiner,
    lipsum: () => undetermined('lipsum'),
    raise_exception: raise,
    strftime_now: ({ args: [format] }) => Text.own(strftime(date, textOfArgument(format, 'strftime_now').value)),
  };
  return new Map(Object.entries(functions).map(([name, call]) => [name, new Callable(name, call)]));
}
