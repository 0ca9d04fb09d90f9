// Can a bench be believed? Its rules are given a run that was recorded and rows that break them one by one; and every
// bench of the cache is run once, very small, so that its rows are whole and its answers right. Nothing here looks at a
// time. Nothing shorter runs each of them from end to end.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { seeded } from '../../../engine/evaluate/recall.ts';
import { openCache } from '../../../engine/index.ts';
import { findPredictor } from '../../../engine/session/park/predictors.ts';
import { logDir } from '../../../engine/state/folder.ts';
import { loadModel } from '../../../engine/transformer/load.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { KvError, nativeInfo, openPool } from '../../../native/index.ts';
import type { TrialReport } from '../../../policy/index.ts';
import { activationQuality, activations } from '../../../scripts/bench/activations.ts';
import { attentionAt } from '../../../scripts/bench/attention.ts';
import type { Bench } from '../../../scripts/bench/bench.ts';
import { Child } from '../../../scripts/bench/child.ts';
import { crowdRow } from '../../../scripts/bench/crowd.ts';
import { hogRows } from '../../../scripts/bench/crowd-hog.ts';
import { poolRows } from '../../../scripts/bench/crowd-pool.ts';
import { waitingRows } from '../../../scripts/bench/crowd-waiting.ts';
import { besideAt, demoteAt } from '../../../scripts/bench/demote.ts';
import { denseRows, SMOLLM2 } from '../../../scripts/bench/dense.ts';
import { grammarRows } from '../../../scripts/bench/grammar.ts';
import { http } from '../../../scripts/bench/http.ts';
import { load, loadRow } from '../../../scripts/bench/load.ts';
import { PeerProcess } from '../../../scripts/bench/load-servers.ts';
import { lookupRow } from '../../../scripts/bench/lookup.ts';
import { machineRow, measured } from '../../../scripts/bench/machines.ts';
import { manyAt, manyRow } from '../../../scripts/bench/many.ts';
import { alternate, median, typical } from '../../../scripts/bench/measure.ts';
import { packCosts } from '../../../scripts/bench/packs.ts';
import { aheadAt, parkAt } from '../../../scripts/bench/park.ts';
import { IkPeer } from '../../../scripts/bench/peers/ik.ts';
import { ORT_TYPES, openOrtAttention, SHORT } from '../../../scripts/bench/peers/onnxruntime.ts';
import {
  LLAMA_1B,
  QWEN_HALF_B,
  RANDOM_LAYERS,
  type RandomSpec,
  randomModel,
  smallLlama,
} from '../../../scripts/bench/peers/random-model.ts';
import { prefillAt } from '../../../scripts/bench/prefill.ts';
import { type BenchFile, type BenchRow, benchFile, bytesPerToken, violations } from '../../../scripts/bench/rows.ts';
import { Sequence, step } from '../../../scripts/bench/sequence.ts';
import { readCommand } from '../../../scripts/bench/settings.ts';
import { PAIRS, pairName, parseShape, shapeName } from '../../../scripts/bench/shapes.ts';
import { MOVES, TRIALS, type Tried } from '../../../scripts/bench/shipped.ts';
import { openStream, StreamRecord } from '../../../scripts/bench/stream.ts';
import { markdown } from '../../../scripts/bench/table.ts';
import { trialAt } from '../../../scripts/bench/trial.ts';
import { type DecisionBody, readLog, type SituationBody } from '../../../witness/index.ts';
import { normals, uniform } from '../../native/dense.ts';
import { root } from '../../tidy/files.ts';
import { temporaryFolder } from '../engine/transformer/model-files.ts';

const recorded: BenchFile = benchFile.parse(JSON.parse(readFileSync(join(root, 'test/fixtures/bench.json'), 'utf8')));
const rules = (file: Pick<BenchFile, 'rows' | 'stream'>): string[] => violations(file).map(({ rule }) => rule);

describe('a recorded run', () => {
  test('breaks no rule and has every format', () => {
    expect(violations(recorded)).toEqual([]);
    expect(
      new Set(recorded.rows.filter((row) => row.bench === 'attention' && row.peer === null).map((row) => row.format)),
    ).toEqual(new Set(PAIRS.map(pairName)));
  });

  const row = recorded.rows.find(
    (one) => one.bench === 'attention' && one.peer === null && one.format === 'rot2:rot2',
  )!;
  const broken = (change: Partial<BenchRow>): string[] => rules({ ...recorded, rows: [{ ...row, ...change }] });

  test('is caught when a row beats the stream', () => {
    const best = recorded.stream.find(({ threads }) => threads === row.threads)!.bestGbPerSecond;
    expect(broken({ gbPerSecond: best * 0.99 })).toEqual([]);
    expect(broken({ gbPerSecond: best * 1.05 })).toEqual(['stream']);
    expect(broken({ threads: 63 })).toEqual(['stream']);
    expect(broken({ gbPerSecond: best * 1.05, peer: 'someone', format: 'int4' })).toEqual(['stream']);
  });

  test('is caught when a ratio beats the bytes', () => {
    const bound = bytesPerToken('f16', row.kvHeads, row.headDim) / bytesPerToken(row.format, row.kvHeads, row.headDim);
    expect(bound).toBeGreaterThan(7);
    expect(bound).toBeLessThan(8);
    expect(broken({ ratioToF16: bound * 0.99 })).toEqual([]);
    expect(broken({ ratioToF16: bound * 1.05 })).toEqual(['bytes']);
  });

  test('is caught when an answer is wrong, a share is missing, or a shape contradicts itself', () => {
    expect(broken({ error: 2e-3 })).toEqual(['error']);
    expect(broken({ error: Number.NaN })).toEqual(['error']);
    expect(broken({ shareOfStream: null })).toEqual(['share']);
    expect(broken({ groupSize: row.groupSize + 1 })).toEqual(['shape']);
  });

  test('is refused when a field is missing, unknown or no number', () => {
    const { isa: _, ...without } = row;
    for (const one of [
      without,
      { ...row, extra: 1 },
      { ...row, nsPerToken: 0 },
      { ...row, bench: 'sleep' },
      { ...row, tokens: 0.5 },
    ])
      expect(benchFile.safeParse({ ...recorded, rows: [one] }).success).toBe(false);
  });

  test('becomes tables with a line per row', () => {
    const lines = markdown(recorded.rows);
    expect(lines.filter((line) => /^\| (?!format)/.test(line))).toHaveLength(recorded.rows.length);
    for (const title of lines.filter((line) => line.startsWith('**')))
      expect(title).toMatch(/^\*\*\w+, \d+\/\d+x\d+, /);
  });
});

describe('a very small run', () => {
  const stream = new StreamRecord(openStream(2 ** 21));
  afterAll(() => stream.handle.close());
  const shape = parseShape('6/2x64');

  function small(): { bench: Bench; rows: BenchRow[] } {
    const rows: BenchRow[] = [];
    const settings = {
      shapes: [shape],
      formats: null,
      tokens: [256],
      threads: [1],
      full: false,
      peers: false,
      rounds: 1,
      arenaBytes: 1e6,
      model: 'reference',
      steps: 1,
      kvBudget: '50%',
      entries: 1000,
      sessions: 1000,
    };
    const bench: Bench = {
      settings,
      stream,
      isa: nativeInfo().isa,
      root,
      random: seeded(1),
      add: (row) => rows.push(row),
      say: () => {},
    };
    return { bench, rows };
  }

  /** The clock of so small a run says nothing, and its arenas are warm: only what is not about time may be asked. */
  function untimed(rows: readonly BenchRow[]): string[] {
    const all = benchFile.parse({
      machine: recorded.machine,
      stream: stream.threads.map((threads) => ({ threads, gbPerSecond: 1, bestGbPerSecond: stream.best(threads) })),
      rows: rows.map((row) => ({ ...row, nsPerToken: Math.max(row.nsPerToken, 1) })),
    });
    return rules(all).filter((rule) => rule !== 'stream' && rule !== 'bytes');
  }

  test('of attention answers rightly and counts the bytes that the pages have', async () => {
    const { bench, rows } = small();
    await attentionAt(bench, shape, 256, 1);
    expect(untimed(rows)).toEqual([]);
    expect(rows.map((row) => row.format)).toEqual(PAIRS.map(pairName));
    for (const row of rows) {
      expect(row.error).toBeLessThan(1e-3);
      expect(row.gbPerSecond! * row.nsPerToken).toBeCloseTo(bytesPerToken(row.format, 2, 64), 6);
    }
  });

  test('of prefill answers rightly', async () => {
    const { bench, rows } = small();
    await prefillAt(bench, shape, 256, 1);
    expect(untimed(rows)).toEqual([]);
    expect(rows.map((row) => row.error! < 1e-3)).toEqual(PAIRS.map(() => true));
  });

  test('of parking puts sessions back by their pages, as they are and predicted', async () => {
    const { bench, rows } = small();
    const runtime = await Runtime.open({ model: 'reference', threads: 1 });
    const predictor = findPredictor(runtime.model.digest, null)!;
    await parkAt(bench, runtime, predictor, 256);
    predictor.close();
    await runtime.close();
    expect(untimed(rows)).toEqual([]);
    const done = ['park as it is', 'back as it is', 'park predicted', 'back predicted'];
    expect(rows.map((row) => row.format)).toEqual(['read', ...done]);
  });

  test('of parking has the first token of a session whose call waited its turn', async () => {
    const { bench, rows } = small();
    const runtime = await Runtime.open({ model: 'reference', threads: 1 });
    await aheadAt(bench, runtime, 256);
    await runtime.close();
    expect(untimed(rows)).toEqual([]);
    expect(rows.map((row) => row.format)).toEqual(['first token, back then', 'first token, back ahead']);
  });

  test('of demote and trial has a row for every move', async () => {
    const { bench, rows } = small();
    await demoteAt(bench, shape);
    await besideAt(bench, shape);
    await trialAt(bench, shape, 1);
    expect(untimed(rows)).toEqual([]);
    expect(rows.map(({ bench: name, format }) => `${name} ${format}`)).toEqual(
      expect.arrayContaining([
        'demote f32>q8',
        'demote q8>trellis4',
        'demote trellis4>trellis3',
        'demote trellis2>trellis1',
        'demote rot2>rot1',
        'demote trellis1>f32',
        'demote attend',
        'demote attend beside q8>trellis4',
        'trial q8>trellis4,trellis3,trellis2:trellis4,trellis3,trellis2,trellis1',
        'trial q8>trellis3:trellis2',
        'trial q8>rot4,rot3,rot2:rot4,rot3,rot2,rot1',
      ]),
    );
  });

  test('of demote and trial time what sessions do: their log has the same trials and moves, and rot beside them', async () => {
    const folder = temporaryFolder();
    const stateDir = join(folder.dir, 'state');
    const layers = 2;
    const options = { kvBudget: '22%', tokensExpected: 2560, openFormat: 'q8', windowTokens: 64 } as const;
    const cache = await openCache({ layers, queryHeads: 4, kvHeads: 2, headDim: 64, ...options, stateDir });
    const random = uniform(20261126);
    for (let i = 0; i < 20; i++)
      for (let layer = 0; layer < layers; layer++) {
        cache.append(layer, normals(random, 128 * 128), normals(random, 128 * 128));
        cache.attention(layer, normals(random, 128 * 256));
      }
    await cache.close();
    const entries = [...readLog(logDir(stateDir), { session: cache.session })];
    folder.remove();
    const situations = entries.flatMap(({ kind, body }) =>
      kind === 'situation' ? [(body as SituationBody).situation] : [],
    );
    const triedIn = (reports: readonly TrialReport[]): Set<string> =>
      new Set(reports.flatMap(({ from, side, epsilon }) => Object.keys(epsilon).map((to) => `${from} ${side} ${to}`)));
    const timed = ({ from, candidates }: Tried): Set<string> =>
      new Set(candidates.map(({ side, format }) => `${from} ${side} ${format}`));
    const [first, again] = TRIALS as readonly [Tried, Tried];
    // The first four pages of a layer are tried in more, to find outlier channels.
    const later = situations.flatMap(({ trials }) => trials).filter(({ page }) => page >= 4);
    expect(triedIn(later)).toEqual(timed(first));
    const repeated = situations.flatMap((situation) => situation.again ?? []).filter(({ from }) => from === again.from);
    expect(triedIn(repeated)).toEqual(timed(again));
    const made = new Set(
      entries.flatMap(({ kind, body }) => {
        const { decision } = body as DecisionBody;
        return kind === 'decision' && decision.because.rule !== 'put-back'
          ? [`${decision.side} ${decision.from}>${decision.to}`]
          : [];
      }),
    );
    const moves = new Set(MOVES.flatMap(({ from, to, sides }) => sides.map((side) => `${side} ${from}>${to}`)));
    expect(made.size).toBeGreaterThan(5);
    expect([...made].filter((move) => !moves.has(move))).toEqual([]);
    expect([...moves].filter((move) => move.includes('rot')).length).toBeGreaterThan(5);
  });
});

describe('the command', () => {
  test('reads its flags', () => {
    const words =
      'attention --shapes 9/3x64,8/8x128 --formats f16,rot4:rot2 --tokens 1024,4096 --threads 1,2 --isa avx2 --json a.json';
    const command = readCommand(words.split(' '));
    expect(command).toMatchObject({ names: ['attention'], isas: ['avx2'], json: 'a.json', table: false });
    expect(command.settings).toMatchObject({ tokens: [1024, 4096], threads: [1, 2], full: false, peers: false });
    expect(command.settings.shapes!.map(shapeName)).toEqual(['9/3x64', '8/8x128']);
    expect(command.settings.formats!.map(pairName)).toEqual(['f16', 'rot4:rot2']);
    expect(readCommand([]).settings).toMatchObject({ shapes: null, formats: null, tokens: null, threads: [1] });
  });

  test.each([
    '--threads x',
    '--threads 0',
    '--rounds -1',
    '--tokens 1e3',
    '--shapes 9x64',
    '--shapes 9/2x64',
    '--shapes 0/0x64',
    '--formats q5',
    '--isa mmx',
    'step --isa avx2,avx512vnni',
    'machines --models gpt2',
    'many --sequences 0',
    'many --models gpt2',
    'crowd --parts pool,queue',
    '--unknown',
  ])('refuses %s', (words) => {
    expect(() => readCommand(words.split(' '))).toThrow(KvError);
  });
});

describe('peers', () => {
  test.each(ORT_TYPES)(
    'onnxruntime answers over %s, from a long history otherwise than from a short one',
    async (type) => {
      const options = { tokens: 2 * SHORT, threads: 1, arenaBytes: 1, random: seeded(1) };
      const ort = await openOrtAttention(type, parseShape('4/2x64'), options);
      await ort.pass(false);
      const short = Float32Array.from(ort.answer());
      await ort.pass(true);
      expect(ort.answer().every(Number.isFinite)).toBe(true);
      expect(ort.answer()).not.toEqual(short);
      await ort.close();
    },
  );

  test('a model of random weights can be read and is of the shape asked for', async () => {
    const folder = temporaryFolder();
    const file = randomModel(smallLlama(parseShape('2/1x64')), folder.dir);
    const model = await loadModel(file);
    expect(model.config).toMatchObject({
      layers: RANDOM_LAYERS,
      hiddenSize: 128,
      queryHeads: 2,
      kvHeads: 1,
      headDim: 64,
    });
    const q = model.weights.tensor('0.q').readFloat32();
    const variance = q.reduce((sum, x) => sum + x * x, 0) / q.length;
    expect(variance * 128).toBeGreaterThan(0.9);
    expect(variance * 128).toBeLessThan(1.1);
    model.weights.close();
    folder.remove();
  });
});

/** The same mixture of types, of as few weights as whole blocks allow. */
const shrunk = (spec: RandomSpec): RandomSpec => ({
  ...spec,
  shape: { queryHeads: 4, kvHeads: 1, headDim: 64 },
  wide: 256,
  vocab: 512,
});

describe('machines', () => {
  const folder = temporaryFolder();
  afterAll(() => folder.remove());

  test.each([
    ['llama-1b', LLAMA_1B, { Q4_K: 96, Q6_K: 17, F32: 33 }],
    ['qwen2-0.5b', QWEN_HALF_B, { Q8_0: 169, F32: 121 }],
  ])('%s has its types, and weights of variance 1/inputs in each', async (name, spec, types) => {
    const model = await loadModel(randomModel({ ...shrunk(spec), name }, folder.dir));
    expect(model.summary.storedTypes).toEqual(types);
    expect(model.config.qkvBias).toBe(spec.architecture === 'qwen2');
    for (const matrix of ['0.q', '0.down', 'embed']) {
      const weights = model.weights.tensor(matrix).readFloat32();
      const variance = weights.reduce((sum, x) => sum + x * x, 0) / weights.length;
      expect(variance * 256, matrix).toBeGreaterThan(0.9);
      expect(variance * 256, matrix).toBeLessThan(1.1);
    }
    model.weights.close();
  });

  test('measures prompts and steps in a process of its own, for the instruction set that was asked for', async () => {
    const path = randomModel({ ...shrunk(LLAMA_1B), name: 'run', layers: 2 }, folder.dir);
    const said: string[] = [];
    for (const isa of nativeInfo().available.slice(0, 2)) {
      const about = { name: 'llama-1b', path, isa, peers: false } as const;
      const rows = await measured(root, about, { rounds: 1, quick: false }, (line) => said.push(line));
      expect(rows.map(({ phase, depth }) => `${phase} ${depth}`)).toEqual(['prefill 0', 'decode 0', 'decode 4096']);
      for (const row of rows) {
        expect(machineRow.parse(row)).toMatchObject({ isa, ratio: null, peerTokensPerCpuSecond: null });
        expect(row.residentBytes).toBeGreaterThan(row.fileBytes);
      }
      // Not asserted: how fast.
      expect(said.at(-1)).toContain(`${isa}: `);
    }
  });

  test('a model that is not there is an error of the child, told with its message', async () => {
    const about = { name: 'smollm2', path: join(folder.dir, 'none.gguf'), isa: 'scalar', peers: false } as const;
    await expect(measured(root, about, { rounds: 1, quick: true }, () => {})).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('none.gguf') as string,
    });
  });

  test('takes several instruction sets and some of the models', () => {
    const command = readCommand('machines --isa avx2,avx512vnni --models qwen2-0.5b,smollm2 --quick'.split(' '));
    expect(command).toMatchObject({ isas: ['avx2', 'avx512vnni'], models: ['qwen2-0.5b', 'smollm2'], quick: true });
    expect(readCommand(['machines']).models).toEqual(['smollm2', 'llama-1b', 'qwen2-0.5b']);
  });
});

describe('many', () => {
  const folder = temporaryFolder();
  afterAll(() => folder.remove());

  test('decodes sequences in one pass, each with the bits that it has alone, and reads prompts', async () => {
    const path = randomModel({ ...shrunk(QWEN_HALF_B), name: 'many', layers: 2 }, folder.dir);
    const said: string[] = [];
    const { isa } = nativeInfo();
    for (const threads of [1, 2]) {
      const about = { name: 'qwen2-0.5b', path, isa, threads, peers: [() => null] } as const;
      const plan = { sequences: [1, 3], depths: [128, 256], rounds: 2 };
      const rows = await manyAt(root, about, plan, (line) => said.push(line));
      expect(rows.map(({ phase, sequences, depth }) => `${phase} ${sequences} ${depth}`)).toEqual([
        'prefill 1 0',
        'decode 1 128',
        'decode 3 128',
        'decode 1 256',
        'decode 3 256',
      ]);
      for (const row of rows) {
        expect(manyRow.parse(row)).toMatchObject({ isa, threads, model: 'qwen2-0.5b', peer: null, ratio: null });
        // Not asserted: how fast.
        const writes = row.phase === 'decode';
        expect([row.bitsEqual, row.p95InterTokenMs !== null]).toEqual([writes ? true : null, writes]);
      }
    }
    expect(said.map((line) => line.slice(-9))).toEqual([' 1 thread', '2 threads']);
  });

  test('passes take turns, and the first does not count', async () => {
    const turns: string[] = [];
    const passes = (name: string) => ({ run: async () => turns.push(name) });
    expect(await alternate([passes('a'), passes('b')], 2)).toEqual([
      [4, 5],
      [3, 6],
    ]);
    expect(turns.join('')).toBe('abbaab');
  });

  test('a sequence of another number has other bits, so that equal ones say something', async () => {
    const runtime = await Runtime.open({ model: 'reference', threads: 1 });
    const pool = openPool(2 ** 30);
    const bits: Buffer[] = [];
    for (const number of [0, 0, 1]) {
      const sequence = new Sequence(runtime, pool, { number, depth: 128, room: 1 });
      await step(runtime, [sequence]);
      bits.push(sequence.bits());
      sequence.close();
    }
    expect([bits[0]!.equals(bits[1]!), bits[0]!.equals(bits[2]!)]).toEqual([true, false]);
    pool.close();
    await runtime.close();
  });

  test('a peer that fails is said, and our row is there without it', async () => {
    const path = randomModel({ ...shrunk(QWEN_HALF_B), name: 'many', layers: 2 }, folder.dir);
    const { isa } = nativeInfo();
    const said: string[] = [];
    const peers = [() => new IkPeer(root, join(folder.dir, 'none')), () => new IkPeer(root, process.execPath)];
    const about = { name: 'qwen2-0.5b', path, isa, threads: 1, peers } as const;
    const plan = { sequences: [2], depths: [128], rounds: 1 };
    const rows = await manyAt(root, about, plan, (line) => said.push(line));
    expect(rows.map(({ phase, peer }) => [phase, peer])).toEqual([
      ['prefill', null],
      ['decode', null],
    ]);
    expect(said.slice(1)).toEqual([
      expect.stringContaining('ik_llama.cpp: not measured here: ik_llama.cpp does not start'),
      expect.stringContaining("ik_llama.cpp: not measured here: ik_llama.cpp's process ended with code 1"),
    ]);
  });

  test('a program that does not start is a missing dependency', async () => {
    const child = new Child('a peer', [], root, join(folder.dir, 'none'));
    await expect(child.ask('load')).rejects.toMatchObject({ code: 'missing-dependency' });
    await child.close();
  });

  test('takes numbers of sequences, of threads and depths', () => {
    const command = readCommand('many --isa avx2,avx512vnni --sequences 1,4 --tokens 256,512 --threads 1,2'.split(' '));
    expect(command).toMatchObject({ isas: ['avx2', 'avx512vnni'], sequences: [1, 4] });
    expect(command.settings).toMatchObject({ tokens: [256, 512], threads: [1, 2] });
    expect(readCommand(['many']).sequences).toEqual([1, 2, 4, 8, 16]);
  });
});

describe('crowd', () => {
  const loading = { model: 'reference', threads: 1 } as const;

  test('more sessions than fit write as well, in fewer bits', async () => {
    const rows = await poolRows(loading, {
      ...{ fitting: 2, sessions: 4, promptTokens: 384, answerTokens: 8, rounds: 1 },
    });
    expect(rows.map(({ sessions }) => sessions)).toEqual([2, 4]);
    const [fitting, more] = rows.map((row) => crowdRow.parse(row) as (typeof rows)[number]);
    expect(fitting).toMatchObject({ ratio: 1, waited: 0, readAgain: 0 });
    // As they are, they have 8 bits and more; half of the memory is what others have of each.
    expect(fitting!.bits).toBeGreaterThan(8);
    expect(more!.bits).toBeLessThan(fitting!.bits);
  });

  test('short sessions are measured beside a hog that waits, reads and writes', async () => {
    const plan = { hogTokens: 1024, sessions: 2, promptTokens: 32, answerTokens: 12, rounds: 1 };
    const rows = await hogRows(loading, plan);
    // One that reads has perhaps done so before the others write.
    expect(rows.map(({ hog }) => hog).filter((hog) => hog !== 'reads')).toEqual(['waits', 'writes']);
    for (const row of rows) expect(crowdRow.parse(row)).toMatchObject({ part: 'hog', sessions: 2, hogTokens: 1024 });
    expect([rows[0]!.steps, rows.at(-1)!.steps]).toEqual([2 * 11, 2 * 11]);
  });

  test('conversations that wait stay within the memory, and come back in each way', async () => {
    const rows = await waitingRows(loading, { conversations: 24, tokens: 640, asked: 2, compared: 1 });
    expect(rows.map(({ place }) => place)).toEqual(['memory', 'disk', 'reread']);
    for (const row of rows) {
      expect(crowdRow.parse(row)).toMatchObject({ conversations: 24, asked: 2 });
      expect(row.heldBytes).toBeLessThanOrEqual(row.budgetBytes);
      expect(row.waiting).toBeGreaterThan(4);
      expect(row.meanKld).toBeLessThan(0.01);
    }
  });

  test('takes some of its parts', () => {
    expect(readCommand('crowd --parts hog,pool --quick'.split(' '))).toMatchObject({ parts: ['hog', 'pool'] });
    expect(readCommand(['crowd']).parts).toEqual(['pool', 'hog', 'waiting']);
  });
});

test('grammars are followed to their ends, and look-up writes the same tokens', async () => {
  const runtime = await Runtime.open({ model: 'reference', threads: 1 });
  const grammars = await grammarRows(runtime.model, 1);
  expect(grammars.length).toBeGreaterThan(3);
  for (const { tokens, msPerToken } of grammars) expect([tokens > 10, msPerToken > 0]).toEqual([true, true]);
  const task = { name: 'x', system: '', question: 'a bee, a cat. '.repeat(20), temperature: 0 };
  const row = await lookupRow(runtime, task, 1);
  expect(row).toMatchObject({ task: 'x', tokens: 256 });
  expect(row.accepted).toBeLessThanOrEqual(row.drafted);
  await runtime.close();
});

test('a model is measured with activations of 16 bits, of 8 and by choice, in one order of divergence', async () => {
  const said: string[] = [];
  const texts = [['own', readFileSync(join(root, 'models', 'text', 'chronicle.txt'), 'utf8')]] as const;
  const settings = { texts, model: 'reference', threads: 1, rounds: 1, json: null };
  const [exact, auto, all] = await activations((line) => said.push(line), settings);
  expect([exact!.way, auto!.way, all!.way]).toEqual(['16', 'auto', '8']);
  expect(exact!.kld).toEqual({ own: 0 });
  expect(auto!.kld['own']).toBeGreaterThan(1e-6);
  expect(all!.kld['own']).toBeGreaterThanOrEqual(auto!.kld['own']!);
  for (const { promptMs, stepMs } of [exact!, auto!, all!])
    expect([promptMs, ...Object.values(stepMs)].every((ms) => ms > 0)).toBe(true);
  expect(said.at(-1)).toContain('8');

  const rows = await activationQuality((line) => said.push(line), { ...settings, tokens: 2048 });
  const [first, , last] = rows.map(({ kld }) => kld['own']!);
  expect([first, rows.map(({ way }) => way).slice(0, 3)]).toEqual([0, ['16', 'auto', '8']]);
  expect(last).toBeGreaterThan(1e-6);
  // A smaller budget costs more than rounding does, in each way.
  const at = (cache: string) => rows.filter((row) => row.cache === cache);
  for (const [way, { kld, bits }] of at('price@15%').entries()) {
    expect(kld['own']).toBeGreaterThan(at('exact')[way]!.kld['own']!);
    expect(bits).toBeLessThan(at('price@25%')[way]!.bits);
  }
});

test('the dense half is measured with every number of rows, in one plane and in two', () => {
  const rows = denseRows({ shape: { ...SMOLLM2, layers: 2, vocabSize: 100 }, rounds: 1, counts: [1, 5] });
  expect(rows.map(({ planes, rows: count }) => [planes, count])).toEqual([
    [2, 1],
    [2, 5],
    [1, 1],
    [1, 5],
  ]);
  for (const { rows: count, ms, msPerRow } of rows) expect([ms > 0, msPerRow * count]).toEqual([true, ms]);
});

test('the middle of the faster half', () => {
  expect(median([3, 1, 2])).toBe(2);
  expect(median([4, 1, 2, 3])).toBe(2.5);
  expect(typical([9, 1, 100, 2, 50])).toBe(2);
  expect(typical([5])).toBe(5);
});

test('the server is measured beside the library, and every text of every client is heard in both', async () => {
  const said: string[] = [];
  const rows = await http((line) => said.push(line), {
    ...{ model: 'reference', threads: 1, rounds: 1 },
    json: null,
    clients: [2],
  });
  expect(rows.map(({ by, clients }) => [by, clients])).toEqual([
    ['library', 2],
    ['http', 2],
  ]);
  for (const { tokensPerSecond, firstTokenMs, interTokenMsP95 } of rows)
    for (const value of [tokensPerSecond, firstTokenMs, interTokenMsP95]) expect(value).toBeGreaterThan(0);
  expect(said).toHaveLength(3);
});

test('a server is asked by several clients, and what they met is all there is', async () => {
  const said: string[] = [];
  const folder = temporaryFolder();
  const json = join(folder.dir, 'load.json');
  await load((line) => said.push(line), {
    ...{ root, model: 'reference', threads: 1, clients: [3], minutes: 0.05, json, peer: null },
  });
  const rows = loadRow.array().parse(JSON.parse(readFileSync(json, 'utf8')));
  folder.remove();
  expect(rows.map(({ peer, clients, faults }) => [peer, clients, faults])).toEqual([[null, 3, []]]);
  // Each of the three has at least asked once.
  const [row] = rows;
  expect(row!.answers + row!.left + row!.refusedInAnswer).toBeGreaterThanOrEqual(3);
  expect(row!.countedBytesMost).toBeGreaterThan(0);
  expect(row!.countedBytesMost).toBeLessThanOrEqual(row!.kvBudgetBytes);
  expect(said).toHaveLength(2);
  // What is no llama-server is said to be none, and is not waited for.
  const asked = { root, model: 'reference', threads: 1, kvBudgetBytes: 2 ** 22, state: folder.dir };
  for (const program of [process.execPath, join(folder.dir, 'none')])
    await expect(PeerProcess.start(asked, program)).rejects.toMatchObject({ code: 'missing-dependency' });
});

test('packs are measured as compiled, with fuel and in a session, and what never ends is stopped', () => {
  const root = join(import.meta.dirname, '../../..');
  const { rows, ...rest } = packCosts(root, 1);
  expect(rows.map(({ call }) => call)).toEqual(['encode', 'decode', 'dots, 4 queries', 'mix, 4 queries', 'rope']);
  for (const { plain, fueled, called } of rows) for (const ns of [plain, fueled, called]) expect(ns).toBeGreaterThan(0);
  for (const ms of Object.values(rest).flat()) expect(ms).toBeGreaterThanOrEqual(0);
});
