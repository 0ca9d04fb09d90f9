/**
 * Who holds the pages of which digests: kept as pages come and go, so that a session which begins looks at those that
 * may have its pages, and at nobody else.
 */
export class PrefixIndex<Holder extends object> {
  readonly #holders = new Map<string, Set<Holder>>();
  /** The digests of each, page by page from the first on. */
  readonly #held = new Map<Holder, string[]>();

  /** From now on it holds the first `pages` of the pages of these digests, and no others. */
  set(holder: Holder, digests: readonly string[], pages = digests.length): void {
    const held = this.#held.get(holder) ?? [];
    let alike = 0;
    while (alike < held.length && alike < pages && held[alike] === digests[alike]) alike++;
    for (const digest of held.splice(alike)) this.#remove(digest, holder);
    for (const digest of digests.slice(alike, pages)) {
      held.push(digest);
      const holders = this.#holders.get(digest);
      if (holders === undefined) this.#holders.set(digest, new Set([holder]));
      else holders.add(holder);
    }
    if (held.length === 0) this.#held.delete(holder);
    else this.#held.set(holder, held);
  }

  /** It holds the first `pages` of its pages, and no others. */
  cut(holder: Holder, pages: number): void {
    const held = this.#held.get(holder);
    if (held !== undefined && held.length > pages) this.set(holder, held.slice(0, pages));
  }

  delete(holder: Holder): void {
    this.cut(holder, 0);
  }

  #remove(digest: string, holder: Holder): void {
    const holders = this.#holders.get(digest)!;
    holders.delete(holder);
    if (holders.size === 0) this.#holders.delete(digest);
  }

  /** Those that hold the page of a digest. */
  of(digest: string): Iterable<Holder> {
    return this.#holders.get(digest) ?? [];
  }

  /** Every digest, and who holds its page. */
  *[Symbol.iterator](): Generator<readonly [digest: string, holders: ReadonlySet<Holder>]> {
    yield* this.#holders;
  }
}
