// More bits never err more (T10), in every family of formats that has several widths: on Gaussian rows strictly, on
// rows with outlier channels, and on keys (before their rotary embedding) and values of the reference model as they are
// and with function-preserving outliers. By the references, which kernels equal to the bit.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { withOutliers } from '../../lab/evaluate/outliers.ts';
import { ownRows } from '../../lab/methods/own-rows.ts';
import {
  ALL_FAMILIES,
  CODECS,
  FORMAT_NAMES,
  FORMATS,
  PAGE_TOKENS,
  SIDES,
  type Side,
  servesSide,
} from '../../native/format.ts';
import type { Head, ReferenceCodec } from '../../native/reference/index.ts';
import { relativeError } from '../native/dense.ts';
import { awkwardRows, gaussianRows } from '../native/rows.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const D = 64;
const TOKENS = 2 * PAGE_TOKENS;
/** Families with formats of several widths, widest first. */
const FAMILIES = ALL_FAMILIES.map(([family, { formats }]) => {
  const names = FORMAT_NAMES.filter((name) => formats.some((format) => format.name === name));
  return [family, names.sort((a, b) => FORMATS[b].codeBits - FORMATS[a].codeBits)] as const;
}).filter(([, names]) => new Set(names.map((name) => FORMATS[name].codeBits)).size > 1);

let runtime: Runtime;
/** Second pages of every other layer, of its KV heads in turns, [128, 64] each. */
let pages: Readonly<Record<'plain' | 'outliers', Readonly<Record<Side, readonly Float32Array[]>>>>;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
  const { kvHeads } = runtime.model.config;
  const of = async (model: Runtime): Promise<Record<Side, Float32Array[]>> => {
    const layers = await ownRows(model, TOKENS);
    const page = (rows: Float32Array, head: number): Float32Array =>
      Float32Array.from(
        { length: PAGE_TOKENS * D },
        (_, i) => rows[((PAGE_TOKENS + Math.floor(i / D)) * kvHeads + head) * D + (i % D)]!,
      );
    const all = (side: Side): Float32Array[] =>
      layers.flatMap((rows, layer) => (layer % 2 === 0 ? [page(rows[side], (layer / 2) % kvHeads)] : []));
    return { k: all('k'), v: all('v') };
  };
  pages = { plain: await of(runtime), outliers: await of(withOutliers(runtime)) };
});
afterAll(() => runtime.close());

describe.each(FAMILIES)('%s', (_, names) => {
  /** Mean error of some pages by format, widest first. */
  const errors = (rows: readonly Float32Array[], side: Side): { bits: number; name: string; error: number }[] =>
    names
      .filter((name) => servesSide(name, side))
      .map((name) => {
        const codec = CODECS[name] as unknown as ReferenceCodec<Head>;
        const all = rows.map((page) => relativeError(codec.decode(codec.encode(page, D, 0, side)), page));
        return { bits: FORMATS[name].codeBits, name, error: all.reduce((sum, one) => sum + one, 0) / all.length };
      });
  const ordered = (rows: readonly Float32Array[], side: Side, least: number): void => {
    const all = errors(rows, side);
    for (const [at, one] of all.entries())
      for (const wider of all.slice(0, at))
        if (wider.bits > one.bits)
          expect(one.error, `${side}: ${one.name} beside ${wider.name}`).toBeGreaterThan(least * wider.error);
  };

  test('on Gaussian rows and on those with outlier channels', () => {
    for (const side of SIDES) {
      // A bit less is at least a third more error: three quarters of a bit of a Gaussian at high rates would be 1.7.
      ordered([gaussianRows(D, 41), gaussianRows(D, 42)], side, 1.3);
      ordered([awkwardRows('outlier channels', D, 43)], side, 1);
    }
  });

  test('on keys and values of the reference model, with outliers and without', () => {
    for (const kind of ['plain', 'outliers'] as const) for (const side of SIDES) ordered(pages[kind][side], side, 1);
  });
});
