// Yardsticks over a recorded run of the reference model (T22): with room for all tokens nothing changes, with less the
// bytes stay below the budget, and what a window with sinks gives is what attention at the places of its tokens gives,
// computed here from keys whose rotation is taken back.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseCache } from '../../engine/evaluate/evaluate.ts';
import { registerMethods } from '../../engine/evaluate/methods.ts';
import type { Observed, Yardstick } from '../../engine/evaluate/yardstick.ts';
import { TraceLayer, turned } from '../../engine/trace/head.ts';
import { Trace } from '../../engine/trace/reader.ts';
import { recordTrace } from '../../engine/trace/record.ts';
import { Simulator } from '../../engine/trace/simulate.ts';
import type { Simulated } from '../../engine/trace/simulated.ts';
import { runYardsticks } from '../../engine/trace/yardstick-run.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { methods } from '../../lab/methods/methods.ts';
import { pyramidCapacity, yardsticks } from '../../lab/rules/index.ts';
import { rope } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { ids, MODEL } from '../unit/engine/on-reference.ts';

const TOKENS = 700;
/** Two pages and what the last one lacks. */
const LATER = 3 * 128;
const HEAD_DIM = 64;
const all = [...yardsticks.keys()];
const path = join(mkdtempSync(join(tmpdir(), 'palimpsest-yardsticks-')), 'small.trace');
let trace: Trace;
let simulator: Simulator;

beforeAll(async () => {
  registerMethods(methods);
  const runtime = await Runtime.open({ model: MODEL, threads: 1 });
  const request = { path, sample: { layers: 2, queries: 24 }, bytesMax: 2 ** 30, seed: 5, measure: [] };
  await recordTrace(runtime, ids(TOKENS), request);
  await runtime.close();
  trace = Trace.open(path);
  simulator = new Simulator(trace, defaultThresholds(6));
});
afterAll(() => trace.close());

const run = (...names: string[]): Simulated[] => [...simulator.run(names.map(parseCache))];

/** What PyramidKV keeps in the layers of the trace, on average. */
function pyramidTokens(capacity: number): number {
  const { sampling, shape } = trace.header;
  const kept = sampling.layers.map((layer) => pyramidCapacity(capacity, layer, shape.layers, LATER - 32));
  return kept.reduce((sum, one) => sum + one, 0) / kept.length;
}

describe('yardsticks', () => {
  it('with room for everything give full attention, bit for bit', () => {
    for (const { cache, epsilon, droppedMass, bytesPeak, bytesF16 } of run(...all.map((id) => `${id}@100%`)))
      expect([epsilon, droppedMass, bytesPeak], cache).toEqual([0, 0, bytesF16]);
  });

  it('keep their budget, err more when it is smaller, and drop only where nothing else is left', () => {
    const wide = run(...all.map((id) => `${id}@80%`));
    const narrow = run(...all.map((id) => `${id}@55%`));
    expect(narrow.map(({ cache }) => cache)).toEqual(all.map((id) => `${id}@55%`));
    for (const [at, { cache, bytes, bytesPeak, bytesF16, epsilon, droppedMass }] of narrow.entries()) {
      const { when } = yardsticks.get(all[at]!)!;
      expect(bytes, cache).toHaveLength(6);
      // 385 tokens: 316 after the prompt, 32 observed, 37 more on average over all layers.
      const tokens = (all[at] === 'pyramidkv' ? pyramidTokens(37) : 37) + 32 + 316;
      expect(bytes.at(-1)! / bytesF16, cache).toBeLessThanOrEqual(tokens / TOKENS + 1e-9);
      // What chooses once holds the whole prompt until then.
      expect(bytesPeak / bytesF16, cache).toBeLessThanOrEqual(when === 'prompt' ? 1 : 0.55 + 1e-9);
      expect(epsilon, cache).toBeGreaterThan(wide[at]!.epsilon);
      expect(droppedMass > 0, cache).toBe(!['age-tiers', 'anchors', 'coded-h2o'].includes(all[at]!));
      expect(droppedMass, cache).toBeLessThan(1);
    }
  });

  it('see the attention of a KV head as the mean over its query heads, which adds up to one (T22)', () => {
    const { queryHeads, kvHeads } = trace.shape;
    const group = queryHeads / kvHeads;
    const seen: Observed[] = [];
    const spy: Yardstick = {
      id: 'spy',
      source: 'keeps everything',
      when: 'step',
      positions: 'own',
      observes: true,
      open: () => ({
        observe: (step) => seen.push({ ...step, held: [...step.held] }),
        keep: (held) => ({ tokens: held }),
      }),
    };
    const sketches = trace.header.sampling.layers.map((_, place) => trace.sketch(place));
    runYardsticks(trace, [{ yardstick: spy, budgetTokens: TOKENS }], sketches, LATER);
    // Steps of the first KV head of the first recorded layer come first.
    const layer = new TraceLayer(trace, 0);
    const { k, v } = layer.rows(0, 'f16');
    const steps = seen.slice(0, Math.ceil(TOKENS / 16)).filter(({ queries }) => queries.length > 0);
    expect(steps.length).toBeGreaterThan(40);
    expect(group).toBeGreaterThan(1);
    for (const { held, queries, attention: found } of steps)
      for (const [row, position] of queries.entries()) {
        const tokens = held.filter((token) => token <= position);
        const query = layer.positions.indexOf(position);
        const heads = Array.from({ length: group }, (_, head) => {
          const q = layer.queries(head).subarray(query * HEAD_DIM, (query + 1) * HEAD_DIM);
          const scores = tokens.map((token) => product(q, k.subarray(token * HEAD_DIM, (token + 1) * HEAD_DIM)));
          return attention(scores, tokens, v).shares;
        });
        const own = found.subarray(row * held.length, (row + 1) * held.length);
        expect(own.reduce((sum, one) => sum + one, 0)).toBeCloseTo(1, 5);
        for (const at of tokens.keys())
          expect(own[at]! - heads.reduce((sum, shares) => sum + shares[at]! / group, 0)).toBeCloseTo(0, 5);
      }
  });

  it('stand beside policies, which drop nothing', () => {
    const [policy, yardstick] = run('h2o@60%', 'rot4');
    expect([policy!.cache, yardstick!.cache]).toEqual(['rot4', 'h2o@60%']);
    expect(policy!.droppedMass).toBe(0);
    expect(yardstick!.epsilon).toBeGreaterThan(policy!.epsilon);
  });

  it('are refused without a budget, or with one that what follows the prompt fills', () => {
    expect(() => run('h2o@kld:0.1')).toThrow(/budget in bytes/);
    expect(() => run('snapkv@25%')).toThrow(/room for 175 tokens/);
    expect(() => run('h3o@25%')).toThrow(/unknown policy/);
  });
});

describe('a window with sinks', () => {
  it.each([true, false])('turns a query to another position (interleaved: %s)', (interleaved) => {
    const radians = Array.from({ length: 24 }, (_, pair) => 10000 ** (-pair / 24));
    const plain = Float32Array.from({ length: HEAD_DIM }, (_, at) => Math.sin(at * at + 1));
    const at = (position: number): Float32Array => {
      const out = plain.slice();
      const cos = Float32Array.from(radians, (one) => Math.cos(position * one));
      const sin = Float32Array.from(radians, (one) => Math.sin(position * one));
      rope(out, 1, 1, HEAD_DIM, 48, cos, sin, interleaved);
      return out;
    };
    const found = turned(at(1000), -491, { radians, interleaved });
    // Angles of 1000 radians are held to 2^-14 or so as float32.
    for (const [channel, value] of at(509).entries()) expect(found[channel]).toBeCloseTo(value, 4);
  });

  it('attends as if its tokens stood one behind the other from 0 on', () => {
    const budget = 210;
    const [simulated] = run(`streaming@${budget * 2 * 2 * HEAD_DIM * 4}`);
    const { rotary } = trace.header;
    let sum = 0;
    let count = 0;
    let dropped = 0;
    for (const [place] of trace.header.sampling.layers.entries()) {
      const layer = new TraceLayer(trace, place);
      const sketch = trace.sketch(place);
      for (const [query, position] of layer.positions.entries()) {
        if (position < LATER) continue;
        // Room is made for sixteen tokens at a time: then four sinks and the newest stay, and sixteen come.
        const step = position - (position % 16);
        const due = step + Math.min(16, TOKENS - step) - step;
        const held = [0, 1, 2, 3];
        for (let token = step - (budget - due - 4); token <= position; token++) held.push(token);
        const difference = new Float64Array(4 * HEAD_DIM);
        for (let head = 0; head < 4; head++) {
          const { k, v } = layer.rows(Math.floor(head / 2), 'f16');
          const q = layer.queries(head).subarray(query * HEAD_DIM, (query + 1) * HEAD_DIM);
          const key = (token: number): Float32Array => k.subarray(token * HEAD_DIM, (token + 1) * HEAD_DIM);
          const moved = (row: Float32Array, from: number, to: number): Float32Array =>
            turned(turned(row, -from, rotary), to, rotary);
          const ours = attention(
            held.map((token, slot) => product(moved(q, position, held.length - 1), moved(key(token), token, slot))),
            held,
            v,
          );
          const every = Array.from({ length: position + 1 }, (_, token) => token);
          const exact = attention(
            every.map((token) => product(q, key(token))),
            every,
            v,
          );
          dropped += 1 - held.reduce((mass, token) => mass + exact.shares[token]!, 0);
          for (let c = 0; c < HEAD_DIM; c++) difference[head * HEAD_DIM + c] = ours.out[c]! - exact.out[c]!;
        }
        sum += sketchedNorm(sketch, difference) / layer.norms[query]!;
        count++;
      }
    }
    expect(count).toBeGreaterThan(80);
    expect(simulated!.epsilon / (sum / count)).toBeCloseTo(1, 3);
    expect(simulated!.droppedMass / (dropped / count / 4)).toBeCloseTo(1, 3);
  });
});

const product = (a: Float32Array, b: Float32Array): number => a.reduce((sum, one, at) => sum + one * b[at]!, 0);

/** Attention of one query by its scores with some tokens. */
function attention(
  scores: readonly number[],
  tokens: readonly number[],
  v: Float32Array,
): { shares: number[]; out: number[] } {
  const max = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - max));
  const whole = powers.reduce((sum, one) => sum + one, 0);
  const shares = powers.map((one) => one / whole);
  const out = Array.from({ length: HEAD_DIM }, (_, c) =>
    shares.reduce((sum, share, at) => sum + share * v[tokens[at]! * HEAD_DIM + c]!, 0),
  );
  return { shares, out };
}

/** ‖S·x‖ */
function sketchedNorm(sketch: Float32Array, x: Float64Array): number {
  let square = 0;
  for (let row = 0; row < 32; row++)
    square += x.reduce((sum, one, at) => sum + one * sketch[row * x.length + at]!, 0) ** 2;
  return Math.sqrt(square);
}
