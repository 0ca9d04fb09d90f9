/** What the series of a pool says of the time in which a session was open: who gave to whom, and the bytes of all. */
import { givenIn } from '../asking-text.ts';
import type { PoolAsking } from '../entries/pool-asking.ts';
import type { LogFiles } from '../files.ts';
import { askingIn } from '../pool-series.ts';
import { readSeries } from '../read.ts';
import { seriesOf } from '../series.ts';
import type { Entry } from '../types.ts';
import type { Collected } from './collect.ts';
import { Packer } from './pack.ts';
import type { Columns, ReportPool } from './page/data.ts';

/** One session gave to another, in all askings. */
export interface Gift {
  readonly from: string;
  readonly to: string;
  readonly times: number;
  readonly bytes: number;
}

/** What a report shows of a pool. */
export interface CollectedPool {
  readonly pool: string;
  readonly askings: number;
  /** Policies that decided, by their ids. */
  readonly policies: readonly string[];
  /** The largest first; what a session gave for its own needs is among them. */
  readonly gifts: readonly Gift[];
  readonly data: ReportPool;
}

/** The pool that the session of a report shared, while it was open; null: the log has none, or nobody asked then. */
export function poolOf(dir: string, { open, close, lastMs }: Collected, files?: LogFiles): CollectedPool | null {
  const part = { from: open.seq, kinds: ['note'] as const, ...(files === undefined ? {} : { files }) };
  const endMs = close === null ? lastMs : close.timeMs;
  const collector = new PoolCollector(open);
  for (const entry of readSeries(dir, seriesOf(open.seq), part)) {
    if (entry.timeMs > endMs) break;
    const asking = askingIn(entry);
    if (asking !== null) collector.take(entry, asking);
  }
  return collector.result();
}

const COLUMNS = ['ms+', 'used', 'own', 'budget'];

class PoolCollector {
  readonly #open: Entry<'open'>;
  readonly #rows = new Packer(COLUMNS);
  readonly #gifts = new Map<string, Gift>();
  readonly #policies = new Set<string>();
  #pool = '';
  #askings = 0;
  #ownBytes: number | null = null;

  constructor(open: Entry<'open'>) {
    this.#open = open;
  }

  take({ timeMs, session: pool }: Entry, asking: PoolAsking): void {
    const { session: to, policy, budgetBytes, turns } = asking;
    this.#pool = pool;
    this.#askings++;
    this.#policies.add(policy);
    for (const [from, bytes] of givenIn(asking)) {
      const key = JSON.stringify([from, to]);
      const known = this.#gifts.get(key) ?? { from, to, times: 0, bytes: 0 };
      this.#gifts.set(key, { ...known, times: known.times + 1, bytes: known.bytes + bytes });
    }
    // At its beginning and at its end; what changed between them came at once.
    for (const turn of turns.length > 1 ? [turns[0]!, turns.at(-1)!] : turns) {
      for (const one of turn === turns[0] ? [turn] : turns) this.#own(one);
      this.#rows.add([timeMs - this.#open.timeMs, budgetBytes - turn.roomBytes, this.#ownBytes, budgetBytes]);
    }
  }

  #own({ changed = [], asking }: PoolAsking['turns'][number]): void {
    const own = [...changed, ...(asking === undefined ? [] : [asking])].findLast(({ id }) => id === this.#open.session);
    if (own !== undefined) this.#ownBytes = own.bytes;
  }

  result(): CollectedPool | null {
    if (this.#askings === 0) return null;
    const rows: Columns = this.#rows.columns();
    return {
      pool: this.#pool,
      askings: this.#askings,
      policies: [...this.#policies],
      gifts: [...this.#gifts.values()].sort((a, b) => b.bytes - a.bytes || (a.from < b.from ? -1 : 1)),
      data: { rows },
    };
  }
}
