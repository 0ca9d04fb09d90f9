/**
 * Sessions that write at once, with an adapter each and without: tokens of all of them in a second, attention, sampling
 * and all else included. The ways take turns; with one thread it is processor time. Adapters are random, of all
 * matrices.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { adapterWith } from '../../engine/adapters/read.ts';
import { AdapterRegistry } from '../../engine/adapters/registry.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import type { Engine } from '../../engine/index.ts';
import { expectedShapes } from '../../engine/transformer/config.ts';
import { DENSE_SLOTS } from '../../native/index.ts';
import { endless, type Loading, open, textsOf } from './crowd-engine.ts';
import { alternate, median, now } from './measure.ts';

export interface AdapterSessionsRow {
  readonly model: string;
  readonly sessions: number;
  readonly rank: number;
  /** Each has read so many tokens before it writes. */
  readonly depth: number;
  readonly tokensPerSecond: number;
  readonly adaptedTokensPerSecond: number;
  /** Of the pairs of passes. */
  readonly ratio: number;
}

interface Plan {
  readonly sessions: number;
  readonly rank: number;
  readonly depth: number;
  readonly tokens: number;
  readonly rounds: number;
}

const nameOf = (adapter: number): string => `adapter ${adapter}`;

function register(registry: AdapterRegistry, { info: { config } }: Engine, { sessions, rank }: Plan): void {
  const shapes = expectedShapes(config);
  for (let adapter = 0; adapter < sessions; adapter++) {
    const random = seeded(adapter + 1);
    const values = (count: number): Float32Array => Float32Array.from({ length: count }, () => (random() - 0.5) / 32);
    const added = Array.from({ length: config.layers }, (_, layer) => layer).flatMap((layer) =>
      DENSE_SLOTS.map((slot) => {
        const [outputs = 0, inputs = 0] = shapes.get(`${layer}.${slot}`)!;
        return { layer, slot, rank, a: values(rank * inputs), b: values(rank * outputs) };
      }),
    );
    registry.add(nameOf(adapter), adapterWith('PEFT', added), { config });
  }
}

/** Tokens in a second of sessions that have read their texts. */
async function writing(engine: Engine, threads: number, plan: Plan, isAdapted: boolean): Promise<number> {
  const texts = await textsOf(engine, plan.sessions, plan.depth);
  const sessions = await Promise.all(
    texts.map(async (text, at) => {
      const session = await engine.openSession(isAdapted ? { adapters: [{ name: nameOf(at) }] } : {});
      await session.read(text);
      return session;
    }),
  );
  const start = now(threads);
  await Promise.all(sessions.map((session) => session.generate(null, endless(engine, plan.tokens)).result));
  const seconds = now(threads) - start;
  await Promise.all(sessions.map((session) => session.close()));
  return (plan.sessions * plan.tokens) / seconds;
}

export async function adapterSessionsRow(loading: Loading, plan: Plan): Promise<AdapterSessionsRow> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-adapters-'));
  const engine = await open(loading, { stateDir: dir, adapters: {} });
  try {
    register(new AdapterRegistry(dir), engine, plan);
    const subjects = [false, true].map((isAdapted) => ({
      run: () => writing(engine, loading.threads, plan, isAdapted),
    }));
    // Code is compiled, and adapters are read, before anything counts.
    for (const { run } of subjects) await run();
    const [plain, adapted] = await alternate(subjects, plan.rounds);
    const { sessions, rank, depth } = plan;
    return {
      ...{ model: engine.info.name, sessions, rank, depth },
      ...{ tokensPerSecond: median(plain!), adaptedTokensPerSecond: median(adapted!) },
      ratio: median(adapted!.map((one, at) => one / plain![at]!)),
    };
  } finally {
    await engine.close();
    rmSync(dir, { recursive: true });
  }
}
