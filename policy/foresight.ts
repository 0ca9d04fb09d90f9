/**
 * Whether a session keeps latents, decided once, when it begins, by what can be foreseen of its end: how many bytes a
 * latent takes beside codes that err as much, how long the session gets, how much of the budget its pages would take
 * then in these codes, and what computing keys and values again would add to every step. All that it goes by is data
 * that stands in the log, so it can be decided again.
 */
import type { FormatName, LatentName } from '../native/index.ts';
import { type ThresholdId, thresholdOf } from './thresholds.ts';
import type { Because, ThresholdSet } from './types.ts';

/** What is known of a session when it begins, as far as latents depend on it. */
export interface Foreseen {
  /** Tokens that it is expected to reach; null: nobody knows. */
  readonly tokens: number | null;
  /** How many earlier sessions of the model say so, by the median of their lengths; 0: whoever opened it. */
  readonly sessions: number;
  /** Pages of all layers that may have moved by then. */
  readonly pages: number;
  /** Bytes that its budget leaves for these. */
  readonly roomBytes: number;
  /** The same where a latent stays beside each page in the window. */
  readonly roomBesideBytes: number;
  /** The latent that would be kept. */
  readonly format: LatentName;
  /** Bytes of such a latent of one page. */
  readonly latentBytes: number;
  /** Bytes of the keys and values of one page in codes that err as much. */
  readonly codeBytes: number;
  /** Share of its budget that it needs with latents and all pages in the lowest formats, where that is more than 1. */
  readonly leastShare: number;
  /** Operations that computing keys and values of one page again takes, in multiples of the dense half of a token. */
  readonly operations: number;
  /** Milliseconds that computing keys and values of one page again took; null: not measured. */
  readonly pageMs: number | null;
  /** Milliseconds that a step may take; null: nobody said. */
  readonly stepLatencyBudgetMs: number | null;
}

/** Whether a session keeps latents, and why. */
export interface Foresight {
  /** What it went by. */
  readonly seen: Foreseen;
  /** The latent that is kept; null: none. */
  readonly kept: LatentName | null;
  /** Pages that must be held as latents so that all others fit in codes that err as much. */
  readonly pages: number;
  /** Most operations that latents may add to a token, in multiples of its dense half; 0 where none is kept. */
  readonly operations: number;
  /** Why: the first bound that speaks against it, or else the pressure that speaks for it. */
  readonly because: Because;
}

const CODES: Readonly<Record<LatentName, FormatName>> = { xq8: 'q8', xq4: 'trellis4', xq3: 'trellis3' };

/** The codes of keys and values that have as many bits a number as a latent, and err about as much. */
export const codesLike = (format: LatentName): FormatName => CODES[format];

interface Check {
  readonly rule: string;
  readonly threshold: ThresholdId;
  readonly measured: number;
  /** Whether what was measured speaks for latents. */
  readonly passes: (measured: number, bound: number) => boolean;
}

const atMost = (measured: number, bound: number): boolean => measured <= bound;
const above = (measured: number, bound: number): boolean => measured > bound;

/** Decides it. The same data and thresholds give the same answer. */
export function foresee(seen: Foreseen, set: ThresholdSet): Foresight {
  const pages = pagesNeeded(seen);
  const pressure: Check = {
    rule: 'latent-pressure',
    threshold: 'latent.pressure',
    measured: (seen.pages * seen.codeBytes) / Math.max(1, seen.roomBytes),
    passes: above,
  };
  const checks: readonly Check[] = [
    {
      rule: 'latent-shape',
      threshold: 'latent.share',
      measured: seen.latentBytes / seen.codeBytes,
      passes: atMost,
    },
    { rule: 'latent-length', threshold: 'latent.tokens', measured: seen.tokens ?? 0, passes: above },
    pressure,
    { rule: 'latent-room', threshold: 'pressure.critical', measured: seen.leastShare, passes: atMost },
    timeOf(seen, pages),
  ];
  const boundOf = ({ threshold }: Check): number => thresholdOf(set, threshold).value;
  const failed = checks.find((check) => !check.passes(check.measured, boundOf(check)));
  const because = ({ rule, threshold, measured }: Check): Because => {
    const { value, unit, origin } = thresholdOf(set, threshold);
    return { threshold, measured, bound: value, unit, origin, rule };
  };
  if (failed !== undefined) return { seen, kept: null, pages, operations: 0, because: because(failed) };
  return { seen, kept: seen.format, pages, operations: allowed(seen, set), because: because(pressure) };
}

/** How many pages must be latents so that they and all others in codes fit; all of them where nothing does. */
function pagesNeeded({ pages, roomBesideBytes, latentBytes, codeBytes }: Foreseen): number {
  const over = pages * codeBytes - roomBesideBytes;
  if (over <= 0) return 0;
  return codeBytes <= latentBytes ? pages : Math.min(pages, Math.ceil(over / (codeBytes - latentBytes)));
}

/** What they add to a step: its share of a stated latency, or else its operations. */
function timeOf({ operations, pageMs, stepLatencyBudgetMs }: Foreseen, pages: number): Check {
  if (stepLatencyBudgetMs === null || pageMs === null)
    return { rule: 'latent-time', threshold: 'latent.foreseen', measured: pages * operations, passes: atMost };
  const measured = (pages * pageMs) / stepLatencyBudgetMs;
  return { rule: 'latent-latency', threshold: 'latent.latency', measured, passes: atMost };
}

/** The most that latents may add to a token. What `latent.operations` says of latents that were asked for holds too. */
function allowed({ operations, pageMs, stepLatencyBudgetMs }: Foreseen, set: ThresholdSet): number {
  const value = (id: ThresholdId): number => thresholdOf(set, id).value;
  const within =
    stepLatencyBudgetMs === null || pageMs === null
      ? value('latent.foreseen')
      : (value('latent.latency') * stepLatencyBudgetMs * operations) / pageMs;
  return Math.min(value('latent.operations'), within);
}
