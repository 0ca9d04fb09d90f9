/**
 * Whether the memory that sessions share thrashes: how much of what was parked comes back soon, step by step, and how
 * many calls a policy then lets work at once (policy/thrash.ts). What comes back after a while was rightly parked.
 */
import { type Concurrency, concurrencyAfter, refaultRatio, type ThrashWindow, UNBOUNDED } from '../../policy/index.ts';
import type { Meter } from '../metrics/meter.ts';

/** Steps of a window. Chosen: seconds of many who write, and less than the time in which somebody thinks. */
export const WINDOW_STEPS = 256;

const EMPTY: ThrashWindow = { reclaimedBytes: 0, refaultedBytes: 0, workingCalls: 0, wantedCalls: 0 };

export class Thrash {
  readonly #meter: Meter;
  /** What was parked, and at which step. */
  readonly #parked = new WeakMap<object, { readonly step: number; readonly bytes: number }>();
  #steps = 0;
  #window = EMPTY;
  #concurrency: Concurrency = UNBOUNDED;

  constructor(meter: Meter) {
    this.#meter = meter;
    meter.concurrencyLimit.set({}, Number.POSITIVE_INFINITY);
    meter.refaultRatio.set({}, 0);
  }

  /** Most calls at work at once. */
  get callsMax(): number {
    return this.#concurrency.callsMax ?? Number.POSITIVE_INFINITY;
  }

  /** How many steps there were. */
  get steps(): number {
    return this.#steps;
  }

  /** A session was parked because others need so many bytes of it. */
  parked(session: object, bytes: number): void {
    this.#parked.set(session, { step: this.#steps, bytes });
    this.#window = { ...this.#window, reclaimedBytes: this.#window.reclaimedBytes + bytes };
    this.#meter.reclaimedBytes.add({}, bytes);
  }

  /** A session that was parked is used again. */
  cameBack(session: object): void {
    const { step, bytes } = this.#parked.get(session) ?? { step: Number.NEGATIVE_INFINITY, bytes: 0 };
    this.#parked.delete(session);
    if (this.#steps - step > WINDOW_STEPS) return;
    this.#window = { ...this.#window, refaultedBytes: this.#window.refaultedBytes + bytes };
    this.#meter.refaultedBytes.add({}, bytes);
  }

  /** A step was taken while so many calls were at work and waited. → whether another number may be at work now */
  stepped(working: number, waiting: number): boolean {
    const { workingCalls, wantedCalls } = this.#window;
    this.#window = {
      ...this.#window,
      workingCalls: Math.max(workingCalls, working),
      wantedCalls: Math.max(wantedCalls, working + waiting),
    };
    if (++this.#steps % WINDOW_STEPS !== 0) return false;
    const before = this.#concurrency;
    const window = this.#window;
    this.#concurrency = concurrencyAfter(before, window);
    this.#window = EMPTY;
    this.#meter.refaultRatio.set({}, refaultRatio(window));
    if (this.#concurrency.callsMax === before.callsMax) return false;
    this.#tell(before, window);
    return true;
  }

  #tell(before: Concurrency, { reclaimedBytes, refaultedBytes }: ThrashWindow): void {
    const calls = this.#concurrency.callsMax;
    this.#meter.concurrencyLimit.set({}, this.callsMax);
    if (calls === null) this.#meter.tell('calls-unbounded', {});
    else if (calls < (before.callsMax ?? Number.POSITIVE_INFINITY))
      this.#meter.tell('calls-fewer', { calls, reclaimedBytes, refaultedBytes });
    else this.#meter.tell('calls-more', { calls });
  }
}
