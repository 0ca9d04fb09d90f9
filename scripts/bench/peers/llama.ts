/**
 * llama.cpp as a peer. It runs in a child process, from the package in test/bench/peers, which the project does not
 * install. A step of a whole model is timed; attention over a history is the difference between a step with that
 * history and one without.
 */
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { Child } from '../child.ts';
import type { Shape } from '../shapes.ts';

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

const folderIn = (root: string): string => join(root, 'test', 'bench', 'peers');
const packagesIn = (root: string): string => join(folderIn(root), 'node_modules');
const PROGRAM = 'llama.mjs';

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
  cpSync(join(folderIn(root), PROGRAM), join(copy, PROGRAM));
  return copy;
}

export class LlamaPeer {
  readonly #child: Child;
  readonly #copy: string | null;
  #contexts = 0;

  /** cpu: the kind of CPU whose library is used (llamaCpus); otherwise llama.cpp takes the best that runs here. */
  constructor(root: string, cpu?: string) {
    this.#copy = cpu === undefined ? null : onlyFor(root, cpu);
    // Links must stay links, or packages would be looked for where they lead, beside the other libraries.
    const flags = this.#copy === null ? [] : ['--preserve-symlinks', '--preserve-symlinks-main'];
    this.#child = new Child('llama.cpp', [...flags, PROGRAM], this.#copy ?? folderIn(root));
  }

  /** Loads a model. libraries: the files of kernels that the process has loaded. */
  async load(model: string): Promise<{ readonly cpuSeconds: number; readonly libraries: readonly string[] }> {
    return (await this.#child.ask('load', { model })) as { cpuSeconds: number; libraries: string[] };
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

  /** Seconds in which a prompt of this many tokens is read from the beginning. */
  async prefill(model: string, tokens: number, threads: number): Promise<number> {
    return (await this.#child.ask('prefill', { model, tokens, threads }))['seconds'] as number;
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
