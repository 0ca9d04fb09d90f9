/** In which form each side of the sealed pages is, as the entries of one session tell it, and what that takes. */
import { openBytes, pageOf, SIDES, type Side, sealedPages } from '../native/index.ts';
import type { LaterForm, PageForm } from '../policy/index.ts';
import { isLatent } from '../policy/index.ts';
import type { NoteBody } from './entries/log-notes.ts';
import type { ReceiptClaims } from './entries/receipt.ts';
import { eachSide, formsTold } from './told-forms.ts';
import type { Entry, OpenBody } from './types.ts';

const BITS_F16 = 16;
const BYTES_F16 = 2;

type Opened = Pick<OpenBody, 'shape' | 'context'>;

/** What a cache of these forms is: `formOf` a side of a sealed page. */
export function heldIn(
  { shape, context }: Opened,
  tokens: number,
  formOf: (layer: number, page: number, side: Side) => LaterForm,
): ReceiptClaims['cache'] {
  const counts = { k: new Map<PageForm, [number, Set<number>]>(), v: new Map<PageForm, [number, Set<number>]>() };
  let bytes = openBytes(shape, tokens, context.openFormat ?? 'f16');
  for (let layer = 0; layer < shape.layers; layer++) {
    for (let page = 0; page < sealedPages(tokens); page++) {
      for (const side of SIDES) {
        const form = formOf(layer, page, side);
        if (form === 'freed') continue;
        // A latent is keys and values in one.
        bytes += (context.pageBytes[form] ?? 0) / (isLatent(form) ? SIDES.length : 1);
        const [sides, layers] = counts[side].get(form) ?? [0, new Set()];
        counts[side].set(form, [sides + 1, layers.add(layer)]);
      }
    }
  }
  const told = (side: Side): string =>
    [...counts[side]]
      .map(([form, [sides, layers]]) => `${form}:${sides}/${layers.size}`)
      .sort()
      .join(' ');
  const f16Bytes = SIDES.length * BYTES_F16 * tokens * shape.layers * shape.kvHeads * shape.headDim;
  const bits = f16Bytes === 0 ? 0 : (BITS_F16 * bytes) / f16Bytes;
  return { tokens, bytes: Math.round(bytes), bits: Math.round(bits * 1000) / 1000, k: told('k'), v: told('v') };
}

export class PageForms {
  readonly #open: Opened;
  /** Of each side that is not in the format of the window, by layer, page and side. */
  readonly #forms = new Map<string, LaterForm>();
  #tokens = 0;

  constructor(open: Opened) {
    this.#open = open;
  }

  add(entry: Entry): void {
    const { tokens, sides } = formsTold(entry);
    if (tokens !== undefined) this.#at(tokens);
    const { movedSince = [] } = entry.kind === 'note' ? (entry.body as NoteBody) : {};
    for (const { layer, page, side, to } of [...movedSince.flatMap(eachSide), ...sides])
      this.#forms.set(`${layer}/${page}/${side}`, to);
  }

  /** What the cache is with so many tokens. */
  held(tokens: number): ReceiptClaims['cache'] {
    const { windowFormat } = this.#open.context;
    return heldIn(
      this.#open,
      tokens,
      (layer, page, side) => this.#forms.get(`${layer}/${page}/${side}`) ?? windowFormat,
    );
  }

  /** Pages that are gone at this length are made anew. */
  #at(tokens: number): void {
    const isLess = tokens < this.#tokens;
    this.#tokens = tokens;
    if (!isLess) return;
    // A last page that is full stays sealed.
    const pages = pageOf(tokens);
    for (const key of this.#forms.keys()) if (Number(key.split('/')[1]) >= pages) this.#forms.delete(key);
  }
}
