/**
 * One step, one straight line:
 *
 *   make room                                    before anything is appended: pages that fill up will be sealed
 *   project → append → attend                    layer by layer (pass.ts, for many caches at once; a caller with a
 *   runtime of its own projects by itself)
 *   let go → situate → try → decide → judge → move → witness    at the token boundary (settle)
 */
import {
  isForeign,
  isPageFull,
  KvError,
  LATENT_NAMES,
  movablePages,
  PAGE_TOKENS,
  pageOf,
  plural,
  sealsBetween,
  show,
  WINDOW_FORMAT,
} from '../../native/index.ts';
import {
  type Decision,
  isLatent,
  isToPack,
  KLD_GIVES_WAY,
  type LayerChange,
  type MassReport,
  type TrialReport,
} from '../../policy/index.ts';
import type { WayBack } from './back.ts';
import { comeBack } from './coming-back.ts';
import type { Governed } from './governed.ts';
import { boundOf } from './growth-bound.ts';
import type { AskedPage } from './promoted.ts';

/** Plans per scheduling point: a refused plan may be followed by another. */
const ROUNDS_MAX = 64;
/** In the first of these plans a trial may still refuse a move. */
const ROUNDS_CHOOSY = 4;
/**
 * Reports and outcomes of one situation at most: an entry of the log holds 1 MiB, and each of these takes some 150
 * bytes.
 */
const TOLD_AT_ONCE = 2048;
const NO_TRIALS: readonly TrialReport[] = [];
const NO_MASSES: readonly MassReport[] = [];

/** A question of so many tokens, and the pages of each layer that it looked at, the first most. */
export interface Asked {
  readonly pages: readonly (readonly AskedPage[])[];
  readonly tokens: number;
}

/**
 * Called before tokens are appended: frees what their rows and sealing the pages that they fill up will need in all
 * layers, and promises it to them. Throws 'budget-too-small', 'budget-exceeded'.
 */
export function makeRoom(cache: Governed, tokensNew: number): void {
  cache.promised.make(findRoom(cache, tokensNew));
}

/** → what appending so many tokens takes of the room that there is now */
function findRoom(cache: Governed, tokensNew: number): number {
  const { kv, terms, length: tokens, latents } = cache;
  cache.begin();
  if (terms.budgetBytes === null && cache.room.poolRoomBytes === null) return 0;
  const dueBytes = kv.appendBytes(tokensNew);
  if (dueBytes === 0) return 0;
  cache.room.find(dueBytes, 'named');
  const { budgetBytes } = cache;
  // A step that ran out of room in one of its layers could not be taken back.
  if (budgetBytes === null) {
    if (!cache.room.find(dueBytes, 'all')) refuseBeyondPool(cache, dueBytes);
    return dueBytes;
  }
  // A page side (one of q8 at most) is kept free, so that a move finds room.
  latents?.giveBack(
    () => cache.usedBytes + dueBytes + terms.context.pageBytes[WINDOW_FORMAT] <= budgetBytes,
    (layer, page, work) => cache.mover.change({ cause: 'give-back', layer, page, tokens }, work),
  );
  const seals = sealsBetween(tokens, tokensNew);
  if (seals > 1 && cache.usedBytes + dueBytes > budgetBytes) throw tooManyAtOnce(cache, tokensNew, seals, dueBytes);
  freeAmong(cache, dueBytes, tokensNew);
  return dueBytes;
}

/**
 * A cache that goes on from here. Its open pages and those in the window are its own: what they take is freed before.
 * Throws 'budget-too-small'.
 */
export function fork(cache: Governed): Governed {
  cache.begin();
  const dueBytes = cache.terms.context.fixedBytes + cache.ownBytes;
  cache.room.find(dueBytes, 'waiting');
  freeAmong(cache, dueBytes, 0);
  const { forkBytes } = cache;
  if (!cache.room.leaves(forkBytes)) refuseBeyondPool(cache, forkBytes);
  const forked = cache.fork();
  // Others may move its pages, or have them parked, before it is used.
  forked.begin();
  return forked;
}

/** Moves own pages until `dueBytes` more fit, and those of other sessions where that is not enough. */
function freeAmong(cache: Governed, dueBytes: number, tokensNew: number): void {
  if (cache.budgetBytes === null) cache.room.find(dueBytes, 'all');
  try {
    free(cache, dueBytes, tokensNew);
  } catch (error) {
    if (!isTooSmall(error) || !cache.room.find(dueBytes, 'all')) throw error;
    free(cache, dueBytes, tokensNew);
  }
}

/**
 * Moves pages of a cache that is between two steps until the pool has room for `neededBytes` of another one, or of its
 * own, or no legal move frees more.
 */
export function giveUp(cache: Governed, neededBytes: number, isItsOwn = false): void {
  if (!isItsOwn) cache.promoted?.giveBack();
  try {
    free(cache, neededBytes, 0);
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
  }
}

const isTooSmall = (error: unknown): boolean => error instanceof KvError && error.code === 'budget-too-small';

/** Moves pages until `dueBytes` more fit. */
function free(cache: Governed, dueBytes: number, tokensNew: number): void {
  const { budgetBytes, spareBytes } = cache.room;
  if (budgetBytes === null || cache.usedBytes + dueBytes <= budgetBytes - spareBytes) return;
  cache.governing(() => {
    const point = { movesMax: cache.pacing.movesMax(cache.length, tokensNew), dueBytes, aheadBytes: 0 };
    try {
      decide(cache, { ...point, trials: cache.trials.reports(cache.length) });
    } catch (error) {
      // What is promoted or free for that, and kept originals, are the first to go where no legal move is left.
      const { canaries, room, packs } = cache;
      const givable = canaries.count + room.promotedBytes + room.reserveBytes + (packs?.lowerable ?? 0);
      if (!isTooSmall(error) || givable === 0) throw error;
      cache.promoted?.giveBack();
      room.spendReserve();
      canaries.dropAll();
      // Policies know nothing of pages that are in a pack or were, which no move of theirs can make smaller.
      packs?.giveBack(() => cache.usedBytes + dueBytes <= (cache.budgetBytes ?? 0) - room.spareBytes);
      decide(cache, { ...point, trials: NO_TRIALS });
    }
  });
}

/**
 * Takes back all that was read since `way` was opened; where a step failed half-way, layers may hold more of it or
 * less. The policy is told when that changes which pages may move.
 */
export function takeBack(cache: Governed, way: WayBack): void {
  const taken = cache.length - way.tokens;
  const { windowTokens } = cache.terms.context;
  const isTold = movablePages(cache.length, windowTokens) > movablePages(way.tokens, windowTokens);
  cache.goBack(way);
  if (!isTold || cache.hasFailed) return;
  cache.mover.write('note', { takenBack: taken, tokens: way.tokens });
  cache.governing(() => decide(cache, { movesMax: 0, trials: NO_TRIALS, dueBytes: null, aheadBytes: 0 }));
}

/** Takes back the newest tokens, so that `tokens` stay. Throws 'bad-argument', and 'unsupported' as `wayBack` does. */
export function cutTo(cache: Governed, tokens: number): void {
  const { length } = cache;
  if (!Number.isInteger(tokens) || tokens < 0 || tokens > length)
    throw new KvError('bad-argument', `a cache of ${plural(length, 'token')} can be cut to 0 to ${length}`, {
      values: { tokens: show(tokens), length },
    });
  takeBack(cache, cache.wayBack(0, tokens));
}

/**
 * Called when a prompt has been read and tokens will follow. Where the prompt ends on a page boundary, sealing its last
 * page is its own work and not that of the first token written.
 */
export function endPrompt(cache: Governed): void {
  if (isPageFull(cache.length)) findRoom(cache, cache.tokensAtOnce);
}

/**
 * At the token boundary, after `tokensNew` were appended to every layer: trials of pages that leave the window, and the
 * moves they lead to.
 */
export function settle(cache: Governed, tokensNew: number): void {
  const { pacing, trials } = cache;
  cache.advanced(tokensNew);
  const tokens = cache.length;
  pacing.pass(tokensNew);
  trials.pass(tokensNew);
  if (pageOf(tokens) > pageOf(tokens - tokensNew) && !cache.hasFailed)
    cache.governing(() => {
      cache.packs?.look();
      cache.growing.look({ tokens, bytes: cache.usedBytes }, () => boundOf(cache));
    });
  const planIsDue = pacing.planIsDue(cache.lowMemory);
  // In most steps nothing is due, and data that is not touched need not be fetched from memory.
  const isProbeDue = cache.canaries.isDue(tokens);
  const isBehind = cache.sliding.isDue(tokens);
  if (!pacing.isPoint(tokens) && !trials.areDue && !planIsDue && !isProbeDue && !isBehind && !cache.hasFailed) return;
  cache.governing(() => {
    // Before anything is tried or planned: what nobody sees any more is neither.
    if (isBehind) cache.freeBehind();
    pacing.reached(tokens);
    cache.masses.note(tokens);
    trials.admit(tokens, tokensNew);
    // A step of one token that plans starts no trials; they can wait for the next step.
    if (trials.areDue && (!planIsDue || tokensNew > 1)) trials.start();
    if (isProbeDue) cache.canaries.probe(tokens);
    const reports = trials.reports(tokens);
    if (reports.length > 0) cache.mending.check();
    if (reports.length > 0) pacing.reported();
    else if (!planIsDue && !isProbeDue) return;
    pacing.planned();
    const aheadBytes = pacing.aheadBytes(tokens, cache.usedBytes);
    decide(cache, { movesMax: pacing.movesMax(tokens, tokensNew), trials: reports, dueBytes: null, aheadBytes });
    comeBack(cache);
  });
}

/**
 * A question has been read: of each layer, the first `most` pages that it looked at come back for its answer, as far as
 * there is room for them. → how many page sides came back
 */
export function promote(cache: Governed, { pages, tokens }: Asked, most: number): number {
  const { promoted, room, hasFailed } = cache;
  if (promoted === null || hasFailed) return 0;
  const chosen = promoted.choose(pages, most);
  if (chosen.length === 0) return 0;
  // What was started of trials belongs to pages as they are.
  cache.trials.finish();
  return promoted.promote(chosen, room.promotableBytes, tokens);
}

interface Point {
  readonly movesMax: number;
  /** Reports of pages that may move from now on. */
  readonly trials: readonly TrialReport[];
  /** What seals take that are due now; null when none is, and `aheadBytes` is what the next ones will take. */
  readonly dueBytes: number | null;
  readonly aheadBytes: number;
}

/**
 * At a page boundary the page that leaves the window may move: one half of its sides at the end of the step that fills
 * the page behind it, the rest before the next, so that neither carries all.
 */
function decide(cache: Governed, { movesMax, trials, dueBytes, aheadBytes }: Point): void {
  const { policy, mover, pacing, terms } = cache;
  const sealBytes = dueBytes ?? aheadBytes;
  // Moves need room in the pool, as much as the budget says that there is.
  cache.room.find(0, 'waiting');
  const stepLatencyMsP95 = pacing.latency.p95;
  let bytes = cache.usedBytes;
  let fresh = trials;
  leaves(cache, trials);
  // Asked for only where pages leave the window: by then every trial that was started has been waited for.
  let again = trials.length === 0 ? NO_TRIALS : cache.trials.reportsAgain(TOLD_AT_ONCE / 2);
  let masses = trials.length === 0 ? NO_MASSES : (cache.told?.take() ?? NO_MASSES);
  let pressing = false;
  for (let round = 0; round < ROUNDS_MAX; ) {
    // An entry of the log has a largest size: what is more than one situation holds is told in several, of which only
    // the last plans.
    const isWhole = fresh.length <= TOLD_AT_ONCE && mover.waitingOutcomes <= TOLD_AT_ONCE;
    // A refused move is planned again at its corrected price, or another in its place; only then does the budget
    // override the verdicts.
    const urgent = isWhole && dueBytes !== null && (pressing || round >= ROUNDS_CHOOSY);
    const situation = cache.situate({
      bytes,
      sealBytes: isWhole ? sealBytes : 0,
      movesMax: isWhole ? movesMax : 0,
      urgent,
      stepLatencyMsP95,
      trials: fresh.length <= TOLD_AT_ONCE ? fresh : fresh.slice(0, TOLD_AT_ONCE),
      outcomes: mover.takeOutcomes(TOLD_AT_ONCE),
      changes: isWhole ? mover.takeChanges() : [],
      again,
      masses,
    });
    again = NO_TRIALS;
    masses = NO_MASSES;
    fresh = fresh.length <= TOLD_AT_ONCE ? NO_TRIALS : fresh.slice(TOLD_AT_ONCE);
    mover.write('situation', { situation });
    const decisions = policy.decide(situation);
    noteChanges(cache, policy.takeChanges?.() ?? []);
    for (const [order, decision] of decisions.entries()) {
      cache.promoted?.release(decision.layer, decision.page, decision.side);
      const epsilonNow = measured(cache, decision);
      const verdict = policy.judge(decision, epsilonNow);
      const { canaryBytesMax } = cache.room;
      const judged = { situation, order, decision, epsilonNow, verdict, usedBytes: bytes, canaryBytesMax };
      // Nobody else allocates meanwhile, so what a move frees is all that changes the bytes.
      bytes -= mover.carryOut(judged);
      if (decision.because.rule === KLD_GIVES_WAY) cache.giveWay('kld');
    }
    if (!isWhole) continue;
    round++;
    // Originals that were kept meanwhile have made the budget smaller.
    const deficit = cache.budgetBytes === null ? 0 : bytes + sealBytes - (cache.budgetBytes - cache.room.spareBytes);
    pacing.decided(decisions.length);
    cache.stated?.look(cache.length, cache.summary);
    if (dueBytes === null || deficit <= 0) return;
    if (decisions.length > 0) continue;
    if (urgent && terms.context.priority !== 'kld') break;
    // The divergence budget is ranked first and allows no further move, so the cache may grow.
    if (urgent) cache.giveWay('bytes', bytes + sealBytes + cache.room.spareBytes);
    pressing = true;
  }
  throw noRoom(cache, bytes, sealBytes);
}

/** What a planned move costs now, where its policy asks that; null: nobody knows, or its page has just gone. */
function measured({ kv, packs, trials }: Governed, decision: Decision): number | null {
  const { layer, page, retry } = decision;
  if (!retry) return null;
  if (isToPack(decision)) return packs?.epsilon(layer, page) ?? null;
  return packs !== null && isForeign(kv.table(layer), page) ? null : trials.again(decision);
}

/** Layers whose quality or trust is in another state, each kind of them in its own field. */
function noteChanges({ mover, watch, length: tokens }: Governed, changes: readonly LayerChange[]): void {
  watch.hear(tokens, changes);
  const layerChanges = changes.filter(({ source }) => source !== 'agreement');
  const trustChanges = changes.filter(({ source }) => source === 'agreement');
  if (layerChanges.length > 0) mover.write('note', { layerChanges, tokens });
  if (trustChanges.length > 0) mover.write('note', { trustChanges, tokens });
}

/** Pages have left the window: each side is in what it is reported to be in, and both in a latent that is held. */
function leaves({ arrows }: Governed, reports: readonly TrialReport[]): void {
  const held = new Set(
    reports.flatMap(({ layer, page, side, from }) => (side === 'kv' && isLatent(from) ? [`${layer}/${page}`] : [])),
  );
  for (const { layer, page, side, from } of reports) {
    if (side === 'kv') continue;
    const isHeld = held.size > 0 && held.has(`${layer}/${page}`);
    arrows.take('window', 'leave', isHeld ? LATENT_NAMES[0]! : from);
  }
}

function noRoom({ budgetBytes, length: tokens }: Governed, usedBytes: number, sealBytes: number): KvError {
  return new KvError(
    'budget-too-small',
    `the KV budget of ${budgetBytes} bytes is spent at ${tokens} tokens and no legal move frees enough`,
    {
      values: { budgetBytes, usedBytes, sealBytes, tokens },
      hint: 'raise the budget, allow lower formats, or shorten the context',
    },
  );
}

/**
 * For a cache without a budget of its own, which can move nothing. The room of a move stays free for those that can.
 */
function refuseBeyondPool({ pool, room, length: tokens }: Governed, dueBytes: number): void {
  const { poolRoomBytes, spareBytes } = room;
  const neededBytes = dueBytes + spareBytes;
  if (poolRoomBytes === null || neededBytes <= poolRoomBytes) return;
  throw new KvError(
    'budget-exceeded',
    `the sessions that share memory leave ${poolRoomBytes} bytes of it, and ${neededBytes} are needed`,
    {
      values: { neededBytes, roomBytes: poolRoomBytes, usedBytes: pool.usedBytes, tokens },
      hint: 'close or park a session, or give sessions a kvBudget of their own, so that their pages can be moved',
    },
  );
}

function tooManyAtOnce(
  { budgetBytes, usedBytes }: Governed,
  tokens: number,
  seals: number,
  neededBytes: number,
): KvError {
  return new KvError(
    'budget-exceeded',
    `${tokens} tokens at once fill ${seals} pages, and the KV budget of ${budgetBytes} bytes has room for less`,
    {
      values: { tokens, seals, neededBytes, usedBytes, budgetBytes },
      hint: `append at most ${PAGE_TOKENS} tokens at a time, so that older pages can be moved in between`,
    },
  );
}
