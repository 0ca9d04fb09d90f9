/**
 * Which layers of a session err more than was promised, as its policy finds it, told to whoever keeps the engine: when
 * the first layer is watched, when the first is degraded, when none is any more, and when trials of one no longer agree
 * with what earlier sessions told. Each change of a layer is counted. No decision follows from it; the log has them
 * all, with layers and measurements.
 */
import { type LayerChange, QUALITY_SOURCES, type QualitySource, regionIn } from '../../policy/index.ts';
import type { Meter } from '../metrics/meter.ts';

/** A session tells no more events than these, so that a layer at the edge of a bound floods nobody. Chosen. */
const TOLD_MOST = 32;

const QUALITIES = ['healthy', 'watched', 'recovering', 'degraded'] as const;
type Quality = (typeof QUALITIES)[number];
const isQuality = (state: string): state is Quality => (QUALITIES as readonly string[]).includes(state);
const isSource = (source: string): source is QualitySource => (QUALITY_SOURCES as readonly string[]).includes(source);

/** How a whole session stands: as its worst layer does. A layer that recovers is watched. */
type Standing = 'healthy' | 'watched' | 'degraded';

export class LayerWatch {
  readonly #session: string;
  readonly #meter: Meter;
  /** Layers that are not healthy. */
  readonly #unsound = new Map<number, Quality>();
  /** Layers whose trials no longer agree with what earlier sessions told. */
  readonly #doubted = new Set<number>();
  #standing: Standing = 'healthy';
  #told = 0;

  constructor(session: string, meter: Meter) {
    this.#session = session;
    this.#meter = meter;
  }

  /** Layers whose quality or trust is in another state, in the order in which they came to it. */
  hear(tokens: number, changes: readonly LayerChange[]): void {
    if (changes.length === 0) return;
    const doubtedBefore = this.#doubted.size;
    let by: QualitySource = 'error';
    for (const change of changes) {
      this.#meter.layerChanged(change);
      if (change.source === 'agreement') this.#trust(change);
      else if (isSource(change.source) && this.#qualify(change)) by = change.source;
    }
    this.#tellStanding(tokens, by);
    if (doubtedBefore === 0 && this.#doubted.size > 0) this.#tellDoubted(tokens);
  }

  /** → whether that is a state of quality; a policy of a caller's own may say anything. */
  #qualify({ layer, state }: LayerChange): boolean {
    const quality = regionIn(state, 'quality');
    if (!isQuality(quality)) return false;
    if (quality === 'healthy') this.#unsound.delete(layer);
    else this.#unsound.set(layer, quality);
    return true;
  }

  #trust({ layer, state }: LayerChange): void {
    if (regionIn(state, 'trust') === 'watched') this.#doubted.add(layer);
    else this.#doubted.delete(layer);
  }

  #tellStanding(tokens: number, by: QualitySource): void {
    const degraded = [...this.#unsound.values()].filter((quality) => quality === 'degraded').length;
    const watched = this.#unsound.size;
    const standing = degraded > 0 ? 'degraded' : watched > 0 ? 'watched' : 'healthy';
    if (standing === this.#standing || this.#told === TOLD_MOST) return;
    this.#standing = standing;
    this.#told++;
    const where = { session: this.#session, tokens };
    if (standing === 'healthy') this.#meter.tell('layers-healthy', where);
    else if (standing === 'watched') this.#meter.tell('layers-watched', { ...where, layers: watched, by });
    else this.#meter.tell('layers-degraded', { ...where, layers: degraded, by });
  }

  #tellDoubted(tokens: number): void {
    if (this.#told === TOLD_MOST) return;
    this.#told++;
    this.#meter.tell('layers-doubted', { session: this.#session, tokens, layers: this.#doubted.size });
  }
}
