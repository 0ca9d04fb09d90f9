/**
 * How much each has been served, so that whoever was served least for its weight comes first: the virtual token counter
 * of arXiv 2401.00588. Who comes begins with the smallest counter of those that are there, so that nobody makes up for
 * a time in which it wanted nothing. Two that want more all the time then differ by at most two turns for a weight.
 */

/** Who is served. */
export interface Client {
  /** A lower one is served before a higher one. */
  readonly priority: number;
  /** How much it has beside others of its priority: above 0. */
  readonly weight: number;
}

export class Fairness {
  /** Tokens for a weight of those that are there. */
  readonly #counters = new Map<Client, number>();
  /** The same of those that were. */
  readonly #earlier = new WeakMap<Client, number>();
  /** The smallest counter of those that were there last, while nobody is. */
  #leastBefore = 0;

  /** Is there from now on. */
  comes(client: Client): void {
    if (this.#counters.has(client)) return;
    this.#counters.set(client, Math.max(this.#earlier.get(client) ?? 0, this.#least));
  }

  /** Only these are there any more. */
  keep(clients: ReadonlySet<Client>): void {
    this.#leastBefore = this.#least;
    for (const [client, counter] of this.#counters) {
      if (clients.has(client)) continue;
      this.#counters.delete(client);
      this.#earlier.set(client, counter);
    }
  }

  /** So many tokens were computed of one that is there. */
  served(client: Client, tokens: number): void {
    const counter = this.#counters.get(client);
    if (counter !== undefined) this.#counters.set(client, counter + tokens / client.weight);
  }

  /** Tokens for a weight of one that is there. */
  counter(client: Client): number {
    return this.#counters.get(client)!;
  }

  get #least(): number {
    return this.#counters.size === 0 ? this.#leastBefore : Math.min(...this.#counters.values());
  }
}
