/**
 * Threshold files: what one machine learned, as JSON that another one checks before it believes it. One content has one
 * spelling (fixed order of fields, sorted names, one way to break lines), so export → import → export is the same
 * bytes, and a signature over these bytes means the content. Checks in order of cost: size, JSON, schema, ranges,
 * signature, model.
 */
import { createHash, type KeyObject } from 'node:crypto';
import { basename } from 'node:path';
import { given, KvError, packageVersion, parseJson, readRegular, replaceFile, show } from '../native/index.ts';
import {
  type ActivationCosts,
  checkActivationCosts,
  checkThresholds,
  defaultThresholds,
  type LogRange,
  type Threshold,
  type ThresholdSet,
  type ThresholdSource,
} from '../policy/index.ts';
import { sessionsBehind } from './courses.ts';
import { joinRanges, rangesOf } from './log-ranges.ts';
import { isSignedBy, keyIdOf, signBytes, type TrustedKey } from './signature.ts';
import { evidenceInWords } from './threshold-diff.ts';
import {
  type Evidence,
  type Learned,
  type LogPart,
  type ModelShape,
  SCHEMA_VERSION,
  schemaOf,
  THRESHOLDS_MAX,
  type ThresholdFile,
  wireOf,
  wireOfLearned,
  withoutDefaults,
} from './threshold-schema.ts';

/** What one machine learned of 80 layers in eight formats has 130 KB, so that 32 such parts fit. */
export const THRESHOLD_FILE_BYTES_MAX = 8 * 1024 * 1024;
const HINT = 'export it again with: palimpsest thresholds export FILE';

/** Where thresholds are going to be used, or came from. */
export interface ThresholdTarget {
  /** Digest of the model file; empty for a cache used without the engine. */
  readonly modelDigest: string;
  readonly shape: ModelShape;
  /** The kernel pack of the sessions, `pack:NAME@DIGEST`. Default: none. */
  readonly pack?: string | undefined;
}

/** The log behind the evidence. A WitnessLog is one. */
export interface EvidenceLog {
  readonly id: string;
  /** The last entry that the evidence rests on, beside what the set itself names; −1 for none. */
  readonly acknowledgedSeq?: number;
  /** Hash of its chain after an entry. */
  hashAt?(seq: number): string | null;
}

const refuse = (name: string, what: string, path: string, cause?: unknown): KvError =>
  new KvError('bad-thresholds', `${name}: ${what}`, { values: { name, path }, hint: HINT, cause });

/**
 * Value → checked content: the schema says what may stand in a file, `checkThresholds` what a session would start with,
 * so that nothing is imported that every later run refuses, and a signature must fit. Throws 'bad-thresholds' naming
 * the path of the first thing that is wrong, 'bad-signature'.
 */
function checkFile(value: unknown, name: string): ThresholdFile {
  const version = (value as { schemaVersion?: unknown } | null)?.schemaVersion;
  const schema = schemaOf(version);
  if (schema === null) {
    const isNewer = typeof version === 'number' && version > SCHEMA_VERSION;
    throw refuse(
      name,
      isNewer ? `schemaVersion: ${version} is of a later palimpsest than this` : 'schemaVersion: not a threshold file',
      'schemaVersion',
    );
  }
  const parsed = schema.safeParse(value);
  if (!parsed.success) {
    const issue = parsed.error.issues[0]!;
    const path = issue.path.join('.') || 'top level';
    throw refuse(name, `${path}: ${issue.message}`, path);
  }
  const file = parsed.data;
  for (const [at, learned] of [file, ...file.parts].entries()) {
    const where = at === 0 ? '' : `parts.${at - 1}: `;
    if (Object.keys(learned.thresholds).length > THRESHOLDS_MAX)
      throw refuse(name, `${where}thresholds: more than ${THRESHOLDS_MAX}`, 'thresholds');
    try {
      checkThresholds(setOf(learned, file.model.shape.layers), file.model.shape.layers);
      if (learned.activations !== undefined) checkActivationCosts(learned.activations, file.model.shape.layers);
    } catch (cause) {
      const { message, values } = cause as KvError;
      throw refuse(name, `${where}${message}`, show(values['id'] ?? 'thresholds'), cause);
    }
  }
  if (file.signature !== null && !isSignedBy(signedBytes(file), file.signature))
    throw new KvError(
      'bad-signature',
      `${name}: the content is not what key ${keyIdOf(file.signature.publicKey)} signed`,
      {
        values: { name, keyId: keyIdOf(file.signature.publicKey) },
        hint: 'somebody changed the file after it was signed: get it again from where it comes',
      },
    );
  return file;
}

/** Bytes of a threshold file → its content. Throws 'bad-thresholds', 'bad-signature'; `name` is for messages. */
export function parseThresholdFile(bytes: Uint8Array, name = 'threshold file'): ThresholdFile {
  if (bytes.length > THRESHOLD_FILE_BYTES_MAX) throw tooLarge(name, bytes.length);
  return checkFile(parseJson(bytes, { code: 'bad-thresholds', what: name, hint: HINT }), name);
}

const tooLarge = (name: string, bytes: number): KvError =>
  new KvError('bad-thresholds', `${name}: ${bytes} bytes, at most ${THRESHOLD_FILE_BYTES_MAX} are read`, {
    values: { name, bytes, bytesMax: THRESHOLD_FILE_BYTES_MAX },
  });

/** What fits is written on one line, as are lists of numbers; the rest is broken. */
const COLUMNS = 120;

function onOneLine(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(onOneLine).join(', ')}]`;
  const items = Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${onOneLine(item)}`);
  return items.length === 0 ? '{}' : `{ ${items.join(', ')} }`;
}

function spell(value: unknown, indent = ''): string {
  const flat = onOneLine(value);
  const isPlain = typeof value !== 'object' || value === null;
  const isFlat = isPlain || (Array.isArray(value) && value.every((item) => typeof item !== 'object'));
  if (isFlat || indent.length + flat.length <= COLUMNS) return flat;
  const deeper = `${indent}  `;
  const items = Object.entries(value).map(
    ([key, item]) => `${deeper}${Array.isArray(value) ? '' : `${JSON.stringify(key)}: `}${spell(item, deeper)}`,
  );
  return `${flat[0]}\n${items.join(',\n')}\n${indent}${flat.at(-1)}`;
}

const spellFile = (file: ThresholdFile): string => `${spell(wireOf(file))}\n`;

/** What a signature covers: the file as it would be spelled without one. */
const signedBytes = (file: ThresholdFile): Buffer => Buffer.from(spellFile({ ...file, signature: null }));

/**
 * The one spelling of a threshold file. Throws 'bad-thresholds' for content that could not be read back,
 * 'bad-signature'.
 */
export function formatThresholdFile(file: ThresholdFile): string {
  const text = spellFile(checkFile(wireOf(file), 'thresholds to write'));
  if (Buffer.byteLength(text) > THRESHOLD_FILE_BYTES_MAX)
    throw tooLarge('thresholds to write', Buffer.byteLength(text));
  return text;
}

/** Reads at most THRESHOLD_FILE_BYTES_MAX. Throws 'not-found', 'io', 'bad-thresholds', 'bad-signature'. */
export function readThresholdFile(path: string): ThresholdFile {
  return parseThresholdFile(readRegular(path, { bytesMax: THRESHOLD_FILE_BYTES_MAX, code: 'bad-thresholds' }), path);
}

/** Writes by temporary file, fsync and rename. Throws 'bad-thresholds', 'bad-signature', 'io'. */
export function writeThresholdFile(path: string, file: ThresholdFile): void {
  replaceFile(path, Buffer.from(formatThresholdFile(file)));
}

/** The file with a signature of this key in place of any that it had. */
export const signThresholdFile = (file: ThresholdFile, key: KeyObject): ThresholdFile => ({
  ...file,
  signature: signBytes(signedBytes(file), key),
});

/**
 * Which of these keys signed a file that was read. Throws 'bad-signature' when none of them did; `name` is for
 * messages.
 */
export function checkTrust({ signature }: ThresholdFile, trusted: readonly TrustedKey[], name: string): TrustedKey {
  const known = trusted.map(({ publicKey, path }) => `${keyIdOf(publicKey)} (${path})`).join(', ');
  if (signature === null)
    throw new KvError('bad-signature', `${name} is not signed`, {
      values: { name, trusted: known },
      hint: 'ask its author to sign it; without --trusted-key a file is taken that nobody vouches for',
    });
  const found = trusted.find(({ publicKey }) => publicKey === signature.publicKey);
  if (found !== undefined) return found;
  const keyId = keyIdOf(signature.publicKey);
  throw new KvError('bad-signature', `${name} is signed by key ${keyId}, which is not trusted`, {
    values: { name, keyId, trusted: known },
    hint: 'name the public key of its author with --trusted-key if you trust it',
  });
}

/** The one spelling of what one machine learned. */
export const spellLearned = (learned: Learned): string => spell(wireOfLearned(learned));

/**
 * Where the evidence stands. Evidence without a log has its own digest for a place, so it too can be told from other
 * evidence.
 */
export function evidenceRanges(learned: Learned): LogRange[] {
  const { evidence, thresholds, law, course, activations } = learned;
  if (evidence.logs.length > 0) return joinRanges(evidence.logs);
  const isMeasured = law !== null || course !== undefined || activations !== undefined;
  if (!isMeasured && !Object.values(thresholds).some(({ samples }) => samples > 0)) return [];
  const digest = createHash('sha256').update(spellLearned(learned)).digest('hex');
  return [{ logId: `content-${digest.slice(0, 32)}`, from: 0, to: 0 }];
}

/**
 * A set in use → the content of a file. Where a value came from (`origin` of a threshold) is not exported: to the
 * reader it is 'file'. known: what stands in no set.
 */
export function toThresholdFile(
  set: ThresholdSet,
  target: ThresholdTarget,
  log: EvidenceLog | null,
  known: Partial<Pick<Evidence, 'sessions' | 'tokens'>> & { readonly activations?: ActivationCosts } = {},
): ThresholdFile {
  const last = log?.acknowledgedSeq ?? -1;
  const ranges = joinRanges([...(set.ranges ?? []), ...(log === null || last < 0 ? [] : rangesOf(log.id, [last]))]);
  const file: ThresholdFile = {
    model: { digest: target.modelDigest, shape: target.shape, ...given({ pack: target.pack }) },
    createdBy: `palimpsest ${packageVersion()}`,
    evidence: {
      sessions: known.sessions ?? null,
      tokens: known.tokens ?? null,
      logs: ranges.map((range): LogPart => {
        const headHash = range.logId === log?.id ? (log.hashAt?.(range.to) ?? null) : null;
        return { ...range, headHash };
      }),
    },
    thresholds: withoutDefaults(
      Object.fromEntries(
        Object.entries(set.thresholds).map(([id, { value, unit, sd, samples, source, evidence }]) => [
          id,
          { value, unit, sd: sd ?? null, samples, source, evidence: evidence.slice(-1024) },
        ]),
      ),
    ),
    gains: set.gains,
    c: set.c,
    law: set.law ?? null,
    ...(set.course === undefined ? {} : { course: set.course }),
    ...(known.activations === undefined ? {} : { activations: known.activations }),
    parts: [],
    signature: null,
  };
  return checkFile(wireOf(file), 'thresholds to export');
}

/**
 * The set to start with: every threshold of the file has the origin 'file', the others are the defaults. `name`: what
 * logs call the file, for those who ask where its law and its course came from.
 */
export function toThresholdSet(file: ThresholdFile, name = 'a threshold file'): ThresholdSet {
  const ranges = evidenceRanges(file);
  const { law, course } = file;
  const source = (samples: number): ThresholdSource => ({
    origin: 'file',
    source: `${name} (${evidenceInWords(file)})`,
    samples,
    evidence: [],
  });
  const sources = {
    ...(law === null ? {} : { law: source(file.evidence.sessions ?? 0) }),
    ...(course === undefined ? {} : { course: source(sessionsBehind(course)) }),
  };
  return {
    ...setOf(file, file.model.shape.layers),
    ...(law === null && course === undefined ? {} : { sources }),
    ...(ranges.length === 0 ? {} : { ranges }),
  };
}

function setOf({ thresholds, gains, c, law, course }: Learned, layers: number): ThresholdSet {
  const named = Object.entries(thresholds).map(([id, { sd, ...rest }]): [string, Threshold] => [
    id,
    { id, origin: 'file', ...rest, ...(sd === null ? {} : { sd }) },
  ]);
  return {
    version: 1,
    thresholds: { ...defaultThresholds(layers).thresholds, ...Object.fromEntries(named) },
    gains: { k: gains.k, v: gains.v },
    c,
    ...(law === null ? {} : { law }),
    ...(course === undefined ? {} : { course }),
  };
}

/** Which numbers of two models differ, in words; null when the models are one. */
export function modelDifference(theirs: ThresholdFile['model'], ours: ThresholdFile['model']): string | null {
  const differs = (['layers', 'queryHeads', 'kvHeads', 'headDim'] as const).filter(
    (name) => theirs.shape[name] !== ours.shape[name],
  );
  if (differs.length > 0)
    return differs.map((name) => `${name} ${theirs.shape[name]}, here ${ours.shape[name]}`).join('; ');
  return theirs.digest === ours.digest
    ? null
    : `model digest ${theirs.digest || '(none)'}, here ${ours.digest || '(none)'}`;
}

/**
 * Throws 'model-mismatch' unless the file was made for this model, and not for another pack than this one: what rests
 * on no pack holds beside any.
 */
export function checkThresholdTarget(file: ThresholdFile, target: ThresholdTarget): void {
  const { layers, queryHeads, kvHeads, headDim } = target.shape;
  const here = { digest: target.modelDigest, shape: { layers, queryHeads, kvHeads, headDim } };
  const what = modelDifference(file.model, here);
  const { pack } = file.model;
  if (what === null && pack !== undefined && pack !== target.pack)
    throw new KvError('model-mismatch', `the threshold file rests on sessions with ${pack}`, {
      values: { file: pack, here: target.pack ?? null },
      hint: 'use it in sessions with exactly that pack, or a file of sessions without one',
    });
  if (what === null) return;
  throw new KvError('model-mismatch', `the threshold file belongs to another model: ${what}`, {
    values: { file: file.model, here },
    hint: 'thresholds are learned per model; use a file exported for this one',
  });
}

/** Reads, checks and converts in one go, for an engine that opens. Throws what reading throws, and 'model-mismatch'. */
export async function loadThresholdFile(path: string, target: ThresholdTarget): Promise<ThresholdSet> {
  const file = readThresholdFile(path);
  checkThresholdTarget(file, target);
  return toThresholdSet(file, basename(path));
}

/** Converts and writes in one go. Throws 'bad-thresholds', 'io'. */
export async function saveThresholdFile(
  path: string,
  set: ThresholdSet,
  target: ThresholdTarget & { readonly log?: EvidenceLog | null },
): Promise<void> {
  writeThresholdFile(path, toThresholdFile(set, target, target.log ?? null));
}
