/** A session in numbers: what its bytes are, where they went, and what it cost to decide. */
import { isLatent, type LaterForm, type PageForm } from '../../policy/index.ts';
import { f16CacheBytes } from './budget.ts';
import { formsBySide } from './forms.ts';
import type { Governed } from './governed.ts';
import type { StepTimes } from './stepper.ts';
import type { LayerReport, SessionReport } from './types.ts';

/** What a cache does not know of itself. */
type Beside = StepTimes & Pick<SessionReport, 'dense' | 'activations' | 'pressure'>;

export function reportOf(cache: Governed, beside: Beside): SessionReport {
  const { shape, terms, kv, log, mover, tally, summary, away, length: tokens } = cache;
  const memory = kv.memory();
  const kvBytesF16 = f16CacheBytes(shape, tokens);
  const kvBytes = cache.peakBytes;
  const counted = Array.from({ length: shape.layers }, (_, layer) => kv.skipped(layer));
  return {
    session: cache.id,
    policy: terms.policy.id,
    tokens,
    kvBytes,
    kvBytesNow: memory.totalBytes + (away?.heldBytes ?? 0),
    parked: away === null ? null : { place: away.place, bytes: away.parkedBytes, kvBytes: away.kvBytes },
    reservedBytes: cache.pool.reservedBytes,
    reservedPeakBytes: cache.pool.reservedPeakBytes,
    kvBytesF16,
    scratchBytes: memory.scratchBytes,
    budgetBytes: terms.budgetBytes,
    gaveWay: cache.gaveWay,
    stated: cache.stated?.report() ?? null,
    growth: cache.growing.report(),
    originals: cache.originalsReport,
    damage: cache.mending.report(),
    effectiveBits: kvBytesF16 === 0 ? 0 : (16 * kvBytes) / kvBytesF16,
    memory,
    valuesMet: counted.reduce((sum, { met }) => sum + met, 0),
    valuesSkipped: counted.reduce((sum, { skipped }) => sum + skipped, 0),
    layers: Array.from({ length: shape.layers }, (_, layer) =>
      layerReport(cache, layer, summary.layerStates[layer] ?? ''),
    ),
    decisions: tally.decisions,
    refusedTrials: tally.refused,
    notable: mover.notable,
    summary,
    ...tally.spent,
    ...beside,
    shared: cache.shared,
    logPath: log?.dir ?? null,
    acknowledgedSeq: log?.acknowledgedSeq ?? -1,
    missingEntries: log?.missingOf(cache.id) ?? 0,
    leftOutEntries: log?.leftOutOf(cache.id) ?? 0,
  };
}

/**
 * Share of all sealed pages that are there which each format has, for keys and for values, or the latents in their
 * place; empty without pages.
 */
export function formatShares(cache: Governed): { k: Record<string, number>; v: Record<string, number> } {
  const tables = Array.from({ length: cache.shape.layers }, (_, layer) => cache.table(layer));
  const sharesOf = (forms: readonly PageForm[]): Record<string, number> =>
    Object.fromEntries(Object.entries(countForms(forms)).map(([name, count]) => [name, count / forms.length]));
  const forms = tables.map(formsBySide);
  const there = (all: readonly LaterForm[]): PageForm[] => all.filter((form) => form !== 'freed');
  return { k: sharesOf(there(forms.flatMap(({ k }) => k))), v: sharesOf(there(forms.flatMap(({ v }) => v))) };
}

function layerReport(cache: Governed, layer: number, state: string): LayerReport {
  const { shape, terms, kv, tally, length, away } = cache;
  const { kvHeads, headDim, layers } = shape;
  const { k, v } = formsBySide(cache.table(layer));
  const { pageBytes } = terms.context;
  // A latent is keys and values in one.
  const sideBytes = (form: LaterForm): number =>
    form === 'freed' ? 0 : (pageBytes[form] ?? 0) / (isLatent(form) ? 2 : 1);
  const { openBytes, sinkBytes } = away?.memory ?? kv.memory();
  const bytes = [...k, ...v].reduce((sum, form) => sum + sideBytes(form), (openBytes + sinkBytes) / layers);
  const { tried, accepted, refused, epsilonMax } = tally.layer(layer);
  return {
    layer,
    kPages: countForms(k),
    vPages: countForms(v),
    effectiveBits: length === 0 ? 0 : (bytes * 8) / (2 * kvHeads * headDim * length),
    movesTried: tried,
    movesAccepted: accepted,
    movesRefused: refused,
    epsilonMax,
    state,
  };
}

function countForms(forms: readonly LaterForm[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const form of forms) counts[form] = (counts[form] ?? 0) + 1;
  return counts;
}
