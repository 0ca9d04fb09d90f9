/** Moves of pages between formats: the checks of KvCache's methods for them, which types.ts describes. */
import { fail, formatId, partId, show } from './arguments.ts';
import { assert, KvError } from './error.ts';
import {
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  isMove,
  rankOfId,
  type Side,
  servesHeadDim,
  sidesOf,
} from './format.ts';
import { LATENT_NAMES } from './latent.ts';
import { type CacheHandle, check, codeOf } from './load.ts';
import { freedPage, isFreed } from './sliding.ts';
import type { FinishedMove, PageTable } from './types.ts';

/** Replaces ids of C++ by indices into FORMAT_NAMES. */
const RANK_OF_ID = Uint8Array.from({ length: 256 }, (_, id) => rankOfId(id)); // −1 is 255, no format
export function toRanks(ids: Uint8Array): void {
  for (let i = 0; i < ids.length; i++) ids[i] = RANK_OF_ID[ids[i]!]!;
}

export type StartedMove = Pick<FinishedMove, 'layer' | 'page' | 'side' | 'from' | 'to'>;

/**
 * The format of one side of a sealed page. Throws 'unsupported' for a page that is held as a latent or freed, and so
 * has none.
 */
export function formatIn(table: PageTable, page: number, side: Side): FormatName {
  const format = FORMAT_NAMES[(side === 'k' ? table.kFormat : table.vFormat)[page]!];
  if (format !== undefined) return format;
  if (isFreed(table, page)) throw freedPage(page);
  const latent = LATENT_NAMES[table.latent[page]! - 1];
  throw new KvError('unsupported', `page ${page} is held as ${latent}: its keys and values have no format`, {
    values: { page, side, latent },
    hint: 'restore() the page first; table().kind says how a page is held',
  });
}

/** Throws unless the page may move to format `to`. */
export function checkMove(
  { layer, page, side: part, to }: Pick<StartedMove, 'layer' | 'page' | 'side' | 'to'>,
  table: PageTable,
  headDim: number,
): void {
  for (const side of sidesOf(part)) {
    const from = formatIn(table, page, side);
    formatId(to);
    if (!isMove(from, to)) {
      throw new KvError('unsupported', `a page in ${from} cannot become ${to}: what was lost is not in it`, {
        values: { layer, page, side, from, to },
        hint: 'promotion needs a better source',
      });
    }
  }
  checkHeadDim(to, headDim);
}

/** Throws unless a format serves a head size. */
export function checkHeadDim(format: FormatName, headDim: number, hint?: string): void {
  if (servesHeadDim(format, headDim)) return;
  const serving = FORMAT_NAMES.filter((name) => servesHeadDim(name, headDim));
  throw new KvError('unsupported', `head_dim ${headDim} is served in ${serving.join(', ')} only`, {
    values: { headDim, format, coded: String(FORMATS[format].headDims).replaceAll(',', ', ') },
    hint,
  });
}

/**
 * Throws the error of a move's status. If checkMove() allows the move, only another move that is under way can prevent
 * it.
 */
export function checkStatus(status: number, doing: string, values: Readonly<Record<string, unknown>>): void {
  if (codeOf(status) === 'unsupported') {
    throw new KvError('unsupported', `cannot ${doing}: a move of it is under way, here or in a fork`, {
      values,
      hint: 'call finishMoves(true) first',
    });
  }
  check(status, doing, values);
}

/**
 * The moves that a cache has started and not yet finished, in the order of their start, which is also the order of the
 * binary.
 */
export class Moves {
  #underWay: StartedMove[] = [];

  get count(): number {
    return this.#underWay.length;
  }

  start(handle: CacheHandle, move: StartedMove): void {
    const { layer, page, side, to } = move;
    const status = handle.startMove(layer, page, partId(side), formatId(to));
    checkStatus(status, `move page ${page} of layer ${layer} to ${to}`, { ...move });
    this.#underWay.push(move);
  }

  finish(handle: CacheHandle, wait: boolean): FinishedMove[] {
    if (typeof wait !== 'boolean') fail('wait must be true or false', { wait: show(wait) });
    const out = new Float64Array(1 + 2 * this.count);
    check(handle.finishMoves(wait, out), 'finish the moves');
    const finished = this.#underWay.slice(0, out[0]!).map((move, i) => {
      const code = codeOf(out[1 + 2 * i]!);
      assert(code === null || code === 'budget-exceeded', `a move ended with ${code}`);
      return { ...move, freedBytes: out[2 + 2 * i]!, refused: code };
    });
    this.#underWay = this.#underWay.slice(finished.length);
    return finished;
  }
}
