/** A session in numbers: what its bytes are, where they went, and what it cost to decide. */
import { FORMAT_NAMES, pageBytes } from '../native/index.ts';
import type { PolicySummary } from '../policy/index.ts';
import { f16CacheBytes } from './budget.ts';
import type { Scheduler } from './scheduler.ts';
import type { Session } from './session.ts';
import type { LayerReport, SessionReport } from './types.ts';

/** What a session without a scheduler (a fork) has to say. */
const NO_SUMMARY: PolicySummary = {
  priceThreshold: 0,
  predictedKld: 0,
  layerStates: [],
  layerEpsilonMax: [],
  layerKld: [],
};

export function sessionReport(session: Session, scheduler: Scheduler | null): SessionReport {
  const { shape } = session.runtime;
  const { log } = session.setup;
  const memory = session.cache.memory();
  const tokens = session.length;
  const kvBytesF16 = f16CacheBytes(shape, tokens);
  const kvBytes = session.pool.peakBytes;
  const summary = scheduler?.summary ?? NO_SUMMARY;
  const counted = Array.from({ length: shape.layers }, (_, layer) => session.cache.skipped(layer));
  return {
    session: session.id,
    policy: session.policyId,
    tokens,
    kvBytes,
    kvBytesNow: memory.totalBytes,
    kvBytesF16,
    scratchBytes: memory.scratchBytes,
    budgetBytes: session.budgetBytes,
    effectiveBits: kvBytesF16 === 0 ? 0 : (16 * kvBytes) / kvBytesF16,
    memory,
    valuesMet: counted.reduce((sum, { met }) => sum + met, 0),
    valuesSkipped: counted.reduce((sum, { skipped }) => sum + skipped, 0),
    layers: Array.from({ length: shape.layers }, (_, layer) =>
      layerReport(session, layer, scheduler, summary.layerStates[layer] ?? ''),
    ),
    decisions: scheduler?.decisions ?? 0,
    refusedTrials: scheduler?.refused ?? 0,
    notable: scheduler?.notable ?? null,
    summary,
    schedulerMs: scheduler?.times.decideMs ?? 0,
    trialMs: scheduler?.times.trialMs ?? 0,
    transcodeMs: scheduler?.times.transcodeMs ?? 0,
    witnessMs: scheduler?.times.witnessMs ?? 0,
    dense: `${session.runtime.dense.name}: ${session.runtime.denseChoice.why}`,
    denseMs: session.times.denseMs,
    attentionMs: session.times.attentionMs,
    logPath: log?.dir ?? null,
    acknowledgedSeq: log?.acknowledgedSeq ?? -1,
  };
}

function layerReport(session: Session, layer: number, scheduler: Scheduler | null, state: string): LayerReport {
  const { kvHeads, headDim } = session.runtime.shape;
  const { fixedBytes, layers } = session.context;
  const { kFormat, vFormat } = session.cache.table(layer);
  const sideBytes = (id: number): number => pageBytes(FORMAT_NAMES[id]!, kvHeads, headDim);
  const bytes = [...kFormat, ...vFormat].reduce((sum, id) => sum + sideBytes(id), fixedBytes / layers);
  const counts = scheduler?.counts[layer];
  return {
    layer,
    kPages: countFormats(kFormat),
    vPages: countFormats(vFormat),
    effectiveBits: session.length === 0 ? 0 : (bytes * 8) / (2 * kvHeads * headDim * session.length),
    movesTried: counts?.tried ?? 0,
    movesAccepted: counts?.accepted ?? 0,
    movesRefused: counts?.refused ?? 0,
    epsilonMax: counts?.epsilonMax ?? null,
    state,
  };
}

function countFormats(ids: Uint8Array): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const id of ids) counts[FORMAT_NAMES[id]!] = (counts[FORMAT_NAMES[id]!] ?? 0) + 1;
  return counts;
}
