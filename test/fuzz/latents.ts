/**
 * Latents: coded, decoded, gathered, multiplied with weights, held by a cache and made keys and values again. Bits on
 * every machine.
 */
import { PAGE_TOKENS } from '../../native/format.ts';
import { LATENT_NAMES, latentBytes } from '../../native/latent.ts';
import { LATENT_OPERATIONS } from '../../native/layout.ts';
import { gaussian } from '../native/rows.ts';
import { withCache } from './attention.ts';
import { bytes, type Case, type Cases, floats, one, type Random, signed, succeed, whole } from './case.ts';

const Q8 = 1;

const width = (random: Random): number => 16 * whole(random, 4, 20);
const normals = (random: Random, count: number, size = 1): Float32Array =>
  Float32Array.from({ length: count }, () => size * gaussian(random));

/** The bytes of a page, and what comes back from them. */
function latentPage(random: Random): Case {
  const m = width(random);
  const format = whole(random, 0, LATENT_NAMES.length - 1);
  const x = floats(random, PAGE_TOKENS * m, 65504);
  const firstRow = one(random, [0, 0, 1, 4]);
  const n = whole(random, 1, 9);
  const p = Float32Array.from({ length: n * PAGE_TOKENS }, () => (random() < 0.2 ? 0 : random()));
  return {
    shape: `${LATENT_NAMES[format]}, width ${m}, first row ${firstRow}, mixed rows ${n}`,
    run({ binary, isa }) {
      succeed(binary.setIsa(isa), 'setIsa');
      const page = new Uint8Array(latentBytes(LATENT_NAMES[format]!, m));
      const back = new Float32Array(PAGE_TOKENS * m);
      const mixed = new Float32Array(n * m);
      succeed(binary.encodeLatent(format, m, page, x, firstRow), 'encodeLatent');
      succeed(binary.decodeLatent(format, m, page, back), 'decodeLatent');
      succeed(binary.mixLatent(format, m, page, p, mixed), 'mixLatent');
      return [page, back, mixed];
    },
  };
}

/** Rows of integers meet packed weights. */
function gemm(random: Random): Case {
  const contraction = whole(random, 1, 300);
  const outputs = whole(random, 1, 150);
  const rows = whole(random, 1, 40);
  const planes = whole(random, 1, 2);
  const w = floats(random, outputs * contraction, 2 ** 40);
  const levels = signed(random, rows * contraction);
  const scale = floats(random, rows, 2 ** 20);
  const base = random() < 0.5 ? floats(random, outputs, 2 ** 30) : undefined;
  return {
    shape: `contraction ${contraction}, outputs ${outputs}, rows ${rows}, planes ${planes}`,
    run({ binary, isa }) {
      succeed(binary.setIsa(isa), 'setIsa');
      const weights = new binary.Weights();
      succeed(weights.open(w, outputs, contraction, false), 'weights.open');
      const out = new Float32Array(rows * outputs);
      succeed(weights.multiply(levels, rows, scale, planes, base, out), 'multiply');
      weights.close();
      return [out];
    },
  };
}

/** Keys or values of a page, and values of what was gathered. */
function materialize(random: Random): Case {
  const m = width(random);
  const format = whole(random, 0, LATENT_NAMES.length - 1);
  const outputs = whole(random, 1, 130);
  const planes = whole(random, 1, 2);
  const x = floats(random, PAGE_TOKENS * m, 65504);
  const w = normals(random, outputs * m, 1 / Math.sqrt(m));
  const bias = random() < 0.5 ? normals(random, outputs) : undefined;
  const n = whole(random, 1, 5);
  const mixed = floats(random, n * m, 2 ** 30);
  const mass = bias === undefined ? undefined : Float32Array.from({ length: n }, () => random());
  return {
    shape: `${LATENT_NAMES[format]}, width ${m}, outputs ${outputs}, planes ${planes}`,
    run({ binary, isa }) {
      succeed(binary.setIsa(isa), 'setIsa');
      const page = new Uint8Array(latentBytes(LATENT_NAMES[format]!, m));
      succeed(binary.encodeLatent(format, m, page, x, 0), 'encodeLatent');
      const weights = new binary.Weights();
      succeed(weights.open(w, outputs, m, true), 'weights.open');
      const rows = new Float32Array(PAGE_TOKENS * outputs);
      const values = new Float32Array(n * outputs);
      succeed(weights.materialize(format, page, planes, bias, rows), 'materialize');
      succeed(weights.finishMix(mixed, bias, mass, values), 'finishMix');
      weights.close();
      return [rows, values];
    },
  };
}

/**
 * A cache holds pages as latents, decodes them, lowers them, and makes coded pages of them that it attends over; the
 * open page is zeros (attention.ts).
 */
function heldLatent(random: Random): Case {
  const d = one(random, [64, 80, 96, 128]);
  const heads = whole(random, 1, 2);
  const m = width(random);
  const pages = whole(random, 1, 2);
  const tokens = pages * PAGE_TOKENS + whole(random, 1, 5);
  const row = heads * d;
  const x = Array.from({ length: pages }, () => floats(random, PAGE_TOKENS * m, 1000));
  const [wk, wv] = [normals(random, row * m, 1 / Math.sqrt(m)), normals(random, row * m, 1 / Math.sqrt(m))];
  const [kBias, vBias] = random() < 0.5 ? [undefined, undefined] : [normals(random, row), normals(random, row)];
  const gains = random() < 0.5 ? undefined : normals(random, d);
  const isInterleaved = random() < 0.5;
  const rotary = 2 * whole(random, 1, d / 2);
  const angle = Float32Array.from({ length: (pages * PAGE_TOKENS * rotary) / 2 }, () => 6.28 * random());
  const [cos, sin] = [angle.map(Math.cos), angle.map(Math.sin)];
  const format = whole(random, 0, LATENT_NAMES.length - 1);
  const to = whole(random, Q8, 4);
  const lower = whole(random, format, LATENT_NAMES.length - 1);
  const q = normals(random, row);
  const sinks = bytes(random, 4 * row);
  const openFormat = one(random, [0, Q8]);
  return {
    shape: `${LATENT_NAMES[format]}, width ${m}, d ${d}, heads ${heads}, pages ${pages}, rotary ${rotary}, to ${LATENT_NAMES[lower]} and format ${to}`,
    run({ binary, isa }) {
      const results: Float32Array[] = [];
      const options = { scale: 1 / Math.sqrt(d), window: 0, slopes: new Float32Array(0) };
      withCache(binary, isa, [1, heads, heads, d, Q8, 1, openFormat], options, (cache) => {
        const rows = new Float32Array(tokens * row);
        rows.set(Float32Array.from(sinks, (byte) => byte / 64));
        succeed(cache.append(0, rows, rows), 'append');
        succeed(cache.latent(LATENT_OPERATIONS.rotary, cos, sin, rotary, isInterleaved), 'rotary');
        succeed(
          cache.latent(LATENT_OPERATIONS.weights, 0, m, wk, wv, kBias, vBias, gains, gains === undefined ? 0 : 1e-6),
          'weights',
        );
        const freed = new Float64Array(1);
        for (let page = 0; page < pages; page++) {
          const latent = new Uint8Array(latentBytes(LATENT_NAMES[format]!, m));
          succeed(binary.encodeLatent(format, m, latent, x[page]!, page === 0 ? 4 : 0), 'encodeLatent');
          succeed(cache.latent(LATENT_OPERATIONS.hold, 0, page, format, freed, latent), 'hold');
          const decode = (side: number): void => {
            const decoded = new Float32Array(PAGE_TOKENS * row);
            succeed(cache.decode(0, page, side, decoded), 'decode');
            results.push(decoded);
          };
          for (const side of [0, 1]) decode(side);
          succeed(cache.latent(LATENT_OPERATIONS.move, 0, page, lower, freed), 'move');
          for (const side of [0, 1]) decode(side);
          succeed(cache.latent(LATENT_OPERATIONS.restore, 0, page, to, freed), 'restore');
          decode(1);
        }
        const out = new Float32Array(row);
        succeed(cache.attend(0, q, out, undefined, undefined, false), 'attend');
        results.push(out);
      });
      return results;
    },
  };
}

export const LATENT_CASES: Cases = { latentPage, gemm, materialize, heldLatent };
