/** For whom a session made a move that the policy of a pool asked it for, and who and what was spared. */
import { bytesText, plural, printable } from '../native/index.ts';
import { Asking, type PoolMember, poolPolicy } from '../policy/index.ts';
import type { PoolAsking } from './entries/pool-asking.ts';
import type { LogFiles } from './files.ts';
import { onRung } from './gave-up-text.ts';
import { seenIn } from './pool-replay.ts';
import { askingIn } from './pool-series.ts';
import { readSeries } from './read.ts';
import { entryId, seriesOf } from './series.ts';
import type { Entry } from './types.ts';

/** Why a session gave up bytes that it had room for by itself: the turn of an asking in which it made its move. */
export interface AskedFor {
  /** Entry of the asking, in the series of the pool. */
  readonly seq: number;
  /** Id of that series. */
  readonly pool: string;
  /** The session that needed bytes. */
  readonly session: string;
  /** What it needed. */
  readonly neededBytes: number;
  /** The room that there was before this turn. */
  readonly roomBytes: number;
  /** The policy of the pool. */
  readonly policy: string;
  /** The rung of the ladder on which it asked; null: the log does not say it. */
  readonly rung: string | null;
  /** Others that could have been asked in this turn. */
  readonly others: number;
  /** Which of them the policy would have asked without this one; null: none. */
  readonly next: string | null;
  /** Moves that this session could have made as well, none of them cheaper; null: its policy does not know. */
  readonly movesLeft: number | null;
}

/**
 * The asking that a decision belongs to; null: it was made for no pool, or the log does not say so. An asking is
 * written as soon as it is over, so it can only be the next one of its writer.
 */
export function askedFor(dir: string, told: Entry<'decision'>, files?: LogFiles): AskedFor | null {
  const part = { from: told.seq, kinds: ['note'] as const, ...(files === undefined ? {} : { files }) };
  for (const entry of readSeries(dir, seriesOf(told.seq), part)) {
    const asking = askingIn(entry);
    if (asking !== null) return turnOf(asking, told, entry);
  }
  return null;
}

function turnOf(body: PoolAsking, { session, body: told }: Entry<'decision'>, entry: Entry): AskedFor | null {
  const policy = poolPolicy(body.policy, body.version);
  if (policy === null) return null;
  const asking = new Asking({ ...body, policy });
  let own: PoolMember | null = null;
  for (const turn of body.turns) {
    const seen = seenIn(turn);
    asking.next(seen);
    own = seen.asking ?? own;
    const { asked, situation = 0, situations = 0, movesLeft = null, roomBytes } = turn;
    if (asked !== session || told.situation < situation || told.situation >= situation + situations) continue;
    const others = asking.members.filter(({ id }) => id !== session);
    const { session: whom, neededBytes, rung = null } = body;
    return {
      ...{ seq: entry.seq, pool: entry.session, session: whom, neededBytes, roomBytes, policy: policy.id, rung },
      others: others.length,
      next: own === null ? null : (policy.next(others, own)?.id ?? null),
      movesLeft,
    };
  }
  return null;
}

/** In words. `self`: the session that made the move. */
export function askedForText(asked: AskedFor, self: string): string {
  const { seq, pool, session, neededBytes, roomBytes, policy, rung, others, next, movesLeft } = asked;
  const isOwn = session === self;
  const who = isOwn ? 'this session' : `session ${printable(session)}`;
  const room = `${bytesText(Math.max(0, neededBytes - roomBytes))} more than there was room for`;
  const turn = `By '${printable(policy)}' it was ${isOwn ? 'its own' : "this session's"} turn${onRung(rung)}`;
  const after = next === null ? '' : `; ${printable(next)} would have been next`;
  const spared = `${plural(others, 'other session was', 'other sessions were')} spared${after}`;
  const moves =
    movesLeft === null
      ? ''
      : ` ${plural(movesLeft, 'move that was', 'moves that were')} no cheaper ${movesLeft === 1 ? 'was' : 'were'} spared here.`;
  return `Because ${who} needed ${room} (entry ${entryId(seq)} of ${printable(pool)}). ${turn}, and ${spared}.${moves}`;
}
