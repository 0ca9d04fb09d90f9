/**
 * What a page is to become that has a latent beside it: either the latent alone, or keys and values in lower formats.
 * Neither way leads back to the other, and the first small step of the second is nearly always the cheapest move of
 * all. So the way is chosen not by the next step but by where the page would end: at the price per byte that the end of
 * the session is expected to have.
 */

/** One form of a page or of one of its sides. */
export interface Point {
  /** Predicted divergence, in nats. */
  readonly cost: number;
  readonly bytes: number;
}

/** All that a page may end as. */
export interface PagePoints {
  /** The points of keys and of values. */
  readonly sides: readonly (readonly Point[])[];
  readonly latents: readonly Point[];
}

/**
 * Prices that are tried for the end of a session, in nats per byte: from far below to far above those of any session
 * (1e-13 to 1e-6).
 */
const PRICE_LEAST = 1e-16;
const PRICE_MOST = 1;
const PRICE_STEP = 1.25;

const worth = ({ cost, bytes }: Point, price: number): number => cost + price * bytes;

/** The point that costs least when its bytes are paid for. Of equal ones the first. */
function best(points: readonly Point[], price: number): Point {
  return points.reduce((least, point) => (worth(point, price) < worth(least, price) ? point : least));
}

/** What a page becomes at a price, going the way that is better there. */
function endOf({ sides, latents }: PagePoints, price: number): Point & { readonly isLatent: boolean } {
  let [cost, bytes] = [0, 0];
  for (const points of sides) {
    const point = best(points, price);
    cost += point.cost;
    bytes += point.bytes;
  }
  const latent = latents.length === 0 ? null : best(latents, price);
  return latent !== null && worth(latent, price) < worth({ cost, bytes }, price)
    ? { ...latent, isLatent: true }
    : { cost, bytes, isLatent: false };
}

/** True if a page ends better as a latent than in formats of its own, when a byte is worth `price`. */
export const isLatentBetter = (page: PagePoints, price: number): boolean => endOf(page, price).isLatent;

/** The lowest price at which pages like these take `bytes` each on average, or the highest there is where none does. */
export function endPrice(pages: readonly PagePoints[], bytes: number): number {
  let price = PRICE_LEAST;
  for (; price < PRICE_MOST; price *= PRICE_STEP) {
    const sum = pages.reduce((all, page) => all + endOf(page, price).bytes, 0);
    if (sum <= bytes * pages.length) break;
  }
  return price;
}
