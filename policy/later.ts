/**
 * What errors in pages of a beginning cost the tokens that earlier sessions read behind it. A session itself knows its
 * pages from the queries that came right after them; what will be asked of a document at its end only others can tell,
 * who were asked before. That something is asked is evidence; that a few answers asked nothing of a page is hardly any,
 * so what others say makes a page dearer and never cheaper. (Both ways the reference model had up to 3.7 times the
 * divergence of knowing nothing after five sessions, and SmolLM2-135M 0.48 times; upwards alone 0.99 and 0.47.)
 */
import { SIDES } from '../native/index.ts';
import type { LaterReport } from './types.ts';

/**
 * Answers from which on what others say counts as much as what the session finds itself, and no more however many they
 * are: each looks at a few places. (SmolLM2-135M, 20% of f16, over knowing nothing: five answers 0.77 with half and
 * 1.21 with all of it, thirty-six 0.70 and 0.72.)
 */
const ANSWERS_HALF = 5;
const SHARE_MAX = 0.5;
/** What others say is no more than so many times what the session finds, in ε². */
const FACTOR_MAX = 100;
/**
 * ε² of a page that is coded once more without a trellis, as others measure it, over that of its first trial in the
 * lowest form: e^0.4 to e^0.65 by model, side and text (measured: SmolLM2-135M and the reference model, three texts).
 */
const RECODED = 1.65;

export class Later {
  readonly #pages = new Map<number, LaterReport>();

  know(report: LaterReport): void {
    this.#pages.set(report.page, report);
  }

  get isEmpty(): boolean {
    return this.#pages.size === 0;
  }

  /**
   * What is expected of ε² of a page side in the lowest form that it was tried in, where the session itself expects
   * `own` of it for the tokens to come: the same where nobody else knows better.
   */
  expected(layer: number, page: number, side: number, own: number): number {
    const report = this.#pages.get(page);
    const told = report?.[SIDES[side]!][layer] ?? Number.NaN;
    if (report === undefined || !(told > 0 && own > 0)) return own;
    const share = Math.min(SHARE_MAX, report.answers / (report.answers + ANSWERS_HALF));
    const others = Math.max(own, Math.min(own * FACTOR_MAX, told / RECODED));
    return share * others + (1 - share) * own;
  }
}
