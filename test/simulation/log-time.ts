/**
 * Time that passes only when the simulation says so. It stands in for timers and for waits of a blocked thread, and
 * disks complete their work in it, so that the order of everything follows from a seed and half a minute of waiting
 * takes no time.
 */
export interface Timer {
  readonly atMs: number;
  readonly run: () => void;
}

/** All that is to run of promises and callbacks has run after one turn of the real event loop. */
export const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

export class SimulatedTime {
  /** Milliseconds since the simulation began. */
  nowMs = 0;
  /** What the clock on the wall is ahead; a jump of the clock changes it. */
  offsetMs = 1_700_000_000_000;
  readonly #timers = new Set<Timer>();

  /** The clock of the log: whole milliseconds since the epoch. */
  readonly clock = (): number => Math.floor(this.nowMs) + this.offsetMs;

  later(ms: number, run: () => void): Timer {
    const timer = { atMs: this.nowMs + Math.max(0, ms), run };
    this.#timers.add(timer);
    return timer;
  }

  /** Runs what is due next, at its time. → false when nothing is to come */
  step(): boolean {
    let next: Timer | null = null;
    for (const timer of this.#timers) if (next === null || timer.atMs < next.atMs) next = timer;
    if (next === null) return false;
    this.#timers.delete(next);
    this.nowMs = Math.max(this.nowMs, next.atMs);
    next.run();
    return true;
  }

  /** Nothing of what was to come will: its process is dead. */
  forget(): void {
    this.#timers.clear();
  }

  /** Puts this time in the place of the real one, for the production code of this process. → puts the real one back */
  install(): () => void {
    const { setTimeout, clearTimeout } = globalThis;
    const { wait } = Atomics;
    globalThis.setTimeout = ((run: () => void, ms = 0) => this.later(ms, run)) as unknown as typeof setTimeout;
    globalThis.clearTimeout = ((timer: Timer) => void this.#timers.delete(timer)) as unknown as typeof clearTimeout;
    Atomics.wait = ((_array: Int32Array, _index: number, _value: number, ms: number) => {
      this.nowMs += ms;
      return 'timed-out';
    }) as typeof Atomics.wait;
    return () => {
      Object.assign(globalThis, { setTimeout, clearTimeout });
      Atomics.wait = wait;
    };
  }
}
