/**
 * ik_llama.cpp as a peer, through the wheel ik-llama-cpp-python, in a process of Python whose environment lies beside
 * its program in test/bench/peers.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Child } from '../child.ts';
import type { Took } from '../measure.ts';
import { type Company, type CompanyOptions, type Peer, peersIn } from './peer.ts';

const PROGRAM = 'ik.py';

const pythonIn = (root: string): string => join(peersIn(root), '.venv', 'bin', 'python');

export const ikIsInstalled = (root: string): boolean => existsSync(pythonIn(root));
export const IK_MISSING =
  'ik_llama.cpp: not measured; python3 -m venv test/bench/peers/.venv and test/bench/peers/.venv/bin/pip install -r test/bench/peers/requirements.txt install it (190 MB)';

/** Instructions that make a difference, as llama_print_system_info lists those that it was compiled for. */
const INSTRUCTIONS = /((?:AVX|NEON|SVE)\w*) = 1/g;

export class IkPeer implements Peer {
  readonly name = 'ik_llama.cpp';
  readonly #child: Child;
  #contexts = 0;

  /** python: that of an environment with the wheel. */
  constructor(root: string, python = pythonIn(root)) {
    this.#child = new Child(this.name, [PROGRAM], peersIn(root), python);
  }

  async load(model: string): Promise<{ readonly cpuSeconds: number; readonly kernels: string }> {
    const { cpuSeconds, system } = await this.#child.ask('load', { model });
    const instructions = [...(system as string).matchAll(INSTRUCTIONS)].map(([, name]) => name);
    return { cpuSeconds: cpuSeconds as number, kernels: instructions.join(', ') };
  }

  async prefill(model: string, tokens: number, threads: number): Promise<Took> {
    return (await this.#child.ask('prefill', { model, tokens, threads })) as unknown as Took;
  }

  async together(model: string, options: CompanyOptions): Promise<Company> {
    const context = ++this.#contexts;
    await this.#child.ask('open', { model, context, ...options });
    return {
      steps: async (count) => (await this.#child.ask('together', { context, count })) as unknown as Took,
      close: async () => void (await this.#child.ask('close', { context })),
    };
  }

  close(): Promise<void> {
    return this.#child.close();
  }
}
