/**
 * Tells whoever keeps an engine, once for each session, that the cache of a session grows without end: the log, the
 * metrics and the report hear of it too. Whether it does is decided by policy/growth.ts, at the end of each page.
 */
import { firstToken } from '../../native/index.ts';
import { GROWTH_PAGES, type Growth, type GrowthPoint, type GrowthSeen, growthOf } from '../../policy/index.ts';
import type { Meter } from '../metrics/meter.ts';

interface GrowingParts {
  readonly session: string;
  /** Most tokens of the model; null: nobody knows. */
  readonly contextTokens: number | null;
  /** How long whoever opened it expects it to get; null: nobody said. */
  readonly tokensExpected: number | null;
  readonly meter: Meter;
  /** What the log is told. */
  readonly note: (body: Readonly<Record<string, unknown>>) => void;
}

export class Growing {
  readonly #parts: GrowingParts;
  #points: readonly GrowthPoint[] = [];
  #found: Growth | null = null;

  constructor(parts: GrowingParts) {
    this.#parts = parts;
  }

  /** Called at the end of a page. `bound`: what holds it, or does not. */
  look(now: GrowthPoint, bound: () => Pick<GrowthSeen, 'least' | 'limitBytes'>): void {
    if (this.#found !== null) return;
    const from = now.tokens - firstToken(GROWTH_PAGES);
    this.#points = [...this.#points.filter(({ tokens }) => tokens >= from && tokens < now.tokens), now];
    const { tokensExpected, contextTokens } = this.#parts;
    const { least, limitBytes } = bound();
    const isPlanned = tokensExpected !== null && tokensExpected >= now.tokens;
    // So many tokens were found to fit its budget when it was opened.
    if (isPlanned && least !== null) return;
    const tokensMost = isPlanned ? tokensExpected : contextTokens;
    this.#found = growthOf({ points: this.#points, tokensMost, least, limitBytes });
    if (this.#found !== null) this.#tell(this.#found);
  }

  /** That it was found to grow without end; null: it was not. */
  report(): Growth | null {
    return this.#found;
  }

  #tell(growth: Growth): void {
    const { session, meter, note } = this.#parts;
    const { tokens, ...rest } = growth;
    meter.growingCaches.add({});
    meter.tell('growth-without-end', { session, tokens, ...rest, bytesPerToken: Math.round(rest.bytesPerToken) });
    note({ growth, tokens });
  }
}
