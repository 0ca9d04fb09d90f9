/**
 * How many calls are at work at once where memory thrashes: where sessions that were parked for room are wanted back at
 * once, so that others are parked for them in turn. Fewer at once then need less. Pure, as all policies are.
 */

/** A stretch of steps. */
export interface ThrashWindow {
  /** Bytes that parking sessions has freed. */
  readonly reclaimedBytes: number;
  /** Bytes of sessions that came back within as many steps of when they were parked. */
  readonly refaultedBytes: number;
  /** Most calls at work at once. */
  readonly workingCalls: number;
  /** Most calls at work or waiting at once. */
  readonly wantedCalls: number;
}

export interface Concurrency {
  /** Most calls at work at once; null: as many as there is room for. */
  readonly callsMax: number | null;
  /** How many windows in a row memory has thrashed, and how many it has been calm. */
  readonly hotWindows: number;
  readonly calmWindows: number;
}

/** Chosen, not measured: above this share memory thrashes, and for so many windows until it counts. */
const HOT = 0.25;
const HOT_WINDOWS = 2;
/** The same for calm, which is believed later. */
const CALM = 0.05;
const CALM_WINDOWS = 8;

export const UNBOUNDED: Concurrency = { callsMax: null, hotWindows: 0, calmWindows: 0 };

/** Of what was parked in a window, the share that soon came back; 0 where nothing was parked. */
export const refaultRatio = ({ reclaimedBytes, refaultedBytes }: ThrashWindow): number =>
  reclaimedBytes === 0 ? 0 : refaultedBytes / reclaimedBytes;

/** What follows a window: one call fewer than were at work, never less than one, or one more. */
export function concurrencyAfter(before: Concurrency, window: ThrashWindow): Concurrency {
  const ratio = refaultRatio(window);
  const hotWindows = ratio > HOT ? before.hotWindows + 1 : 0;
  const calmWindows = ratio < CALM ? before.calmWindows + 1 : 0;
  const { callsMax } = before;
  if (hotWindows === HOT_WINDOWS) {
    const most = Math.min(callsMax ?? window.workingCalls, window.workingCalls);
    return { ...UNBOUNDED, callsMax: Math.max(1, most - 1) };
  }
  if (calmWindows < CALM_WINDOWS || callsMax === null) return { callsMax, hotWindows, calmWindows };
  // A bound that keeps nobody waiting is none.
  return { ...UNBOUNDED, callsMax: callsMax + 1 >= window.wantedCalls ? null : callsMax + 1 };
}
