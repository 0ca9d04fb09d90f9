/**
 * Stored bytes of a page: what is exported and imported again attends with equal bits, in every pair of formats, as a
 * latent, with the sinks of page 0; nothing else changes. Bytes that are not those of a page (cut, flipped, of another
 * shape, format, version or position, with scales that are no numbers) are refused with a code, and the cache is as it
 * was.
 */
import { Worker } from 'node:worker_threads';
import { crc32 } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  encodeLatent,
  FORMATS,
  type KvCache,
  KvError,
  LATENT_NAMES,
  openKvCache,
  openPool,
  PAGE_KINDS,
  SERVED_FORMATS,
} from '../../../native/index.ts';
import { STATUSES } from '../../../native/layout.ts';
import { loadBinary } from '../../../native/load.ts';
import { history, normals, sameBits, uniform } from '../../native/dense.ts';
import { twinOf } from '../../native/twin.ts';
import { codeOf } from '../../refusal.ts';
import { isShare, rounds } from '../../tier.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const WIDTH = 256;

function weights(random: () => number) {
  return { width: WIDTH, wk: normals(random, ROW * WIDTH, 0.05), wv: normals(random, ROW * WIDTH, 0.05) };
}

function filled(tokens: number, seed = 1, budget = 2 ** 30): KvCache {
  const cache = openKvCache({ shape, pool: openPool(budget) });
  const random = uniform(seed);
  cache.setLatentWeights(0, weights(uniform(99)));
  cache.append(0, normals(random, tokens * ROW), normals(random, tokens * ROW));
  return cache;
}

function empty(budget = 2 ** 30): KvCache {
  const cache = openKvCache({ shape, pool: openPool(budget) });
  cache.setLatentWeights(0, weights(uniform(99)));
  return cache;
}

function attended(cache: KvCache, seed = 7): Float32Array {
  const q = normals(uniform(seed), 3 * 256);
  const out = new Float32Array(q.length);
  cache.attend(0, q, out, { observe: false });
  return out;
}

/** The same bytes with a checksum that agrees, as whoever forges them would write it. */
function forged(bytes: Uint8Array, change: (view: DataView, bytes: Uint8Array) => void): Uint8Array {
  const copy = bytes.slice();
  const view = new DataView(copy.buffer);
  change(view, copy);
  view.setUint32(copy.length - 4, crc32(copy.subarray(0, copy.length - 4)), true);
  return copy;
}

describe('stored bytes of a page', () => {
  // Where it takes minutes, one of fourteen, others with each commit.
  const pairs = SERVED_FORMATS.flatMap((k) => SERVED_FORMATS.map((v) => [k, v] as const));
  it.each(pairs.filter((_, place) => isShare(place, 14)))('in %s:%s come back with equal bits', (k, v) => {
    const cache = openKvCache({ shape, pool: openPool(2 ** 30), windowFormat: 'f16' });
    const random = uniform(3);
    cache.append(0, normals(random, 300 * ROW), normals(random, 300 * ROW));
    for (const page of [0, 1]) {
      cache.transcode(0, page, 'k', k);
      cache.transcode(0, page, 'v', v);
    }
    const twin = twinOf(cache);
    expect(twin.table(0)).toEqual(cache.table(0));
    for (const side of ['k', 'v'] as const)
      expect(sameBits(history(twin, 0, side), history(cache, 0, side))).toBe(true);
    expect(sameBits(attended(twin), attended(cache))).toBe(true);
    expect(twin.memory()).toMatchObject({ pageBytes: cache.memory().pageBytes });
    for (const page of [0, 1]) expect(sameBits(twin.exportPage(0, page), cache.exportPage(0, page))).toBe(true);
  });

  it.each(LATENT_NAMES)('hold %s in place of keys and values, or beside them', (name) => {
    const cache = filled(400);
    const random = uniform(5);
    for (const page of [0, 1, 2])
      cache[page === 2 ? 'keepLatent' : 'holdLatent'](
        0,
        page,
        name,
        encodeLatent(name, normals(random, 128 * WIDTH), WIDTH, page === 0 ? 4 : 0),
      );
    const twin = empty();
    const stored = cache.exportPage(0, 0);
    for (const page of [0, 1, 2]) twin.importPage(0, cache.exportPage(0, page));
    twin.append(0, cache.decode(0, 3, 'k'), cache.decode(0, 3, 'v'));
    expect([...twin.table(0).kind].map((kind) => PAGE_KINDS[kind])).toEqual(['latent', 'latent', 'resident']);
    expect(twin.table(0)).toEqual(cache.table(0));
    expect(sameBits(attended(twin), attended(cache))).toBe(true);
    for (const page of [0, 1, 2]) expect([twin, cache].map((one) => one.restore(0, page, 'f16'))[0]).toBeLessThan(0);
    expect(sameBits(attended(twin), attended(cache))).toBe(true);
    const earlier = forged(stored, (view) => view.setUint32(96, 1, true)); // the first layout of latents
    expect(codeOf(() => empty().importPage(0, earlier))).toBe('unsupported');
    // Without the weights that it is recomputed with, a latent is nothing.
    const bare = openKvCache({ shape, pool: openPool(2 ** 30) });
    expect(codeOf(() => bare.importPage(0, stored))).toBe('unsupported');
  });

  it('a page goes to a page boundary of its own position only, and a full open page is sealed first', () => {
    const cache = filled(400);
    const pages = [0, 1].map((page) => cache.exportPage(0, page)) as [Uint8Array, Uint8Array];
    const twin = empty();
    expect(codeOf(() => twin.importPage(0, pages[1]))).toBe('bad-argument');
    twin.append(0, normals(uniform(1), 5 * ROW), normals(uniform(1), 5 * ROW));
    expect(codeOf(() => twin.importPage(0, pages[0]))).toBe('bad-argument');
    const full = filled(128, 4);
    full.importPage(0, pages[1]);
    expect([full.length(), full.table(0).pages]).toEqual([256, 2]);
    const same = filled(129, 4);
    expect(sameBits(full.decode(0, 0, 'k'), same.decode(0, 0, 'k'))).toBe(true);
    expect(sameBits(full.decode(0, 1, 'k'), cache.decode(0, 1, 'k'))).toBe(true);
    full.append(0, normals(uniform(1), ROW), normals(uniform(1), ROW));
    expect(attended(full).every(Number.isFinite)).toBe(true);
  });

  it('comes back from bytes that begin anywhere', () => {
    const cache = filled(200);
    const bytes = cache.exportPage(0, 0);
    for (let offset = 1; offset < 8; offset++) {
      const room = new Uint8Array(bytes.length + 8);
      room.set(bytes, offset);
      const twin = empty();
      twin.importPage(0, room.subarray(offset, offset + bytes.length));
      expect(sameBits(twin.exportPage(0, 0), bytes)).toBe(true);
    }
  });

  it('has no sinks that are no numbers, even where another thread changes the bytes meanwhile', async () => {
    const { Pool, Cache } = loadBinary();
    const pool = new Pool();
    pool.open(2 ** 30);
    // Wide rows: the bytes of the sinks are read for as long as it takes to read a quarter of a megabyte.
    const wide = Int32Array.of(1, 64, 64, 256, FORMATS.q8.id, 1, FORMATS.f16.id);
    const opened = (): InstanceType<typeof Cache> => {
      const cache = new Cache();
      expect(cache.open(pool, wide, 1 / 16, new Int32Array(1), new Float32Array(0))).toBe(0);
      return cache;
    };
    const source = opened();
    const rows = new Float32Array(129 * 64 * 256);
    expect(source.append(0, rows, rows)).toBe(0);
    expect(source.transcode(0, 0, 2, FORMATS.rot1.id, new Float64Array(1))).toBe(0);
    const about = new Int32Array(2);
    expect(source.exportPage(0, 0, about, undefined)).toBe(0);
    const sinkBytes = 2 * 4 * 64 * 256 * 2;
    const shared = new Uint8Array(new SharedArrayBuffer(about[0]!));
    expect(source.exportPage(0, 0, about, shared)).toBe(0);
    source.close();
    const first = about[0]! - sinkBytes;
    const worker = new Worker(
      `const { workerData: { buffer, at } } = require('node:worker_threads');
       const halves = new Uint16Array(buffer);
       for (let i = 0; ; i++) Atomics.store(halves, at, i & 256 ? 0x7c00 : 0);`,
      { eval: true, workerData: { buffer: shared.buffer, at: first / 2 } },
    );
    const counts = { accepted: 0, refused: 0 };
    const numbers = Int32Array.of(PAGE_KINDS.indexOf('resident'), FORMATS.rot1.id, FORMATS.rot1.id, 0, 0);
    const stored = new Uint8Array(shared.length);
    // Both answers come as soon as the other thread runs.
    while (counts.accepted < rounds(40) || counts.refused < rounds(40)) {
      const cache = opened();
      const status = cache.importPage(0, numbers, shared);
      if (status === 0) {
        counts.accepted++;
        expect(cache.exportPage(0, 0, about, stored)).toBe(0);
        expect(new Uint16Array(stored.buffer)[first / 2], `after ${counts.accepted} pages`).toBe(0);
      } else {
        counts.refused++;
        expect(STATUSES[status]!.name).toBe('bad-value');
      }
      cache.close();
      await new Promise(setImmediate);
    }
    await worker.terminate();
    pool.close();
  });

  it('is refused without room, with nothing changed', () => {
    const bytes = filled(200).exportPage(0, 0);
    const cache = empty();
    const pool = openPool(cache.memory().totalBytes + 1000);
    const small = openKvCache({ shape, pool });
    const before = pool.usedBytes;
    expect(codeOf(() => small.importPage(0, bytes))).toBe('budget-exceeded');
    expect([pool.usedBytes, pool.auditBytes(), small.length()]).toEqual([before, before, 0]);
  });

  it('each of 3,000 flipped bits and every shorter length is refused', () => {
    const bytes = filled(200).exportPage(0, 0);
    const cache = empty();
    const random = uniform(8);
    for (let i = 0; i < 3000; i++) {
      const copy = bytes.slice();
      // Half of them in the head and the checksum, where most is said.
      const at = Math.floor(random() * (i % 2 === 0 ? copy.length : 128));
      copy[at]! ^= 1 << Math.floor(random() * 8);
      expect(['bad-file', 'checksum-mismatch']).toContain(codeOf(() => cache.importPage(0, copy)));
    }
    for (let length = 0; length < bytes.length; length += length < 300 ? 1 : 997)
      expect(['bad-file', 'checksum-mismatch']).toContain(codeOf(() => cache.importPage(0, bytes.slice(0, length))));
    expect(codeOf(() => cache.importPage(0, 'page' as unknown as Uint8Array))).toBe('bad-argument');
    expect(cache.length()).toBe(0);
    cache.importPage(0, bytes);
  });

  it('forged heads with a checksum that agrees are refused by name', () => {
    const bytes = filled(200).exportPage(0, 0);
    const cache = empty();
    const cases: readonly (readonly [string, (view: DataView, bytes: Uint8Array) => void])[] = [
      ['bad-file', (view) => view.setUint32(8, 7, true)], // kind
      ['bad-file', (view) => view.setUint32(8, 2, true)], // parked, which is for later
      ['bad-file', (view) => view.setUint32(8, 1, true)], // a latent with formats of keys and values
      ['bad-argument', (view) => view.setUint32(12, 128, true)], // position
      ['bad-shape', (view) => view.setUint32(16, 64, true)],
      ['bad-shape', (view) => view.setUint32(20, 0, true)],
      ['bad-shape', (view) => view.setUint32(24, 1, true)],
      ['bad-shape', (view) => view.setUint32(28, 128, true)],
      ['bad-file', (view) => view.setUint32(32, 2 ** 31, true)],
      ['bad-file', (view) => view.setUint32(36, 2 ** 32 - 1, true)],
      ['unsupported', (_, copy) => copy.set(new TextEncoder().encode('q9'), 40)],
      ['unsupported', (view) => view.setUint32(56, 2, true)], // layout version
      // Sizes no longer agree.
      [
        'bad-shape',
        (view, copy) => {
          copy.set(new TextEncoder().encode('rot2'), 40);
          view.setUint32(56, FORMATS.rot2.layoutVersion, true);
        },
      ],
      ['bad-file', (view) => view.setUint8(127, 1)],
      ['bad-value', (view) => view.setInt8(128 + 1000, -128)], // no level of q8
    ];
    for (const [code, change] of cases) expect(codeOf(() => cache.importPage(0, forged(bytes, change)))).toBe(code);
    expect([cache.length(), cache.memory().pageBytes]).toEqual([0, 0]);
  });

  it('rows in the place of sinks that are no numbers are refused, though nothing comes of them', () => {
    const source = openKvCache({ shape, pool: openPool(2 ** 30) });
    source.append(0, new Float32Array(200 * ROW), new Float32Array(200 * ROW));
    source.transcode(0, 0, 'k', 'rot2');
    const bytes = source.exportPage(0, 0);
    // Behind the codes of both heads: 128 scales each, then means, bits of rows, scales of the means, and what they
    // refer to.
    const scales = 128 + 2 * 32 * 64;
    const reference = scales + 2 * (128 + 64 + 16 + 2);
    const large = forged(bytes, (view) => {
      view.setInt8(scales, 127);
      view.setInt8(reference, 127);
    });
    expect(codeOf(() => empty().importPage(0, large))).toBe('bad-value');
    empty().importPage(
      0,
      forged(bytes, (view) => view.setInt8(scales, 127)),
    );
  });

  it('scales and sinks that are no numbers are refused, and whatever else is forged attends with numbers', () => {
    const random = uniform(21);
    let accepted = 0;
    const seen = new Set<string>();
    for (const format of SERVED_FORMATS) {
      const source = openKvCache({ shape, pool: openPool(2 ** 30), windowFormat: 'f16' });
      source.append(0, normals(random, 140 * ROW), normals(random, 140 * ROW));
      source.transcode(0, 0, 'kv', format);
      const bytes = source.exportPage(0, 0);
      for (let round = 0; round < rounds(40); round++) {
        const page = forged(bytes, (view) => {
          for (let i = 0; i < 4; i++)
            view.setUint16(128 + 2 * Math.floor((random() * (bytes.length - 132)) / 2), 65536 * random());
          // The end of a side is its metadata, the end of all the sinks.
          if (round % 4 === 0) view.setUint16(bytes.length - 6 - 2 * (round % 32), 0x7e00, true);
        });
        const cache = empty();
        try {
          cache.importPage(0, page);
        } catch (error) {
          if (!(error instanceof KvError)) throw error;
          seen.add(error.code);
          expect([cache.length(), cache.memory().pageBytes]).toEqual([0, 0]);
          continue;
        }
        accepted++;
        cache.append(0, normals(random, ROW), normals(random, ROW));
        const q = normals(random, 256);
        const out = new Float32Array(256);
        cache.attend(0, q, out);
        expect(out.every(Number.isFinite)).toBe(true);
      }
    }
    expect([...seen]).toEqual(['bad-value']);
    expect(accepted).toBeGreaterThan(30);
  });
});
