/**
 * `npm run bench -- activations --model NAME` measures a model with activations of 16 bits in all matrices, of 8 in
 * those that `activations: 'auto'` chooses, and of 8 in all: the divergence on texts that no calibration has seen
 * (evaluation-windows.json), and the time of a prompt of 512 tokens and of steps of 1, 8 and 16 rows, in turns. With
 * one thread it is processor time. With --tokens N, instead, the divergence of caches that read so many tokens of one
 * text of each kind, within budgets. Texts are those of `npm run fetch:texts`.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Session } from '../../engine/session/session.ts';
import { activationCosts } from '../../engine/state/activations.ts';
import { applyActivations, hasPlanes } from '../../engine/transformer/activations.ts';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { textOf } from '../../lab/evaluate/texts.ts';
import { KvError } from '../../native/index.ts';
import { type ActivationChoice, defaultThresholds } from '../../policy/index.ts';
import { activationText } from '../../witness/index.ts';
import { now, typical } from './measure.ts';
import { type RoundedQuality, roundedQuality } from './rounded-quality.ts';
import { columns, fixed } from './table.ts';

/** Tokens of a text that are scored, and of a prompt that is timed. */
const TOKENS = 512;
const STEPS = [1, 8, 16];

interface Window {
  readonly kind: string;
  readonly file: string;
  readonly from: number;
  readonly characters: number;
}

/** Who takes part, in this order. */
const WAYS = ['16', 'auto', '8'] as const;
type Way = (typeof WAYS)[number];

export interface ActivationRow {
  readonly model: string;
  readonly isa: string;
  readonly threads: number;
  readonly way: Way;
  /** By text: KLD from 16 bits in nats, the mean over 512 tokens. */
  readonly kld: Readonly<Record<string, number>>;
  /** Milliseconds of a prompt of 512 tokens. */
  readonly promptMs: number;
  /** Of the dense half, by the rows of a step. */
  readonly stepMs: Readonly<Record<string, number>>;
}

/** What is scored where nobody names other texts: those that no calibration has seen. */
export function heldOut(root: string): (readonly [string, string])[] {
  const { windows } = JSON.parse(readFileSync(join(root, 'scripts', 'evaluation-windows.json'), 'utf8')) as {
    readonly windows: readonly Window[];
  };
  return windows.map(({ kind, file, from, characters }) => [
    `${kind} ${file.replace(/^.*\//, '')} ${from}`,
    textOf(file).slice(from, from + characters),
  ]);
}

/** The first text of each kind, by the name of the kind. */
function onePerKind(texts: readonly (readonly [string, string])[]): (readonly [string, string])[] {
  const kinds = new Map<string, string>();
  for (const [name, text] of texts) {
    const kind = name.split(' ')[0]!;
    if (!kinds.has(kind)) kinds.set(kind, text);
  }
  return [...kinds];
}

const opened = (runtime: Runtime): Session =>
  Session.open(runtime, {
    ...{ exact: true, tokensExpected: TOKENS },
    ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers) },
  });

/** The dense half of one step of some rows: seconds. */
async function stepOf({ dense, model, threads }: Runtime, rows: number): Promise<number> {
  const { layers, queryHeads, headDim } = model.config;
  const attention = new Float32Array(rows * queryHeads * headDim).fill(0.1);
  const ids = Int32Array.from({ length: rows }, (_, row) => 100 + row);
  const start = now(threads);
  let { x } = await dense.first(dense.embed(ids), rows);
  for (let layer = 0; layer < layers - 1; layer++) ({ x } = await dense.next(layer, attention, x, rows));
  await dense.logits(await dense.last(attention, x, rows), rows);
  return now(threads) - start;
}

async function promptOf(runtime: Runtime, ids: readonly number[]): Promise<number> {
  const session = opened(runtime);
  const start = now(runtime.threads);
  await session.read(ids);
  const seconds = now(runtime.threads) - start;
  session.close();
  return seconds;
}

/** KLD of each way on one text, in nats. */
async function divergences(runtime: Runtime, ids: readonly number[], use: (way: Way) => void): Promise<number[]> {
  use('16');
  const session = opened(runtime);
  const probe = session.probe(Array.from({ length: runtime.shape.layers }, (_, layer) => layer));
  await session.read(ids);
  const found: number[] = [];
  for (const way of WAYS) {
    use(way);
    const klds = await probe.recomputed(0);
    found.push(klds.reduce((sum, kld) => sum + kld, 0) / klds.length);
  }
  probe.close();
  session.close();
  return found;
}

/** Opens a model, whose activations `use` chooses. */
async function opening(
  say: (line: string) => void,
  model: string,
  threads: number,
): Promise<{ readonly runtime: Runtime; readonly use: (way: Way) => void }> {
  const cacheDir = defaultCacheDir();
  const costs = (digest: string) => activationCosts(digest, null);
  const runtime = await Runtime.open({ model, threads, cacheDir, activationCosts: costs });
  const { dense, shape, native } = runtime;
  const choice = runtime.activations;
  if (!hasPlanes(dense) || choice === null)
    throw new KvError('not-found', `nobody has calibrated the activations of ${model}`, {
      hint: "the package has what was measured for 'reference' and 'smollm2-135m'",
    });
  const all = Array.from({ length: shape.layers + 1 }, (_, layer) => (layer < shape.layers ? 127 : 1));
  const ways: Readonly<Record<Way, ActivationChoice | null>> = {
    16: null,
    auto: choice,
    8: { ...choice, eightBit: all },
  };
  const use = (way: Way): void => applyActivations(dense, ways[way], shape.layers);
  say(`${runtime.model.name}, ${native.isa}, threads: ${threads}; auto: ${activationText(choice)}`);
  return { runtime, use };
}

/** Divergences of caches within budgets, in each way, on the first text of each kind. */
export async function activationQuality(
  say: (line: string) => void,
  {
    texts,
    model,
    threads,
    tokens,
    json,
  }: {
    /** Names, whose first word is the kind, and contents. */
    readonly texts: readonly (readonly [string, string])[];
    readonly model: string;
    readonly threads: number;
    /** What is read of a text. */
    readonly tokens: number;
    readonly json: string | null;
  },
): Promise<RoundedQuality<Way>[]> {
  const { runtime, use } = await opening(say, model, threads);
  const rows = await roundedQuality(say, { runtime, texts: onePerKind(texts), ways: WAYS, tokens, use });
  await runtime.close();
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
  return rows;
}

export async function activations(
  say: (line: string) => void,
  {
    texts,
    model,
    threads,
    rounds,
    json,
  }: {
    /** Names and contents. */
    readonly texts: readonly (readonly [string, string])[];
    readonly model: string;
    readonly threads: number;
    readonly rounds: number;
    readonly json: string | null;
  },
): Promise<ActivationRow[]> {
  const { runtime, use } = await opening(say, model, threads);
  const tokensOf = (text: string): number[] => runtime.model.tokenizer.encode(text).slice(0, TOKENS);
  const klds = WAYS.map((): Record<string, number> => ({}));
  for (const [name, text] of texts) {
    const found = await divergences(runtime, tokensOf(text), use);
    for (const [at, kld] of found.entries()) klds[at]![name] = kld;
    say(`  ${name}: KLD ${WAYS.map((way, at) => `${way} ${found[at]!.toExponential(2)}`).join(', ')}`);
  }
  const times = await timesOf(runtime, tokensOf(texts[0]![1]), rounds, use);
  await runtime.close();
  const rows = WAYS.map((way, at): ActivationRow => {
    const ms = times[at]!.map((list) => 1000 * typical(list));
    return {
      ...{ model: runtime.model.name, isa: runtime.native.isa, threads, way, kld: klds[at]! },
      promptMs: ms.at(-1)!,
      stepMs: Object.fromEntries(STEPS.map((count, which) => [count, ms[which]!])),
    };
  });
  print(say, rows);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
  return rows;
}

/** Seconds of each way: of the steps, and of the prompt, in every round. */
async function timesOf(
  runtime: Runtime,
  prompt: readonly number[],
  rounds: number,
  use: (way: Way) => void,
): Promise<number[][][]> {
  const times = WAYS.map(() => [...STEPS, TOKENS].map((): number[] => []));
  for (let round = -1; round < rounds; round++)
    for (const [at, way] of WAYS.entries()) {
      use(way);
      const seconds: number[] = [];
      for (const rows of STEPS) seconds.push(await stepOf(runtime, rows));
      seconds.push(await promptOf(runtime, prompt));
      // Code is compiled, and memory touched, in the first round.
      if (round >= 0) for (const [which, one] of seconds.entries()) times[at]![which]!.push(one);
    }
  return times;
}

function print(say: (line: string) => void, rows: readonly ActivationRow[]): void {
  const table = rows.map(({ way, kld, promptMs, stepMs }) => {
    const values = Object.values(kld);
    const mean = values.reduce((sum, one) => sum + one, 0) / values.length;
    const told = [mean, Math.max(...values)].map((one) => one.toExponential(2));
    return [way, ...told, fixed(promptMs, 0), ...STEPS.map((count) => fixed(stepMs[count]!, 2))];
  });
  const titles = ['activations', 'KLD, mean', 'worst text', 'prompt of 512, ms'];
  for (const line of columns([...titles, ...STEPS.map((count) => `${count} rows, ms`)], table)) say(`  ${line}`);
}
