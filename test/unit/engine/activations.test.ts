// Activations of 8 bits where a calibration says that they cost little: a choice is measured, carried out, logged and
// told; rows have the bits that they have alone; and what does not fit a choice is refused or said.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { runPass } from '../../../engine/cache/pass.ts';
import { createEngine } from '../../../engine/index.ts';
import type { SessionOptions } from '../../../engine/options/types.ts';
import { parkedBytes } from '../../../engine/session/park/park.ts';
import { parseParked } from '../../../engine/session/park/parked-file.ts';
import { resumeSession } from '../../../engine/session/park/resume.ts';
import type { Session } from '../../../engine/session/session.ts';
import { activationCosts } from '../../../engine/state/activations.ts';
import { logDir, memoryDir } from '../../../engine/state/folder.ts';
import { productsOf } from '../../../engine/transformer/activations.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { importThresholds, readThresholdFile } from '../../../memory/index.ts';
import { type ActivationCosts, chooseActivations, defaultThresholds } from '../../../policy/index.ts';
import { openWitnessLog, sessionReport, timeline } from '../../../witness/index.ts';
import { seeded } from '../../random.ts';
import { refused } from '../../refusal.ts';
import { seedFrom } from '../../tier.ts';
import { entriesOf, ids, MODEL } from './on-reference.ts';
import { onRuntime } from './on-runtime.ts';

const folder = (): string => mkdtempSync(join(tmpdir(), 'palimpsest-activations-'));
const LAW = join(import.meta.dirname, '../../../models/laws/reference.json');
const shipped = readThresholdFile(LAW);
const costs = (factor: number): ActivationCosts => ({
  ...shipped.activations!,
  together: { ...shipped.activations!.together, value: factor },
});
/** Twenty times as dear as it is, so that some matrices stay as they are. */
const SOME = costs(20);

const { runtime: exact, open: openExact } = onRuntime();
const { runtime: rounded, open: openRounded } = onRuntime({ activationCosts: () => SOME });

/** The residual stream behind the last token of some steps. */
async function rowsOf(session: Session, steps: readonly number[][]): Promise<Float32Array[]> {
  const rows: Float32Array[] = [];
  for (const step of steps) {
    await session.read(step);
    rows.push(session.lastHidden!.slice());
  }
  return rows;
}

describe('a runtime', () => {
  it('takes 16 bits where nobody measured or asked, and chooses by what was measured', () => {
    expect(exact().activations).toBe(null);
    const choice = rounded().activations!;
    expect(choice).toEqual(chooseActivations(SOME, productsOf(rounded().model.config)));
    expect(choice.share).toBeGreaterThan(0.1);
    expect(choice.share).toBeLessThan(0.9);
  });

  it('has no choice in a dense half that has none', async () => {
    const floats = await Runtime.open({ model: MODEL, threads: 1, dense: 'exact', activationCosts: () => SOME });
    expect(floats.activations).toBe(null);
    await floats.close();
  });

  it('is near what it is without, and not the same', async () => {
    const steps = [ids(100), ids(30, 2)];
    const [ours, theirs] = [
      await rowsOf(openRounded({ exact: true }), steps),
      await rowsOf(openExact({ exact: true }), steps),
    ];
    for (const [at, row] of ours.entries()) {
      expect(row).not.toEqual(theirs[at]);
      const size = Math.hypot(...theirs[at]!);
      expect(Math.hypot(...row.map((x, i) => x - theirs[at]![i]!)) / size).toBeLessThan(0.05);
    }
  });

  it('gives rows the bits that they have alone, in any company', async () => {
    const random = seeded(seedFrom(17));
    const kinds: readonly SessionOptions[] = [
      { exact: true },
      { kvBudget: '35%', tokensExpected: 700 },
      { cacheTypes: 'rot4:rot2' },
      { policy: 'uniform', kvBudget: '35%', tokensExpected: 700 },
    ];
    const scripts = kinds.map((_, at) => {
      const all = ids(640, at + 1);
      const steps: number[][] = [];
      for (let from = 0; from < all.length; from += steps.at(-1)!.length) {
        const most = Math.min(128 - (from % 128), random() < 0.7 ? 1 + Math.floor(3 * random()) : 128);
        steps.push(all.slice(from, from + 1 + Math.floor(most * random())));
      }
      return steps;
    });
    const step = async (sessions: readonly Session[], tokens: readonly (readonly number[])[]): Promise<void> => {
      const pass = sessions.map((stepper, at) => ({ stepper, tokenIds: Int32Array.from(tokens[at]!) }));
      expect(await runPass(pass)).toEqual(sessions.map(() => null));
      for (const session of sessions) session.governed.promised.end();
    };
    const alone: Float32Array[][] = [];
    for (const [at, options] of kinds.entries()) {
      const [session, rows] = [openRounded(options), [] as Float32Array[]];
      for (const tokens of scripts[at]!) {
        await step([session], [tokens]);
        rows.push(session.lastHidden!.slice());
      }
      alone.push(rows);
      session.close();
    }
    const sessions = kinds.map((options) => openRounded(options));
    const beside: Float32Array[][] = kinds.map(() => []);
    for (;;) {
      const waiting = kinds.flatMap((_, at) => (beside[at]!.length < scripts[at]!.length ? [at] : []));
      if (waiting.length === 0) break;
      const chosen = waiting.filter(() => random() < 0.7).sort(() => random() - 0.5);
      if (chosen.length === 0) continue;
      await step(
        chosen.map((at) => sessions[at]!),
        chosen.map((at) => scripts[at]![beside[at]!.length]!),
      );
      for (const at of chosen) beside[at]!.push(sessions[at]!.lastHidden!.slice());
    }
    expect(beside).toEqual(alone);
    for (const session of sessions) session.close();
  });
});

describe('an engine', () => {
  it('uses what comes with the package where it is asked, and says so in the log, the timeline and its report', async () => {
    const stateDir = folder();
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir, activations: 'auto' });
    const session = await engine.openSession({});
    const { activations } = await session.report();
    await session.generate(ids(60), { maxTokens: 2 }).result;
    expect(activations).toEqual(engine.info.activations);
    expect(activations!.share).toBe(1);
    expect(activations!.expectedNats).toBeLessThan(2e-4);
    await session.close();
    await engine.close();
    expect(entriesOf(stateDir, session.id, 'open')[0]!.body.activations).toEqual(activations);
    expect(timeline(logDir(stateDir), session.id)[0]!.text).toContain('Activations: 8 bits in 43 of 43 matrices');
    expect(sessionReport(logDir(stateDir), session.id)).toContain('8 bits in 43 of 43 matrices');
  });

  it('says nothing of it in the log where all have 16 bits, which is so by itself', async () => {
    const stateDir = folder();
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir });
    const session = await engine.openSession({});
    expect(await session.report()).toMatchObject({ activations: null });
    expect(engine.info.activations).toBe(null);
    await session.close();
    await engine.close();
    expect(entriesOf(stateDir, session.id, 'open')[0]!.body).not.toHaveProperty('activations');
  });

  it('goes by what was imported into its state folder, and refuses a stated divergence without room for it', async () => {
    const stateDir = folder();
    const { digest, shape } = shipped.model;
    importThresholds(memoryDir(stateDir), { ...shipped, activations: SOME }, { modelDigest: digest, shape });
    expect(activationCosts(digest, stateDir)).toEqual(SOME);
    expect(activationCosts(digest, null)).toEqual(shipped.activations);
    expect(activationCosts('another', stateDir)).toBe(null);
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir, activations: 'auto' });
    const { expectedNats } = engine.info.activations!;
    expect(engine.info.activations).toEqual(rounded().activations);
    const { code, values } = await refused(engine.openSession({ kldBudget: 9 * expectedNats }));
    expect([code, values]).toEqual(['bad-argument', { kldBudget: 9 * expectedNats, expectedNats }]);
    await (await engine.openSession({ kldBudget: 10.1 * expectedNats })).close();
    await engine.close();
  });

  it('says in its metrics that it has no choice to make, and only then', async () => {
    for (const [dense, expected] of [
      ['exact', 1],
      ['auto', 0],
    ] as const) {
      const engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, dense, activations: 'auto' });
      expect(await engine.metrics()).toMatch(new RegExp(`fallback_total\\{reason="activations"\\} ${expected}\\n`));
      await engine.close();
    }
  });

  it('takes 16 or auto', async () => {
    const error = await refused(createEngine({ model: MODEL, stateDir: null, activations: 8 as 16 }));
    expect(error.code).toBe('bad-argument');
  });
});

describe('a parked session', () => {
  it('names the choice, and one that goes on under another says so', async () => {
    const session = openRounded({});
    await session.read(ids(50));
    const bytes = parkedBytes(session);
    expect(parseParked(bytes, 'parked').head.eightBit).toEqual(rounded().activations!.eightBit);
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const noted: string[] = [];
    for (const runtime of [rounded(), exact()]) {
      const setup = { log, thresholds: defaultThresholds(runtime.shape.layers) };
      const { session: back, resumed } = await resumeSession(runtime, setup, parseParked(bytes, 'parked'));
      expect(resumed).toMatchObject({ by: 'pages', why: null });
      back.close();
      await log.flush();
      noted.push(
        timeline(dir, back.id)
          .map(({ text }) => text)
          .find((text) => text.startsWith('Goes on'))!,
      );
    }
    await log.close();
    expect(noted[0]).toMatch(/parked with 50 tokens\.$/);
    expect(noted[1]).toMatch(/parked with 50 tokens; its pages were computed with activations of 8 bits/);
  });

  it('has no such field where all have 16 bits', async () => {
    const session = openExact({});
    await session.read(ids(5));
    expect(parseParked(parkedBytes(session), 'parked').head).not.toHaveProperty('eightBit');
  });
});
