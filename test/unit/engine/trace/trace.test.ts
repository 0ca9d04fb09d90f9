// A recorded run of the reference model decides as the run itself did; a trace holds what was asked for and nothing
// that tells its text; and a file that is not whole, or lies about itself, is refused before room is made for it.

import { mkdtempSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { inspectPath } from '../../../../engine/cli/inspect.ts';
import { parseCache } from '../../../../engine/evaluate/evaluate.ts';
import { tokenize } from '../../../../engine/session/prompt.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { sampledRows, type TraceHeader } from '../../../../engine/trace/header.ts';
import { measuredInLog } from '../../../../engine/trace/logged.ts';
import { watched } from '../../../../engine/trace/policy-run.ts';
import { Trace } from '../../../../engine/trace/reader.ts';
import { headerOf, LATER_TOKENS, type RecordRequest, recordTrace } from '../../../../engine/trace/record.ts';
import { parseSample } from '../../../../engine/trace/sample.ts';
import { Simulator } from '../../../../engine/trace/simulate.ts';
import type { SimulatedDecision } from '../../../../engine/trace/simulated.ts';
import { TraceWriter } from '../../../../engine/trace/writer.ts';
import { outputSketches } from '../../../../engine/transformer/runtime/output-sketch.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { KvError, PAGE_TOKENS } from '../../../../native/index.ts';
import { createPolicy, defaultThresholds } from '../../../../policy/index.ts';
import { refused } from '../../../refusal.ts';
import { ids, MODEL, openEngine, written } from '../on-reference.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-trace-'));
const SMALL = join(dir, 'small.trace');
const text = readFileSync(join(import.meta.dirname, '../../../../models/text/chronicle.txt'), 'utf8');
let runtime: Runtime;

const requestOf = (path: string, changes: Partial<RecordRequest> = {}): RecordRequest => ({
  path,
  sample: {},
  bytesMax: 2 ** 30,
  seed: 3,
  measure: [],
  ...changes,
});

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
  await recordTrace(runtime, ids(700), requestOf(SMALL, { sample: { layers: 2, heads: 1 } }));
});
afterAll(() => runtime.close());

/** A trace takes whole pages, as sessions read them with this window. */
const WHOLE = { openFormat: 'f16', windowTokens: 128 } as const;

/** Records a run under a policy. → what it decided */
async function recordUnder(
  policy: string,
  kvBudget: string,
  path: string,
  queries: number,
): Promise<SimulatedDecision[]> {
  const tokens = tokenize(runtime.model.tokenizer, text, true).slice(0, 1500);
  const writer = new TraceWriter(
    path,
    headerOf(runtime, tokens.length, requestOf(path, { sample: { queries } })),
    outputSketches(runtime),
  );
  const decisions: SimulatedDecision[] = [];
  const session = Session.open(runtime, {
    kvBudget,
    ...WHOLE,
    tokensExpected: tokens.length,
    policy: watched(createPolicy(policy), (made) => decisions.push(made)),
    thresholds: defaultThresholds(runtime.shape.layers),
    log: null,
    onRows: writer.add,
  });
  await session.read(tokens);
  session.close();
  writer.finish([]);
  return decisions;
}

function using<T>(path: string, work: (trace: Trace) => T): T {
  const trace = Trace.open(path);
  try {
    return work(trace);
  } finally {
    trace.close();
  }
}

describe('a run that was recorded under a policy', () => {
  it.each([
    ['price', '30%', 32],
    ['price', '40%', 128],
    ['uniform', '30%', 16],
    ['age', '30%', 16],
  ])(
    '%s@%s is decided in the simulation as it was, move by move and to the last digit',
    async (policy, budget, queries) => {
      const path = join(dir, `${policy}.trace`);
      const live = await recordUnder(policy, budget, path, queries);
      expect(live.length).toBeGreaterThan(50);
      const simulated = using(path, (trace) =>
        new Simulator(trace, defaultThresholds(6)).policy(parseCache(`${policy}@${budget}+f16+128`)),
      );
      expect(simulated.decisions).toEqual(live);
    },
  );
});

describe('a trace', () => {
  it('is the same for the same seed, and another sample for another', async () => {
    const paths = [3, 3, 4].map((_, at) => join(dir, `seed-${at}.trace`));
    for (const [at, seed] of [3, 3, 4].entries())
      await recordTrace(runtime, ids(384), requestOf(paths[at]!, { seed, sample: { layers: 3 } }));
    const [a, b, c] = paths.map((path) => readFileSync(path));
    expect(a!.equals(b!)).toBe(true);
    expect(using(paths[0]!, (trace) => trace.header.sampling)).not.toEqual(
      using(paths[2]!, (trace) => trace.header.sampling),
    );
    expect(c!.length).toBe(a!.length);
  });

  it('keeps the queries of trials, and as many more as asked for, other ones in each page', () => {
    const sampling = { layers: [0], heads: [0], queriesPerPage: 24, seed: 9 };
    const rows = [0, 1].map((page) => sampledRows(page, sampling));
    for (const page of rows) {
      expect(page).toHaveLength(24);
      expect(page.filter((row) => row % 8 === 7)).toHaveLength(16);
      expect(page).toEqual([...new Set(page)].sort((a, b) => a - b));
    }
    expect(rows[0]).not.toEqual(rows[1]);
    expect(sampledRows(5, { ...sampling, queriesPerPage: PAGE_TOKENS })).toHaveLength(PAGE_TOKENS);
  });

  it('stays within its size by leaving out layers, then heads, and refuses what cannot fit', async () => {
    const sizes: [number, number, number][] = [];
    for (const bytesMax of [2 ** 21, 2 ** 20, 2 ** 18]) {
      const path = join(dir, 'bounded.trace');
      const { header, bytes } = await recordTrace(runtime, ids(512), requestOf(path, { bytesMax }));
      expect(bytes).toBe(statSync(path).size);
      sizes.push([header.sampling.layers.length, header.sampling.heads.length, bytes]);
      // The measurements (none here) are the only part behind the bound.
      expect(bytes).toBeLessThanOrEqual(bytesMax + 1024);
    }
    expect(sizes.map(([layers, heads]) => [layers, heads])).toEqual([
      [6, 2],
      [3, 2],
      [1, 1],
    ]);
    const path = join(dir, 'none.trace');
    const error = await refused(recordTrace(runtime, ids(512), requestOf(path, { bytesMax: 2 ** 16 })));
    expect(error.code).toBe('budget-too-small');
    expect(readdirSync(dir).filter((name) => name.includes('none'))).toEqual([]);
  });

  it('tells no text and no token ids', async () => {
    const path = join(dir, 'private.trace');
    const tokens = tokenize(runtime.model.tokenizer, text, true).slice(0, 600);
    const measure = [parseCache('q8')];
    await recordTrace(runtime, tokens, requestOf(path, { measure }));
    const bytes = readFileSync(path);
    const words = [...new Set(text.match(/\w+ \w+ \w+/g))];
    expect(words.length).toBeGreaterThan(100);
    expect(words.filter((word) => bytes.includes(word))).toEqual([]);
    for (const Numbers of [Uint16Array, Uint32Array, Float32Array]) {
      const wanted = Buffer.from(Numbers.from(tokens.slice(40, 44)).buffer);
      expect(bytes.includes(wanted), Numbers.name).toBe(false);
    }
    expect(bytes.includes(tokens.slice(40, 44).join(','))).toBe(false);
    using(path, ({ header, measured }) => {
      expect(Object.keys(header).sort()).toEqual(
        ['kind', 'model', 'rotary', 'sampling', 'shape', 'slidingWindow', 'tokens', 'version'].sort(),
      );
      expect(measured).toMatchObject([{ cache: 'q8', scored: LATER_TOKENS }]);
      expect(measured[0]!.meanKld).toBeGreaterThan(0);
      expect(measured[0]!.meanKld).toBeLessThan(0.01);
    });
  });

  it('is described by inspect', async () => {
    const { ok, json, plain } = await inspectPath(SMALL, '.cache');
    expect([ok, json]).toMatchObject([true, { kind: 'trace', tokens: 700, bytes: statSync(SMALL).size, measured: [] }]);
    expect(plain).toMatch(/tokens +700/);
  });

  it('leaves nothing behind when its run is aborted, and what was there stays', async () => {
    const path = join(dir, 'kept.trace');
    writeFileSync(path, 'before');
    const abort = new AbortController();
    const onProgress = (): void => abort.abort();
    const error = await refused(recordTrace(runtime, ids(600), requestOf(path, { signal: abort.signal, onProgress })));
    expect(error.code).toBe('aborted');
    expect(readFileSync(path, 'utf8')).toBe('before');
    expect(readdirSync(dir).filter((name) => name.endsWith('.tmp'))).toEqual([]);
  });
});

describe('a simulation', () => {
  it('over some layers and heads has the bytes of those, and errors that grow as bytes shrink', () => {
    using(SMALL, (trace) => {
      const simulator = new Simulator(trace, defaultThresholds(6));
      const [q8, rot4, rot2] = ['q8', 'rot4', 'rot3:rot2'].map((name) => simulator.policy(parseCache(name)));
      expect(q8!.bytesF16).toBe(700 * 2 * 64 * 4);
      expect(q8!.epsilon).toBeGreaterThan(0);
      expect(rot4!.epsilon).toBeGreaterThan(2 * q8!.epsilon);
      expect(rot2!.epsilon).toBeGreaterThan(1.5 * rot4!.epsilon);
      expect(q8!.bytesPeak).toBeGreaterThan(rot4!.bytesPeak);
      expect(q8!.droppedMass).toBe(0);
    });
  });

  it('of the exact cache has no error at all', () => {
    using(SMALL, (trace) => {
      const exact = new Simulator(trace, defaultThresholds(6)).policy(parseCache('exact'));
      expect([exact.epsilon, exact.errorKld]).toEqual([0, 0]);
    });
  });

  it('compares with what a session measured, if it ran the same model', async () => {
    const state = join(dir, 'state');
    const engine = await openEngine(state);
    const sessions: string[] = [];
    for (const measures of [true, false]) {
      const session = await written(engine, { kvBudget: '45%' }, ids(700));
      if (measures) await session.adaptThresholds({ meanKld: 0.125 });
      sessions.push((await session.report()).session);
      await session.close();
    }
    await engine.close();
    using(SMALL, (trace) => {
      const logged = measuredInLog(logDir(state), sessions[0]!, trace);
      expect(logged).toEqual({ cache: 'price@45%', meanKld: 0.125 });
      const simulator = new Simulator(trace, defaultThresholds(6), [logged]);
      expect([...simulator.run([parseCache('price@45%'), parseCache('q8')])].map(({ meanKld }) => meanKld)).toEqual([
        0.125,
        null,
      ]);
      expect(() => measuredInLog(logDir(state), sessions[1]!, trace)).toThrow(/measured no divergence/);
      const other = { path: 'x', header: { ...trace.header, model: { name: 'other', digest: '1' } } };
      expect(() => measuredInLog(logDir(state), sessions[0]!, other)).toThrow(/the trace other/);
    });
  });

  it('refuses a run that is too short to be judged', async () => {
    const path = join(dir, 'short.trace');
    await recordTrace(runtime, ids(300), requestOf(path));
    using(path, (trace) => expect(() => new Simulator(trace, defaultThresholds(6))).toThrow(/too short/));
  });
});

/** Reads all that a trace holds. */
function readAll(path: string): void {
  using(path, (trace) => {
    for (let layer = 0; layer < trace.shape.layers; layer++) {
      trace.sketch(layer);
      for (let page = 0; page < trace.pages; page++) trace.page(page, layer);
    }
  });
}

function codeOf(bytes: Uint8Array): string {
  const path = join(dir, 'hostile.trace');
  writeFileSync(path, bytes);
  try {
    readAll(path);
    return 'read';
  } catch (error) {
    expect(error).toBeInstanceOf(KvError);
    return (error as KvError).code;
  }
}

/** A trace whose header says something else, with a checksum that fits. */
function forged(change: (header: TraceHeader) => unknown): Buffer {
  const bytes = readFileSync(SMALL);
  const length = bytes.readUInt32LE(8);
  const json = Buffer.from(JSON.stringify(change(JSON.parse(bytes.toString('utf8', 12, 12 + length)))));
  const sizes = Buffer.alloc(8);
  sizes.writeUInt32LE(json.length, 0);
  sizes.writeUInt32LE(crc32(json), 4);
  return Buffer.concat([
    bytes.subarray(0, 8),
    sizes.subarray(0, 4),
    json,
    sizes.subarray(4),
    bytes.subarray(12 + length + 4),
  ]);
}

describe('a hostile file', () => {
  it('is refused wherever one byte of it is changed', () => {
    const bytes = readFileSync(SMALL);
    let word = 1;
    for (let round = 0; round < 300; round++) {
      word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
      // Every third change hits the first kilobyte, where lengths and counts are.
      const at = round % 3 === 0 ? word % 1024 : word % bytes.length;
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1 << (round % 8);
      expect(['bad-file', 'checksum-mismatch'], `byte ${at}`).toContain(codeOf(changed));
    }
  });

  it('is refused wherever it ends, and when it goes on', () => {
    const bytes = readFileSync(SMALL);
    for (let at = 0; at < bytes.length; at += at < 600 ? 7 : 9973)
      expect(codeOf(bytes.subarray(0, at)), `${at} bytes`).toBe('bad-file');
    expect(codeOf(Buffer.concat([bytes, Buffer.alloc(1)]))).toBe('bad-file');
  });

  it.each<[string, (header: TraceHeader) => unknown]>([
    ['more tokens than it has', (header) => ({ ...header, tokens: 2 ** 24 })],
    ['fewer tokens than it has', (header) => ({ ...header, tokens: 10 })],
    ['no tokens', (header) => ({ ...header, tokens: 0 })],
    [
      'a shape without end',
      (header) => ({
        ...header,
        shape: { layers: 4096, queryHeads: 1024, kvHeads: 1024, headDim: 256 },
        slidingWindow: Array(4096).fill(null),
        sampling: { ...header.sampling, layers: Array.from({ length: 4096 }, (_, i) => i) },
      }),
    ],
    ['heads that do not divide', (header) => ({ ...header, shape: { ...header.shape, queryHeads: 3 } })],
    ['layers that are not there', (header) => ({ ...header, sampling: { ...header.sampling, layers: [0, 6] } })],
    ['layers twice', (header) => ({ ...header, sampling: { ...header.sampling, layers: [1, 1] } })],
    ['too few queries', (header) => ({ ...header, sampling: { ...header.sampling, queriesPerPage: 2 } })],
    ['a field nobody knows', (header) => ({ ...header, text: 'secret' })],
    ['a later version', (header) => ({ ...header, version: 2 })],
    ['too many radians', (header) => ({ ...header, rotary: { ...header.rotary, radians: Array(65).fill(1) } })],
  ])('whose header promises %s is refused', (_, change) => {
    expect(codeOf(forged((header) => header))).toBe('read');
    expect(codeOf(forged(change))).toMatch(/^(bad-file|checksum-mismatch)$/);
  });

  it('whose numbers are not finite is refused, even if its checksum fits', () => {
    const bytes = readFileSync(SMALL);
    const length = bytes.readUInt32LE(8);
    const sketchAt = 12 + length + 4;
    const sketchBytes = 4 + 2 * 32 * 2 * 64;
    bytes.writeUInt16LE(0x7e00, sketchAt + 4);
    const place = Buffer.alloc(8);
    place.writeInt32LE(-1, 0);
    const sum = crc32(bytes.subarray(sketchAt, sketchAt + sketchBytes), crc32(place));
    bytes.writeUInt32LE(sum, sketchAt + sketchBytes);
    expect(codeOf(bytes)).toBe('bad-file');
  });

  it('that is no trace at all is refused', () => {
    expect(codeOf(Buffer.from('KVTRACE2'.padEnd(64)))).toBe('bad-file');
    expect(codeOf(Buffer.alloc(0))).toBe('bad-file');
    expect(() => Trace.open(join(dir, 'nowhere'))).toThrow(/does not exist/);
    expect(() => Trace.open('/dev/zero')).toThrow(/regular/);
  });
});

describe('a sample', () => {
  it('is written as counts', () => {
    expect(parseSample('layers=10, heads=2,queries=64')).toEqual({ layers: 10, heads: 2, queries: 64 });
    for (const bad of ['', 'layers', 'layers=0', 'layers=1,layers=2', 'pages=3', 'layers=1e9'])
      expect(() => parseSample(bad), bad).toThrow(KvError);
  });
  it.each([{ layers: 7 }, { heads: 3 }, { queries: 8 }, { queries: 129 }])(
    'of more than there is is refused: %j',
    async (sample) => {
      const error = await refused(recordTrace(runtime, ids(300), requestOf(join(dir, 'x.trace'), { sample })));
      expect(error.code).toBe('bad-argument');
    },
  );
});
