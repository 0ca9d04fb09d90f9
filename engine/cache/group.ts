/**
 * Caches of a pool that hold no more than so many bytes together (`kvGroup`), such as those of one key of a server. The
 * pool is theirs as it is everybody's: a group only bounds what they take of it.
 */
import type { KvCache } from '../../native/index.ts';
import type { PolicyContext } from '../../policy/index.ts';
import type { Away } from './away.ts';
import type { Kin } from './kin.ts';
import { copyBytes } from './own-pages.ts';

/** What counts of a cache. */
interface Member {
  readonly kv: KvCache;
  readonly kin: Kin;
  readonly away: Away | null;
  readonly terms: { readonly context: PolicyContext };
}

export class Group {
  readonly name: string;
  /** What it was told last. */
  budgetBytes: number;
  readonly #members = new Set<Member>();

  constructor(name: string, budgetBytes: number) {
    this.name = name;
    this.budgetBytes = budgetBytes;
  }

  join(member: Member): void {
    this.#members.add(member);
  }

  leave(member: Member): void {
    this.#members.delete(member);
  }

  /** True if this is the kin of one of its caches. */
  hasKin(kin: Kin): boolean {
    for (const member of this.#members) if (member.kin === kin) return true;
    return false;
  }

  /** Bytes of all of them. Pages that several hold count once, and so do those of a family. */
  get usedBytes(): number {
    let bytes = 0;
    const counted: { readonly kin: Kin; usedBytes: number }[] = [];
    for (const { kv, kin, away, terms } of this.#members) {
      bytes += away?.heldBytes ?? 0;
      const usedBytes = kv.usedBytes;
      const family = counted.find((other) => other.kin.has(kin));
      if (family !== undefined) {
        bytes += Math.max(0, usedBytes - family.usedBytes);
        family.usedBytes = Math.max(usedBytes, family.usedBytes);
        continue;
      }
      const shared = Math.max(0, ...counted.map((other) => kin.sharedWith(other.kin)));
      bytes += usedBytes - (shared === 0 ? 0 : copyBytes(kv, terms.context, 0, shared));
      counted.push({ kin, usedBytes });
    }
    return bytes;
  }
}
