/**
 * Decides again who was asked for bytes, and who was parked, from the series of a pool alone: the policy of the pool
 * gets what each turn was decided on, and must name whom the log names. Bytes must follow from each other as well.
 */
import { plural } from '../native/index.ts';
import { Asking, type PoolMember, poolPolicy, type TurnSeen } from '../policy/index.ts';
import { canonicalJson } from './canonical.ts';
import type { LoggedMember, PoolAsking, PoolTurn } from './entries/pool-asking.ts';
import { parkingDifference } from './parking-replay.ts';
import { askingIn, parkingIn, tellsGone } from './pool-series.ts';
import type { Difference, ReplayReport } from './replay-report.ts';
import type { Entry } from './types.ts';

/** Where an asking and what follows from it part. */
type Found = Omit<Difference, 'seq'>;

/** `entries`: those of one pool in order of seq. Stops at the first difference. */
export function replayAskings(pool: string, entries: Iterable<Entry>): ReplayReport {
  let [askings, turns, lastMs] = [0, 0, 0];
  let complete = true;
  const policies = new Set<string>();
  let firstDifference: Difference | null = null;
  for (const entry of entries) {
    const { seq, timeMs } = entry;
    const [asking, parking] = [askingIn(entry), parkingIn(entry)];
    const body = asking ?? parking;
    let found: Found | null = null;
    if (timeMs < lastMs) found = differs('time', `${timeMs} ms`, `${lastMs} ms or later, as the entry before it`);
    else if (body === null)
      found = tellsGone(entry) ? null : differs('entry', `an entry of kind '${entry.kind}'`, 'an asking of the pool');
    else {
      policies.add(`${body.policy}@${body.version}`);
      found = asking === null ? parkingDifference(parking!) : differenceIn(asking);
      askings++;
      turns += asking?.turns.length ?? parking!.chosen.length;
      complete &&= body.leftOut === undefined;
    }
    lastMs = Math.max(lastMs, timeMs);
    if (found === null) continue;
    firstDifference = { seq, ...found };
    break;
  }
  const equal = firstDifference === null;
  const policy = policies.size === 0 ? 'none' : [...policies].join(', ');
  return { session: pool, policy, situations: askings, decisions: turns, equal, complete, firstDifference };
}

const differs = (what: Difference['what'], logged: string, replayed: string): Found => ({ what, logged, replayed });

/** The first thing in an asking that does not follow from the rest of it; null: all does. */
export function differenceIn(body: PoolAsking): Found | null {
  const { policy: id, version, isEverybody, neededBytes, turns, leftOut } = body;
  const policy = poolPolicy(id, version);
  if (policy === null) return differs('policy', `${id}@${version}`, 'a policy of the pool that this version knows');
  if (leftOut !== undefined && turns.length === 0) return null;
  const asking = new Asking({ policy, isEverybody, neededBytes });
  for (const [at, turn] of turns.entries()) {
    const next = asking.next(seenIn(turn))?.id ?? null;
    if (next !== turn.asked) return differs('turn', turnText(at, turn.asked), turnText(at, next));
    const found = bytesOf(at, turn, turns[at + 1], asking.members);
    if (found !== null) return found;
  }
  return null;
}

/** A turn as it was seen: what did not change is not written. */
export const seenIn = ({ roomBytes, changed = [], gone = [], asking }: PoolTurn): TurnSeen => ({
  roomBytes,
  changed: changed.map(memberIn),
  gone,
  asking: asking === undefined ? null : memberIn(asking),
});

const memberIn = ({ price, ...member }: LoggedMember): PoolMember => ({ ...member, price });

const turnText = (at: number, asked: string | null): string =>
  `turn ${at}: ${asked === null ? 'nobody' : canonicalJson(asked)}`;

/**
 * Every turn but the last asks somebody; whoever was asked has so many bytes less the next time that it is seen, and
 * whoever gave nothing is asked no more.
 */
function bytesOf(
  at: number,
  { asked, freedBytes, ...turn }: PoolTurn,
  next: PoolTurn | undefined,
  members: readonly PoolMember[],
): Found | null {
  if ((asked === null) !== (next === undefined))
    return differs(
      'end',
      `${plural(at + 1, 'turn')}, the last of which asks ${asked ?? 'nobody'}`,
      'turns until nobody is asked',
    );
  if (asked === null || next === undefined) {
    const isQuiet = freedBytes === 0 && turn.situations === undefined;
    return isQuiet ? null : differs('bytes', `${freedBytes} freed by nobody`, '0 freed');
  }
  const before = members.find(({ id }) => id === asked)!;
  const after = next.changed?.find(({ id }) => id === asked)?.bytes ?? before.bytes;
  const isGone = next.gone?.includes(asked) === true;
  // Nobody is looked at again once there is room.
  const isLast = next.asked === null && next.changed === undefined && next.gone === undefined;
  if (!isLast && !isGone && before.bytes - after !== freedBytes)
    return differs('bytes', `${freedBytes} freed in turn ${at}`, `${before.bytes - after} freed`);
  const isSpent = freedBytes <= 0;
  if (!isLast && isSpent && !isGone)
    return differs('turn', `${asked} gave nothing and stays`, `${asked} is asked no more`);
  return null;
}
