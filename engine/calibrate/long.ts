/**
 * Measures how divergence grows beyond the length at which the law of errors is fitted. Beyond the lengths that a model
 * was trained for it rises by a power of the length that belongs to the model, and a session learns that only once it
 * is there. Long windows are read within a stated divergence, and what their last tokens have is put beside what was
 * predicted of them.
 */
import { plural } from '../../native/index.ts';
import {
  FITTED_TOKENS,
  rangeOf,
  type Threshold,
  type ThresholdSet,
  thresholdOf,
  withThreshold,
} from '../../policy/index.ts';
import { compareWithExact } from '../evaluate/compare.ts';
import { SCORED_TOKENS } from '../evaluate/evaluate.ts';
import { Session } from '../session/session.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { type CalibrationText, windowsOf } from './calibrate.ts';
import type { Measured, MeasuredLong } from './measured.ts';
import type { WindowTokens } from './window.ts';

/** What these sessions state: in the middle of what people ask for, as a geometric mean. */
const STATED_NATS = 0.01;
/** The length of windows where nobody says one. */
const TOKENS_DEFAULT = 2 * FITTED_TOKENS;
/** Shorter windows say little of a power. */
const TOKENS_LEAST = 1.5 * FITTED_TOKENS;
/** The threshold that this is measured for. */
const POWER = 'divergence.length';

export interface LongRequest {
  readonly texts: readonly CalibrationText[];
  /** Tokens of a window; left out: twice the length of the law, or the context of the model. 0: nothing is measured. */
  readonly tokens?: number | undefined;
  readonly signal: AbortSignal;
  /** Hears which text is read next, and how many of how many sessions are done. */
  readonly onProgress?: (text: string, done: number, total: number) => void;
  /** Called when a session is done. */
  readonly onMeasured?: () => void;
}

/**
 * Adds to `measured` what it lacks: one window of every text that has one, read by a session that thinks that
 * divergence does not grow. Throws 'context-too-long', 'aborted'.
 */
export async function measureLong(
  runtime: Runtime,
  measured: Pick<Measured, 'long'>,
  thresholds: ThresholdSet,
  request: LongRequest,
): Promise<void> {
  const windows = longWindows(runtime, request);
  if (windows.length === 0) return;
  const found = (measured.long ??= []);
  for (const [done, window] of windows.entries()) {
    if (found.some(({ digest }) => digest === window.digest)) continue;
    request.onProgress?.(window.text, done, windows.length);
    found.push(await read(runtime, withPower(thresholds, 0), window, request.signal));
    request.onMeasured?.();
  }
}

/** Windows that are long enough to say something; none where the context is too short or no text has one. */
function longWindows(runtime: Runtime, { texts, tokens: asked }: LongRequest): WindowTokens[] {
  const tokens = asked ?? Math.min(TOKENS_DEFAULT, runtime.model.config.contextLength);
  if (tokens < TOKENS_LEAST) return [];
  const { tokenizer } = runtime.model;
  const isLong = ({ content }: CalibrationText): boolean => tokenizer.encode(content).length >= tokens;
  return windowsOf(runtime, { texts: texts.filter(isLong), tokens, windows: 1 });
}

async function read(
  runtime: Runtime,
  thresholds: ThresholdSet,
  { text, digest, tokens }: WindowTokens,
  signal: AbortSignal,
): Promise<MeasuredLong> {
  const session = Session.open(runtime, {
    ...{ thresholds, log: null, kldBudget: STATED_NATS },
    ...{ tokensExpected: tokens.length, compareTokens: SCORED_TOKENS },
  });
  try {
    await session.read(tokens, { signal });
    const { meanKld } = await compareWithExact(session, signal);
    const { predictedKld } = session.report().summary;
    return { text, digest, tokens: tokens.length, kld: meanKld, predicted: predictedKld };
  } finally {
    session.close();
  }
}

const withPower = (set: ThresholdSet, value: number, found: Partial<Threshold> = {}): ThresholdSet =>
  withThreshold(set, { ...thresholdOf(set, POWER), value, ...found });

/** The power with which one session would have predicted rightly; null: it says nothing. */
const shownBy = ({ tokens, kld, predicted }: MeasuredLong): number | null =>
  kld > 0 && predicted > 0 ? Math.log(kld / predicted) / Math.log(tokens / FITTED_TOKENS) : null;

/**
 * The power with which predictions come true in the mean; null: nobody shows anything. Sessions that count on it move
 * less, and of what they move less comes than that; a lower power would be right for these, and a session that counted
 * on it would exceed what it states (docs/lab/policy.md).
 */
export function powerOf(found: readonly MeasuredLong[]): number | null {
  const shown = found.map(shownBy).filter((power) => power !== null);
  if (shown.length === 0) return null;
  const mean = shown.reduce((sum, power) => sum + power, 0) / shown.length;
  const { min, max } = rangeOf(POWER);
  return Math.min(max, Math.max(min, mean));
}

/** The set with what was found, if anything was. */
export function withGrowth(set: ThresholdSet, found: readonly MeasuredLong[]): ThresholdSet {
  const power = powerOf(found);
  if (power === null) return set;
  const windows = new Set(found.map(({ digest }) => digest)).size;
  const tokens = Math.max(...found.map((one) => one.tokens));
  return withPower(set, Number(power.toPrecision(3)), {
    origin: 'learned',
    samples: windows,
    source: `${plural(windows, 'window')} of ${tokens} tokens, read within a stated divergence of ${STATED_NATS} nats (calibrated)`,
  });
}
