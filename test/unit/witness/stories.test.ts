// Why a page did not move, what a few words mean, and what is told of a session that nobody can open: small logs whose
// answers a person can check.
import { describe, expect, it } from 'vitest';
import { AXES, checkFilter, SESSION_FIELDS } from '../../../memory/index.ts';
import type { Decision, PolicyContext, Situation } from '../../../policy/index.ts';
import {
  type DecisionBody,
  destroySession,
  type Entry,
  explain,
  meaningOfWords,
  type OpenBody,
  openLogQuery,
  openWitnessLog,
  readEntry,
  readEnvelope,
  readLog,
  timeline,
  timelineText,
  unopenedText,
  type WitnessLog,
  whyNot,
  whyNotText,
} from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();

/** The beginning of a recorded session, whose context a test may change. */
async function beginning(): Promise<OpenBody> {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  recordSession(log, 'first');
  await log.close();
  return ([...readLog(dir, { kinds: ['open'] })][0] as Entry<'open'>).body;
}

/** A log of one session, written entry by entry. */
class Written {
  readonly dir = folder();
  #index = 0;
  #log: WitnessLog;
  #tokens = 0;

  private constructor(log: WitnessLog, dir: string) {
    this.#log = log;
    this.dir = dir;
  }

  static async begin(open: OpenBody, context: Partial<PolicyContext> = {}, policy = open.policy.id): Promise<Written> {
    const dir = folder();
    const written = new Written(await openWitnessLog({ dir }), dir);
    const body = { ...open, policy: { ...open.policy, id: policy }, context: { ...open.context, ...context } };
    written.#log.append('s', 'open', body);
    return written;
  }

  situation(tokens: number, more: Partial<Situation> = {}): number {
    this.#tokens = tokens;
    const situation: Situation = {
      ...{ index: this.#index++, tokens, bytes: 50_000, sealBytes: 1000, budgetBytes: 100_000, kldBudget: null },
      ...{ tokensExpected: null, movesMax: 4, urgent: false, lowMemory: false, stepLatencyMsP95: 0 },
      ...{ stepLatencyBudgetMs: null, trials: [], outcomes: [] },
      ...more,
    };
    return this.#log.append('s', 'situation', { situation })!;
  }

  /** The keys of page 0 in layer 0 left the window and were tried. */
  tried(tokens: number, more: Partial<Situation> = {}): number {
    const epsilon = { rot4: 0.001, rot3: 0.01, rot2: 0.1 };
    return this.situation(tokens, { trials: [{ layer: 0, page: 0, side: 'k', from: 'q8', epsilon }], ...more });
  }

  decision(move: Partial<Decision>, accepted = true): number {
    const because = {
      threshold: 'price.slack',
      measured: 3,
      bound: 2,
      unit: 'KLD/byte',
      origin: 'default',
      rule: 'deficit',
    } as const;
    const decision: Decision = {
      ...{ layer: 1, page: 0, side: 'k', from: 'q8', to: 'rot4', epsilonFrom: 0, epsilonTo: 1e-3, price: 1e-12 },
      ...{ bytesFreed: 1000, retry: false, because },
      ...move,
    };
    const verdict = { accepted, because: { ...because, rule: accepted ? 'fresh-trial' : 'trial-again' } };
    const body: DecisionBody = {
      ...{ situation: this.#index - 1, order: 0, decision, epsilonNow: null, verdict },
      ...{ bytesBefore: 50_000, bytesAfter: accepted ? 49_000 : 50_000, tokens: this.#tokens },
    };
    return this.#log.append('s', 'decision', body)!;
  }

  degraded(layer: number, storage = 'shut'): void {
    const layerChanges = [
      {
        layer,
        state: `${storage}/degraded/critical/headroom`,
        threshold: 'quality.degraded',
        measured: 2,
        bound: 1,
        source: 'error',
      },
    ];
    this.#log.append('s', 'note', { layerChanges, tokens: this.#tokens });
  }

  async why(page = 0): Promise<{ reason: string; text: string; entries: readonly number[] }[]> {
    await this.#log.close();
    const [found] = whyNot(this.dir, 's', { layer: 0, page, side: 'k' });
    return [...found!.answers].filter(({ reason }) => reason !== 'sinks');
  }
}

describe('why a page was not moved', () => {
  it('says that it was not there, in the window, or told to stay', async () => {
    const open = await beginning();
    const early = await Written.begin(open);
    early.situation(200);
    expect((await early.why(1)).map(({ reason }) => reason)).toEqual(['not-there']);
    const window = await Written.begin(open);
    window.situation(300);
    expect((await window.why(1))[0]).toMatchObject({
      reason: 'window',
      text: expect.stringContaining('44 newer tokens'),
    });
    const skipped = await Written.begin(open, { skipLayers: [0] });
    skipped.situation(600);
    expect((await skipped.why())[0]!.reason).toBe('skipped');
    const none = await Written.begin(open, {}, 'none');
    none.situation(600);
    expect((await none.why())[0]!.reason).toBe('policy');
  });

  it('says that no bytes were needed, and how near the budget was', async () => {
    const written = await Written.begin(await beginning());
    written.tried(400);
    written.situation(500, { bytes: 89_000 });
    expect(await written.why()).toMatchObject([
      { reason: 'no-need', text: expect.stringContaining('90.0% of its budget') },
    ]);
  });

  it('says that it was refused, is resting, in a degraded layer, or dearer than what was taken', async () => {
    const open = await beginning();
    const written = await Written.begin(open);
    const trial = written.tried(400);
    written.decision({ layer: 1 });
    const refused = written.decision({ layer: 0, epsilonTo: 1e-3, price: 1e-6 }, false);
    written.degraded(0);
    const later = written.situation(500);
    written.decision({ layer: 1, page: 1 });
    const answers = await written.why();
    expect(answers.map(({ reason }) => reason)).toEqual(['refused', 'degraded', 'dearer']);
    expect(answers[0]!.entries).toEqual([refused]);
    expect(answers[1]!.entries).toEqual([later]);
    expect(answers[2]!.entries[0]).toBe(trial);
    // The refused move cost 1e-6 a byte for 1000 bytes and ε² of 1e-6; the same step of the trial frees 25344 − 12928
    // bytes.
    expect(answers[2]!.text).toMatch(/2 moves of other pages.*q8 to rot4, about 8\.05e-8 KLD per byte/);

    // In later versions a degraded layer goes on.
    const goesOn = await Written.begin(open, {}, 'price');
    goesOn.tried(400);
    goesOn.decision({ layer: 1 });
    goesOn.degraded(0, 'archive');
    goesOn.situation(500);
    const own = goesOn.decision({ layer: 0, side: 'v' });
    expect((await goesOn.why()).map(({ reason }) => reason)).not.toContain('degraded');
    expect(explain(goesOn.dir, own).guard).toMatchObject({ quality: 'degraded', stops: false });

    const moved = await Written.begin(open);
    moved.tried(400);
    moved.decision({ layer: 0, price: 1e-6 });
    moved.situation(420);
    moved.decision({ layer: 1, page: 1 });
    expect((await moved.why()).map(({ reason }) => reason)).toEqual(['moved', 'resting', 'dearer']);

    const lowest = await Written.begin(open, { floor: { k: 'rot4', v: 'rot4' } });
    lowest.tried(400);
    lowest.decision({ layer: 0, price: 1e-6 });
    lowest.situation(800);
    lowest.decision({ layer: 1, page: 1 });
    expect((await lowest.why()).map(({ reason }) => reason)).toEqual(['moved', 'lowest']);

    const cheaper = await Written.begin(open);
    cheaper.tried(400);
    cheaper.decision({ layer: 1, price: 1 });
    expect((await cheaper.why()).map(({ reason }) => reason)).toEqual(['cheaper']);
  });

  it('has an answer for every page of a recorded session, in words', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    recordSession(log, 'first');
    await log.close();
    for (let layer = 0; layer < 2; layer++)
      for (let page = 0; page < 9; page++) {
        const found = whyNot(dir, 'first', { layer, page });
        expect(found.map(({ side }) => side)).toEqual(['k', 'v']);
        for (const one of found) expect(one.answers.length).toBeGreaterThan(0);
        for (const [title, text] of whyNotText(found)) expect(`${title} ${text}`).not.toMatch(/undefined|NaN|null/);
      }
    expect(() => whyNot(dir, 'first', { layer: 2, page: 0 })).toThrowError(/has no layer 2/);
    expect(() => whyNot(dir, 'other', { layer: 0, page: 0 })).toThrowError(/no beginning/);
  });
});

describe('words', () => {
  const axis = (numbers: readonly number[], name: string): number =>
    numbers[AXES.findIndex((one) => one.name === name)]!;

  it('are a fingerprint and a filter that an index takes', () => {
    const { fingerprint, filter } = meaningOfWords('German novel, 25%, long');
    checkFilter(filter, SESSION_FIELDS);
    expect(fingerprint).toHaveLength(AXES.length);
    expect(filter.must).toHaveLength(2);
    expect(filter.must).toEqual(
      expect.arrayContaining([
        { field: 'effectiveBits', range: { min: 3, max: 5 } },
        { field: 'tokens', range: { min: 4096 } },
      ]),
    );
    // The language says more of the bytes of a token than the genre does, in whatever order they come.
    expect(meaningOfWords('novel german').fingerprint).toEqual(meaningOfWords('german novel').fingerprint);
    expect(axis(fingerprint, 'bytesPerToken')).toBeLessThan(axis(meaningOfWords('novel').fingerprint, 'bytesPerToken'));
    expect(axis(fingerprint, 'pressure')).toBeLessThan(axis(meaningOfWords('50%').fingerprint, 'pressure'));
  });

  it('may be models of the log, lengths and outcomes', () => {
    const { filter } = meaningOfWords('Tiny-Model 4k failed measured', new Map([['tiny-model', 'sha256:1']]));
    expect(filter.must).toEqual(
      expect.arrayContaining([
        { field: 'modelDigest', equals: 'sha256:1' },
        { field: 'tokens', range: { min: 3072, max: 5120 } },
        { field: 'reason', equals: 'error' },
        { field: 'meanKld', range: { min: 0 } },
      ]),
    );
  });

  it('that mean nothing are named', () => {
    expect(() => meaningOfWords('german poem, purple')).toThrowError(/'poem', 'purple'/);
    expect(() => meaningOfWords('a text of the')).toThrowError(/no word/);
    expect(() => meaningOfWords('constructor 0%')).toThrowError(/'constructor', '0%'/);
  });
});

describe('a session that nobody can open', () => {
  it('is told by its envelopes, and its neighbours in full', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, encrypt: true });
    const [seq] = recordSession(log, 'first');
    recordSession(log, 'second');
    await log.close();
    const before = await openLogQuery(dir).decisions({ limit: 1000 });
    destroySession(dir, 'first');
    const after = await openLogQuery(dir).decisions({ limit: 1000 });
    expect(after).toEqual(before.filter(({ session }) => session === 'second'));
    expect((await openLogQuery(dir).counts('session')).map(({ key }) => key)).toEqual(['second']);
    const events = timeline(dir, 'first');
    expect(events.map(({ kind }) => kind)).toEqual(['sealed']);
    expect(timelineText('first', events, 80)).toMatch(/was erased/);
    expect(() => readEntry(dir, seq!)).toThrowError(/was erased/);
    expect(unopenedText(readEnvelope(dir, seq!))).toContain('the session was erased');
    expect(() => whyNot(dir, 'first', { layer: 0, page: 0 })).toThrowError(/was erased/);
    expect(timeline(dir, 'second').at(-1)!.kind).toBe('close');
  });
});

describe('an explanation', () => {
  it('names what let a move through, and what else was in its plan', async () => {
    const written = await Written.begin(await beginning(), {}, 'price');
    written.tried(400, { bytes: 99_500, sealBytes: 1000 });
    const first = written.decision({ layer: 0 });
    const second = written.decision({ layer: 1 }, false);
    await written.why();
    const { guard, alternatives, sentences } = explain(written.dir, first);
    expect(guard).toMatchObject({ quality: 'healthy', pressure: 1.005, archive: 1 });
    expect(alternatives.map(({ seq }) => seq)).toEqual([second]);
    expect(sentences.find(({ title }) => title === 'beside')!.text).toContain('Refused in the same plan: layer 1');
    expect(sentences.find(({ title }) => title === 'guard')!.text).toContain(
      '100.5% of the budget: all formats are open',
    );
  });
});
