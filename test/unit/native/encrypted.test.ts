/**
 * Encrypted bodies by the binary, against witness/encrypt.ts, which has them from node:crypto: the same bytes, opened
 * both ways, and "certainly sound" only of what was encrypted with this key in this place. Where the process has no
 * OpenSSL that the binary can use, node:crypto does all of it, and most of this is skipped.
 */
import { createSecretKey, type KeyObject } from 'node:crypto';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import {
  encryptBodies,
  type FollowedEntries,
  KIND_UNOPENED,
  KvError,
  nativeInfo,
  openEntries,
} from '../../../native/index.ts';
import { loadBinary } from '../../../native/load.ts';
import { Batch } from '../../../witness/batch.ts';
import {
  ENCRYPTED_HEAD,
  ENCRYPTED_TAIL,
  type Encryption,
  encryptBytes,
  encryptedChars,
} from '../../../witness/encryption.ts';
import { payloadHead } from '../../../witness/entry.ts';
import { nodeFiles } from '../../../witness/files.ts';
import { entryForms, FORM_KINDS } from '../../../witness/forms.ts';
import { destroySession, openWitnessLog, type ReadOptions, readLog, verifyLog } from '../../../witness/index.ts';
import { KeyRing } from '../../../witness/ring.ts';
import { Frontier } from '../../../witness/tree.ts';
import type { EntryKind } from '../../../witness/types.ts';
import { pick, uniform } from '../../native/dense.ts';
import { scratchFolders } from '../witness/folder.ts';
import { recordSession } from '../witness/session.ts';

const folder = scratchFolders();

const SEED = 20261123;
const EXTRA = 40;
const nonceStart = Uint8Array.of(1, 2, 250, 4);
const keyOf = (number: number): KeyObject => createSecretKey(Buffer.alloc(32, number));
const NOTE = 1 + FORM_KINDS.indexOf('note');

type Keys = readonly (readonly [string, KeyObject | null])[];

const ringOf = (...keys: Keys): Uint8Array => {
  const ring = new KeyRing();
  for (const [session, key] of keys) ring.set(session, key);
  return Uint8Array.from(ring.bytes);
};

interface Told {
  readonly seq?: number;
  readonly session?: string;
  readonly kind?: EntryKind;
  readonly key?: KeyObject;
}

const encryptionOf = ({ seq = 5, session = 's-1', kind = 'note', key = keyOf(7) }: Told = {}): Encryption => ({
  key,
  nonceStart,
  place: { seq, session, kind },
});

/** A payload with its body in the room of its encrypted text, and one with the text that node:crypto makes. */
function both(body: Buffer, told: Told = {}): { laid: Buffer; at: number; sealed: Buffer } {
  const encryption = encryptionOf(told);
  const { seq, session, kind } = encryption.place;
  const head = Buffer.from(`${payloadHead(seq, 1_763_856_000_000, session, kind)}${ENCRYPTED_HEAD}`);
  const text = encryptBytes(encryption, body);
  const laid = Buffer.concat([
    head,
    body,
    Buffer.alloc(encryptedChars(body.length) - body.length),
    Buffer.from(ENCRYPTED_TAIL),
  ]);
  return { laid, at: head.length, sealed: Buffer.concat([head, Buffer.from(text), Buffer.from(ENCRYPTED_TAIL)]) };
}

/** Entries with these payloads; what opens them looks at no checksum. */
function entriesOf(payloads: readonly Buffer[]): { bytes: Buffer; out: Pick<FollowedEntries, 'ends' | 'kinds'> } {
  const bytes = Buffer.concat(payloads.flatMap((one) => [Buffer.alloc(8), one, Buffer.alloc(32)]));
  let end = 0;
  const ends = Uint32Array.from(payloads, ({ length }) => (end += length + EXTRA));
  return { bytes, out: { ends, kinds: new Uint8Array(payloads.length) } };
}

/** What the binary says of one encrypted entry. */
function kindOf(payload: Buffer, ring: Uint8Array, seq = 5): number {
  const { bytes, out } = entriesOf([payload]);
  expect(openEntries(bytes, 0, 1, seq, entryForms(), ring, out)).toBe(1);
  return out.kinds[0]!;
}

const own = ringOf(['s-1', keyOf(7)]);
const ofLength = (length: number): Buffer => Buffer.from(`{"x":"${'y'.repeat(length - 8)}"}`);
const SEALS = kindOf(both(ofLength(9)).sealed, own) !== 0;

it('there is OpenSSL to be used wherever Node runs the compiled binary', () => {
  const isNode = process.versions['bun'] === undefined && process.versions['electron'] === undefined;
  const { binding } = nativeInfo();
  expect(SEALS).toBe(isNode && binding !== 'wasm');
});

describe.skipIf(!SEALS)('with OpenSSL (needs a compiled binary on Node)', () => {
  it('encrypts bodies of every length to the bytes of node:crypto, and opens those', () => {
    const random = uniform(SEED);
    for (let length = 8; length <= 400; length++) {
      const told = {
        seq: Math.floor(random() * 10 ** (1 + Math.floor(random() * 15))),
        session: `${length}`,
        key: keyOf(length % 7),
      };
      const { laid, at, sealed } = both(ofLength(length), told);
      const shift = length % 5;
      const bytes = Buffer.concat([Buffer.alloc(shift, 9), laid]);
      const ring = ringOf(['other', keyOf(1)], [told.session, told.key]);
      expect([...encryptBodies(bytes, Uint32Array.of(shift, shift + at, length), ring, nonceStart)]).toEqual([1]);
      expect(bytes.subarray(shift).equals(sealed)).toBe(true);
      expect(kindOf(sealed, ring, told.seq)).toBe(NOTE);
    }
    const long = both(ofLength(700_000));
    encryptBodies(long.laid, Uint32Array.of(0, long.at, 700_000), own, nonceStart);
    expect(long.laid.equals(long.sealed)).toBe(true);
    expect(kindOf(long.sealed, own)).toBe(NOTE);
  });

  it('opens nothing of which a bit was changed, nor with another key, nor in another place', () => {
    const { sealed } = both(ofLength(40));
    for (let at = 0; at < sealed.length; at++)
      for (let bit = 0; bit < 8; bit++) {
        const changed = Buffer.from(sealed);
        changed[at]! ^= 1 << bit;
        // The time of an entry is covered by the chain, not by the encrypt.
        const isTime =
          /"timeMs":\d+,"session":"s-1"/.test(changed.toString('latin1')) &&
          changed.toString('latin1').replace(/\d{13}/, '1763856000000') === sealed.toString('latin1');
        if (!isTime) expect([at, bit, openedOrMissing(changed)]).toEqual([at, bit, 0]);
      }
    expect(kindOf(sealed, ringOf(['s-1', keyOf(8)]))).toBe(0);
    expect(kindOf(sealed, own, 6)).toBe(0);
    const elsewhere = (from: string, to: string): Buffer =>
      Buffer.from(sealed.toString('latin1').replace(from, to), 'latin1');
    expect(kindOf(elsewhere('"seq":5', '"seq":6'), own, 6)).toBe(0);
    expect(kindOf(elsewhere('s-1', 's-2'), ringOf(['s-2', keyOf(7)]))).toBe(0);
    expect(kindOf(elsewhere('"note"', '"close"'), own)).toBe(0);
  });

  /** 0 as well where the session is not in the ring. */
  function openedOrMissing(payload: Buffer): number {
    const { bytes, out } = entriesOf([payload]);
    openEntries(bytes, 0, 1, 5, entryForms(), own, out);
    return out.kinds[0]!;
  }

  it('is certain only of what encrypts otherwise: one spelling of base64, a body of its kind, kinds and sessions that are encrypted', () => {
    const { sealed } = both(ofLength(42));
    const text = sealed.toString('latin1');
    // 102 bytes have no padding; 103 and 104 have.
    for (const length of [43, 44]) {
      const padded = both(ofLength(length)).sealed.toString('latin1');
      const wrong = [
        padded.replace(
          /(.)(=+"}})$/,
          (_, digit: string, rest: string) => `${String.fromCharCode(digit.charCodeAt(0) + 1)}${rest}`,
        ),
        padded.replace(/=+"}}$/, '"}}'),
        padded.replace(/=+"}}$/, '===="}}'),
      ];
      for (const one of wrong) expect([one, kindOf(Buffer.from(one), own)]).toEqual([one, 0]);
    }
    for (const [from, to] of [
      ['"}}', '"} }'],
      ['"}}', '","x":1}}'],
      ['{"committed"', '{"a":1,"committed"'],
      ['{"committed"', '{"sealed"'],
      [text.slice(-40, -20), ''],
      [text.slice(-60, -3), ''],
      [text.slice(-13, -12), '-'],
      [text.slice(-13, -12), ' '],
    ] as const)
      expect([to, kindOf(Buffer.from(text.replace(from, to)), own)]).toEqual([to, 0]);
    for (const body of ['[]', '{}x', '{"a": 1}', '{"b":1,"a":2}', 'null', '{"a":1'])
      expect([body, kindOf(both(Buffer.from(body)).sealed, own)]).toEqual([body, 0]);
    expect(kindOf(both(ofLength(40), { kind: 'decision' }).sealed, own)).toBe(0);
    for (const kind of ['erase', 'hold', 'release'] as const)
      expect(kindOf(both(Buffer.from('{"by":"a"}'), { kind }).sealed, own)).toBe(0);
    expect(kindOf(both(ofLength(40), { session: '' }).sealed, ringOf(['', keyOf(7)]))).toBe(0);
  });

  it('says which session it has no key for, and looks at the form of what nobody can open', () => {
    const payloads = ['a', 'b', 'a', 'c'].map(
      (session, index) => both(ofLength(30), { seq: 5 + index, session }).sealed,
    );
    for (const threads of [1, 3]) {
      const { bytes, out } = entriesOf(payloads);
      const open = (from: number, ...keys: Keys): number =>
        openEntries(bytes, from, 4, 5, entryForms(), ringOf(...keys), out, threads);
      expect(open(0, ['a', keyOf(7)])).toBe(1);
      expect([...out.kinds]).toEqual([NOTE, 0, NOTE, 0]);
      expect(open(1, ['b', null])).toBe(3);
      expect([...out.kinds]).toEqual([NOTE, KIND_UNOPENED, NOTE, 0]);
      expect(open(3, ['c', keyOf(8)])).toBe(4);
      expect([...out.kinds]).toEqual([NOTE, KIND_UNOPENED, NOTE, 0]);
    }
    expect(
      kindOf(
        Buffer.from('{"seq":5,"timeMs":1,"session":"s","kind":"note","body":{"sealed":"AAAA"}}'),
        ringOf(['s', null]),
      ),
    ).toBe(0);
  });

  it('gives the bodies that are sound, where they lay sealed, and nothing of others', () => {
    const random = uniform(SEED);
    const texts = Array.from({ length: 200 }, (_, n) => `{"x":"${pick(random, ['ü', 'y', '🦙'])}${'z'.repeat(n)}"}`);
    const payloads = texts.map((text, n) => both(Buffer.from(text), { seq: 7 + n, session: `${n % 3}` }).sealed);
    payloads[9] = Buffer.from('{"seq":16,"timeMs":1,"session":"1","kind":"note","body":{}}');
    payloads[11]![payloads[11]!.length - 10]! ^= 1;
    payloads[20] = both(Buffer.from('{"x": 1}'), { seq: 27, session: '2' }).sealed;
    for (const threads of [1, 3]) {
      const { bytes, out } = entriesOf(payloads);
      out.kinds[30] = 254;
      const bodies = { room: Buffer.alloc(bytes.length + 3, 1), texts: new Uint32Array(402) };
      const ring = ringOf(['0', null], ['1', keyOf(7)], ['2', keyOf(7)]);
      expect(openEntries(bytes, 0, 200, 7, entryForms(), ring, out, threads, bodies)).toBe(200);
      for (const [n, text] of texts.entries()) {
        const [at, length] = [bodies.texts[2 * n]!, bodies.texts[2 * n + 1]!];
        // It is certain of plain ASCII alone.
        const isOpened = n % 3 > 0 && ![9, 11, 20, 30].includes(n) && /^[ -~]*$/.test(text);
        expect([n, bodies.room.toString('utf8', at, at + length)]).toEqual([n, isOpened ? text : '']);
        if (isOpened) bodies.room.fill(1, at, at + length);
      }
      expect(out.kinds[30]).toBe(254);
      expect(bodies.room.every((byte) => byte === 1)).toBe(true);
    }
  });

  it('opens a thousand entries of a hundred sessions by any number of threads alike', () => {
    const random = uniform(SEED);
    const payloads = Array.from({ length: 1000 }, (_, n) => {
      const session = `s-${Math.floor(random() * 40)}`;
      const sealed = both(ofLength(8 + Math.floor(random() * 500)), {
        seq: 7 + n,
        session,
        key: keyOf(session.length),
      }).sealed;
      if (random() < 0.1) sealed[sealed.length - 10]! ^= 1;
      return sealed;
    });
    const keys = Array.from({ length: 40 }, (_, n) => [`s-${n}`, keyOf(`s-${n}`.length)] as const);
    const [one, ...others] = [1, 2, 5].map((threads) => {
      const { bytes, out } = entriesOf(payloads);
      expect(openEntries(bytes, 0, 1000, 7, entryForms(), ringOf(...keys), out, threads)).toBe(1000);
      return out.kinds;
    });
    const opened = one!.filter((kind) => kind === NOTE).length;
    expect(opened).toBeGreaterThan(800);
    expect(opened).toBeLessThan(1000);
    for (const other of others) expect(other).toEqual(one);
  });
});

it('a batch has the bytes of node:crypto, also for sessions that the binary does not look at, and for more than a ring holds', () => {
  const tree = new Frontier();
  const sessions = [
    'plain',
    'with "quotes"',
    'é',
    '',
    'x'.repeat(200),
    ...Array.from({ length: 90 }, (_, n) => `${n}`),
  ];
  const batch = new Batch(0, 100, { nextSeq: 0, headHash: Buffer.alloc(32), tree });
  const expected = sessions.map((session, seq) => {
    const encryption = encryptionOf({ seq, session, key: keyOf(seq) });
    const head = payloadHead(seq, 5, session, 'note');
    const body = `{"n":${seq},"text":"ü${'z'.repeat(seq)}"}`;
    if (session === '') {
      batch.add(seq, `${head}${body}}`, 5);
      return `${head}${body}}`;
    }
    batch.addEncrypted(seq, head, body, encryption, 5);
    return `${head}${ENCRYPTED_HEAD}${encryptBytes(encryption, Buffer.from(body))}${ENCRYPTED_TAIL}`;
  });
  batch.finish();
  let at = 0;
  for (const payload of expected) {
    const length = batch.bytes.readUInt32LE(at);
    expect(batch.bytes.toString('utf8', at + 8, at + 8 + length)).toBe(payload);
    at += length + EXTRA;
  }
  expect(at).toBe(batch.length);
});

it('a log whose keys are gone is verified alike with and without a binary, and by any number of threads', async () => {
  const dir = folder();
  try {
    useEntriesBinary(false);
    const log = await openWitnessLog({ dir, encrypt: true });
    recordSession(log, 's-1');
    await log.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true, unopened: 0 });
    rmSync(join(dir, 'keys'), { recursive: true });
    const alone = verifyLog(dir);
    expect(alone.ok).toBe(true);
    expect(alone.unopened).toBeGreaterThan(20);
    useEntriesBinary(true);
    for (const threads of [1, 3]) expect(verifyLog(dir, nodeFiles, threads)).toEqual(alone);
  } finally {
    useEntriesBinary(true);
  }
});

it('a log is read alike with and without a binary: sessions that were erased, bodies that are not sealed, names that the binary does not look at', async () => {
  const dir = folder();
  try {
    const writers = [await openWitnessLog({ dir, encrypt: true }), await openWitnessLog({ dir, encrypt: true })];
    const names = ['s-1', 'with "quotes"', 'é', ...Array.from({ length: 80 }, (_, n) => `many-${n}`)];
    for (let n = 0; n < 1500; n++) {
      const session = (7 * n) % names.length;
      writers[session % 2]!.append(names[session]!, 'note', {
        n,
        text: `${n % 5 > 0 ? 'u' : 'ü'}${'z'.repeat(n % 90)}`,
      });
    }
    for (const [index, log] of writers.entries()) {
      recordSession(log, `session-${index}`);
      log.append('s-1', 'hold', { by: 'a' });
      await log.close();
    }
    destroySession(dir, 'many-3');
    const read = (options: ReadOptions) => {
      const unopened: unknown[] = [];
      const onUnopened = (...told: unknown[]): void => void unopened.push(told);
      return { entries: [...readLog(dir, { ...options, onUnopened })], unopened };
    };
    const questions: ReadOptions[] = [
      {},
      { session: 's-1' },
      { session: 'é' },
      { session: 'session-1', kinds: ['decision', 'close'] },
      { kinds: ['note', 'hold'] },
      { from: [700, 2 ** 32 + 300] },
    ];
    const withBinary = questions.map(read);
    useEntriesBinary(false);
    expect(questions.map(read)).toEqual(withBinary);
    expect(withBinary[0]!.entries.length).toBeGreaterThan(1500);
    expect(withBinary[0]!.unopened.length).toBeGreaterThan(10);
    for (const isUsed of [false, true]) {
      useEntriesBinary(isUsed);
      expect(() => read({ session: 'many-3' })).toThrow(/was erased/);
    }
  } finally {
    useEntriesBinary(true);
  }
});

describe('wrong calls', () => {
  it('are refused by the room with a KvError', () => {
    const { laid, at } = both(ofLength(20));
    const { bytes, out } = entriesOf([laid]);
    const wrong: (() => unknown)[] = [
      () => encryptBodies(laid, Uint32Array.of(0, at), own, nonceStart),
      () => encryptBodies(laid, Uint32Array.of(0, at, 20, 0), own, nonceStart),
      () => encryptBodies(laid, Uint32Array.of(at + 1, at, 20), own, nonceStart),
      () => encryptBodies(laid, Uint32Array.of(0, at, 21 + 20), own, nonceStart),
      () => encryptBodies(laid, Uint32Array.of(0, laid.length + 1, 2), own, nonceStart),
      () => encryptBodies(laid, Uint32Array.of(0, at, 2 ** 32 - 1), own, nonceStart),
      () => encryptBodies(laid, Uint32Array.of(0, at, 20), own.subarray(1), nonceStart),
      () => encryptBodies(laid, Uint32Array.of(0, at, 20), own, new Uint8Array(3)),
      () => encryptBodies(null as never, Uint32Array.of(0, at, 20), own, nonceStart),
      () => openEntries(bytes, 0, 2, 5, entryForms(), own, out),
      () => openEntries(bytes, 2, 1, 5, entryForms(), own, out),
      () => openEntries(bytes, 0, 1, -1, entryForms(), own, out),
      () => openEntries(bytes, 0, 1, 5, entryForms(), own, out, 0),
      () => openEntries(bytes, 0, 1, 5, entryForms(), own.subarray(0, 30), out),
      () => openEntries(bytes, 0, 1, 5, entryForms(), own, { ...out, ends: Uint32Array.of(bytes.length + 1) }),
      () => openEntries(bytes, 0, 1, 5, entryForms(), own, { ...out, ends: Uint32Array.of(40) }),
      () => openEntries(bytes, 0, 1, 5, { ...entryForms(), numbers: new Float64Array(3) }, own, out),
      ...(SEALS
        ? [
            { room: bytes.subarray(1), texts: new Uint32Array(2) },
            { room: bytes, texts: new Uint32Array(1) },
            { room: bytes, texts: null as never },
          ].map((bodies) => () => openEntries(bytes, 0, 1, 5, entryForms(), own, out, 1, bodies))
        : []),
    ];
    for (const [index, call] of wrong.entries()) expect(call, String(index)).toThrow(KvError);
  });

  it('end on the bare binding in a status, whatever one argument or some bytes are (fuzzed)', () => {
    const random = uniform(SEED);
    const binary = loadBinary();
    const { numbers, names } = entryForms();
    const sealed = Array.from({ length: 6 }, (_, n) => both(ofLength(20 + 9 * n), { seq: 5 + n }).sealed);
    const { bytes: entries, out } = entriesOf(sealed);
    const { laid, at } = both(ofLength(60));
    const nonsense: (() => unknown)[] = [
      ...[undefined, null, Number.NaN, -1, 0.5, 2 ** 31, 2 ** 53, 0, 'x', {}, [], 10n].map((value) => () => value),
      () => new Uint8Array(0),
      () => new Uint8Array(7).fill(1),
      () => Uint8Array.of(1, 3, 115, 45, 49),
      () => new Float64Array(1),
      () => new Uint32Array(6).fill(4_000_000_000),
      () => Uint32Array.of(0, 1, 2),
      () => new Uint8Array(new SharedArrayBuffer(40)),
    ];
    let answers = 0;
    for (let round = 0; round < 6000; round++) {
      const isEncrypting = round % 2 === 0;
      const bytes = Buffer.from(isEncrypting ? laid : entries);
      const ring = Uint8Array.from(own);
      const ends = Uint32Array.from(out.ends);
      const given: unknown[] = isEncrypting
        ? [bytes, Uint32Array.of(0, at, 60), ring, nonceStart, new Uint8Array(1)]
        : [
            ...[bytes, 0, 6, 5, numbers, names, 1 + (round % 3), ring, ends, new Uint8Array(6)],
            ...[Buffer.alloc(bytes.length), new Uint32Array(12), new Float64Array(1)],
          ];
      const way = random();
      if (way < 0.4) given[Math.floor(random() * given.length)] = pick(random, nonsense)();
      else if (way < 0.7)
        for (let n = 0; n <= random() * 4; n++) bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256);
      else if (way < 0.85) ring[Math.floor(random() * 6)] = Math.floor(random() * 256);
      else if (isEncrypting) (given[1] as Uint32Array)[Math.floor(random() * 3)] = Math.floor(random() * 300);
      else ends[Math.floor(random() * 6)]! += Math.floor(random() * 60 - 30);
      try {
        if (Reflect.apply(isEncrypting ? binary.sealLogBodies : binary.openLogEntries, binary, given) === 0) answers++;
      } catch (error) {
        expect(error).toBeInstanceOf(Error);
      }
    }
    expect(answers).toBeGreaterThan(1000);
  });
});
