// The engine as a program uses it, on the reference model: text streams, turns and forks continue, budgets hold, and
// aborts leave everything usable. One engine serves the file.

import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineSession, type StreamedText } from '../../../../engine/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, entriesOf, ids, openEngine, PROMPT_TOKENS, withEngine, written } from '../on-reference.ts';

const folder = scratchFolders();
let state = '';
let engine: Engine;

withEngine(folder, (...opened) => {
  [engine, state] = opened;
});

async function collect(generation: AsyncIterable<string>): Promise<string> {
  let text = '';
  for await (const piece of generation) text += piece;
  return text;
}

describe('a model that cannot be loaded', () => {
  // By a name that nobody has, and by a folder without a model: neither may leave a state folder where there was none.
  it.each(['a-mistyped-name', import.meta.dirname])('(%s) leaves no state folder', async (model) => {
    const stateDir = join(folder(), 'new', 'state');
    expect(await codeOf(createEngine({ model, stateDir, threads: 1 }))).toBe('not-found');
    expect(existsSync(join(stateDir, '..'))).toBe(false);
  });

  it('frees the state folder that was there', async () => {
    const stateDir = join(folder(), 'state');
    await (await openEngine(stateDir)).close();
    expect(await codeOf(createEngine({ model: 'a-mistyped-name', stateDir, threads: 1 }))).toBe('not-found');
    await (await openEngine(stateDir)).close();
  });
});

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
    // A loop that computed itself would have had one at most, behind all the work; a busy machine delays them but does
    // not take them all.
    expect(ticks).toBeGreaterThan(3);
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

  it.skipIf(process.platform !== 'linux')(
    'has one set of threads for all sessions, who move pages in the background (needs Linux)',
    async () => {
      const own = await openEngine(null);
      const open = () => written(own, { kvBudget: '40%' }, ids(600));
      const threads = () => readdirSync('/proc/self/task').length;
      const first = await open();
      const before = threads();
      const others = [await open(), await open()];
      expect(threads()).toBe(before);
      for (const session of [first, ...others]) await session.close();
      await own.close();
    },
  );
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
    const moved = await written(engine, { witness: false, kvBudget: '30%', compareTokens: 64 });
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

  it('a fork makes room for itself, is refused where no move is left, and its parent goes on', async () => {
    const parent = await written(engine, { kvBudget: 1_640_000, openFormat: 'f16', windowTokens: 128 }, ids(1000, 30));
    const fork = await parent.fork();
    await fork.generate(ids(200), { maxTokens: 1 }).result;
    expect((await fork.report()).kvBytes).toBeLessThanOrEqual(1_640_000);
    expect(await codeOf(fork.generate(ids(2000), { maxTokens: 1 }).result)).toBe('budget-too-small');
    expect(await codeOf(fork.generate(ids(600), { maxTokens: 1 }).result)).toBe('budget-too-small');
    await fork.close();
    await parent.generate(null, { maxTokens: 4, temperature: 1 }).result;
    await parent.close();
  });
});

describe('a budget', () => {
  it('is kept by every byte of the session, and the report says where they are', async () => {
    const session = await written(engine, { kvBudget: '30%' });
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
    const session = await written(engine, { kvBudget: '45%', skipLayers: [0, 3] });
    const { layers } = await session.report();
    for (const { layer, kPages, vPages, movesTried } of layers) {
      const formats = new Set([...Object.keys(kPages), ...Object.keys(vPages)]);
      if (layer === 0 || layer === 3) expect([movesTried, ...formats]).toEqual([0, 'q8']);
    }
    expect(layers.some(({ movesAccepted }) => movesAccepted > 0)).toBe(true);
    await session.close();
  });

  it('in divergence moves bytes and stays below itself', async () => {
    const session = await written(engine, { kldBudget: 0.02 });
    const report = await session.report();
    expect(report.decisions).toBeGreaterThan(10);
    expect(report.summary.predictedKld).toBeGreaterThan(0);
    expect(report.summary.predictedKld).toBeLessThanOrEqual(0.02);
    expect(report.budgetBytes).toBeNull();
    await session.close();
  });

  it('answers to low memory', async () => {
    const session = await written(engine, { kvBudget: '60%' });
    const before = (await session.report()).kvBytesNow;
    await session.setLowMemory(true);
    await session.generate(null, { maxTokens: 30, temperature: 1 }).result;
    expect((await session.report()).kvBytesNow).toBeLessThan(before);
    await session.close();
  });
});

describe('a summary of tiers', () => {
  it('comes with each text and says where the bytes are by then, as report and metrics do', async () => {
    await using own = await openEngine(null);
    const session = await written(own, { kvBudget: '30%', tokensExpected: PROMPT_TOKENS + 500 });
    const generation = session.generate(ids(2, 9), { maxTokens: 400, temperature: 1, seed: 3, tierSummary: true });
    const events: StreamedText[] = [];
    for await (const event of generation.events()) events.push(event);
    const result = await generation.result;
    expect(events.map(({ text }) => text).join('')).toBe(result.text);
    const tiers = events.map((event) => event.tiers!);
    expect(tiers.at(-1)!.tokens).toBeGreaterThan(tiers[0]!.tokens + 350);
    const report = await session.report();
    const { layers, memory } = report;
    const last = tiers.at(-1)!;
    expect(last.bytes).toBe(report.kvBytesNow);
    expect(last.rows.find(({ tier }) => tier === 'open')!.bytes).toBe(memory.openBytes);
    for (const { rows, bytes, tokens } of tiers) {
      expect(rows.reduce((sum, row) => sum + row.bytes, 0)).toBe(bytes);
      const sealed = Math.floor((tokens - 1) / 128) * layers.length;
      expect(rows.reduce((sum, { keyPages }) => sum + keyPages, 0)).toBe(sealed);
      expect(rows.reduce((sum, { valuePages }) => sum + valuePages, 0)).toBe(sealed);
    }
    for (const side of ['k', 'v'] as const) {
      const told: Record<string, number> = {};
      // Two tiers may have pages of one format.
      for (const { format, keyPages, valuePages } of last.rows)
        told[format] = (told[format] ?? 0) + (side === 'k' ? keyPages : valuePages);
      const counted: Record<string, number> = {};
      for (const layer of layers)
        for (const [format, count] of Object.entries(side === 'k' ? layer.kPages : layer.vPages))
          counted[format] = (counted[format] ?? 0) + count;
      expect(told).toMatchObject(counted);
    }
    // Pages were sealed and moved while it wrote, and the summaries show both.
    expect(new Set(tiers.map(({ rows }) => rows.map(({ keyPages }) => keyPages).join())).size).toBeGreaterThan(2);
    const metrics = await own.metrics();
    for (const { tier, format, bytes } of last.rows)
      expect(metrics).toContain(`palimpsest_kv_bytes{tier="${tier}",dtype="${format}"} ${bytes}\n`);
    for await (const { tiers: none } of session.generate(null, { maxTokens: 2 }).events()) expect(none).toBeNull();
    expect(await codeOf(session.generate(null, { tierSummary: 1 as unknown as boolean }).result)).toBe('bad-argument');
  });
});

describe('an engine that is told of low memory', () => {
  it('tells all its sessions, and those that open afterwards, until it is told again', async () => {
    await using own = await openEngine(null);
    const bytesOf = async (session: EngineSession): Promise<number> => (await session.report()).kvBytesNow;
    const more = (session: EngineSession) => session.generate(ids(1), { maxTokens: 30, temperature: 1 }).result;
    const options = { kvBudget: '60%', tokensExpected: PROMPT_TOKENS + 200 };
    const first = await written(own, options);
    const before = await bytesOf(first);
    await own.setLowMemory(true);
    await more(first);
    const low = await bytesOf(first);
    expect(low).toBeLessThan(before);
    const second = await written(own, options);
    expect(await bytesOf(second)).toBeLessThan(before);
    await own.setLowMemory(false);
    const third = await written(own, options);
    expect(await bytesOf(third)).toBe(before);
    await own.close();
    await expect(own.setLowMemory(true)).rejects.toMatchObject({ code: 'closed' });
  });
});

describe('abort', () => {
  it('while it reads: says how far it came, takes back what was read, leaves the session usable, and the log says how it ended', async () => {
    const session = await engine.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS });
    await session.generate(ids(300), { maxTokens: 2, temperature: 1 }).result;
    const before = await session.report();
    const abort = new AbortController();
    const generation = session.generate(ids(PROMPT_TOKENS - 310, 2), {
      maxTokens: 4,
      signal: abort.signal,
      onProgress: () => abort.abort(),
    });
    const error = await refused(generation.result);
    expect(error.code).toBe('aborted');
    const read = error.values['tokensRead'] as number;
    expect(read).toBeGreaterThan(0);
    expect(read).toBeLessThan(PROMPT_TOKENS);
    const after = await session.report();
    expect(after.tokens).toBe(before.tokens);
    // Less where one of its own pages was moved meanwhile.
    expect(after.kvBytesNow).toBeLessThanOrEqual(before.kvBytesNow);
    expect((await session.generate(null, { maxTokens: 3, temperature: 1 }).result).finish).not.toBe('aborted');
    expect(await session.flush()).toBe((await session.report()).acknowledgedSeq);
    await session.close('aborted');
    expect(entriesOf(state, session.id, 'close').map(({ body }) => body.reason)).toEqual(['aborted']);
  });

  it('by an onProgress that throws: its error is the result, and the session goes on', async () => {
    const session = await engine.openSession({ witness: false, compareTokens: 8 });
    const fault = new Error('the caller made a mistake');
    const onProgress = (): never => {
      throw fault;
    };
    const generation = session.generate(ids(PROMPT_TOKENS), { maxTokens: 4, onProgress });
    await expect(generation.result).rejects.toBe(fault);
    await expect(collect(generation)).rejects.toBe(fault);
    await session.generate(ids(200), { maxTokens: 2 }).result;
    await expect(session.compare({ onProgress })).rejects.toBe(fault);
    await session[Symbol.asyncDispose]();
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
