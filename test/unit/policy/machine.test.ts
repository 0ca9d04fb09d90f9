/**
 * Walks everything that the machine of a layer can reach (xstate/graph), alone and together with all formats that a
 * page can come to through legal moves, and looks for what must not be there.
 */
import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { getAdjacencyMap, getShortestPaths } from 'xstate/graph';
import { FORMAT_NAMES, FORMATS, type FormatName, isAutomatic, SIDES, servesSide } from '../../../native/index.ts';
import {
  defaultThresholds,
  isKnownMachine,
  isUselessPair,
  type LayerEvent,
  type LayerMachine,
  Layers,
  layerMachine,
  type Move,
  machineDigest,
  SIGNAL_STEPS,
  SIGNALS,
  type Signal,
  stoppingMachine,
  TIERS,
  type Tier,
  thresholdOf,
  tierOf,
  unsafe,
} from '../../../policy/index.ts';

/** A move is legal when it is not unsafe and the layer's storage state lets pages enter its tier. */
const isLegal = (move: Move, tier: Tier): boolean =>
  unsafe(move) === null && (move.to === 'freed' || TIERS.indexOf(tierOf(move.to)) <= TIERS.indexOf(tier));

const set = defaultThresholds(1);
/** Every crossing that can be: each bound of each signal, just over and just under. */
const EVENTS: LayerEvent[] = SIGNALS.flatMap((signal) =>
  SIGNAL_STEPS[signal].flatMap(({ enter, leave }): LayerEvent[] => {
    const [rise, fall] = [thresholdOf(set, enter).value, thresholdOf(set, leave).value];
    return [
      { type: `${signal}.rise`, threshold: enter, measured: rise, bound: rise },
      { type: `${signal}.fall`, threshold: leave, measured: fall - 1e-9, bound: fall },
    ];
  }),
);
interface Value {
  readonly storage: string;
  readonly quality: string;
  readonly pressure: string;
  readonly latency: string;
  readonly trust: string;
}
/** The scan tells of every bound on the way, so a layer hears of the bound of degraded only when it is watched. */
const heard = ({ value }: { readonly value: unknown }): LayerEvent[] =>
  EVENTS.filter(
    ({ type, threshold }) =>
      !(type === 'quality.rise' && threshold === 'quality.degraded' && (value as Value).quality === 'healthy'),
  );
const valuesOf = (machine: LayerMachine): Value[] =>
  getShortestPaths(machine, { events: heard }).map(({ state }) => state.value as unknown as Value);
const values = valuesOf(layerMachine);

test.each([
  ['present', layerMachine],
  ['earlier', stoppingMachine],
])('every state of every region of the %s machine can be reached, and none is a dead end', (_, machine) => {
  const reached = valuesOf(machine);
  for (const region of Object.keys(machine.config.states!) as (keyof Value)[]) {
    const declared = Object.keys((machine.config.states as Record<string, { states: object }>)[region]!.states);
    expect([...new Set(reached.map((value) => value[region]))].sort(), region).toEqual(declared.sort());
  }
  const map = getAdjacencyMap(machine, { events: heard });
  for (const [name, { state, transitions }] of Object.entries(map)) {
    const leads = Object.values(transitions as Record<string, { state: typeof state }>).some(
      ({ state: next }) => JSON.stringify(next.value) !== JSON.stringify(state.value),
    );
    expect(leads, name).toBe(true);
  }
});

test('quality opens and shuts nothing; in the earlier machine a degraded layer lets nothing in, whatever the pressure', () => {
  const storages = (quality: string): string[] =>
    [...new Set(values.filter((value) => value.quality === quality).map(({ storage }) => storage))].sort();
  for (const quality of ['healthy', 'watched', 'degraded', 'recovering'])
    expect(storages(quality)).toEqual([...TIERS].sort());
  const earlier = valuesOf(stoppingMachine);
  expect(earlier.length).toBeGreaterThan(50);
  for (const value of earlier)
    expect(value.storage === 'shut', JSON.stringify(value)).toBe(value.quality === 'degraded');
});

// The product of machine and page: whatever tier a state opens, every legal move is followed, from every pair it can
// start with.
test('no unsafe combination can be reached over the machine and all formats', () => {
  const tiers = [...new Set(values.map(({ storage }) => storage as Tier))];
  expect(tiers.sort()).toEqual([...TIERS].sort());
  for (const window of ['f16', 'q8'] as const) {
    const seen = new Set<string>();
    const queue: { k: FormatName; v: FormatName }[] = [{ k: window, v: window }];
    while (queue.length > 0) {
      const pair = queue.pop()!;
      const key = `${pair.k}:${pair.v}`;
      if (seen.has(key)) continue;
      seen.add(key);
      expect(isUselessPair(pair.k, pair.v), key).toBe(false);
      for (const tier of tiers) {
        for (const side of SIDES) {
          for (const to of FORMAT_NAMES.filter(isAutomatic)) {
            const move = { side, from: pair[side], to, partner: pair[side === 'k' ? 'v' : 'k'], movable: true };
            expect(isLegal({ ...move, movable: false }, tier)).toBe(false);
            if (!isLegal(move, tier)) continue;
            expect(FORMAT_NAMES.indexOf(to), `${key} ${side} to ${to}`).toBeGreaterThan(
              FORMAT_NAMES.indexOf(pair[side]),
            );
            expect(TIERS.indexOf(tierOf(to))).toBeLessThanOrEqual(TIERS.indexOf(tier));
            queue.push({ ...pair, [side]: to });
          }
        }
      }
    }
    // All pairs that descriptions leave: of formats for their side, from the window down, and no keys of 2 bits beside
    // values of 4 bits or more.
    const below = FORMAT_NAMES.slice(FORMAT_NAMES.indexOf(window)).filter(isAutomatic);
    const [keys, values] = SIDES.map((side) => below.filter((name) => servesSide(name, side)));
    const isUseful = (k: FormatName, v: FormatName) => FORMATS[k].codeBits > 2 || FORMATS[v].codeBits < 4;
    const pairs = keys!.flatMap((k) => values!.filter((v) => isUseful(k, v)).map((v) => `${k}:${v}`));
    expect([...seen].sort()).toEqual(pairs.sort());
  }
});

// Drives the layers by signals: only those that cross change, and what they may do follows the machine.
test('layers hear only their own crossings', () => {
  const layers = new Layers(4, defaultThresholds(4));
  expect(layers.update()).toEqual([]);
  layers.set('quality', 2, 0.6);
  expect(layers.update().map(({ layer, event }) => [layer, event.type, event.threshold])).toEqual([
    [2, 'quality.rise', 'quality.watched'],
  ]);
  layers.setAll('pressure', 1.01);
  layers.setAll('demand', 1.01);
  const changes = layers.update();
  expect(changes).toHaveLength(4 * 4);
  expect([...layers.openTier]).toEqual([2, 2, 2, 2]);
  expect(layers.update()).toEqual([]);
  layers.set('quality', 2, 1.5);
  layers.update();
  expect(layers.stateName(2)).toBe('archive/degraded/critical/headroom');
  expect([...layers.openTier]).toEqual([2, 2, 2, 2]);
  expect([0, 1, 2, 3].map((layer) => layers.isDegraded(layer))).toEqual([false, false, true, false]);
  layers.set('quality', 2, 0.7);
  layers.update();
  expect(layers.stateName(2)).toBe('archive/recovering/critical/headroom');
  expect([...layers.openTier]).toEqual([2, 2, 2, 2]);
  layers.setAll('latency', 1.5);
  layers.update();
  expect([...layers.held]).toEqual([1, 1, 1, 1]);
  for (const signal of SIGNALS as readonly Signal[]) layers.setAll(signal, 0);
  layers.update();
  for (let layer = 0; layer < 4; layer++) expect(layers.stateName(layer)).toBe('exact/healthy/relaxed/headroom');
});

test('a layer of the earlier machine stops, and its tiers open again when it recovers although demand never fell', () => {
  const layers = new Layers(2, defaultThresholds(2), stoppingMachine);
  layers.setAll('demand', 1.01);
  layers.set('quality', 1, 1.5);
  layers.update();
  expect([[...layers.stopped], [...layers.openTier]]).toEqual([
    [0, 1],
    [2, 0],
  ]);
  expect(layers.stateName(1)).toBe('shut/degraded/relaxed/headroom');
  layers.set('quality', 1, 0.7);
  layers.update();
  expect(layers.stateName(1)).toBe('archive/recovering/relaxed/headroom');
  expect([[...layers.stopped], [...layers.openTier]]).toEqual([
    [0, 0],
    [2, 2],
  ]);
});

test('the digest is that of the machines in logs: with another one they could not be replayed', () => {
  const digest = (machines: readonly { readonly config: unknown }[]): string =>
    createHash('sha256')
      .update(machines.map(({ config }) => JSON.stringify(config)).join(''))
      .digest('hex');
  // Versions 1 to 4 of the price policy had this one, in later logs beside an earlier machine of forms.
  expect(digest([stoppingMachine])).toBe('7ff8af2830edd110334ddcaa0925987f52848c0a06e497f2e645c826eeda230b');
  for (const earlier of [
    '02763e4ae33f256e5f4cf340ec4338b45df0f643a54e7547c88216cb325d154f',
    '284281d61f4ff566121a395b12345c603372b53156d73dd9d2a1044123404f04',
  ])
    expect(isKnownMachine(earlier)).toBe(true);
  expect(machineDigest()).toBe('e464b0904c2a0c4bea8e90d906c40e80f77e41885b626b21d4398eaa0364a8f7');
});
