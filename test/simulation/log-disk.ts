/**
 * A disk in memory with a page cache in front of it. It keeps apart what was written and what is durable: bytes and
 * lengths of files after a sync of the file, names after a sync of the folder. When the power fails, any part of the
 * rest may be there, by sectors and in any order; when a process is killed, all of it is. A sync that fails may forget
 * what was to be synced while the cache still shows it, so that a later sync succeeds without it.
 */
import { mkdirSync } from 'node:fs';
import { basename, dirname, relative, sep } from 'node:path';
import type { LogFiles } from '../../witness/index.ts';
import type { SimulatedTime } from './log-time.ts';

const SECTOR_BYTES = 512;

export type Operation =
  | 'open'
  | 'close'
  | 'read'
  | 'write'
  | 'sync'
  | 'sync-folder'
  | 'truncate'
  | 'size'
  | 'list'
  | 'mkdir'
  | 'rename'
  | 'unlink';
/** Calls that change nothing. */
export const isLooking = (operation: Operation): boolean => ['close', 'read', 'size', 'list'].includes(operation);
/** 'ok', an error, or how many bytes of a write are taken. */
export type Answer = 'ok' | 'ENOSPC' | 'EIO' | number;

type Edit =
  | { readonly kind: 'write'; readonly position: number; readonly bytes: Buffer }
  | { readonly kind: 'truncate'; readonly length: number };

class File {
  cached: Buffer = Buffer.alloc(0);
  durable: Buffer = Buffer.alloc(0);
  /** In order, since the last sync. */
  pending: Edit[] = [];
}

/** Names that appear and disappear together. */
type Change = readonly (readonly [name: string, node: Node | null])[];

class Folder {
  readonly cached = new Map<string, Node>();
  readonly durable = new Map<string, Node>();
  pending: Change[] = [];

  change(change: Change): void {
    rename(this.cached, change);
    this.pending.push(change);
  }
}

type Node = File | Folder;

function rename(names: Map<string, Node>, change: Change): void {
  for (const [name, node] of change) {
    if (node === null) names.delete(name);
    else names.set(name, node);
  }
}

function edited(bytes: Buffer, edit: Edit): Buffer {
  if (edit.kind === 'truncate') {
    const result = Buffer.alloc(edit.length);
    bytes.copy(result);
    return result;
  }
  const result = Buffer.alloc(Math.max(bytes.length, edit.position + edit.bytes.length));
  bytes.copy(result);
  edit.bytes.copy(result, edit.position);
  return result;
}

const refusal = (code: string, what: string): Error => Object.assign(new Error(`${code}: simulated ${what}`), { code });

export interface DiskOptions {
  /** A real folder, in which the locks of the log lie; everything below it is simulated. */
  readonly root: string;
  readonly random: () => number;
  readonly time: SimulatedTime;
}

export class SimulatedDisk {
  /**
   * Calls so far that can change something, of all processes: a crash at any other is the same as one at the next of
   * these.
   */
  count = 0;
  /** Asked before each call. */
  plan: (operation: Operation, count: number) => Answer = () => 'ok';
  /** Called at each call, before anything happens. */
  onCall: (operation: Operation) => void = () => {};
  /** Bytes that all files together may have. */
  capacityBytes = Number.POSITIVE_INFINITY;
  /** How long one call beside the caller takes. */
  latencyMs: () => number = () => 0;
  /** Calls that no program may make, such as a write to a file that was closed meanwhile. */
  readonly misuse: string[] = [];
  /** Sectors of one write may reach the disk without those before them. */
  canScatter = false;
  readonly root: string;
  readonly time: SimulatedTime;
  readonly random: () => number;
  #top = new Folder();

  constructor({ root, random, time }: DiskOptions) {
    this.root = root;
    this.random = random;
    this.time = time;
  }

  /** The files as one process sees them. */
  process(): Process {
    return new Process(this);
  }

  get usedBytes(): number {
    const sum = (folder: Folder): number =>
      [...folder.cached.values()].reduce(
        (bytes, node) => bytes + (node instanceof Folder ? sum(node) : node.cached.length),
        0,
      );
    return sum(this.#top);
  }

  node(path: string): Node | undefined {
    const parts = relative(this.root, path).split(sep);
    let node: Node | undefined = this.#top;
    for (const part of parts) {
      if (part === '') continue;
      if (!(node instanceof Folder)) return undefined;
      node = node.cached.get(part);
    }
    return node;
  }

  folder(path: string): Folder {
    // Folders above are there already, and nothing of theirs is lost.
    if (relative(this.root, path).startsWith('..')) return new Folder();
    const node = this.node(path);
    if (node === undefined) throw refusal('ENOENT', path);
    if (!(node instanceof Folder)) throw refusal('ENOTDIR', path);
    return node;
  }

  /**
   * A sync that fails: what was to be synced is still to be synced, or it is forgotten, wholly or but for some sectors.
   */
  failSync(file: File): void {
    if (this.random() < 0.3) return;
    const style = this.canScatter ? scattered : cutSectors;
    if (file.pending.length > 0 && this.random() < 0.5) file.durable = style(file, this.random);
    file.pending = [];
    // The cache still shows it, until the page is needed for something else.
    if (this.random() < 0.2) file.cached = edited(file.durable, { kind: 'truncate', length: file.cached.length });
  }

  /** The power fails. */
  cutPower(): void {
    this.#top = this.#survivorOf(this.#top) as Folder;
    this.time.forget();
  }

  #survivorOf(node: Node): Node {
    const { random } = this;
    if (node instanceof File) {
      const result = new File();
      const styles = this.canScatter ? [lost, kept, cut, scattered, scattered, scattered] : [lost, kept, cut, cut];
      const style = styles[Math.floor(random() * styles.length)]!;
      result.cached = result.durable = node.pending.length === 0 ? node.durable : style(node, random);
      return result;
    }
    const names = new Map(node.durable);
    const inOrder = Math.floor(random() * (node.pending.length + 1));
    const isInOrder = random() < 0.5;
    for (const [index, change] of node.pending.entries())
      if (isInOrder ? index < inOrder : random() < 0.5) rename(names, change);
    const result = new Folder();
    for (const [name, inner] of names) {
      const survivor = this.#survivorOf(inner);
      result.cached.set(name, survivor);
      result.durable.set(name, survivor);
    }
    return result;
  }
}

const lost = (file: File): Buffer => file.durable;
const kept = (file: File): Buffer => file.pending.reduce(edited, file.durable);

/** Some edits in order, and of the next one a part. */
function cut(file: File, random: () => number): Buffer {
  if (random() < 0.4) return cutSectors(file, random);
  const whole = Math.floor(random() * file.pending.length);
  const before = file.pending.slice(0, whole).reduce(edited, file.durable);
  const edit = file.pending[whole]!;
  if (edit.kind === 'truncate') return before;
  return edited(before, { ...edit, bytes: edit.bytes.subarray(0, Math.floor(random() * (edit.bytes.length + 1))) });
}

/**
 * Some edits in order, of the next one whole sectors, and behind that perhaps some that were allotted and never
 * written, which read as zeros.
 */
function cutSectors(file: File, random: () => number): Buffer {
  const whole = Math.floor(random() * file.pending.length);
  const before = file.pending.slice(0, whole).reduce(edited, file.durable);
  const edit = file.pending[whole]!;
  if (edit.kind === 'truncate') return before;
  const end = edit.position + edit.bytes.length;
  const reached = edit.position + Math.floor(random() * (edit.bytes.length + 1));
  const sectorEnd = Math.floor(reached / SECTOR_BYTES) * SECTOR_BYTES;
  const written = reached === end ? edit.bytes.length : Math.max(0, sectorEnd - edit.position);
  const result = edited(before, { ...edit, bytes: edit.bytes.subarray(0, written) });
  const length = random() < 0.5 ? end : Math.min(end, sectorEnd + SECTOR_BYTES);
  return length > result.length ? edited(result, { kind: 'truncate', length }) : result;
}

/**
 * Each sector as it was after any of the edits. Lengths are journaled: what a truncation took away does not come back
 * behind it.
 */
function scattered(file: File, random: () => number): Buffer {
  const versions = [file.durable];
  for (const edit of file.pending) versions.push(edited(versions.at(-1)!, edit));
  const sizeVersion = Math.floor(random() * versions.length);
  const truncations = file.pending.flatMap((edit, index) => (edit.kind === 'truncate' ? [index + 1] : []));
  const first = truncations.filter((index) => index <= sizeVersion).at(-1) ?? 0;
  const end = truncations.find((index) => index > sizeVersion) ?? versions.length;
  const result = Buffer.alloc(versions[sizeVersion]!.length);
  for (let at = 0; at < result.length; at += SECTOR_BYTES) {
    const version = versions[first + Math.floor(random() * (end - first))]!;
    result.set(version.subarray(at, Math.min(at + SECTOR_BYTES, result.length)), at);
  }
  return result;
}

interface Handle {
  readonly node: Node;
}

/**
 * What a process has open ends with it; every later call of its code is refused, and what was on its way never comes
 * back.
 */
export class Process implements LogFiles {
  isDead = false;
  readonly #disk: SimulatedDisk;
  readonly #handles: (Handle | undefined)[] = [];

  constructor(disk: SimulatedDisk) {
    this.#disk = disk;
  }

  #call(operation: Operation): number | null {
    if (!this.isDead) this.#disk.onCall(operation);
    if (this.isDead) throw refusal('EIO', `${operation} of a dead process`);
    const answer = this.#disk.plan(operation, this.#disk.count);
    if (!isLooking(operation)) this.#disk.count++;
    if (typeof answer === 'string' && answer !== 'ok') throw refusal(answer, operation);
    return typeof answer === 'number' ? answer : null;
  }

  #handle(fd: number, doing: string): Handle {
    const handle = this.#handles[fd];
    if (handle !== undefined) return handle;
    this.#disk.misuse.push(`${doing} of file ${fd}, which is not open`);
    throw refusal('EBADF', doing);
  }

  #file(fd: number, doing: string): File {
    const { node } = this.#handle(fd, doing);
    if (node instanceof File) return node;
    throw refusal('EISDIR', doing);
  }

  openSync(path: string, flags: string): number {
    this.#call('open');
    let node = relative(this.#disk.root, path).startsWith('..') ? this.#disk.folder(path) : this.#disk.node(path);
    if (flags.startsWith('w')) {
      if (node !== undefined && flags.includes('x')) throw refusal('EEXIST', path);
      const folder = this.#disk.folder(dirname(path));
      if (node === undefined) {
        node = new File();
        folder.change([[basename(path), node]]);
      } else if (node instanceof File) this.#edit(node, { kind: 'truncate', length: 0 });
    }
    if (node === undefined) throw refusal('ENOENT', path);
    // The lowest free number, as systems give it: a write that comes too late meets another file.
    const fd = this.#handles.indexOf(undefined);
    const free = fd < 0 ? this.#handles.length : fd;
    this.#handles[free] = { node };
    return free;
  }

  closeSync(fd: number): void {
    this.#handle(fd, 'close');
    this.#handles[fd] = undefined;
    this.#call('close');
  }

  readSync(fd: number, target: Uint8Array, offset: number, length: number, position: number): number {
    const file = this.#file(fd, 'read');
    this.#call('read');
    const bytes = file.cached.subarray(position, position + length);
    target.set(bytes, offset);
    return bytes.length;
  }

  #edit(file: File, edit: Edit): void {
    file.cached = edited(file.cached, edit);
    file.pending.push(edit);
  }

  writeSync(fd: number, source: Uint8Array, offset: number, length: number, position: number): number {
    return this.#write(this.#file(fd, 'write'), source.subarray(offset, offset + length), position);
  }

  #write(file: File, source: Uint8Array, position: number): number {
    let error: unknown = null;
    let taken = source.length;
    try {
      taken = Math.min(taken, this.#call('write') ?? taken);
    } catch (refused) {
      if (this.isDead) throw refused;
      error = refused;
      // A write that fails may have got somewhere.
      taken = this.#disk.random() < 0.3 ? Math.floor(this.#disk.random() * taken) : 0;
    }
    const room = this.#disk.capacityBytes - this.#disk.usedBytes;
    const fitting = Math.max(0, Math.min(taken, file.cached.length + room - position));
    if (fitting === 0 && taken > 0) error ??= refusal('ENOSPC', 'write');
    if (fitting > 0) this.#edit(file, { kind: 'write', position, bytes: Buffer.from(source.subarray(0, fitting)) });
    if (error !== null) throw error;
    return fitting;
  }

  /** Work beside the caller takes effect when it is asked for or when it is done. */
  #beside<T>(fd: number, doing: string, work: (file: File) => T, done: (error: Error | null, value?: T) => void): void {
    const file = this.#file(fd, doing);
    let ended: (() => void) | null = null;
    const act = (): void => {
      try {
        if (this.#handles[fd]?.node !== file) this.#disk.misuse.push(`a ${doing} met a file that was closed`);
        const value = work(file);
        ended = () => done(null, value);
      } catch (error) {
        ended = () => done(error as Error);
      }
    };
    if (this.#disk.random() < 0.5) act();
    this.#disk.time.later(this.#disk.latencyMs(), () => {
      if (ended === null && !this.isDead) act();
      if (!this.isDead) ended!();
    });
  }

  write(
    fd: number,
    source: Uint8Array,
    offset: number,
    length: number,
    position: number,
    done: (error: Error | null, written: number) => void,
  ): void {
    const bytes = source.subarray(offset, offset + length);
    this.#beside(
      fd,
      'write',
      (file) => this.#write(file, bytes, position),
      (error, written) => done(error, written ?? 0),
    );
  }

  #sync(file: File): void {
    try {
      this.#call('sync');
    } catch (error) {
      if (!this.isDead) this.#disk.failSync(file);
      throw error;
    }
    const durable = file.pending.reduce(edited, file.durable);
    // The length is that of the cache, also where a sync that failed has forgotten bytes.
    file.durable = edited(durable, { kind: 'truncate', length: file.cached.length });
    file.pending = [];
  }

  fdatasyncSync(fd: number): void {
    this.#sync(this.#file(fd, 'sync'));
  }

  fdatasync(fd: number, done: (error: Error | null) => void): void {
    this.#beside(
      fd,
      'sync',
      (file) => this.#sync(file),
      (error) => done(error),
    );
  }

  fsyncSync(fd: number): void {
    const { node } = this.#handle(fd, 'sync');
    if (node instanceof File) {
      this.#sync(node);
      return;
    }
    this.#call('sync-folder');
    for (const change of node.pending) rename(node.durable, change);
    node.pending = [];
  }

  ftruncateSync(fd: number, length: number): void {
    const file = this.#file(fd, 'truncate');
    this.#call('truncate');
    this.#edit(file, { kind: 'truncate', length });
  }

  sizeSync(fd: number): number {
    this.#call('size');
    return this.#file(fd, 'size').cached.length;
  }

  listSync(dir: string): string[] {
    this.#call('list');
    return [...this.#disk.folder(dir).cached.keys()];
  }

  mkdirSync(dir: string): void {
    this.#call('mkdir');
    mkdirSync(dir, { recursive: true });
    if (this.#disk.node(dir) instanceof Folder) return;
    if (this.#disk.node(dirname(dir)) === undefined) this.mkdirSync(dirname(dir));
    this.#disk.folder(dirname(dir)).change([[basename(dir), new Folder()]]);
  }

  renameSync(from: string, to: string): void {
    this.#call('rename');
    const node = this.#disk.node(from);
    if (node === undefined) throw refusal('ENOENT', from);
    if (dirname(from) !== dirname(to)) throw refusal('EXDEV', to);
    this.#disk.folder(dirname(from)).change([
      [basename(from), null],
      [basename(to), node],
    ]);
  }

  unlinkSync(path: string): void {
    this.#call('unlink');
    if (this.#disk.node(path) === undefined) throw refusal('ENOENT', path);
    this.#disk.folder(dirname(path)).change([[basename(path), null]]);
  }
}
