/** One asking of the pool while it is made: each turn is decided by what is written of it, and by nothing else. */
import { Asking, type AskingSeen, type PoolMember, type RungId, type TurnSeen } from '../../policy/index.ts';
import type { PoolAsking } from '../../witness/index.ts';

type Turn = PoolAsking['turns'][number];

/** Rows of members in one entry: 190 bytes each, which leaves a fifth of the most that an entry may have. */
const ROWS_MAX = 4096;

interface Asked extends AskingSeen {
  /** The rung of the ladder on which it asks. */
  readonly rung: RungId;
  readonly budgetBytes: number;
  /** Whoever asks. */
  readonly session: string;
}

/** What became of a turn. */
interface Given {
  readonly freedBytes: number;
  /** The next situation of the session before it, and how many it decided on. */
  readonly situation: number;
  readonly situations: number;
  readonly movesLeft: number | undefined;
}

export class AskingRecord {
  readonly #asked: Asked;
  readonly #asking: Asking;
  readonly #turns: Turn[] = [];
  #seen: { readonly turn: TurnSeen; readonly asked: string | null } | null = null;

  constructor(asked: Asked) {
    this.#asked = asked;
    this.#asking = new Asking(asked);
  }

  /** What the log has of it; null: there was room from the beginning. */
  get body(): PoolAsking | null {
    if (this.#turns.length === 0) return null;
    const { policy, rung, isEverybody, neededBytes, budgetBytes, session } = this.#asked;
    const { id, version } = policy;
    const asked = { policy: id, version, session, rung, isEverybody, neededBytes, budgetBytes };
    const rows = this.#turns.reduce((sum, { changed = [], gone = [] }) => sum + changed.length + gone.length, 0);
    return rows <= ROWS_MAX ? { ...asked, turns: this.#turns } : { ...asked, turns: [], leftOut: this.#turns.length };
  }

  /** Who gives up the next part; null: nobody. */
  next(members: readonly PoolMember[], own: PoolMember, roomBytes: number): PoolMember | null {
    const turn = this.#asking.differences(members, own, roomBytes);
    const found = this.#asking.next(turn);
    this.#seen = { turn, asked: found?.id ?? null };
    if (found === null) this.#take({ freedBytes: 0 });
    return found;
  }

  gave({ freedBytes, situation, situations, movesLeft }: Given): void {
    const decided = situations === 0 ? {} : { situation, situations };
    this.#take({ freedBytes, ...decided, ...(movesLeft === undefined ? {} : { movesLeft }) });
  }

  /** There is room now, or nobody gives more. */
  end(roomBytes: number): void {
    if (this.#turns.length === 0 || this.#turns.at(-1)!.asked === null) return;
    this.#seen = { turn: { roomBytes, changed: [], gone: [], asking: null }, asked: null };
    this.#take({ freedBytes: 0 });
  }

  #take(given: Pick<Turn, 'freedBytes' | 'situation' | 'situations' | 'movesLeft'>): void {
    const { turn, asked } = this.#seen!;
    const { roomBytes, changed, gone, asking } = turn;
    this.#turns.push({
      roomBytes,
      asked,
      ...given,
      ...(changed.length === 0 ? {} : { changed: changed.map(written) }),
      ...(gone.length === 0 ? {} : { gone }),
      ...(asking === null ? {} : { asking: written(asking) }),
    });
  }
}

/** Without a price where a session does not know it. */
const written = ({ price, ...member }: PoolMember): NonNullable<Turn['asking']> =>
  price === undefined ? member : { ...member, price };
