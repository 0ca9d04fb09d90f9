/** What the series of a pool says to people: who needed how much, and who gave it or was parked for it. */
import { bytesText, plural, printable } from '../native/index.ts';
import type { PoolAsking } from './entries/pool-asking.ts';
import type { PoolParking } from './entries/pool-parking.ts';
import { askerText } from './id.ts';

const capital = (text: string): string => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;

/** What each session gave, in the order in which they were asked. */
export function givenIn({ turns }: PoolAsking): ReadonlyMap<string, number> {
  const given = new Map<string, number>();
  for (const { asked, freedBytes } of turns)
    if (asked !== null) given.set(asked, (given.get(asked) ?? 0) + Math.max(0, freedBytes));
  return given;
}

export function askingText(asking: PoolAsking): string {
  const { session, neededBytes, budgetBytes, policy, turns, leftOut, rung } = asking;
  const [first] = turns;
  const room = first === undefined ? '' : `, and there was room for ${bytesText(Math.max(0, first.roomBytes))}`;
  const step = rung === undefined ? '' : ` (rung '${printable(rung)}')`;
  const needed = `${capital(printable(askerText(session)))} needed ${bytesText(neededBytes)} of ${bytesText(budgetBytes)}${room}${step}.`;
  if (leftOut !== undefined)
    return `${needed} ${plural(leftOut, 'turn')} by '${printable(policy)}', of more sessions than an entry has room for.`;
  const given = [...givenIn(asking)].map(
    ([id, bytes]) => `${id === session ? 'itself' : printable(id)} ${bytesText(bytes)}`,
  );
  const left = (turns.at(-1)?.roomBytes ?? 0) < neededBytes ? ' That was not enough.' : '';
  return `${needed} ${given.length === 0 ? 'Nobody was asked' : `Asked by '${printable(policy)}': ${given.join(', ')}`}.${left}`;
}

export function parkingText({ session, lackingBytes, rung, policy, waiters, chosen, leftOut }: PoolParking): string {
  const lacked = `${capital(printable(askerText(session)))} lacked ${bytesText(lackingBytes)} (rung '${printable(rung)}').`;
  if (leftOut !== undefined)
    return `${lacked} ${plural(leftOut, 'session was', 'sessions were')} chosen by '${printable(policy)}', of more than an entry has room for.`;
  const freed = chosen.map(({ id, freedBytes }) => `${printable(id)} ${bytesText(Math.max(0, freedBytes))}`);
  return `${lacked} Of ${plural(waiters.length, 'session')} that waited '${printable(policy)}' had parked: ${freed.join(', ')}.`;
}
