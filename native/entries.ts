/**
 * The entries of a log by the binary: checksums, hashes and forms of many of them in one call. witness/entry.ts says
 * what the bytes mean, and computes the same where there is no binary.
 */
import { fail, integer, shapeError, show } from './arguments.ts';
import { CHAIN_PEAKS_MAX } from './layout.ts';
import { type Binary, check, nativeInfo, quietBinary } from './load.ts';

const HASH_BYTES = 32;
/**
 * Bytes of the state of a chain with its tree: hash, leaves (u64), roots of the full subtrees over them. Without the
 * tree it is the hash alone.
 */
export const CHAIN_STATE_BYTES = HASH_BYTES + 8 + CHAIN_PEAKS_MAX * HASH_BYTES;

let found: Binary | null | undefined;

/** null: no binary runs here, and there is nothing wrong with that. */
function binary(): Binary | null {
  if (found === undefined) found = quietBinary();
  return found;
}

/** For tests: whether a binary is used. */
export function useEntriesBinary(isUsed: boolean): void {
  found = isUsed ? undefined : null;
}

function bytesOf(value: Uint8Array, name: string): Uint8Array {
  if (!(value instanceof Uint8Array)) fail(`${name} must be a Uint8Array`, { [name]: show(value) });
  return value;
}

function stateOf(state: Uint8Array): Uint8Array {
  const { length } = bytesOf(state, 'state');
  if (length !== HASH_BYTES && length !== CHAIN_STATE_BYTES)
    shapeError(`a state has ${HASH_BYTES} or ${CHAIN_STATE_BYTES} bytes`, { state: length });
  return state;
}

/**
 * Fills in CRC and chain hash of the entries whose lengths and payloads lie in bytes [from, to), and moves `state`
 * behind them. → false: there is no binary, and nothing was done. Throws 'bad-value' when a length is not possible.
 */
export function chainEntries(bytes: Uint8Array, from: number, to: number, state: Uint8Array): boolean {
  const native = binary();
  if (native === null) return false;
  integer(to, 'to', 0, bytesOf(bytes, 'bytes').length);
  integer(from, 'from', 0, to);
  check(native.sealLogEntries(bytes, from, to, stateOf(state)), 'chain entries', { from, to });
  return true;
}

/** What the bodies of each kind must look like, as witness/forms.ts writes it. */
export interface EntryForms {
  readonly numbers: Float64Array;
  /** Names and words, which the numbers point to. */
  readonly names: Uint8Array;
}

/** Where `followEntries` writes; all arrays have room for the same number of entries. */
export interface FollowedEntries {
  /** Where each entry ends. */
  readonly ends: Uint32Array;
  /** Index of its kind + 1 where its form is certain, else 0. */
  readonly kinds: Uint8Array;
  /** Hash of its leaf and chain hash, 64 bytes for each; empty: not wanted. */
  readonly hashes: Uint8Array;
}

/** Where the binary writes a number. */
const answered = new Float64Array(1);
const NO_FORMS: EntryForms = { numbers: new Float64Array(0), names: new Uint8Array(0) };

/**
 * Follows the entries that lie at the beginning of `bytes` for as long as they are whole, continue the chain, and there
 * is room in `out`; `state` is then that behind them. `firstSeq`: of the first one, which its payload must say for its
 * form to be certain. → how many; null: there is no binary. Throws 'bad-value' for what are no forms.
 */
export function followEntries(
  bytes: Uint8Array,
  state: Uint8Array,
  firstSeq: number,
  forms: EntryForms | null,
  out: FollowedEntries,
  threads = 1,
): number | null {
  const native = binary();
  if (native === null) return null;
  const { numbers, names } = forms ?? NO_FORMS;
  const { ends, kinds, hashes } = out;
  const status = native.followLogEntries(
    bytesOf(bytes, 'bytes'),
    stateOf(state),
    firstSeq,
    numbers,
    names,
    threads,
    ends,
    kinds,
    hashes,
    answered,
  );
  check(status, 'follow entries', { bytes: bytes.length, firstSeq });
  return answered[0] as number;
}

/** What `openEntries` says of an encrypted entry that is sound and whose key nobody has. */
export const KIND_UNOPENED = 255;

/** Where `openEntries` writes what was encrypted. */
export interface OpenedBodies {
  /** Room that is as long as the bytes of the entries, or longer. */
  readonly room: Uint8Array;
  /** For each entry that was opened and is sound where its body begins in `room`, and how many bytes it has. */
  readonly texts: Uint32Array;
}
const NO_BODIES: OpenedBodies = { room: new Uint8Array(0), texts: new Uint32Array(0) };

/**
 * Opens the encrypted bodies of `count` entries that were followed, from entry `from` on, and fills in the kinds of
 * those that are certainly sound. `keys`: a ring of them, as witness/ring.ts writes it. → the first entry whose session
 * is not among them, else `count`, also where nothing opens here. Entries whose kind is not 0 are passed over.
 */
export function openEntries(
  bytes: Uint8Array,
  from: number,
  count: number,
  firstSeq: number,
  forms: EntryForms,
  keys: Uint8Array,
  { ends, kinds }: Pick<FollowedEntries, 'ends' | 'kinds'>,
  threads = 1,
  bodies: OpenedBodies = NO_BODIES,
): number {
  const native = binary();
  if (native === null) return count;
  const { room, texts } = bodies;
  const { numbers, names } = forms;
  const status = native.openLogEntries(
    bytesOf(bytes, 'bytes'),
    from,
    count,
    firstSeq,
    numbers,
    names,
    threads,
    bytesOf(keys, 'keys'),
    ends,
    kinds,
    room,
    texts,
    answered,
  );
  check(status, 'open entries', { bytes: bytes.length, from, count, firstSeq });
  return answered[0] as number;
}

/**
 * Encrypts bodies that lie in the room of their encrypted texts. `bodies`: for each where its payload begins, where
 * itself and how many bytes. → 1 for each that was encrypted. The others are as they were: their envelope is not plain
 * ASCII, their session is not in the ring, or there is no OpenSSL here.
 */
export function encryptBodies(
  bytes: Uint8Array,
  bodies: Uint32Array,
  keys: Uint8Array,
  nonceStart: Uint8Array,
): Uint8Array {
  const done = new Uint8Array(Math.floor(bodies.length / 3));
  const native = binary();
  if (native === null) return done;
  const status = native.sealLogBodies(bytesOf(bytes, 'bytes'), bodies, bytesOf(keys, 'keys'), nonceStart, done);
  check(status, 'encrypt bodies', { bytes: bytes.length, bodies: done.length });
  return done;
}

/** An entry to be spelled: what stands in it always, and what goes between (native/log/spell.h). */
export interface SpellPlan {
  /** Three numbers for each. */
  readonly steps: Uint32Array;
  readonly texts: Uint8Array;
  /**
   * What `spellEntry` answers: bytes of the entry, where its body begins in it, bytes of that. Then what goes into the
   * holes.
   */
  readonly numbers: Float64Array;
}

/**
 * Writes the text of an entry into `bytes` from `at` on. → false: it is not spelled here, because there is no binary,
 * too little room, or a number that is none. What lies behind `at` is then anything.
 */
export function spellEntry(bytes: Uint8Array, at: number, { steps, texts, numbers }: SpellPlan): boolean {
  const native = binary();
  // WebAssembly would copy all of `bytes` twice, and its C++ library does not print doubles.
  if (native === null || isCopying()) return false;
  return native.spellLogEntry(bytes, at, steps, texts, numbers) === 0;
}

/**
 * True if the binary opens what is encrypted. In WebAssembly there is nothing that does, and room for it would be
 * copied twice.
 */
export const opensBodies = (): boolean => binary() !== null && !isCopying();

let copies: boolean | undefined;

/** True if bytes are copied to where the binary can read them. */
function isCopying(): boolean {
  copies ??= nativeInfo().binding === 'wasm';
  return copies;
}
