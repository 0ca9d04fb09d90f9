// Planted faults on the reference model: what a session is told wrongly, and what happens to its pages, is seen within
// 256 tokens and costs at most 1.1 times the divergence of a session that was told nothing; without a fault no layer
// leaves 'healthy'. docs/lab/policy.md has what is measured where that is missed. Nothing shorter proves it: texts
// differ by more than a fault costs, so it takes the mean of many sessions.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { DamageReport } from '../../engine/cache/types.ts';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { Passage } from '../../lab/evaluate/passages.ts';
import { toldOtherwise, withFalseTrials } from '../../lab/evaluate/plants.ts';
import { geometricMean } from '../../lab/evaluate/results.ts';
import { Scorer } from '../../lab/evaluate/score.ts';
import { type Noticed, watched } from '../../lab/evaluate/watched.ts';
import { SIDES, type Side } from '../../native/index.ts';
import {
  type Course,
  createPolicy,
  defaultLaw,
  defaultThresholds,
  type Estimate,
  type LayerChange,
  type Policy,
  type ThresholdSet,
} from '../../policy/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const TOKENS = 2048;
const PLANTED_AT = 1280;
const SEEN_WITHIN = 256;
const COST_MOST = 1.1;
/** What first trials of a layer say is divided by this, over these tokens. */
interface FalseTrials {
  readonly layer: number;
  readonly by: number;
  readonly from: number;
  readonly to: number;
}

interface Run {
  readonly kld: number;
  readonly noticed: readonly Noticed[];
  /** Layers that were trusted, over all points. */
  readonly trusted: number;
  readonly course: Course;
  readonly damage: DamageReport;
}

let runtime: Runtime;
let scorer: Scorer;
let passages: readonly Passage[];

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
  scorer = new Scorer(runtime);
  const ids = (text: string): number[] => [...runtime.model.tokenizer.encode(text)];
  const chronicle = ids(ownText());
  const licence = ids(readFileSync(join(import.meta.dirname, '..', '..', 'LICENSE'), 'utf8'));
  const passage = (text: string, from: readonly number[], at: number): Passage => ({
    text: `${text} ${at}`,
    kind: text,
    ids: from.slice(at, at + TOKENS),
  });
  passages = [
    ...[0, 1700, 3400, 5100].map((at) => passage('chronicle', chronicle, at)),
    ...[0, 2000].map((at) => passage('licence', licence, at)),
  ];
});
afterAll(() => runtime.close());

/** The price policy, whose sessions are told false trials for a while. */
const falselyTried = ({ layer, by, from, to }: FalseTrials): Policy =>
  toldOtherwise(createPolicy('price'), (situation) => {
    const { tokens } = situation;
    return tokens < from || tokens >= to ? situation : withFalseTrials(situation, layer, by);
  });

/** Reads a passage within a share of f16; `plant` is done to the session at PLANTED_AT tokens. */
async function read(
  passage: Passage,
  thresholds: ThresholdSet = defaultThresholds(runtime.shape.layers),
  {
    kvBudget = '25%',
    originals = 'none',
    plant,
    falseTrials,
    worth = 0,
  }: {
    kvBudget?: string;
    originals?: 'memory' | 'none';
    plant?: (session: Session) => void;
    falseTrials?: FalseTrials;
    worth?: number;
  } = {},
): Promise<Run> {
  const options = {
    compareTokens: 512,
    kvBudget,
    tokensExpected: TOKENS,
    thresholds,
    originals,
    thresholdValues: { 'degraded.worth': worth },
  };
  const setup = await setupOf(runtime, options, { book: null, log: null });
  const noticed: Noticed[] = [];
  let trusted = 0;
  const policy = watched(falseTrials === undefined ? createPolicy('price') : falselyTried(falseTrials), {
    noticed: (change) => noticed.push(change),
    seen: (states) => (trusted += states.filter((state) => state.endsWith('/trusted')).length),
  });
  const session = Session.open(runtime, { ...setup, policy });
  try {
    await session.read(passage.ids.slice(0, PLANTED_AT));
    plant?.(session);
    await session.read(passage.ids.slice(PLANTED_AT));
    const { meanKld } = await scorer.against(passage, session.hiddenRows());
    const { damage } = session.report();
    return { kld: meanKld, noticed, trusted, course: session.governed.policy.course!()!, damage };
  } finally {
    session.close();
  }
}

const leavesHealthy = ({ state }: LayerChange): boolean => state.split('/')[1] !== 'healthy';

/** Puts the codes of another page of the same format in place of a side's own. → whether there were two such pages */
function damage({ cache }: Session, layer: number, side: Side): boolean {
  const { pages } = cache.table(layer);
  const forms = Array.from({ length: pages }, (_, page) => cache.format(layer, page, side));
  for (const [page, form] of forms.entries()) {
    const other = forms.findLastIndex((it, at) => it === form && at !== page);
    if (form === 'q8' || page === 0 || other < 0) continue;
    cache.exchangeSide(layer, page, side, cache.exportSide(layer, other, side));
    return true;
  }
  return false;
}

describe('a planted fault', () => {
  it('is not seen where there is none', async () => {
    const alarms: string[] = [];
    for (const passage of passages)
      for (const kvBudget of ['20%', '25%', '30%'])
        for (const { layer, state, source, tokens } of (await read(passage, undefined, { kvBudget })).noticed)
          alarms.push(`${passage.text} at ${kvBudget}: layer ${layer} is ${state} at ${tokens} by ${source}`);
    // Under 5% of 18 windows.
    expect(alarms).toEqual([]);
  });

  it.each([
    [1, 4],
    [2, 3],
  ])(
    'in a threshold file, coefficients of layers %i and %i a hundred times too small, is seen and costs nothing',
    async (...wrong) => {
      const { layers } = runtime.shape;
      const law = defaultLaw(layers);
      const low = (of: readonly Estimate[]): Estimate[] =>
        of.map((one, layer) => (wrong.includes(layer) ? { ...one, value: one.value / 100 } : one));
      const coefficient = { k: low(law.coefficient.k), v: low(law.coefficient.v) };
      for (const passage of passages.slice(0, 2)) {
        const { kld, noticed } = await read(passage, { ...defaultThresholds(layers), law: { ...law, coefficient } });
        const seen = noticed.filter((it) => it.tokens <= SEEN_WITHIN && leavesHealthy(it));
        expect(seen.map(({ layer, source }) => [layer, source])).toEqual(wrong.map((layer) => [layer, 'gain']));
        expect(kld / (await read(passage)).kld).toBeLessThanOrEqual(COST_MOST);
      }
    },
  );

  it('in what earlier sessions say, that errors never last, is trusted by few layers and costs nothing', async () => {
    const { course } = await read(passages[0]!);
    const never = (of: readonly Estimate[]): Estimate[] => of.map(() => ({ value: 0.01, sd: 0.1, samples: 50 }));
    const wrong: Course = {
      ...course,
      persistence: { k: never(course.persistence.k), v: never(course.persistence.v) },
      left: never(course.left),
    };
    const trusted = { true: 0, wrong: 0 };
    for (const passage of passages.slice(1)) {
      const told = async (of: Course): Promise<Run> =>
        read(passage, { ...defaultThresholds(runtime.shape.layers), course: of });
      const [sound, misled] = [await told(course), await told(wrong)];
      trusted.true += sound.trusted;
      trusted.wrong += misled.trusted;
      expect(misled.kld / (await read(passage)).kld, passage.text).toBeLessThanOrEqual(COST_MOST);
    }
    expect(trusted.true).toBeGreaterThan(100);
    expect(trusted.wrong / trusted.true).toBeLessThan(0.1);
  });

  it('of codes, those of another page in place of its own, is seen in every layer and side', async () => {
    for (const passage of [passages[0]!, passages[4]!])
      for (let layer = 0; layer < runtime.shape.layers; layer++)
        for (const side of SIDES) {
          let isPlanted = false;
          const plant = (session: Session): void => {
            isPlanted = damage(session, layer, side);
          };
          const { noticed } = await read(passage, undefined, { plant });
          if (!isPlanted) continue;
          const seen = noticed.filter((it) => leavesHealthy(it) && it.tokens <= PLANTED_AT + SEEN_WITHIN);
          expect(
            seen.map((it) => [it.layer, it.source]),
            `${side} of layer ${layer}`,
          ).toContainEqual([layer, 'codes']);
        }
  });

  it('in the trials of a layer, that say a twentieth, costs as much where its sides come back from originals', async () => {
    const costs: number[] = [];
    for (const passage of [passages[1]!, passages[2]!, passages[4]!])
      for (const layer of [1, 4]) {
        const falseTrials: FalseTrials = { layer, by: 20, from: 512, to: TOKENS };
        const told = { originals: 'memory', falseTrials } as const;
        const { kld, noticed } = await read(passage, undefined, told);
        expect(noticed.filter(leavesHealthy).map((it) => [it.layer, it.source])).toContainEqual([layer, 'error']);
        costs.push((await read(passage, undefined, { ...told, worth: 1 })).kld / kld);
      }
    const mean = geometricMean(costs);
    expect(mean).toBeGreaterThan(1 / COST_MOST);
    expect(mean).toBeLessThan(COST_MOST);
  });

  it('in the trials of a layer is told, and costs little in the mean', async () => {
    const costs: number[] = [];
    for (const passage of passages) {
      const { kld: sound } = await read(passage);
      for (const layer of [1, 4])
        for (const fault of [
          { by: 100, from: 0, to: TOKENS },
          { by: 100, from: 0, to: 0.75 * TOKENS },
          { by: 20, from: 512, to: TOKENS },
        ]) {
          const { kld, noticed } = await read(passage, undefined, { falseTrials: { layer, ...fault } });
          expect(noticed.filter(leavesHealthy), passage.text).toContainEqual(
            expect.objectContaining({ layer, source: 'error' }),
          );
          costs.push(kld / sound);
        }
    }
    expect(geometricMean(costs)).toBeLessThanOrEqual(COST_MOST);
  });

  it('of codes, the same, is made again of originals where they are kept, and costs nothing', async () => {
    for (const passage of [passages[0]!, passages[4]!]) {
      const { kld: sound } = await read(passage);
      for (let layer = 0; layer < runtime.shape.layers; layer++)
        for (const side of SIDES) {
          let isPlanted = false;
          const plant = (session: Session): void => {
            isPlanted = damage(session, layer, side);
          };
          const { kld, noticed, damage: found } = await read(passage, undefined, { originals: 'memory', plant });
          if (!isPlanted) continue;
          expect(found).toEqual({ sides: 1, mendedSides: 1 });
          expect(kld / sound, `${side} of layer ${layer}`).toBeLessThanOrEqual(COST_MOST);
          // What is mended is no reason to doubt a layer.
          expect(noticed.filter(leavesHealthy)).toEqual([]);
        }
    }
  });
});
