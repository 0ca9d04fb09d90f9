/**
 * What differs between two threshold files, most important first: whether they belong to one model, then numbers that
 * moved further than both intervals explain, then those that only became more or less certain; among these the larger
 * factor first.
 */
import { DENSE_SLOTS, plural } from '../native/index.ts';
import { type ActivationCosts, type Course, defaultThresholds, type Estimate } from '../policy/index.ts';
import { sessionsBehind } from './courses.ts';
import { keyIdOf } from './signature.ts';
import { intervalOf, type ThresholdFile } from './threshold-schema.ts';

/** A number on one side of a comparison. */
export interface Told {
  readonly value: number;
  /** 95% of what is believed of it; null: not estimated. */
  readonly interval: readonly [number, number] | null;
  /** Sessions or probes; 0: a default, or set by hand. */
  readonly samples: number;
}

/** One line of a comparison. Facts (a digest, a signature) have texts in place of numbers, and no unit. */
export interface Difference {
  /** e.g. 'coefficient K, layer 3', 'trial.age', 'model digest' */
  readonly what: string;
  readonly before: Told | string | null;
  readonly after: Told | string | null;
  readonly unit: string | null;
  /** after / before; null for facts and where one of the two is 0 or absent. */
  readonly factor: number | null;
  /** True if the change is larger than what both intervals explain; true for facts. */
  readonly isClear: boolean;
}

const DEFAULTS = defaultThresholds(1);

interface Row extends Difference {
  /** 0: the files cannot be compared; 1: a clear change; 2: one within the intervals; 3: where the file comes from. */
  readonly rank: 0 | 1 | 2 | 3;
}

/** What differs; empty when nothing does. */
export function diffThresholdFiles(a: ThresholdFile, b: ThresholdFile): Difference[] {
  const rows: Row[] = [];
  const fact = (rank: Row['rank'], what: string, before: string, after: string): void => {
    if (before !== after) rows.push({ rank, what, before, after, unit: null, factor: null, isClear: true });
  };
  fact(0, 'model digest', a.model.digest || '(none)', b.model.digest || '(none)');
  fact(0, 'pack', a.model.pack ?? '(none)', b.model.pack ?? '(none)');
  for (const name of ['layers', 'queryHeads', 'kvHeads', 'headDim'] as const)
    fact(0, `shape, ${name}`, String(a.model.shape[name]), String(b.model.shape[name]));

  const number = (what: string, unit: string, before: Told | null, after: Told | null): void => {
    if (JSON.stringify(before) === JSON.stringify(after)) return;
    const factor =
      before === null || after === null || before.value <= 0 || after.value <= 0 ? null : after.value / before.value;
    const isClear = before === null || after === null || isFar(before, after);
    rows.push({ rank: isClear ? 1 : 2, what, before, after, unit, factor, isClear });
  };
  for (const id of [...new Set([...Object.keys(a.thresholds), ...Object.keys(b.thresholds)])].sort()) {
    const unit = (a.thresholds[id] ?? b.thresholds[id])!.unit;
    number(id, unit, thresholdIn(a, id), thresholdIn(b, id));
  }
  number('c', 'nats/ε²', exactly(a.c), exactly(b.c));
  if ((a.law === null) !== (b.law === null)) fact(1, 'law of errors', lawInWords(a), lawInWords(b));
  for (const side of ['k', 'v'] as const) {
    const layers = Math.max(a.model.shape.layers, b.model.shape.layers);
    for (let layer = 0; layer < layers; layer++) {
      const place = `${side.toUpperCase()}, layer ${layer}`;
      number(`gain ${place}`, '1', exactly(a.gains[side][layer]), exactly(b.gains[side][layer]));
      if (a.law === null || b.law === null) continue;
      number(
        `coefficient ${place}`,
        'nats/ε²',
        told(a.law.coefficient[side][layer]),
        told(b.law.coefficient[side][layer]),
      );
      const [left, right] = [a.law.epsilon[side][layer] ?? {}, b.law.epsilon[side][layer] ?? {}];
      for (const format of new Set([...Object.keys(left), ...Object.keys(right)] as (keyof typeof left)[]))
        number(`ε of ${format} ${place}`, '1', told(left[format]), told(right[format]));
    }
  }
  if (a.law !== null && b.law !== null)
    for (const name of ['text', 'offset', 'fade'] as const) number(name, '1', told(a.law[name]), told(b.law[name]));
  if ((a.course === undefined) !== (b.course === undefined))
    fact(1, 'course of errors', courseInWords(a), courseInWords(b));
  if (a.course !== undefined && b.course !== undefined) courseRows(a.course, b.course, number);
  if ((a.activations === undefined) !== (b.activations === undefined))
    fact(1, 'costs of activations', activationsInWords(a), activationsInWords(b));
  if (a.activations !== undefined && b.activations !== undefined) activationRows(a.activations, b.activations, number);
  fact(3, 'evidence', evidenceInWords(a), evidenceInWords(b));
  fact(3, 'signed by', signerOf(a), signerOf(b));
  fact(3, 'created by', a.createdBy, b.createdBy);
  return rows
    .map((row, at) => ({ row, at }))
    .sort((x, y) => x.row.rank - y.row.rank || size(y.row) - size(x.row) || x.at - y.at)
    .map(({ row: { what, before, after, unit, factor, isClear } }) => ({ what, before, after, unit, factor, isClear }));
}

/** Absent on one side, or 0 there, is more than any factor. */
const size = ({ factor, unit }: Row): number =>
  factor === null ? (unit === null ? 0 : Number.POSITIVE_INFINITY) : Math.abs(Math.log(factor));

/**
 * True if two numbers differ by more than the 95% intervals of both explain. A number without an interval is taken as
 * exact.
 */
function isFar(a: Told, b: Told): boolean {
  if (a.value === b.value) return false;
  if (a.value <= 0 || b.value <= 0) return true;
  const half = ({ interval }: Told): number =>
    interval === null || interval[0] <= 0 ? 0 : Math.log(interval[1] / interval[0]) / 2;
  return Math.abs(Math.log(b.value / a.value)) > Math.hypot(half(a), half(b));
}

const exactly = (value: number | undefined): Told | null =>
  value === undefined ? null : { value, interval: null, samples: 0 };

const told = (one: Estimate | undefined): Told | null =>
  one === undefined ? null : { value: one.value, interval: intervalOf(one), samples: one.samples };

function thresholdIn({ thresholds }: ThresholdFile, id: string): Told | null {
  const one = Object.hasOwn(thresholds, id) ? thresholds[id]! : DEFAULTS.thresholds[id];
  if (one === undefined) return null;
  const { value, samples } = one;
  const sd = 'sd' in one ? one.sd : null;
  return { value, interval: typeof sd === 'number' ? intervalOf({ value, sd }) : null, samples };
}

/** Each number of two courses. */
function courseRows(
  a: Course,
  b: Course,
  number: (what: string, unit: string, before: Told | null, after: Told | null) => void,
): void {
  for (const side of ['k', 'v'] as const)
    for (let layer = 0; layer < Math.max(a.persistence[side].length, b.persistence[side].length); layer++) {
      const [before, after] = [a.persistence[side][layer], b.persistence[side][layer]];
      number(`persistence ${side.toUpperCase()}, layer ${layer}`, '1', told(before), told(after));
    }
  for (let octave = 0; octave < Math.max(a.left.length, b.left.length); octave++)
    number(`left from ${2 ** (octave + 1)} pages on`, '1', told(a.left[octave]), told(b.left[octave]));
  for (const name of ['found', 'page', 'chance'] as const)
    number(`noise of trials, ${name}`, '1', exactly(a.noise[name]), exactly(b.noise[name]));
}

/** Each number of two tables of costs. */
function activationRows(
  a: ActivationCosts,
  b: ActivationCosts,
  number: (what: string, unit: string, before: Told | null, after: Told | null) => void,
): void {
  for (const slot of DENSE_SLOTS)
    for (let layer = 0; layer < Math.max(a.matrices[slot].length, b.matrices[slot].length); layer++)
      number(
        `activations of ${slot}, layer ${layer}`,
        'nats',
        told(a.matrices[slot][layer]),
        told(b.matrices[slot][layer]),
      );
  number('activations of the output matrix', 'nats', told(a.output), told(b.output));
  number('activations together', '1', told(a.together), told(b.together));
}

/** What a table of costs rests on, in a few words. */
const activationsInWords = ({ activations }: Pick<ThresholdFile, 'activations'>): string =>
  activations === undefined
    ? '(none)'
    : `${plural(activations.matrices.q.length, 'layer')}, from ${plural(activations.output.samples, 'window')}`;

/** How many sessions told a course, in a few words. */
export const courseInWords = ({ course }: Pick<ThresholdFile, 'course'>): string =>
  course === undefined
    ? '(none)'
    : `${course.persistence.k.length} layers, from ${plural(sessionsBehind(course), 'session')}`;

const lawInWords = ({ law }: ThresholdFile): string =>
  law === null
    ? '(none)'
    : `${plural(law.coefficient.k.length, 'layer')}, ${law.epsilon.k.length > 0 ? 'with' : 'without'} typical errors`;

/** Sessions, tokens and logs in a few words. */
export function evidenceInWords({ evidence, parts }: Pick<ThresholdFile, 'evidence' | 'parts'>): string {
  const { sessions, tokens, logs } = evidence;
  const words: string[] = [];
  if (sessions !== null) words.push(plural(sessions, 'session'));
  if (tokens !== null) words.push(plural(tokens, 'token'));
  words.push(
    logs.length === 0 ? 'no log' : logs.map(({ logId, to }) => `log ${logId.slice(0, 8)} up to ${to}`).join(', '),
  );
  if (parts.length > 0) words.push(`merged from ${parts.length} machines`);
  return words.join('; ');
}

/** Key id of whoever signed a file. */
export const signerOf = ({ signature }: Pick<ThresholdFile, 'signature'>): string =>
  signature === null ? 'nobody' : `key ${keyIdOf(signature.publicKey)}`;
