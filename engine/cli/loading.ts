/** A model on its way into memory, downloaded where it is not here, with its progress on stderr; and on its way out. */
import { given, KvError, printable } from '../../native/index.ts';
import type { EngineOptions } from '../options/types.ts';
import { createEngine, type Engine } from '../thread/engine.ts';
import { createRuntime, type EngineRuntime, type RuntimeModelOptions } from '../thread/runtime.ts';
import type { LoadProgress } from '../transformer/types.ts';
import { LowMemorySignal } from './low-memory.ts';
import { type Settings, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';

/** What createEngine, Runtime.open and fetchFromHub take for it. */
export interface Loading {
  readonly onProgress: (progress: LoadProgress) => void;
  readonly signal: AbortSignal;
}

/** Runs `open`, and takes the line of progress away again when it has ended. */
export async function loading<T>(
  settings: Settings,
  signal: AbortSignal,
  open: (how: Loading) => Promise<T>,
): Promise<T> {
  const line = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  try {
    return await open({ onProgress: (progress) => line.load(progress), signal });
  } finally {
    line.erase();
  }
}

interface Remarked {
  readonly remarks: readonly string[];
}

/** The same for a model that is used, with a line on stderr for each thing that a person should know of its files. */
export async function loadingModel<T extends { readonly info: Remarked } | { readonly model: Remarked }>(
  settings: Settings,
  signal: AbortSignal,
  open: (how: Loading) => Promise<T>,
): Promise<T> {
  const opened = await loading(settings, signal, open);
  const { remarks } = 'info' in opened ? opened.info : opened.model;
  for (const remark of remarks) process.stderr.write(`Note: ${printable(remark)}.\n`);
  return opened;
}

/**
 * Works with an engine, which hears of low memory meanwhile, and closes it. Where its log then has entries that no
 * anchor took a checkpoint of, which an event says, that is a failure.
 */
export async function withEngine<T>(
  settings: Settings,
  options: EngineOptions,
  signal: AbortSignal,
  work: (engine: Engine) => Promise<T>,
): Promise<T> {
  const memory = new LowMemorySignal();
  try {
    const engine = await loadingModel(settings, signal, (how) => createEngine({ ...options, ...how }));
    try {
      memory.reaches(engine);
      return await work(engine);
    } finally {
      await engine.close();
      if ((engine.unanchoredEntries ?? 0) > 0) process.exitCode = 2;
    }
  } finally {
    memory.end();
  }
}

/** The same with several models on one budget. Throws 'bad-argument' for adapters, which are of one model. */
export async function withRuntime<T>(
  settings: Settings,
  { models, ...options }: EngineOptions & { readonly models: readonly string[] },
  signal: AbortSignal,
  work: (runtime: EngineRuntime) => Promise<T>,
): Promise<T> {
  const { model: _, dense, activations, adapters, threads, cacheDir, offline, ...shared } = options;
  if (adapters !== undefined)
    throw new KvError('bad-argument', '--lora names adapters of one model, and several are named', {
      hint: 'leave out --lora, or name one model',
    });
  const own = given<Omit<RuntimeModelOptions, 'model'>>({ dense, activations, threads, cacheDir, offline });
  const memory = new LowMemorySignal();
  try {
    const runtime = await createRuntime(shared);
    try {
      for (const model of models)
        await loadingModel(settings, signal, (how) => runtime.openEngine({ ...own, model, ...how }));
      memory.reaches(runtime);
      return await work(runtime);
    } finally {
      await runtime.close();
      if ((runtime.unanchoredEntries ?? 0) > 0) process.exitCode = 2;
    }
  } finally {
    memory.end();
  }
}

/**
 * Opens a session or a conversation. That imports the module of a policy, which may never end and hears no signal: so
 * an abort ends the thread of the engine, until `work` says that it is opened. Throws 'aborted'.
 */
export async function opening<T>(
  engine: Pick<Engine, 'terminate'>,
  signal: AbortSignal,
  work: (opened: () => void) => Promise<T>,
): Promise<T> {
  let isEnded = false;
  const end = (): void => {
    isEnded = true;
    void engine.terminate();
  };
  const opened = (): void => signal.removeEventListener('abort', end);
  const aborted = (cause?: unknown): KvError => new KvError('aborted', 'aborted while a session was opened', { cause });
  if (signal.aborted) throw aborted();
  signal.addEventListener('abort', end, { once: true });
  try {
    return await work(opened);
  } catch (error) {
    throw isEnded ? aborted(error) : error;
  } finally {
    opened();
  }
}
