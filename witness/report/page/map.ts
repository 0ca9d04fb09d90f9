/** The tier map: layers downwards, positions to the right, keys and values apart; darker is more bits. */
import type { ReportData } from './data.ts';
import { SIDE_NAMES } from './data.ts';
import { el } from './dom.ts';
import { type History, sealedPages } from './history.ts';
import { grouped } from './words.ts';

const GUTTER = 26;
const HEAD = 4;
const FOOT = 20;

/** The colours of a page, read from the style sheet so that print and dark mode have theirs. */
export interface Palette {
  readonly ink: readonly number[];
  readonly paper: readonly number[];
  readonly soft: string;
  readonly line: string;
  readonly accent: string;
  /** A colour for each form, and for the open page; left out: the more ink, the more bits. */
  readonly forms?: readonly string[];
  readonly open?: string;
}

export function palette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string): string => style.getPropertyValue(name).trim();
  return {
    ink: channels(value('--ink')),
    paper: channels(value('--paper')),
    soft: value('--soft'),
    line: value('--line'),
    accent: value('--accent'),
  };
}

const channels = (hex: string): number[] => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));

/**
 * How much ink so many bits are: two points of each straight piece over log2(bits). The middle tones are left out, on
 * which neither a light nor a dark letter has enough contrast.
 */
const INK: readonly (readonly [bits: number, share: number])[] = [
  [1.15, 0.07],
  [3.3, 0.4],
  [3.4, 0.62],
  [16, 1],
];

/** From a trace for a bit to 1 for sixteen; none for nothing. */
export function inkOf(bits: number): number {
  if (bits === 0) return 0;
  const at = Math.max(
    1,
    INK.findIndex(([limit]) => Math.min(bits, 16) <= limit),
  );
  const [[low, from], [high, to]] = [INK[at - 1]!, INK[at]!];
  const share = (Math.log2(bits) - Math.log2(low)) / (Math.log2(high) - Math.log2(low));
  return from + (to - from) * Math.max(0, Math.min(1, share));
}

export function mix({ ink, paper }: Palette, share: number): string {
  const parts = ink.map((value, i) => Math.round(paper[i]! + (value - paper[i]!) * share));
  return `rgb(${parts.join(' ')})`;
}

/** What stands in a cell that is large enough: the bits of its format, with an x for a latent; nothing for no bits. */
export const letterOf = (form: string): string =>
  form === 'f16' ? '16' : form.replace(/^(x?)\D*(\d+)$/, '$1$2').replace(/^\D+$/, '');

/** One picture of one side. */
export class TierMap {
  readonly canvas: HTMLCanvasElement;
  readonly #data: ReportData;
  readonly #history: History;
  readonly #side: number;

  constructor(data: ReportData, history: History, side: number) {
    this.#data = data;
    this.#history = history;
    this.#side = side;
    this.canvas = el('canvas', { class: 'map' });
  }

  /** The layer and page under a point of the canvas; null beside them. */
  at(x: number, y: number): { readonly layer: number; readonly page: number } | null {
    const { layers, pages } = this.#history;
    const { width, cell } = this.#size(this.canvas.clientWidth);
    const layer = Math.floor((y - HEAD) / cell);
    const page = Math.floor(((x - GUTTER) / width) * pages);
    return layer < 0 || layer >= layers || page < 0 || page >= pages ? null : { layer, page };
  }

  #size(full: number): { readonly width: number; readonly cell: number } {
    const width = Math.max(1, full - GUTTER);
    const { layers, pages } = this.#history;
    const cell = Math.max(5, Math.min(18, Math.floor(460 / layers), Math.max(9, Math.floor(width / pages))));
    return { width, cell };
  }

  /** Draws a frame `full` pixels wide. `cursor`: the cell that the keyboard is on. */
  draw(
    frame: number,
    full: number,
    colours: Palette,
    cursor: { layer: number; page: number } | null,
    scale = devicePixelRatio,
  ): void {
    const { layers, pages } = this.#history;
    const { width, cell } = this.#size(full);
    const height = HEAD + layers * cell + FOOT;
    const { canvas } = this;
    canvas.width = Math.round(full * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.aspectRatio = `${full} / ${height}`;
    const context = canvas.getContext('2d')!;
    context.scale(scale, scale);
    this.#cells(context, frame, width, cell, colours);
    context.fillStyle = colours.soft;
    context.font = '10px ui-sans-serif, system-ui, sans-serif';
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(12 / cell));
    for (let layer = 0; layer < layers; layer += every)
      context.fillText(String(layer), GUTTER - 6, HEAD + (layer + 0.5) * cell);
    context.textBaseline = 'alphabetic';
    context.textAlign = 'left';
    context.fillText('0', GUTTER, height - 5);
    context.textAlign = 'right';
    context.fillText(`${grouped(pages * this.#data.pageTokens)} tokens`, GUTTER + width, height - 5);
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(GUTTER - 0.5, HEAD - 0.5, width, layers * cell);
    if (cursor !== null) {
      const w = width / pages;
      context.strokeStyle = colours.accent;
      context.lineWidth = 2;
      context.strokeRect(GUTTER + cursor.page * w - 1, HEAD + cursor.layer * cell - 1, Math.max(3, w) + 2, cell + 2);
    }
  }

  #cells(context: CanvasRenderingContext2D, frame: number, width: number, cell: number, colours: Palette): void {
    const { layers, pages, frames } = this.#history;
    const { formBits, forms, formats, freedForm, pageTokens, openForm } = this.#data;
    const state = this.#history.formsAt(frame);
    const { tokens } = frames[frame]!;
    const sealed = Math.min(pages, sealedPages(tokens, pageTokens));
    const w = width / pages;
    const looks = colours.forms ?? formBits.map((bits) => mix(colours, inkOf(bits)));
    const gap = w >= 6 ? 1 : 0;
    const isLettered = w >= 10 && cell >= 9;
    context.font = `${Math.min(10, cell - 1)}px ui-sans-serif, system-ui, sans-serif`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    // Several pages in one column of pixels: each column shows one ink for the mean of their bits.
    const bundle = Math.max(1, Math.ceil(1 / w));
    for (let layer = 0; layer < layers; layer++) {
      const y = HEAD + layer * cell;
      const height = cell - (cell > 6 ? 1 : 0);
      for (let page = 0; page < sealed; page += bundle) {
        const x = GUTTER + page * w;
        const form = state[this.#history.cell(this.#side, layer, page)]!;
        const count = Math.min(bundle, sealed - page);
        context.fillStyle =
          count === 1 || colours.forms !== undefined
            ? looks[form]!
            : mix(colours, this.#meanInk(state, layer, page, count));
        context.fillRect(x, y, w * count - gap, height);
        if (form >= formats && form !== freedForm && count === 1) hatch(context, x, y, w - gap, height, colours);
        if (!isLettered) continue;
        context.fillStyle = mix(colours, colours.forms !== undefined || inkOf(formBits[form]!) > 0.5 ? 0 : 1);
        context.fillText(letterOf(forms[form]!), x + (w - gap) / 2, y + height / 2 + 0.5);
      }
      const open = tokens - sealed * pageTokens;
      if (open <= 0 || sealed === pages) continue;
      context.fillStyle = colours.open ?? looks[openForm]!;
      context.fillRect(GUTTER + sealed * w, y, Math.max(1, (w * open) / pageTokens - gap), height);
    }
  }

  #meanInk(state: Uint8Array, layer: number, page: number, count: number): number {
    const first = this.#history.cell(this.#side, layer, page);
    let sum = 0;
    for (let i = 0; i < count; i++) sum += inkOf(this.#data.formBits[state[first + i]!]!);
    return sum / count;
  }

  /** How many sealed pages have each form, by layer. [layer][form] */
  counts(frame: number): number[][] {
    const { layers, frames } = this.#history;
    const sealed = Math.min(this.#history.pages, sealedPages(frames[frame]!.tokens, this.#data.pageTokens));
    const state = this.#history.formsAt(frame);
    return Array.from({ length: layers }, (_, layer) => {
      const counts = this.#data.forms.map(() => 0);
      for (let page = 0; page < sealed; page++) counts[state[this.#history.cell(this.#side, layer, page)]!]!++;
      return counts;
    });
  }

  /** What a cell is, in words. */
  tell(frame: number, layer: number, page: number): string {
    const { pageTokens, forms } = this.#data;
    const { tokens } = this.#history.frames[frame]!;
    const sealed = sealedPages(tokens, pageTokens);
    const where = `Layer ${layer}, page ${page}, ${SIDE_NAMES[this.#side]}`;
    if (page > sealed || page * pageTokens >= tokens) return `${where}: not written yet`;
    if (page === sealed) return `${where}: open`;
    return `${where}: ${forms[this.#history.formsAt(frame)[this.#history.cell(this.#side, layer, page)]!]}`;
  }
}

function hatch(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  width: number,
  height: number,
  colours: Palette,
): void {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colours.accent;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 4) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
