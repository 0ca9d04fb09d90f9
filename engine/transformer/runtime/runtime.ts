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
  /** What its answers may be told to follow. @internal */
  readonly grammars: Grammars;
  /** Does what nothing of the thread is needed for. @internal */
  readonly resting: NonNullable<RuntimeOptions['resting']>;

  private constructor(
    model: LoadedModel,
    { dense, choice }: Awaited<ReturnType<typeof openDense>>,
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
    const dense = await openDense(
      model,
      given<DenseOptions>({ precision, threads, safePoint: options.safePoint, onLayer }),
    ).catch((error: unknown) => {
      model.weights.close();
      throw namingFile(model.path, error);
    });
    return new Runtime(model, dense, threads, performance.now() - start, options.resting);
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
