// Evaluation and the demonstration on the reference model: what cannot be done is refused before anything is read, an
// abort at any moment closes every session and keeps what was measured, and writing speed counts what was written.

import { readdirSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { compareWithExact } from '../../../engine/evaluate/compare.ts';
import { type EvaluateRequest, type EvaluateRow, evaluate, parseCache } from '../../../engine/evaluate/evaluate.ts';
import { documentLength, questionTokens } from '../../../engine/evaluate/recall.ts';
import { COMPARED_TOKENS, type TourEvent, tour, writingSpeed } from '../../../engine/evaluate/tour.ts';
import { setupOf } from '../../../engine/session/experience.ts';
import { Session } from '../../../engine/session/session.ts';
import { memoryDir, openState, readBook } from '../../../engine/state/folder.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { importThresholds } from '../../../memory/index.ts';
import { sealsBetween } from '../../../native/index.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import { refused } from '../../refusal.ts';
import { scratchFolders } from '../witness/folder.ts';
import { codeOf, ids, MODEL, openEngine, written } from './on-reference.ts';

const folder = scratchFolders();

const TEXT = Array.from({ length: 900 }, (_, i) => `In the year ${i} the river rose to the mill and fell again.`).join(
  ' ',
);
let runtime: Runtime;
let open = 0;
const plainOpen = Session.open;
const plainClose = Session.prototype.close;

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
  // Counted, not replaced: a session that is opened and never closed shows here.
  Session.open = (...given) => {
    const session = plainOpen(...given);
    open++;
    return session;
  };
  const closed = new WeakSet<Session>();
  Session.prototype.close = function close(this: Session): void {
    if (!closed.has(this)) open--;
    closed.add(this);
    plainClose.call(this);
  };
});
afterAll(async () => {
  Session.open = plainOpen;
  Session.prototype.close = plainClose;
  await runtime.close();
});

function request(caches: readonly string[], more: Partial<EvaluateRequest> = {}): EvaluateRequest {
  return {
    texts: [{ name: 'river', content: TEXT }],
    caches: caches.map(parseCache),
    tokens: 700,
    windows: 2,
    recallDocuments: 0,
    seed: 0,
    ...more,
  };
}

// Before, a length that fills a page was allowed: the question sealed that page, and was taken back to where the cache
// had been another.
it.each([900, 901, 960, 1024, 1100])(
  'a document of at most %d tokens leaves room for a question in its open page',
  (tokens) => {
    const { tokenizer } = runtime.model;
    const length = documentLength(tokenizer, tokens);
    expect(length).toBeGreaterThan(tokens - 128);
    expect(sealsBetween(length, questionTokens(tokenizer))).toBe(0);
  },
);

describe('evaluate', () => {
  it('refuses an impossible cache, wherever it stands, before anything is read', async () => {
    const rows: EvaluateRow[] = [];
    for (const recallDocuments of [0, 1]) {
      const error = await refused(
        evaluate(runtime, request(['q8', 'price@1KiB'], { recallDocuments, onRow: (row) => rows.push(row) })),
      );
      expect(error.code).toBe('budget-too-small');
    }
    const short = { name: 'short', content: 'A short text.' };
    const texts = [{ name: 'river', content: TEXT }, short];
    expect(await codeOf(evaluate(runtime, request(['q8'], { texts, onRow: (row) => rows.push(row) })))).toBe(
      'bad-argument',
    );
    expect(rows).toEqual([]);
    expect(open).toBe(0);
  });

  it('aborted half way keeps what was measured and leaves no session open', async () => {
    const abort = new AbortController();
    const rows: EvaluateRow[] = [];
    const session = Session.open;
    // The fourth session is the first of the second window: two caches, one window each, were then measured.
    let opened = -2;
    Session.open = (...given) => {
      if (++opened === 4) abort.abort();
      return session(...given);
    };
    const promise = evaluate(
      runtime,
      request(['q8', 'rot4:rot2'], { signal: abort.signal, onRow: (row) => rows.push(row) }),
    );
    expect(await codeOf(promise)).toBe('aborted');
    Session.open = session;
    expect(rows.map(({ cache, windows }) => [cache, windows])).toEqual([
      ['q8', 1],
      ['rot4:rot2', 1],
    ]);
    expect(rows.every(({ scored, meanKld }) => scored === 512 && meanKld > 0)).toBe(true);
    expect(open).toBe(0);
  });
});

// A setting that changes nothing is a fault: elsewhere the format of keys was ignored, and mixed pairs gave the numbers
// of equal ones.
it('gives each pair of formats a divergence and bits of its own, and the exact cache none at all', async () => {
  const caches = ['exact', 'f16', 'rot4:rot4', 'rot4:rot3', 'rot3:rot4', 'rot3:rot3'];
  const rows = await evaluate(runtime, request(caches, { windows: 1 }));
  const [exact, f16, ...pairs] = rows.map(({ meanKld, sameTop, effectiveBits }) => ({
    meanKld,
    sameTop,
    effectiveBits,
  }));
  for (const row of [exact, f16]) expect(row).toMatchObject({ meanKld: 0, sameTop: 1 });
  expect(new Set(pairs.map(({ meanKld }) => meanKld)).size).toBe(4);
  const [four, keysFour, valuesFour, three] = pairs;
  expect(four!.meanKld).toBeLessThan(Math.min(keysFour!.meanKld, valuesFour!.meanKld));
  expect(three!.meanKld).toBeGreaterThan(Math.max(keysFour!.meanKld, valuesFour!.meanKld));
  // Keys and values of one format have the same size.
  expect(keysFour!.effectiveBits).toBe(valuesFour!.effectiveBits);
  expect(four!.effectiveBits).toBeGreaterThan(keysFour!.effectiveBits);
  expect(keysFour!.effectiveBits).toBeGreaterThan(three!.effectiveBits);
});

it('finds for a state folder what the next session there comes to, and changes nothing in it', async () => {
  const dir = folder();
  const tokens = [...(runtime.model.tokenizer.addBos ? [runtime.model.tokenizer.bosId!] : [])];
  tokens.push(...runtime.model.tokenizer.encode(TEXT).slice(0, 1500 - tokens.length));
  const ask = request(['price@25%'], { tokens: tokens.length, windows: 1 });
  const text = { name: 'river', content: runtime.model.tokenizer.decode(tokens) };

  const engine = await openEngine(dir);
  for (const seed of [1, 2, 3]) await (await written(engine, { kvBudget: '25%' }, ids(1400, seed))).close();
  await engine.close();
  // Gains that change what moves show that the folder is heard.
  const target = { modelDigest: runtime.model.digest, shape: runtime.shape };
  const learned = (await readBook(dir))!;
  const file = await learned.exportFile({ ...target, family: runtime.model.config.architecture }, null);
  await learned.close();
  importThresholds(memoryDir(dir), { ...file, gains: { k: [9, 1, 1, 1, 1, 0.1], v: [1, 1, 1, 1, 1, 9] } }, target);
  const before = readdirSync(dir, { recursive: true });

  const book = (await readBook(dir))!;
  const [row] = await evaluate(runtime, { ...ask, texts: [text], book });
  await book.close();
  expect(readdirSync(dir, { recursive: true }), 'evaluate only reads').toEqual(before);
  const [unread] = await evaluate(runtime, { ...ask, texts: [text] });
  expect(row!.meanKld, 'with and without the folder').not.toBe(unread!.meanKld);

  const state = await openState(dir, { mode: 'block' });
  const options = { kvBudget: '25%', policy: 'price', tokensExpected: tokens.length, compareTokens: 512 };
  const session = Session.open(runtime, await setupOf(runtime, options, state));
  await session.read(tokens);
  const { meanKld } = await compareWithExact(session, new AbortController().signal);
  session.close();
  await state.close();
  expect(row!.meanKld).toBe(meanKld);
});

describe('the demonstration', () => {
  const setup = { kvBudget: '50%', log: null, thresholds: defaultThresholds(6) };
  const options = { filler: TEXT, documentTokens: 900, seed: 3 };

  it('counts as written what was written, and not the question', async () => {
    let session: Session | null = null;
    const result = await tour(
      runtime,
      setup,
      options,
      () => {},
      new AbortController().signal,
      (opened) => (session = opened),
    );
    (session as Session | null)?.close();
    for (const { question, tokens, written } of [...result.answers, ...result.answersExact]) {
      const asked = runtime.model.tokenizer.encode(`\n\nThe access code of ${question.place} is`).length;
      expect(written.tokens).toBe(tokens.length - asked);
    }
    // Rows of a run that are not those of its tokens would make the true next token look impossible.
    const compared = result.answers.reduce((sum, { tokens }) => sum + tokens.length, COMPARED_TOKENS);
    const { tokens, perplexity, perplexityExact } = result.divergence;
    expect(tokens).toBe(compared);
    expect(perplexityExact).toBeLessThan(100);
    expect(perplexity / perplexityExact).toBeCloseTo(1, 1);
    expect(result.tokensPerSecond).toBe(writingSpeed(result.answers));
    const answer = result.answers[0]!;
    const two = [5, 15].map((ms) => ({ ...answer, written: { tokens: 10, ms } }));
    expect(writingSpeed(two)).toBe(1000);
    expect(writingSpeed([])).toBe(0);
  });

  it.each(['ours', 'exact'] as const)('aborted in the questions (%s) ends as an abort', async (run) => {
    const abort = new AbortController();
    const stop = (event: TourEvent): void => {
      if (event.kind === 'question' && event.run === run) abort.abort();
    };
    let session: Session | null = null;
    expect(await codeOf(tour(runtime, setup, options, stop, abort.signal, (opened) => (session = opened)))).toBe(
      'aborted',
    );
    (session as Session | null)?.close();
    expect(open).toBe(0);
  });
});
