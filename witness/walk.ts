/**
 * The one walk over a log that reading, verifying and recovering share: headers linked to each other, lengths, CRCs and
 * the hash chain. It ends at the last whole entry and says what stands behind it.
 */
import { basename } from 'node:path';
import { checkBody } from './body.ts';
import { HASH_BYTES, NO_HASH } from './chain.ts';
import { chained, parseEnvelope } from './entry.ts';
import type { LogFiles } from './files.ts';
import { entryForms } from './forms.ts';
import { type Followed, offsetIn, payloadIn, type Run, RunReader, type RunStart } from './run.ts';
import { badLog, type Fault, isTornHeader, SegmentFile } from './scan.ts';
import { headerBytes, type SegmentHeader, segmentHash, segmentName, segmentNumbers } from './segment.ts';
import { firstSeqOf, listFolder, listSeries, noLog, seriesDir } from './series.ts';
import { Frontier, leafHash } from './tree.ts';
import type { RetentionBody } from './types.ts';

/** Every entry of kind retention contains this, and hardly another one does. */
const RETENTION_MARK = Buffer.from('"kind":"retention"');

export interface WalkOptions {
  /** Where the walk begins: at the segment that holds this entry. Infinity: the last one. */
  readonly fromSeq?: number;
  /** True if the Merkle tree is computed, and every header compared with it. */
  readonly withTree?: boolean;
}

export interface RunOptions extends WalkOptions {
  /** True if runs say which of their entries are certainly sound. */
  readonly withKinds?: boolean;
  /** True if runs have the hashes of each entry. */
  readonly withHashes?: boolean;
  /** Threads that compute; with more than one, runs are longer. */
  readonly threads?: number;
  /** How many entries the next run may have, given those of the series before it; asked only with the tree. */
  readonly most?: (leaves: number) => number;
}

export interface RawEntry {
  readonly segment: string;
  readonly offset: number;
  readonly seq: number;
  /** Valid until the next step of the walk. */
  readonly payload: Uint8Array;
  readonly logId: string;
  /** Chain hash of this entry: stands for everything up to and including it. */
  readonly hash: Uint8Array;
  /** The header of its segment. */
  readonly header: SegmentHeader;
  /** Hash of its leaf; zeros in format 1 unless the tree was asked for. */
  readonly leaf: Uint8Array;
}

export interface LogEnd {
  /** null: the very first header was never completed; nothing was ever in this log. */
  readonly logId: string | null;
  /** Segment files there are. */
  readonly segments: number;
  /** Segment and offset behind the last whole entry: where the next one goes. */
  readonly segment: number;
  readonly offset: number;
  readonly nextSeq: number;
  readonly headHash: Uint8Array;
  /** The header of the last segment that has one. */
  readonly header: SegmentHeader | null;
  /**
   * Over all entries of the series; null unless it was asked for, or when the walk began at a segment of format 1
   * behind the first.
   */
  readonly tree: Frontier | null;
  /** Bytes behind `offset` that a crash left: in this segment, or all of a next segment whose header is incomplete. */
  readonly tornBytes: number;
  readonly tornSegment: number | null;
}

/** Walks one series of a log. One whose writer has not made its first segment yet has no entries. Throws 'bad-log'. */
export function* walkSeries(
  files: LogFiles,
  logDir: string,
  series: number,
  fromSeq = 0,
): Generator<RawEntry, LogEnd | null, undefined> {
  const dir = seriesDir(logDir, series);
  if (series > 0 && listSegments(files, dir).length === 0) return null;
  return yield* walkLog(files, dir, { fromSeq });
}

/**
 * Walks every series of a log, one after the other: all entries in order of seq. Throws 'not-found' without a log,
 * 'bad-log'.
 */
export function* walkAll(files: LogFiles, logDir: string): Generator<RawEntry, void, undefined> {
  const logId = logIdOf(files, logDir);
  for (const series of listSeries(files, logDir)) {
    for (const raw of walkSeries(files, logDir, series)) {
      checkLogId(raw, logId);
      yield raw;
    }
  }
}

/** A series that was copied here from another log is none of this one. Throws 'bad-log'. */
export function checkLogId({ segment, logId }: Pick<RawEntry, 'segment' | 'logId'>, expected: string | null): void {
  if (logId !== expected) throw badLog(segment, 16, null, `it belongs to log ${logId}, the folder to ${expected}`);
}

/** The entries of `walkRuns`, one by one. Throws what it throws. */
export function* walkLog(
  files: LogFiles,
  dir: string,
  options: WalkOptions = {},
): Generator<RawEntry, LogEnd, undefined> {
  const walk = walkRuns(files, dir, { ...options, withHashes: true });
  try {
    for (let step = walk.next(); ; step = walk.next()) {
      if (step.done === true) return step.value;
      yield* entriesOf(step.value);
    }
  } finally {
    // Nobody may want the rest: its file is closed.
    walk.return(undefined as never);
  }
}

function* entriesOf(run: Run): Generator<RawEntry> {
  const { segment, logId, header } = run;
  // Whoever keeps a hash may keep it.
  const hashes = Buffer.from(run.hashes as Buffer);
  for (let index = 0; index < run.count; index++) {
    const at = index * 2 * HASH_BYTES;
    const leaf = hashes.subarray(at, at + HASH_BYTES);
    const hash = hashes.subarray(at + HASH_BYTES, at + 2 * HASH_BYTES);
    const payload = payloadIn(run, index);
    yield { segment, offset: offsetIn(run, index), seq: run.seq + index, payload, logId, hash, header, leaf };
  }
}

/**
 * Walks one series, the one that lies in `dir`, from the segment that holds `fromSeq` (Infinity: the last one) to the
 * end. What a crash leaves at the end is no error. Throws 'not-found' without segments, 'bad-log' (segment, offset,
 * seq) at the first thing that is wrong.
 */
export function* walkRuns(files: LogFiles, dir: string, options: RunOptions = {}): Generator<Run, LogEnd, undefined> {
  const { fromSeq = 0, withTree = false, withKinds = false, withHashes = false, threads = 1 } = options;
  const { most = () => Infinity } = options;
  const reader = new RunReader(withKinds ? entryForms() : null, withHashes, threads);
  const { own: numbers, behind } = segmentsIn(files, dir);
  if (numbers.length === 0) refuseStray(files, dir, 0, behind);
  if (numbers.length === 0) throw noLog(dir);
  const firstSeq = firstSeqOf(seriesIn(dir));
  const { heads, whole } = headsOf(files, dir, numbers);
  const first = heads[0] as Head;
  if (first.header === null) {
    if (!first.mayBeTorn) throw badLog(first.name, 0, null, first.what);
    return nothingYet(firstSeq, first);
  }
  const { logId } = first.header;
  checkHeads(heads.slice(0, whole), logId, firstSeq);
  let start = 0;
  while (start + 1 < whole && ((heads[start + 1] as Head).header as SegmentHeader).firstSeq <= fromSeq) start++;
  // What retention removed is told by an entry; a walk that does not begin at the first entry believes the headers.
  const removal = new Removal(numbers[0] as number, start === 0 ? [] : heads.slice(start, whole));
  let header: SegmentHeader = first.header;
  let tree: Frontier | null = null;
  let end: SegmentEnd | null = null;
  for (let index = start; index < heads.length; index++) {
    const number = numbers[index] as number;
    const segment = new SegmentFile(files, dir, number);
    try {
      // A writer may have completed the header since the heads were read.
      const now = (heads[index] as Head).header ?? segment.header();
      if (typeof now === 'string') {
        // Only the last can be headless here, and then the one before it was walked.
        const at = end as SegmentEnd | null;
        if (at === null || at.fault !== null || !isTornHeader(segment, follower(logId, number, at, firstSeq, tree)))
          throw badLog(segment.name, 0, null, (heads[index] as Head).what);
        removal.check();
        const torn = { segment: number - 1, offset: at.offset, tornBytes: segment.size, tornSegment: number };
        return { logId, segments: heads.length, nextSeq: at.seq, headHash: at.hash, header, tree, ...torn };
      }
      header = now;
      checkPlace(segment.name, header, logId, number);
      if (index > start) checkLink(segment.name, header, end as SegmentEnd, tree);
      if (withTree && index === start && (header.version > 1 || start === 0))
        tree = new Frontier(header.leaves, header.peaks);
      end = yield* walkSegment(segment, header, index === heads.length - 1, tree, removal, reader, most);
    } finally {
      segment.close();
    }
  }
  refuseStray(files, dir, (numbers.at(-1) as number) + 1, behind);
  removal.check();
  const last = end as SegmentEnd;
  const segment = numbers.at(-1) as number;
  return {
    logId,
    segments: heads.length,
    segment,
    offset: last.offset,
    nextSeq: last.seq,
    headHash: last.hash,
    header,
    tree,
    tornBytes: last.fault === null ? 0 : last.size - last.offset,
    tornSegment: last.fault === null ? null : segment,
  };
}

/** The heads of segments, and how many have a header: all, or all but the last. */
function headsOf(files: LogFiles, dir: string, numbers: readonly number[]): { heads: readonly Head[]; whole: number } {
  const heads = numbers.map((number) => readHead(files, dir, number));
  const headless = heads.findIndex((head) => head.header === null);
  if (headless >= 0 && headless < heads.length - 1) {
    const { name, what } = heads[headless] as Head;
    throw badLog(name, 0, null, what);
  }
  return { heads, whole: headless < 0 ? heads.length : headless };
}

const seriesIn = (dir: string): number => Number(/^writer-(\d{4})$/.exec(basename(dir))?.[1] ?? 0);

/** What the header of the next segment says, as far as that can be known. */
const follower = (
  logId: string,
  number: number,
  { seq, hash }: SegmentEnd,
  firstSeq: number,
  tree: Frontier | null,
): Parameters<typeof isTornHeader>[1] => ({
  ...{ logId, number, firstSeq: seq, previousHash: hash },
  ...{ leaves: seq - firstSeq, peaks: tree?.peaks ?? null },
});

/** The end of a series whose only segment has no whole header. */
const nothingYet = (nextSeq: number, { size }: Head): LogEnd => ({
  logId: null,
  segments: 1,
  segment: 0,
  offset: 0,
  nextSeq,
  headHash: Buffer.alloc(HASH_BYTES),
  header: null,
  tree: null,
  tornBytes: size,
  tornSegment: 0,
});

/**
 * Every header, also of segments that are not walked: a file that was given another number is found before anything is
 * read or written.
 */
function checkHeads(heads: readonly Head[], logId: string, firstSeq: number): void {
  let before: SegmentHeader | null = null;
  for (const { name, number, header: own } of heads) {
    const header = own as SegmentHeader;
    checkPlace(name, header, logId, number);
    if (before !== null && header.firstSeq < before.firstSeq)
      throw badLog(name, 40, null, 'its first entry stands before that of the segment before it');
    if (before !== null && header.version < before.version)
      throw badLog(name, 8, null, `format ${header.version} follows format ${before.version}`);
    if (header.version > 1 && header.leaves !== header.firstSeq - firstSeq)
      throw badLog(name, 104, null, `its tree has ${header.leaves} leaves, but its first entry is ${header.firstSeq}`);
    if (before === null) checkFirst(name, header, firstSeq);
    before = header;
  }
}

/** Nothing stands before segment 0. Of a later first segment only what follows can say that it may be the first. */
function checkFirst(name: string, header: SegmentHeader, firstSeq: number): void {
  if (header.number > 0 && header.version === 1) throw badLog(name, 32, null, missingBefore(header.number));
  if (header.number > 0) return;
  const expected = { seq: firstSeq, hash: NO_HASH };
  checkLink(name, header, expected, null);
}

const missingBefore = (number: number): string => `${segmentName(number - 1)} is missing before it`;

/** True if a series may begin with the segment that it begins with. */
class Removal {
  readonly #first: number;
  #told: number;

  /** `heads`: whose headers are believed. */
  constructor(first: number, heads: readonly Head[]) {
    this.#first = first;
    this.#told = Math.max(0, ...heads.map(({ header }) => (header as SegmentHeader).firstSegment));
  }

  /** An entry of kind retention says which segments were to be removed. */
  note(run: Run): void {
    if (this.#told >= this.#first || !run.bytes.includes(RETENTION_MARK)) return;
    for (let index = 0; index < run.count; index++) {
      const payload = payloadIn(run, index);
      if (!payload.includes(RETENTION_MARK)) continue;
      const { kind, body } = parseEnvelope(payload);
      if (kind !== 'retention') continue;
      checkBody(kind, body);
      this.#told = Math.max(this.#told, (body as RetentionBody).firstSegment);
    }
  }

  check(): void {
    if (this.#told < this.#first)
      throw badLog(
        segmentName(this.#first),
        0,
        null,
        `${missingBefore(this.#first)}, and no entry says that it was removed`,
      );
  }
}

/**
 * Numbers of the segments of a series, without gaps: from 0, or from a later one where retention removed what was
 * before. A file with a number behind a gap that has no header is not of the log (`verifyLog` names it); one that has a
 * header says that segments before it are missing, which is found at the end of the walk. Throws 'not-found' for what
 * is no folder, 'bad-log' where the first segment is missing.
 */
export function listSegments(files: LogFiles, dir: string): number[] {
  const { own, behind } = segmentsIn(files, dir);
  if (own.length === 0) refuseStray(files, dir, 0, behind);
  return own;
}

function segmentsIn(files: LogFiles, dir: string): { readonly own: number[]; readonly behind: number[] } {
  const numbers = segmentNumbers(listFolder(files, dir));
  const [first = 0] = numbers;
  const isOwn = first === 0 || hasHeader(files, dir, first);
  const own = isOwn ? numbers.filter((number, index) => number === first + index) : [];
  return { own, behind: numbers.slice(own.length) };
}

/** Throws 'bad-log' when one of the segments behind the gap at `missing` is of a log. */
function refuseStray(files: LogFiles, dir: string, missing: number, behind: readonly number[]): void {
  const stray = behind.find((number) => hasHeader(files, dir, number));
  // A writer may have been making segments while the folder was listed.
  if (stray !== undefined && !segmentNumbers(listFolder(files, dir)).includes(missing))
    throw badLog(segmentName(stray), 0, null, `${segmentName(missing)} is missing before it`);
}

function hasHeader(files: LogFiles, dir: string, number: number): boolean {
  try {
    return readHead(files, dir, number).header !== null;
  } catch {
    // What cannot even be opened as a file is no segment.
    return false;
  }
}

/** Id of the log in `dir`; null while its first header is not complete. Throws 'not-found', 'bad-log'. */
export function logIdOf(files: LogFiles, dir: string): string | null {
  const [first] = listSegments(files, dir);
  if (first === undefined) throw noLog(dir);
  return readHead(files, dir, first).header?.logId ?? null;
}

interface Head {
  readonly name: string;
  readonly number: number;
  readonly size: number;
  readonly header: SegmentHeader | null;
  /** Why there is no header. */
  readonly what: string;
  readonly mayBeTorn: boolean;
}

function readHead(files: LogFiles, dir: string, number: number): Head {
  const segment = new SegmentFile(files, dir, number);
  try {
    const header = segment.header();
    const { name, size } = segment;
    const head = { name, number, size };
    if (typeof header !== 'string') return { ...head, header, what: '', mayBeTorn: false };
    const leaves = 0;
    const begun = segment.bytes(16, 16).toString('hex').padEnd(32, '0');
    const known = {
      logId: begun,
      number,
      firstSeq: firstSeqOf(seriesIn(dir)),
      previousHash: NO_HASH,
      leaves,
      peaks: [],
    };
    return { ...head, header: null, what: header, mayBeTorn: isTornHeader(segment, known) };
  } finally {
    segment.close();
  }
}

/** The number in the header is that of the file, and all segments are of one log. */
function checkPlace(name: string, header: SegmentHeader, logId: string, number: number): void {
  if (header.number !== number)
    throw badLog(name, 32, null, `segment ${header.number} stands where segment ${number} must be`);
  if (header.logId !== logId)
    throw badLog(name, 16, null, `it belongs to log ${header.logId}, the segments before it to ${logId}`);
}

/** A header must continue what the segment before it ended with. */
function checkLink(
  name: string,
  header: SegmentHeader,
  expected: Pick<SegmentEnd, 'seq' | 'hash'>,
  tree: Frontier | null,
): void {
  if (header.firstSeq !== expected.seq)
    throw badLog(name, 40, null, `its first entry is ${header.firstSeq}, expected ${expected.seq}`);
  if (Buffer.compare(expected.hash, header.previousHash) !== 0)
    throw badLog(name, 48, null, 'it does not continue the hash chain of the segment before');
  if (tree !== null && header.version > 1 && !tree.equals(header))
    throw badLog(name, 104, null, 'its tree is not that of the entries before it');
}

interface SegmentEnd {
  readonly offset: number;
  readonly seq: number;
  readonly hash: Uint8Array;
  readonly size: number;
  readonly fault: Fault | null;
}

function* walkSegment(
  segment: SegmentFile,
  header: SegmentHeader,
  isLast: boolean,
  tree: Frontier | null,
  removal: Removal,
  reader: RunReader,
  most: (leaves: number) => number,
): Generator<Run, SegmentEnd, undefined> {
  const { version, logId } = header;
  const { name, size } = segment;
  let offset = headerBytes(version, header.leaves);
  let seq = header.firstSeq;
  let hash: Uint8Array = segmentHash(header);
  for (;;) {
    const start = { seq, hash, tree };
    const before = { ...start, tree: tree?.copy() ?? null };
    const limit = tree === null ? Infinity : most(tree.leaves);
    const followed = reader.follow(segment.window(offset, reader.windowBytes), version, start, limit);
    const one = followed ?? oneEntry(segment, version, offset, start);
    if (one === null) return { offset, seq, hash, size, fault: null };
    if ('what' in one) {
      if (!isLast || !segment.isTorn(version, one, seq, hash)) throw badLog(name, offset, seq, one.what);
      return { offset, seq, hash, size, fault: one };
    }
    const run = { segment: name, logId, header, offset, seq, before, tree, ...one };
    removal.note(run);
    yield run;
    hash = one.hash;
    offset += one.bytes.length;
    seq += one.count;
  }
}

/** The entry at `offset`, without the binary. */
function oneEntry(
  segment: SegmentFile,
  version: number,
  offset: number,
  { seq, hash, tree }: RunStart,
): Followed | Fault | null {
  const frame = segment.frame(version, offset);
  if (frame === null || !('payload' in frame)) return frame;
  const { payload, bytes } = frame;
  const expected = chained(version, hash, seq, payload);
  if (!expected.hash.equals(frame.hash)) return { offset, what: 'it does not continue the hash chain', cut: false };
  const leaf = expected.leaf ?? (tree === null ? NO_HASH : leafHash(payload));
  tree?.add(leaf);
  return {
    ...{ count: 1, bytes, ends: Uint32Array.of(bytes.length), kinds: new Uint8Array(1) },
    ...{ hashes: Buffer.concat([leaf, expected.hash]), hash: expected.hash },
  };
}
