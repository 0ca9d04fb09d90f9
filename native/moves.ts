/** Moves of page sides from format to format, the checked half of KvCache's methods: see types.ts for the contract of each. */
import { fail, formatId, show, sideId } from './arguments.ts';
import { assert, KvError } from './error.ts';
import { CODED_HEAD_DIMS, FORMAT_NAMES, FORMATS, type FormatName, type Side } from './format.ts';
import { type CacheHandle, check, codeOf } from './load.ts';
import type { FinishedMove, PageTable } from './types.ts';

export type StartedMove = Pick<FinishedMove, 'layer' | 'page' | 'side' | 'from' | 'to'>;

export function formatIn(table: PageTable, page: number, side: Side): FormatName {
  return FORMAT_NAMES[(side === 'k' ? table.kFormat : table.vFormat)[page]!]!;
}

/** Throws unless a page in `from` may become `to`. */
export function checkMove({ layer, page, side, from, to }: StartedMove, headDim: number): void {
  if (formatId(to) < FORMATS[from].id && !(from === 'q8' && to === 'f16')) {
    throw new KvError('unsupported', `a page in ${from} cannot become ${to}: what was lost is not in it`, {
      values: { layer, page, side, from, to },
      hint: 'promotion needs a better source',
    });
  }
  if (to !== 'f16' && !CODED_HEAD_DIMS.includes(headDim)) {
    throw new KvError('unsupported', `head_dim ${headDim} is served in f16 only`, {
      values: { headDim, format: to, coded: CODED_HEAD_DIMS.join(', ') },
    });
  }
}

/** What a cache has started and not yet finished, in the order of the start: the binary answers in that order. */
export class Moves {
  #underWay: StartedMove[] = [];

  get count(): number {
    return this.#underWay.length;
  }

  /** Throws what a status means; `side` is undefined where both are concerned. */
  check(status: number, doing: string, values: { layer: number; page: number; side?: Side }): void {
    if (status === 0) return;
    const { layer, page, side } = values;
    const isUnderWay = this.#underWay.some(
      (move) => move.layer === layer && move.page === page && (side === undefined || move.side === side),
    );
    if (isUnderWay && codeOf(status) === 'unsupported') {
      throw new KvError('unsupported', `cannot ${doing}: a move of it is under way`, {
        values,
        hint: 'call finishMoves(true) first',
      });
    }
    check(status, doing, values);
  }

  start(handle: CacheHandle, move: StartedMove): void {
    const { layer, page, side, to } = move;
    const status = handle.startMove(layer, page, sideId(side), formatId(to));
    this.check(status, `move page ${page} of layer ${layer} to ${to}`, { ...move });
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
