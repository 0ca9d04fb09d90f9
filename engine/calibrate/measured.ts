/**
 * What a calibration has measured so far, as a file that another run goes on from: numbers per window of text, layer,
 * side and format. It holds no text and no token ids, only the SHA-256 of each window. A file that was cut, changed or
 * made for other settings is refused.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { z } from 'zod';
import { KvError, parseJson, readRegular, replaceFile } from '../../native/index.ts';

/** A window of 80 layers in three formats a side has 60 KB. */
const MEASURED_BYTES_MAX = 64 * 1024 * 1024;
const HINT = 'remove it to measure anew, or name another output';

const hash = z.string().regex(/^[0-9a-f]{64}$/, 'not a SHA-256 in hex');
const name = z
  .string()
  .max(80)
  .regex(/^\P{Cc}*$/u, 'control characters are not allowed');
/** One number per layer; null where it could not be measured, or was not yet. */
const perLayer = z.array(z.number().min(0).max(1e12).nullable()).max(1024);
const format = z.string().max(20);
const side = z.strictObject({
  /** ε of the first trials by format: means and standard deviations of their logarithms. */
  first: z.record(format, z.strictObject({ ln: z.array(z.number().nullable()).max(1024), sd: perLayer })),
  /**
   * By format that was probed: Σ ε² of the pages for the probed tokens, and the divergence with all these pages in that
   * format, in nats.
   */
  probed: z.record(format, z.strictObject({ energy: perLayer, kld: perLayer })),
});
/** Divergence in nats of the first tokens, where the activations of matrices have 8 bits. */
const activations = z.strictObject({
  /** Of one matrix by itself. */
  alone: z.strictObject({
    q: perLayer,
    k: perLayer,
    v: perLayer,
    o: perLayer,
    gate: perLayer,
    up: perLayer,
    down: perLayer,
  }),
  output: z.number().min(0).max(1e12).nullable(),
  /** Of those that this window would choose, together, and the sum of what they cost alone. */
  together: z.strictObject({ kld: z.number().min(0).max(1e12), sum: z.number().min(0).max(1e12) }).nullable(),
});
const window = z.strictObject({
  text: name,
  digest: hash,
  pages: z.int().min(1).max(65_536),
  k: side,
  v: side,
  /** By age of the pages: Σ ε² of the probed tokens and of the first trials. */
  ages: z.array(z.strictObject({ age: z.int().min(1), now: z.number().min(0), first: z.number().min(0) })).max(65_536),
  /** Absent where the dense half has no such choice, and in files of earlier versions. */
  activations: activations.optional(),
});
/** A window that a session read within a stated divergence, and what its last tokens have of it. */
const long = z.strictObject({
  text: name,
  digest: hash,
  tokens: z.int().min(1).max(10_000_000),
  /** Mean divergence in nats: measured, and as it was predicted of one that does not grow with the length. */
  kld: z.number().min(0).max(1e12),
  predicted: z.number().min(0).max(1e12),
});
const settings = z.strictObject({
  modelDigest: z.string().max(300),
  layers: z.int().min(1).max(1024),
  dense: z.string().max(80),
  history: z.int().min(1),
  later: z.int().min(1),
  formats: z.strictObject({ k: z.array(format).max(16), v: z.array(format).max(16) }),
});
const body = z.strictObject({
  settings,
  windows: z.array(window).max(10_000),
  /** Absent where none was long enough, and in files of earlier versions. */
  long: z.array(long).max(10_000).optional(),
});
const file = z.strictObject({
  kind: z.literal('palimpsest-calibration'),
  schemaVersion: z.literal(1),
  sha256: hash,
  measured: body,
});

/** What two runs must have in common for the second to go on where the first stopped. */
export type CalibrationSettings = z.infer<typeof settings>;
/** One window of text. */
export type MeasuredWindow = z.infer<typeof window>;
export type MeasuredActivations = z.infer<typeof activations>;
export type MeasuredSide = z.infer<typeof side>;
export type MeasuredLong = z.infer<typeof long>;
export interface Measured {
  readonly settings: CalibrationSettings;
  readonly windows: MeasuredWindow[];
  long?: MeasuredLong[] | undefined;
}

/** The one spelling of what was measured. */
function spell(measured: Measured): string {
  const canonical = body.parse(measured);
  const sha256 = createHash('sha256').update(JSON.stringify(canonical)).digest('hex');
  return `${JSON.stringify({ kind: 'palimpsest-calibration', schemaVersion: 1, sha256, measured: canonical })}\n`;
}

/** Writes by temporary file, fsync and rename. Throws 'io'. */
export function writeMeasured(path: string, measured: Measured): void {
  replaceFile(path, Buffer.from(spell(measured)));
}

/** Throws 'bad-file' or 'checksum-mismatch' for a file that is not whole or not of this kind, 'not-found', 'io'. */
export function readMeasured(path: string): Measured {
  const bytes = readRegular(path, { bytesMax: MEASURED_BYTES_MAX, code: 'bad-file' });
  const parsed = file.safeParse(parseJson(bytes, { code: 'bad-file', what: path, hint: HINT }));
  if (!parsed.success) {
    const { path: where, message } = parsed.error.issues[0]!;
    throw new KvError('bad-file', `${path}: ${where.join('.') || 'top level'}: ${message}`, {
      values: { path },
      hint: HINT,
    });
  }
  const { measured } = parsed.data;
  // One content has one spelling, its checksum included.
  if (spell(measured) !== bytes.toString('utf8'))
    throw new KvError('checksum-mismatch', `${path} was changed after it was written`, {
      values: { path },
      hint: HINT,
    });
  const { layers } = measured.settings;
  const lists = measured.windows.flatMap(({ k, v, activations: rounded }) => [
    ...[k, v].flatMap(({ first, probed }) => [
      ...Object.values(first).flatMap(({ ln, sd }) => [ln, sd]),
      ...Object.values(probed).flatMap(({ energy, kld }) => [energy, kld]),
    ]),
    ...Object.values(rounded?.alone ?? {}),
  ]);
  if (lists.some((list) => list.length !== layers))
    throw new KvError('bad-file', `${path} has lists that are not of ${layers} layers`, {
      values: { path, layers },
      hint: HINT,
    });
  return measured;
}

/**
 * What an earlier run measured with the same settings; empty where there is no file. Throws 'model-mismatch' for one of
 * other settings, and as readMeasured.
 */
export function resumeMeasured(path: string, wanted: CalibrationSettings): Measured {
  if (!existsSync(path)) return { settings: wanted, windows: [] };
  const measured = readMeasured(path);
  const differs = (Object.keys(wanted) as (keyof CalibrationSettings)[]).filter(
    (key) => JSON.stringify(measured.settings[key]) !== JSON.stringify(wanted[key]),
  );
  if (differs.length === 0) return measured;
  throw new KvError('model-mismatch', `${path} was measured with another ${differs.join(', ')}`, {
    values: Object.fromEntries(differs.map((key) => [key, [measured.settings[key], wanted[key]]])),
    hint: HINT,
  });
}
