/**
 * The guard of the arrow that leads a page into its latent (form-machine.ts): keys and values stay while memory is not
 * short, and those right behind the window stay for longer. Where nothing else keeps the budget both give way, because
 * it is hard. For how many pages there is time, in operations and by a stated latency, is said by LatentChoice.
 */
import { PAGE_TOKENS, tokensBehind } from '../native/index.ts';
import { type ThresholdId, thresholdOf } from './thresholds.ts';
import type { Because, PolicyContext, Situation, Threshold } from './types.ts';

/** Rule of a move that the guard would have refused, had anything else kept the budget. */
export const LATENT_GIVES_WAY = 'latent-gives-way';

/** What the guard compares. */
export type GuardSeen = Pick<Situation, 'tokens' | 'bytes' | 'sealBytes' | 'budgetBytes' | 'lowMemory'>;

export class LatentGuard {
  readonly #windowTokens: number;
  /** What is measured in bytes: the share of the budget that is needed, and what is measured in tokens. */
  readonly #memory: Threshold;
  readonly #materialized: Threshold;

  constructor({ thresholds, windowTokens = PAGE_TOKENS }: PolicyContext) {
    this.#windowTokens = windowTokens;
    // A session that began without these bounds had none: its log is decided again as it was.
    const bound = (id: ThresholdId): Threshold => {
      const threshold = thresholdOf(thresholds, id);
      return Object.hasOwn(thresholds.thresholds, id) ? threshold : { ...threshold, value: 0 };
    };
    this.#memory = bound('latent.memory');
    this.#materialized = bound('latent.materialized');
  }

  /**
   * What is compared for a page, in this order. Of a budget in divergence alone nobody can say how much is used, and
   * where low memory is signalled it is short.
   */
  compared(page: number, { tokens, bytes, sealBytes, budgetBytes, lowMemory }: GuardSeen): readonly Because[] {
    const behind = tokensBehind(page, tokens) + PAGE_TOKENS - this.#windowTokens;
    const found = [{ threshold: this.#materialized, measured: behind }];
    if (budgetBytes !== null && !lowMemory)
      found.unshift({ threshold: this.#memory, measured: (bytes + sealBytes) / Math.max(1, budgetBytes) });
    return found.map(({ threshold: { id, value, unit, origin }, measured }) => ({
      ...{ threshold: id, measured, bound: value, unit, origin, rule: 'latent-guard' },
    }));
  }

  /** Why the keys and values of a page stay for now; null: they may go. */
  refuses(page: number, seen: GuardSeen): Because | null {
    return this.compared(page, seen).find(({ measured, bound }) => measured < bound) ?? null;
  }
}
