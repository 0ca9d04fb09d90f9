/**
 * Caches of a pool that hold no more than so many bytes together (`kvGroup`), such as those of one key of a server. The
 * pool is theirs as it is everybody's: a group only bounds what they take of it.
 */
import type { KvCache } from '../../native/index.ts';
import type { PolicyContext } from '../../policy/index.ts';
import type { Away } from './away.ts';
import { Kin } from './kin.ts';
import { copyBytes } from './own-pages.ts';

/** What counts of a cache. */
interface Member {
  readonly kv: KvCache;
  readonly kin: Kin;
  readonly away: Away | null;
  readonly terms: { readonly context: Pick<PolicyContext, 'layers' | 'pageBytes'> };
}

export class Group {
  readonly name: string;
  /** What it was told last. */
  budgetBytes: number;
  readonly #members = new Set<Member>();
  /** Of the first of each family: the pages that another one has which is counted before; null: none. */
  readonly #counted = new Map<Member, ReturnType<Kin['sharedWithin']>>();
  #countedAt = -1;

  constructor(name: string, budgetBytes: number) {
    this.name = name;
    this.budgetBytes = budgetBytes;
  }

  join(member: Member): void {
    this.#countedAt = -1;
    this.#members.add(member);
  }

  leave(member: Member): void {
    this.#countedAt = -1;
    this.#members.delete(member);
  }

  /** True if this is the kin of one of its caches. */
  hasKin(kin: Kin): boolean {
    for (const member of this.#members) if (member.kin === kin) return true;
    return false;
  }

  /** Bytes of all of them. Pages that several hold count once, and so do those of a family. */
  get usedBytes(): number {
    this.#count();
    let bytes = 0;
    const families = new Map<object, number>();
    // The beginning of one is that of many: by whose it is, and how many pages.
    const beginnings = new Map<Kin, Map<number, number>>();
    for (const member of this.#members) {
      const { kv, kin, away, terms } = member;
      const usedBytes = kv.usedBytes;
      bytes += away?.heldBytes ?? 0;
      const before = families.get(kin.family) ?? 0;
      families.set(kin.family, Math.max(before, usedBytes));
      const shared = this.#counted.get(member);
      if (shared === undefined) bytes += Math.max(0, usedBytes - before);
      else if (shared === null) bytes += usedBytes;
      else {
        const known = beginnings.get(shared.relative) ?? new Map<number, number>();
        const heldBytes = known.get(shared.pages) ?? copyBytes(kv, terms.context, 0, shared.pages);
        beginnings.set(shared.relative, known.set(shared.pages, heldBytes));
        bytes += usedBytes - heldBytes;
      }
    }
    return bytes;
  }

  /** Who counts from which page on changes only where caches begin, end, or take pages back. */
  #count(): void {
    if (this.#countedAt === Kin.changes) return;
    this.#countedAt = Kin.changes;
    this.#counted.clear();
    const [families, first] = [new Set<object>(), new Set<Kin>()];
    for (const member of this.#members) {
      const { kin } = member;
      if (families.has(kin.family)) continue;
      this.#counted.set(member, kin.sharedWithin(first));
      families.add(kin.family);
      first.add(kin);
    }
  }
}
