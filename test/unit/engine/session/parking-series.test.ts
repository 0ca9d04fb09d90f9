// Who is parked for others is chosen by a policy of its own: what it chose by is in the series of the pool, from which
// it is chosen again, and any change of it shows.
import { beforeAll, describe, expect, it } from 'vitest';
import { createEngine } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import {
  type Entry,
  type PoolParking,
  parkingIn,
  readLog,
  replay,
  replayText,
  timeline,
  verifyLog,
} from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { forgeLog } from '../../witness/forged.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();
type Mutable<T> = T extends readonly (infer One)[]
  ? Mutable<One>[]
  : T extends object
    ? { -readonly [K in keyof T]: Mutable<T[K]> }
    : T;

let dir: string;
let sessions: readonly string[];
let entries: readonly Entry<'note'>[];
beforeAll(async () => {
  dir = folder();
  // Two of four have room, and the pages of none go lower.
  const engine = await createEngine({ model: MODEL, threads: 1, stateDir: dir, kvBudget: '1.5MiB' });
  const open = await Promise.all(Array.from({ length: 4 }, () => engine.openSession({ policy: 'none' })));
  for (let turn = 0; turn < 8; turn++) await open[turn % 4]!.read(ids(turn < 4 ? 256 : 5, turn));
  sessions = open.map(({ id }) => id);
  await engine.close();
  const notes = [...readLog(logDir(dir), { kinds: ['note'] })] as Entry<'note'>[];
  entries = notes.filter((one) => parkingIn(one) !== null);
});

const parkings = (): PoolParking[] => entries.map((one) => parkingIn(one)!);

describe('sessions that are parked for others', () => {
  it('are in the series of the pool, with whoever could have been', () => {
    expect(entries.length).toBeGreaterThan(2);
    for (const { policy, version, session, waiters, chosen, lackingBytes } of parkings()) {
      expect([policy, version, sessions.includes(session)]).toEqual(['returning', 1, true]);
      expect(waiters.map(({ id }) => id)).toEqual(expect.arrayContaining(chosen.map(({ id }) => id)));
      expect(
        waiters.every(({ id, freedBytes, restoreMs }) => id !== session && freedBytes > 0 && restoreMs > 250),
      ).toBe(true);
      expect(chosen.reduce((sum, { freedBytes }) => sum + freedBytes, 0)).toBeGreaterThanOrEqual(lackingBytes);
    }
    const chosen = parkings().flatMap((one) => one.chosen.map(({ id }) => id));
    const told = sessions.flatMap((id) =>
      entriesOf(dir, id, 'note').filter(({ body }) => body['idle'] === 'parked' && body['parkedBy'] === 'returning'),
    );
    expect(told.map(({ session }) => session).toSorted()).toEqual(chosen.toSorted());
    // Who came back has a pause that is counted, and all know how many there were.
    const last = parkings().at(-1)!;
    expect(last.seen.first.returned).toBeGreaterThan(0);
    expect(parkings().some(({ waiters }) => waiters.some(({ pauses }) => pauses === 1))).toBe(true);
  });

  it('are chosen again from the log alone', () => {
    const report = replay(logDir(dir), 'pool');
    expect(report).toMatchObject({ policy: 'even@2, returning@1', equal: true, complete: true, missing: 0 });
    // Bytes were asked for before, of nobody who had any.
    expect(report.situations).toBeGreaterThan(entries.length);
    expect(replayText(report)).toMatch(/every byte is the same\.$/);
    expect(verifyLog(logDir(dir)).ok).toBe(true);
  });

  it.each<[string, (parking: Mutable<PoolParking>) => void, string]>([
    ['another one was chosen', ({ waiters, chosen }) => (chosen[0]!.id = other(waiters, chosen).id), 'turn'],
    [
      'whoever was chosen took long to come back',
      ({ waiters, chosen }) => (find(waiters, chosen).restoreMs = 1e9),
      'turn',
    ],
    ['nobody was chosen', (parking) => (parking.chosen = []), 'end'],
    ['it went on though enough was free', (parking) => (parking.lackingBytes = 0), 'turn'],
    ['no policy that is known chose', (parking) => (parking.version = 9), 'policy'],
  ])('differ where the log is told that %s', (_, change, what) => {
    const copy = structuredClone(entries) as Entry<'note'>[];
    const at = parkings().findIndex(({ waiters }) => waiters.length > 1);
    change(parkingIn(copy[at]!) as Mutable<PoolParking>);
    const forged = folder();
    forgeLog(forged, copy as unknown as Record<string, unknown>[]);
    const { equal, firstDifference } = replay(forged, entries[0]!.session);
    expect([equal, firstDifference?.what, firstDifference?.seq]).toEqual([false, what, at]);
  });

  it('are told in words, in the series of the pool and in their own', () => {
    const log = logDir(dir);
    const [first] = entries;
    const texts = (of: string): readonly string[] => timeline(log, of).map(({ text }) => text);
    expect(texts(first!.session)).toContainEqual(
      expect.stringMatching(
        /^Session \S+ lacked .* \(rung 'let-go'\)\. Of \d sessions? that waited 'returning' had parked: \S+ .*\.$/,
      ),
    );
    const [chosen] = parkings()[0]!.chosen;
    expect(texts(chosen!.id)).toContainEqual(expect.stringContaining("(rung 'let-go', chosen by 'returning')"));
  });
});

type Waiters = Mutable<PoolParking['waiters']>;
type Chosen = Mutable<PoolParking['chosen']>;
const find = (waiters: Waiters, [first]: Chosen): Waiters[number] => waiters.find(({ id }) => id === first!.id)!;
const other = (waiters: Waiters, [first]: Chosen): Waiters[number] => waiters.find(({ id }) => id !== first!.id)!;
