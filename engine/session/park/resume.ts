/**
 * Resuming: a parked session is opened again with its pages, after everything about them was verified. Where anything
 * does not fit, the cache is made again from the tokens, as if they were read for the first time, and the caller and
 * the log are told why.
 */
import { firstToken, given, KvError, sealedPages } from '../../../native/index.ts';
import { machineDigest } from '../../../policy/index.ts';
import { seriesOf } from '../../../witness/index.ts';
import type { Activated } from '../../adapters/activation.ts';
import { weightsKey } from '../../adapters/adapters.ts';
import { Descent } from '../../cache/descent.ts';
import { copyBytes } from '../../cache/own-pages.ts';
import { packId } from '../../cache/pack-pages.ts';
import { Rotary } from '../../transformer/rotary.ts';
import type { Runtime } from '../../transformer/runtime/runtime.ts';
import type { ReadOptions } from '../prompt.ts';
import { Session } from '../session.ts';
import type { SessionSetup } from '../setup.ts';
import { fillCache } from './cache-bytes.ts';
import { pagePredictor, textDigest, windowOf } from './park.ts';
import type { ReadParked } from './parked-file.ts';
import type { ParkedHead } from './parked-head.ts';
import type { Predictor } from './predictor.ts';

/** How a session came back. */
export interface Resumed {
  /** The id under which it was parked. It goes on under a new one. */
  readonly from: string;
  /** Tokens that it holds. */
  readonly tokens: number;
  /** Whether its pages were used as they were parked, or its tokens were read again. */
  readonly by: 'pages' | 'reading';
  /** Why its pages could not be used; null: they were. */
  readonly why: string | null;
  /** Milliseconds that it took. */
  readonly resumeMs: number;
}

/**
 * A session that goes on where the parked one was. setup: as for Session.open. Throws 'model-mismatch' for a model to
 * which the tokens mean something else, and what opening and reading throw; nothing is left open then.
 */
export async function resumeSession(
  runtime: Runtime,
  setup: SessionSetup,
  parked: ReadParked,
  reading: ReadOptions = {},
  predictor: Predictor | null = null,
): Promise<{ session: Session; resumed: Resumed }> {
  const start = performance.now();
  const { head, tokens } = parked;
  const foreign = foreignModel(runtime, parked);
  const session = Session.open(runtime, { ...setup, origin: { resumedFrom: head.session, tokens: tokens.length } });
  try {
    const isAgain = foreign === null && hasItsAdapters(session, head);
    if (isAgain) session.activation = session.activation.as(activatedIn(head));
    const unfit = foreign ?? parked.fault ?? mismatch(session, parked);
    const why = unfit ?? (await fillInTurn(session, parked, predictor, reading));
    const { mover } = session.governed;
    const otherwise = roundedOtherwise(runtime, parked);
    if (why === null) {
      const parkedAt = otherwise === undefined ? descends(session, parked) : undefined;
      if (parkedAt === undefined) session.governed.descent.leaves('pages-of-others');
      mover.write('note', {
        resumed: tokens.length,
        from: head.session,
        tokens: tokens.length,
        ...given({ parkedAt, otherwise, heldTokens: firstToken(session.governed.kin.heldPages) || undefined }),
      });
    } else {
      mover.write('note', { resumed: 0, from: head.session, why, tokens: 0 });
      if (tokens.length > 0) await session.read(tokens, { ...reading, isAgain });
    }
    const by = why === null ? 'pages' : 'reading';
    const resumeMs = performance.now() - start;
    return { session, resumed: { from: head.session, tokens: tokens.length, by, why, resumeMs } };
  } catch (error) {
    session.close();
    throw error;
  }
}

/**
 * Why the pages are of no use to this model; null: they are its own. Throws 'model-mismatch' where the tokens are not
 * either.
 */
function foreignModel({ model }: Runtime, { head, tokens }: ReadParked): string | null {
  const { vocabSize } = model.config;
  if (head.model.digest === model.digest && tokens.every((id) => id < vocabSize)) return null;
  if (tokens.some((id) => id >= vocabSize) || textDigest(model.tokenizer, tokens) !== head.textDigest)
    throw new KvError(
      'model-mismatch',
      `the session was parked by ${head.model.name}, whose tokens mean something else here`,
      {
        values: { parkedBy: head.model.name, parkedDigest: head.model.digest, model: model.name, digest: model.digest },
        hint: `resume it with ${head.model.name}`,
      },
    );
  return `it was parked by other weights: ${head.model.digest.slice(0, 16)}, not ${model.digest.slice(0, 16)}`;
}

/**
 * Its cache goes on from what was parked, which can be made again where the log of now has it. → the last entry there
 * that is of concern; undefined: it cannot.
 */
function descends({ governed }: Session, { head: { descent, tokens } }: ReadParked): number | undefined {
  const { log, openSeq } = governed;
  const isHere = log !== null && descent?.log === log.id && seriesOf(descent.first) === seriesOf(openSeq);
  const before = isHere && descent.window === windowOf(governed) ? Descent.of(descent.steps) : null;
  if (before?.steps.tokens !== tokens) return undefined;
  governed.descent.begins(before, tokens, 'pages-of-others');
  return descent!.last;
}

/** How the activations that pages were computed with differ from those of now; undefined: they do not. */
function roundedOtherwise({ activations }: Runtime, { head }: ReadParked): string | undefined {
  const [then, now] = [head.eightBit ?? [], activations?.eightBit ?? []].map((eightBit) =>
    eightBit.some((slots) => slots !== 0) ? eightBit.join(' ') : '',
  );
  if (then === now) return undefined;
  return then === ''
    ? 'its pages were computed with activations of 16 bits, and some have 8 now'
    : 'its pages were computed with activations of 8 bits in other matrices than now';
}

const activatedIn = ({ adapters = [] }: ParkedHead): Activated[] =>
  adapters.flatMap(({ digest, since }) => (since === undefined ? [] : [{ digest, since }]));

/** True if the same is added as before. */
const hasItsAdapters = ({ setup: { adapterSet } }: Session, { adapters = [] }: ParkedHead): boolean =>
  weightsKey('', adapterSet?.applied ?? []) === weightsKey('', adapters);

/** Why the pages do not fit the session that was opened for them; null: they do. */
function mismatch(session: Session, { head }: ReadParked): string | null {
  const { governed, runtime, rotary } = session;
  if (!hasItsAdapters(session, head))
    return 'its pages were computed with other adapters, or with other scales of them';
  const { policy } = governed.terms;
  const machine = machineDigest();
  const { id, version } = head.policy;
  if (id !== policy.id || version !== policy.version || head.policy.machine !== machine)
    return `its pages were governed by policy ${id} ${version}, and this is ${policy.id} ${policy.version}${head.policy.machine === machine ? '' : ' with other states of layers'}`;
  const sizes = (['layers', 'queryHeads', 'kvHeads', 'headDim'] as const).filter(
    (name) => head.shape[name] !== governed.shape[name],
  );
  if (sizes.length > 0) return `its cache has another shape (${sizes.join(', ')})`;
  const { sessionPack } = session.setup;
  if (sessionPack?.digest !== head.pack?.digest) return packDiffers(head.pack, sessionPack);
  if (head.pack !== undefined && !fits(head.pack.pages, head))
    return 'what it says of pages in its pack does not fit its cache';
  const { tokensExpected } = head.options;
  if (rotary.plan === Rotary.planned(runtime.model.config, tokensExpected).plan) return null;
  return `its keys were rotated for ${tokensExpected ?? 'all'} tokens of the context`;
}

const packDiffers = (then: ParkedHead['pack'], now: { readonly name: string; readonly digest: string } | undefined) => {
  const named = (pack: typeof now): string => (pack === undefined ? 'none' : packId(pack));
  return `its pages are in another pack: ${named(then)}, not ${named(now)}`;
};

/** True if these are pages that a cache has, by layer. */
const fits = (pages: NonNullable<ParkedHead['pack']>['pages'], { shape, tokens }: ParkedHead): boolean =>
  pages.length === shape.layers && pages.every((of) => of.every((page) => page < sealedPages(tokens)));

/** The same as fill, once there is room for it beside what those that are at work will take to their ends. */
async function fillInTurn(
  session: Session,
  parked: ReadParked,
  predictor: Predictor | null,
  { signal }: ReadOptions,
): Promise<string | null> {
  const { shared } = session.setup;
  await shared?.enter(session, parked.tokens.length, signal);
  try {
    return fill(session, parked, predictor);
  } finally {
    shared?.leave(session);
  }
}

/** Puts pages and rows in place. → null, or why that could not be done: then the cache is empty, as it was. */
function fill(
  session: Session,
  { head, tokens, lastHidden, cache }: ReadParked,
  predictor: Predictor | null,
): string | null {
  if (head.predictor !== null && head.predictor !== predictor?.digest)
    return `its pages were predicted by ${head.predictor.slice(0, 16)}, which is not here`;
  const { governed } = session;
  const way = governed.wayBack(tokens.length, 0);
  try {
    if (lastHidden !== null && lastHidden.length !== session.runtime.model.config.hiddenSize)
      return 'its last row is of another width';
    const predicted = head.predictor === null ? null : pagePredictor(session.runtime, predictor!, tokens.length);
    // What is promised to steps under way is not free, though it is there.
    const put = (held: number): boolean => {
      // What it holds together with others is there.
      const ownBytes = Math.max(0, head.kvBytes - copyBytes(governed, governed.terms.context, 0, held));
      if (!governed.room.find(ownBytes, 'all')) {
        if (held > 0) governed.vacate();
        return false;
      }
      fillCache(governed.kv, tokens.length, cache, { predicted, packs: governed.packs });
      for (const [layer, pages] of (head.pack?.pages ?? []).entries())
        for (const page of pages) governed.packs?.know(layer, page);
      governed.filled(tokens.length, head.trials);
      return true;
    };
    const { shared } = session.setup;
    const again = { tokenIds: tokens, pages: head.heldPages ?? 0 };
    const isPut = shared === undefined ? put(0) : shared.holdAgain(session, again, put);
    if (!isPut) return 'there is no room for its pages as they were';
    session.adopt(tokens, lastHidden);
    return null;
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    governed.goBack(way);
    return error.message;
  } finally {
    way.close();
  }
}
