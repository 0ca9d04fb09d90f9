/**
 * What a cache knows about its workload when a session ends: where attention went, by the masses of its pages, and how
 * large keys are beside values. The axes of a fingerprint that nobody knows beforehand.
 */
import type { Measurements } from '../../memory/index.ts';
import { halvesReached, isFreed, type KvCache } from '../../native/index.ts';

type Measured = Pick<Measurements, 'keyValueRatio' | 'keyOutlier' | 'attentionEntropy' | 'sinkMass' | 'recencyMass'>;

/** Below this the first page is itself in the window, and its mass says nothing about sinks. */
const PAGES_MIN = 4;

/**
 * Attention masses at two earlier points, which separate what the last page or two of queries looked at from everything
 * before.
 */
export class MassTrace {
  readonly #cache: KvCache;
  #point = 0;
  #before: readonly Float64Array[] = [];
  #last: readonly Float64Array[] = [];

  constructor(cache: KvCache) {
    this.#cache = cache;
  }

  /** Runs at token boundaries; in the middle of a page, where nothing else has to be done, it takes the masses down. */
  note(tokens: number): void {
    const point = halvesReached(tokens);
    if (point === this.#point) return;
    this.#point = point;
    this.#before = this.#last;
    this.#last = massesOf(this.#cache);
  }

  /** Tokens were taken back, and what attention has seen until now counts no more. */
  forget(tokens: number): void {
    this.#point = halvesReached(tokens);
    this.#before = [];
    this.#last = [];
  }

  /**
   * Shares of the mass of the queries since the point before the last one, at least a page of them; null in a short
   * session.
   */
  shares(): Pick<Measured, 'attentionEntropy' | 'sinkMass' | 'recencyMass'> | null {
    const now = massesOf(this.#cache);
    const pages = now[0]?.length ?? 0;
    if (pages < PAGES_MIN || this.#before.length === 0) return null;
    let sink = 0;
    let recent = 0;
    let entropy = 0;
    for (const [layer, masses] of now.entries()) {
      const before = this.#before[layer]!;
      const gained = masses.map((mass, page) => Math.max(0, mass - (before[page] ?? 0)));
      const total = gained.reduce((sum, mass) => sum + mass, 0);
      if (!(total > 0)) return null;
      sink += gained[0]! / total;
      recent += (gained[pages - 1]! + gained[pages - 2]!) / total;
      for (const mass of gained) if (mass > 0) entropy -= (mass / total) * Math.log(mass / total);
    }
    return {
      sinkMass: sink / now.length,
      recencyMass: recent / now.length,
      attentionEntropy: entropy / now.length / Math.log(pages),
    };
  }
}

function massesOf(cache: KvCache): readonly Float64Array[] {
  return Array.from({ length: cache.shape.layers }, (_, layer) => cache.table(layer).mass);
}

/** Everything that can be measured; the rest is left out. Decodes one page of each layer. */
export function measureWork(cache: KvCache, masses: MassTrace): Measured {
  return { ...masses.shares(), ...keyNorms(cache) };
}

/** From the newest sealed page of each layer that is there; keys as they are kept, after RoPE. */
function keyNorms(cache: KvCache): Pick<Measured, 'keyValueRatio' | 'keyOutlier'> {
  const { layers, kvHeads, headDim } = cache.shape;
  const channels = kvHeads * headDim;
  let keys = 0;
  let values = 0;
  let outlier = 0;
  for (let layer = 0; layer < layers; layer++) {
    const table = cache.table(layer);
    let page = table.pages - 1;
    while (page >= 0 && isFreed(table, page)) page--;
    if (page < 0) return {};
    const rms = channelRms(cache.decode(layer, page, 'k'), channels);
    outlier += Math.max(...rms) / (rms.reduce((sum, one) => sum + one, 0) / channels);
    keys += meanSquare(rms);
    values += meanSquare(channelRms(cache.decode(layer, page, 'v'), channels));
  }
  return keys > 0 && values > 0 ? { keyValueRatio: Math.sqrt(keys / values), keyOutlier: outlier / layers } : {};
}

/** rows [tokens, channels] → rms of each channel. */
function channelRms(rows: Float32Array, channels: number): Float64Array {
  const rms = new Float64Array(channels);
  for (let at = 0; at < rows.length; at += channels)
    for (let channel = 0; channel < channels; channel++) rms[channel]! += rows[at + channel]! ** 2;
  return rms.map((sum) => Math.sqrt((sum * channels) / rows.length));
}

const meanSquare = (rms: Float64Array): number => rms.reduce((sum, one) => sum + one * one, 0) / rms.length;
