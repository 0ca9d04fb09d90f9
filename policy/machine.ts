/**
 * The machine of one layer: five regions side by side. Every arrow is guarded by a threshold; the event carries what
 * was measured and the bound, so that whoever sees the arrow can say why. It is used through the pure functions
 * `initialTransition` and `transition` only; what an arrow does is returned as data and carried out by layers.ts.
 *
 *   storage   lowest tier that pages of the layer may enter now   exact ⇄ warm ⇄ archive
 *   quality   what the layer has committed to so far              healthy ⇄ watched → degraded ⇄ recovering → healthy
 *   pressure  bytes against the budget                            relaxed ⇄ elevated ⇄ critical
 *   latency   step time against its budget                        headroom ⇄ tight
 *   trust     whether all pages are tried again, or a sample     unknown → trusted ⇄ watched
 *
 * The machine that versions 1 to 4 of the price policy go by has a fourth state of storage, in which a degraded layer
 * lets no page in. It is kept for their logs: what a layer does not give, others must, and that did more harm than the
 * errors of the layer (docs/lab/policy.md).
 */
import { createHash } from 'node:crypto';
import { setup } from 'xstate';
import { formMachine } from './form-machine.ts';
import type { Tier } from './ladder.ts';
import type { ThresholdId } from './thresholds.ts';

/** `demand` opens tiers: it is the pressure, or the foreseen pressure where there is evidence to act on early. */
/** `agreement`: how well trials agree with what earlier sessions say; 0 where none says anything. */
export const SIGNALS = ['demand', 'quality', 'pressure', 'latency', 'agreement'] as const;
export type Signal = (typeof SIGNALS)[number];

/** Bounds of each signal, lowest step first. */
export const SIGNAL_STEPS: Readonly<
  Record<Signal, readonly { readonly enter: ThresholdId; readonly leave: ThresholdId }[]>
> = {
  demand: [
    { enter: 'pressure.enter', leave: 'pressure.leave' },
    { enter: 'pressure.critical', leave: 'pressure.ease' },
  ],
  quality: [
    { enter: 'quality.watched', leave: 'quality.watched.leave' },
    { enter: 'quality.degraded', leave: 'quality.degraded.leave' },
  ],
  pressure: [
    { enter: 'pressure.enter', leave: 'pressure.leave' },
    { enter: 'pressure.critical', leave: 'pressure.ease' },
  ],
  latency: [{ enter: 'latency.enter', leave: 'latency.leave' }],
  agreement: [{ enter: 'trust.enter', leave: 'trust.leave' }],
};

export interface LayerEvent {
  readonly type: `${Signal}.rise` | `${Signal}.fall`;
  readonly threshold: ThresholdId;
  readonly measured: number;
  readonly bound: number;
}

/** What arrows ask for. */
export type LayerAction =
  | { readonly type: 'openTier'; readonly params: { readonly tier: Tier } }
  /** No page of the layer may move, whatever the pressure: in the machine of earlier versions alone. */
  | { readonly type: 'stopDemotions' }
  | { readonly type: 'resumeDemotions' }
  /** Steps are slow: only what must move moves. */
  | { readonly type: 'holdEarlyMoves' }
  | { readonly type: 'resumeEarlyMoves' }
  /** What is known of the layer holds: a sample of its pages is tried again. */
  | { readonly type: 'repeatSample' }
  | { readonly type: 'repeatAll' };

const through = (threshold: ThresholdId) => ({ type: 'crosses' as const, params: { threshold } });
const open = (tier: Tier) => ({ type: 'openTier' as const, params: { tier } });

const layer = setup({
  types: { events: {} as LayerEvent },
  guards: {
    /**
     * Which bound was crossed. That it was crossed is for the scan alone to say (scan.ts), so that no two comparisons
     * can disagree.
     */
    crosses: ({ event }, { threshold }: { threshold: ThresholdId }) => event.threshold === threshold,
  },
  actions: {
    openTier: (_context, _params: { tier: Tier }) => {},
    stopDemotions: () => {},
    resumeDemotions: () => {},
    holdEarlyMoves: () => {},
    resumeEarlyMoves: () => {},
    repeatSample: () => {},
    repeatAll: () => {},
  },
});

const QUALITY = {
  initial: 'healthy',
  states: {
    // The scan reports both bounds in order, so nothing leads from here to degraded.
    healthy: { on: { 'quality.rise': { guard: through('quality.watched'), target: 'watched' } } },
    watched: {
      on: {
        'quality.rise': { guard: through('quality.degraded'), target: 'degraded' },
        'quality.fall': { guard: through('quality.watched.leave'), target: 'healthy' },
      },
    },
    degraded: {
      on: { 'quality.fall': { guard: through('quality.degraded.leave'), target: 'recovering' } },
    },
    recovering: {
      on: {
        'quality.rise': { guard: through('quality.degraded'), target: 'degraded' },
        'quality.fall': { guard: through('quality.watched.leave'), target: 'healthy' },
      },
    },
  },
} as const;

const PRESSURE = {
  initial: 'relaxed',
  states: {
    relaxed: { on: { 'pressure.rise': { guard: through('pressure.enter'), target: 'elevated' } } },
    elevated: {
      on: {
        'pressure.rise': { guard: through('pressure.critical'), target: 'critical' },
        'pressure.fall': { guard: through('pressure.leave'), target: 'relaxed' },
      },
    },
    critical: { on: { 'pressure.fall': { guard: through('pressure.ease'), target: 'elevated' } } },
  },
} as const;

const LATENCY = {
  initial: 'headroom',
  states: {
    headroom: {
      on: { 'latency.rise': { guard: through('latency.enter'), target: 'tight', actions: 'holdEarlyMoves' } },
    },
    tight: {
      on: { 'latency.fall': { guard: through('latency.leave'), target: 'headroom', actions: 'resumeEarlyMoves' } },
    },
  },
} as const;

const TRUST = {
  initial: 'unknown',
  states: {
    unknown: {
      on: { 'agreement.rise': { guard: through('trust.enter'), target: 'trusted', actions: 'repeatSample' } },
    },
    trusted: {
      on: { 'agreement.fall': { guard: through('trust.leave'), target: 'watched', actions: 'repeatAll' } },
    },
    watched: {
      on: { 'agreement.rise': { guard: through('trust.enter'), target: 'trusted', actions: 'repeatSample' } },
    },
  },
} as const;

/** Where a degraded layer stops, it does so from every state of storage, and begins again when it has recovered. */
const STOP = {
  'quality.rise': { guard: through('quality.degraded'), target: 'shut', actions: 'stopDemotions' },
} as const;
const SHUT = {
  // Demand is not heard in this state; the caller sends it again after `resumeDemotions`.
  shut: {
    on: {
      'quality.fall': { guard: through('quality.degraded.leave'), target: 'exact', actions: 'resumeDemotions' },
    },
  },
} as const;

/** The machine of a layer that goes on where it is degraded, or stops. */
function define(stops: boolean) {
  const stop = stops ? STOP : {};
  const storage = {
    initial: 'exact',
    states: {
      exact: {
        on: { 'demand.rise': { guard: through('pressure.enter'), target: 'warm', actions: open('warm') }, ...stop },
      },
      warm: {
        on: {
          'demand.rise': { guard: through('pressure.critical'), target: 'archive', actions: open('archive') },
          'demand.fall': { guard: through('pressure.leave'), target: 'exact', actions: open('exact') },
          ...stop,
        },
      },
      archive: {
        on: { 'demand.fall': { guard: through('pressure.ease'), target: 'warm', actions: open('warm') }, ...stop },
      },
      ...(stops ? SHUT : {}),
    },
  } as const;
  const states = { storage, quality: QUALITY, pressure: PRESSURE, latency: LATENCY, trust: TRUST };
  return layer.createMachine({ id: 'layer', type: 'parallel', states });
}

export type LayerMachine = ReturnType<typeof define>;
export const layerMachine: LayerMachine = define(false);
/** The one of versions 1 to 4 of the price policy. */
export const stoppingMachine: LayerMachine = define(true);

/**
 * SHA-256 of the definitions of the machines, that of a layer, the earlier one and that of a page side, in hex: says in
 * a log which machines decided; which one of a layer, the version of the policy says. Equal on every computer and
 * version of Node.
 */
export function machineDigest(): string {
  const definitions = [layerMachine, stoppingMachine, formMachine].map(({ config }) => config);
  return createHash('sha256')
    .update(definitions.map((one) => JSON.stringify(one)).join(''))
    .digest('hex');
}

/**
 * The digests of machines before this one, which decide the same: the first had an arrow from healthy to degraded, and
 * no scan takes it; the second knew nothing of trust, which no session had that was given no course of errors; the
 * third was that of a layer alone, and said nothing of forms, which pages changed as they may now; the fourth had one
 * machine of a layer, by which the versions of that time are still decided; in the fifth no guard asked whether keys
 * and values may go for a latent, and sessions that began without its bounds have none.
 */
const EARLIER: readonly string[] = [
  'c2b5cac08a79bfbc81322263f8e6e20db3b06adc38877436170ef6e60ba408a8',
  '03816a352fc2671bacba104b545b954f3c3652048dbc8ee720ed5c0c2c532f34',
  '7ff8af2830edd110334ddcaa0925987f52848c0a06e497f2e645c826eeda230b',
  '02763e4ae33f256e5f4cf340ec4338b45df0f643a54e7547c88216cb325d154f',
  '284281d61f4ff566121a395b12345c603372b53156d73dd9d2a1044123404f04',
];

/** True if a log that names this machine is decided again by the present one. */
export const isKnownMachine = (digest: string): boolean => EARLIER.includes(digest) || digest === machineDigest();
