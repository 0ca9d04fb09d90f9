/**
 * How much of an error stays for later queries in one layer and side, beside the others: ln ε_later = ln ε + a + (what
 * fades with age), with one `a` for each layer and side. First trials are made on the queries right behind a page, and
 * some layers look back at old pages as much as at new ones while others hardly do. Every page that is tried again says
 * something about it, so a session learns it from itself.
 */
import type { Course } from './course.ts';
import type { Estimate } from './law.ts';

/**
 * Repeated trials that the assumption a = 0, or what earlier sessions say, counts as. Those of one page are alike, so
 * they are worth fewer than they are. Measured: 4 to 16 give the same.
 */
const PRIOR_COUNT = 8;
/** No single trial says more than this. */
const LN_MAX = 2;
/** What moves by less than this share leaves prices as they are. */
export const MOVED = 0.02;

/** What the factor of a place follows: the mean of ln(found / expected), or Σ found / Σ expected. */
export type PersistenceKind = 'logarithms' | 'sums';

export class Persistence {
  readonly #kind: PersistenceKind;
  /** By place, layer and side: Σ of ln(found / expected) of ε, Σ of both of ε², and how many. */
  readonly #sum: Float64Array;
  readonly #found: Float64Array;
  readonly #expected: Float64Array;
  readonly #count: Float64Array;
  readonly #factor: Float64Array;
  /** `a` by earlier sessions; 0 where they say nothing. */
  readonly #assumed: Float64Array;

  /**
   * Version 3 of the price policy goes by logarithms. Later ones go by sums: in a layer that looks back rarely most
   * trials find little and a few find much, and what its errors cost are those few.
   */
  constructor(places: number, kind: PersistenceKind, known?: Course) {
    this.#kind = kind;
    this.#sum = new Float64Array(places);
    this.#found = new Float64Array(places);
    this.#expected = new Float64Array(places);
    this.#count = new Float64Array(places);
    this.#factor = Float64Array.from({ length: places }, (_, place) => knownOf(known, place)?.value ?? 1);
    this.#assumed = this.#factor.map((factor) => 0.5 * Math.log(factor));
  }

  /**
   * A page was tried again: ε² that was expected of it at its age, and what was found. Counts from the next `settle`
   * on.
   */
  learn(place: number, expected: number, found: number): void {
    const ln = 0.5 * Math.log(found / expected);
    if (!Number.isFinite(ln)) return;
    this.#sum[place]! += Math.max(-LN_MAX, Math.min(LN_MAX, ln));
    this.#found[place]! += found;
    this.#expected[place]! += expected;
    this.#count[place]! += 1;
  }

  /** What ε² of a place is multiplied with to stand for later queries, beside other places. */
  factor(place: number): number {
    return this.#factor[place]!;
  }

  /**
   * The same for predicted sums, by place: the root. Moves are chosen where errors seem to last least, and that they do
   * is partly chance. With the whole factor, with none and with its root, measured over predicted spreads by e^±0.39,
   * e^±0.46 and e^±0.39, and the root is closest to being right on average (SmolLM2-135M, 30 sessions under two
   * divergence budgets, 15 texts of five kinds).
   */
  get expected(): Float64Array {
    return this.#factor.map(Math.sqrt);
  }

  /** Takes in what was learned. → whether the factor of each place has moved; null when none has */
  settle(): Uint8Array | null {
    let moved: Uint8Array | null = null;
    for (let place = 0; place < this.#factor.length; place++) {
      const sum = this.#sumOf(place) + PRIOR_COUNT * this.#assumed[place]!;
      const factor = Math.exp((2 * sum) / (this.#count[place]! + PRIOR_COUNT));
      if (Math.abs(factor / this.#factor[place]! - 1) < MOVED) continue;
      this.#factor[place] = factor;
      moved ??= new Uint8Array(this.#factor.length);
      moved[place] = 1;
    }
    return moved;
  }

  /** What this session alone has found of a place, with the trials that it rests on. */
  found(place: number): Estimate {
    const samples = this.#count[place]!;
    return { value: Math.exp(samples === 0 ? 0 : (2 * this.#sumOf(place)) / samples), sd: 0, samples };
  }

  #sumOf(place: number): number {
    if (this.#kind === 'logarithms' || this.#count[place] === 0) return this.#sum[place]!;
    return 0.5 * this.#count[place]! * Math.log(this.#found[place]! / this.#expected[place]!);
  }
}

/** What is known of a place; places are numbered by layer, keys before values. */
const knownOf = (course: Course | undefined, place: number): Estimate | undefined =>
  course?.persistence[place % 2 === 0 ? 'k' : 'v'][place >> 1];
