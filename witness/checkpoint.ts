/**
 * Checkpoints: what a series was at some time, in the form of C2SP tlog-checkpoint, signed. Whoever holds one can tell
 * later whether the log still is what it was: a root stands for every entry before it, their order and their number.
 *
 *     palimpsest/<log id>/<series>      origin
 *     1234                              entries of the series
 *     <base64>                          root of the Merkle tree over them
 *     head <base64>                     chain hash of the last of them
 *     time 2026-01-31T13:05:02.000Z     of the last of them
 *
 *     — palimpsest <base64>             key hash and Ed25519 signature
 */
import type { KeyObject } from 'node:crypto';
import { KvError, readRegular } from '../native/index.ts';
import { type Note, parseNote, signerOfNote, signNote, type VerifierKey } from './note.ts';
import { SERIES_ENTRIES } from './series.ts';

/** What a series was at some time. */
export interface CheckpointBody {
  /** Hex. */
  readonly logId: string;
  /** Number of the series. */
  readonly series: number;
  /** Entries of the series. */
  readonly size: number;
  /** Root of the Merkle tree over them, hex. */
  readonly rootHash: string;
  /** Chain hash after the last of them, hex. */
  readonly headHash: string;
  /** Time of the last of them, milliseconds since the epoch; of the header where there is none. */
  readonly timeMs: number;
}

/** The same as it was signed. */
export interface Checkpoint extends CheckpointBody {
  /** The signed note, byte for byte. */
  readonly note: string;
  /** Where it was read, for messages: file and line. */
  readonly place: string;
}

/** Where signed checkpoints go while a log is written. */
export interface AnchorOptions {
  /** File of the private key that signs them. */
  readonly key: string;
  /** Each a file outside of the state folder, 'stdout', or a URL of http, https or postgres. */
  readonly to: readonly string[];
}

const ORIGIN = 'palimpsest/';
/** A checkpoint has some 300 bytes: those of ten days with one each second. */
const FILE_BYTES_MAX = 256 * 1024 * 1024;
/** What is appended to a file that does not end with a whole checkpoint: no checkpoint ends with an empty line. */
export const CUT_END = '\n\n';
const LINES =
  /^palimpsest\/([0-9a-f]{32})\/(\d{1,4})\n(0|[1-9]\d{0,9})\n([A-Za-z0-9+/]{43}=)\nhead ([A-Za-z0-9+/]{43}=)\ntime (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)\n$/;

const NO_CHECKPOINT = 'is not a checkpoint of a witness log';

const base64Of = (hex: string): string => Buffer.from(hex, 'hex').toString('base64');

/** The name under which a series is signed. */
export const originOf = ({ logId, series }: Pick<CheckpointBody, 'logId' | 'series'>): string =>
  `${ORIGIN}${logId}/${series}`;

const checkpointText = (body: CheckpointBody): string =>
  `${originOf(body)}\n${body.size}\n${base64Of(body.rootHash)}\nhead ${base64Of(body.headHash)}\n` +
  `time ${new Date(body.timeMs).toISOString()}\n`;

/** A signed checkpoint. */
export const signCheckpoint = (body: CheckpointBody, key: KeyObject): string => signNote(checkpointText(body), key);

function bodyOf({ text }: Note): CheckpointBody | null {
  const [, logId, series, size, root, head, time] = LINES.exec(text) ?? [];
  if (logId === undefined) return null;
  const hex = (base64: string | undefined): string => Buffer.from(base64 as string, 'base64').toString('hex');
  const body = { logId, series: Number(series), size: Number(size), rootHash: hex(root), headHash: hex(head) };
  const timeMs = Date.parse(time as string);
  const isSound = body.size <= SERIES_ENTRIES && Number.isFinite(timeMs);
  // One spelling each: what was read is what would be written.
  return isSound && checkpointText({ ...body, timeMs }) === text ? { ...body, timeMs } : null;
}

/** → what the note says, or a sentence that says why it counts for nothing. */
function signedBody(note: string, keys: readonly VerifierKey[]): CheckpointBody | string {
  const parsed = parseNote(note);
  if (parsed === null) return NO_CHECKPOINT;
  const body = bodyOf(parsed);
  if (body === null) return NO_CHECKPOINT;
  return signerOfNote(parsed, keys) === null ? 'was signed by none of the trusted keys, or was changed since' : body;
}

/** One checkpoint that one of `keys` signed. Throws 'bad-signature' for anything else. */
export function parseCheckpoint(note: string, keys: readonly VerifierKey[], place: string): Checkpoint {
  const body = signedBody(note, keys);
  if (typeof body === 'string') throw refused(place, body);
  return { ...body, note, place };
}

const refused = (place: string, what: string): KvError =>
  new KvError('bad-signature', `the checkpoint at ${place} ${what}`, {
    values: { place },
    hint: 'name the verifier key of its writer with --trusted-key, every one where keys were replaced',
  });

/**
 * All checkpoints of a file, which holds any number behind each other. A beginning of one that a crash left is passed
 * over: nothing was signed there. Throws 'bad-signature' at the first that is damaged or that none of `keys` signed,
 * 'not-found', 'io'.
 */
export function readCheckpoints(path: string, keys: readonly VerifierKey[]): Checkpoint[] {
  const text = readRegular(path, { bytesMax: FILE_BYTES_MAX, code: 'bad-signature' }).toString('utf8');
  const found: Checkpoint[] = [];
  let isAfterCut = false;
  for (const { lines, line, isWhole } of partsOf(text)) {
    const first = lines[0] as string;
    const [note, place] = [`${lines.join('\n')}\n`, `${path}:${line}`];
    // What looks cut off may lack nothing: somebody may have put an empty line behind it.
    const isSigned = isWhole || typeof signedBody(note, keys) !== 'string';
    if (isSigned) found.push(parseCheckpoint(note, keys, place));
    else if (!isAfterCut && !first.startsWith(ORIGIN) && !ORIGIN.startsWith(first)) throw refused(place, NO_CHECKPOINT);
    isAfterCut = !isSigned;
  }
  return found;
}

interface Part {
  readonly lines: string[];
  /** Number of the first of them. */
  readonly line: number;
  /** It has signatures, and nothing says that it was cut off. */
  isWhole: boolean;
}

/**
 * Cuts a file behind signatures, at empty lines that follow no text, and where a line begins with the origin of a
 * checkpoint.
 */
function partsOf(text: string): Part[] {
  const parts: Part[] = [];
  let part: Part | null = null;
  let isSigned = false;
  const lines = text.split('\n');
  for (const [index, line] of lines.entries()) {
    // What stands behind the last line feed is no line.
    const isCut = index === lines.length - 1;
    if (isCut && line === '') break;
    const isSignature = line.startsWith('\u2014 ');
    if (part !== null && line === '' && isSigned) {
      part.isWhole = false;
      part = null;
    } else if (part !== null && (isSigned ? isSignature : !line.startsWith(ORIGIN))) {
      part.lines.push(line);
      isSigned ||= line === '';
      part.isWhole = isSignature && !isCut;
    } else if (line !== '') {
      part = { lines: [line], line: index + 1, isWhole: false };
      parts.push(part);
      isSigned = false;
    }
  }
  return parts;
}
