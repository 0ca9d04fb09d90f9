/**
 * The best table of formats per layer and side in hindsight. Probes tell what each format of one layer and side does to
 * the end of this very passage; from 8 bits on, the step that adds the least divergence per byte saved is taken until
 * the budget is kept.
 */

import { termsOf } from '../../engine/cache/terms.ts';
import { SCORED_TOKENS } from '../../engine/evaluate/evaluate.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import {
  FORMAT_NAMES,
  type FormatName,
  type FormatPair,
  KvError,
  movablePages,
  pageBytes,
  SIDES,
  type Side,
  servesSide,
  TRIAL_CANDIDATES,
  WINDOW_FORMAT,
} from '../../native/index.ts';
import { defaultThresholds, isUselessPair } from '../../policy/index.ts';
import type { Passage } from './passages.ts';

/** Divergence of one format of one layer and side, in nats. */
export interface SideCost {
  readonly layer: number;
  readonly side: Side;
  readonly format: FormatName;
  readonly kld: number;
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Measures every layer, side and format while the scored tokens of the passage are read over a history in 8 bits. */
export async function measureSides(
  runtime: Runtime,
  { ids }: Passage,
  probedTokens: number,
  say: (line: string) => void,
): Promise<SideCost[]> {
  const { layers } = runtime.shape;
  const history = ids.length - SCORED_TOKENS;
  const thresholds = defaultThresholds(layers);
  const session = Session.open(runtime, { policy: 'none', log: null, thresholds, tokensExpected: ids.length });
  try {
    await session.read(ids.slice(0, history));
    const pages = Array.from({ length: movablePages(history) }, (_, page) => page);
    const all = Array.from({ length: layers }, (_, layer) => layer);
    const probe = session.probe(all);
    await session.read(ids.slice(history, history + probedTokens));
    const costs: SideCost[] = [];
    for (const layer of all) {
      for (const side of SIDES)
        for (const format of TRIAL_CANDIDATES.filter((one) => servesSide(one, side)))
          costs.push({ layer, side, format, kld: mean(await probe.divergence([{ layer, side, format, pages }])) });
      say(`  layer ${layer + 1} of ${layers} probed`);
    }
    probe.close();
    return costs;
  } finally {
    session.close();
  }
}

/** The tables on the way down, each one step below the one before; the first has 8 bits throughout. */
export function descent(runtime: Runtime, costs: readonly SideCost[]): FormatPair[][] {
  const { layers, kvHeads, headDim } = runtime.shape;
  const bytes = (format: FormatName): number => pageBytes(format, kvHeads, headDim);
  const costOf = new Map(costs.map(({ layer, side, format, kld }) => [`${layer} ${side} ${format}`, kld]));
  const kldOf = (layer: number, side: Side, format: FormatName): number =>
    format === WINDOW_FORMAT ? 0 : (costOf.get(`${layer} ${side} ${format}`) ?? Number.POSITIVE_INFINITY);
  const table: Record<Side, FormatName>[] = Array.from({ length: layers }, () => ({
    k: WINDOW_FORMAT,
    v: WINDOW_FORMAT,
  }));
  const tables: FormatPair[][] = [table.map((pair) => ({ ...pair }))];
  for (;;) {
    let best: { layer: number; side: Side; format: FormatName; price: number } | null = null;
    // Formats stand from the finest to the coarsest.
    for (const [layer, pair] of table.entries())
      for (const side of SIDES)
        for (const format of FORMAT_NAMES.slice(FORMAT_NAMES.indexOf(pair[side]) + 1)) {
          const after = { ...pair, [side]: format };
          const saved = bytes(pair[side]) - bytes(format);
          const price = (kldOf(layer, side, format) - kldOf(layer, side, pair[side])) / saved;
          if (!Number.isFinite(price) || saved <= 0 || isUselessPair(after.k, after.v)) continue;
          if (best === null || price < best.price) best = { layer, side, format, price };
        }
    if (best === null) return tables;
    table[best.layer]![best.side] = best.format;
    tables.push(table.map((pair) => ({ ...pair })));
  }
}

/** The finest of these tables that keeps a byte budget; null where none does. */
export function tableWithin(
  runtime: Runtime,
  tables: readonly FormatPair[][],
  kvBudget: string,
  tokensExpected: number,
): SessionOptions | null {
  for (const cacheTypes of tables) {
    const options = { policy: 'table', cacheTypes, kvBudget } as const;
    try {
      termsOf(runtime.shape, { ...options, tokensExpected }, defaultThresholds(runtime.shape.layers));
      return options;
    } catch (error) {
      if (!(error instanceof KvError && error.code === 'budget-too-small')) throw error;
    }
  }
  return null;
}
