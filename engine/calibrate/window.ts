/**
 * Measures one window of text: reads most of it with every page in 8 bits, then asks for each layer, side and format
 * what the tokens that follow lose when all its pages take that format, and what trials with the queries of the same
 * tokens say.
 */
import { createHash } from 'node:crypto';
import {
  type FormatName,
  given,
  KvError,
  movablePages,
  PAGE_TOKENS,
  pageOf,
  SIDES,
  type Side,
  servesSide,
  TRIAL_CANDIDATES,
} from '../../native/index.ts';
import { createPolicy, defaultThresholds, type Policy, type TrialReport } from '../../policy/index.ts';
import type { Probe } from '../session/probe.ts';
import type { ReadOptions } from '../session/prompt.ts';
import { Session } from '../session/session.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { CalibrationSettings, MeasuredSide, MeasuredWindow } from './measured.ts';

/** What was just measured, and how much of the window is done. */
export interface WindowProgress {
  readonly done: number;
  readonly total: number;
}

/** One window, ready to be measured. */
export interface WindowTokens {
  /** Name of its text, for tables. */
  readonly text: string;
  readonly digest: string;
  readonly tokens: readonly number[];
}

/** SHA-256 of the token ids, by which a window is known again. */
export const digestOfTokens = (tokens: readonly number[]): string =>
  createHash('sha256').update(Int32Array.from(tokens)).digest('hex');

/** Has all pages tried and moves none. */
function collector(reports: TrialReport[]): Policy {
  const none = createPolicy('none', {});
  return {
    id: 'calibrate',
    version: 1,
    needsTrials: true,
    open: (context) => {
      const session = none.open(context);
      return {
        decide: (situation) => {
          reports.push(...situation.trials);
          return [];
        },
        judge: (decision, epsilonNow) => session.judge(decision, epsilonNow),
        summary: () => session.summary(),
      };
    },
  };
}

/**
 * Measures what `known`, the same window as far as an earlier run came, has not. `onMeasured` sees the window after
 * every probe; it is one object that grows. Throws 'aborted'.
 */
export async function measureWindow(
  runtime: Runtime,
  settings: CalibrationSettings,
  window: WindowTokens,
  known: MeasuredWindow | undefined,
  onMeasured: (window: MeasuredWindow, progress: WindowProgress) => void,
  signal?: AbortSignal,
): Promise<MeasuredWindow> {
  const { history, later, layers } = settings;
  const { tokens } = window;
  const reports: TrialReport[] = [];
  const session = Session.open(runtime, {
    policy: collector(reports),
    tokensExpected: tokens.length,
    log: null,
    thresholds: defaultThresholds(layers),
  });
  let probe: Probe | null = null;
  try {
    const reading = given<ReadOptions>({ signal });
    await session.read(tokens.slice(0, history), reading);
    const before = known === undefined ? trialsNow(session, settings) : [];
    probe = session.probe(Array.from({ length: layers }, (_, layer) => layer));
    // Trials see the queries of the last page, so they are made after each: then ε and divergence are of the same
    // tokens.
    const behind: Trial[][] = [];
    for (let at = history; at < history + later; at += PAGE_TOKENS) {
      await session.read(tokens.slice(at, Math.min(at + PAGE_TOKENS, history + later)), reading);
      if (known === undefined) behind.push(trialsNow(session, settings));
    }
    const measured = known ?? tried(settings, window, reports, before, behind);
    await probeAll(probe, measured, onMeasured, signal);
    return measured;
  } finally {
    probe?.close();
    session.close();
  }
}

/** Runs the probes that were not run yet. */
async function probeAll(
  probe: Probe,
  measured: MeasuredWindow,
  onMeasured: (window: MeasuredWindow, progress: WindowProgress) => void,
  signal: AbortSignal | undefined,
): Promise<void> {
  const pages = Array.from({ length: measured.pages }, (_, page) => page);
  const all = SIDES.flatMap((side) =>
    Object.entries(measured[side].probed).flatMap(([format, { kld }]) =>
      kld.map((found, layer) => ({ side, format: format as FormatName, layer, kld, isDone: found !== null })),
    ),
  );
  let done = all.filter(({ isDone }) => isDone).length;
  for (const { side, format, layer, kld } of all.filter(({ isDone }) => !isDone)) {
    if (signal?.aborted)
      throw new KvError('aborted', 'aborted between two probes', { values: { done, total: all.length } });
    const klds = await probe.divergence([{ layer, side, format, pages }]);
    kld[layer] = klds.reduce((sum, one) => sum + one, 0) / klds.length;
    done++;
    onMeasured(measured, { done, total: all.length });
    // Lets Ctrl-C be noticed.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

interface Trial {
  readonly layer: number;
  readonly page: number;
  readonly side: Side;
  readonly format: string;
  readonly epsilon: number;
  /** Pages of newer tokens behind it. */
  readonly age: number;
}

/**
 * Tries the pages that probes change, in the formats that they get, with the queries of now. Pages that no query sees
 * are left out.
 */
function trialsNow(session: Session, { history, layers, formats }: CalibrationSettings): Trial[] {
  const candidates = SIDES.flatMap((side) => formats[side].map((format) => ({ side, format: format as FormatName })));
  const found: Trial[] = [];
  for (let layer = 0; layer < layers; layer++) {
    for (let page = 0; page < movablePages(history); page++) {
      const age = Math.max(1, pageOf(session.length) - page - 1);
      for (const [at, epsilon] of session.cache.trial(layer, page, candidates).entries())
        if (Number.isFinite(epsilon)) found.push({ layer, page, ...candidates[at]!, epsilon, age });
    }
  }
  return found;
}

/**
 * What trials say: those made when pages left the window, those of now, and how the two differ by age, before the last
 * tokens and behind them.
 */
function tried(
  { history, layers, formats }: CalibrationSettings,
  { text, digest }: WindowTokens,
  reports: readonly TrialReport[],
  before: readonly Trial[],
  behind: readonly (readonly Trial[])[],
): MeasuredWindow {
  const now = behind.flat();
  const first = new Map<string, number>();
  for (const { layer, page, side, epsilon } of reports)
    for (const [format, value] of Object.entries(epsilon)) first.set([layer, page, side, format].join(), value);
  const ages = new Map<number, { age: number; now: number; first: number }>();
  for (const { layer, page, side, format, epsilon, age } of [...before, ...now]) {
    const promised = first.get([layer, page, side, format].join());
    if (promised === undefined) continue;
    const sums = ages.get(age) ?? { age, now: 0, first: 0 };
    ages.set(age, { age, now: sums.now + epsilon ** 2, first: sums.first + promised ** 2 });
  }
  const pages = movablePages(history);
  const sideOf = (side: Side): MeasuredSide => {
    const candidates = TRIAL_CANDIDATES.filter((format) => servesSide(format, side));
    const logsOf = (format: FormatName, layer: number): number[] =>
      Array.from({ length: pages }, (_, page) => first.get([layer, page, side, format].join()) ?? 0)
        .filter((epsilon) => epsilon > 0)
        .map(Math.log);
    const perLayer = <T>(of: (layer: number) => T): T[] => Array.from({ length: layers }, (_, layer) => of(layer));
    return {
      first: Object.fromEntries(
        candidates.map((format) => {
          const logs = perLayer((layer) => logsOf(format, layer));
          return [format, { ln: logs.map(mean), sd: logs.map(deviation) }];
        }),
      ),
      probed: Object.fromEntries(
        formats[side].map((format) => {
          const energy = new Array<number>(layers).fill(0);
          for (const one of now)
            if (one.side === side && one.format === format) energy[one.layer]! += one.epsilon ** 2 / behind.length;
          return [format, { energy, kld: perLayer(() => null) }];
        }),
      ),
    };
  };
  return {
    text,
    digest,
    pages,
    k: sideOf('k'),
    v: sideOf('v'),
    ages: [...ages.values()].sort((a, b) => a.age - b.age),
  };
}

/** null for none. */
const mean = (values: readonly number[]): number | null =>
  values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values: readonly number[]): number | null => {
  const middle = mean(values);
  return middle === null ? null : Math.sqrt(mean(values.map((value) => (value - middle) ** 2))!);
};
