/** What a model with adapters is called, so that what its sessions learned is asked of those like them first. */
import { createHash } from 'node:crypto';
import { z } from 'zod';

/** Adapters as sessions are told by. */
export const appliedAdapters = z.array(z.object({ digest: z.string().max(200), scale: z.number() })).max(64);
/** The 'adapters' of an 'open' entry. */
export const adapterPart = z.array(z.object({ digest: z.string(), scale: z.number() })).optional();
type Applied = NonNullable<z.infer<typeof adapterPart>>;

/** Of a model without any it is the digest of the model. adapters: in their order in the log. */
export function adaptedDigest(modelDigest: string, adapters: Readonly<Applied> = []): string {
  if (adapters.length === 0) return modelDigest;
  const text = JSON.stringify(adapters.map(({ digest, scale }) => [digest, scale]));
  return `${modelDigest}+${createHash('sha256').update(text).digest('hex').slice(0, 16)}`;
}
