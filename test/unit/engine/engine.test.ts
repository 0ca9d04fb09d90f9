// The engine as a program uses it, on the reference model: text streams, budgets hold, aborts leave everything usable, and what the state
// folder holds afterwards can be verified, replayed, learned from, and betrays nothing of what was read. One engine serves most of the file.
import { existsSync, mkdtempSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineSession, KvError, type KvErrorCode } from '../../../engine/index.ts';
import { logDir } from '../../../engine/state.ts';
import { type Entry, type EntryKind, readLog, replaySession, verifyLog } from '../../../witness/index.ts';
import { scratchFolders } from '../witness/folder.ts';

const folder = scratchFolders();
const MODEL = join(import.meta.dirname, '..', '..', '..', 'models', 'reference');
const PROMPT_TOKENS = 1400;
let state = '';
let engine: Engine;

beforeAll(async () => {
  state = mkdtempSync(join(folder(), 'state-'));
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: state });
});
afterAll(() => engine.close());

/** Token ids that look like nothing in particular; the same for the same seed. */
function ids(count: number, seed = 1): number[] {
  let word = seed;
  return Array.from({ length: count }, () => {
    word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
    return 10 + (word % 4000);
  });
}

/** The error that a promise must end with. */
async function refused(promise: Promise<unknown>, what = ''): Promise<KvError> {
  const error = await promise.then(
    () => new Error('was not refused'),
    (reason: unknown) => reason,
  );
  expect(error, `${what}: ${String(error)}`).toBeInstanceOf(KvError);
  return error as KvError;
}

const codeOf = async (promise: Promise<unknown>, what = ''): Promise<KvErrorCode> =>
  (await refused(promise, what)).code;

function entries<K extends EntryKind>(session: string, kind: K, dir = state): Entry<K>[] {
  return [...readLog(logDir(dir), { session, kinds: [kind] })] as Entry<K>[];
}

async function collect(generation: AsyncIterable<string>): Promise<string> {
  let text = '';
  for await (const piece of generation) text += piece;
  return text;
}

/** Reads `prompt` and writes a little. → the session, still open. */
async function budgeted(
  options: Parameters<Engine['openSession']>[0],
  prompt: readonly number[] = ids(PROMPT_TOKENS),
): Promise<EngineSession> {
  const session = await engine.openSession({ tokensExpected: prompt.length + 40, ...options });
  await session.generate(prompt, { maxTokens: 40, temperature: 1, seed: 4 }).result;
  return session;
}

describe('generate', () => {
  it('streams what the result holds, and counts', async () => {
    const session = await engine.openSession();
    const generation = session.generate('Once upon a time', { maxTokens: 24, temperature: 1, seed: 7 });
    const pieces: string[] = [];
    for await (const piece of generation) pieces.push(piece);
    const result = await generation.result;
    expect(pieces.length).toBeGreaterThan(3);
    expect(pieces.join('')).toBe(result.text);
    expect(result.promptTokens).toBe((await engine.tokenize('Once upon a time')).length);
    expect(result.finish === 'length' ? result.tokens : 24).toBe(24);
    expect(result.prefillTokensPerSecond).toBeGreaterThan(0);
    expect(result.tokensPerSecond).toBeGreaterThan(0);
    expect((await session.report()).tokens).toBe(result.promptTokens + result.tokens);
    await session.close();
  });

  it('repeats itself: greedy, and sampled with one seed; another seed is another text', async () => {
    const run = async (options: { temperature?: number; seed?: number }): Promise<string> => {
      const session = await engine.openSession({ witness: false });
      const text = await session.generate(ids(70), { maxTokens: 30, ...options }).text();
      await session.close();
      return text;
    };
    expect(await run({})).toBe(await run({}));
    const sampled = await run({ temperature: 1, seed: 5 });
    expect(await run({ temperature: 1, seed: 5 })).toBe(sampled);
    expect(await run({ temperature: 1, seed: 6 })).not.toBe(sampled);
  });

  it('gives all text to every loop over it, at once or afterwards', async () => {
    const session = await engine.openSession({ witness: false });
    const generation = session.generate(ids(20), { maxTokens: 20, temperature: 1 });
    const [first, second] = await Promise.all([collect(generation), collect(generation)]);
    expect(first).toBe((await generation.result).text);
    expect(second).toBe(first);
    expect(await collect(generation)).toBe(first);
    await session.close();
  });

  it('ends before a stop string and shows nothing of it', async () => {
    const session = await engine.openSession({ witness: false });
    const options = { maxTokens: 40, temperature: 1, seed: 9 };
    const whole = await session.generate(ids(30), options).text();
    await session.close();
    // Across token borders: from the middle of the text, a few characters.
    const stop = whole.slice(Math.floor(whole.length / 2), Math.floor(whole.length / 2) + 6);
    const again = await engine.openSession({ witness: false });
    const generation = again.generate(ids(30), { ...options, stop: ['never said', stop] });
    expect(await collect(generation)).toBe(whole.slice(0, whole.indexOf(stop)));
    expect((await generation.result).finish).toBe('stop');
    await again.close();
  });

  it('leaves the event loop of the caller alone while it reads', async () => {
    const session = await engine.openSession({ witness: false });
    let ticks = 0;
    const timer = setInterval(() => ticks++, 5);
    const progress: number[] = [];
    await session.generate(ids(PROMPT_TOKENS), { maxTokens: 1, onProgress: ({ tokens }) => progress.push(tokens) })
      .result;
    clearInterval(timer);
    expect(ticks).toBeGreaterThan(20);
    expect(progress.at(-1)).toBe(PROMPT_TOKENS);
    expect(progress).toEqual([...progress].sort((a, b) => a - b));
    await session.close();
  });

  it('serves two sessions at once, each as if it were alone', async () => {
    const alone = async (seed: number): Promise<string> => {
      const session = await engine.openSession({ witness: false });
      const text = await session.generate(ids(150, seed), { maxTokens: 20 }).text();
      await session.close();
      return text;
    };
    const apart = [await alone(21), await alone(22)];
    expect(await Promise.all([alone(21), alone(22)])).toEqual(apart);
  });
});

describe('turns and forks', () => {
  it('several turns are one text: the same tokens as one prompt with all of it, in the exact cache', async () => {
    const [first, second, third] = [ids(200, 2), ids(90, 3), ids(140, 4)];
    const turns = await engine.openSession({ exact: true });
    // One token is written per turn; it is known from the answer to the same prompt.
    await turns.generate(first, { maxTokens: 1 }).result;
    const one = await engine.tokenize(await lastText(first));
    await turns.generate(second, { maxTokens: 1 }).result;
    const two = await engine.tokenize(await lastText([...first, ...one, ...second]));
    const answer = await turns.generate(third, { maxTokens: 24 }).text();
    const whole = await engine.openSession({ exact: true });
    expect(await whole.generate([...first, ...one, ...second, ...two, ...third], { maxTokens: 24 }).text()).toBe(
      answer,
    );
    await turns.close();
    await whole.close();
  });

  async function lastText(prompt: readonly number[]): Promise<string> {
    const session = await engine.openSession({ exact: true });
    const text = await session.generate(prompt, { maxTokens: 1 }).text();
    await session.close();
    return text;
  }

  it('compared with the exact cache: nothing differs while nothing was moved, something does after', async () => {
    const untouched = await engine.openSession({ witness: false, exact: true, compareTokens: 64 });
    await untouched.generate(ids(200), { maxTokens: 8 }).result;
    expect(await untouched.compare()).toMatchObject({ tokens: 64, meanKld: 0, kld99: 0, sameTop: 1 });
    await untouched.close();
    const moved = await budgeted({ witness: false, kvBudget: '30%', compareTokens: 64 });
    const quiet = await moved.compare();
    expect(quiet.tokens).toBe(64);
    expect(quiet.meanKld).toBeGreaterThan(0);
    expect(quiet.kld99).toBeGreaterThanOrEqual(quiet.meanKld);
    // The same while the session goes on: what is compared is what stood there when it was asked.
    const [during] = await Promise.all([
      moved.compare(),
      moved.generate(null, { maxTokens: 5, temperature: 1 }).result,
    ]);
    expect(during).toEqual(quiet);
    await moved.close();
  });

  it('a fork goes on by itself, its parent as if nothing had been', async () => {
    const parent = await engine.openSession({ exact: true });
    await parent.generate(ids(300), { maxTokens: 1 }).result;
    const tokens = (await parent.report()).tokens;
    const forks = [await parent.fork(), await parent.fork()];
    const [fork, other] = forks as [EngineSession, EngineSession];
    const left = await fork.generate(ids(150, 8), { maxTokens: 16 }).text();
    expect((await parent.report()).tokens).toBe(tokens);
    const inParent = await parent.generate(ids(150, 9), { maxTokens: 16 }).text();
    // The other fork, asked what both were asked, answers as each of them did: its past is the common one.
    const nested = await other.fork();
    expect(await other.generate(ids(150, 8), { maxTokens: 16 }).text()).toBe(left);
    expect(await nested.generate(ids(150, 9), { maxTokens: 16 }).text()).toBe(inParent);
    expect(new Set([parent.id, fork.id, other.id, nested.id]).size).toBe(4);
    await parent.close();
    // Forks outlive their parent.
    expect((await fork.report()).kvBytesNow).toBeGreaterThan(0);
    await fork.generate(null, { maxTokens: 2 }).result;
    for (const session of [fork, other, nested]) await session.close();
  });

  it('a fork that its budget has no room for is refused before a layer is changed, and its parent goes on', async () => {
    const parent = await budgeted({ kvBudget: 2_600_000 }, ids(1000, 30));
    const fork = await parent.fork();
    expect(await codeOf(fork.generate(ids(600), { maxTokens: 1 }).result)).toBe('budget-exceeded');
    expect(await codeOf(fork.generate(ids(600), { maxTokens: 1 }).result)).toBe('budget-exceeded');
    await fork.close();
    await parent.generate(null, { maxTokens: 4, temperature: 1 }).result;
    await parent.close();
  });
});

describe('a budget', () => {
  it('is kept by every byte of the session, and the report says where they are', async () => {
    const session = await budgeted({ kvBudget: '30%' });
    const report = await session.report();
    const { layers, headDim, kvHeads } = engine.info.config;
    expect(report.policy).toBe('price');
    expect(report.budgetBytes).toBe(Math.floor(0.3 * (PROMPT_TOKENS + 40) * layers * kvHeads * headDim * 4));
    expect(report.kvBytes).toBeLessThanOrEqual(report.budgetBytes!);
    expect(report.kvBytes).toBeGreaterThan(report.budgetBytes! / 2);
    expect(report.kvBytesNow).toBe(report.memory.openBytes + report.memory.sinkBytes + report.memory.pageBytes);
    expect(report.effectiveBits).toBeCloseTo((16 * report.kvBytes) / report.kvBytesF16, 9);
    expect(report.decisions).toBeGreaterThan(10);
    expect(report.layers.map(({ layer }) => layer)).toEqual(Array.from({ length: layers }, (_, i) => i));
    const sealed = Math.ceil(report.tokens / 128) - 1;
    for (const { kPages, vPages } of report.layers) {
      for (const counts of [kPages, vPages]) expect(Object.values(counts).reduce((a, b) => a + b)).toBe(sealed);
    }
    const accepted = report.layers.reduce((sum, { movesAccepted }) => sum + movesAccepted, 0);
    expect(accepted + report.refusedTrials).toBe(report.decisions);
    const mean = report.layers.reduce((sum, { effectiveBits }) => sum + effectiveBits, 0) / layers;
    expect(mean).toBeCloseTo((16 * report.kvBytesNow) / report.kvBytesF16, 1);
    expect(report.notable).not.toBeNull();
    await session.close();
  });

  it('leaves skipped layers in eight bits', async () => {
    const session = await budgeted({ kvBudget: '45%', skipLayers: [0, 3] });
    const { layers } = await session.report();
    for (const { layer, kPages, vPages } of layers) {
      const formats = new Set([...Object.keys(kPages), ...Object.keys(vPages)]);
      if (layer === 0 || layer === 3) expect([...formats]).toEqual(['q8']);
    }
    expect(layers.some(({ movesAccepted }) => movesAccepted > 0)).toBe(true);
    await session.close();
  });

  it('in divergence moves bytes and stays below itself', async () => {
    const session = await budgeted({ kldBudget: 0.02 });
    const report = await session.report();
    expect(report.decisions).toBeGreaterThan(10);
    expect(report.summary.predictedKld).toBeGreaterThan(0);
    expect(report.summary.predictedKld).toBeLessThanOrEqual(0.02);
    expect(report.budgetBytes).toBeNull();
    await session.close();
  });

  it('answers to low memory', async () => {
    const session = await budgeted({ kvBudget: '60%' });
    const before = (await session.report()).kvBytesNow;
    await session.setLowMemory(true);
    await session.generate(null, { maxTokens: 30, temperature: 1 }).result;
    expect((await session.report()).kvBytesNow).toBeLessThan(before);
    await session.close();
  });
});

describe('abort', () => {
  it('while it reads: says how far it came, leaves the session usable, and the log says how it ended', async () => {
    const session = await engine.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS });
    const abort = new AbortController();
    const generation = session.generate(ids(PROMPT_TOKENS), {
      maxTokens: 4,
      signal: abort.signal,
      onProgress: () => abort.abort(),
    });
    const error = await refused(generation.result);
    expect(error.code).toBe('aborted');
    const read = error.values['tokensRead'] as number;
    expect(read).toBeGreaterThan(0);
    expect(read).toBeLessThan(PROMPT_TOKENS);
    expect((await session.report()).tokens).toBe(read);
    expect((await session.generate(null, { maxTokens: 3, temperature: 1 }).result).finish).not.toBe('aborted');
    await session.close('aborted');
    expect(entries(session.id, 'close').map(({ body }) => body.reason)).toEqual(['aborted']);
  });

  it('while it writes: the result is what was written so far', async () => {
    const session = await engine.openSession({ witness: false });
    const abort = new AbortController();
    const generation = session.generate(ids(40), { maxTokens: 3000, temperature: 1, seed: 3, signal: abort.signal });
    let text = '';
    for await (const piece of generation) {
      text += piece;
      if (text.length > 20) abort.abort();
    }
    const result = await generation.result;
    expect(result.finish).toBe('aborted');
    expect(result.text).toBe(text);
    expect(result.tokens).toBeLessThan(3000);
    await session.generate(ids(5), { maxTokens: 2 }).result;
    await session.close();
  });

  it('before it begins', async () => {
    const session = await engine.openSession({ witness: false });
    expect(await codeOf(session.generate(ids(40), { signal: AbortSignal.abort() }).result)).toBe('aborted');
    await session.generate(ids(5), { maxTokens: 2 }).result;
    await session.close();
  });

  it('by leaving the loop', async () => {
    const session = await engine.openSession({ witness: false });
    const generation = session.generate(ids(40), { maxTokens: 3000, temperature: 1, seed: 3 });
    for await (const piece of generation) if (piece !== '') break;
    const result = await generation.result;
    expect(result.finish).toBe('aborted');
    expect(result.tokens).toBeLessThan(3000);
    await session.close();
  });
});

describe('what cannot be done is refused', () => {
  it('a text longer than the context, before any work, with the numbers', async () => {
    const session = await engine.openSession({ witness: false });
    const { contextLength } = engine.info.config;
    const error = await refused(session.generate(ids(contextLength - 10), { maxTokens: 11 }).result);
    expect(error.code).toBe('context-too-long');
    expect(error.values).toMatchObject({ cached: 0, prompt: contextLength - 10, maxTokens: 11, contextLength });
    expect((await session.report()).tokens).toBe(0);
    await session.close();
  });

  it('a budget that cannot hold what is planned, with what it would take', async () => {
    const error = await refused(engine.openSession({ kvBudget: '200KiB', tokensExpected: 2000 }));
    expect(error.code).toBe('budget-too-small');
    expect(error.values['neededBytes']).toBeGreaterThan(200 * 1024);
    // Both what the numbers say and what the hint says is enough.
    const hinted = /[0-9.]+MiB/.exec(error.hint!)![0];
    for (const kvBudget of [error.values['neededBytes'] as number, hinted]) {
      const session = await engine.openSession({ kvBudget, tokensExpected: 2000 });
      await session.generate(ids(1990), { maxTokens: 10 }).result;
      await session.close();
    }
  });

  it('options that make no sense', async () => {
    const bad: unknown[] = [
      null,
      'price',
      { kldBudget: Number.NaN },
      { kldBudget: -1 },
      { kldBudget: '0.1' },
      { kvBudget: {} },
      { kvBudget: 'much' },
      { kvBudget: -5 },
      { kvBudget: '25%' },
      { kvBudget: '25%', tokensExpected: -4 },
      { tokensExpected: Number.NaN },
      { tokensExpected: 2.5 },
      { skipLayers: [6] },
      { skipLayers: [Number.NaN] },
      { skipLayers: 'all' },
      { cacheTypes: { k: 'rot5', v: 'rot2' } },
      { cacheTypes: 'rot4' },
      { policy: 7 },
      { compareTokens: -1 },
      { compareTokens: Number.POSITIVE_INFINITY },
      { exact: 'yes' },
      { exact: true, kvBudget: '64MiB' },
      { cacheTypes: { k: 'f16', v: 'f16' }, kvBudget: '64MiB' },
      { thresholdsPath: 9 },
      { policy: () => 'price' },
    ];
    for (const options of bad) {
      const what = inspect(options);
      expect(await codeOf(engine.openSession(options as never), what), what).toBe('bad-argument');
    }
    expect(await codeOf(engine.openSession({ policy: 'best' }))).toBe('unsupported');
    expect(await codeOf(engine.openSession({ policy: 'uniform', kldBudget: 0.1 }))).toBe('unsupported');
    expect(await codeOf(engine.openSession({ thresholdsPath: join(folder(), 'none.json') }))).toBe('not-found');
  });

  it('prompts and sampling that make no sense', async () => {
    const session = await engine.openSession({ witness: false });
    const bad: [unknown, object][] = [
      [[-1], {}],
      [[4096], {}],
      [[1.5], {}],
      [['a'], {}],
      [[null], {}],
      [[{ role: 'user' }], {}],
      [{}, {}],
      [7, {}],
      [null, {}],
      ['', {}],
      [[], {}],
      ['a', { maxTokens: 0 }],
      ['a', { maxTokens: Number.NaN }],
      ['a', { temperature: -1 }],
      ['a', { temperature: Number.NaN }],
      ['a', { topP: 2 }],
      ['a', { seed: 0.5 }],
      ['a', { stop: 'x' }],
      ['a', { stop: [1] }],
    ];
    for (const [prompt, options] of bad) {
      const what = inspect([prompt, options]);
      expect(await codeOf(session.generate(prompt as never, options).result, what), what).toMatch(
        /^bad-|^unsupported$/,
      );
    }
    expect((await session.report()).tokens).toBe(0);
    await session.generate('a', { maxTokens: 1 }).result;
    expect(await codeOf(session.saveThresholds(7 as never))).toBe('bad-argument');
    expect(await codeOf(session.saveThresholds(join(folder(), 'no', 'folder.json')))).toBe('io');
    expect(await codeOf(session.compare())).toBe('bad-argument');
    expect(await codeOf(session.close('tired' as never))).toBe('bad-argument');
    await session.close();
    for (const tokens of [0, -1, 1.5, Number.NaN, '8'])
      expect(await codeOf(engine.forecast(tokens as never))).toBe('bad-argument');
    for (const prompt of [undefined, 7, {}])
      expect(await codeOf(engine.tokenize(prompt as never))).toBe('bad-argument');
  });

  it('a second call while one runs', async () => {
    const session = await engine.openSession({ witness: false });
    const running = session.generate(ids(300), { maxTokens: 20 });
    expect(await codeOf(session.generate(ids(5)).result)).toBe('busy');
    expect(await codeOf(session.fork())).toBe('busy');
    const text = await running.text();
    await session.close();
    const alone = await engine.openSession({ witness: false });
    expect(await alone.generate(ids(300), { maxTokens: 20 }).text()).toBe(text);
    await alone.close();
  });

  it('anything after close, and closing twice', async () => {
    const session = await engine.openSession({ witness: false });
    await session.close();
    expect(await codeOf(session.generate('a').result)).toBe('closed');
    expect(await codeOf(session.report())).toBe('closed');
    expect(await codeOf(session.fork())).toBe('closed');
    expect(await codeOf(session.close())).toBe('closed');
  });

  it('a model that does not exist, and engines that make no sense', async () => {
    const dir = folder();
    expect(await codeOf(createEngine({ model: join(dir, 'nothing.gguf'), stateDir: join(dir, 'state') }))).toBe(
      'not-found',
    );
    for (const options of [
      null,
      {},
      { model: 7 },
      { model: MODEL, stateDir: 7 },
      { model: MODEL, stateDir: null, threads: -1 },
      { model: MODEL, stateDir: null, dense: 'big' },
      { model: MODEL, stateDir: null, isa: 'mmx' },
    ]) {
      expect(['bad-argument', 'unsupported']).toContain(await codeOf(createEngine(options as never), inspect(options)));
    }
  });

  it('a state folder that another engine holds', async () => {
    expect(await codeOf(createEngine({ model: MODEL, threads: 1, stateDir: state }))).toBe('locked');
  });
});

describe('the record', () => {
  const runs: [string, object][] = [
    ['price', { kvBudget: '30%' }],
    ['uniform', { kvBudget: '30%', policy: 'uniform' }],
    ['age', { kvBudget: '30%', policy: 'age' }],
    ['fixed', { cacheTypes: { k: 'rot4', v: 'rot2' } }],
  ];
  it.each(runs)('of %s has one beginning and one end and replays to the last byte', async (policy, options) => {
    const session = await budgeted(options);
    const report = await session.report();
    await session.close();
    expect(entries(session.id, 'open')).toHaveLength(1);
    const [close, ...more] = entries(session.id, 'close');
    expect(more).toEqual([]);
    expect(close!.body).toMatchObject({
      tokens: report.tokens,
      kvBytes: report.kvBytes,
      decisions: report.decisions,
      refused: report.refusedTrials,
      reason: 'done',
    });
    const all = [...readLog(logDir(state), { session: session.id })];
    expect(all.at(-1)!.seq).toBe(close!.seq);
    const replayed = replaySession(all);
    expect(replayed).toMatchObject({
      policy: `${policy}@1`,
      equal: true,
      complete: true,
      firstDifference: null,
      decisions: report.decisions,
    });
    expect(replayed.decisions).toBeGreaterThan(10);
    expect(verifyLog(logDir(state))).toMatchObject({ ok: true, problem: null });
  });

  it('is learned from: the next session names what it rests on, also in another engine', async () => {
    const dir = mkdtempSync(join(folder(), 'learn-'));
    const options = { kvBudget: '30%', tokensExpected: PROMPT_TOKENS + 40 };
    const [first, closed] = await withEngine(dir, async (one) => {
      const session = await one.openSession(options);
      await session.generate(ids(PROMPT_TOKENS), { maxTokens: 40, temperature: 1 }).result;
      await session.close();
      const second = await one.openSession(options);
      await second.generate(ids(20), { maxTokens: 1 }).result;
      await second.close();
      return [session.id, second.id];
    });
    const close = entries(first!, 'close', dir)[0]!;
    expect(close.body.priceThreshold).toBeGreaterThan(0);
    expect(entries(first!, 'evidence', dir)[0]!.body.neighbours).toEqual([]);
    expect(entries(closed!, 'evidence', dir)[0]!.body.neighbours).toMatchObject([{ session: first, seq: close.seq }]);

    const third = await withEngine(dir, async (two) => (await two.openSession(options)).id);
    expect(entries(third, 'evidence', dir)[0]!.body.neighbours.map(({ session }) => session)).toContain(first);
    for (const id of [closed!, third]) {
      const start = entries(id, 'open', dir)[0]!.body.context.thresholds.thresholds['price.start']!;
      expect(start.origin).toBe('learned');
      expect(start.value).toBeGreaterThan(0);
      expect(start.evidence).toContain(close.seq);
    }
    // An engine that is closed closes its sessions.
    expect(entries(third, 'close', dir)).toHaveLength(1);
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });

  async function withEngine<T>(dir: string, work: (engine: Engine) => Promise<T>): Promise<T> {
    const one = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
    try {
      return await work(one);
    } finally {
      await one.close();
    }
  }

  it('holds nothing of what was read or written', async () => {
    const dir = mkdtempSync(join(folder(), 'canary-'));
    const canary = 'The quokka of Zembla keeps 7731 violet lanterns under the harbour.';
    const filler = 'Rain fell on the hills and the river rose by a hand. ';
    const prompt = `${filler.repeat(60)}${canary} ${filler.repeat(30)}`;
    const { answer, said } = await withEngine(dir, async (one) => {
      const read = await one.tokenize(prompt);
      const session = await one.openSession({ kvBudget: '40%', tokensExpected: read.length + 60 });
      const text = await session
        .generate(prompt, { maxTokens: 60, temperature: 1, seed: 2, stop: ['violet heron'] })
        .text();
      await session.saveThresholds(join(dir, 'thresholds.json'));
      await session.close();
      return { answer: text, said: [await one.tokenize(canary), await one.tokenize(text)] };
    });
    expect(answer.length).toBeGreaterThan(20);
    const files = (readdirSync(dir, { recursive: true }) as string[])
      .map((name) => join(dir, name))
      .filter((path) => statSync(path).isFile());
    expect(files.length).toBeGreaterThan(1);
    const bytes = Buffer.concat(files.map((path) => readFileSync(path)));
    // The search itself works: what must be there is found.
    expect(bytes.includes('price.start')).toBe(true);
    const secrets = [
      canary,
      'quokka',
      'Zembla',
      'violet',
      'lanterns',
      'heron',
      'river rose',
      answer.slice(0, 12),
      answer.slice(-12),
    ];
    for (const secret of secrets) expect(bytes.includes(secret), secret).toBe(false);
    for (const list of said) {
      const four = list.slice(0, 4);
      expect(four).toHaveLength(4);
      for (const separator of [',', ', ', ' ']) expect(bytes.includes(four.join(separator))).toBe(false);
      for (const Binary of [Uint16Array, Int32Array, Float32Array, Float64Array])
        expect(bytes.includes(Buffer.from(Binary.from(four).buffer))).toBe(false);
    }
  });

  it('is not kept when nobody wants it', async () => {
    const before = process.cwd();
    const empty = realpathSync(folder());
    process.chdir(empty);
    try {
      const one = await createEngine({ model: MODEL, threads: 1, stateDir: null });
      const session = await one.openSession({ kvBudget: '40%', tokensExpected: 700 });
      await session.generate(ids(650), { maxTokens: 10, temperature: 1 }).result;
      const report = await session.report();
      expect(report.decisions).toBeGreaterThan(0);
      expect([report.logPath, report.acknowledgedSeq, one.info.logPath]).toEqual([null, -1, null]);
      await session.close();
      await one.close();
      expect(readdirSync(empty)).toEqual([]);
    } finally {
      process.chdir(before);
    }
    const quiet = await engine.openSession({ witness: false, kvBudget: '2MiB' });
    await quiet.generate(ids(40), { maxTokens: 2 }).result;
    await quiet.close();
    expect([...readLog(logDir(state), { session: quiet.id })]).toEqual([]);
  });
});

describe('an engine', () => {
  it('closes what it opened, twice if asked, while a session writes; afterwards everything is refused', async () => {
    const dir = mkdtempSync(join(folder(), 'close-'));
    const one = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
    const session = await one.openSession({ kvBudget: '2MiB' });
    const writing = session.generate(ids(200), { maxTokens: 3000, temperature: 1, seed: 1 });
    for await (const piece of writing[Symbol.asyncIterator]()) {
      if (piece === '') continue;
      // Both at once: neither may hang, and nothing may follow the last entry.
      await Promise.all([one.close(), one.close()]);
      break;
    }
    await one.close();
    expect(await codeOf(writing.result)).toBe('closed');
    expect(await codeOf(one.openSession())).toBe('closed');
    expect(await codeOf(session.report())).toBe('closed');
    expect(verifyLog(logDir(dir)).problem).toBeNull();
    expect([...readLog(logDir(dir), { session: session.id })].map(({ kind }) => kind).at(-1)).toBe('close');
    expect(replaySession(readLog(logDir(dir), { session: session.id }))).toMatchObject({ equal: true });
    expect(existsSync(dir)).toBe(true);
  });

  it('a session closed while it writes ends with one last entry', async () => {
    const session = await engine.openSession({ kvBudget: '2MiB' });
    const writing = session.generate(ids(PROMPT_TOKENS), {
      maxTokens: 500,
      temperature: 1,
      onProgress: ({ tokens }) => void (tokens > 300 && closing === null && (closing = session.close('aborted'))),
    });
    let closing: Promise<void> | null = null;
    expect(await codeOf(writing.result)).toBe('closed');
    await closing;
    const kinds = [...readLog(logDir(state), { session: session.id })].map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === 'close')).toHaveLength(1);
    expect(kinds.at(-1)).toBe('close');
  });

  it('ended at once leaves a log that opens again', async () => {
    const dir = mkdtempSync(join(folder(), 'end-'));
    const one = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
    const session = await one.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS });
    let ended: Promise<void> | null = null;
    const reading = session.generate(ids(PROMPT_TOKENS), {
      maxTokens: 1,
      onProgress: ({ tokens }) => void (tokens > 1000 && (ended ??= one.terminate())),
    });
    expect(await codeOf(reading.result)).toBe('closed');
    await ended;
    expect(verifyLog(logDir(dir)).problem).toBeNull();
    const two = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
    await two.close();
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });
});
