/** The trials of a cache that is written to a file: what they have found, and the pages that still wait for theirs. */
import { z } from 'zod';
import {
  type CacheShape,
  FORMAT_NAMES,
  KvError,
  LATENT_NAMES,
  PARTS,
  type Part,
  SIDES,
  sealedPages,
} from '../../../native/index.ts';
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
  due: z
    .number()
    .min(0)
    .max(2 ** 40),
  found: z.array(report),
  waiting: z.array(place),
  waitingAgain: z.array(place),
  foundAgain: z.array(report),
}) as unknown as z.ZodType<TrialsLeft>;

interface PlaceOfPage {
  readonly layer: number;
  readonly page: number;
}

interface Tried {
  readonly shape: Pick<CacheShape, 'layers'>;
  readonly tokens: number;
  readonly trials: TrialsLeft;
}

/**
 * Throws 'bad-file' where trials tell what none has left: of a page that the cache of the file does not have, of one
 * that did not come to be tried, or not just once of one that did. A policy that was told such things would refuse
 * every step.
 */
export function checkTrials({ shape, tokens, trials }: Tried, what: string): void {
  const { admitted, found, waiting, foundAgain, waitingAgain } = trials;
  const refuse = (says: string, values: object): never => {
    throw new KvError('bad-file', `${what} tells of ${says}`, { values: { file: what, ...values } });
  };
  const isAdmitted = ({ layer, page }: PlaceOfPage): boolean => layer < shape.layers && page < admitted;
  if (admitted > sealedPages(tokens)) refuse('pages that it does not hold', { admitted, pages: sealedPages(tokens) });
  const outside = [found, foundAgain, waiting, waitingAgain].flat().find((place) => !isAdmitted(place));
  if (outside !== undefined) refuse('a page that it does not hold', { layer: outside.layer, page: outside.page });
  // Of each page both sides were reported, or it waits.
  const told = new Map<string, number>();
  const tell = ({ layer, page }: PlaceOfPage, side: Part): void => {
    const name = `${layer}/${page}/${side}`;
    told.set(name, (told.get(name) ?? 0) + 1);
  };
  for (const report of found) tell(report, report.side);
  for (const place of waiting) for (const side of SIDES) tell(place, side);
  for (const [name, times] of told) if (times > 1) refuse('the trial of a page twice', { place: name, times });
  for (let page = 0; page < admitted; page++)
    for (let layer = 0; layer < shape.layers; layer++)
      for (const side of SIDES)
        if (!told.has(`${layer}/${page}/${side}`)) refuse('a page without its trial', { layer, page, side });
}
