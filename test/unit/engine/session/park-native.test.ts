// Pages that the binary reads and writes are those of the reference: rows that TypeScript decodes, coded by the
// reference of each format, give the same stored bytes; on every instruction set and with several threads; what is
// damaged is refused and leaves the cache empty.
import { describe, expect, it } from 'vitest';
import { cacheBytes, fillCache } from '../../../../engine/session/park/cache-bytes.ts';
import { PagePredictor } from '../../../../engine/session/park/page-predictor.ts';
import type { Predictor } from '../../../../engine/session/park/predictor.ts';
import { RopeTable } from '../../../../engine/transformer/rope.ts';
import type { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import {
  CODECS,
  type KvCache,
  nativeInfo,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  SERVED_FORMATS,
  SIDES,
  SINK_TOKENS,
  setIsa,
} from '../../../../native/index.ts';
import { normals, sameBits, uniform } from '../../../native/dense.ts';
import { headOf, storedFields } from '../../../native/sides.ts';
import { codeOf } from '../../../refusal.ts';
import { withPredictor } from '../on-reference.ts';

const TOKENS = 300;
/** How a page is written, in its record (engine/session/park/cache-bytes.ts). */
const [EARLIER, PREDICTED] = [1, 2];
let runtime: Runtime;
let predictor: Predictor;
withPredictor((...opened) => {
  [runtime, predictor] = opened;
});

const pages = (): PagePredictor =>
  new PagePredictor(predictor, runtime.model.config, new RopeTable(runtime.model.config, 512));
const open = (threads = 1): KvCache =>
  openKvCache({ shape: runtime.shape, pool: openPool(2 ** 28), openFormat: 'q8', threads });

/** Rows as the predictor knows them, so that pages are predicted. */
function filled(tokens = TOKENS, kv = open()): KvCache {
  const random = uniform(11);
  const { width, data } = predictor;
  for (const [layer, { centres, gains }] of data.layers.entries()) {
    const rows = (from: number): Float32Array =>
      normals(random, tokens * width).map(
        (value, i) => centres[from + (i % width)]! + (4 * value) / gains[from + (i % width)]!,
      );
    kv.append(layer, rows(0), rows(width));
  }
  return kv;
}

/** What the reference makes of the records of predicted and stored pages. */
function byReference(bytes: Buffer): { k: Float32Array; v: Float32Array }[] {
  const { layers } = runtime.shape;
  const reference = pages();
  let at = 0;
  return Array.from({ length: 2 * layers }, (_, i) => {
    const size = bytes.readUInt32LE(at);
    expect(bytes[at + 4]).toBe(PREDICTED);
    const rows = reference.decode(
      Math.floor(i / layers) === 0 ? i : i - layers,
      Math.floor(i / layers),
      bytes.subarray(at + 5, at + 4 + size),
    );
    at += 4 + size;
    return rows;
  }).map(({ k, v }) => ({ k, v }));
}

/**
 * Reads parked pages on every instruction set, with one thread and with two, and compares them with the rows of the
 * reference, appended.
 */
function readAsByReference(bytes: Buffer): void {
  const expected = open();
  const rows = byReference(bytes);
  const { layers } = runtime.shape;
  const { width } = predictor;
  for (let layer = 0; layer < layers; layer++) {
    for (const page of [0, 1]) expected.append(layer, rows[page * layers + layer]!.k, rows[page * layers + layer]!.v);
    expected.append(layer, new Float32Array(width), new Float32Array(width));
  }
  const best = nativeInfo().isa;
  for (const isa of nativeInfo().available)
    for (const threads of [1, 2]) {
      setIsa(isa);
      const back = open(threads);
      fillCache(back, TOKENS, bytes, { predicted: pages() });
      for (let layer = 0; layer < layers; layer++)
        for (const page of [0, 1])
          expect(
            sameBits(back.exportPage(layer, page), expected.exportPage(layer, page)),
            `${isa} ${layer} ${page}`,
          ).toBe(true);
      expect(back.auditBytes()).toBe(back.usedBytes);
      back.close();
    }
  setIsa(best);
  expected.close();
}

/** The same pages without any residual: no column is coded, and each state is the least. */
function withoutResiduals(bytes: Buffer): Buffer {
  const parts: Buffer[] = [];
  const { layers } = runtime.shape;
  const empty = Buffer.alloc(6 + 4 * 32);
  for (let i = 0; i < 32; i++) empty.writeUInt32LE(2 ** 15, 6 + 4 * i);
  let at = 0;
  for (let i = 0; i < 2 * layers; i++) {
    const head = Buffer.from(bytes.subarray(at, at + 7 + (i < layers ? 2 * 2 * SINK_TOKENS * predictor.width : 0)));
    at += 4 + bytes.readUInt32LE(at);
    head.writeUInt32LE(head.length - 4 + empty.length);
    parts.push(head, empty);
  }
  return Buffer.concat([...parts, bytes.subarray(at)]);
}

describe('pages that the binary writes', () => {
  it('are those of the reference, on every instruction set, also over layers that are stored', () => {
    const source = filled();
    const { layers } = runtime.shape;
    const best = nativeInfo().isa;
    for (const isa of nativeInfo().available) {
      setIsa(isa);
      const [written, reference] = [pages(), pages()];
      const stored = { not: 0, instead: 0 };
      for (const page of [0, 1])
        for (let layer = 0; layer < layers; layer++) {
          // Every third page has too little room, and some have just enough or one byte too few.
          const whole = pages();
          for (let below = 0; below < layer; below++) whole.encode(source, below, page, 2 ** 16);
          const room = [2 ** 16, whole.encode(source, layer, page, 2 ** 16)!.length + (layer % 2), 700][
            (layer + page) % 3
          ]!;
          const found = written.encode(source, layer, page, room);
          expect(found, `${isa} ${layer} ${page}`).toEqual(reference.encodeByReference(source, layer, page, room));
          stored[found === null ? 'instead' : 'not'] += 1;
        }
      expect(Math.min(stored.not, stored.instead)).toBeGreaterThan(2);
    }
    setIsa(best);
    source.close();
  });

  it('hold nothing where rows are what was predicted, or beyond all numbers', () => {
    const { width, data } = predictor;
    const packed = predictor.packedToWrite();
    const levels = new Int8Array(2 * PAGE_TOKENS * width);
    const out = new Uint8Array(2 ** 16);
    const of = ({ base }: { readonly base: Float32Array }): Float32Array =>
      Float32Array.from({ length: PAGE_TOKENS * width }, (_, i) => base[i % width]!);
    const { k } = data.layers[0]!;
    // Values of layer 0 are predicted from its keys, so only keys can be given as they will be predicted.
    packed.write(0, null, { k: of(k), v: of(data.layers[0]!.v) }, PAGE_TOKENS, out, levels);
    expect(new DataView(out.buffer).getUint32(2, true)).toBe(0);
    const far = new Float32Array(PAGE_TOKENS * width).fill(3.4e38);
    expect(packed.write(0, null, { k: far, v: far }, 0, out, levels)).toBeGreaterThan(100);
  });
});

describe('pages that the binary reads', () => {
  it('are those of the reference, on every instruction set and with two threads', () => {
    const source = filled();
    readAsByReference(cacheBytes(source, TOKENS, pages()));
    source.close();
  });

  it('are what is predicted where nothing is left of them', () => {
    const source = filled();
    readAsByReference(withoutResiduals(cacheBytes(source, TOKENS, pages())));
    source.close();
  });

  it('come back in any format, also between pages that are stored', () => {
    const { layers, kvHeads, headDim } = runtime.shape;
    const count = Math.ceil(SERVED_FORMATS.length / layers);
    const tokens = count * PAGE_TOKENS + 1;
    const exact = openKvCache({ shape: runtime.shape, pool: openPool(2 ** 28), windowFormat: 'f16' });
    const source = filled(tokens, exact);
    const formatsOf = (i: number) => ({
      k: SERVED_FORMATS[i % SERVED_FORMATS.length]!,
      v: SERVED_FORMATS[(5 * i + 3) % SERVED_FORMATS.length]!,
    });
    for (let i = 0; i < count * layers; i++)
      for (const side of SIDES) source.transcode(i % layers, Math.floor(i / layers), side, formatsOf(i)[side]);
    const bytes = cacheBytes(source, tokens, pages());
    const back = open();
    fillCache(back, tokens, bytes, { predicted: pages() });
    const reference = pages();
    const ways = [0, 0];
    for (let i = 0, at = 0; i < count * layers; i++) {
      const [page, layer, size] = [Math.floor(i / layers), i % layers, bytes.readUInt32LE(at)];
      const way = bytes[at + 4]!;
      const content = bytes.subarray(at + 5, at + 4 + size);
      at += 4 + size;
      ways[way === PREDICTED ? 1 : way]! += 1;
      if (way === 0) {
        reference.pass(source, layer, page);
        expect(sameBits(back.exportPage(layer, page), source.exportPage(layer, page))).toBe(true);
        continue;
      }
      const rows = reference.decode(layer, page, content);
      expect(rows.formats).toEqual(formatsOf(i));
      for (const side of SIDES)
        for (let head = 0; head < kvHeads; head++) {
          const one = Float32Array.from(
            { length: PAGE_TOKENS * headDim },
            (_, e) => rows[side][(Math.floor(e / headDim) * kvHeads + head) * headDim + (e % headDim)]!,
          );
          const codec = CODECS[rows.formats[side]];
          const wanted = codec.stored(codec.encode(one, headDim, page === 0 ? SINK_TOKENS : 0, side) as never, side);
          const found = storedFields(back, layer, page, side);
          for (const [name, field] of Object.entries(wanted))
            expect(sameBits(headOf(found[name]!, head, kvHeads), field), `${rows.formats[side]} ${side} ${name}`).toBe(
              true,
            );
        }
    }
    expect(Math.min(...ways), `${ways[0]} stored, ${ways[1]} predicted`).toBeGreaterThan(5);
    for (const one of [source, back]) one.close();
  });

  it('are refused where residuals are damaged, and nothing is left in the cache', () => {
    const source = filled();
    const bytes = cacheBytes(source, TOKENS, pages());
    const size = bytes.readUInt32LE(0);
    const sinks = 2 * 2 * SINK_TOKENS * predictor.width;
    const head = 4 + 1 + 2 + sinks;
    // Shifts and counts of columns, states, the first and the last words; then a record that ends early, and one that
    // goes on.
    const changes: ((copy: Buffer) => void)[] = [
      ...[head, head + 2, head + 3, head + 6 + 3, head + 6 + 128, 4 + size - 3].map((at) => (copy: Buffer) => {
        copy[at]! ^= 0x40;
      }),
      (copy) => copy.writeInt8(7, head),
      (copy) => copy.writeUInt16LE(predictor.width + 1, head + 2),
      (copy) => copy.writeUInt16LE(0, head + 2),
      (copy) => copy.writeUInt32LE(0, head + 6),
    ];
    const best = nativeInfo().isa;
    for (const isa of nativeInfo().available)
      for (const [i, change] of changes.entries()) {
        setIsa(isa);
        const copy = Buffer.from(bytes);
        change(copy);
        const back = open();
        expect(
          codeOf(() => fillCache(back, TOKENS, copy, { predicted: pages() })),
          `${isa} ${i}`,
        ).toBe('bad-file');
        expect([back.length(), back.usedBytes]).toEqual([0, 0]);
        back.close();
      }
    setIsa(best);
    source.close();
  });

  it('are refused where an earlier version predicted them', () => {
    const source = filled();
    const bytes = cacheBytes(source, TOKENS, pages());
    bytes[4] = EARLIER;
    const back = open();
    expect(() => fillCache(back, TOKENS, bytes, { predicted: pages() })).toThrow(/in the way of an earlier version/);
    for (const one of [source, back]) one.close();
  });
});
