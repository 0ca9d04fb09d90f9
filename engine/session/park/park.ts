/**
 * Parking: a session that waits is written to a file, with its tokens, its cache as it is, and what its trials have
 * found, so that it can be closed and goes on later where it was (resume.ts). What belongs to the process is left out:
 * kept originals, and the queries of later trials.
 */
import { createHash } from 'node:crypto';
import { given, KvError, PAGE_TOKENS } from '../../../native/index.ts';
import { machineDigest } from '../../../policy/index.ts';
import { f16CacheBytes } from '../../cache/budget.ts';
import { withoutPack } from '../../cache/governed.ts';
import type { SessionOptions } from '../../options/types.ts';
import { nameInLog } from '../../transformer/load.ts';
import type { Tokenizer } from '../../transformer/types.ts';
import type { Session } from '../session.ts';
import { cacheBytes } from './cache-bytes.ts';
import { PagePredictor } from './page-predictor.ts';
import { formParked } from './parked-file.ts';
import { DESCENT_STEPS_MAX, PARKED_OPTIONS, type ParkedHead } from './parked-head.ts';
import type { Predictor } from './predictor.ts';

/**
 * True if a session can be parked as it is: without latents, with a policy that has a name, and without forks that
 * would keep its pages in memory.
 */
export const isParkable = (session: Session): boolean => hasPlainState(session) && !session.governed.hasForks;

/** Forks keep no latents of their own, but pages that they share may be held as some. */
const hasPlainState = ({ setup: { policy, latents = 'auto' }, governed }: Session): boolean =>
  typeof policy !== 'object' &&
  (latents === 'auto' || latents === 'none') &&
  governed.latents === null &&
  governed.terms.context.latents === undefined;

/**
 * The bytes of a session between two calls, which stays as it is. With a predictor its pages take fewer bytes, and lose
 * a little. Throws 'unsupported' for what cannot be parked, 'busy', 'closed'.
 */
export function parkedBytes(session: Session, predictor: Predictor | null = null): Buffer {
  const { runtime, governed, tokens, lastHidden } = session;
  if (governed.packs !== null && predictor !== null)
    throw withoutPack('be parked predicted', 'nothing is predicted from pages in a pack');
  if (!hasPlainState(session))
    throw new KvError('unsupported', 'a session with latents, or with a policy of the caller, cannot be parked', {
      values: { session: session.id, policy: governed.terms.policy.id },
      hint: "keep it open, or open it with latents: 'none'",
    });
  const { model, shape } = runtime;
  const { policy } = governed.terms;
  const head: ParkedHead = {
    session: session.id,
    parkedMs: Date.now(),
    model: { name: nameInLog(model), digest: model.digest, architecture: model.config.architecture },
    shape,
    tokens: tokens.length,
    textDigest: textDigest(model.tokenizer, tokens),
    policy: { id: policy.id, version: policy.version, machine: machineDigest() },
    ...given({ eightBit: runtime.activations?.eightBit.slice() }),
    ...given({ adapters: adaptersOf(session) }),
    options: parkedOptions(session),
    ...given({ pack: packOf(session) }),
    predictor: predictor?.digest ?? null,
    kvBytes: governed.usedBytes,
    kvBytesF16: f16CacheBytes(shape, tokens.length),
    ...given({ heldPages: governed.kin.heldPages || undefined }),
    ...given({ descent: predictor === null ? descentOf(session) : undefined }),
    trials: governed.trials.left(),
  };
  const predicted = predictor === null ? null : pagePredictor(runtime, predictor, tokens.length);
  return formParked({ head, tokens, lastHidden, cache: cacheBytes(governed.kv, tokens.length, predicted) });
}

/** Undefined: nobody can make it again. */
function descentOf({ governed }: Session): ParkedHead['descent'] {
  const { log, openSeq: first, lineage, mover } = governed;
  if (log === null || lineage === null || lineage.estranged !== null || first < 0) return undefined;
  const steps = lineage.steps.runs.map(([tokens, times]): [number, number] => [tokens, times]);
  return steps.length > DESCENT_STEPS_MAX
    ? undefined
    : { log: log.id, first, last: Math.max(first, mover.lastSeq), window: windowOf(governed), steps };
}

/** What pages are before anything moves them. */
export const windowOf = ({ terms: { context } }: Session['governed']): string =>
  [context.openFormat ?? 'f16', context.windowFormat, context.windowTokens ?? PAGE_TOKENS].join(' ');

function adaptersOf({ setup, activation }: Session): ParkedHead['adapters'] {
  const { applied = [] } = setup.adapterSet ?? {};
  if (applied.length === 0) return undefined;
  const since = new Map(activation.activated.map((one) => [one.digest, one.since]));
  return applied.map((one) => ({ ...one, ...given({ since: since.get(one.digest) }) }));
}

/** For a cache of so many tokens. */
export const pagePredictor = ({ model }: Session['runtime'], predictor: Predictor, tokens: number): PagePredictor =>
  new PagePredictor(predictor, model.config, predictor.rotary(model.config, tokens));

/** SHA-256 of what tokens stand for. */
export const textDigest = (tokenizer: Tokenizer, tokens: readonly number[]): string =>
  createHash('sha256')
    .update(tokenizer.decode(tokens, { special: true }))
    .digest('hex');

/** The pack of a session, unless it has left it and has no page there. */
function packOf({ setup: { sessionPack }, governed: { packs } }: Session): ParkedHead['pack'] {
  if (sessionPack === undefined || packs === null || (!packs.isOpen && packs.count === 0)) return undefined;
  const { name, digest } = sessionPack;
  return { name, digest, pages: packs.known };
}

/** What the caller asked for, as far as it is plain data. */
function parkedOptions(session: Session): SessionOptions {
  const { pack: _, ...others } = session.setup;
  const asked = (packOf(session) === undefined ? others : session.setup) as unknown as Readonly<
    Record<string, unknown>
  >;
  return Object.fromEntries(
    Object.keys(PARKED_OPTIONS).flatMap((name) => (asked[name] === undefined ? [] : [[name, asked[name]]])),
  );
}
