/**
 * Where the model's thread may be ended. Node ends a thread by failing whatever it asks of it next; native code in the
 * middle of its work does not survive that, and takes the whole process along. So whoever ends the thread closes this
 * gate first: the thread stops at it between two pieces of native work and stays there, in plain JavaScript.
 */

const STATE = 0;
const CLOSED = 1;
const IDLE = 0;
const BUSY = 1;
const PARKED = 2;

/**
 * Longest wait for a piece of native work to end: one layer over 128 tokens of a model of billions of weights. Chosen,
 * not measured.
 */
const WAIT_MS = 5000;

/** The thread's side. */
export class Gate {
  readonly #words: Int32Array<SharedArrayBuffer>;
  #calls = 0;

  constructor(shared: SharedArrayBuffer) {
    this.#words = new Int32Array(shared);
  }

  /** Does `work`; whoever closes the gate meanwhile waits for its end, or for its next `pass`. */
  async during<T>(work: () => Promise<T>): Promise<T> {
    if (this.#calls++ === 0) this.#set(BUSY);
    try {
      this.pass();
      return await work();
    } finally {
      if (--this.#calls === 0) this.#set(IDLE);
    }
  }

  /** The same within `during`, for what needs nothing of the thread: whoever closes the gate does not wait for it. */
  async outside<T>(work: () => Promise<T>): Promise<T> {
    if (--this.#calls === 0) this.#set(IDLE);
    try {
      return await work();
    } finally {
      if (this.#calls++ === 0) this.#set(BUSY);
      this.pass();
    }
  }

  /** Called where no native work is under way. Never returns once the gate was closed. */
  pass(): void {
    if (Atomics.load(this.#words, CLOSED) === 0) return;
    this.#set(PARKED);
    for (;;) Atomics.wait(this.#words, STATE, PARKED);
  }

  #set(state: number): void {
    Atomics.store(this.#words, STATE, state);
    Atomics.notify(this.#words, STATE);
  }
}

/** The side of whoever may end the thread. */
export class GateKeeper {
  readonly shared = new SharedArrayBuffer(8);
  readonly #words = new Int32Array(this.shared);

  /**
   * Closes the gate and waits, without leaving the caller's turn, until the thread can be ended. → false when it would
   * not come in time.
   */
  closeNow(): boolean {
    const end = performance.now() + WAIT_MS;
    Atomics.store(this.#words, CLOSED, 1);
    while (this.isBusy) {
      const left = end - performance.now();
      if (left <= 0) return false;
      Atomics.wait(this.#words, STATE, BUSY, left);
    }
    return true;
  }

  /** The same beside other work. */
  async close(): Promise<boolean> {
    const end = performance.now() + WAIT_MS;
    Atomics.store(this.#words, CLOSED, 1);
    while (this.isBusy) {
      if (performance.now() > end) return false;
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    return true;
  }

  /** True while the thread works. */
  get isBusy(): boolean {
    return Atomics.load(this.#words, STATE) === BUSY;
  }
}

/** Gates of all threads of this process that must be closed when it exits. */
const kept = new Set<GateKeeper>();

function closeAll(): void {
  for (const gate of kept) gate.closeNow();
}

/** Makes every later exit of the process wait for this gate. */
export function keep(gate: GateKeeper): void {
  if (kept.size === 0) process.on('exit', closeAll);
  kept.add(gate);
}

/** Its thread has ended. */
export function release(gate: GateKeeper): void {
  kept.delete(gate);
  if (kept.size === 0) process.off('exit', closeAll);
}
