/** What of a run is recorded, so that the trace stays within its size. */
import { type CacheShape, checkOption, KvError, PAGE_TOKENS, TRIAL_QUERIES } from '../../native/index.ts';
import { RandomNumbers } from '../transformer/sampling/random.ts';
import { draw, layoutOf, type Sampling, SEED, type TraceHeader } from './header.ts';

/** How many layers, KV heads and queries of a page to record. What is left out is chosen so that the trace fits. */
export interface SampleRequest {
  readonly layers?: number;
  readonly heads?: number;
  readonly queries?: number;
}

/** The sixteen of each page that trials use, and as many others, which no trial has seen. */
const QUERIES_DEFAULT = 2 * TRIAL_QUERIES;

/** 'layers=10,heads=2,queries=64' → numbers. Throws 'bad-argument'. */
export function parseSample(text: string): SampleRequest {
  const found: Record<string, number> = {};
  for (const part of text.split(',')) {
    const [, name, count] = /^\s*(layers|heads|queries)=(\d{1,6})\s*$/.exec(part) ?? [];
    if (name === undefined || name in found || Number(count) < 1)
      throw new KvError('bad-argument', `'${text}' is no sample`, {
        values: { given: text },
        hint: 'write counts of layers, KV heads and queries of a page, as in layers=10,heads=2,queries=64',
      });
    found[name] = Number(count);
  }
  return found;
}

/**
 * Chooses layers and heads by `seed`. Where the whole is too large, layers are left out first, then heads; what was
 * asked for is never reduced. `header`: all that does not depend on the sample. Throws 'bad-argument' for counts that
 * there are not, 'budget-too-small' where it cannot fit.
 */
export function chooseSampling(
  header: Omit<TraceHeader, 'sampling'>,
  request: SampleRequest,
  bytesMax: number,
  seed: number,
): Sampling {
  const { shape } = header;
  const { queries: queriesPerPage = QUERIES_DEFAULT } = request;
  check('layers', request.layers ?? 1, 1, shape.layers);
  check('heads', request.heads ?? 1, 1, shape.kvHeads);
  check('queries', queriesPerPage, TRIAL_QUERIES, PAGE_TOKENS);
  checkOption('seed', SEED, seed);
  const sampling = (layers: number, heads: number): Sampling => {
    const random = new RandomNumbers(seed);
    return {
      layers: draw(indices(shape.layers), layers, random),
      heads: draw(indices(shape.kvHeads), heads, random),
      queriesPerPage,
      seed,
    };
  };
  const bytes = (layers: number, heads: number): number =>
    layoutOf({ ...header, sampling: sampling(layers, heads) }, 0).end;
  const headsMost = request.heads ?? shape.kvHeads;
  for (let layers = request.layers ?? shape.layers; layers >= (request.layers ?? 1); layers--)
    if (bytes(layers, headsMost) <= bytesMax) return sampling(layers, headsMost);
  const layers = request.layers ?? 1;
  for (let heads = headsMost; heads >= (request.heads ?? 1); heads--)
    if (bytes(layers, heads) <= bytesMax) return sampling(layers, heads);
  const needed = bytes(layers, request.heads ?? 1);
  throw new KvError('budget-too-small', `a trace of ${header.tokens} tokens takes at least ${needed} bytes`, {
    values: { bytesMax, needed, tokens: header.tokens },
    hint: 'allow more with --max-bytes, sample less with --sample, or record a shorter prompt',
  });
}

const indices = (count: CacheShape['layers']): number[] => Array.from({ length: count }, (_, index) => index);

function check(name: string, count: number, least: number, most: number): void {
  if (count >= least && count <= most) return;
  throw new KvError('bad-argument', `a sample takes ${least} to ${most} ${name}, not ${count}`, {
    values: { [name]: count, least, most },
  });
}
