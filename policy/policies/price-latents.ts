/** How many pages the price policy lets become latents, and at which price per byte it chooses which. */
import { type FormatName, LATENT_NAMES, LOWEST_FORMATS, type Side } from '../../native/index.ts';
import { rank } from '../ladder.ts';
import type { Offers } from '../offers.ts';
import { freedOf, heldPages } from '../sides.ts';
import type { PolicyContext, Situation } from '../types.ts';
import { usefulPair } from '../unsafe.ts';
import { movableBytes, pagesAhead } from './uniform.ts';

export class LatentChoice {
  readonly #context: PolicyContext;
  readonly #offers: Offers;
  /** Pages whose keys and values may be computed again for a token. */
  readonly #affordable: number;
  /** Bytes of a page at its lowest, as a latent and as keys and values. */
  readonly #lowest: { readonly latent: number; readonly apart: number };
  /** The price that the end of the session is expected to have. */
  #endPrice = 0;

  /** `operations`: the most that may be added to a token, in multiples of the dense half. */
  constructor(context: PolicyContext, offers: Offers, operations: number) {
    this.#context = context;
    this.#offers = offers;
    this.#affordable = Math.floor(operations / (context.latents?.operations ?? 1));
    this.#lowest = lowestBytes(context);
  }

  /**
   * Called once a situation was taken in. Where bytes are counted, the price is that at which pages like the newest
   * would keep the budget at the end of the session, which all pages must be able to keep; a session whose end is not
   * known is taken to become twice as long. `isSlow`: steps that are too slow already are not made slower.
   */
  choose(situation: Situation, price: number, isSlow: boolean): void {
    const { skipLayers } = this.#context;
    const { budgetBytes, tokensExpected, trials } = situation;
    let most = isSlow ? 0 : this.#affordable;
    if (budgetBytes === null) this.#endPrice = price;
    else {
      const pages = pagesAhead(situation, this.#context) * (tokensExpected === null ? 2 : 1);
      const skipped = [...new Set(skipLayers)].reduce(
        (sum, layer) => sum + pages - freedOf(this.#context, layer, pages),
        0,
      );
      const units = Math.max(1, heldPages(this.#context, pages) - skipped);
      const bytes = Math.max(0, movableBytes(this.#context, budgetBytes, pages));
      if (trials.length > 0)
        this.#endPrice = this.#offers.endPrice(bytes / units, this.#offers.sides.pageMax) ?? this.#endPrice;
      most = Math.min(most, this.#within(bytes, units));
    }
    this.#offers.setLatents(most, this.#endPrice);
  }

  /**
   * How many of so many pages may be latents and all of them still fit into so many bytes, since a latent becomes no
   * smaller than the lowest one.
   */
  #within(bytes: number, pages: number): number {
    const { latent, apart } = this.#lowest;
    return latent <= apart ? pages : Math.max(0, Math.floor((bytes - pages * apart) / (latent - apart)));
  }
}

function lowestBytes({ pageBytes, floor }: PolicyContext): { readonly latent: number; readonly apart: number } {
  const lowest = (side: Side): FormatName => {
    const asked = floor?.[side] ?? LOWEST_FORMATS[side];
    return rank(asked) < rank(LOWEST_FORMATS[side]) ? asked : LOWEST_FORMATS[side];
  };
  const [k, v] = [lowest('k'), lowest('v')];
  const latents = LATENT_NAMES.flatMap((name) => pageBytes[name] ?? []);
  const apart = usefulPair({ k, v });
  return { latent: Math.min(...latents), apart: pageBytes[apart.k] + pageBytes[apart.v] };
}
