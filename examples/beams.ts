/**
 * Beam search with `fork`: every beam is a cache, and those that go on from the same one share its pages. A beam that
 * nobody goes on from is closed, and what only it held is free again.
 *
 *   node --import tsx examples/beams.ts
 */
import { openCache, type PolicyCache } from 'palimpsest';
import { logSoftmax, TOY_SHAPE, ToyModel } from './toy-runtime.ts';

export interface Beam {
  readonly tokens: readonly number[];
  /** Σ of the logarithms of the tokens' probabilities. */
  readonly score: number;
}

interface OpenBeam extends Beam {
  readonly cache: PolicyCache;
  readonly logits: Float32Array;
}

/**
 * The likeliest `width` texts of `count` tokens that a search of that width finds behind a prompt, the best first.
 * Closes the cache.
 */
export async function beamSearch(
  model: ToyModel,
  cache: PolicyCache,
  prompt: readonly number[],
  count: number,
  width: number,
): Promise<Beam[]> {
  let beams: OpenBeam[] = [{ tokens: [], score: 0, cache, logits: model.read(cache, prompt).at(-1)! }];
  for (let written = 0; written < count; written++) {
    const next = beams
      .flatMap((beam) => logSoftmax(beam.logits).map((gain, token) => ({ beam, token, score: beam.score + gain })))
      .sort((a, b) => b.score - a.score)
      .slice(0, width);
    const before = beams;
    beams = next.map(({ beam, token, score }) => {
      const own = beam.cache.fork();
      return { tokens: [...beam.tokens, token], score, cache: own, logits: model.read(own, [token])[0]! };
    });
    for (const beam of before) await beam.cache.close();
  }
  for (const beam of beams) await beam.cache.close();
  return beams.map(({ tokens, score }) => ({ tokens, score }));
}

if (process.argv[1] === import.meta.filename) {
  const cache = await openCache({ ...TOY_SHAPE, cacheTypes: 'q8:q8' });
  const prompt = Array.from({ length: 300 }, (_, i) => (i * 11) % 24);
  for (const { tokens, score } of await beamSearch(new ToyModel(5), cache, prompt, 6, 4))
    console.log(`${score.toFixed(3)}  ${tokens.join(' ')}`);
}
