/**
 * The entries of a log by the binary, against witness/, which computes them from node:crypto: the same bytes for every
 * length and on every way that the CPU has, never a step over what is damaged, and "certainly sound" only of what the
 * readers of a log accept in full.
 */
import { afterAll, describe, expect, it } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import {
  CHAIN_STATE_BYTES,
  chainEntries,
  type FollowedEntries,
  followEntries,
  KvError,
  nativeInfo,
  setIsa,
} from '../../../native/index.ts';
import { loadBinary } from '../../../native/load.ts';
import { Batch, type ChainEnd } from '../../../witness/batch.ts';
import { checkBody } from '../../../witness/body.ts';
import { chainState, stateHash, stateTree } from '../../../witness/chain-state.ts';
import { chained, entryCrc, isCanonical, parseEnvelope, payloadText } from '../../../witness/entry.ts';
import { entryForms, FORM_KINDS } from '../../../witness/forms.ts';
import { Frontier } from '../../../witness/tree.ts';
import { pick, uniform } from '../../native/dense.ts';

const SEED = 20261123;
const best = nativeInfo().isa;
/**
 * libc++, which WebAssembly and what zig makes have, does not say that it does, and numbers of 16 and 17 digits are
 * certain nowhere there.
 */
const READS_DOUBLES = nativeInfo().binding !== 'wasm' && process.env.PALIMPSEST_CXX_LIBRARY !== 'libc++';
afterAll(() => setIsa(best));
const EXTRA = 40;

/** Bytes of a payload of so many bytes; they need not be JSON. */
function randomPayload(random: () => number, bytes: number): Buffer {
  return Buffer.from(Array.from({ length: bytes }, () => Math.floor(random() * 256)));
}

/** Entries one after the other: lengths and payloads, the rest as it was in memory. */
function laid(payloads: readonly Uint8Array[]): Buffer {
  return Buffer.concat(
    payloads.map((payload) => {
      const bytes = Buffer.alloc(payload.length + EXTRA, 0xa5);
      bytes.writeUInt32LE(payload.length);
      bytes.set(payload, 8);
      return bytes;
    }),
  );
}

/** The same entries with their checksums and hashes, by witness/ alone. */
function chainedByWitness(payloads: readonly Uint8Array[], before: ChainEnd): { bytes: Buffer; end: ChainEnd } {
  let { nextSeq, headHash } = before;
  const tree = before.tree.copy();
  const bytes = laid(payloads);
  let at = 0;
  for (const payload of payloads) {
    bytes.writeUInt32LE(entryCrc(2, bytes.subarray(at, at + 4), payload), at + 4);
    const { hash, leaf } = chained(2, headHash, nextSeq++, payload);
    tree.add(leaf as Buffer);
    bytes.set(hash, at + 8 + payload.length);
    headHash = hash;
    at += payload.length + EXTRA;
  }
  return { bytes, end: { nextSeq, headHash, tree } };
}

const begin = (leaves = 0): ChainEnd => {
  const tree = new Frontier();
  for (let n = 0; n < leaves; n++) tree.add(Buffer.alloc(32, n));
  return { nextSeq: leaves, headHash: Buffer.alloc(32, 7), tree };
};

function room(entries: number, withHashes = true): FollowedEntries {
  return {
    ends: new Uint32Array(entries),
    kinds: new Uint8Array(entries),
    hashes: new Uint8Array(withHashes ? 64 * entries : 0),
  };
}

/** How many entries the binary follows, and the state behind them. */
function follow(
  bytes: Uint8Array,
  before: ChainEnd,
  withTree = true,
): { count: number; state: Buffer; out: FollowedEntries } {
  const state = chainState(before.headHash, withTree ? before.tree : null);
  const out = room(64);
  const count = followEntries(bytes, state, before.nextSeq, entryForms(), out);
  if (count === null) throw new Error('there is no binary');
  return { count, state, out };
}

describe.each(['scalar', best] as const)('on %s', (isa) => {
  it('seals entries of every length around the blocks of SHA-256 as node:crypto does', () => {
    setIsa(isa);
    const random = uniform(SEED);
    for (let length = 1; length <= 300; length++) {
      const lengths = [length, 1 + Math.floor(random() * 300), length];
      const payloads = lengths.map((bytes) => randomPayload(random, bytes));
      const before = begin(length % 37);
      const expected = chainedByWitness(payloads, before);
      const bytes = laid(payloads);
      const state = chainState(before.headHash, before.tree);
      expect(chainEntries(bytes, 0, bytes.length, state)).toBe(true);
      expect(bytes.equals(expected.bytes)).toBe(true);
      expect(stateHash(state)).toEqual(Buffer.from(expected.end.headHash));
      expect(stateTree(state).equals(expected.end.tree)).toBe(true);
    }
  });

  it('seals long entries, a few bytes further in memory, and goes on from any state', () => {
    setIsa(isa);
    const random = uniform(SEED);
    for (const shift of [0, 1, 5, 31]) {
      const payloads = [70_000, 3, 1 << 16, (1 << 20) - 1, 1 << 20].map((bytes) =>
        Buffer.alloc(bytes, Math.floor(random() * 256)),
      );
      const before = begin(1000 + shift);
      const expected = chainedByWitness(payloads, before);
      const whole = Buffer.concat([Buffer.alloc(shift, 1), laid(payloads), Buffer.alloc(9, 2)]);
      const state = chainState(before.headHash, before.tree);
      chainEntries(whole, shift, whole.length - 9, state);
      expect(whole.subarray(shift, whole.length - 9).equals(expected.bytes)).toBe(true);
      expect([...whole.subarray(whole.length - 9)]).toEqual(new Array(9).fill(2));
      expect(stateTree(state).equals(expected.end.tree)).toBe(true);
    }
  });

  it('follows what it sealed, with and without the tree, and gives leaf and link of each', () => {
    setIsa(isa);
    const random = uniform(SEED);
    const payloads = Array.from({ length: 33 }, () => randomPayload(random, 1 + Math.floor(random() * 500)));
    const before = begin(12);
    const { bytes, end } = chainedByWitness(payloads, before);
    for (const withTree of [true, false]) {
      const { count, state, out } = follow(bytes, before, withTree);
      expect(count).toBe(payloads.length);
      expect(stateHash(state)).toEqual(Buffer.from(end.headHash));
      if (withTree) expect(stateTree(state).equals(end.tree)).toBe(true);
      let hash: Uint8Array = before.headHash;
      for (const [index, payload] of payloads.entries()) {
        const next = chained(2, hash, 0, payload);
        expect(Buffer.from(out.hashes.subarray(64 * index, 64 * index + 64))).toEqual(
          Buffer.concat([next.leaf as Buffer, next.hash]),
        );
        hash = next.hash;
      }
      expect(out.ends[count - 1]).toBe(bytes.length);
    }
    const few = room(5, false);
    expect(followEntries(bytes, chainState(before.headHash, null), 0, null, few)).toBe(5);
    expect([...few.kinds]).toEqual([0, 0, 0, 0, 0]);
  });

  it('stops at every changed bit, and at every cut', () => {
    setIsa(isa);
    const random = uniform(SEED);
    const payloads = Array.from({ length: 5 }, (_, n) => randomPayload(random, 40 + 30 * n));
    const before = begin(3);
    const { bytes } = chainedByWitness(payloads, before);
    const starts = payloads.map((_, index) =>
      payloads.slice(0, index).reduce((sum, { length }) => sum + length + EXTRA, 0),
    );
    const hit = (at: number): number => starts.findLastIndex((start) => start <= at);
    for (let at = 0; at < bytes.length; at++) {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1 << Math.floor(random() * 8);
      expect([at, follow(changed, before).count]).toEqual([at, hit(at)]);
      expect([at, follow(bytes.subarray(0, at), before).count]).toEqual([at, hit(at)]);
    }
    expect(follow(bytes, { ...before, headHash: Buffer.alloc(32, 8) }).count).toBe(0);
  });
});

it('a batch is the same bytes where no binary runs', () => {
  const random = uniform(SEED);
  const batches = [true, false].map((isUsed) => {
    useEntriesBinary(isUsed);
    const batch = new Batch(3, 1000, begin(21));
    const next = uniform(SEED);
    for (let seq = 21; seq < 60; seq++) {
      batch.add(seq, randomPayload(next, 1 + Math.floor(next() * 300)).toString('base64'));
      // Some are sealed while the batch is still filled.
      if (next() < 0.2) batch.finish();
    }
    const { nextSeq, headHash, tree } = batch.finish();
    return { bytes: Buffer.from(batch.bytes), nextSeq, headHash: Buffer.from(headHash), tree };
  });
  useEntriesBinary(true);
  expect(random()).toBeLessThan(1);
  const [one, other] = batches as [(typeof batches)[0], (typeof batches)[0]];
  expect(one.bytes.equals(other.bytes)).toBe(true);
  expect([one.nextSeq, one.headHash]).toEqual([other.nextSeq, other.headHash]);
  expect(one.tree.equals(other.tree)).toBe(true);
});

describe('certainly sound', () => {
  const decision = {
    ...{ bytesAfter: 1, bytesBefore: 2, epsilonNow: null, order: 0, situation: 3, tokens: 128 },
    decision: {
      because: {
        bound: 2.5e-9,
        measured: 6.990287057124079e-10,
        origin: 'learned',
        rule: 'price',
        threshold: 'price',
        unit: 'KLD/byte',
      },
      ...{
        bytesFreed: -12416,
        epsilonFrom: 0.000011704753153026104,
        epsilonTo: 0.1,
        from: 'q8',
        layer: 0,
        page: 0,
        price: null,
      },
      ...{ retry: true, side: 'k', to: 'rot4' },
    },
    verdict: {
      accepted: false,
      because: { bound: 1, measured: -0.5, origin: 'file', rule: 'r', threshold: 't', unit: '' },
    },
  };

  const isSound = (payload: Buffer, seq: number): boolean => {
    try {
      const envelope = parseEnvelope(payload);
      if (envelope.seq !== seq || !isCanonical(payload, envelope)) return false;
      const { committed, sealed } = envelope.body as { committed?: unknown; sealed?: unknown };
      if (typeof (committed ?? sealed) === 'string') return false;
      checkBody(envelope.kind, envelope.body);
      return true;
    } catch {
      return false;
    }
  };

  /** Kind that the binary is certain of, or null. */
  function kindOf(payload: Buffer, seq: number): string | null {
    const before = { ...begin(), nextSeq: seq };
    const { out, count } = follow(chainedByWitness([payload], before).bytes, before);
    expect(count).toBe(1);
    return out.kinds[0] === 0 ? null : (FORM_KINDS[out.kinds[0]! - 1] as string);
  }

  const text = (body: unknown, kind = 'decision', session = 's-1'): Buffer =>
    Buffer.from(payloadText(5, 1_763_856_000_000, session, kind as 'decision', JSON.stringify(body)));

  const sorted = (value: unknown): unknown =>
    typeof value !== 'object' || value === null || Array.isArray(value)
      ? value
      : Object.fromEntries(
          Object.entries(value)
            .sort(([a], [b]) => (a < b ? -1 : 1))
            .map(([key, field]) => [key, sorted(field)]),
        );

  it('says it of entries as they are written, with their kind', () => {
    expect(kindOf(text(sorted(decision)), 5)).toBe(READS_DOUBLES ? 'decision' : null);
    expect(kindOf(text({ by: 'a' }, 'erase', ''), 5)).toBe('erase');
    expect(kindOf(text({ droppedBytes: 3, segment: 'x' }, 'recovered', ''), 5)).toBe('recovered');
    expect(kindOf(text({ isAway: true, what: 'anchor', '~': [{ a: [null, 1e-7] }] }, 'note', ''), 5)).toBe('note');
  });

  it('never says it of what the readers of a log refuse', () => {
    const good = sorted(decision) as Record<string, unknown>;
    const bad: Buffer[] = [
      text(decision),
      text({ ...good, tokens: -1 }),
      text({ ...good, tokens: 1.5 }),
      text({ ...good, tokens: '1' }),
      text(sorted({ ...decision, epsilonNow: undefined })),
      text({ sealed: 'AAAA' }, 'note'),
      text({ committed: 'AAAA' }, 'note'),
      text([], 'note'),
      text({}, 'nothing'),
      text({ by: 'x'.repeat(4097) }, 'erase'),
      text({ by: 'x' }, 'erase', 's'.repeat(201)),
    ];
    const spelled = text(good).toString();
    for (const [from, to] of [
      ['"tokens":128', '"tokens":128.0'],
      ['"tokens":128', '"tokens":1.28e2'],
      ['"tokens":128', '"tokens":0128'],
      ['"tokens":128', '"tokens":-0'],
      ['"tokens":128', '"tokens": 128'],
      ['"tokens":128', '"tokens":128,"tokens":128'],
      ['0.1,', '0.10,'],
      ['0.1,', '0.1000000000000000055,'],
      ['0.1,', '.1,'],
      ['0.1,', '1e-1,'],
      ['0.1,', '1E-1,'],
      ['2.5e-9', '2.5e-09'],
      ['2.5e-9', '0.0000000025'],
      ['2.5e-9', '25e-10'],
      ['6.990287057124079e-10', '6.9902870571240791e-10'],
      ['"side":"k"', '"side":"\\u006b"'],
      ['"seq":5', '"seq":6'],
      ['"seq":5', '"seq":5.0'],
      ['}}}', '}}} '],
    ] as const) {
      expect(spelled).toContain(from);
      bad.push(Buffer.from(spelled.replace(from, to)));
    }
    for (const payload of bad) {
      expect([payload.toString(), isSound(payload, 5)]).toEqual([payload.toString(), false]);
      expect([payload.toString(), kindOf(payload, 5)]).toEqual([payload.toString(), null]);
    }
  });

  it('of numbers says it exactly where JavaScript prints them so (random bits, neighbours, digits changed)', () => {
    const random = uniform(SEED);
    const view = new DataView(new ArrayBuffer(8));
    let certain = 0;
    const wrong: string[] = [];
    const numbers = Array.from({ length: 20_000 }, () => {
      view.setUint32(0, random() * 2 ** 32);
      view.setUint32(4, random() * 2 ** 32);
      const value = random() < 0.5 ? view.getFloat64(0) : (random() - 0.5) * 10 ** Math.floor(random() * 50 - 25);
      return random() < 0.3 ? Number(value.toPrecision(1 + Math.floor(random() * 16))) : value;
    }).filter(Number.isFinite);
    const texts = numbers.flatMap((value) => {
      const right = String(value);
      const digit = right.replace(/\d(?=\D*$|e)/, String(Math.floor(random() * 10)));
      return [right, digit, value.toPrecision(17), value.toExponential(), value.toFixed(8)];
    });
    const before = begin();
    for (let from = 0; from < texts.length; from += 64) {
      const some = texts.slice(from, from + 64);
      const payloads = some.map((number, index) =>
        Buffer.from(`{"seq":${index},"timeMs":1,"session":"","kind":"note","body":{"x":${number}}}`),
      );
      const { out } = follow(chainedByWitness(payloads, before).bytes, before);
      for (const [index, number] of some.entries()) {
        if (out.kinds[index] === 0) continue;
        certain++;
        if (!isSound(payloads[index]!, index)) wrong.push(number);
      }
    }
    expect(wrong).toEqual([]);
    // Nearly all numbers that are printed right, where the C++ library reads doubles.
    if (READS_DOUBLES) expect(certain).toBeGreaterThan(0.9 * numbers.length);
  });

  it('of random changes to good entries says it only of what stays sound (fuzzed)', () => {
    const random = uniform(SEED);
    const good = [
      text(sorted(decision)),
      text({ isAway: true, what: 'anchor', '~': [{ a: [null, 1e-7] }] }, 'note', ''),
      text({ by: 'a' }, 'hold'),
    ];
    const words = [
      '"',
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '0',
      '-',
      'e',
      '.',
      'null',
      'true',
      '\\',
      '"a":1,',
      '__proto__',
      'sealed',
      'é',
      ' ',
    ];
    let certain = 0;
    const wrong: string[] = [];
    for (let round = 0; round < 6000; round++) {
      let payload = Buffer.from(pick(random, good));
      for (let n = 0; n <= random() * 2; n++) {
        const at = Math.floor(random() * payload.length);
        const way = random();
        const word = Buffer.from(pick(random, words));
        if (way < 0.4) payload[at] = Math.floor(random() * 128);
        else if (way < 0.8)
          payload = Buffer.concat([
            payload.subarray(0, at),
            word,
            payload.subarray(at + (way < 0.6 ? word.length : 0)),
          ]);
        else payload = Buffer.concat([payload.subarray(0, at), payload.subarray(at + 1 + Math.floor(random() * 8))]);
      }
      if (payload.length === 0 || kindOf(payload, 5) === null) continue;
      certain++;
      if (!isSound(payload, 5)) wrong.push(payload.toString());
    }
    expect(wrong).toEqual([]);
    expect(certain).toBeGreaterThan(100);
  });
});

describe('wrong calls', () => {
  it('are refused by the room with a KvError', () => {
    const bytes = laid([Buffer.from('x')]);
    const state = new Uint8Array(CHAIN_STATE_BYTES);
    const wrong: (() => unknown)[] = [
      () => chainEntries(bytes, 0, bytes.length + 1, state),
      () => chainEntries(bytes, 5, 4, state),
      () => chainEntries(bytes, 1, bytes.length, state),
      () => chainEntries(bytes, 0, bytes.length, new Uint8Array(31)),
      () => chainEntries(bytes, 0, bytes.length, new Uint8Array(CHAIN_STATE_BYTES).fill(255)),
      () => chainEntries(null as never, 0, 0, state),
      () => followEntries(bytes, state, -1, null, room(1)),
      () => followEntries(bytes, state, 0, null, { ...room(1), kinds: new Uint8Array(2) }),
      () => followEntries(bytes, state, 0, null, { ...room(1), hashes: new Uint8Array(63) }),
      () => followEntries(bytes, state, 0, { ...entryForms(), numbers: Float64Array.of(1, 1, 0, 5) }, room(1)),
      () => followEntries(bytes, state, 0, { ...entryForms(), names: new Uint8Array(3) }, room(1)),
    ];
    for (const call of wrong) expect(call).toThrow(KvError);
  });

  it('end on the bare binding in a status, whatever one argument is, and whatever the forms are (fuzzed)', () => {
    const random = uniform(SEED);
    const binary = loadBinary();
    const { numbers, names } = entryForms();
    const payloads = Array.from({ length: 20 }, (_, n) =>
      Buffer.from(
        `{"seq":${n},"timeMs":1,"session":"","kind":"note","body":{"layerChanges":[],"x":{"y":[1,2,{"z":"q"}]}}}`,
      ),
    );
    const before = begin();
    const { bytes } = chainedByWitness(payloads, before);
    const nonsense: (() => unknown)[] = [
      ...[undefined, null, Number.NaN, -1, 0.5, 2 ** 31, 2 ** 53, 0, 'x', {}, [], 10n].map((value) => () => value),
      () => new Uint8Array(0),
      () => new Uint8Array(7),
      () => new Uint8Array(CHAIN_STATE_BYTES).fill(255),
      () => new Float64Array(1),
      () => new Float64Array(200).fill(3),
      () => new Uint32Array(3),
      () => bytes.subarray(0, 50),
      () => new Uint8Array(new SharedArrayBuffer(40)),
    ];
    let answers = 0;
    for (let round = 0; round < 4000; round++) {
      const out = room(8);
      const given: unknown[] = [
        bytes,
        chainState(before.headHash, before.tree),
        0,
        Float64Array.from(numbers),
        names,
        1 + (round % 3),
        out.ends,
        out.kinds,
        out.hashes,
        new Float64Array(1),
      ];
      const way = random();
      if (way < 0.3) given[Math.floor(random() * given.length)] = pick(random, nonsense)();
      else {
        const some = given[3] as Float64Array;
        const others = [0, 1, 2, 9, 40, 1e9, -1, 0.5, Number.NaN, 2 ** 40, some.length, pick(random, [...some])];
        for (let n = 0; n <= random() * 2; n++) some[Math.floor(random() * some.length)] = pick(random, others);
      }
      if (random() < 0.1) given[3] = numbers.slice(0, Math.floor(random() * 300));
      try {
        const status: unknown = Reflect.apply(binary.followLogEntries, binary, given);
        if (status === 0) answers++;
      } catch (error) {
        expect(error).toBeInstanceOf(Error);
      }
    }
    expect(answers).toBeGreaterThan(100);
  });
});
