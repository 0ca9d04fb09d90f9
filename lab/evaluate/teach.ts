/**
 * State folders that real sessions of an engine filled: prompts read within budgets, logged, learned from and closed,
 * as any caller's are. The law that they begin with is imported first and stands in place of the one that ships, which
 * was fitted to the kinds that are scored.
 */
import { cpSync, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { lawOf, thresholdsOf } from '../../engine/calibrate/fit.ts';
import { readMeasured } from '../../engine/calibrate/measured.ts';
import { memoryDir } from '../../engine/state/folder.ts';
import { createEngine, type Engine } from '../../engine/thread/engine.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { importThresholds, type ThresholdFile, type ThresholdTarget, toThresholdFile } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { defaultLaw, defaultThresholds, type ThresholdSet } from '../../policy/index.ts';
import { lessonOf, MEASURED } from './passages.ts';
import { budgetOptions } from './score.ts';

/** Lengths and budgets that lessons take in turn. */
const LESSONS: readonly { readonly tokens: number; readonly budget: string }[] = [
  { tokens: 2048, budget: '25%' },
  { tokens: 3072, budget: '20%' },
  { tokens: 1536, budget: 'kld:0.01' },
  { tokens: 2048, budget: '30%' },
  { tokens: 4096, budget: '20%' },
];
/** One lesson in so many is compared with the exact cache, as `run --compare` does. */
const COMPARED_EVERY = 4;

export interface School {
  readonly runtime: Runtime;
  readonly dense: 'auto' | 'exact';
  readonly cacheDir: string;
  /** Folder of the states. */
  readonly dir: string;
  readonly say: (line: string) => void;
}

/**
 * The state folder after the first `count` lessons on these kinds, one of each in turn. Made from the longest one that
 * is there already. The folder has its name only once it is complete. `isCalibrated`: sessions begin with a law that
 * was calibrated on these kinds alone, and otherwise with what is assumed of any model.
 */
export async function stateAfter(
  school: School,
  kinds: readonly string[],
  count: number,
  isCalibrated: boolean,
): Promise<string> {
  const folder = (n: number): string => join(school.dir, `${kinds.join('+')}-${isCalibrated ? 'calibrated-' : ''}${n}`);
  if (existsSync(folder(count))) return folder(count);
  mkdirSync(school.dir, { recursive: true });
  let done = count - 1;
  while (done > 0 && !existsSync(folder(done))) done--;
  const working = `${folder(count)}.part`;
  rmSync(working, { recursive: true, force: true });
  if (done > 0) cpSync(folder(done), working, { recursive: true });
  else {
    mkdirSync(working);
    importThresholds(memoryDir(working), ...begunWith(school, isCalibrated ? kinds : null));
  }
  const engine = await createEngine({
    model: school.runtime.model.path,
    dense: school.dense,
    threads: school.runtime.threads,
    cacheDir: school.cacheDir,
    stateDir: working,
  });
  try {
    for (let n = done; n < count; n++)
      school.say(`  lesson ${n + 1} of ${count}: ${await teach(engine, school, kinds, n)}`);
  } finally {
    await engine.close();
  }
  renameSync(working, folder(count));
  return folder(count);
}

/** The law calibrated on these kinds, on none with null, as a threshold file for the model. */
function begunWith({ runtime }: School, kinds: readonly string[] | null): [ThresholdFile, ThresholdTarget] {
  const { model, shape } = runtime;
  const target = { modelDigest: model.digest, shape };
  const set = kinds === null ? null : calibrated(model.digest, kinds);
  const assumed = { ...defaultThresholds(shape.layers), law: defaultLaw(shape.layers) };
  return [toThresholdFile(set ?? assumed, target, null), target];
}

/** null where none of these kinds was measured with this model. */
function calibrated(modelDigest: string, kinds: readonly string[]): ThresholdSet | null {
  const { settings, windows } = readMeasured(MEASURED);
  const known = windows.filter(({ text }) => kinds.includes(text));
  return settings.modelDigest !== modelDigest || known.length === 0
    ? null
    : thresholdsOf(lawOf({ settings, windows: known }));
}

async function teach(engine: Engine, { runtime }: School, kinds: readonly string[], n: number): Promise<string> {
  const kind = kinds[n % kinds.length]!;
  const round = Math.floor(n / kinds.length);
  // Shifted by one each round, or every kind would have one budget throughout.
  const { tokens, budget } = LESSONS[(n + round) % LESSONS.length]!;
  const compared = n % COMPARED_EVERY === COMPARED_EVERY - 1;
  const what = `${kind}, ${tokens} tokens, ${budget}${compared ? ', compared' : ''}`;
  const ids = lessonOf(runtime.model.tokenizer, kind, round, tokens - 1);
  const session = await engine.openSession({
    ...budgetOptions(budget),
    tokensExpected: tokens,
    ...(compared ? { compareTokens: 512 } : {}),
  });
  try {
    await session.generate(ids, { maxTokens: 1 }).result;
    if (compared) await session.compare();
  } catch (error) {
    if (!(error instanceof KvError && error.code.startsWith('budget-'))) throw error;
    await session.close('error');
    return `${what}: ${error.code}`;
  }
  await session.close();
  return what;
}
