/**
 * Those that wait, in the order in which they are taken: by priority, then by how much they were served for their
 * weight, then by who came first. Whoever was passed often enough by others of a higher priority that came later goes
 * before all of them, so that nobody waits for ever.
 */
import { type Client, Fairness } from './fairness.ts';

/** So often one that waits is passed by those of a higher priority. Chosen: beside them it has one turn in nine. */
export const PASSED_MAX = 8;

interface Waits {
  readonly client: Client;
}

interface Place<One> {
  readonly one: One;
  /** Who comes later has a higher one. */
  readonly number: number;
  /** Times that others of a higher priority were taken that came later. */
  passed: number;
}

export class Line<One extends Waits> {
  readonly #fairness = new Fairness();
  #places: Place<One>[] = [];
  #numbers = 0;

  get size(): number {
    return this.#places.length;
  }

  add(one: One): void {
    this.#fairness.comes(one.client);
    this.#places.push({ one, number: this.#numbers++, passed: 0 });
  }

  /** Whoever is to be taken first comes first. */
  inOrder(): One[] {
    const places = [...this.#places];
    const isDue = ({ passed }: Place<One>): number => Number(passed >= PASSED_MAX);
    const counter = ({ one }: Place<One>): number => this.#fairness.counter(one.client);
    const priority = (place: Place<One>): number => (isDue(place) ? 0 : place.one.client.priority);
    places.sort(
      (a, b) => isDue(b) - isDue(a) || priority(a) - priority(b) || counter(a) - counter(b) || a.number - b.number,
    );
    return places.map(({ one }) => one);
  }

  /** Takes those of them that wait here. Who has not come again since it was taken before is no longer there. */
  take(taken: readonly One[]): void {
    const set = new Set(taken);
    const gone = this.#places.filter(({ one }) => set.has(one));
    this.#fairness.keep(new Set(this.#places.map(({ one }) => one.client)));
    this.#places = this.#places.filter(({ one }) => !set.has(one));
    for (const place of this.#places) {
      const { priority } = place.one.client;
      if (gone.some(({ one, number }) => number > place.number && one.client.priority < priority)) place.passed++;
    }
  }

  /** So many tokens were computed of one that was taken last. */
  served(client: Client, tokens: number): void {
    this.#fairness.served(client, tokens);
  }

  /** It waits no longer. → false where it did not */
  drop(one: One): boolean {
    const at = this.#places.findIndex((place) => place.one === one);
    if (at >= 0) this.#places.splice(at, 1);
    return at >= 0;
  }

  has(one: One): boolean {
    return this.#places.some((place) => place.one === one);
  }

  find(isIt: (one: One) => boolean): One | undefined {
    return this.#places.find(({ one }) => isIt(one))?.one;
  }
}
