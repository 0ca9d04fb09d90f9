/**
 * Measures how much of the time of a session under a budget goes to deciding, trials, moves and the log, in the prompt
 * and in decode steps, and how much of that is for what a session learns while it runs.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { Session } from '../../engine/session/session.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { withThresholds } from '../../lab/evaluate/variants.ts';
import { defaultThresholds, type ThresholdSet } from '../../policy/index.ts';
import { openWitnessLog } from '../../witness/index.ts';
import type { Bench } from './bench.ts';
import { median } from './measure.ts';

/**
 * How often the session is repeated. It always decides the same, so if a step takes longer in one run, that is due to
 * the machine.
 */
const SESSIONS = 5;

/**
 * What switches off everything that a session measures after the first trial of a page: it then decides by that alone.
 */
const UNLEARNING = { 'trial.again': 0, 'canary.share': 0, 'probe.share': 0, 'probe.share.kld': 0 };

const PARTS = ['deciding', 'trials', 'moves', 'log'] as const;

/** The milliseconds of every part. */
type Spent = readonly number[];

interface Lap {
  readonly ms: number;
  readonly spent: Spent;
}

interface Run {
  readonly prompt: Lap;
  readonly denseMs: number;
  readonly attentionMs: number;
  readonly steps: readonly Lap[];
}

const share = (part: number, whole: number): string => `${((100 * part) / whole).toFixed(2)}%`;
const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);
const least = (numbers: readonly number[]): number => Math.min(...numbers);

/** `model`: a file or a name; left out: the one of the settings. */
export async function session(bench: Bench, model: string = bench.settings.model): Promise<void> {
  const { settings, say } = bench;
  const { steps, kvBudget: budget } = settings;
  const threads = settings.threads[0]!;
  const runtime = await Runtime.open({ model, threads });
  const longest = Math.max(0, ...(settings.tokens ?? [])) || 4096;
  const tokens = Math.min(longest, runtime.model.config.contextLength - steps);
  const ids = runtime.model.tokenizer.encode(ownText(tokens * 6)).slice(0, tokens + steps);
  const whole = defaultThresholds(runtime.shape.layers);
  const runs: Run[] = [];
  const bare: Run[] = [];
  for (let i = 0; i < Math.min(SESSIONS, settings.rounds); i++) {
    runs.push(await runOnce(runtime, ids, tokens, budget, whole));
    bare.push(await runOnce(runtime, ids, tokens, budget, withThresholds(whole, UNLEARNING)));
  }
  await runtime.close();
  say(`\nsession of ${tokens} tokens and ${steps} steps, budget ${budget}, threads: ${threads}, ${runs.length} times`);
  for (const [name, typical] of [
    ['median', median],
    ['least', least],
  ] as const) {
    tell(say, name, joined(runs, typical));
  }
  tellLearning(say, joined(runs, median), joined(bare, median));
}

/** What pages tried again, canaries and gain probes add. */
function tellLearning(say: Bench['say'], whole: Run, bare: Run): void {
  const plain = sum(bare.steps.map(({ ms }) => ms));
  const added = (laps: (run: Run) => readonly Lap[]): number =>
    sum(laps(whole).map(({ spent }) => sum(spent))) - sum(laps(bare).map(({ spent }) => sum(spent)));
  const prompt = added((run) => [run.prompt]);
  const steps = added((run) => run.steps);
  say(
    `learning adds ${share(prompt, bare.prompt.ms)} to the prefill and ${share(steps, plain)} to the decode steps (goal: under 1% and 0.2%)`,
  );
}

/** The typical times of every step. */
function joined(runs: readonly Run[], typical: (numbers: readonly number[]) => number): Run {
  const lap = (of: (run: Run) => Lap): Lap => {
    const spent = PARTS.map((_, part) => typical(runs.map((run) => of(run).spent[part]!)));
    // The parts of a step and the rest of it are taken separately, so that a slow one is not hidden by a fast one.
    return { ms: typical(runs.map((run) => of(run).ms - sum(of(run).spent))) + sum(spent), spent };
  };
  return {
    prompt: lap(({ prompt }) => prompt),
    denseMs: typical(runs.map(({ denseMs }) => denseMs)),
    attentionMs: typical(runs.map(({ attentionMs }) => attentionMs)),
    steps: runs[0]!.steps.map((_, i) => lap((run) => run.steps[i]!)),
  };
}

function tell(say: Bench['say'], name: string, { prompt, denseMs, attentionMs, steps }: Run): void {
  const shares = (spent: Spent, whole: number): string =>
    `${PARTS.map((part, i) => `${part} ${share(spent[i]!, whole)}`).join(', ')}: together ${share(sum(spent), whole)}`;
  say(
    `${name} of prefill ${prompt.ms.toFixed(0)} ms: dense ${share(denseMs, prompt.ms)}, attention ${share(attentionMs, prompt.ms)}`,
  );
  say(`  ${shares(prompt.spent, prompt.ms)} (goal: under 15%)`);
  const all = sum(steps.map(({ ms }) => ms));
  const spent = PARTS.map((_, part) => sum(steps.map((step) => step.spent[part]!)));
  const plain = median(steps.map((step) => step.ms - sum(step.spent)));
  const largest = Math.max(...steps.map((step) => sum(step.spent)));
  say(
    `${name} of decode: a step takes ${plain.toFixed(2)} ms, and deciding ${((1000 * sum(spent)) / steps.length).toFixed(1)} µs`,
  );
  say(`  ${shares(spent, all)} (goal: under 1%)`);
  say(`  largest of one step ${largest.toFixed(2)} ms, +${share(largest, plain)} (goal: under +20%)`);
}

async function runOnce(
  runtime: Runtime,
  ids: readonly number[],
  tokens: number,
  budget: string,
  thresholds: ThresholdSet,
): Promise<Run> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const log = await openWitnessLog({ dir });
  const opened = Session.open(runtime, {
    kvBudget: budget,
    tokensExpected: ids.length,
    log,
    thresholds,
  });
  const spent = (): Spent => {
    const { decideMs, trialMs, transcodeMs, witnessMs } = opened.overhead;
    return [decideMs, trialMs, transcodeMs, witnessMs];
  };
  const timed = async (work: () => Promise<unknown>): Promise<Lap> => {
    const before = spent();
    const start = performance.now();
    await work();
    return { ms: performance.now() - start, spent: spent().map((ms, part) => ms - before[part]!) };
  };
  // More tokens are generated after this, but sealing the prompt's last page is counted with the prompt.
  const prompt = await timed(() => opened.read(ids.slice(0, tokens), { tokensFollow: true }));
  const { denseMs, attentionMs } = opened.times;
  const steps: Lap[] = [];
  for (const id of ids.slice(tokens)) steps.push(await timed(() => opened.read([id])));
  opened.close();
  await log.close();
  rmSync(dir, { recursive: true });
  return { prompt, denseMs, attentionMs, steps };
}
