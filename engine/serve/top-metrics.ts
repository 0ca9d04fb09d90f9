/** What only a running engine knows, in its own metrics: calls at work or waiting, passes, bytes by tier. */
import type { EngineLoad, TopMetrics } from './page/snapshot.ts';

const SAMPLE = /^palimpsest_(\w+)(?:\{([^}]*)\})? (\S+)$/gm;

/** Each family by its name without the prefix: its value, or the sum of those with labels. */
export function metricSums(text: string): ReadonlyMap<string, number> {
  const sums = new Map<string, number>();
  for (const [, name, , value] of text.matchAll(SAMPLE)) sums.set(name!, (sums.get(name!) ?? 0) + Number(value));
  return sums;
}

/** Families that a log alone cannot tell are missing where nobody runs an engine: they count as 0. */
export function metricsIn(text: string): TopMetrics {
  const sums = metricSums(text);
  const tiers: Record<string, number> = {};
  for (const [, name, labels = '', value] of text.matchAll(SAMPLE)) {
    const tier = /(?:^|,)tier="(\w+)"/.exec(labels)?.[1];
    if (name === 'kv_bytes' && tier !== undefined && Number(value) > 0)
      tiers[tier] = (tiers[tier] ?? 0) + Number(value);
  }
  const sum = (name: string): number => sums.get(name) ?? 0;
  return {
    running: sum('num_requests_running'),
    waiting: sum('num_requests_waiting'),
    parked: sum('sessions_parked'),
    bytes: sum('kv_bytes'),
    tiers,
    budgetBytes: sums.get('kv_budget_bytes') ?? null,
    promptTokens: sum('prompt_tokens_total'),
    generatedTokens: sum('generation_tokens_total'),
    passes: sum('iteration_tokens_total_count'),
    passTokens: sum('iteration_tokens_total_sum'),
  };
}

/** Looks at an engine again and again. */
export class EngineLooks {
  #before: { readonly timeMs: number; readonly metrics: TopMetrics } | null = null;

  /** By the difference to the look before; of the first since the engine began. */
  next(metrics: TopMetrics, timeMs: number): EngineLoad {
    const before = this.#before;
    this.#before = { timeMs, metrics };
    const since = (name: 'promptTokens' | 'generatedTokens' | 'passes' | 'passTokens'): number =>
      Math.max(0, metrics[name] - (before?.metrics[name] ?? 0));
    const seconds = before === null ? 0 : (timeMs - before.timeMs) / 1000;
    const tokens = since('promptTokens') + since('generatedTokens');
    return {
      ...metrics,
      tokensPerSecond: seconds > 0 ? tokens / seconds : 0,
      tokensPerPass: since('passTokens') / Math.max(1, since('passes')),
    };
  }
}
