/**
 * Joins what several machines learned of one model. A merged file keeps the parts that it was made from, so that
 * merging it again starts from these: the result depends neither on order nor on how often a file was given, and the
 * evidence of a log counts once.
 *
 * Estimates are weighted by inverse variance in logarithms. Where they contradict one another, the standard deviation
 * is multiplied by the scale factor of the Particle Data Group, sqrt(chi²/(n−1)) where that is above 1 (Review of
 * Particle Physics, section 5.2.2).
 */
import { DENSE_SLOTS, KvError, packageVersion } from '../native/index.ts';
import type { ActivationCosts, Estimate, FormatEstimates, Law } from '../policy/index.ts';
import { mergeCourses, sessionsBehind } from './courses.ts';
import { C_DEFAULT, C_SESSION_SD } from './estimate.ts';
import { covers, joinRanges, overlap } from './log-ranges.ts';
import { evidenceRanges, modelDifference, spellLearned } from './threshold-file.ts';
import { type FileThreshold, type Learned, type LogPart, PARTS_MAX, type ThresholdFile } from './threshold-schema.ts';

/**
 * No measurement is believed to be better than this, so that none silences all others. Chosen: texts differ by more.
 */
const SD_LEAST = 0.01;

/** A part and what is asked of it again and again. */
interface Part {
  readonly learned: Learned;
  readonly text: string;
  readonly ranges: ReturnType<typeof evidenceRanges>;
  /** Sessions, or the samples of its best known number where nobody counted them. */
  readonly size: number;
}

/**
 * One file from several for the same model, without a signature. Throws 'model-mismatch' for different models,
 * 'bad-thresholds' where checkpoints contradict each other or there are too many parts, 'bad-argument' for no file.
 */
export function mergeThresholdFiles(files: readonly ThresholdFile[]): ThresholdFile {
  const [first] = files;
  if (first === undefined) throw new KvError('bad-argument', 'there is no file to merge');
  for (const [at, { model }] of files.entries()) {
    const what = modelDifference(model, first.model);
    if (what !== null)
      throw new KvError('model-mismatch', `file ${at + 1} belongs to another model than the first: ${what}`, {
        values: { first: first.model, other: model },
        hint: 'merge files of one model only',
      });
    if (model.pack !== first.model.pack)
      throw new KvError(
        'model-mismatch',
        `file ${at + 1} rests on sessions with ${model.pack ?? 'no pack'}, the first with ${first.model.pack ?? 'no pack'}`,
        { values: { first: first.model, other: model }, hint: 'merge files of one pack only' },
      );
  }
  const parts = distinctParts(files);
  checkCheckpoints(parts);
  const kept = parts.filter((one) => !parts.some((other) => other !== one && replaces(other, one)));
  if (kept.length > PARTS_MAX)
    throw new KvError(
      'bad-thresholds',
      `the files rest on ${kept.length} logs or machines, and one file holds ${PARTS_MAX}`,
      {
        values: { parts: kept.length, partsMax: PARTS_MAX },
      },
    );
  const { model } = first;
  if (kept.length === 1) return { model, ...kept[0]!.learned, parts: [], signature: null };
  return { model, ...combined(kept), parts: kept.map(({ learned }) => learned), signature: null };
}

function distinctParts(files: readonly ThresholdFile[]): Part[] {
  const byText = new Map<string, Part>();
  for (const { model: _, signature: __, parts, ...own } of files) {
    for (const learned of parts.length === 0 ? [own] : parts) {
      const text = spellLearned(learned);
      byText.set(text, { learned, text, ranges: evidenceRanges(learned), size: sizeOf(learned) });
    }
  }
  return [...byText.values()].sort((a, b) => (a.text < b.text ? -1 : 1));
}

function sizeOf({ evidence, law, course, activations, thresholds }: Learned): number {
  if (evidence.sessions !== null) return evidence.sessions;
  const seen = Object.values(thresholds).map(({ samples }) => samples);
  if (law !== null) seen.push(...[...law.coefficient.k, ...law.coefficient.v].map(({ samples }) => samples));
  if (course !== undefined) seen.push(sessionsBehind(course));
  if (activations !== undefined) seen.push(activations.output.samples);
  return Math.max(0, ...seen);
}

/** A log has one hash at one place. Two say that it was rewritten, or copied and continued twice. */
function checkCheckpoints(parts: readonly Part[]): void {
  const heads = new Map<string, string>();
  for (const { logId, to, headHash } of parts.flatMap(({ learned }) => learned.evidence.logs)) {
    if (headHash === null) continue;
    const place = `${logId} ${to}`;
    const other = heads.get(place) ?? headHash;
    heads.set(place, headHash);
    if (other !== headHash)
      throw new KvError('bad-thresholds', `log ${logId} has two hashes at entry ${to}`, {
        values: { logId, seq: to, one: other, other: headHash },
        hint: 'one of the files tells of a log that was changed, or of a copy that went on by itself: merge only one of them',
      });
  }
}

/**
 * True if a part knows all evidence of another: then the other is an earlier state of it. Of two with the same evidence
 * the text decides.
 */
function replaces(a: Part, b: Part): boolean {
  if (a.ranges.length === 0 || b.ranges.length === 0 || !covers(a.ranges, b.ranges)) return false;
  if (!covers(b.ranges, a.ranges)) return true;
  return a.size === b.size ? a.text > b.text : a.size > b.size;
}

/** Parts of which no two share evidence: of those that do, the one that rests on most counts. */
function independent(parts: readonly Part[]): Part[] {
  const counted: Part[] = [];
  for (const one of [...parts].sort((a, b) => b.size - a.size || (a.text < b.text ? -1 : 1)))
    if (!counted.some((other) => overlap(other.ranges, one.ranges))) counted.push(one);
  // One order for all sums, so that they round alike.
  return counted.sort((a, b) => (a.text < b.text ? -1 : 1));
}

function combined(parts: readonly Part[]): Learned {
  const counted = independent(parts);
  const learned = counted.map((one) => one.learned);
  const weights = counted.map(({ size }) => Math.max(1, size));
  const total = (name: 'sessions' | 'tokens'): number | null =>
    learned.reduce<number | null>((sum, { evidence }) => {
      const more = evidence[name];
      return sum === null || more === null ? null : sum + more;
    }, 0);
  const thresholds = mergeThresholds(learned);
  const course = mergeCourses(learned.flatMap((one) => one.course ?? []));
  const activations = mergeActivations(learned.flatMap((one) => one.activations ?? []));
  const gainsOf = (side: 'k' | 'v'): number[] => {
    const told = learned.map(({ gains }) => gains[side]);
    return told[0]!.map((_, layer) =>
      logMean(
        told.map((gains) => gains[layer]!),
        weights,
        1,
      ),
    );
  };
  return {
    createdBy: `palimpsest ${packageVersion()}`,
    evidence: { sessions: total('sessions'), tokens: total('tokens'), logs: mergeLogs(counted) },
    thresholds,
    gains: { k: gainsOf('k'), v: gainsOf('v') },
    c: logMean(
      learned.map(({ c }) => c),
      weights,
      C_DEFAULT,
    ),
    law: mergeLaws(learned.flatMap(({ law }) => law ?? [])),
    ...(course === null ? {} : { course }),
    ...(activations === null ? {} : { activations }),
  };
}

/** Stretches of all, each with its checkpoint. */
function mergeLogs(counted: readonly Part[]): LogPart[] {
  const heads = counted.flatMap(({ learned }) => learned.evidence.logs).filter(({ headHash }) => headHash !== null);
  return joinRanges(counted.flatMap(({ ranges }) => ranges)).map((range) => ({
    ...range,
    headHash: heads.find(({ logId, to }) => logId === range.logId && to === range.to)?.headHash ?? null,
  }));
}

/**
 * Weighted mean in logarithms of the values that somebody changed; the one that stands for nothing known where nobody
 * did.
 */
function logMean(values: readonly number[], weights: readonly number[], unknown: number): number {
  const told = values.map((value, at) => ({ value, weight: weights[at]! })).filter(({ value }) => value !== unknown);
  const first = told[0]?.value ?? unknown;
  // What all agree on stays as it is, without the rounding of a logarithm.
  if (told.every(({ value }) => value === first)) return first;
  const total = told.reduce((sum, { weight }) => sum + weight, 0);
  return Math.exp(told.reduce((sum, { value, weight }) => sum + weight * Math.log(value), 0) / total);
}

/**
 * Inverse variance in logarithms. Assumptions, which rest on nothing, count only among themselves: there the least
 * certain one stands.
 */
export function mergeEstimates(given: readonly Estimate[]): Estimate {
  const known = given.filter(({ samples }) => samples > 0);
  if (known.length === 0) return given.reduce((a, b) => (b.sd > a.sd ? b : a));
  if (known.length === 1) return known[0]!;
  const weights = known.map(({ sd }) => 1 / Math.max(SD_LEAST, sd) ** 2);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const mean = known.reduce((sum, { value }, at) => sum + weights[at]! * Math.log(value), 0) / total;
  const chi2 = known.reduce((sum, { value }, at) => sum + weights[at]! * (Math.log(value) - mean) ** 2, 0);
  return {
    value: Math.exp(mean),
    sd: Math.sqrt(Math.max(1, chi2 / (known.length - 1)) / total),
    samples: known.reduce((sum, { samples }) => sum + samples, 0),
  };
}

/**
 * How much texts differ does not become less with more of them, so spreads are pooled: the mean variance, weighted by
 * samples.
 */
function mergeSpreads(given: readonly Estimate[]): Estimate {
  const known = given.filter(({ samples }) => samples > 0);
  if (known.length < 2) return mergeEstimates(given);
  const samples = known.reduce((sum, one) => sum + one.samples, 0);
  const mean = (of: (one: Estimate) => number): number =>
    known.reduce((sum, one) => sum + one.samples * of(one), 0) / samples;
  return { value: Math.exp(mean(({ value }) => Math.log(value))), sd: Math.sqrt(mean(({ sd }) => sd * sd)), samples };
}

function mergeLaws(laws: readonly Law[]): Law | null {
  const [first] = laws;
  if (first === undefined || laws.length === 1) return first ?? null;
  const coefficients = (side: 'k' | 'v'): Estimate[] =>
    first.coefficient[side].map((_, layer) => mergeEstimates(laws.map(({ coefficient }) => coefficient[side][layer]!)));
  const tables = (side: 'k' | 'v'): FormatEstimates[] =>
    Array.from({ length: Math.max(...laws.map(({ epsilon }) => epsilon[side].length)) }, (_, layer) =>
      mergeFormats(laws.map(({ epsilon }) => epsilon[side][layer] ?? {})),
    );
  return {
    coefficient: { k: coefficients('k'), v: coefficients('v') },
    text: mergeSpreads(laws.map(({ text }) => text)),
    offset: mergeEstimates(laws.map(({ offset }) => offset)),
    fade: mergeEstimates(laws.map(({ fade }) => fade)),
    epsilon: { k: tables('k'), v: tables('v') },
  };
}

function mergeActivations(given: readonly ActivationCosts[]): ActivationCosts | null {
  const [first] = given;
  if (first === undefined || given.length === 1) return first ?? null;
  const lists = DENSE_SLOTS.map((slot) => [
    slot,
    first.matrices[slot].map((_, layer) => mergeEstimates(given.map(({ matrices }) => matrices[slot][layer]!))),
  ]);
  return {
    matrices: Object.fromEntries(lists) as ActivationCosts['matrices'],
    output: mergeEstimates(given.map(({ output }) => output)),
    together: mergeEstimates(given.map(({ together }) => together)),
  };
}

function mergeFormats(tables: readonly FormatEstimates[]): FormatEstimates {
  const formats = new Set(tables.flatMap((table) => Object.keys(table) as (keyof FormatEstimates)[]));
  return Object.fromEntries(
    [...formats].map((format) => [format, mergeEstimates(tables.flatMap((table) => table[format] ?? []))]),
  );
}

function mergeThresholds(learned: readonly Learned[]): Record<string, FileThreshold> {
  const ids = new Set(learned.flatMap(({ thresholds }) => Object.keys(thresholds)));
  const merged: Record<string, FileThreshold> = {};
  for (const id of ids) {
    const given = learned.flatMap(({ thresholds }) => (Object.hasOwn(thresholds, id) ? [thresholds[id]!] : []));
    const one = mergeThreshold(id, given);
    if (one !== null) merged[id] = one;
  }
  return merged;
}

/** null: nobody measured it, and those who set it do not agree. */
function mergeThreshold(id: string, given: readonly FileThreshold[]): FileThreshold | null {
  const first = given[0]!;
  if (given.some(({ unit }) => unit !== first.unit))
    throw new KvError(
      'bad-thresholds',
      `${id} has several units: ${[...new Set(given.map(({ unit }) => unit))].join(', ')}`,
      {
        values: { id },
        hint: 'files of one version have one unit: export them again',
      },
    );
  const known = given.filter(({ samples }) => samples > 0);
  if (known.length === 0) return given.every(({ value }) => value === first.value) ? first : null;
  if (known.length === 1) return { ...known[0]!, evidence: [] };
  const source = `merged from ${known.length} machines by evidence`;
  if (known.every(({ value }) => value > 0)) {
    const estimates = known.map(({ value, sd, samples }) => ({
      value,
      samples,
      sd: sd ?? C_SESSION_SD / Math.sqrt(samples),
    }));
    const { value, sd, samples } = mergeEstimates(estimates);
    return { value, unit: first.unit, sd, samples: Math.round(samples), source, evidence: [] };
  }
  // What is 0 has no logarithm: the value that rests on most stands, of equal ones the lowest.
  const best = known.reduce((a, b) =>
    b.samples > a.samples || (b.samples === a.samples && b.value < a.value) ? b : a,
  );
  const samples = known.reduce((sum, one) => sum + one.samples, 0);
  return { ...best, sd: null, samples, source, evidence: [] };
}
