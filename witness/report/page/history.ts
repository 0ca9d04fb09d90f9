/** The session as a row of moments: how many bytes, and which form every page had. */
import type { Column, ReportData, Table } from './data.ts';

/** What happened between two lengths of the cache. */
export interface Frame {
  readonly tokens: number;
  /** Bytes of the cache after its moves, kept originals included. */
  readonly bytes: number;
  /** Moves up to and with this moment. */
  readonly moves: number;
}

/** A move that was made: row of the decision, or −1 for a change that nobody decided. */
export interface Move {
  readonly seq: number;
  readonly tokens: number;
  readonly row: number;
  readonly layer: number;
  readonly page: number;
  readonly side: number;
  readonly from: number;
  readonly to: number;
}

/** Pages that are sealed when the cache holds so many tokens: a full page is sealed when the next token comes. */
export const sealedPages = (tokens: number, pageTokens: number): number =>
  Math.max(0, Math.ceil(tokens / pageTokens) - 1);

/**
 * A log may claim any number of pages, and the map takes a byte for each side of one: 16 million are 128K tokens in
 * 8,000 layers.
 */
const CELLS_MAX = 2 ** 24;

export interface Point {
  /** The seq of the situation. */
  readonly seq: number;
  readonly tokens: number;
  readonly bytes: number;
}

/** Bytes before and after the moves of every situation, kept originals included. */
export function bytesOverTime(situations: Table, decisions: Table): Point[] {
  const [tokens, bytes, canary] = [situations.of('tokens'), situations.of('bytes'), situations.of('canaryBytes')];
  const seq = situations.of('seq');
  const [index, plan, freed] = [situations.of('index'), decisions.of('situation'), decisions.of('freed')];
  const points: Point[] = [];
  let decision = 0;
  for (let row = 0; row < situations.length; row++) {
    const before = bytes[row]! + canary[row]!;
    points.push({ seq: seq[row]!, tokens: tokens[row]!, bytes: before });
    while (decision < plan.length && plan[decision]! < index[row]!) decision++;
    let sum = 0;
    for (; decision < plan.length && plan[decision] === index[row]; decision++) sum += freed[decision]!;
    if (sum !== 0) points.push({ seq: seq[row]!, tokens: tokens[row]!, bytes: before - sum });
  }
  return points;
}

export class History {
  readonly frames: readonly Frame[];
  readonly moves: readonly Move[];
  readonly layers: number;
  /** The most tokens that the cache held. */
  readonly tokensMost: number;
  /** Pages of a layer at the longest, the open one included; of those, as many as a map may have. */
  readonly pages: number;
  readonly #data: ReportData;
  /** Form of each side, layer and page before any move; side · layers · pages. */
  readonly #first: Uint8Array;
  /** The same at `#at`. */
  readonly #forms: Uint8Array;
  #at = -1;

  constructor(data: ReportData, situations: Table, decisions: Table, changes: Table) {
    this.#data = data;
    this.moves = [...movesOf(decisions), ...movesOf(changes)].sort((a, b) => a.seq - b.seq);
    this.frames = framesOf(data, situations, decisions, this.moves);
    this.layers = data.layers;
    this.tokensMost = this.frames.reduce((most, { tokens }) => Math.max(most, tokens), 0);
    const moved = this.moves.reduce((most, { page }) => Math.max(most, page + 1), 0);
    const written = sealedPages(this.tokensMost, data.pageTokens) + (this.tokensMost > 0 ? 1 : 0);
    this.pages = Math.min(Math.max(moved, written), Math.floor(CELLS_MAX / (2 * this.layers)));
    this.#first = new Uint8Array(2 * this.layers * this.pages).fill(data.windowForm);
    // A page that a fork took over need not begin as a sealed page does: what its first move says is how it began.
    for (const { side, layer, page, from } of this.moves.toReversed())
      for (const at of this.#cells(side, layer, page)) this.#first[at] = from;
    this.#forms = this.#first.slice();
  }

  /** Where a page side stands in `formsAt`. side: 0 keys, 1 values. */
  cell(side: number, layer: number, page: number): number {
    return (side * this.layers + layer) * this.pages + page;
  }

  /**
   * The form of every page after the moves of a frame, until the next call. A page that is not sealed yet has a form
   * too.
   */
  formsAt(frame: number): Uint8Array {
    if (frame < this.#at) {
      this.#forms.set(this.#first);
      this.#at = -1;
    }
    for (let f = this.#at + 1; f <= frame; f++) {
      const before = this.frames[f - 1];
      const { tokens, moves } = this.frames[f]!;
      if (before !== undefined && tokens < before.tokens) this.#forget(sealedPages(tokens, this.#data.pageTokens));
      for (let m = before?.moves ?? 0; m < moves; m++) {
        const { side, layer, page, to } = this.moves[m]!;
        for (const at of this.#cells(side, layer, page)) this.#forms[at] = to;
      }
    }
    this.#at = frame;
    return this.#forms;
  }

  /** Tokens were taken back: pages from here on are sealed anew. */
  #forget(page: number): void {
    for (let start = 0; start < this.#forms.length; start += this.pages)
      this.#forms.fill(this.#data.windowForm, start + page, start + this.pages);
  }

  #cells(side: number, layer: number, page: number): number[] {
    if (layer >= this.layers || page >= this.pages) return [];
    return side === 2 ? [this.cell(0, layer, page), this.cell(1, layer, page)] : [this.cell(side, layer, page)];
  }
}

function movesOf(table: Table): Move[] {
  const column = (name: string): Column => table.of(name);
  const [seq, tokens, layer, page] = [column('seq'), column('tokens'), column('layer'), column('page')];
  const [side, from, to] = [column('side'), column('from'), column('to')];
  const accepted = table.has('accepted') ? column('accepted') : null;
  const moves: Move[] = [];
  for (let row = 0; row < table.length; row++) {
    if (accepted?.[row] === 0) continue;
    moves.push({
      seq: seq[row]!,
      tokens: tokens[row]!,
      row: accepted === null ? -1 : row,
      layer: layer[row]!,
      page: page[row]!,
      side: side[row]!,
      from: from[row]!,
      to: to[row]!,
    });
  }
  return moves;
}

/** One frame for each length of the cache at which something was looked at or changed. */
function framesOf(data: ReportData, situations: Table, decisions: Table, moves: readonly Move[]): Frame[] {
  const frames: { readonly seq: number; readonly tokens: number; bytes: number; moves: number }[] = [];
  for (const { seq, tokens, bytes } of bytesOverTime(situations, decisions)) {
    const last = frames.at(-1);
    if (last?.tokens === tokens) last.bytes = bytes;
    else frames.push({ seq, tokens, bytes, moves: 0 });
  }
  const last = frames.at(-1);
  if (last === undefined || last.tokens !== data.tokens)
    frames.push({ seq: Number.POSITIVE_INFINITY, tokens: data.tokens, bytes: last?.bytes ?? 0, moves: 0 });
  let move = 0;
  for (const [f, frame] of frames.entries()) {
    const end = frames[f + 1]?.seq ?? Number.POSITIVE_INFINITY;
    while (move < moves.length && moves[move]!.seq < end) move++;
    frame.moves = move;
  }
  return frames;
}
