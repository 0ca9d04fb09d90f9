/**
 * Decisions spelled by the binary, against `spellBody`, which has every number from JavaScript: the same bytes, in a
 * log too, and nothing where a value is not what its type says. Where the binary prints no doubles, this is skipped.
 */
import { createSecretKey } from 'node:crypto';
import { afterEach, describe, expect, it } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import { nativeInfo, type SpellPlan, spellEntry } from '../../../native/index.ts';
import { loadBinary } from '../../../native/load.ts';
import { Batch } from '../../../witness/batch.ts';
import { payloadText } from '../../../witness/entry.ts';
import { DECISION_BYTES_MAX, fillDecision } from '../../../witness/plan.ts';
import { spellBody } from '../../../witness/spell.ts';
import { Frontier } from '../../../witness/tree.ts';
import type { DecisionBody } from '../../../witness/types.ts';
import { pick, uniform } from '../../native/dense.ts';

const SEED = 20261123;
const SPELLS = nativeInfo().binding !== 'wasm';
afterEach(() => useEntriesBinary(true));

/** A double of random bits, or of few digits, or a whole number. */
function anyNumber(random: () => number): number {
  const view = new DataView(new ArrayBuffer(8));
  view.setUint32(0, random() * 2 ** 32);
  view.setUint32(4, random() * 2 ** 32);
  const way = random();
  const value =
    way < 0.3
      ? view.getFloat64(0)
      : way < 0.6
        ? Number(((random() - 0.5) * 10 ** Math.floor(random() * 60 - 30)).toPrecision(1 + Math.floor(random() * 16)))
        : way < 0.8
          ? Math.floor((random() - 0.5) * 10 ** (random() * 23))
          : (random() - 0.5) * 10 ** Math.floor(random() * 12 - 10);
  return Number.isFinite(value) ? value : 0;
}

const because = (random: () => number, word: () => string): DecisionBody['verdict']['because'] => ({
  threshold: word(),
  measured: anyNumber(random),
  bound: anyNumber(random),
  unit: word(),
  origin: 'learned',
  rule: word(),
});

function decision(random: () => number, word: () => string): DecisionBody {
  const maybe = (): number | null => (random() < 0.3 ? null : anyNumber(random));
  return {
    situation: Math.floor(random() * 1e6),
    order: 3,
    decision: {
      ...{ layer: 29, page: 12, side: 'k', from: 'q8', to: 'rot4' },
      ...{ epsilonFrom: maybe(), epsilonTo: maybe(), price: maybe(), bytesFreed: -Math.floor(random() * 1e5) },
      ...{ retry: random() < 0.5, because: because(random, word) },
    },
    epsilonNow: maybe(),
    verdict: { accepted: random() < 0.5, because: because(random, word) },
    ...{ bytesBefore: Math.floor(random() * 1e14), bytesAfter: 0, tokens: -0 },
  };
}

/** A plan of one hole between brackets, and the number in it. */
const planOf = (step: number, number: number): SpellPlan => ({
  steps: Uint32Array.of(0, 0, 1, 5, 0, 0, 0, 1, 1, step, 0, 0),
  texts: Buffer.from('<[word'),
  numbers: Float64Array.of(0, 0, 0, number),
});

function spelled(step: number, number: number): string | null {
  const bytes = Buffer.alloc(100);
  const plan = planOf(step, number);
  return spellEntry(bytes, 7, plan) ? bytes.toString('latin1', 7, 7 + plan.numbers[0]!) : null;
}

describe.skipIf(!SPELLS)('where the binary prints doubles (needs a compiled binary)', () => {
  it('numbers are spelled as JavaScript prints them', () => {
    const random = uniform(SEED);
    const edges = [
      0,
      -0,
      1,
      -1,
      1e-6,
      1e-7,
      9.999999e-7,
      123456789e-14,
      1e15,
      1e15 - 1,
      1e20,
      1e21,
      1.5e21,
      123456789012345680000,
      2 ** 53,
      0.1,
      5e-324,
      Number.MAX_VALUE,
      -1e-300,
      2251799813685249.5,
    ];
    const numbers = [...edges, ...edges.map((one) => -one), ...Array.from({ length: 40_000 }, () => anyNumber(random))];
    const wrong = numbers.filter((number) => spelled(1, number) !== `<[${number === 0 ? '0' : number}}`);
    expect(wrong).toEqual([]);
  });

  it('the other steps too, and nothing of what is none', () => {
    expect(spelled(2, Number.POSITIVE_INFINITY)).toBe('<[null}');
    expect(spelled(2, 1.5)).toBe('<[1.5}');
    expect([spelled(3, 1), spelled(3, 0), spelled(3, 2)]).toEqual(['<[true}', '<[false}', null]);
    expect(spelled(4, 2 * 256 + 4)).toBe('<[word}');
    for (const code of [2 * 256 + 5, 7 * 256, -1, 2 ** 32, Number.NaN])
      expect([code, spelled(4, code)]).toEqual([code, null]);
    for (const number of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])
      expect(spelled(1, number)).toBe(null);
    expect(spelled(2, Number.NEGATIVE_INFINITY)).toBe(null);
    expect(spelled(6, 1)).toBe(null);
    for (let room = 0; room <= 40; room++) {
      const bytes = Buffer.alloc(room + 9, 0xee);
      const plan = planOf(4, 2 * 256 + 4);
      expect([room, spellEntry(bytes.subarray(0, room), 0, plan)]).toEqual([room, room >= 7]);
      expect(bytes.subarray(room).every((byte) => byte === 0xee)).toBe(true);
    }
  });

  it('decisions are the text of the general way, with any names and any numbers', () => {
    const random = uniform(SEED);
    const names = ['price', 'KLD/byte', '', 'with "quotes" and \\', 'ünïcode', 'x'.repeat(200), '\n'];
    const bytes = Buffer.alloc(DECISION_BYTES_MAX);
    for (let round = 0; round < 3000; round++) {
      // New names are met for as long as it goes on, and old ones forgotten.
      const body = decision(random, () => (random() < 0.5 ? pick(random, names) : `n${Math.floor(random() * 2000)}`));
      const session = random() < 0.1 ? pick(random, names) : 's-1';
      const plan = fillDecision(round, 1_763_856_000_000 + round, session, body)!;
      expect(spellEntry(bytes, 0, plan)).toBe(true);
      const expected = payloadText(round, 1_763_856_000_000 + round, session, 'decision', spellBody('decision', body));
      expect(bytes.toString('utf8', 0, plan.numbers[0])).toBe(expected);
      const [, body0, bodyBytes] = plan.numbers;
      expect(bytes.toString('utf8', body0, body0! + bodyBytes!)).toBe(spellBody('decision', body));
    }
  });

  it('batches are the same with and without the binary, plain and encrypted', () => {
    const key = createSecretKey(Buffer.alloc(32, 3));
    const batches = [true, false].map((isUsed) => {
      useEntriesBinary(isUsed);
      const random = uniform(SEED);
      const batch = new Batch(0, 100, { nextSeq: 0, headHash: Buffer.alloc(32), tree: new Frontier() });
      for (let seq = 0; seq < 200; seq++) {
        const body = decision(random, () => 'price');
        const isEncrypted = random() < 0.5;
        const place = { seq, session: 's-1', kind: 'decision' } as const;
        const encryption = isEncrypted ? { key, nonceStart: Uint8Array.of(1, 2, 3, 4), place } : null;
        const plan = fillDecision(seq, 5, 's-1', body)!;
        // What is encrypted is packed first, and not by the binary.
        const isPlanned = encryption === null && batch.addPlanned(seq, plan, DECISION_BYTES_MAX, 5);
        if (encryption === null) expect(isPlanned).toBe(isUsed);
        const payload = payloadText(seq, 5, 's-1', 'decision', spellBody('decision', body));
        const at = payload.indexOf('{"bytesAfter"');
        if (isPlanned) continue;
        if (encryption === null) batch.add(seq, payload, 5);
        else batch.addEncrypted(seq, payload.slice(0, at), payload.slice(at, -1), encryption, 5);
      }
      batch.finish();
      return Buffer.from(batch.bytes);
    });
    expect(batches[0]!.equals(batches[1]!)).toBe(true);
  });
});

it('nothing is filled in of a value that is not what its type says', () => {
  const random = uniform(SEED);
  const good = decision(random, () => 'price');
  expect(fillDecision(1, 2, 's', good)).not.toBeNull();
  const wrong: unknown[] = [
    { ...good, tokens: Number.NaN },
    { ...good, tokens: null },
    { ...good, tokens: '5' },
    { ...good, epsilonNow: Number.POSITIVE_INFINITY },
    { ...good, epsilonNow: undefined },
    { ...good, verdict: { ...good.verdict, accepted: 'yes' } },
    { ...good, decision: { ...good.decision, from: 5 } },
    { ...good, decision: { ...good.decision, from: 'x'.repeat(300) } },
  ];
  for (const [index, body] of wrong.entries())
    expect([index, fillDecision(1, 2, 's', body as DecisionBody)]).toEqual([index, null]);
  expect(fillDecision(1, 2, 's', good)).not.toBeNull();
});

it('ends on the bare binding in a status, whatever one argument or the plan is (fuzzed)', () => {
  const random = uniform(SEED);
  const binary = loadBinary();
  const plan = fillDecision(
    1,
    2,
    's',
    decision(random, () => 'price'),
  )!;
  const nonsense: (() => unknown)[] = [
    ...[undefined, null, Number.NaN, -1, 0.5, 2 ** 31, 2 ** 53, 5000, 'x', {}, [], 10n].map((value) => () => value),
    () => new Uint8Array(0),
    () => new Uint8Array(30),
    () => new Float64Array(2),
    () => new Float64Array(4).fill(9),
    () => new Uint32Array(7),
    () => new Uint32Array(30).fill(4_000_000_000),
    () => new Uint8Array(new SharedArrayBuffer(40)),
  ];
  let answers = 0;
  for (let round = 0; round < 6000; round++) {
    const { steps, texts, numbers } = plan;
    const given: unknown[] = [
      Buffer.alloc(Math.floor(random() * 3000)),
      Math.floor(random() * 30),
      Uint32Array.from(steps),
      texts,
      Float64Array.from(numbers),
    ];
    const way = random();
    if (way < 0.3) given[Math.floor(random() * given.length)] = pick(random, nonsense)();
    else if (way < 0.6) {
      const some = given[2] as Uint32Array;
      some[Math.floor(random() * some.length)] = pick(random, [0, 1, 2, 3, 4, 5, 6, 20_000, 2 ** 32 - 1]);
    } else if (way < 0.8) {
      const some = given[4] as Float64Array;
      some[Math.floor(random() * some.length)] = anyNumber(random);
    }
    try {
      if (Reflect.apply(binary.spellLogEntry, binary, given) === 0) answers++;
    } catch (error) {
      expect(error).toBeInstanceOf(Error);
    }
  }
  expect(answers).toBeGreaterThan(SPELLS ? 1000 : -1);
});
