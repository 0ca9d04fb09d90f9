/** Codecs of pages as packs would bring them, in TypeScript: to see what a cache makes of them, and of their faults. */
import type { SessionPack } from '../../../../engine/cache/pack-pages.ts';
import type { PackCodec } from '../../../../engine/packs/types.ts';
import type { Session } from '../../../../engine/session/session.ts';
import { isForeign, KvError } from '../../../../native/index.ts';

/** Pages of a session that are in a pack: layer and page. */
export const inPack = ({ cache, governed }: Pick<Session, 'cache' | 'governed'>): number[][] =>
  Array.from({ length: governed.shape.layers }, (_, layer) => cache.table(layer)).flatMap((table, layer) =>
    Array.from({ length: table.pages }, (_, page) => [layer, page]).filter(([, page]) => isForeign(table, page!)),
  );

/** A codec from what it encodes and decodes, whose products are those of the decoded rows, in float32. */
function codecOf(
  pageBytes: PackCodec['pageBytes'],
  encode: PackCodec['encode'],
  decode: PackCodec['decode'],
): PackCodec {
  return {
    pageBytes,
    encode,
    decode,
    dots: (page, q, out, tokens, dim, queries) => {
      const x = decode(page, tokens, dim);
      for (let i = 0; i < queries; i++)
        for (let t = 0; t < tokens; t++) {
          let dot = 0;
          for (let c = 0; c < dim; c++) dot += q[i * dim + c]! * x[t * dim + c]!;
          out[i * tokens + t] = dot;
        }
    },
    mix: (page, w, out, tokens, dim, queries) => {
      const x = decode(page, tokens, dim);
      for (let i = 0; i < queries; i++)
        for (let c = 0; c < dim; c++) {
          let sum = 0;
          for (let t = 0; t < tokens; t++) sum += w[i * tokens + t]! * x[t * dim + c]!;
          out[i * dim + c]! += sum;
        }
    },
    close: () => {},
  };
}

/** Rows stay as they are, here; a page is the number under which they are kept: nothing is lost, in few bytes. */
export function keptRows(): PackCodec {
  const rows: Float32Array[] = [];
  return codecOf(
    () => 4,
    (x) => new Uint8Array(Uint32Array.of(rows.push(x.slice()) - 1).buffer),
    (page) => rows[page.slice().reduce((sum, byte, i) => sum + byte * 256 ** i, 0)]!.slice(),
  );
}

/** Four bits of an element, and a float32 scale for each row. */
export function coarse(): PackCodec {
  const stored = (dim: number): number => 4 + dim / 2;
  return codecOf(
    (tokens, dim) => tokens * stored(dim),
    (x, tokens, dim) => {
      const page = new Uint8Array(tokens * stored(dim));
      const view = new DataView(page.buffer);
      for (let t = 0; t < tokens; t++) {
        const row = x.subarray(t * dim, (t + 1) * dim);
        const scale = Math.fround(row.reduce((top, one) => Math.max(top, Math.abs(one)), 0) / 7) || 1;
        view.setFloat32(t * stored(dim), scale, true);
        for (let c = 0; c < dim; c += 2)
          page[t * stored(dim) + 4 + c / 2] =
            Math.round(row[c]! / scale + 7) | (Math.round(row[c + 1]! / scale + 7) << 4);
      }
      return page;
    },
    (page, tokens, dim) => {
      const x = new Float32Array(tokens * dim);
      const view = new DataView(page.buffer, page.byteOffset, page.byteLength);
      for (let t = 0; t < tokens; t++) {
        const scale = view.getFloat32(t * stored(dim), true);
        for (let c = 0; c < dim; c += 2) {
          const both = page[t * stored(dim) + 4 + c / 2]!;
          x[t * dim + c] = ((both & 15) - 7) * scale;
          x[t * dim + c + 1] = ((both >> 4) - 7) * scale;
        }
      }
      return x;
    },
  );
}

/** The same, which breaks its contract in the call of this name that is so many calls behind the first. */
export function breaking(codec: PackCodec, call: 'encode' | 'dots' | 'mix', after: number): PackCodec {
  let left = after;
  const broken = (): never => {
    throw new KvError('bad-value', 'the module was stopped', { hint: 'none' });
  };
  const checked = <Args extends unknown[], Result>(work: (...args: Args) => Result) => {
    return (...args: Args): Result => (left-- > 0 ? work(...args) : broken());
  };
  return { ...codec, [call]: checked(codec[call] as (...args: unknown[]) => unknown) };
}

/** A pack whose instances are made by this, and how many were. */
export function packOf(name: string, digit: string, make: () => PackCodec): SessionPack & { opened: number } {
  const pack = {
    name,
    digest: digit.repeat(64),
    opened: 0,
    open: () => {
      pack.opened++;
      return make();
    },
  };
  return pack;
}
