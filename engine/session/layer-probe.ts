/**
 * What errors in single layers cost, measured while a prompt is read: a few of its tokens are run again over pages of
 * one layer and side in the lowest format. A session has time for a few, those of which least is known; it leaves what
 * it found to others, which so learn what `calibrate` would measure (memory/coefficients.ts). Where a law is known well
 * nothing is probed.
 */
import { type FormatName, isMove, isPageFull, movablePages, SIDES, type Side } from '../../native/index.ts';
import { isUnsure, type LayerCost, RUNGS, thresholdOf } from '../../policy/index.ts';
import { makeRoom } from '../cache/step.ts';
import { scatter } from '../cache/watching.ts';
import { outputSketches } from '../transformer/runtime/output-sketch.ts';
import type { Effect, Probe, ProbeMove } from './probe.ts';
import { canProbe, readProbed } from './probed-read.ts';
import type { Reader } from './reader.ts';

/** Tokens that are run again. Twice as many say little more: what differs most is the text (measured, two models). */
const ROWS = 8;
/** Probes come here, and again where the length has doubled. Fewer tokens have few pages that may move. */
const FIRST_TOKENS = 1024;
/** Probes that run beside each other, with the one for rounding as many rows as are read at once. */
const PROBES_MOST = 15;
/** Once a session begins to probe it probes so many at least, or it would learn more of rounding than of layers. */
const PROBES_LEAST = 2;
/** What the logits of a token take of all its layers, about. Small models with large vocabularies take this much. */
const LOGITS_COST = 0.3;
/** Where rounding has more than half of a divergence, it says nothing of errors. */
const FLOOR_SHARE = 0.5;

interface Place {
  readonly layer: number;
  readonly side: Side;
}

interface Changed extends Place {
  readonly moves: readonly ProbeMove[];
}

export class LayerProbe {
  readonly #reader: Reader;
  readonly #share: number;
  /** Layers and sides in the order in which they are probed. */
  readonly #order: Place[];
  /** Where it began to read: those before are not its own, in a fork and in a session that was parked. */
  #from: number | null = null;
  /** What probes took so far, in tokens read. */
  #spent = 0;
  #next = FIRST_TOKENS;

  constructor(reader: Reader) {
    const { governed } = reader;
    const { thresholds, layers, skipLayers } = governed.terms.context;
    this.#reader = reader;
    this.#share = canProbe(governed) ? thresholdOf(thresholds, 'probe.layers').value : 0;
    const { law } = thresholds;
    const known = ({ layer, side }: Place): number => law?.coefficient[side][layer]?.samples ?? 0;
    const turn = ({ layer, side }: Place): number => scatter(2 * layer + SIDES.indexOf(side), 2 * layers);
    this.#order = Array.from({ length: layers }, (_, layer) => SIDES.map((side) => ({ layer, side })))
      .flat()
      .filter(({ layer, side }) => !skipLayers.includes(layer) && isUnsure(law, layer, side))
      .sort((a, b) => known(a) - known(b) || turn(a) - turn(b));
  }

  /** What one takes, in tokens read: those above are run again. */
  #cost({ layer }: Place): number {
    return ROWS * (this.#above(layer) + LOGITS_COST);
  }

  /** Share of the layers that a change in this one passes, over which rounding adds up. */
  #above(layer: number): number {
    return 1 - layer / this.#reader.governed.shape.layers;
  }

  /** Those that there is time for now, with one more at the first of their layers for what rounding does. */
  #due(tokens: number): Place[] {
    const due: Place[] = [];
    let left = this.#share * (tokens - (this.#from ?? 0)) - this.#spent;
    for (const place of this.#order) {
      left -= this.#cost(place) * (due.length === 0 ? 2 : 1);
      if (left < 0 || due.length === PROBES_MOST) break;
      due.push(place);
    }
    return due.length < Math.min(PROBES_LEAST, this.#order.length) ? [] : due;
  }

  /**
   * The number of tokens from here on that are to be probed, 0 where no probe is due. `left`: tokens that remain to be
   * read.
   */
  rowsDue(left: number): number {
    const { length: tokens } = this.#reader.governed;
    this.#from ??= tokens;
    if (this.#share === 0 || this.#order.length === 0 || left < ROWS || tokens < this.#next || !isPageFull(tokens))
      return 0;
    return this.#due(tokens).length > 0 ? ROWS : 0;
  }

  /**
   * Reads tokens, which is what `step` does, and probes with them what is due. Room for them is made first, so that
   * probes see the pages that they see. Throws 'aborted' while it probes; the same is due again then.
   */
  async read(ids: readonly number[], step: () => Promise<void>, signal?: AbortSignal): Promise<void> {
    const due = this.#due(this.#reader.governed.length);
    const [spent, next] = [this.#spent, this.#next];
    this.#next = 2 * this.#reader.governed.length;
    this.#order.splice(0, due.length);
    this.#spent += this.#cost(due[0]!) + due.reduce((sum, place) => sum + this.#cost(place), 0);
    try {
      await this.#probe(due, ids, step, signal);
    } catch (error) {
      if (signal?.aborted === true) {
        [this.#spent, this.#next] = [spent, next];
        this.#order.unshift(...due);
      }
      throw error;
    }
  }

  async #probe(
    due: readonly Place[],
    ids: readonly number[],
    step: () => Promise<void>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { governed } = this.#reader;
    makeRoom(governed, ids.length);
    const changed = due
      .map((place) => ({ ...place, moves: this.#moves(place) }))
      .filter(({ moves }) => moves.length > 0);
    if (changed.length === 0) await step();
    else {
      const layers = changed.map(({ layer }) => layer);
      const read = { layers, step, signal };
      governed.costs.push(...(await readProbed(this.#reader, read, (probe) => this.#costs(probe, changed))));
    }
  }

  async #costs(probe: Probe, changed: readonly Changed[]): Promise<LayerCost[]> {
    const sketches = outputSketches(this.#reader.runtime);
    const first = Math.min(...changed.map(({ layer }) => layer));
    const changes = changed.map(({ layer, moves }) => ({ layer, moves, sketch: sketches[layer]! }));
    const [rounding, ...effects] = await probe.effects([
      { layer: first, moves: [], sketch: sketches[first]! },
      ...changes,
    ]);
    const floor = meanOf(rounding!.klds) / this.#above(first);
    return effects.flatMap((effect, at) => {
      const { layer, side } = changed[at]!;
      return costOf({ layer, side }, effect, floor * this.#above(layer)) ?? [];
    });
  }

  /** All pages of a layer and side that may move, in the lowest format: small errors drown in rounding. */
  #moves({ layer, side }: Place): ProbeMove[] {
    const { kv, terms, sliding, length: tokens } = this.#reader.governed;
    const format: FormatName = RUNGS[side].at(-1)!;
    const pages = Array.from({ length: movablePages(tokens, terms.context.windowTokens) }, (_, page) => page).filter(
      (page) => !sliding.isFreed(layer, page) && isMove(kv.format(layer, page, side), format),
    );
    return pages.length === 0 ? [] : [{ layer, side, format, pages }];
  }
}

/**
 * What the tokens of a probe say of a layer and side: the geometric mean of what their own errors cost, which differs
 * least from text to text. null where that is nothing: no token sees the change, or rounding did most of it.
 */
function costOf(place: Place, { klds, epsilon2 }: Effect, floor: number): LayerCost | null {
  if (meanOf(klds) * FLOOR_SHARE < floor) return null;
  const least = floor * FLOOR_SHARE;
  const lns = klds
    .map((kld, token) => Math.log(Math.max(kld - floor, least) / epsilon2[token]!))
    .filter((ln) => Number.isFinite(ln));
  if (lns.length < klds.length / 2) return null;
  return { ...place, cost: Number(Math.exp(meanOf(lns)).toPrecision(5)), rows: lns.length };
}

const meanOf = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
