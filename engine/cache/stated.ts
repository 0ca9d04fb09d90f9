/**
 * Whether a session keeps the divergence that was stated for it. What its moves are expected to cost by now, as
 * predicted and, where tokens are read twice, as measured or found on these, is compared with that at every plan; where
 * it is more, whoever keeps the engine is told, once when it begins and once when it ends, and so are the log and the
 * metrics. No decision follows from it.
 */
import type { PolicySummary } from '../../policy/index.ts';
import type { Meter } from '../metrics/meter.ts';
import type { StatedReport } from './types.ts';

/** A budget is kept again below this part of it, so that what lies at its edge is not told again and again. Chosen. */
const KEPT_SHARE = 0.9;

/**
 * What so many tokens that were read twice have found counts as it is. What the policy expects believes them less and
 * never more than ten times what it predicts, since its decisions must not follow single tokens; whoever is only told
 * wants to know. Chosen: four reports.
 */
const BELIEVED_TOKENS = 128;

interface StatedParts {
  readonly session: string;
  /** What was stated. */
  readonly budgetNats: number;
  readonly meter: Meter;
  /** What the log is told. */
  readonly note: (body: Readonly<Record<string, unknown>>) => void;
}

export class Stated {
  readonly #parts: StatedParts;
  #expectedNats = 0;
  #measuredTokens = 0;
  #worstNats = 0;
  #isBroken = false;
  #timesBroken = 0;

  constructor(parts: StatedParts) {
    this.#parts = parts;
  }

  /** Called behind every plan. */
  look(tokens: number, { predictedKld, measured }: Pick<PolicySummary, 'predictedKld' | 'measured'>): void {
    const { budgetNats } = this.#parts;
    const found = measured !== undefined && measured.tokens >= BELIEVED_TOKENS ? measured.meanKld : 0;
    const expectedNats = Math.max(measured?.expectedKld ?? predictedKld, found);
    this.#measuredTokens = measured?.tokens ?? 0;
    this.#expectedNats = expectedNats;
    this.#worstNats = Math.max(this.#worstNats, expectedNats);
    const isBroken = expectedNats > (this.#isBroken ? KEPT_SHARE : 1) * budgetNats;
    if (isBroken === this.#isBroken) return;
    this.#isBroken = isBroken;
    this.#tell(tokens);
  }

  #tell(tokens: number): void {
    const { session, budgetNats, meter, note } = this.#parts;
    const [expectedNats, measuredTokens] = [this.#expectedNats, this.#measuredTokens];
    if (this.#isBroken) {
      this.#timesBroken++;
      meter.brokenDivergence.add({});
    }
    meter.tell(this.#isBroken ? 'stated-divergence-broken' : 'stated-divergence-kept', {
      ...{ session, tokens, budgetNats, expectedNats, measuredTokens },
    });
    note({ statedDivergence: this.#isBroken ? 'broken' : 'kept', tokens, budgetNats, expectedNats, measuredTokens });
  }

  report(): StatedReport {
    return {
      budgetNats: this.#parts.budgetNats,
      expectedNats: this.#expectedNats,
      measuredTokens: this.#measuredTokens,
      worstNats: this.#worstNats,
      isBroken: this.#isBroken,
      timesBroken: this.#timesBroken,
    };
  }
}
