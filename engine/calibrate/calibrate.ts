/**
 * Measures windows of texts one after the other and fits the law of errors to them; what an earlier run measured is not
 * measured again.
 */
import {
  FORMATS,
  type FormatName,
  KvError,
  PAGE_TOKENS,
  plural,
  SIDES,
  type Side,
  servesSide,
  TRIAL_CANDIDATES,
} from '../../native/index.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { activationProbes, activationsDone, measureActivations } from './activations.ts';
import {
  type CalibrationSettings,
  type Measured,
  type MeasuredWindow,
  resumeMeasured,
  writeMeasured,
} from './measured.ts';
import { digestOfTokens, measureWindow, type WindowProgress, type WindowTokens } from './window.ts';

/** Tokens at the end of a window whose divergence is measured: two pages. */
export const LATER_TOKENS = 2 * PAGE_TOKENS;
/** Movable pages that a window needs, so that errors can be seen to fade. */
const PAGES_LEAST = 3;

/** Seconds between two writings of what was measured. */
const WRITE_SECONDS = 5;

export interface CalibrationText {
  /** Goes into tables and the file of measurements, nothing else of a text does. */
  readonly name: string;
  readonly content: string;
}

export interface CalibrationRequest {
  readonly texts: readonly CalibrationText[];
  /** Tokens of a window. */
  readonly tokens: number;
  /** Windows of each text, spread evenly over it. */
  readonly windows: number;
  /** File of measurements, which is read first and written as they come. */
  readonly path: string;
  readonly signal?: AbortSignal;
  readonly onProgress?: (window: MeasuredWindow, done: number, total: number) => void;
}

/**
 * The lowest two formats of each side that nest, which cost least to write: their divergence is the largest, so it is
 * the most certain. Lowest last.
 */
export const probedFormats = (side: Side): FormatName[] =>
  TRIAL_CANDIDATES.filter((format) => servesSide(format, side) && FORMATS[format].nested).slice(-2);

/**
 * Throws 'bad-argument' for texts or windows that are too short, 'context-too-long', 'aborted', and what resumeMeasured
 * throws, before anything is measured.
 */
export async function calibrate(runtime: Runtime, request: CalibrationRequest): Promise<Measured> {
  const windows = windowsOf(runtime, request);
  const settings = settingsOf(runtime, request.tokens);
  const measured = resumeMeasured(request.path, settings);
  const rounded = activationProbes(runtime);
  const probed = SIDES.reduce((sum, side) => sum + settings.formats[side].length * settings.layers, 0);
  const probes = probed + rounded;
  let written = performance.now();
  const save = (): void => {
    writeMeasured(request.path, measured);
    written = performance.now();
  };
  for (const [index, window] of windows.entries()) {
    const known = measured.windows.find(({ digest }) => digest === window.digest);
    const isProbed = known !== undefined && isComplete(known);
    if (isProbed && activationsDone(known) >= rounded) continue;
    const keep = (found: MeasuredWindow, done: number): void => {
      if (!measured.windows.includes(found)) measured.windows.push(found);
      if (performance.now() - written > 1000 * WRITE_SECONDS) save();
      request.onProgress?.(found, index * probes + done, windows.length * probes);
    };
    try {
      const told = (one: MeasuredWindow, { done }: WindowProgress): void => keep(one, done);
      const found = isProbed ? known : await measureWindow(runtime, settings, window, known, told, request.signal);
      if (rounded === 0) continue;
      const first = { tokens: window.tokens.slice(0, LATER_TOKENS) };
      await measureActivations(
        runtime,
        first,
        found,
        () => keep(found, probed + activationsDone(found)),
        request.signal,
      );
    } finally {
      if (measured.windows.length > 0) save();
    }
  }
  return measured;
}

/** True if every probe of pages of the window was run. */
export const isComplete = ({ k, v }: MeasuredWindow): boolean =>
  [k, v].every(({ probed }) => Object.values(probed).every(({ kld }) => kld.every((one) => one !== null)));

function settingsOf({ model, dense, shape }: Runtime, tokens: number): CalibrationSettings {
  return {
    modelDigest: model.digest,
    layers: shape.layers,
    dense: `${dense.name} ${Object.keys(dense.weightTypes).sort().join(' ')}`.slice(0, 80),
    history: tokens - LATER_TOKENS,
    later: LATER_TOKENS,
    formats: { k: probedFormats('k'), v: probedFormats('v') },
  };
}

/** The windows of a request. Throws 'bad-argument' for texts or windows that are too short, 'context-too-long'. */
export function windowsOf(
  { model }: Runtime,
  { texts, tokens, windows }: Pick<CalibrationRequest, 'texts' | 'tokens' | 'windows'>,
): WindowTokens[] {
  const { contextLength } = model.config;
  if (tokens > contextLength)
    throw new KvError('context-too-long', `windows of ${tokens} tokens exceed the context of ${contextLength}`, {
      values: { tokens, contextLength },
    });
  const least = LATER_TOKENS + (PAGES_LEAST + 1) * PAGE_TOKENS;
  if (tokens < least)
    throw new KvError('bad-argument', `a calibration needs windows of ${least} tokens at least, not ${tokens}`, {
      values: { tokens, least },
    });
  const { tokenizer } = model;
  const head = tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  const length = tokens - head.length;
  return texts.flatMap(({ name, content }) => {
    const ids = tokenizer.encode(content);
    if (ids.length < length * windows)
      throw new KvError(
        'bad-argument',
        `${name} has ${plural(ids.length, 'token')}, but ${plural(windows, 'window')} ${windows === 1 ? 'needs' : 'need'} ${length * windows}`,
        {
          values: { text: name, tokens: ids.length, needed: length * windows },
          hint: 'give a longer text, or fewer or shorter windows with --windows and --tokens',
        },
      );
    return Array.from({ length: windows }, (_, window) => {
      const at = Math.floor(((ids.length - length * windows) * (window + 0.5)) / windows) + window * length;
      const made = [...head, ...ids.slice(at, at + length)];
      return { text: name, digest: digestOfTokens(made), tokens: made };
    });
  });
}
