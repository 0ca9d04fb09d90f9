/**
 * Measures several sequences that are decoded in one pass over the weights, each behind a history of its own, and
 * prompts of 512 tokens: tokens per CPU second (user and system time of the process) and per second of the clock, how
 * long the next token of a sequence takes, and whether a sequence gets the same bits in company as alone. Everything is
 * over f16 caches. Ours and each peer have a process of their own for every instruction set, model and number of
 * threads; their rounds alternate, one at a time.
 */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { ISA_NAMES, type Isa, KvError } from '../../native/index.ts';
import { wholePages } from './bench.ts';
import { type Child, ourEngine } from './child.ts';
import { machine } from './machine.ts';
import { isasOf, MODELS, type ModelName, modelPath, PROMPT_TOKENS, roomFor, STEPS } from './machines.ts';
import { alternate, p95, type Took, typical } from './measure.ts';
import { IK_MISSING, IkPeer, ikIsInstalled } from './peers/ik.ts';
import { LLAMA_MISSING, llamaFor, llamaIsInstalled } from './peers/llama.ts';
import { type Company, PEERS, type Peer } from './peers/peer.ts';
import { columns, figure, fixed } from './table.ts';
import type { StepsTook } from './whole-model.ts';

const DEPTHS = [256, 1024, 4096];
/** Steps in which bits are compared. */
const COMPARED = 2;

export const manyRow = z
  .strictObject({
    isa: z.enum(ISA_NAMES),
    model: z.enum(MODELS),
    threads: z.int().positive(),
    /** A prompt of 512 tokens read at once, or tokens that follow one by one. */
    phase: z.enum(['prefill', 'decode']),
    sequences: z.int().positive(),
    /** Tokens in the cache of each before. */
    depth: z.int().nonnegative(),
    /** Of all sequences together, by the clock. */
    tokensPerSecond: z.number().positive(),
    tokensPerCpuSecond: z.number().positive(),
    /** By the clock; null for a prompt, as the next field is. */
    p95InterTokenMs: z.number().positive().nullable(),
    /** Every sequence gets the bits that it gets alone. */
    bitsEqual: z.boolean().nullable(),
    /** Who was measured beside; null: nobody, and so is what follows. */
    peer: z.enum(PEERS).nullable(),
    peerTokensPerSecond: z.number().positive().nullable(),
    peerTokensPerCpuSecond: z.number().positive().nullable(),
    /** How many times the peer's tokens of a CPU second ours are. */
    ratio: z.number().positive().nullable(),
  })
  .readonly();
export type ManyRow = z.infer<typeof manyRow>;

export interface ManyOptions {
  /** Null: all that this processor has vectors for. */
  readonly isas: readonly Isa[] | null;
  readonly models: readonly ModelName[];
  readonly sequences: readonly number[];
  /** Null: 256, 1,024 and 4,096. */
  readonly depths: readonly number[] | null;
  readonly threads: readonly number[];
  readonly peers: boolean;
  /** One round in place of `rounds`, and only the shortest history. */
  readonly quick: boolean;
  readonly rounds: number;
  readonly json: string | null;
}

export async function many(say: (line: string) => void, options: ManyOptions): Promise<ManyRow[]> {
  const root = fileURLToPath(new URL('../..', import.meta.url));
  const depths = wholePages(options.depths ?? DEPTHS);
  const plan: Plan = {
    sequences: options.sequences,
    depths: options.quick ? [Math.min(...depths)] : depths,
    rounds: options.quick ? 1 : options.rounds,
  };
  const about = machine();
  say(`${about.cpu}, ${about.compiler}, node ${about.node}, commit ${about.commit}`);
  const rows: ManyRow[] = [];
  for (const name of options.models) {
    const path = modelPath(name, defaultCacheDir(), say);
    if (path === null) continue;
    for (const isa of isasOf(options.isas, say)) {
      const peers = options.peers ? peersFor(root, isa, say) : [];
      for (const threads of options.threads)
        rows.push(...(await manyAt(root, { name, path, isa, threads, peers }, plan, say)));
    }
  }
  tell(say, rows);
  if (options.json !== null)
    writeFileSync(options.json, `${JSON.stringify({ machine: about, rows: z.array(manyRow).parse(rows) }, null, 1)}\n`);
  const unequal = rows.filter(({ bitsEqual }) => bitsEqual === false);
  for (const { model, isa, sequences, depth } of unequal)
    say(`!!! ${model} ${isa}: a sequence among ${sequences} at ${depth} tokens gets other bits than alone`);
  if (unequal.length > 0) process.exitCode = 1;
  return rows;
}

/** Starts a peer; nothing runs before it is asked for. */
type Start = () => Peer | null;

/** The peers that are installed; the others are said. */
function peersFor(root: string, isa: Isa, say: (line: string) => void): Start[] {
  const starts: Start[] = [];
  if (llamaIsInstalled(root)) starts.push(() => llamaFor(root, isa, say));
  else say(LLAMA_MISSING);
  if (ikIsInstalled(root)) starts.push(() => new IkPeer(root));
  else say(IK_MISSING);
  return starts;
}

export interface ManyAt {
  readonly name: ModelName;
  readonly path: string;
  readonly isa: Isa;
  readonly threads: number;
  readonly peers: readonly Start[];
}

export interface Plan {
  readonly sequences: readonly number[];
  readonly depths: readonly number[];
  readonly rounds: number;
}

/** Prompts, and all numbers of sequences at all depths, of one model on one instruction set and number of threads. */
export async function manyAt(
  root: string,
  { name, path, isa, threads, peers: starts }: ManyAt,
  { sequences: counts, depths, rounds }: Plan,
  say: (line: string) => void,
): Promise<ManyRow[]> {
  const ours = ourEngine(root);
  const peers: Peer[] = [];
  const started: Peer[] = [];
  try {
    await ours.ask('load', { model: path, isa, threads });
    say(`${name}, ${isa}, ${threads} ${threads === 1 ? 'thread' : 'threads'}`);
    for (const start of starts) {
      const peer = start();
      if (peer === null) continue;
      started.push(peer);
      const loaded = await tried(peer, say, () => peer.load(path));
      if (loaded === null) continue;
      peers.push(peer);
      say(`  beside ${peer.name} for ${loaded.kernels}`);
    }
    const place = { isa, model: name, threads };
    const rows = rowsOf({ ...place, ...(await prompts(ours, peers, { path, threads, rounds, say })) });
    for (const depth of depths) {
      for (const sequences of counts) {
        const measured = await steps(ours, peers, { path, threads, rounds, say, sequences, depth });
        rows.push(...rowsOf({ ...place, ...measured }));
      }
    }
    return rows;
  } finally {
    await ours.close();
    for (const peer of started) await peer.close();
  }
}

/** What was measured in one place: ours, and every peer's. */
type Measured = Pick<ManyRow, 'phase' | 'sequences' | 'depth' | 'p95InterTokenMs' | 'bitsEqual'> & {
  readonly own: Speed;
  readonly peers: readonly (Speed & { readonly name: Peer['name'] })[];
};

interface Speed {
  readonly tokensPerSecond: number;
  readonly tokensPerCpuSecond: number;
}

interface About {
  readonly path: string;
  readonly threads: number;
  readonly rounds: number;
  say(line: string): void;
}

async function prompts(ours: Child, peers: readonly Peer[], { path, threads, rounds, say }: About): Promise<Measured> {
  const own = {
    run: async (): Promise<Took> => (await ours.ask('prefill', { tokens: PROMPT_TOKENS })) as unknown as Took,
  };
  const beside = peers.map((peer) => new Beside(peer, say, () => peer.prefill(path, PROMPT_TOKENS, threads)));
  return {
    phase: 'prefill',
    sequences: 1,
    depth: 0,
    p95InterTokenMs: null,
    bitsEqual: null,
    ...(await speeds(own, beside, { rounds, tokens: PROMPT_TOKENS })),
  };
}

async function steps(
  ours: Child,
  peers: readonly Peer[],
  { path, threads, rounds, say, sequences, depth }: About & { readonly sequences: number; readonly depth: number },
): Promise<Measured> {
  const { areEqual } = await ours.ask('bits', { sequences, depth, steps: COMPARED });
  const room = roomFor(rounds);
  await ours.ask('decodeFrom', { sequences, depth, room });
  const companies: Company[] = [];
  const beside: Beside[] = [];
  for (const peer of peers) {
    const company = await tried(peer, say, () => peer.together(path, { sequences, depth, threads, room }));
    if (company === null) continue;
    companies.push(company);
    beside.push(new Beside(peer, say, () => company.steps(STEPS)));
  }
  const stepMs: number[][] = [];
  const own = {
    run: async (): Promise<Took> => {
      const pass = (await ours.ask('decode', { steps: STEPS })) as unknown as StepsTook;
      stepMs.push([...pass.stepMs]);
      return pass;
    },
  };
  const all = await speeds(own, beside, { rounds, tokens: STEPS * sequences });
  for (const [index, company] of companies.entries()) {
    const closed = company.close();
    // Who has failed, and said so, may be unable to close as well.
    await (beside[index]!.hasFailed ? closed.catch(() => {}) : closed);
  }
  return {
    phase: 'decode',
    sequences,
    depth,
    // The first pass does not count.
    p95InterTokenMs: p95(stepMs.slice(1).flat()),
    bitsEqual: areEqual as boolean,
    ...all,
  };
}

/** What a peer answers; null where it fails, which is said and costs no row of ours. */
async function tried<T>(peer: Peer, say: (line: string) => void, work: () => Promise<T>): Promise<T | null> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    say(`  ${peer.name}: not measured here: ${error.message}`);
    return null;
  }
}

/** The passes of a peer beside ours. When one has failed, no more are made. */
class Beside {
  readonly peer: Peer;
  readonly #say: (line: string) => void;
  readonly #work: () => Promise<Took>;
  hasFailed = false;

  constructor(peer: Peer, say: (line: string) => void, work: () => Promise<Took>) {
    this.peer = peer;
    this.#say = say;
    this.#work = work;
  }

  async run(): Promise<Took | null> {
    const pass = this.hasFailed ? null : await tried(this.peer, this.#say, this.#work);
    this.hasFailed = pass === null;
    return pass;
  }
}

/** tokens: of one pass. */
async function speeds(
  own: { run(): Promise<Took> },
  beside: readonly Beside[],
  { rounds, tokens }: { readonly rounds: number; readonly tokens: number },
): Promise<Pick<Measured, 'own' | 'peers'>> {
  const [ours, ...theirs] = (await alternate<Took | null>([own, ...beside], rounds)).map((passes) =>
    passes.every((pass) => pass !== null) ? speed(passes, tokens) : null,
  );
  const peers = beside.flatMap(({ peer: { name } }, index) => {
    const their = theirs[index];
    return their == null ? [] : [{ name, ...their }];
  });
  return { own: ours!, peers };
}

function speed(passes: readonly Took[], tokens: number): Speed {
  return {
    tokensPerSecond: tokens / typical(passes.map(({ seconds }) => seconds)),
    tokensPerCpuSecond: tokens / typical(passes.map(({ cpuSeconds }) => cpuSeconds)),
  };
}

/** One row for each peer, or one without. */
function rowsOf({ own, peers, ...place }: Measured & Pick<ManyRow, 'isa' | 'model' | 'threads'>): ManyRow[] {
  const alone: ManyRow = {
    ...place,
    ...own,
    peer: null,
    peerTokensPerSecond: null,
    peerTokensPerCpuSecond: null,
    ratio: null,
  };
  if (peers.length === 0) return [alone];
  return peers.map(({ name, tokensPerSecond, tokensPerCpuSecond }) => ({
    ...alone,
    peer: name,
    peerTokensPerSecond: tokensPerSecond,
    peerTokensPerCpuSecond: tokensPerCpuSecond,
    ratio: own.tokensPerCpuSecond / tokensPerCpuSecond,
  }));
}

function tell(say: (line: string) => void, rows: readonly ManyRow[]): void {
  const titles = [
    '',
    'tokens/CPU s',
    'tokens/s',
    'p95 ms',
    'bits',
    'peer',
    'its tokens/CPU s',
    'its tokens/s',
    'ratio',
  ];
  const lines = rows.map((row) => [
    `${row.model} ${row.isa} ${row.threads}t ${row.phase === 'prefill' ? 'prompt' : `${row.sequences} at ${row.depth}`}`,
    figure(row.tokensPerCpuSecond),
    figure(row.tokensPerSecond),
    figure(row.p95InterTokenMs),
    row.bitsEqual === null ? null : row.bitsEqual ? 'equal' : 'NOT EQUAL',
    row.peer,
    figure(row.peerTokensPerCpuSecond),
    figure(row.peerTokensPerSecond),
    fixed(row.ratio, 2, '×'),
  ]);
  say('');
  for (const line of columns(titles, lines)) say(line);
}
