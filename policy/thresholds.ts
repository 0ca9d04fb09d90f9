/**
 * Every bound that a policy compares something with, with its unit and where the number comes from. "Measured" means:
 * on SmolLM2-135M-Instruct, windows of 2K and 4K tokens, four kinds of text; policy/README.md says more.
 */
import { checkOption, KvError, plural, SHAPE_OPTIONS, show, unknownName } from '../native/index.ts';
import { checkCourse } from './course.ts';
import { checkLaw } from './law.ts';
import type { Threshold, ThresholdSet } from './types.ts';

/**
 * The error law KLD ≈ c·Σ g·ε²: c was 3 to 4 over 56 runs (r = .95); 4 is the cautious end. Gains are 1 without
 * evidence.
 */
const C_DEFAULT = 4;

const CHOSEN = 'chosen, not measured';

interface Definition {
  readonly value: number;
  readonly unit: string;
  readonly min: number;
  readonly max: number;
  readonly source: string;
}

/** id → default, range, source. A set may leave ids out: the default stands in for them. */
const DEFINITIONS = {
  'price.start': {
    value: 0,
    unit: 'KLD/byte',
    min: 0,
    max: 1e12,
    source: 'without evidence nothing moves before the budget binds, so nothing is lost early',
  },
  'price.slack': {
    value: 2,
    unit: '1',
    min: 1,
    max: 1e3,
    source: `${CHOSEN}; later errors double their trial for under 1% of pages (measured)`,
  },
  'price.rise': {
    value: 2,
    unit: '1 per 128 tokens',
    min: 1,
    max: 1e6,
    source: `${CHOSEN}; content moves the bits at one price by 6% (measured), so doubling is ample`,
  },
  'dwell.tokens': {
    value: 128,
    unit: 'tokens',
    min: 0,
    max: 1e6,
    source: `${CHOSEN}: one page; the next trial then has queries that the last one had not`,
  },
  'trial.age': {
    value: 128,
    unit: 'tokens',
    min: 0,
    max: 1e6,
    source: `${CHOSEN}: one page; an older trial is repeated before its move is made`,
  },
  'trial.settled': {
    value: 512,
    unit: 'tokens',
    min: 0,
    max: 1e9,
    source:
      'a repeated trial exceeds the first for 9% of pages up to one page behind the window, 4% up to four, 1.5% up to eight, 0.3% beyond (measured, 21,300 trials)',
  },
  'trial.again': {
    value: 8,
    unit: 'pages',
    min: 0,
    max: 64,
    source:
      'pages are tried again up to this age while they are 8-bit: 0.84 of the divergence at 2,048 tokens and 25% of f16, four texts (measured); older ones take turns',
  },
  'probe.share': {
    value: 0.005,
    unit: 'share',
    min: 0,
    max: 0.5,
    source: `${CHOSEN}: half a per cent of the tokens of a prompt are run again`,
  },
  'probe.share.kld': {
    value: 0.03,
    unit: 'share',
    min: 0,
    max: 0.5,
    source: `${CHOSEN}: likewise against a divergence budget, which depends on what they say`,
  },
  'probe.layers': {
    value: 0.1,
    unit: 'share',
    min: 0,
    max: 0.5,
    source: `${CHOSEN}: what finding out what errors in single layers cost may take of reading a prompt, where it is not known`,
  },
  'probe.gain': {
    value: 1.33,
    unit: '1',
    min: 0.01,
    max: 100,
    source:
      'what a probe measures over what sessions measure, per ε²: a spread of e^±0.3 over ten texts at three divergence budgets (measured)',
  },
  'divergence.chosen': {
    value: 1.15,
    unit: '1',
    min: 0.01,
    max: 100,
    source:
      'what the moves cost that a session chooses, over what the law says of them: a spread of e^±0.37 (measured, 30 sessions in 15 texts of five kinds)',
  },
  'divergence.cautious': {
    value: 0.75,
    unit: 'standard deviations',
    min: 0,
    max: 10,
    source: `${CHOSEN}: a divergence budget counts the text as so much dearer than expected, beside what is kept for errors of the past`,
  },
  'divergence.length': {
    value: 0.7,
    unit: '1',
    min: 0,
    max: 8,
    source:
      'beyond 2,048 tokens divergence exceeds what the law says as this power of the length: 1.64 times as much at 4,096 (measured, five texts of five kinds); it belongs to a model, and a calibration measures it',
  },
  'divergence.ahead': {
    value: 1,
    unit: '1',
    min: 0,
    max: 1,
    source:
      'what is decided now stays, so it counts as it will at the expected length, and with 0 as it does now: then 12 of 12 sessions of the reference model of 4,096 tokens exceed what was stated, and with it none (measured)',
  },
  'divergence.past': {
    value: 2,
    unit: '1',
    min: 0,
    max: 100,
    source:
      'what moves cost on average so far counts as so much of what they cost now: the spread of measured over predicted falls from 0.34 to 0.20 in logarithms (measured, 30 runs, six texts)',
  },
  'reread.every': {
    value: 0,
    unit: 'tokens',
    min: 0,
    max: 1e9,
    source:
      'none are read twice: with 256 a session with originals keeps a stated divergence more often, and reading 2,048 tokens takes 1.17 to 1.22 times as long (measured, two models)',
  },
  'reread.rows': {
    value: 32,
    unit: 'tokens',
    min: 1,
    max: 128,
    source:
      'of 8, 16, 32 and 64 tokens every 256: 65, 72, 78 and 84% of sessions use half of what was stated to all (simulated on 14 sessions)',
  },
  'reread.seen': {
    value: 0.83,
    unit: 'share',
    min: 0.01,
    max: 1,
    source:
      'of the divergence of SmolLM2 from its exact cache, what reading twice sees, a spread of e^±0.07; the rest is in rows that were computed over coded pages (measured, 14 sessions in four texts)',
  },
  'reread.doubled': {
    value: 0.9,
    unit: 'share',
    min: 0.01,
    max: 100,
    source:
      'of the divergence of the same tokens, what doubled errors show: 0.82, a spread of e^±0.57, on the reference model, 1.33, e^±0.47, on SmolLM2 (measured, 28 and 9 reports of four and three sessions)',
  },
  'reread.drift': {
    value: 0.6,
    unit: 'ln KLD',
    min: 0,
    max: 10,
    source:
      'by so much measured over predicted changes within 1,024 tokens: of 0 to 1.2 the next 512 tokens are foreseen best by 0.4 to 0.6 (measured, 20 sessions of the reference model)',
  },
  'reread.sd': {
    value: 0.5,
    unit: 'ln KLD',
    min: 0.01,
    max: 10,
    source:
      'of what one report says of a session: by seven of them the last 512 tokens of 2,048 are foreseen to e^±0.24, by reports of an sd of 0.9 to e^±0.25 with a third less of the way (measured, 48 sessions of the reference model)',
  },
  'reread.spread': {
    value: 0.9,
    unit: 'ln KLD',
    min: 0.01,
    max: 10,
    source:
      'of measured over predicted divergence where nothing was measured, from 0: -0.45 ± 0.48 in logarithms on SmolLM2 (80 sessions), 0.8 ± 0.5 on the reference model (48 sessions)',
  },
  'reread.aim': {
    value: 0.65,
    unit: 'share',
    min: 0.01,
    max: 1,
    source:
      'of a stated divergence, where it is measured, at a level that counts as divergence.cautious higher: what that comes to at the end is the half that was aimed at before, when 22 of 24 sessions of the reference model of 2,048 tokens used half of it to all and 2 more (measured)',
  },
  'pressure.enter': {
    value: 0.95,
    unit: 'share',
    min: 0.01,
    max: 1,
    source: `${CHOSEN}; five points above its way back`,
  },
  'pressure.leave': { value: 0.9, unit: 'share', min: 0.01, max: 1, source: `${CHOSEN}; five points below its way in` },
  'pressure.critical': { value: 1, unit: 'share', min: 0.01, max: 1, source: 'the budget is hard' },
  'pressure.ease': { value: 0.95, unit: 'share', min: 0.01, max: 1, source: `${CHOSEN}; where pressure is entered` },
  'pressure.low-memory': {
    value: 0.75,
    unit: 'share',
    min: 0.05,
    max: 1,
    source: `${CHOSEN}: what is aimed at while low memory is signalled`,
  },
  'quality.ratio': {
    value: 2,
    unit: '1',
    min: 1e-3,
    max: 1e6,
    source:
      'measured over promised error that counts as severity 1: later errors double their trial for under 1% of pages (measured); version 2 of the price policy',
  },
  'quality.shift': {
    value: 0.9,
    unit: 'ln ε',
    min: 1e-3,
    max: 1e3,
    source:
      'how much less older pages are needed than pages of their age were before, with 0.3 of the shift of first trials; 11 of 12 changes of topic are found within 256 tokens, and one of 19 texts of prose and 2 of 7 of program code exceed it within 4K tokens (measured)',
  },
  'gain.least': {
    value: 1 / 30,
    unit: 'share',
    min: 1e-6,
    max: 1,
    source:
      'of the median gain of a side; gains of layers measured lie a factor of 12 below their median at most, so a lower one is not believed',
  },
  'gain.doubted': {
    value: 1,
    unit: 'share',
    min: 1e-6,
    max: 1,
    source:
      'of the median gain of a side, in place of one that is not believed: with gain.least in its place a law in which two of six layers cost a hundredth had 0.8 to 6.7 times the divergence, with the median 1.00 (measured, reference model, 18 sessions)',
  },
  'quality.epsilon': {
    value: 1,
    unit: '1',
    min: 1e-6,
    max: 1e6,
    source: `${CHOSEN}; an error as large as the residual itself. Pages of the formats here measure 1e-4 to 0.3`,
  },
  'quality.kld': {
    value: 2,
    unit: 'KLD',
    min: 1e-9,
    max: 1e6,
    source: `${CHOSEN}; rot2 throughout measured 0.08 in all layers together`,
  },
  'quality.watched': { value: 0.5, unit: 'severity', min: 1e-3, max: 1, source: CHOSEN },
  'quality.watched.leave': {
    value: 0.4,
    unit: 'severity',
    min: 1e-3,
    max: 1,
    source: `${CHOSEN}; a fifth below its way in`,
  },
  'quality.degraded': {
    value: 1,
    unit: 'severity',
    min: 1e-3,
    max: 1e6,
    source: 'by definition of severity: one of the two bounds is reached',
  },
  'quality.degraded.leave': {
    value: 0.8,
    unit: 'severity',
    min: 1e-3,
    max: 1e6,
    source: `${CHOSEN}; a fifth below its way in`,
  },
  'degraded.worth': {
    value: 0,
    unit: '1',
    min: 0,
    max: 1e6,
    source:
      'none comes back: with 1 sides of degraded layers that cost more than their bytes do elsewhere come back from originals, which gains nothing (divergence 1.00 times on the reference model, 0.97 to 1.07, and 0.97 to 1.07 on SmolLM2; measured)',
  },
  'keys.outliers': {
    value: 0.45,
    unit: '1',
    min: 0,
    max: 1e3,
    source:
      'ε of kivi2 over that of rot2 below which the keys of a layer have outlier channels: 0.59 to 1.8 in layers without, 0.04 to 0.39 in layers with one (measured, geometric means of 30 to 45 pages, 36 layers of two models with and without)',
  },
  'attention.skip': {
    value: 0,
    unit: 'share',
    min: 0,
    max: 1,
    source: `${CHOSEN}: nothing is left out; probability that a decode step may leave unread among values of old pages`,
  },
  'canary.share': {
    value: 0.0025,
    unit: 'share',
    min: 0,
    max: 0.5,
    source:
      'of the byte budget, for originals kept beside demoted page sides; 0.0025 costs nothing that can be told from noise (0.99 ± 0.03 of the divergence, 2K tokens at 25%, eight texts), 0.01 5% and 0.02 9% (measured, four texts)',
  },
  'canary.rows': {
    value: 4,
    unit: 'rows',
    min: 0,
    max: 128,
    source:
      'kept of a page side within canary.share, before whole sides are: what four rows say of an error, ln(measured / promised), has a spread of 0.9 to 1.1, whole sides of 0.9 (measured, two models, 1,850 measurements)',
  },
  'canary.every': {
    value: 128,
    unit: 'tokens',
    min: 8,
    max: 1e6,
    source: `${CHOSEN}: one page; then the kept queries are others`,
  },
  'canary.renew': {
    value: 512,
    unit: 'tokens',
    min: 128,
    max: 1e9,
    source: `${CHOSEN}: four pages; after so many another page, and where there is no room for all other layers, is watched`,
  },
  'latent.operations': {
    value: 1024,
    unit: 'dense halves of a token',
    min: 0,
    max: 1e6,
    source:
      'chosen, not measured: who asks for latents asks for bytes, and a latency budget bounds time; 16 of them take as long as the rest of a step that writes one token (measured: 0.63 ms for a page and layer of 0.58, beside 15 ms, one core)',
  },
  'latent.memory': {
    value: 0.9,
    unit: 'share',
    min: 0,
    max: 100,
    source: `${CHOSEN}: of the budget, what the cache must need before a page becomes a latent; divergence stays within 0.98 to 1.01 times of what it is without (measured)`,
  },
  'latent.materialized': {
    value: 0,
    unit: 'tokens',
    min: 0,
    max: 1e9,
    source:
      'none beyond the window: with 256 divergence is 2.0 and 4.1 times as high at 16 and 20% of f16 on the reference model and 5.8 to 10 times on SmolLM2 (measured, KV heads repeated), since others pay for pages that wait',
  },
  'latent.share': {
    value: 0.75,
    unit: 'share',
    min: 0,
    max: 100,
    source:
      'bytes of a latent over those of codes that err as much: at 0.5, where every query head has its own KV head, latents have 0.19 to 0.83 of the divergence; at 1 they have 0.83 to 1.23 of it (measured)',
  },
  'latent.tokens': {
    value: 512,
    unit: 'tokens',
    min: 0,
    max: 1e9,
    source: `${CHOSEN}: four pages; the latents beside pages of the window take as much as so short a session would gain`,
  },
  'latent.pressure': {
    value: 1,
    unit: 'share',
    min: 0,
    max: 1e6,
    source: `${CHOSEN}: the pages would not fit in codes that err as much; where they hardly do not, at 30% of f16, latents still have 0.83 of the divergence (measured)`,
  },
  'latent.foreseen': {
    value: 4,
    unit: 'dense halves of a token',
    min: 0,
    max: 1e6,
    source:
      'chosen, not measured: a step takes a quarter longer (16 of them take as long as the rest of one, measured), which nobody need expect who asked for bytes',
  },
  'latent.latency': {
    value: 0.25,
    unit: 'share',
    min: 0,
    max: 1,
    source:
      'half of a stated latency is left to the rest of a step (chosen), and within a step a page takes about twice as long as alone: 0.3 ms alone, 0.5 to 0.6 in steps of SmolLM2 with repeated KV heads (measured, one core)',
  },
  'trust.enter': {
    value: 0.6,
    unit: 'share',
    min: 0,
    max: 1,
    source:
      'a mean error within e^±0.5 of what was expected, its uncertainty counted in; entered at 0.4, the reference model had 1.11 times the divergence of trying all pages again, at 0.6 0.94 and 1.11 (measured, two sets of three texts)',
  },
  'trust.leave': { value: 0.5, unit: 'share', min: 0, max: 1, source: `${CHOSEN}; below its way in` },
  'latency.enter': {
    value: 1,
    unit: 'share',
    min: 0.01,
    max: 1e3,
    source: 'the p95 of the steps has reached its budget',
  },
  'latency.leave': { value: 0.9, unit: 'share', min: 0.01, max: 1e3, source: `${CHOSEN}; a tenth below its way in` },
} as const satisfies Readonly<Record<string, Definition>>;

export type ThresholdId = keyof typeof DEFINITIONS;

const IDS = Object.keys(DEFINITIONS) as ThresholdId[];

/** Bounds that no set has, since policies take them from their options or choose them as they go. */
const MADE = [
  'age.young',
  'uniform.step',
  'tiers.hot',
  'tiers.warm',
  'streaming-pages.places',
  'h2o-pages.places',
  'snapkv-pages.places',
  'pyramidkv-pages.places',
  'scissorhands-pages.places',
  'fixed.k',
  'fixed.v',
  'table.k',
  'table.v',
] as const;

/** Every id of a bound that a policy of this package names as the reason of a move. */
export const BOUND_IDS: readonly string[] = [...IDS, ...MADE];

const defaultOf = (id: ThresholdId): Threshold => {
  const { value, unit, source } = DEFINITIONS[id];
  return { id, value, unit, origin: 'default', source, samples: 0, evidence: [] };
};

/** What a session starts with when nothing was learned: gains 1 for each of `layers`. Throws 'bad-argument'. */
export function defaultThresholds(layers: number): ThresholdSet {
  checkOption('layers', SHAPE_OPTIONS.layers, layers);
  return {
    version: 1,
    thresholds: Object.fromEntries(IDS.map((id) => [id, defaultOf(id)])),
    gains: { k: new Array<number>(layers).fill(1), v: new Array<number>(layers).fill(1) },
    c: C_DEFAULT,
  };
}

/** A threshold of the set, or the default when the set does not have it. */
export function thresholdOf(set: ThresholdSet, id: ThresholdId): Threshold {
  return Object.hasOwn(set.thresholds, id) ? set.thresholds[id]! : defaultOf(id);
}

/** The set with this threshold in place of that of its id. */
export const withThreshold = (set: ThresholdSet, threshold: Threshold): ThresholdSet => ({
  ...set,
  thresholds: { ...set.thresholds, [threshold.id]: threshold },
});

/** The least and the most that a threshold may be. */
export const rangeOf = (id: ThresholdId): { readonly min: number; readonly max: number } => DEFINITIONS[id];

/** Ways in and out of a state: the way out must lie below, or the state would flutter. */
const PAIRS: readonly (readonly [enter: ThresholdId, leave: ThresholdId])[] = [
  ['pressure.enter', 'pressure.leave'],
  ['pressure.critical', 'pressure.ease'],
  ['quality.watched', 'quality.watched.leave'],
  ['quality.degraded', 'quality.degraded.leave'],
  ['latency.enter', 'latency.leave'],
  ['trust.enter', 'trust.leave'],
];
/** States of one region follow one another. */
const ORDERED: readonly (readonly [lower: ThresholdId, higher: ThresholdId])[] = [
  ['pressure.enter', 'pressure.critical'],
  ['pressure.leave', 'pressure.ease'],
  ['quality.watched', 'quality.degraded'],
  ['quality.watched.leave', 'quality.degraded.leave'],
];

/** Throws 'bad-thresholds' if no threshold has this id, or the value is out of its range. */
export function checkThresholdValue(id: string, value: unknown): void {
  if (!Object.hasOwn(DEFINITIONS, id)) throw unknownName('bad-thresholds', 'there is no threshold', id, IDS);
  const { min, max } = DEFINITIONS[id as ThresholdId];
  if (typeof value === 'number' && value >= min && value <= max) return;
  throw new KvError('bad-thresholds', `${id} is ${show(value)}, not within ${min} to ${max}`, {
    values: { id, value: show(value), min, max },
    hint: `give a number from ${min} to ${max}`,
  });
}

/**
 * Checks what a policy relies on: ranges, order, one gain and one coefficient per layer and side. Unknown ids pass.
 * Throws 'bad-thresholds'.
 */
export function checkThresholds(set: ThresholdSet, layers: number): void {
  const refuse = (message: string, values: Readonly<Record<string, unknown>>): never => {
    throw new KvError('bad-thresholds', message, {
      values,
      hint: 'start from defaultThresholds() or an exported file',
    });
  };
  if (set.version !== 1) refuse(`thresholds of version ${show(set.version)}`, { version: set.version });
  const within = (id: string, value: number, min: number, max: number): void => {
    if (!(typeof value === 'number' && value >= min && value <= max))
      refuse(`${id} is ${show(value)}, not within ${min} to ${max}`, { id, value, min, max });
  };
  for (const id of IDS) within(id, thresholdOf(set, id).value, DEFINITIONS[id].min, DEFINITIONS[id].max);
  const value = (id: ThresholdId): number => thresholdOf(set, id).value;
  for (const [enter, leave] of PAIRS) {
    if (value(leave) >= value(enter))
      refuse(`${leave} must lie below ${enter}`, { [enter]: value(enter), [leave]: value(leave) });
  }
  for (const [lower, higher] of ORDERED) {
    if (value(lower) > value(higher))
      refuse(`${lower} must not exceed ${higher}`, { [lower]: value(lower), [higher]: value(higher) });
  }
  within('c', set.c, 1e-3, 1e3);
  for (const side of ['k', 'v'] as const) {
    const gains = set.gains[side];
    if (gains.length !== layers)
      refuse(`${plural(gains.length, 'gain')} for ${plural(layers, 'layer')}`, { side, gains: gains.length, layers });
    for (const [layer, gain] of gains.entries()) within(`gain of layer ${layer} ${side}`, gain, 1e-3, 1e3);
  }
  if (set.law !== undefined) checkLaw(set.law, layers);
  if (set.course !== undefined) checkCourse(set.course, layers);
}
