// What sessions leave in the state folder, on the reference model: a log that verifies and replays to the last byte,
// experience that the next session starts with, and nothing of what was read; also when an engine is closed or ended in
// the middle of its work.
import { cpSync, mkdtempSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ownText } from '../../../../engine/evaluate/own-text.ts';
import { createEngine, type Engine, openCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { AXES, fingerprint } from '../../../../memory/index.ts';
import { type Entry, readLog, replaySession, verifyLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, entriesOf, ids, MODEL, openEngine, PROMPT_TOKENS, withEngine, written } from '../on-reference.ts';

const folder = scratchFolders();
let state = '';
let engine: Engine;

withEngine(folder, (...opened) => {
  [engine, state] = opened;
});

/** Every file of a state folder, and what its log says when it is opened. */
function allBytes(state: string): Buffer {
  const files = (readdirSync(state, { recursive: true }) as string[])
    .map((name) => join(state, name))
    .filter((path) => statSync(path).isFile());
  expect(files.length).toBeGreaterThan(1);
  const said = JSON.stringify([...readLog(logDir(state))]);
  return Buffer.concat([...files.map((path) => readFileSync(path)), Buffer.from(said)]);
}

describe('the default state folder', () => {
  it('serves two engines and a cache at once, and holds what all of them did', async () => {
    const [dir, before] = [realpathSync(folder()), process.cwd()];
    process.chdir(dir);
    try {
      const engines = [
        await createEngine({ model: MODEL, threads: 1 }),
        await createEngine({ model: MODEL, threads: 1 }),
      ];
      const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
      const cache = await openCache({ ...shape, stateDir: '.palimpsest', kvBudget: '200KiB' });
      const rows = Float32Array.from({ length: 128 * 128 }, (_, i) => Math.sin(i));
      for (let page = 0; page < 6; page++) {
        cache.append(0, rows, rows);
        cache.attention(0, rows);
      }
      const sessions = await Promise.all(engines.map((one) => written(one, { kvBudget: '30%' })));
      for (const session of sessions) await session.close();
      for (const one of engines) await one.close();
      await cache.close();
      const log = logDir(join(dir, '.palimpsest'));
      expect(verifyLog(log)).toMatchObject({ ok: true, problem: null });
      for (const id of [...sessions.map((session) => session.id), cache.session]) {
        const kinds = [...readLog(log, { session: id })].map(({ kind }) => kind);
        expect([kinds[0], kinds.at(-1)], id).toEqual(['open', 'close']);
        expect(kinds).toContain('decision');
      }
    } finally {
      process.chdir(before);
    }
  });
});

const VERSIONS: Readonly<Record<string, number>> = { price: 5, uniform: 2, age: 2 };

describe('the record', () => {
  const runs: [string, object][] = [
    ['price', { kvBudget: '30%' }],
    ['uniform', { kvBudget: '30%', policy: 'uniform' }],
    ['age', { kvBudget: '30%', policy: 'age' }],
    ['fixed', { cacheTypes: { k: 'rot4', v: 'rot2' } }],
    // One side stays as it is, in an f16 window: moves all the same.
    ['fixed', { cacheTypes: { k: 'f16', v: 'rot4' } }],
    ['table', { cacheTypes: Array.from({ length: 6 }, (_, i) => (i % 2 === 0 ? 'rot4:rot2' : 'rot3')) }],
  ];
  it.each(runs)('of %s has one beginning and one end and replays to the last byte', async (policy, options) => {
    const session = await written(engine, options);
    const report = await session.report();
    await session.close();
    expect(entriesOf(state, session.id, 'open')).toHaveLength(1);
    const [close, ...more] = entriesOf(state, session.id, 'close');
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
      policy: `${policy}@${VERSIONS[policy] ?? 1}`,
      equal: true,
      complete: true,
      firstDifference: null,
      decisions: report.decisions,
    });
    expect(replayed.decisions).toBeGreaterThan(10);
    expect(verifyLog(logDir(state))).toMatchObject({ ok: true, problem: null });
  });

  it('of what no log is written for is not promised by the report', async () => {
    const session = await written(engine, { exact: true });
    expect((await session.report()).logPath).toBeNull();
    expect(entriesOf(state, session.id, 'open')).toEqual([]);
    await session.close();
  });

  it('has in its end the divergence that compare measured, and none that moves have made another', async () => {
    const closed = async (andOn: boolean): Promise<number | null> => {
      const session = await written(engine, { kvBudget: '30%', tokensExpected: 1700, compareTokens: 64 });
      const { meanKld } = await session.compare();
      expect(meanKld).toBeGreaterThan(0);
      if (andOn) await session.generate(ids(200, 7), { maxTokens: 1 }).result;
      await session.close();
      const kept = entriesOf(state, session.id, 'close')[0]!.body.meanKld;
      expect([null, meanKld]).toContain(kept);
      return kept;
    };
    expect(await closed(false)).not.toBeNull();
    expect(await closed(true)).toBeNull();
  });

  // What was read is in the record as a few numbers: two texts of one length differ in what only the cache can know,
  // and in what kind of text they are.
  it('has in its end what attention and keys were like', async () => {
    const shortIds = ids(PROMPT_TOKENS);
    const prints = await Promise.all(
      [shortIds, shortIds.map((id, i) => (i % 2 === 0 ? id : 300))].map(async (prompt) => {
        const session = await engine.openSession({ kvBudget: '60%', tokensExpected: PROMPT_TOKENS + 1 });
        await session.generate(prompt, { maxTokens: 1, temperature: 1 }).result;
        await session.close();
        return entriesOf(state, session.id, 'close')[0]!.body.fingerprint;
      }),
    );
    const axes = ['keyValueRatio', 'keyOutlier', 'attentionEntropy', 'sinkMass', 'recencyMass'];
    for (const name of axes) {
      const at = AXES.findIndex((axis) => axis.name === name);
      const neutral = AXES[at]!.neutral * AXES[at]!.weight;
      for (const print of prints) expect(print[at], name).not.toBeCloseTo(neutral, 6);
      expect(prints[0]![at], name).not.toBe(prints[1]![at]);
    }
    const content = ['bytesPerToken', 'letterShare', 'foreignShare', 'distinctShare'];
    for (const [at, { name, weight }] of AXES.entries()) {
      if (!axes.includes(name) && !content.includes(name)) expect(prints[0]![at], name).toBe(prints[1]![at]);
      // Of the text itself nothing finer than sixteenths of an axis is told.
      if (content.includes(name))
        for (const print of prints)
          expect((16 * print[at]!) / weight, name).toBeCloseTo(Math.round((16 * print[at]!) / weight), 4);
    }
    const distinct = AXES.findIndex(({ name }) => name === 'distinctShare');
    expect(prints[1]![distinct]).toBeLessThan(prints[0]![distinct]!);
  });

  it('of a session that ran out of budget replays as well, and ends in an error', async () => {
    const session = await engine.openSession({ kvBudget: 1_000_000, openFormat: 'f16', windowTokens: 128 });
    const reading = session.generate(ids(2000), { maxTokens: 1 }).result;
    expect(await codeOf(reading)).toBe('budget-too-small');
    expect((await session.report()).tokens).toBe(0);
    const writing = session.generate(ids(300), { maxTokens: 1700, temperature: 1, seed: 5 }).result;
    expect(await codeOf(writing)).toBe('budget-too-small');
    expect((await session.report()).tokens).toBeGreaterThan(300);
    const notes = entriesOf(state, session.id, 'note').map(({ body }) => body);
    // It was told before it came to that.
    expect(notes.filter((body) => 'growth' in body)).toMatchObject([{ growth: { limitBytes: 1_000_000 - 10_240 } }]);
    const told = notes.filter((body) => !('layerChanges' in body || 'beginning' in body || 'growth' in body));
    expect(told).toMatchObject([{ tokens: 0 }]);
    const { decisions } = await session.report();
    expect(decisions).toBeGreaterThan(10);
    await session.close('error');
    expect(replaySession(readLog(logDir(state), { session: session.id }))).toMatchObject({
      equal: true,
      complete: true,
      decisions,
    });
    expect(entriesOf(state, session.id, 'close')[0]!.body.reason).toBe('error');
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
    const close = entriesOf(dir, first!, 'close')[0]!;
    expect(close.body.priceThreshold).toBeGreaterThan(0);
    expect(entriesOf(dir, first!, 'evidence')[0]!.body.neighbours).toEqual([]);
    expect(entriesOf(dir, closed!, 'evidence')[0]!.body.neighbours).toMatchObject([{ session: first, seq: close.seq }]);

    const third = await withEngine(dir, async (two) => (await two.openSession(options)).id);
    expect(entriesOf(dir, third, 'evidence')[0]!.body.neighbours.map(({ session }) => session)).toContain(first);
    for (const id of [closed!, third]) {
      const start = entriesOf(dir, id, 'open')[0]!.body.context.thresholds.thresholds['price.start']!;
      expect(start.origin).toBe('learned');
      expect(start.value).toBeGreaterThan(0);
      expect(start.evidence).toContain(close.seq);
    }
    // An engine that is closed closes its sessions.
    expect(entriesOf(dir, third, 'close')).toHaveLength(1);
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });

  async function withEngine<T>(dir: string, work: (engine: Engine) => Promise<T>): Promise<T> {
    const one = await openEngine(dir);
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
    const bytes = allBytes(dir);
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

  // A model's folder gave it its name, which went into log and index.
  it('holds no path of the user', async () => {
    const dir = mkdtempSync(join(folder(), 'state-'));
    const model = join(mkdtempSync(join(folder(), 'elsewhere-')), 'confidential-client');
    cpSync(MODEL, model, { recursive: true });
    const engine = await createEngine({ model, threads: 1, stateDir: dir });
    expect(engine.info.name).toBe(`llama-${engine.info.digest.slice(0, 8)}`);
    const session = await written(engine, { kvBudget: '40%' });
    const thresholds = join(dir, 'thresholds.json');
    await session.saveThresholds(thresholds);
    await session.close();
    await engine.close();
    expect(entriesOf(dir, session.id, 'open')[0]!.body.model.name).toBe(engine.info.name);
    const bytes = allBytes(dir);
    expect(bytes.includes(engine.info.name)).toBe(true);
    for (const part of ['confidential', 'elsewhere-', basename(dir)]) expect(bytes.includes(part), part).toBe(false);
  });

  it('is not kept when nobody wants it', async () => {
    const before = process.cwd();
    const empty = realpathSync(folder());
    process.chdir(empty);
    try {
      const one = await openEngine(null);
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

describe('the demonstration', () => {
  it('looks for earlier sessions of the length that it is going to have', async () => {
    const dir = mkdtempSync(join(folder(), 'tour-'));
    const one = await openEngine(dir);
    const { report } = await one.tour(
      { kvBudget: '50%' },
      { filler: ownText(8000), documentTokens: 900, seed: 3 },
      () => {},
    );
    await one.close();
    const [{ body }] = entriesOf(dir, report.session, 'evidence') as [Entry<'evidence'>];
    const [{ body: opened }] = entriesOf(dir, report.session, 'open') as [Entry<'open'>];
    const at = AXES.findIndex(({ name }) => name === 'tokens');
    const { tokensExpected: tokens } = opened.requested as { tokensExpected: number };
    expect(tokens).toBeLessThan(1100);
    expect(body.fingerprint[at]).toBe(fingerprint({ ...opened.shape, tokens })[at]);
  });
});

describe('an engine', () => {
  it('closes what it opened, twice if asked, while a session writes; afterwards everything is refused', async () => {
    const dir = mkdtempSync(join(folder(), 'close-'));
    const one = await openEngine(dir);
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
    await Promise.resolve(closing);
    const kinds = [...readLog(logDir(state), { session: session.id })].map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === 'close')).toHaveLength(1);
    expect(kinds.at(-1)).toBe('close');
  });

  // Before, the second engine in one state folder was refused.
  it('shares its state folder with another engine and a cache; what both learned is there for the next', async () => {
    const dir = mkdtempSync(join(folder(), 'shared-'));
    const engines = [await openEngine(dir), await openEngine(dir)];
    const cache = await openCache({ layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64, stateDir: dir });
    const sessions = await Promise.all(
      engines.map((one) => one.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS })),
    );
    await Promise.all(sessions.map((session) => session.generate(ids(PROMPT_TOKENS), { maxTokens: 2 }).result));
    for (const session of sessions) await session.close();
    for (const one of engines) await one.close();
    await cache.close();
    expect(verifyLog(logDir(dir))).toMatchObject({ ok: true, foreign: [], tornBytes: 0 });
    for (const { id } of sessions)
      expect(replaySession(readLog(logDir(dir), { session: id }))).toMatchObject({ equal: true, complete: true });
    const next = await openEngine(dir);
    const session = await next.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS });
    await session.generate(ids(PROMPT_TOKENS), { maxTokens: 1 }).result;
    await session.close();
    await next.close();
    const [evidence] = entriesOf(dir, session.id, 'evidence');
    expect(evidence!.body.neighbours.map((one) => one.session).sort()).toEqual(sessions.map(({ id }) => id).sort());
  });

  it('ended at once leaves a log that opens again', async () => {
    const dir = mkdtempSync(join(folder(), 'end-'));
    const one = await openEngine(dir);
    const session = await one.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS });
    let ended: Promise<void> | null = null;
    const reading = session.generate(ids(PROMPT_TOKENS), {
      maxTokens: 1,
      onProgress: ({ tokens }) => void (tokens > 1000 && (ended ??= one.terminate())),
    });
    expect(await codeOf(reading.result)).toBe('closed');
    await Promise.resolve(ended);
    expect(verifyLog(logDir(dir)).problem).toBeNull();
    const two = await openEngine(dir);
    await two.close();
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });
});
