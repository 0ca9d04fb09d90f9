/**
 * A strict reader of the Prometheus text format 0.0.4, written from its public specification ("Exposition formats"). It
 * refuses what the specification forbids, and also what it only advises against.
 */

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export interface MetricFamily {
  readonly name: string;
  readonly type: string;
  readonly help: string;
  readonly samples: readonly Sample[];
}

const NAME = '[a-zA-Z_:][a-zA-Z0-9_:]*';
const LABEL = '[a-zA-Z_][a-zA-Z0-9_]*';
const VALUE = /^(?:[+-]?Inf|NaN|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)$/;
const TYPES = ['counter', 'gauge', 'histogram', 'summary', 'untyped'];

const fail = (line: string, why: string): never => {
  throw new Error(`${why}: ${JSON.stringify(line)}`);
};

function numberOf(text: string, line: string): number {
  if (!VALUE.test(text)) fail(line, 'not a number of Go');
  return Number(text.replace('Inf', 'Infinity'));
}

function labelsOf(text: string, line: string): Record<string, string> {
  const labels: Record<string, string> = {};
  const one = new RegExp(`(${LABEL})="((?:[^"\\\\\\n]|\\\\\\\\|\\\\"|\\\\n)*)"(?:,|$)`, 'y');
  while (one.lastIndex < text.length) {
    const [, name, value] = one.exec(text) ?? fail(line, 'labels cannot be read');
    if (name!.startsWith('__') || name! in labels) fail(line, 'a label is reserved or comes twice');
    labels[name!] = value!.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char));
  }
  return labels;
}

/** Families in order. Throws on the first line that a scraper may refuse. */
export function parseExposition(text: string): MetricFamily[] {
  if (text !== '' && !text.endsWith('\n')) throw new Error('the last line must end with a line feed');
  if (text.includes('\r')) throw new Error('lines end with a line feed alone');
  const families: { name: string; type: string; help: string; samples: Sample[] }[] = [];
  for (const line of text.split('\n').slice(0, -1)) {
    const help = new RegExp(`^# HELP (${NAME}) (.*)$`).exec(line);
    const type = new RegExp(`^# TYPE (${NAME}) (\\w+)$`).exec(line);
    const sample = new RegExp(`^(${NAME})(?:\\{(.*)\\})? (\\S+)(?: (-?\\d+))?$`).exec(line);
    const family = families.at(-1);
    if (help !== null) {
      if (families.some(({ name }) => name === help[1])) fail(line, 'a family comes twice');
      if (help[2]!.replaceAll(/\\[\\n]/g, '').includes('\\') || help[2] === '')
        fail(line, 'help is empty or escapes what need not be');
      families.push({ name: help[1]!, type: '', help: help[2]!, samples: [] });
    } else if (type !== null) {
      if (family?.name !== type[1] || family!.type !== '' || family!.samples.length > 0)
        fail(line, 'TYPE stands once, behind the HELP of its family and before its samples');
      if (!TYPES.includes(type[2]!)) fail(line, 'no type');
      family!.type = type[2]!;
    } else if (sample !== null) {
      if (family === undefined || family.type === '') fail(line, 'a sample without a type');
      family!.samples.push({
        name: sample[1]!,
        labels: labelsOf(sample[2] ?? '', line),
        value: numberOf(sample[3]!, line),
      });
    } else fail(line, 'not a line of the format');
  }
  for (const family of families) checkFamily(family);
  return families;
}

function checkFamily({ name, type, samples }: MetricFamily): void {
  if (samples.length === 0) throw new Error(`${name} has no sample`);
  const keys = samples.map((sample) => `${sample.name} ${JSON.stringify(Object.entries(sample.labels))}`);
  if (new Set(keys).size !== keys.length) throw new Error(`${name} has a sample twice`);
  if (type === 'histogram') {
    checkHistogram(name, samples);
    return;
  }
  for (const sample of samples) {
    if (sample.name !== name) throw new Error(`${sample.name} stands in the family of ${name}`);
    if (type === 'counter' && !(sample.value >= 0)) throw new Error(`counter ${name} is below zero`);
  }
  if ((type === 'counter') !== name.endsWith('_total'))
    throw new Error(`${name}: counters, and they alone, end in _total`);
}

function checkHistogram(name: string, samples: readonly Sample[]): void {
  const buckets = samples.filter((sample) => sample.name === `${name}_bucket`);
  const [sum, count] = samples.slice(buckets.length);
  if (samples.length !== buckets.length + 2 || sum?.name !== `${name}_sum` || count?.name !== `${name}_count`)
    throw new Error(`${name} must be buckets, a sum and a count, in this order`);
  let before = { bound: Number.NEGATIVE_INFINITY, value: 0 };
  for (const { labels, value } of buckets) {
    const bound = numberOf(labels['le'] ?? '', name);
    if (bound <= before.bound || value < before.value) throw new Error(`the buckets of ${name} must rise`);
    before = { bound, value };
  }
  if (before.bound !== Number.POSITIVE_INFINITY || before.value !== count.value)
    throw new Error(`the last bucket of ${name} must be +Inf and hold the count`);
}
