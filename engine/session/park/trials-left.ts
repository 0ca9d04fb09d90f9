/** The trials of a cache that is written to a file: what they have found, and the pages that still wait for theirs. */
import { z } from 'zod';
import { type CacheShape, FORMAT_NAMES, KvError, LATENT_NAMES, PARTS, sealedPages } from '../../../native/index.ts';
import type { PageForm, TrialReport } from '../../../policy/index.ts';
import type { TrialsLeft } from '../../cache/trials.ts';

export const count = z
  .int()
  .min(0)
  .max(2 ** 30);
const form = z.enum([...FORMAT_NAMES, ...LATENT_NAMES] as PageForm[]);
const place = z.strictObject({ layer: count, page: count });
const report = z.strictObject({
  layer: count,
  page: count,
  side: z.enum(PARTS),
  from: form,
  epsilon: z.partialRecord(form, z.number().min(0)),
}) as unknown as z.ZodType<TrialReport>;

export const trialsSchema = z.strictObject({
  admitted: count,
  due: z.number(),
  found: z.array(report),
  waiting: z.array(place),
  waitingAgain: z.array(place),
  foundAgain: z.array(report),
}) as unknown as z.ZodType<TrialsLeft>;

interface Tried {
  readonly shape: Pick<CacheShape, 'layers'>;
  readonly tokens: number;
  readonly trials: TrialsLeft;
}

/** Throws 'bad-file' where trials tell of a page that the cache of the file does not have. */
export function checkTrials({ shape, tokens, trials }: Tried, what: string): void {
  const places = [trials.found, trials.foundAgain, trials.waiting, trials.waitingAgain].flat();
  const outside = places.find(({ layer, page }) => layer >= shape.layers || page > sealedPages(tokens));
  if (outside !== undefined)
    throw new KvError('bad-file', `${what} tells of a page that it does not hold`, {
      values: { file: what, layer: outside.layer, page: outside.page },
    });
}
