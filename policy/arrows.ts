/**
 * Which arrows of the machine were taken: counted from the states of layers, for tests and for tables over whole runs.
 */
import { layerMachine } from './machine.ts';
import type { LayerChange } from './types.ts';

/** Every arrow: region, state, state. */
const DECLARED: readonly (readonly [region: string, from: string, to: string])[] = Object.entries(
  layerMachine.config.states as unknown as Readonly<
    Record<string, { readonly states: Readonly<Record<string, State>> }>
  >,
).flatMap(([region, { states }]) =>
  Object.entries(states).flatMap(([from, { on = {} }]) =>
    Object.values(on)
      .flat()
      .map(({ target }) => [region, from, target] as const),
  ),
);

interface State {
  readonly on?: Readonly<Record<string, { readonly target: string } | readonly { readonly target: string }[]>>;
}

/** How often each arrow was taken. */
export class Arrows {
  /** 'region: from → to' and how often, in the order of the machine. */
  readonly counts: Map<string, number> = new Map(DECLARED.map((arrow) => [nameOf(arrow), 0]));
  #before: readonly string[] = [];

  /** A session begins, with every layer in its first state. */
  begin(): void {
    this.#before = [];
  }

  /**
   * The states of all layers after a scheduling point, as PolicySummary has them. Several arrows of one region may have
   * been taken at once.
   */
  see(layerStates: readonly string[]): void {
    for (const [layer, state] of layerStates.entries()) {
      const before = (this.#before[layer] ?? FIRST).split('/');
      for (const [i, to] of state.split('/').entries()) this.#walk(REGIONS[i]!, before[i]!, to);
    }
    this.#before = [...layerStates];
  }

  /** Names of arrows that were never taken. */
  get missing(): string[] {
    return [...this.counts].flatMap(([name, count]) => (count === 0 ? [name] : []));
  }

  /** Counts the shortest way between two states of a region. */
  #walk(region: string, from: string, to: string): void {
    if (from === to) return;
    const ways: (readonly string[])[] = [[from]];
    for (const way of ways) {
      const last = way.at(-1)!;
      if (last === to) {
        for (let i = 1; i < way.length; i++) {
          const name = nameOf([region, way[i - 1]!, way[i]!]);
          this.counts.set(name, this.counts.get(name)! + 1);
        }
        return;
      }
      for (const [of, start, end] of DECLARED)
        if (of === region && start === last && !way.includes(end)) ways.push([...way, end]);
    }
  }
}

const nameOf = ([region, from, to]: readonly [string, string, string]): string => `${region}: ${from} → ${to}`;
const REGIONS = Object.keys(layerMachine.config.states!);

/** What tells that the quality of a layer is in another state: all sources of changes but that of its trust. */
export const QUALITY_SOURCES = ['error', 'topic', 'gain', 'codes'] as const satisfies readonly LayerChange['source'][];
export type QualitySource = (typeof QUALITY_SOURCES)[number];

/**
 * The state of one region in what a layer's states are called, e.g. 'archive/healthy/elevated/headroom'; all of it
 * where it has no such part.
 */
export const regionIn = (state: string, region: 'quality' | 'trust'): string =>
  state.split('/')[REGIONS.indexOf(region)] ?? state;

const FIRST = Object.values(layerMachine.config.states as unknown as Readonly<Record<string, { initial: string }>>)
  .map(({ initial }) => initial)
  .join('/');
