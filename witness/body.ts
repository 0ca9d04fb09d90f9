/**
 * What the body of each kind of entry may say. A hash proves that bytes were not changed, not that they make sense: whoever can write
 * files can write a log with right hashes. So every entry that is read passes here, and what follows may rely on its types.
 * The checks are plain functions because a log has tens of thousands of entries: a schema library, which copies what it checks,
 * took a third of the time that it takes to verify a log.
 */
import { isFormatName, KvError, LATENT_NAMES, PARTS, WINDOW_TOKENS } from '../native/index.ts';
import type { EntryKind } from './types.ts';

/** The first thing that is wrong, and the names of the fields that lead to it. */
interface Fault {
  readonly path: readonly string[];
  readonly what: string;
}
interface Check {
  (value: unknown): Fault | null;
  /** Checks of what stands under a name; under '*', of everything inside. Left out: nothing is inside. */
  inside?: (name: string) => readonly Check[];
}

/** A check of a value that has others inside. */
const into = (check: Check, inside: Check['inside']): Check =>
  inside === undefined ? check : Object.assign(check, { inside });

const when =
  (isSound: (value: unknown) => boolean, expected: string): Check =>
  (value) =>
    isSound(value) ? null : { path: [], what: `expected ${expected}` };

const at = (key: string | number, { path, what }: Fault): Fault => ({ path: [String(key), ...path], what });

const isPlain = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Whatever a caller has put there. */
const anything: Check = into(
  when(() => true, 'anything'),
  () => [anything],
);
const plain = into(when(isPlain, 'an object'), () => [anything]);

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
  return into(check, (name) => checks.filter(([key]) => name === '*' || name === key).map(([, field]) => field));
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
  );

const integer = (min: number, max: number): Check =>
  when(
    (value) => Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max,
    `a whole number from ${min} to ${max}`,
  );

const oneOf = (...names: readonly unknown[]): Check =>
  when((value) => names.includes(value), `one of ${names.join(', ')}`);

const nullable = (check: Check): Check => into((value) => (value === null ? null : check(value)), check.inside);

const optional = (check: Check): Check => into((value) => (value === undefined ? null : check(value)), check.inside);

/** Columns of the SQL index and typed arrays hold no more. */
const count = integer(0, 2 ** 31 - 1);
const whole = integer(0, Number.MAX_SAFE_INTEGER);
const difference = integer(Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);
const real = when(Number.isFinite, 'a number');
const flag = when((value) => typeof value === 'boolean', 'true or false');
const text = when((value) => typeof value === 'string' && value.length <= 4096, 'a text of at most 4096 characters');
const reals = list(real);
/** Far more layers than any model has. A bound is needed because policies allocate arrays of this size. */
const layers = integer(1, 4096);
const format = when((value) => typeof value === 'string' && isFormatName(value), 'the name of a format');
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
const form: Check = (value) => (latent(value) === null ? null : format(value));
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

const BODIES: Readonly<Record<EntryKind, Check>> = {
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
