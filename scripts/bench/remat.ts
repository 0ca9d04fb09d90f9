/**
 * Measures what it costs to recompute the keys and values of a page from layer inputs in 8 or 4 bits, per token and KV
 * head, K and V together.
 */
import {
  decodeLatent,
  encodeLatent,
  type LatentName,
  LatentWeights,
  latentBytes,
  mixLatent,
  PAGE_TOKENS,
} from '../../native/index.ts';
import { type Bench, rowOf } from './bench.ts';
import { type Subject, sideBySide, typical } from './measure.ts';
import { gaussians, SHAPES, type Shape, shapeName } from './shapes.ts';
import { openProducts } from './stream.ts';
import { columns, figure, percent } from './table.ts';

/** How many different pages a pass reads. */
const PAGES = 8;
/** How many rows are compared with the exact result. */
const CHECKED_ROWS = 8;

interface Way {
  readonly what: string;
  readonly format: LatentName;
  readonly planes: 1 | 2;
}
const WAYS: readonly Way[] = [
  { what: 'xq4>f32, int8 weights', format: 'xq4', planes: 1 },
  { what: 'xq3>f32, int8 weights', format: 'xq3', planes: 1 },
  { what: 'xq8>f32, int8 weights', format: 'xq8', planes: 1 },
  { what: 'xq8>f32, int16 weights', format: 'xq8', planes: 2 },
];
const FORMATS: readonly LatentName[] = ['xq4', 'xq3', 'xq8'];

/**
 * The width of latents. They are the layer input itself if there is a KV head for every query head, and otherwise its
 * part in the column space of both projections.
 */
const widthOf = ({ queryHeads, kvHeads, headDim }: Shape): number =>
  queryHeads === kvHeads ? kvHeads * headDim : 2 * kvHeads * headDim;

export async function remat(bench: Bench): Promise<void> {
  const shapes = bench.settings.shapes ?? (bench.settings.full ? SHAPES : SHAPES.slice(0, 3));
  for (const shape of shapes) await rematAt(bench, shape);
}

export async function rematAt(bench: Bench, shape: Shape): Promise<void> {
  const { settings, stream, random } = bench;
  const width = widthOf(shape);
  const outputs = 2 * shape.kvHeads * shape.headDim;
  const w = gaussians(outputs * width, random);
  const weights = new LatentWeights(w, outputs, width);
  const values = new LatentWeights(w.subarray((outputs / 2) * width), outputs / 2, width);
  const rows = gaussians(PAGE_TOKENS * width, random);
  const pages = FORMATS.map((format) => Array.from({ length: PAGES }, () => encodeLatent(format, rows, width)));
  const pagesOf = (format: LatentName): Uint8Array[] => pages[FORMATS.indexOf(format)]!;
  const products = openProducts();
  const peaks: number[] = [];
  const subjects = rematSubjects({
    shape,
    width,
    outputs,
    weights,
    values,
    rows,
    pagesOf,
    onRound: () => peaks.push(products()),
  });
  const { seconds } = await sideBySide(subjects, { stream, threads: 1, rounds: settings.rounds });
  const peak = 1 / typical(peaks.map((rate) => 1 / rate));
  const bits = FORMATS.map(
    (format) => `${format} ${((latentBytes(format, width) * 8) / (PAGE_TOKENS * outputs)).toFixed(2)}`,
  );
  bench.say(
    `\nremat ${shapeName(shape)}, ${width} channels to ${outputs}; bits of an element of K and V: ${bits.join(', ')}`,
  );
  bench.say(
    `  products in registers, same rounds: ${(peak / 1e9).toFixed(0)} Gop/s (goal on an idle core with VNNI: 800 of 1080)`,
  );
  const lines = subjects.map(({ what, operations }, i) => {
    const nsPerToken = (seconds[i]! * 1e9) / (PAGES * PAGE_TOKENS * shape.kvHeads);
    const way = WAYS.find((one) => one.what === what);
    const error = way === undefined ? null : errorOf(weights, way, pagesOf(way.format)[0]!, w, width, outputs);
    // The error comes from rounding the weights, not from the arithmetic, so it is printed but is not part of the row.
    bench.add(rowOf(bench, shape, { bench: 'remat', tokens: PAGE_TOKENS, threads: 1, format: what, nsPerToken }));
    const rate = (operations * PAGES) / seconds[i]!;
    return [
      what,
      figure(nsPerToken),
      figure((seconds[i]! * 1e6) / PAGES),
      operations === 0 ? null : figure(rate / 1e9),
      operations === 0 || peak === 0 ? null : percent(rate / peak),
      error === null ? null : error.toExponential(1),
    ];
  });
  for (const line of columns(['from>to', 'ns/token', 'µs/page', 'Gop/s', 'of registers', 'error'], lines)) {
    bench.say(`  ${line}`);
  }
  weights.close();
  values.close();
}

interface RematSubject extends Subject {
  readonly what: string;
  readonly operations: number;
}

/** One shape's weights and pages. */
interface Latents {
  readonly shape: Shape;
  readonly width: number;
  readonly outputs: number;
  /** Of keys and values, and of values alone. */
  readonly weights: LatentWeights;
  readonly values: LatentWeights;
  readonly rows: Float32Array;
  pagesOf(format: LatentName): Uint8Array[];
  /** Called before each round. */
  onRound(): void;
}

function rematSubjects({ shape, width, outputs, weights, values, rows, pagesOf, onRound }: Latents): RematSubject[] {
  const out = new Float32Array(PAGE_TOKENS * outputs);
  const p = new Float32Array(shape.queryHeads * PAGE_TOKENS).fill(1 / PAGE_TOKENS / PAGES);
  return [
    ...WAYS.map(({ what, format, planes }) => ({
      what,
      operations: 2 * PAGE_TOKENS * width * outputs * planes,
      prepare: onRound,
      run: () => {
        for (const page of pagesOf(format)) weights.materialize(format, page, { planes, out });
      },
    })),
    {
      what: 'V of one query, absorbed (xq4)',
      operations: 0,
      run: () => {
        const mixed = new Float32Array(shape.queryHeads * width);
        for (const page of pagesOf('xq4')) mixLatent('xq4', page, width, p, mixed);
        values.finishMix(mixed);
      },
    },
    ...FORMATS.map((format) => ({
      what: `f32>${format}`,
      operations: 0,
      run: () => {
        for (let page = 0; page < PAGES; page++) encodeLatent(format, rows, width);
      },
    })),
  ];
}

/** The relative L2 error, compared with float64 from the decoded rows. */
function errorOf(
  weights: LatentWeights,
  { format, planes }: Way,
  page: Uint8Array,
  w: Float32Array,
  width: number,
  outputs: number,
): number {
  const got = weights.materialize(format, page, { planes });
  const rows = decodeLatent(format, page, width);
  let wrong = 0;
  let all = 0;
  for (let t = 0; t < CHECKED_ROWS; t++) {
    for (let o = 0; o < outputs; o++) {
      let exact = 0;
      for (let c = 0; c < width; c++) exact += rows[t * width + c]! * w[o * width + c]!;
      wrong += (got[t * outputs + o]! - exact) ** 2;
      all += exact ** 2;
    }
  }
  return Math.sqrt(wrong / all);
}
