/**
 * Counters, gauges and histograms, and their text as Prometheus reads it: the exposition format 0.0.4, as its
 * specification describes it. Labels have closed sets of values, so that no text from outside ever becomes a time
 * series.
 */
import { assert } from '../../native/index.ts';

/** The media type of the text. */
export const EXPOSITION_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** The values that each label may have. */
export type LabelSets = Readonly<Record<string, readonly string[]>>;
/** One value of each label. */
export type Labels<Sets extends LabelSets> = { readonly [Name in keyof Sets]: Sets[Name][number] };

interface Family {
  readonly name: string;
  /** The lines of its samples, without a line feed. None: the family is left out. */
  lines(): string[];
  readonly head: string;
}

const head = (name: string, type: string, help: string): string =>
  `# HELP ${name} ${help.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')}\n# TYPE ${name} ${type}`;

function numberText(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return '+Inf';
  return value === Number.NEGATIVE_INFINITY ? '-Inf' : String(value);
}

/** A label, and each of its values as it is printed. */
type PrintedLabel = readonly [label: string, texts: ReadonlyMap<string, string>];

const printed = ([label, values]: [string, readonly string[]]): PrintedLabel => {
  const text = (value: string): string =>
    `${label}="${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`;
  return [label, new Map(values.map((value) => [value, text(value)]))];
};

/** Numbers by their labels: what counters and gauges have in common. */
class Samples<Sets extends LabelSets> {
  readonly name: string;
  readonly head: string;
  readonly #labels: readonly PrintedLabel[];
  /** Keyed by the labels as they are printed. */
  protected readonly values = new Map<string, number>();

  constructor(name: string, type: 'counter' | 'gauge', help: string, sets: Sets) {
    this.name = name;
    this.head = head(name, type, help);
    this.#labels = Object.entries(sets).map(printed);
  }

  protected key(labels: Labels<Sets>): string {
    const parts = this.#labels.map(([label, texts]) => {
      const value: string = labels[label]!;
      const text = texts.get(value);
      assert(text !== undefined, `${this.name} has no ${label} '${value}'`);
      return text;
    });
    return parts.length === 0 ? '' : `{${parts.join(',')}}`;
  }

  lines(): string[] {
    return [...this.values]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, value]) => `${this.name}${key} ${numberText(value)}`);
  }
}

/** A number that only rises while the program runs. */
export class Counter<Sets extends LabelSets> extends Samples<Sets> {
  /** Adds to the number with these labels; adding 0 makes it appear. */
  add(labels: Labels<Sets>, amount = 1): void {
    const key = this.key(labels);
    this.values.set(key, (this.values.get(key) ?? 0) + amount);
  }
}

/** A number as it is now. */
export class Gauge<Sets extends LabelSets> extends Samples<Sets> {
  set(labels: Labels<Sets>, value: number): void {
    this.values.set(this.key(labels), value);
  }

  /** Forgets all values. A gauge without one is left out of the text: unknown is not zero. */
  clear(): void {
    this.values.clear();
  }
}

/** How often a measurement fell below each of some bounds. Observing allocates nothing. */
export class Histogram {
  readonly name: string;
  readonly head: string;
  readonly #bounds: Float64Array;
  readonly #counts: Float64Array;
  #sum = 0;

  constructor(name: string, help: string, bounds: readonly number[]) {
    this.name = name;
    this.head = head(name, 'histogram', help);
    this.#bounds = Float64Array.from(bounds);
    this.#counts = new Float64Array(bounds.length + 1);
  }

  observe(value: number): void {
    const bounds = this.#bounds;
    let bucket = 0;
    while (bucket < bounds.length && value > bounds[bucket]!) bucket++;
    this.#counts[bucket]!++;
    this.#sum += value;
  }

  lines(): string[] {
    let count = 0;
    const buckets = Array.from(this.#counts, (own, index) => {
      count += own;
      return `${this.name}_bucket{le="${numberText(this.#bounds[index] ?? Number.POSITIVE_INFINITY)}"} ${count}`;
    });
    return [...buckets, `${this.name}_sum ${numberText(this.#sum)}`, `${this.name}_count ${count}`];
  }
}

/** Metrics in the order in which they were made. */
export class Registry {
  readonly #prefix: string;
  readonly #families: Family[] = [];

  /** `prefix` begins every name. */
  constructor(prefix: string) {
    this.#prefix = prefix;
  }

  counter<const Sets extends LabelSets>(name: string, help: string, sets: Sets): Counter<Sets> {
    return this.#add(new Counter(this.#prefix + name, 'counter', help, sets));
  }

  gauge<const Sets extends LabelSets>(name: string, help: string, sets: Sets): Gauge<Sets> {
    return this.#add(new Gauge(this.#prefix + name, 'gauge', help, sets));
  }

  histogram(name: string, help: string, bounds: readonly number[]): Histogram {
    return this.#add(new Histogram(this.#prefix + name, help, bounds));
  }

  #add<One extends Family>(family: One): One {
    this.#families.push(family);
    return family;
  }

  /** The text of all families that have a sample, or of those among them whose full names are given. */
  text(names?: ReadonlySet<string>): string {
    return this.#families
      .filter(({ name }) => names === undefined || names.has(name))
      .map((family) => ({ family, lines: family.lines() }))
      .filter(({ lines }) => lines.length > 0)
      .map(({ family, lines }) => `${[family.head, ...lines].join('\n')}\n`)
      .join('');
  }
}
