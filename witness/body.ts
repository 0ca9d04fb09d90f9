/**
 * What the body of each kind of entry may say. A hash proves that bytes were not changed, not that they make sense: whoever can write
 * files can write a log with right hashes. So every entry that is read passes here, and what follows may rely on its types.
 * The checks are plain functions because a log has tens of thousands of entries: a schema library, which copies what it checks,
 * took a third of the time that it takes to verify a log.
 */
import { FORMAT_NAMES, isFormatName, KvError, LATENT_NAMES, PARTS, WINDOW_TOKENS } from '../native/index.ts';
import type { EntryKind } from './types.ts';

/** The first thing that is wrong, and the names of the fields that lead to it. */
interface Fault {
  readonly path: readonly string[];
  readonly what: string;
}
export interface Check {
  (value: unknown): Fault | null;
  /** Checks of what stands under a name; under '*', of everything inside. Left out: nothing is inside. */
  inside?: (name: string) => readonly Check[];
  /** The same check as data, for the binary. It may accept less than the function. Left out: it accepts nothing. */
  form?: Form;
}

/** What a value may be. Whether it may be left out is asked of the check. */
export type Form =
  | { readonly is: 'anything' | 'plain' | 'real' | 'flag' }
  | { readonly is: 'object'; readonly fields: readonly (readonly [string, Check])[] }
  | { readonly is: 'record'; readonly name: Check; readonly inside: Check }
  | { readonly is: 'list'; readonly inside: Check; readonly min: number; readonly max: number }
  | { readonly is: 'integer'; readonly min: number; readonly max: number }
  | { readonly is: 'text'; readonly max: number }
  /** The values. */
  | { readonly is: 'one'; readonly of: readonly unknown[] }
  | { readonly is: 'nullable' | 'optional'; readonly inside: Check };

/** A check of a value that has others inside. */
const into = (check: Check, inside: Check['inside'], form?: Form): Check =>
  Object.assign(check, inside === undefined ? {} : { inside }, form === undefined ? {} : { form });

const when = (isSound: (value: unknown) => boolean, expected: string, form?: Form): Check =>
  into((value) => (isSound(value) ? null : { path: [], what: `expected ${expected}` }), undefined, form);

const at = (key: string | number, { path, what }: Fault): Fault => ({ path: [String(key), ...path], what });

const isPlain = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Whatever a caller has put there. */
const anything: Check = into(
  when(() => true, 'anything'),
  () => [anything],
  { is: 'anything' },
);
const plain = into(when(isPlain, 'an object'), () => [anything], { is: 'plain' });

/** An object with these fields; others may stand beside them. */
function object(fields: Readonly<Record<string, Check>>): Check {
  const checks = Object.entries(fields);
  const check: Check = (value) => {
    if (!isPlain(value)) return plain(value);
    for (const [key, checkField] of checks) {
      const fault = checkField(value[key]);
      if (fault !== null) return at(key, fault);
    }
    return null;
  };
  const inside = (name: string): Check[] =>
    checks.filter(([key]) => name === '*' || name === key).map(([, field]) => field);
  return into(check, inside, { is: 'object', fields: checks });
}

/** An object of any number of fields. */
const record = (name: Check, check: Check): Check =>
  into(
    (value) => {
      if (!isPlain(value)) return plain(value);
      for (const key of Object.keys(value)) {
        const fault = name(key) ?? check(value[key]);
        if (fault !== null) return at(key, fault);
      }
      return null;
    },
    () => [check],
    { is: 'record', name, inside: check },
  );

const list = (check: Check, itemsMin = 0, itemsMax = 65_536): Check =>
  into(
    (value) => {
      if (!Array.isArray(value) || value.length < itemsMin || value.length > itemsMax)
        return { path: [], what: `expected a list of ${itemsMin} to ${itemsMax} items` };
      for (let index = 0; index < value.length; index++) {
        const fault = check(value[index]);
        if (fault !== null) return at(index, fault);
      }
      return null;
    },
    (name) => (name === '*' ? [check] : []),
    { is: 'list', inside: check, min: itemsMin, max: itemsMax },
  );

const integer = (min: number, max: number): Check =>
  when(
    (value) => Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max,
    `a whole number from ${min} to ${max}`,
    { is: 'integer', min, max },
  );

const oneOf = (...names: readonly unknown[]): Check =>
  when((value) => names.includes(value), `one of ${names.join(', ')}`, { is: 'one', of: names });

const nullable = (check: Check): Check =>
  into((value) => (value === null ? null : check(value)), check.inside, { is: 'nullable', inside: check });

const optional = (check: Check): Check =>
  into((value) => (value === undefined ? null : check(value)), check.inside, { is: 'optional', inside: check });

/** Columns of the SQL index and typed arrays hold no more. */
const count = integer(0, 2 ** 31 - 1);
const whole = integer(0, Number.MAX_SAFE_INTEGER);
const difference = integer(Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);
const real = when(Number.isFinite, 'a number', { is: 'real' });
const flag = when((value) => typeof value === 'boolean', 'true or false', { is: 'flag' });
const TEXT_MAX = 4096;
const text = when(
  (value) => typeof value === 'string' && value.length <= TEXT_MAX,
  `a text of at most ${TEXT_MAX} characters`,
  { is: 'text', max: TEXT_MAX },
);
const reals = list(real);
/** Far more layers than any model has. A bound is needed because policies allocate arrays of this size. */
const layers = integer(1, 4096);
const format = when((value) => typeof value === 'string' && isFormatName(value), 'the name of a format', {
  is: 'one',
  of: FORMAT_NAMES,
});
const latent = oneOf(...LATENT_NAMES);
const side = oneOf('k', 'v');
const origin = oneOf('default', 'learned', 'file', 'option', 'controller');
const gains = object({ k: reals, v: reals });

const estimate = object({ value: real, sd: real, samples: real });
const perSide = (check: Check): Check => object({ k: list(check), v: list(check) });
const law = object({
  coefficient: perSide(estimate),
  text: estimate,
  offset: estimate,
  fade: estimate,
  epsilon: perSide(record(format, estimate)),
});

const thresholds = object({
  version: oneOf(1),
  thresholds: record(
    text,
    object({
      id: text,
      value: real,
      unit: text,
      origin,
      source: text,
      samples: whole,
      sd: optional(real),
      evidence: list(whole),
    }),
  ),
  gains,
  c: real,
  law: optional(law),
  ranges: optional(list(object({ logId: text, from: whole, to: whole }))),
});
const because = object({ threshold: text, measured: real, bound: real, unit: text, origin, rule: text });
const form = into((value) => (latent(value) === null ? null : format(value)), undefined, {
  is: 'one',
  of: [...LATENT_NAMES, ...FORMAT_NAMES],
});
const errors = record(form, real);
const place = { layer: count, page: count, side: oneOf(...PARTS), from: form };
const move = { ...place, to: form };

const changes = list(object(move), 1);

const trials = object({ ...place, epsilon: errors });

const situation = object({
  index: count,
  tokens: whole,
  bytes: whole,
  sealBytes: whole,
  budgetBytes: nullable(whole),
  kldBudget: nullable(real),
  tokensExpected: nullable(whole),
  movesMax: whole,
  urgent: flag,
  lowMemory: flag,
  stepLatencyMsP95: real,
  stepLatencyBudgetMs: nullable(real),
  trials: list(trials),
  outcomes: list(object({ ...move, accepted: flag, epsilonNow: nullable(real), bytesFreed: difference })),
  changes: optional(changes),
  again: optional(list(trials, 1)),
  text: optional(estimate),
  probe: optional(
    object({
      tokens: whole,
      rows: count,
      meanKld: real,
      standardError: real,
      epsilon2: object({ k: list(real), v: list(real) }),
    }),
  ),
  canaryBytes: optional(whole),
  canaries: optional(
    list(object({ ...place, side, from: format, to: format, epsilonPromised: real, epsilonNow: real, age: whole }), 1),
  ),
});

const layerChange = object({
  layer: count,
  state: text,
  threshold: text,
  measured: real,
  bound: real,
  source: oneOf('error', 'topic', 'gain'),
});

const done = object({ by: text });

export const BODIES: Readonly<Record<EntryKind, Check>> = {
  open: object({
    model: object({ name: text, digest: text, architecture: text }),
    shape: object({ layers, queryHeads: count, kvHeads: count, headDim: count }),
    policy: object({ id: text, version: count, options: plain, machine: text }),
    context: object({
      layers,
      kvHeads: count,
      headDim: count,
      windowFormat: format,
      openFormat: optional(format),
      windowTokens: optional(oneOf(...WINDOW_TOKENS)),
      pageBytes: record(text, whole),
      latents: optional(object({ kept: latent, operations: real })),
      fixedBytes: whole,
      thresholds,
      skipLayers: list(count, 0, 4096),
      floor: nullable(object({ k: format, v: format })),
      outlierKeys: optional(list(format)),
      priority: optional(oneOf('bytes', 'kld')),
    }),
    requested: plain,
    effective: plain,
  }),
  evidence: object({
    fingerprint: reals,
    neighbours: list(object({ session: text, distance: real, seq: whole })),
    thresholds,
  }),
  situation: object({ situation }),
  decision: object({
    situation: count,
    order: count,
    decision: object({
      ...move,
      epsilonFrom: nullable(real),
      epsilonTo: nullable(real),
      price: nullable(real),
      bytesFreed: difference,
      retry: flag,
      because,
    }),
    epsilonNow: nullable(real),
    verdict: object({ accepted: flag, because }),
    bytesBefore: whole,
    bytesAfter: whole,
    tokens: whole,
  }),
  change: object({
    cause: oneOf('restore', 'give-back', 'shared'),
    changes,
    bytesBefore: whole,
    bytesAfter: whole,
    tokens: whole,
  }),
  close: object({
    tokens: whole,
    kvBytes: whole,
    kvBytesF16: whole,
    effectiveBits: real,
    decisions: count,
    refused: count,
    priceThreshold: real,
    text: optional(estimate),
    predictedKld: real,
    meanKld: nullable(real),
    fingerprint: reals,
    gains,
    c: real,
    reason: oneOf('done', 'aborted', 'error'),
  }),
  recovered: object({ droppedBytes: whole, segment: text }),
  retention: object({ firstSegment: whole, firstSeq: whole, segments: whole, bytes: whole }),
  erase: done,
  hold: done,
  release: done,
  note: object({ layerChanges: optional(list(layerChange)), tokens: optional(whole) }),
};

/** Whether the body of a kind may have something under these names, one inside the other; '*' is any field or item. */
export function hasField(kind: EntryKind, path: readonly string[]): boolean {
  const inside = (checks: readonly Check[], name: string): readonly Check[] =>
    checks.flatMap((check) => check.inside?.(name) ?? []);
  return path.reduce(inside, [BODIES[kind]]).length > 0;
}

/** Throws 'bad-log' naming the first field that does not fit the kind. */
export function checkBody(kind: EntryKind, body: unknown): void {
  const fault = BODIES[kind](body);
  if (fault === null) return;
  const path = fault.path.join('.');
  throw new KvError('bad-log', `the ${kind} entry makes no sense: ${path === '' ? '' : `${path}: `}${fault.what}`, {
    values: { kind, path },
  });
}
