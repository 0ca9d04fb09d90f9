/** Walks the machine of a pack: what can be reached, what may read and write pages, and where nothing goes on. */
import { expect, test } from 'vitest';
import { transition } from 'xstate';
import { getAdjacencyMap } from 'xstate/graph';
import {
  nextPackState,
  PACK_ARROWS,
  PACK_EVENTS,
  PACK_STATES,
  type PackState,
  packMachine,
  readsPages,
  writesPages,
} from '../../../policy/index.ts';

test('every state can be reached, and the arrows are those of the definition', () => {
  const map = getAdjacencyMap(packMachine, { events: PACK_EVENTS.map((type) => ({ type })) });
  const reached = Object.values(map).map(({ state }) => state.value as PackState);
  expect(reached.sort()).toEqual([...PACK_STATES].sort());
  for (const from of PACK_STATES)
    for (const event of PACK_EVENTS) {
      const state = packMachine.resolveState({ value: from });
      const expected = state.can({ type: event }) ? transition(packMachine, state, { type: event })[0].value : null;
      expect(nextPackState(from, event), `${from} ${event}`).toBe(expected);
      const declared = PACK_ARROWS.filter((arrow) => arrow.from === from && arrow.event === event);
      expect(declared.map(({ to }) => to)).toEqual(expected === null ? [] : [expected]);
    }
});

/** All ways through the machine that meet no state twice. */
function* waysFrom(state: PackState, before: readonly PackState[] = []): Generator<readonly PackState[]> {
  const way = [...before, state];
  yield way;
  for (const { from, to } of PACK_ARROWS) if (from === state && !way.includes(to)) yield* waysFrom(to, way);
}

test('nothing serves that was not verified, instrumented and tested, in this order', () => {
  const needed: readonly PackState[] = ['staged', 'verified', 'instrumented', 'tested'];
  const ways = [...waysFrom('staged')].filter((way) => readsPages(way.at(-1)!) || writesPages(way.at(-1)!));
  expect(ways.length).toBeGreaterThan(3);
  for (const way of ways) expect(way.slice(0, 4)).toEqual(needed);
});

test('what was distrusted never reads or writes again, and whatever has pages can be read or is distrusted', () => {
  for (const end of ['rejected', 'quarantined'] as const) {
    expect(PACK_ARROWS.filter(({ from }) => from === end)).toEqual([]);
    expect(readsPages(end) || writesPages(end)).toBe(false);
  }
  for (const state of PACK_STATES) {
    if (writesPages(state)) expect(readsPages(state)).toBe(true);
    if (state === 'rejected' || state === 'quarantined') continue;
    expect(nextPackState(state, 'distrust')).toBe(PACK_STATES.indexOf(state) < 4 ? 'rejected' : 'quarantined');
  }
  // Pages are there in these states, and only when the last is gone does a pack stop reading them.
  for (const { from, event, to } of PACK_ARROWS)
    if (readsPages(from) && !readsPages(to)) expect(['drain', 'distrust']).toContain(event);
});
