/** A session in numbers: what its bytes are, where they went, and what it cost to decide. */
import { FORMAT_NAMES, pageBytes } from '../native/index.ts';
import { f16CacheBytes } from './budget.ts';
import type { Governed } from './governed.ts';
import type { StepTimes } from './step.ts';
import type { LayerReport, SessionReport } from './types.ts';

export function reportOf(cache: Governed, model: StepTimes & { readonly dense: string }): SessionReport {
  const { shape, plan, kv, log, mover, spent, summary, length: tokens } = cache;
  const memory = kv.memory();
  const kvBytesF16 = f16CacheBytes(shape, tokens);
  const kvBytes = cache.peakBytes;
  const counted = Array.from({ length: shape.layers }, (_, layer) => kv.skipped(layer));
  return {
    session: cache.id,
    policy: plan.policy.id,
    tokens,
    kvBytes,
    kvBytesNow: memory.totalBytes,
    reservedBytes: cache.pool.reservedBytes,
    reservedPeakBytes: cache.pool.reservedPeakBytes,
    kvBytesF16,
    scratchBytes: memory.scratchBytes,
    budgetBytes: plan.budgetBytes,
    gaveWay: cache.gaveWay,
    effectiveBits: kvBytesF16 === 0 ? 0 : (16 * kvBytes) / kvBytesF16,
    memory,
    valuesMet: counted.reduce((sum, { met }) => sum + met, 0),
    valuesSkipped: counted.reduce((sum, { skipped }) => sum + skipped, 0),
    layers: Array.from({ length: shape.layers }, (_, layer) =>
      layerReport(cache, layer, summary.layerStates[layer] ?? ''),
    ),
    decisions: mover.decisions,
    refusedTrials: mover.refused,
    notable: mover.notable,
    summary,
    ...spent,
    ...model,
    shared: cache.shared,
    logPath: log?.dir ?? null,
    acknowledgedSeq: log?.acknowledgedSeq ?? -1,
    missingEntries: log?.missingOf(cache.id) ?? 0,
  };
}

/** Share of all sealed pages that each format has, for keys and for values; empty without pages. */
export function formatShares({ shape, kv }: Governed): { k: Record<string, number>; v: Record<string, number> } {
  const tables = Array.from({ length: shape.layers }, (_, layer) => kv.table(layer));
  const sharesOf = (ids: readonly number[]): Record<string, number> =>
    Object.fromEntries(Object.entries(countFormats(ids)).map(([name, count]) => [name, count / ids.length]));
  return {
    k: sharesOf(tables.flatMap(({ kFormat }) => [...kFormat])),
    v: sharesOf(tables.flatMap(({ vFormat }) => [...vFormat])),
  };
}

function layerReport({ shape, kv, counts, length }: Governed, layer: number, state: string): LayerReport {
  const { kvHeads, headDim, layers } = shape;
  const { kFormat, vFormat } = kv.table(layer);
  const sideBytes = (id: number): number => pageBytes(FORMAT_NAMES[id]!, kvHeads, headDim);
  const { openBytes, sinkBytes } = kv.memory();
  const bytes = [...kFormat, ...vFormat].reduce((sum, id) => sum + sideBytes(id), (openBytes + sinkBytes) / layers);
  const { tried, accepted, refused, epsilonMax } = counts[layer]!;
  return {
    layer,
    kPages: countFormats(kFormat),
    vPages: countFormats(vFormat),
    effectiveBits: length === 0 ? 0 : (bytes * 8) / (2 * kvHeads * headDim * length),
    movesTried: tried,
    movesAccepted: accepted,
    movesRefused: refused,
    epsilonMax,
    state,
  };
}

function countFormats(ids: Iterable<number>): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const id of ids) counts[FORMAT_NAMES[id]!] = (counts[FORMAT_NAMES[id]!] ?? 0) + 1;
  return counts;
}
