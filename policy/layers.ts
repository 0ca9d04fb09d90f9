/**
 * The machines of all layers behind one scan: signals in, what each layer may do out. Snapshots are immutable and know
 * nothing of their layer, so layers in the same state share one and an event that hits all of them is worked out once.
 */
import { initialTransition, type SnapshotFrom, transition } from 'xstate';
import { assert } from '../native/index.ts';
import { TIERS } from './ladder.ts';
import {
  type LayerAction,
  type LayerEvent,
  type LayerMachine,
  layerMachine,
  SIGNAL_STEPS,
  SIGNALS,
  type Signal,
} from './machine.ts';
import { Scan } from './scan.ts';
import { thresholdOf } from './thresholds.ts';
import type { ThresholdSet } from './types.ts';

type Snapshot = SnapshotFrom<LayerMachine>;

/** A transition that was taken, for tests and for reports. */
export interface Change {
  readonly layer: number;
  readonly event: LayerEvent;
  readonly actions: readonly LayerAction[];
}

const STATE_REGIONS = ['storage', 'quality', 'pressure', 'latency'] as const;
const BAND = Object.fromEntries(SIGNALS.map((signal, band) => [signal, band])) as Readonly<Record<Signal, number>>;

export class Layers {
  readonly count: number;
  /** Index in TIERS of the lowest tier that pages of each layer may enter now. */
  readonly openTier: Uint8Array;
  /** 1 where quality forbids every demotion, which it does in the machine of earlier versions alone. */
  readonly stopped: Uint8Array;
  /** 1 where only what must move may move. */
  readonly held: Uint8Array;
  /** 1 where a sample of the pages is tried again, and not all. */
  readonly sampled: Uint8Array;
  /** The regions whose states are told. */
  readonly #told: readonly string[];
  readonly #machine: LayerMachine;
  readonly #scan: Scan;
  readonly #snapshots: Snapshot[];
  readonly #bounds: readonly (readonly { enter: LayerEvent; leave: LayerEvent }[])[];

  /** Whether layers can be trusted depends on what earlier sessions told; where none did, nothing is said of trust. */
  constructor(layers: number, set: ThresholdSet, machine: LayerMachine = layerMachine) {
    this.count = layers;
    this.#machine = machine;
    this.openTier = new Uint8Array(layers);
    this.stopped = new Uint8Array(layers);
    this.held = new Uint8Array(layers);
    this.sampled = new Uint8Array(layers);
    this.#told = set.course === undefined ? STATE_REGIONS : [...STATE_REGIONS, 'trust'];
    const value = (id: Parameters<typeof thresholdOf>[1]): number => thresholdOf(set, id).value;
    this.#bounds = SIGNALS.map((signal) =>
      SIGNAL_STEPS[signal].map(({ enter, leave }) => ({
        enter: { type: `${signal}.rise` as const, threshold: enter, measured: 0, bound: value(enter) },
        leave: { type: `${signal}.fall` as const, threshold: leave, measured: 0, bound: value(leave) },
      })),
    );
    this.#scan = new Scan(
      layers,
      this.#bounds.map((steps) => ({
        steps: steps.map(({ enter, leave }) => ({ enter: enter.bound, leave: leave.bound })),
      })),
    );
    const [first] = initialTransition(machine);
    this.#snapshots = new Array<Snapshot>(layers).fill(first);
  }

  /** Sets a signal of one layer; the next `update` reads it. */
  set(signal: Signal, layer: number, measured: number): void {
    this.#scan.signals[BAND[signal] * this.count + layer] = measured;
  }

  /** Sets a signal that all layers share. */
  setAll(signal: Signal, measured: number): void {
    const at = BAND[signal] * this.count;
    this.#scan.signals.fill(measured, at, at + this.count);
  }

  /**
   * Sends what crossed to the machines and does what they ask for. → the arrows taken; the shared empty list when none
   * was.
   */
  update(): readonly Change[] {
    let changes: readonly Change[] = NO_CHANGES;
    // A second pass is needed only after a layer was reopened, because its demand must be sent again.
    for (let pass = 0; pass < 2; pass++) {
      const count = this.#scan.run();
      if (count === 0) break;
      changes = [...changes, ...this.#send(count)];
    }
    return changes;
  }

  isHealthy(layer: number): boolean {
    return this.#stateOf(layer).quality === 'healthy';
  }

  isDegraded(layer: number): boolean {
    return this.#stateOf(layer).quality === 'degraded';
  }

  /** The state of each region of a layer. */
  #stateOf(layer: number): Readonly<Record<string, string>> {
    return this.#snapshots[layer]!.value as unknown as Readonly<Record<string, string>>;
  }

  /** e.g. 'archive/healthy/critical/headroom', in the order of STATE_REGIONS; 'trust' behind them where it is told. */
  stateName(layer: number): string {
    const value = this.#stateOf(layer);
    return this.#told.map((region) => value[region]).join('/');
  }

  #send(count: number): Change[] {
    const { crossings, signals } = this.#scan;
    const changes: Change[] = [];
    const worked = new Map<Snapshot, Map<string, readonly [Snapshot, readonly LayerAction[]]>>();
    for (let i = 0; i < count; i++) {
      const band = crossings[3 * i]!;
      const layer = crossings[3 * i + 1]!;
      const step = crossings[3 * i + 2]!;
      const bounds = this.#bounds[band]![Math.abs(step) - 1]!;
      const event = { ...(step > 0 ? bounds.enter : bounds.leave), measured: signals[band * this.count + layer]! };
      const before = this.#snapshots[layer]!;
      const known = worked.get(before) ?? new Map<string, readonly [Snapshot, readonly LayerAction[]]>();
      worked.set(before, known);
      const key = `${event.type} ${event.threshold}`;
      let next = known.get(key);
      if (next === undefined) {
        const [after, actions] = transition(this.#machine, before, event);
        next = [after, actions as unknown as readonly LayerAction[]];
        known.set(key, next);
      }
      this.#snapshots[layer] = next[0];
      for (const action of next[1]) this.#perform(layer, action);
      changes.push({ layer, event, actions: next[1].map(plain) });
    }
    return changes;
  }

  #perform(layer: number, action: LayerAction): void {
    switch (action.type) {
      case 'openTier':
        this.openTier[layer] = TIERS.indexOf(action.params.tier);
        return;
      case 'stopDemotions':
        this.stopped[layer] = 1;
        this.openTier[layer] = 0;
        return;
      case 'resumeDemotions':
        this.stopped[layer] = 0;
        // Demand may have stayed high in the meantime, so forget that it was reported.
        this.#scan.levels[BAND.demand * this.count + layer] = 0;
        return;
      case 'holdEarlyMoves':
        this.held[layer] = 1;
        return;
      case 'resumeEarlyMoves':
        this.held[layer] = 0;
        return;
      case 'repeatSample':
        this.sampled[layer] = 1;
        return;
      case 'repeatAll':
        this.sampled[layer] = 0;
        return;
      default:
        assert(false, `the machine asked for an unknown action '${(action as { type: string }).type}'`);
    }
  }
}

const NO_CHANGES: readonly Change[] = [];

/** The action without the fields that the state machine library adds. */
const plain = (action: LayerAction): LayerAction =>
  (action.type === 'openTier' ? { type: action.type, params: action.params } : { type: action.type }) as LayerAction;
