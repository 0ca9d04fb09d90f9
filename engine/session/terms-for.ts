/** The terms of a session, with the latents that it keeps: those asked for, or those that are foreseen to pay. */
import { KvError } from '../../native/index.ts';
import type { Foresight } from '../../policy/index.ts';
import { isForeseeable, plannedLatents } from '../cache/foreseen.ts';
import { termsWithLatents } from '../cache/latents.ts';
import { latentModel, modelLatents } from '../cache/model-latents.ts';
import type { Terms } from '../cache/terms.ts';
import type { LatentOptions } from '../options/latent-options.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { Rotary } from '../transformer/rotary.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { SessionSetup } from './setup.ts';

export interface SessionTerms {
  readonly terms: Terms;
  readonly latents: LatentOptions | undefined;
  /** Why it keeps latents or none, where that was left to it and its budget asks the question. */
  readonly foresight: Foresight | undefined;
}

/** Throws what termsWithLatents and modelLatents throw. */
export function termsFor(
  { shape, model, cacheThreads: threads }: Runtime,
  setup: SessionSetup,
  rotary: Rotary,
): SessionTerms {
  const { thresholds, lengths, latents: asked = SESSION_OPTIONS.latents.default } = setup;
  const request = { ...setup, slidingWindow: model.config.slidingWindow };
  const adaptsKv = setup.adapterSet?.adaptsKv === true;
  if (asked !== 'auto' && asked !== 'none') {
    if (adaptsKv)
      throw new KvError('unsupported', 'latents are computed back by the weights of the model, without its adapters', {
        values: { latents: typeof asked === 'string' ? asked : asked.format },
        hint: "latents: 'none', or adapters that leave keys and values as they are",
      });
    const latents = modelLatents(model, rotary, asked);
    return { terms: termsWithLatents(shape, request, thresholds, latents), latents, foresight: undefined };
  }
  const terms = termsWithLatents(shape, request, thresholds, undefined);
  const known =
    asked === 'auto' && !adaptsKv && isLeftToIt(setup) && isForeseeable(terms) ? latentModel(model, rotary) : null;
  if (known === null) return { terms, latents: undefined, foresight: undefined };
  return plannedLatents(shape, terms, { request, thresholds, model: known, lengths, threads });
}

/**
 * Pages that come back, from originals or where they were stored, have no latents, and a session that has any is not
 * parked, as others of a memory that is shared may need it to be.
 */
const isLeftToIt = ({ originals = 'none', origin, sharedBudgetBytes, sessionPack }: SessionSetup): boolean =>
  sessionPack === undefined && originals === 'none' && origin === undefined && sharedBudgetBytes === undefined;
