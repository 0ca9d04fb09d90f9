/**
 * llama.cpp as a peer. It runs in a child process, from the package in test/bench/peers, which the project does not
 * install. A step of a whole model is timed; attention over a history is the difference between a step with that
 * history and one without.
 */
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { type Isa, KvError } from '../../../native/index.ts';
import { Child } from '../child.ts';
import type { Took } from '../measure.ts';
import type { Shape } from '../shapes.ts';
import { type Company, type CompanyOptions, type Peer, peersIn } from './peer.ts';

export const LLAMA_TYPES = ['f16', 'q8_0', 'q4_0'] as const;
export type LlamaType = (typeof LLAMA_TYPES)[number];

/** The bytes of an element. The last two types have blocks of 32 with an f16 scale. */
const ELEMENT_BYTES: Readonly<Record<LlamaType, number>> = { f16: 2, q8_0: 34 / 32, q4_0: 18 / 32 };

/** The bytes of K and V of one token and KV head. */
export const llamaBytesPerToken = (type: LlamaType, { headDim }: Shape): number => 2 * headDim * ELEMENT_BYTES[type];

export interface LlamaContext {
  /** Runs one decode step, which makes the history one token longer, and returns its seconds. */
  step(): Promise<number>;
  close(): Promise<void>;
}

const packagesIn = (root: string): string => join(peersIn(root), 'node_modules');
const PROGRAM = 'llama.mjs';
/** Histories of several sequences are read for real up to this many tokens. */
const READ_MAX = 1024;

export const llamaIsInstalled = (root: string): boolean => existsSync(join(packagesIn(root), 'node-llama-cpp'));
export const LLAMA_MISSING =
  'llama.cpp: not measured; npm --prefix test/bench/peers ci --ignore-scripts installs it (725 MB)';

/**
 * Where node-llama-cpp keeps its libraries for this platform: one for each kind of CPU (libggml-cpu-haswell.so), of
 * which it loads the best. Null where it has none for this platform or only one.
 */
function librariesIn(root: string): string | null {
  const name = `${process.platform}-${process.arch}`;
  const folder = join(packagesIn(root), '@node-llama-cpp', name);
  return existsSync(join(folder, 'bins', name)) ? folder : null;
}

/** The library of llama.cpp that uses the same instructions. */
const CPUS: Readonly<Partial<Record<Isa, string>>> = {
  scalar: 'x64',
  avx2: 'haswell',
  avx2vnni: 'alderlake',
  avx512vnni: 'icelake',
};

/** llama.cpp with its library for the same instructions; null where it has none for this machine. */
export function llamaFor(root: string, isa: Isa, say: (line: string) => void): LlamaPeer | null {
  const cpu = CPUS[isa];
  if (cpu !== undefined && llamaCpus(root).includes(cpu)) return new LlamaPeer(root, cpu);
  say(`${isa}: llama.cpp has no library for it here`);
  return null;
}

const CPU_LIBRARY = /^libggml-cpu-(.+)\.so$/;

/** The kinds of CPU for which the peer has a library. */
export function llamaCpus(root: string): readonly string[] {
  const folder = librariesIn(root);
  if (folder === null) return [];
  return readdirSync(join(folder, 'bins', basename(folder))).flatMap((file) => CPU_LIBRARY.exec(file)?.[1] ?? []);
}

/**
 * A copy of the peer that has the library of one kind of CPU and no other, in a temporary folder. All other packages
 * are links.
 */
function onlyFor(root: string, cpu: string): string {
  const copy = mkdtempSync(join(tmpdir(), `palimpsest-llama-${cpu}-`));
  const packages = packagesIn(root);
  const platform = librariesIn(root)!;
  mkdirSync(join(copy, 'node_modules', '@node-llama-cpp'), { recursive: true });
  for (const name of readdirSync(packages)) {
    if (name !== '@node-llama-cpp' && !name.startsWith('.'))
      symlinkSync(join(packages, name), join(copy, 'node_modules', name));
  }
  cpSync(platform, join(copy, 'node_modules', '@node-llama-cpp', basename(platform)), {
    recursive: true,
    filter: (file) => (CPU_LIBRARY.exec(basename(file))?.[1] ?? cpu) === cpu,
  });
  cpSync(join(peersIn(root), PROGRAM), join(copy, PROGRAM));
  return copy;
}

export class LlamaPeer implements Peer {
  readonly name = 'llama.cpp';
  /** The kind of CPU whose library is used; null: the best that runs here. */
  readonly cpu: string | null;
  readonly #child: Child;
  readonly #copy: string | null;
  #contexts = 0;

  /** cpu: the kind of CPU whose library is used (llamaCpus); otherwise llama.cpp takes the best that runs here. */
  constructor(root: string, cpu?: string) {
    this.cpu = cpu ?? null;
    this.#copy = cpu === undefined ? null : onlyFor(root, cpu);
    // Links must stay links, or packages would be looked for where they lead, beside the other libraries.
    const flags = this.#copy === null ? [] : ['--preserve-symlinks', '--preserve-symlinks-main'];
    this.#child = new Child('llama.cpp', [...flags, PROGRAM], this.#copy ?? peersIn(root));
  }

  async load(model: string): Promise<{ readonly cpuSeconds: number; readonly kernels: string }> {
    const loaded = await this.#child.ask('load', { model });
    const libraries = loaded['libraries'] as string[];
    if (this.cpu !== null && !libraries.some((file) => file.includes(`-${this.cpu}.`))) {
      throw new KvError('unsupported', `llama.cpp was to use its library for ${this.cpu} and uses ${libraries}`, {
        hint: 'its packages may be laid out otherwise in this version',
      });
    }
    return { cpuSeconds: loaded['cpuSeconds'] as number, kernels: this.cpu ?? libraries.join(', ') };
  }

  /** Makes a context with `depth` tokens of history. room: steps or tokens that it may take beyond them. */
  async open(
    model: string,
    type: LlamaType,
    depth: number,
    { threads, room }: { readonly threads: number; readonly room?: number },
  ): Promise<LlamaContext> {
    const context = ++this.#contexts;
    await this.#child.ask('open', { model, type: type.toUpperCase(), depth, threads, context, room });
    return {
      step: async () => ((await this.#child.ask('step', { context, count: 1 }))['seconds'] as number[])[0]!,
      close: async () => void (await this.#child.ask('close', { context })),
    };
  }

  async prefill(model: string, tokens: number, threads: number): Promise<Took> {
    return (await this.#child.ask('prefill', { model, tokens, threads })) as unknown as Took;
  }

  async together(model: string, { sequences, depth, threads, room }: CompanyOptions): Promise<Company> {
    const context = ++this.#contexts;
    const read = depth <= READ_MAX ? depth : undefined;
    await this.#child.ask('open', { model, type: 'F16', sequences, depth, read, threads, context, room });
    return {
      steps: async (count) => {
        const { batches, ...steps } = await this.#child.ask('together', { context, count });
        if (batches === count) return steps as unknown as Took;
        throw new KvError(
          'unsupported',
          `llama.cpp took ${batches} batches for ${count} steps of ${sequences} sequences`,
          {
            hint: 'it may batch otherwise in this version',
          },
        );
      },
      close: async () => void (await this.#child.ask('close', { context })),
    };
  }

  /** Reads these tokens. → the likeliest to follow those at some positions, with the logarithm of their probability */
  async next(
    model: string,
    tokens: readonly number[],
    positions: readonly number[],
  ): Promise<readonly (readonly (readonly [token: number, log: number])[])[]> {
    return (await this.#child.ask('next', { model, tokens, positions }))['rows'] as never;
  }

  /** Bytes of memory that the process holds. */
  async residentBytes(): Promise<number> {
    return (await this.#child.ask('memory'))['residentBytes'] as number;
  }

  async close(): Promise<void> {
    await this.#child.close();
    if (this.#copy !== null) rmSync(this.#copy, { recursive: true, force: true });
  }
}
