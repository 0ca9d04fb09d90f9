/**
 * Measures whole models on every instruction set of this processor, beside llama.cpp with kernels for the same one:
 * prompts of 512 tokens, and steps at depths 0 and 4096, in tokens per CPU second (user and system time of the
 * process); memory that the process holds; CPU seconds of loading. Everything is on one thread and over an f16 cache.
 * Each instruction set and model has a process of ours and one of llama.cpp; their rounds alternate, one at a time.
 */
import { existsSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { fetchedPath } from '../../engine/transformer/fetch.ts';
import { ISA_NAMES, type Isa, nativeInfo } from '../../native/index.ts';
import { type Child, ourEngine } from './child.ts';
import { machine } from './machine.ts';
import { alternate, typical } from './measure.ts';
import { LLAMA_MISSING, type LlamaContext, type LlamaPeer, llamaFor, llamaIsInstalled } from './peers/llama.ts';
import { LLAMA_1B, QWEN_HALF_B, randomModel } from './peers/random-model.ts';
import { columns, figure, fixed } from './table.ts';

export const MODELS = ['smollm2', 'llama-1b', 'qwen2-0.5b'] as const;
export type ModelName = (typeof MODELS)[number];

/** What a row is about: how tokens come (a prompt at once, or one by one), and how many are there before. */
const PHASES = [
  { phase: 'prefill', depth: 0 },
  { phase: 'decode', depth: 0 },
  { phase: 'decode', depth: 4096 },
] as const;
type Phase = (typeof PHASES)[number];
export const PROMPT_TOKENS = 512;
/** Steps of one pass. */
export const STEPS = 8;

export const machineRow = z
  .strictObject({
    isa: z.enum(ISA_NAMES),
    model: z.enum(MODELS),
    phase: z.enum(['prefill', 'decode']),
    /** Tokens in the cache before. */
    depth: z.int().nonnegative(),
    tokensPerCpuSecond: z.number().positive(),
    /** Tokens of llama.cpp, as everything below that is a peer's; null where it was not measured. */
    peerTokensPerCpuSecond: z.number().positive().nullable(),
    /** How many times the tokens of llama.cpp ours are. */
    ratio: z.number().positive().nullable(),
    /** Bytes of the whole process, with the cache of this row. */
    residentBytes: z.int().positive(),
    peerResidentBytes: z.int().positive().nullable(),
    fileBytes: z.int().positive(),
    loadCpuSeconds: z.number().nonnegative(),
    peerLoadCpuSeconds: z.number().nonnegative().nullable(),
  })
  .readonly();
export type MachineRow = z.infer<typeof machineRow>;

export interface MachinesOptions {
  /** Null: all that this processor has vectors for. */
  readonly isas: readonly Isa[] | null;
  readonly models: readonly ModelName[];
  readonly peers: boolean;
  /** One round in place of `rounds`, and no history. */
  readonly quick: boolean;
  readonly rounds: number;
  readonly json: string | null;
}

export async function machines(say: (line: string) => void, options: MachinesOptions): Promise<MachineRow[]> {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const about = machine();
  say(`${about.cpu}, ${about.compiler}, node ${about.node}, commit ${about.commit}`);
  const peers = options.peers && llamaIsInstalled(root);
  if (options.peers && !peers) say(LLAMA_MISSING);
  const rows: MachineRow[] = [];
  for (const name of options.models) {
    const path = modelPath(name, defaultCacheDir(), say);
    if (path === null) continue;
    for (const isa of isasOf(options.isas, say))
      rows.push(...(await measured(root, { name, path, isa, peers }, options, say)));
  }
  tell(say, rows);
  if (options.json !== null)
    writeFileSync(
      options.json,
      `${JSON.stringify({ machine: about, rows: z.array(machineRow).parse(rows) }, null, 1)}\n`,
    );
  return rows;
}

/** The sets that were asked for, without those that this processor lacks. */
export function isasOf(asked: readonly Isa[] | null, say: (line: string) => void): readonly Isa[] {
  const { available } = nativeInfo();
  if (asked === null) return available.filter((isa) => isa !== 'scalar');
  const lacking = asked.filter((isa) => !available.includes(isa));
  if (lacking.length > 0)
    say(`${lacking.join(', ')}: not measured; not built (npm run build:native -- --all) or not of this processor`);
  return asked.filter((isa) => available.includes(isa));
}

/** Random models are written where they are not yet there; a trained one has to be fetched. */
export function modelPath(name: ModelName, cacheDir: string, say: (line: string) => void): string | null {
  if (name === 'llama-1b') return randomModel(LLAMA_1B, join(cacheDir, 'bench'));
  if (name === 'qwen2-0.5b') return randomModel(QWEN_HALF_B, join(cacheDir, 'bench'));
  const path = fetchedPath('smollm2-135m', cacheDir);
  if (existsSync(path)) return path;
  say('smollm2: not measured; npm run fetch:model fetches it');
  return null;
}

export interface Measured {
  readonly name: ModelName;
  readonly path: string;
  readonly isa: Isa;
  readonly peers: boolean;
}

/** All phases of one model on one instruction set, ours and llama.cpp's side by side. */
export async function measured(
  root: string,
  { name, path, isa, peers }: Measured,
  { rounds, quick }: Pick<MachinesOptions, 'rounds' | 'quick'>,
  say: (line: string) => void,
): Promise<MachineRow[]> {
  const theirs = peers ? llamaFor(root, isa, say) : null;
  const ours = ourEngine(root);
  try {
    const loaded = await ours.ask('load', { model: path, isa, threads: 1 });
    const peerLoaded = (await theirs?.load(path)) ?? null;
    const weights = Object.entries(loaded['weightTypes'] as object).map(([type, count]) => `${count} ${type}`);
    say(
      `${name}, ${isa}: ${weights.join(', ')} matrices${theirs === null ? '' : `, beside llama.cpp for ${theirs.cpu}`}`,
    );
    const rows: MachineRow[] = [];
    for (const phase of quick ? PHASES.slice(0, 2) : PHASES) {
      const passes = quick ? 1 : rounds;
      const [ourPass, theirPass] = [
        await ourPhase(ours, phase, passes),
        theirs === null ? null : await theirPhase(theirs, path, phase, passes),
      ];
      const subjects = [ourPass, ...(theirPass === null ? [] : [theirPass])];
      const seconds = (await alternate(subjects, passes)).map(typical);
      const tokens = phase.phase === 'prefill' ? PROMPT_TOKENS : STEPS;
      const [tokensPerCpuSecond, peerTokensPerCpuSecond = null] = seconds.map((s) => tokens / s);
      rows.push({
        isa,
        model: name,
        ...phase,
        tokensPerCpuSecond: tokensPerCpuSecond!,
        peerTokensPerCpuSecond,
        ratio: peerTokensPerCpuSecond === null ? null : tokensPerCpuSecond! / peerTokensPerCpuSecond,
        residentBytes: (await ours.ask('memory'))['residentBytes'] as number,
        peerResidentBytes: (await theirs?.residentBytes()) ?? null,
        fileBytes: statSync(path).size,
        loadCpuSeconds: loaded['cpuSeconds'] as number,
        peerLoadCpuSeconds: peerLoaded?.cpuSeconds ?? null,
      });
      await theirPass?.end();
    }
    return rows;
  } finally {
    await ours.close();
    await theirs?.close();
  }
}

/** One pass returns the CPU seconds that it took. */
interface Passes {
  run(): Promise<number>;
  end(): Promise<void>;
}

async function ourPhase(ours: Child, { phase, depth }: Phase, passes: number): Promise<Passes> {
  const seconds = async (op: string, values: object): Promise<number> =>
    (await ours.ask(op, { ...values }))['cpuSeconds'] as number;
  const end = async (): Promise<void> => {};
  if (phase === 'prefill') return { run: () => seconds('prefill', { tokens: PROMPT_TOKENS }), end };
  await ours.ask('decodeFrom', { sequences: 1, depth, room: roomFor(passes) });
  return { run: () => seconds('decode', { steps: STEPS }), end };
}

async function theirPhase(theirs: LlamaPeer, path: string, { phase, depth }: Phase, passes: number): Promise<Passes> {
  if (phase === 'prefill')
    return { run: async () => (await theirs.prefill(path, PROMPT_TOKENS, 1)).cpuSeconds, end: async () => {} };
  const context: LlamaContext = await theirs.open(path, 'f16', depth, { threads: 1, room: roomFor(passes) });
  const run = async (): Promise<number> => {
    let seconds = 0;
    for (let step = 0; step < STEPS; step++) seconds += await context.step();
    return seconds;
  };
  return { run, end: () => context.close() };
}

/** A pass that does not count comes first, and one step is made when a context of llama.cpp is opened. */
export const roomFor = (passes: number): number => (passes + 1) * STEPS + 8;

const mib = (bytes: number | null): string | null => (bytes === null ? null : (bytes / 2 ** 20).toFixed(0));

function tell(say: (line: string) => void, rows: readonly MachineRow[]): void {
  const titles = ['', 'tokens/CPU s', 'llama.cpp', 'ratio', 'MiB', 'llama.cpp', 'file MiB', 'load CPU s', 'llama.cpp'];
  const lines = rows.map((row) => [
    `${row.model} ${row.isa} ${row.phase} at ${row.depth}`,
    figure(row.tokensPerCpuSecond),
    figure(row.peerTokensPerCpuSecond),
    fixed(row.ratio, 2, '×'),
    mib(row.residentBytes),
    mib(row.peerResidentBytes),
    mib(row.fileBytes),
    fixed(row.loadCpuSeconds, 2),
    fixed(row.peerLoadCpuSeconds, 2),
  ]);
  say('');
  for (const line of columns(titles, lines)) say(line);
}
