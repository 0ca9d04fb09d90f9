/**
 * Threshold files: what one machine learned, as JSON that another one checks before it believes it. One value has one
 * spelling (fixed order of keys, ids sorted, two spaces), so export → import → export is the same bytes.
 * Checks in order of cheapness: size, JSON, schema, ranges, model. A signature comes later; there is no field for it yet,
 * and unknown fields are refused, so an old reader cannot take a signed file for an unsigned one.
 */
import { z } from 'zod';
import { KvError, parseJson, readRegular, replaceFile } from '../native/index.ts';
import { checkThresholds, type Threshold, type ThresholdSet } from '../policy/index.ts';

export const THRESHOLD_FILE_BYTES_MAX = 1024 * 1024;
const HINT = 'export it again with: palimpsest thresholds export FILE';

// Control characters could rewrite the terminal of whoever looks at the file.
const line = (max: number) =>
  z
    .string()
    .max(max)
    .regex(/^\P{Cc}*$/u, 'control characters are not allowed');
const size = z.int().min(1).max(65_536);
const hash = z.string().regex(/^[0-9a-f]{64}$/, 'not a SHA-256 in hex');
const seq = z.int().min(0);
/** −0 and 0 are one number with two spellings. */
const real = z
  .number()
  .min(-1e12)
  .max(1e12)
  .transform((x) => (x === 0 ? 0 : x));

const thresholdBody = z.strictObject({
  value: real,
  unit: line(40),
  source: line(400),
  samples: z.int().min(0).max(1e9),
  evidence: z.array(seq).max(1024),
});

const schema = z.strictObject({
  kind: z.literal('palimpsest-thresholds'),
  schemaVersion: z.literal(1),
  model: z.strictObject({
    /** Empty: whoever wrote it had no model file (a cache used without the engine). */
    digest: line(300),
    shape: z.strictObject({ layers: z.int().min(1).max(1024), queryHeads: size, kvHeads: size, headDim: size }),
  }),
  thresholds: z.record(z.string().regex(/^[a-z][A-Za-z0-9.-]{0,63}$/, 'not a threshold id'), thresholdBody),
  gains: z.strictObject({ k: z.array(z.number()).max(1024), v: z.array(z.number()).max(1024) }),
  c: z.number(),
  /** The log that the evidence numbers point into; null: there was none. */
  origin: z.strictObject({ logId: line(100), seq: z.int().min(-1), headHash: hash.nullable() }).nullable(),
});

export type ThresholdFile = z.infer<typeof schema>;
export type ModelShape = ThresholdFile['model']['shape'];

/** Where thresholds are going to be used, or came from. */
export interface ThresholdTarget {
  /** Digest of the model file; empty for a cache used without the engine. */
  readonly modelDigest: string;
  readonly shape: ModelShape;
}

/** The log behind the evidence; a WitnessLog is one. */
export interface EvidenceLog {
  readonly id: string;
  readonly acknowledgedSeq: number;
  readonly headHash?: string;
}

/**
 * Value → checked value: the schema says what may stand in a file, `checkThresholds` what a session would start with, so that
 * nothing is imported that every later run refuses. Throws 'bad-thresholds' naming the first thing wrong.
 */
function checkFile(value: unknown, name: string): ThresholdFile {
  const refuse = (what: string, path: string): KvError =>
    new KvError('bad-thresholds', `${name}: ${what}`, { values: { name, path }, hint: HINT });
  const parsed = schema.safeParse(value);
  if (!parsed.success) {
    const issue = parsed.error.issues[0]!;
    const path = issue.path.join('.') || 'top level';
    throw refuse(`${path}: ${issue.message}`, path);
  }
  const file = parsed.data;
  if (Object.keys(file.thresholds).length > 256) throw refuse('thresholds: more than 256', 'thresholds');
  try {
    checkThresholds(toThresholdSet(file), file.model.shape.layers);
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    throw refuse(error.message, String(error.values['id'] ?? 'thresholds'));
  }
  return file;
}

/** Bytes of a threshold file → its content. Throws 'bad-thresholds'; `name` is for messages. */
export function parseThresholdFile(bytes: Uint8Array, name = 'threshold file'): ThresholdFile {
  if (bytes.length > THRESHOLD_FILE_BYTES_MAX) throw tooLarge(name, bytes.length);
  return checkFile(parseJson(bytes, { code: 'bad-thresholds', what: name, hint: HINT }), name);
}

const tooLarge = (name: string, bytes: number): KvError =>
  new KvError('bad-thresholds', `${name}: ${bytes} bytes, at most ${THRESHOLD_FILE_BYTES_MAX} are read`, {
    values: { name, bytes, bytesMax: THRESHOLD_FILE_BYTES_MAX },
  });

/** The one spelling of a threshold file. Throws 'bad-thresholds' for content that could not be read back. */
export function formatThresholdFile(file: ThresholdFile): string {
  const checked = checkFile(file, 'thresholds to write');
  const { model, thresholds, gains, c, origin } = checked;
  const ids = Object.keys(thresholds).sort();
  const ordered = {
    kind: checked.kind,
    schemaVersion: checked.schemaVersion,
    model: {
      digest: model.digest,
      shape: {
        layers: model.shape.layers,
        queryHeads: model.shape.queryHeads,
        kvHeads: model.shape.kvHeads,
        headDim: model.shape.headDim,
      },
    },
    thresholds: Object.fromEntries(
      ids.map((id) => {
        const { value, unit, source, samples, evidence } = thresholds[id]!;
        return [id, { value, unit, source, samples, evidence }];
      }),
    ),
    gains: { k: gains.k, v: gains.v },
    c,
    origin: origin === null ? null : { logId: origin.logId, seq: origin.seq, headHash: origin.headHash },
  };
  const text = `${JSON.stringify(ordered, null, 2)}\n`;
  if (Buffer.byteLength(text) > THRESHOLD_FILE_BYTES_MAX)
    throw tooLarge('thresholds to write', Buffer.byteLength(text));
  return text;
}

/** Reads at most THRESHOLD_FILE_BYTES_MAX. Throws 'not-found', 'io', 'bad-thresholds'. */
export function readThresholdFile(path: string): ThresholdFile {
  return parseThresholdFile(readRegular(path, { bytesMax: THRESHOLD_FILE_BYTES_MAX, code: 'bad-thresholds' }), path);
}

/** Writes by temporary file, fsync and rename. Throws 'bad-thresholds', 'io'. */
export function writeThresholdFile(path: string, file: ThresholdFile): void {
  replaceFile(path, Buffer.from(formatThresholdFile(file)));
}

/** A set in use → the content of a file. Where a value came from (`origin` of a threshold) is not exported: to the reader it is 'file'. */
export function toThresholdFile(set: ThresholdSet, target: ThresholdTarget, log: EvidenceLog | null): ThresholdFile {
  return checkFile(
    {
      kind: 'palimpsest-thresholds',
      schemaVersion: 1,
      model: { digest: target.modelDigest, shape: pickShape(target.shape) },
      thresholds: Object.fromEntries(
        Object.entries(set.thresholds).map(([id, t]) => [
          id,
          {
            value: t.value,
            unit: t.unit,
            source: t.source,
            samples: t.samples,
            evidence: [...t.evidence].slice(-1024),
          },
        ]),
      ),
      gains: { k: [...set.gains.k], v: [...set.gains.v] },
      c: set.c,
      origin: log === null ? null : { logId: log.id, seq: log.acknowledgedSeq, headHash: log.headHash ?? null },
    },
    'thresholds to export',
  );
}

const pickShape = ({ layers, queryHeads, kvHeads, headDim }: ModelShape): ModelShape => ({
  layers,
  queryHeads,
  kvHeads,
  headDim,
});

/** The set to start with. Every threshold's origin is 'file'. */
export function toThresholdSet(file: ThresholdFile): ThresholdSet {
  const thresholds: Record<string, Threshold> = {};
  for (const [id, t] of Object.entries(file.thresholds)) thresholds[id] = { id, origin: 'file', ...t };
  return { version: 1, thresholds, gains: { k: file.gains.k, v: file.gains.v }, c: file.c };
}

/** Throws 'model-mismatch' unless the file was made for this model. */
export function checkThresholdTarget(file: ThresholdFile, target: ThresholdTarget): void {
  const theirs = file.model.shape;
  const ours = target.shape;
  const differs = (['layers', 'queryHeads', 'kvHeads', 'headDim'] as const).filter(
    (name) => theirs[name] !== ours[name],
  );
  if (differs.length === 0 && file.model.digest === target.modelDigest) return;
  const what =
    differs.length > 0
      ? differs.map((name) => `${name} ${theirs[name]}, here ${ours[name]}`).join('; ')
      : `model digest ${file.model.digest || '(none)'}, here ${target.modelDigest || '(none)'}`;
  throw new KvError('model-mismatch', `the threshold file belongs to another model: ${what}`, {
    values: { file: file.model, here: { digest: target.modelDigest, shape: pickShape(ours) } },
    hint: 'thresholds are learned per model; use a file exported for this one',
  });
}

/** Reads, checks and converts in one go, for an engine that opens. Throws what reading throws, and 'model-mismatch'. */
export async function loadThresholdFile(path: string, target: ThresholdTarget): Promise<ThresholdSet> {
  const file = readThresholdFile(path);
  checkThresholdTarget(file, target);
  return toThresholdSet(file);
}

/** Converts and writes in one go. Throws 'bad-thresholds', 'io'. */
export async function saveThresholdFile(
  path: string,
  set: ThresholdSet,
  target: ThresholdTarget & { readonly log?: EvidenceLog | null },
): Promise<void> {
  writeThresholdFile(path, toThresholdFile(set, target, target.log ?? null));
}

/** What differs between two files, one readable line each; empty when nothing does. */
export function diffThresholdFiles(a: ThresholdFile, b: ThresholdFile): string[] {
  const lines: string[] = [];
  const compare = (name: string, left: unknown, right: unknown): void => {
    if (left !== right) lines.push(`${name}: ${left ?? '–'} → ${right ?? '–'}`);
  };
  compare('model.digest', a.model.digest || '(none)', b.model.digest || '(none)');
  for (const name of ['layers', 'queryHeads', 'kvHeads', 'headDim'] as const) {
    compare(`model.shape.${name}`, a.model.shape[name], b.model.shape[name]);
  }
  const told = (t: ThresholdFile['thresholds'][string] | undefined): string | undefined =>
    t && `${t.value} ${t.unit} (${t.samples === 0 ? 'default' : `${t.samples} samples`}; ${t.source})`;
  for (const id of [...new Set([...Object.keys(a.thresholds), ...Object.keys(b.thresholds)])].sort()) {
    compare(id, told(a.thresholds[id]), told(b.thresholds[id]));
  }
  for (const side of ['k', 'v'] as const) {
    const layers = Math.max(a.gains[side].length, b.gains[side].length);
    for (let layer = 0; layer < layers; layer++) {
      compare(`gain ${side} layer ${layer}`, a.gains[side][layer], b.gains[side][layer]);
    }
  }
  compare('c', a.c, b.c);
  const from = (file: ThresholdFile): string =>
    file.origin === null ? '(no log)' : `log ${file.origin.logId} up to ${file.origin.seq}`;
  compare('origin', from(a), from(b));
  return lines;
}
