// Steps of several caches in one pass over the weights: every row has the bits that it has alone, in any company, and
// what befalls one of them is nobody else's affair.
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { runPass, type Step } from '../../../../engine/cache/pass.ts';
import type { LayerRows } from '../../../../engine/cache/types.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { seeded } from '../../../random.ts';
import { seedFrom, volume } from '../../../tier.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const { runtime } = onRuntime();
/** One for all, as in an engine. */
const pool = openPool(2 ** 30);
afterAll(() => pool.close());
const opened: Session[] = [];
afterEach(() => {
  for (const session of opened.splice(0)) session.close();
});

const KINDS: readonly SessionOptions[] = [
  { exact: true },
  { kvBudget: '35%', tokensExpected: 700 },
  { cacheTypes: 'rot4:rot2' },
  { kvBudget: '70%', tokensExpected: 700, latents: 'xq4' },
  { policy: 'uniform', kvBudget: '35%', tokensExpected: 700 },
  { kldBudget: 0.02, tokensExpected: 700 },
];

/** A session, and what it is to read in its next steps. */
class Walker {
  readonly session: Session;
  /** The residual stream behind the last token of each step. */
  readonly rows: Float32Array[] = [];
  readonly #steps: number[][];

  constructor(options: SessionOptions, steps: readonly number[][]) {
    const thresholds = defaultThresholds(runtime().shape.layers);
    this.session = Session.open(runtime(), { ...options, pool, log: null, thresholds });
    this.#steps = [...steps];
    opened.push(this.session);
  }

  get isDone(): boolean {
    return this.#steps.length === 0;
  }

  next(): Step {
    return { stepper: this.session, tokenIds: Int32Array.from(this.#steps.shift()!) };
  }

  ended(): void {
    this.session.governed.promised.end();
    this.rows.push(this.session.lastHidden!.slice());
  }

  /** What it has decided, and what it holds. */
  get state() {
    const { memory, decisions, refusedTrials, layers, summary } = this.session.report();
    return { memory, decisions, refusedTrials, layers, summary, tokens: [...this.session.tokens] };
  }
}

/** Tokens of one session in steps that end with each page: many of one token, and some of a whole page. */
function stepsOf(tokens: number, seed: number, random: () => number): number[][] {
  const all = ids(tokens, seed);
  const steps: number[][] = [];
  for (let at = 0; at < tokens; at += steps.at(-1)!.length) {
    const most = 128 - (at % 128);
    const wanted = random() < 0.75 ? 1 + Math.floor(random() * 3) : 1 + Math.floor(random() * 128);
    steps.push(all.slice(at, at + Math.min(most, wanted)));
  }
  return steps;
}

async function pass(walkers: readonly Walker[]): Promise<void> {
  expect(await runPass(walkers.map((walker) => walker.next()))).toEqual(walkers.map(() => null));
  for (const walker of walkers) walker.ended();
}

/** A session whose next step finds no room. */
async function almostFull(): Promise<Walker> {
  const options: SessionOptions = { kvBudget: '0.25MiB' };
  const pages = Array.from({ length: 12 }, (_, page) => ids(128, page + 3));
  const twin = new Walker(options, pages);
  let fitting = 0;
  while ((await runPass([twin.next()]))[0] === null) fitting++;
  const walker = new Walker(options, pages);
  for (let page = 0; page < fitting; page++) await pass([walker]);
  return walker;
}

describe('a pass', () => {
  it('gives every row the bits that it has alone, and every session its decisions', async () => {
    const random = seeded(seedFrom(11));
    for (let left = volume('passes'); left > 0; ) {
      const scripts = KINDS.map((options, at) => ({ options, steps: stepsOf(640, at + 1, random) }));
      const alone = scripts.map(({ options, steps }) => new Walker(options, steps));
      for (const walker of alone) while (!walker.isDone) await pass([walker]);
      const beside = scripts.map(({ options, steps }) => new Walker(options, steps));
      for (;;) {
        const waiting = beside.filter(({ isDone }) => !isDone);
        if (waiting.length === 0) break;
        const chosen = waiting.filter(() => random() < 0.7).sort(() => random() - 0.5);
        if (chosen.length === 0) continue;
        await pass(chosen);
        left--;
      }
      for (const [at, walker] of beside.entries()) {
        expect(walker.rows, `${at}`).toEqual(alone[at]!.rows);
        expect(walker.state, `${at}`).toEqual(alone[at]!.state);
        expect(walker.state.tokens.length).toBe(640);
      }
    }
  });

  it('leads to the same decisions however fast trials are', async () => {
    const random = seeded(5);
    for (let seed = 1; seed <= 6; seed++) {
      const steps = stepsOf(640, seed, random);
      const [fast, slow] = [new Walker(KINDS[1]!, steps), new Walker(KINDS[1]!, steps)];
      // Whoever asks without waiting finds all of them ended, or none.
      const { cache: ended } = fast.session;
      const finish = ended.finishTrials.bind(ended);
      Object.assign(ended, { finishTrials: () => finish(true) });
      const { cache: late } = slow.session;
      const wait = late.finishTrials.bind(late);
      Object.assign(late, { finishTrials: (waits: boolean) => (waits ? wait(true) : []) });
      for (const walker of [fast, slow]) while (!walker.isDone) await pass([walker]);
      expect(slow.state).toEqual(fast.state);
      expect(slow.rows).toEqual(fast.rows);
    }
  });

  it('goes on without a session that is closed, finds no room, or fails half-way', async () => {
    const steps = (seed: number): number[][] => [ids(128, seed), ids(100, seed + 1)];
    const alone = new Walker({ exact: true }, steps(1));
    await pass([alone]);
    await pass([alone]);
    const sound = new Walker({ exact: true }, steps(1));
    const closed = new Walker({ exact: true }, steps(2));
    const small = await almostFull();
    const torn = new Walker({ exact: true }, steps(4));
    await pass([sound, closed, torn]);
    closed.session.close();
    // In the third layer something of its own fails.
    const { governed } = torn.session;
    const inputs = governed.inputs.bind(governed);
    Object.assign(governed, {
      inputs: (...[layer, ...rest]: Parameters<typeof inputs>) => {
        if (layer === 2) throw new Error('half-way');
        return inputs(layer, ...rest);
      },
    });
    const outcomes = await runPass([closed, torn, small, sound].map((walker) => walker.next()));
    expect(outcomes.map((outcome) => outcome && String((outcome.error as Error).message))).toEqual([
      'the session was closed',
      'half-way',
      expect.stringContaining('budget'),
      null,
    ]);
    sound.ended();
    expect(sound.rows).toEqual(alone.rows);
    expect(sound.state).toEqual(alone.state);
    expect(small.session.tokens.length).toBe(small.session.cache.length());
    expect(small.session.tokens.length % 128).toBe(0);
    expect([torn.session.cache.length(1), torn.session.cache.length(2)]).toEqual([228, 128]);
  });

  it.each(['k', 'q'] as const)('goes on one by one where the call for all is refused, for %s of one', async (name) => {
    const steps = [ids(128, 1), ids(60, 2)];
    const alone = new Walker({ exact: true }, steps);
    const sound = new Walker({ exact: true }, steps);
    const broken = new Walker({ exact: true }, [ids(128, 3), ids(60, 4)]);
    await pass([alone]);
    await pass([alone]);
    await pass([broken, sound]);
    Object.assign(broken.session, {
      sees: (rows: LayerRows) => {
        if (rows.layer === 1) rows[name].fill(Number.NaN);
      },
    });
    const outcomes = await runPass([broken, sound].map((walker) => walker.next()));
    expect(outcomes).toMatchObject([{ error: { code: 'bad-value' } }, null]);
    sound.ended();
    expect(sound.rows).toEqual(alone.rows);
    expect(sound.state).toEqual(alone.state);
    // Of what was refused nothing is there; what was appended before it is.
    expect([0, 1, 2].map((layer) => broken.session.cache.length(layer))).toEqual([188, name === 'q' ? 188 : 128, 128]);
  });

  it('ends early when nobody is left in it', async () => {
    const walker = new Walker({ exact: true }, [ids(3), ids(3)]);
    walker.session.close();
    const [outcome] = await runPass([walker.next()]);
    expect((outcome!.error as { code: string }).code).toBe('closed');
  });
});
