/** What an engine says of the model that it has loaded. */
import type { ActivationChoice } from '../../policy/index.ts';
import type { ModelConfig } from '../transformer/types.ts';
import type { Host } from './host.ts';

/** What was loaded, and what runs it. */
export interface LoadedInfo {
  /** The name that the model was asked for by, or that of its folder or file. */
  readonly name: string;
  /** Folder or file that it was read from. */
  readonly path: string;
  /** SHA-256 of the weights, in hexadecimal. */
  readonly digest: string;
  /** Bytes of its files. */
  readonly fileBytes: number;
  /** Its shape and hyperparameters. */
  readonly config: ModelConfig;
  /** What its files say about themselves, for people. */
  readonly summary: Readonly<Record<string, unknown>>;
  /** What a person should know of its files: what they do not say, and what of them is left out. Mostly empty. */
  readonly remarks: readonly string[];
  /** Instruction set of the kernels in use. */
  readonly isa: string;
  /** All that this CPU and this build have, best first. */
  readonly isaAvailable: readonly string[];
  /** What the kernels were compiled with. */
  readonly compiler: string;
  /** Threads of attention and of the dense half. */
  readonly threads: number;
  /** The dense half that runs, and its precision. */
  readonly dense: string;
  /** Why this dense half and no other. */
  readonly denseWhy: string;
  /** Which of its matrices take activations of 8 bits, and what that is expected to cost; null: none. */
  readonly activations: ActivationChoice | null;
  /** Bytes of the weights in memory. */
  readonly denseBytes: number;
  /** Types of the tensors in the file, and how many there are of each. */
  readonly weightTypes: Readonly<Record<string, number>>;
  /** True if it has a chat template. */
  readonly chat: boolean;
  /** Milliseconds that loading took. */
  readonly loadMs: number;
  /** Folder of the witness log; null where nothing is written. */
  readonly logPath: string | null;
}

/** The same of a model's thread. */
export function loadedInfo({ runtime, state }: Host): LoadedInfo {
  const { model, dense, denseChoice, activations, native, threads, loadMs } = runtime;
  return {
    name: model.name,
    path: model.path,
    digest: model.digest,
    fileBytes: model.fileBytes,
    config: model.config,
    summary: model.summary,
    remarks: model.remarks,
    isa: native.isa,
    isaAvailable: native.available,
    compiler: native.compiler,
    threads,
    dense: dense.name,
    denseWhy: denseChoice.why,
    activations,
    denseBytes: dense.bytes,
    weightTypes: dense.weightTypes,
    chat: model.tokenizer.chatTemplate !== null,
    loadMs,
    logPath: state?.log.dir ?? null,
  };
}
