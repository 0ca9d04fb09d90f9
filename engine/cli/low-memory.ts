/**
 * Memory that becomes short while a command works: SIGUSR2 tells the engine so, and the next one that it is no longer.
 * Windows has no such signal.
 */
import { KvError } from '../../native/index.ts';
import type { Engine } from '../thread/engine.ts';

const SIGNAL = 'SIGUSR2';

/** What people are told when memory is said to be short, or no longer. */
export const lowMemoryText = (isLow: boolean): string =>
  isLow ? 'memory is short: pages of sessions under a policy go lower' : 'memory is no longer short';

/** Listens from the beginning, because the signal ends a process that does not. */
export class LowMemorySignal {
  #isLow = false;
  #engine: Pick<Engine, 'setLowMemory'> | null = null;
  readonly #onSignal = (): void => {
    this.#isLow = !this.#isLow;
    process.stderr.write(`\n${lowMemoryText(this.#isLow)}\n`);
    this.#tell();
  };

  constructor() {
    if (process.platform !== 'win32') process.on(SIGNAL, this.#onSignal);
  }

  /** Signals reach this engine, or runtime, from now on, and so does one that came before it was loaded. */
  reaches(engine: Pick<Engine, 'setLowMemory'>): void {
    this.#engine = engine;
    if (this.#isLow) this.#tell();
  }

  end(): void {
    process.off(SIGNAL, this.#onSignal);
  }

  #tell(): void {
    this.#engine?.setLowMemory(this.#isLow).catch((error: unknown) => {
      // An engine that is closing has nothing left to free.
      if (!(error instanceof KvError && error.code === 'closed')) process.stderr.write(`${(error as Error).message}\n`);
    });
  }
}
