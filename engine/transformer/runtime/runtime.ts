/** One loaded model with its dense half: what every session on it shares. Lives in the worker thread. */
import { availableParallelism } from 'node:os';
import {
  type BindingName,
  type CacheShape,
  given,
  type Isa,
  type NativeInfo,
  nativeInfo,
  setIsa,
  THREADS_MAX,
  useBinding,
} from '../../../native/index.ts';
import { type ActivationChoice, type ActivationCosts, chooseActivations } from '../../../policy/index.ts';
import { applyActivations, hasPlanes, productsOf } from '../activations.ts';
import { namingFile } from '../bytes.ts';
import { type DenseChoice, openDense } from '../dense-choice.ts';
import { Grammars } from '../grammar/grammars.ts';
import { obtainModel } from '../hub/obtain.ts';
import { type LoadOptions, loadModel } from '../load.ts';
import type { DenseBackend, DenseOptions, LoadedModel, LoadProgress } from '../types.ts';

export interface RuntimeOptions {
  readonly model: string;
  readonly dense?: 'auto' | 'exact' | undefined;
  readonly threads?: number | undefined;
  readonly isa?: Isa | undefined;
  readonly binding?: BindingName | undefined;
  /**
   * What it costs a model to round activations to 8 bits, by its digest: its matrices are chosen by that. Left out, or
   * null: all take 16 bits.
   */
  readonly activationCosts?: ((modelDigest: string) => ActivationCosts | null) | undefined;
  /** Whether adapters will be added: the dense half is then one that has a place for them. Default false. */
  readonly adapters?: boolean | undefined;
  readonly cacheDir?: string | undefined;
  /** Nothing is asked of the network. */
  readonly offline?: boolean | undefined;
  /** Told while a model is downloaded, verified and made ready. */
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
  /** Aborts a download. */
  readonly signal?: AbortSignal | undefined;
  /** Called between pieces of native work: the thread may be ended in there. */
  readonly safePoint?: () => void;
  /** Does what nothing of the thread is needed for: the thread may be ended meanwhile. */
  readonly resting?: <Result>(work: () => Promise<Result>) => Promise<Result>;
}

/** All cores that this process may use; a container or an affinity mask may leave it fewer than the machine has. */
export const defaultThreads = (): number => availableParallelism();

export class Runtime {
  readonly model: LoadedModel;
  readonly dense: DenseBackend;
  readonly denseChoice: DenseChoice;
  readonly threads: number;
  readonly native: NativeInfo;
  readonly loadMs: number;
  /** Which matrices round what they are multiplied with to 8 bits; null: none, all take 16 bits or more. */
  readonly activations: ActivationChoice | null;
  /** What its answers may be told to follow. @internal */
  readonly grammars: Grammars;
  /** Does what nothing of the thread is needed for. @internal */
  readonly resting: NonNullable<RuntimeOptions['resting']>;

  private constructor(
    model: LoadedModel,
    { dense, choice, costs }: Awaited<ReturnType<typeof openDense>> & { readonly costs: ActivationCosts | null },
    threads: number,
    loadMs: number,
    resting: Runtime['resting'] = (work) => work(),
  ) {
    this.model = model;
    this.dense = dense;
    this.denseChoice = choice;
    this.threads = threads;
    this.native = nativeInfo();
    this.loadMs = loadMs;
    this.resting = resting;
    this.activations = chosenFor(model, dense, costs);
    this.grammars = Grammars.of(model, { resting });
  }

  static async open(options: RuntimeOptions): Promise<Runtime> {
    const start = performance.now();
    if (options.binding !== undefined) useBinding(options.binding);
    if (options.isa !== undefined) setIsa(options.isa);
    const threads = options.threads ?? defaultThreads();
    const { cacheDir, offline, onProgress, signal } = options;
    const name = await obtainModel(options.model, { offline, onProgress, signal });
    const model = await loadModel(name, given<LoadOptions>({ cacheDir, onProgress }));
    const onLayer = (done: number, total: number): void => onProgress?.({ stage: 'load', file: null, done, total });
    const precision = options.dense ?? 'auto';
    try {
      const costs = options.activationCosts?.(model.digest) ?? null;
      const dense = await openDense(
        model,
        given<DenseOptions>({ precision, threads, adapters: options.adapters, safePoint: options.safePoint, onLayer }),
      ).catch((error: unknown) => {
        throw namingFile(model.path, error);
      });
      return new Runtime(model, { ...dense, costs }, threads, performance.now() - start, options.resting);
    } catch (error) {
      model.weights.close();
      throw error;
    }
  }

  /** Threads of a cache, which takes no more of them than this. */
  get cacheThreads(): number {
    return Math.min(this.threads, THREADS_MAX);
  }

  get shape(): CacheShape {
    const { layers, queryHeads, kvHeads, headDim } = this.model.config;
    return { layers, queryHeads, kvHeads, headDim };
  }

  async close(): Promise<void> {
    await this.grammars.close();
    await this.dense.close();
    this.model.weights.close();
  }
}

/** Makes a choice by these costs, and carries it out; null where there is none to make. */
function chosenFor(
  { config }: LoadedModel,
  dense: DenseBackend,
  costs: ActivationCosts | null,
): ActivationChoice | null {
  if (costs === null || !hasPlanes(dense)) return null;
  const choice = chooseActivations(costs, productsOf(config));
  applyActivations(dense, choice, config.layers);
  return choice;
}
