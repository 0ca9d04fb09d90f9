/** A model on its way into memory, downloaded where it is not here, with its progress on stderr. */
import type { LoadProgress } from '../transformer/types.ts';
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
