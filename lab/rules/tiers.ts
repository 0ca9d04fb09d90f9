/**
 * Tiers of tokens, by age or by importance: some stay in f16, the next in rot4, the rest in rot2, and nothing is
 * dropped while that fits. `age-tiers` keeps the sinks and the newest 64 tokens and lets the others age. `anchors`
 * scores tokens by s ← 0.3·s + the attention of the last query, which remembers little more than that query, and keeps
 * sinks, the newest 32 and 16 anchors of the highest score (AKV). Its scores stand for positions: kept in the order of
 * the cache, they would be credited to the wrong tokens after the first move.
 */
import type { FormatName, Kept, Observed, Yardstick, YardstickContext, YardstickSession } from 'palimpsest/lab';
import { Scores, SINKS, split } from './tokens.ts';

const TAIL_TOKENS = 64;
const RECENT_TOKENS = 32;
const ANCHORS = 16;
/** Share of a score that the next query leaves of it. */
const MEMORY = 0.3;

/** Best first. A token goes down this list and never up: there is no better source than what it is kept in. */
const TIERS: readonly FormatName[] = ['f16', 'rot4', 'rot2'];

abstract class TierSession implements YardstickSession {
  readonly #context: YardstickContext;
  readonly #tiers = new Map<number, number>();

  constructor(context: YardstickContext) {
    this.#context = context;
  }

  abstract observe(step: Observed): void;

  /** Held tokens in the order in which they deserve a better tier, and how many of them deserve the best. */
  protected abstract order(held: readonly number[]): { readonly tokens: readonly number[]; readonly best: number };

  keep(held: readonly number[], budgetTokens: number): Kept {
    const { tokenBytes } = this.#context;
    const price = TIERS.map((format) => tokenBytes[format]);
    const { tokens, best: hot } = this.order(held);
    const tierOf = (position: number, least: number): number => Math.max(this.#tiers.get(position) ?? 0, least);
    const formatsOf = (kept: readonly number[]): FormatName[] => kept.map((position) => TIERS[tierOf(position, 0)]!);
    const budget = budgetTokens * price[0]!;
    if (held.reduce((sum, position) => sum + price[tierOf(position, 0)]!, 0) <= budget)
      return { tokens: held, formats: formatsOf(held) };
    // Everything beyond the best goes to the lowest tier; what room that leaves lifts the next in order to the middle
    // one.
    const chosen = new Map<number, number>();
    let bytes = 0;
    for (const [at, position] of tokens.entries()) {
      const tier = tierOf(position, at < hot ? 0 : 2);
      if (bytes + price[tier]! > budget) break;
      chosen.set(position, tier);
      bytes += price[tier]!;
    }
    for (const position of tokens) {
      if (chosen.get(position) !== 2 || tierOf(position, 1) !== 1) continue;
      if (bytes + price[1]! - price[2]! > budget) break;
      chosen.set(position, 1);
      bytes += price[1]! - price[2]!;
    }
    this.#tiers.clear();
    const kept = [...chosen.keys()].sort((a, b) => a - b);
    for (const position of kept) this.#tiers.set(position, chosen.get(position)!);
    return { tokens: kept, formats: formatsOf(kept) };
  }
}

class AgeSession extends TierSession {
  observe(): void {}

  protected order(held: readonly number[]): { tokens: number[]; best: number } {
    const sinks = held.filter((position) => position < SINKS);
    const others = held.filter((position) => position >= SINKS).reverse();
    return { tokens: [...sinks, ...others], best: sinks.length + TAIL_TOKENS };
  }
}

class AnchorSession extends TierSession {
  readonly #scores = new Scores();

  observe(step: Observed): void {
    const { held, queries, attention } = step;
    if (queries.length === 0) return;
    this.#scores.scale(MEMORY);
    const last = attention.subarray((queries.length - 1) * held.length);
    for (const [at, position] of held.entries()) this.#scores.add(position, last[at]!);
  }

  protected order(held: readonly number[]): { tokens: number[]; best: number } {
    const score = (position: number): number => this.#scores.of(position);
    const sinks = held.filter((position) => position < SINKS);
    const { older, recent } = split(
      held.filter((position) => position >= SINKS),
      RECENT_TOKENS,
    );
    const ranked = [...older].sort((a, b) => score(b) - score(a) || b - a);
    return { tokens: [...sinks, ...recent, ...ranked], best: sinks.length + recent.length + ANCHORS };
  }
}

export const ageTiers: Yardstick = {
  id: 'age-tiers',
  source: 'chosen, not measured: 4 sinks and the newest 64 in f16, then rot4, the oldest rot2',
  when: 'step',
  positions: 'own',
  observes: false,
  open: (context) => new AgeSession(context),
};

export const anchors: Yardstick = {
  id: 'anchors',
  source: 'adaptive-kv-memory: 16 anchors, newest 32, λ = 0.3',
  when: 'step',
  positions: 'own',
  observes: true,
  open: (context) => new AnchorSession(context),
};
