/** What `--json` prints of a session and its answer. */
import type { SessionReport } from '../cache/types.ts';
import type { Divergence, Generated } from '../session/types.ts';
import type { Engine } from '../thread/engine.ts';

/** The object that --json prints. The README describes its fields. */
export function jsonResult(
  engine: Engine,
  report: SessionReport,
  speed: Pick<Generated, 'tokensPerSecond' | 'prefillTokensPerSecond'>,
  divergence: Divergence | null,
  recall: { asked: number; recalled: number; recalledExact: number } | null = null,
): Record<string, unknown> {
  return {
    model: engine.info.name,
    session: report.session,
    policy: report.policy,
    tokens: report.tokens,
    kvBytes: report.kvBytes,
    kvBytesF16: report.kvBytesF16,
    reservedBytes: report.reservedBytes,
    reservedPeakBytes: report.reservedPeakBytes,
    scratchBytes: report.scratchBytes,
    budgetBytes: report.budgetBytes,
    effectiveBits: report.effectiveBits,
    tokensPerSecond: speed.tokensPerSecond,
    prefillTokensPerSecond: speed.prefillTokensPerSecond,
    meanKld: divergence?.meanKld ?? null,
    kld99: divergence?.kld99 ?? null,
    sameTop: divergence?.sameTop ?? null,
    asked: recall?.asked ?? 0,
    recalled: recall?.recalled ?? null,
    recalledExact: recall?.recalledExact ?? null,
    decisions: report.decisions,
    refusedTrials: report.refusedTrials,
    isa: engine.info.isa,
    threads: engine.info.threads,
    activations: report.activations,
    decideMs: report.decideMs,
    trialMs: report.trialMs,
    transcodeMs: report.transcodeMs,
    witnessMs: report.witnessMs,
    denseMs: report.denseMs,
    attentionMs: report.attentionMs,
    logPath: report.logPath,
  };
}
