/**
 * A whole model whose pages are kept as coded layer inputs (xquant.ts). Pages leave the window as those of any fixed format do. The window is exact, and
 * counted as what waits in it to be coded: the inputs of its tokens in f16, or their parts in the bases. Keys and values of a page are computed again once,
 * when it is coded, and not at every step as a program would have to; nothing is counted for them.
 */
import { f16CacheBytes } from '../../engine/budget.ts';
import { normalized } from '../../engine/latents.ts';
import { RopeTable } from '../../engine/model/rope.ts';
import type { LoadedModel, WeightSource } from '../../engine/model/types.ts';
import type { Runtime } from '../../engine/runtime.ts';
import { KvError, movablePages, openKvCache, openPool, PAGE_TOKENS, SINK_TOKENS } from '../../native/index.ts';
import { readThrough, type YardstickRead } from './read.ts';
import { type LayerCode, layerCodes, Projection, type XQuant } from './xquant.ts';

interface Layer {
  readonly gains: Float32Array;
  readonly projection: Projection;
  readonly kBias: Float32Array | null;
  readonly vBias: Float32Array | null;
}

/** Keys, rotated, and values of all tokens, [T, nd], and the normed inputs of pages in the window. */
interface Kept {
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly inputs: Map<number, Float32Array>;
}

/** Reads tokens under the method. Throws 'unsupported' for models that normalise their keys. */
export async function rematerialized(
  runtime: Runtime,
  ids: readonly number[],
  method: XQuant,
  scored: number,
): Promise<YardstickRead> {
  const { model, shape, threads } = runtime;
  const { config } = model;
  const { kvHeads, headDim, hiddenSize: m, normEpsilon, slidingWindow } = config;
  const nd = kvHeads * headDim;
  const layers = layersOf(runtime, method);
  const codes = layerCodes(
    layers.map(({ projection }) => projection),
    method,
  );
  const rope = new RopeTable(config, ids.length);
  const kept = layers.map(
    (): Kept => ({
      k: new Float32Array(ids.length * nd),
      v: new Float32Array(ids.length * nd),
      inputs: new Map(),
    }),
  );
  let coded = 0;
  const codeUntil = (pages: number): void => {
    for (; coded < pages; coded++) {
      const first = coded === 0 ? SINK_TOKENS : 0;
      for (const [layer, { k, v, inputs }] of kept.entries()) {
        const remade = codes[layer]!.remake(inputs.get(coded)!, first);
        inputs.delete(coded);
        addTo(remade.k, layers[layer]!.kBias);
        addTo(remade.v, layers[layer]!.vBias);
        rope.apply(remade.k, PAGE_TOKENS, kvHeads, coded * PAGE_TOKENS);
        const place = (coded * PAGE_TOKENS + first) * nd;
        k.set(remade.k.subarray(first * nd), place);
        v.set(remade.v.subarray(first * nd), place);
      }
    }
  };
  let bytes = 0;
  const held = (tokens: number): number => heldBytes(codes, tokens, coded, nd);
  const pool = openPool(2 ** 40);
  try {
    const hidden = await readThrough(runtime, {
      ids,
      rope,
      scored,
      stride: (start) => PAGE_TOKENS - (start % PAGE_TOKENS),
      before: (start) => {
        bytes = Math.max(bytes, held(start));
        codeUntil(movablePages(start));
      },
      attend: ({ layer, tokens, q, k, v, x }, start, out) => {
        const own = kept[layer]!;
        own.k.set(k.subarray(0, tokens * nd), start * nd);
        own.v.set(v.subarray(0, tokens * nd), start * nd);
        own.inputs.set(
          start / PAGE_TOKENS,
          normalized(x.subarray(0, tokens * m), tokens, layers[layer]!.gains, normEpsilon),
        );
        const cache = openKvCache({
          shape: { ...shape, layers: 1 },
          pool,
          windowFormat: 'f16',
          slidingWindow: [slidingWindow[layer] ?? null],
          threads,
        });
        try {
          cache.append(0, own.k.subarray(0, (start + tokens) * nd), own.v.subarray(0, (start + tokens) * nd));
          cache.attend(0, q.subarray(0, out.length), out);
        } finally {
          cache.close();
        }
      },
    });
    bytes = Math.max(bytes, held(ids.length));
    codeUntil(movablePages(ids.length));
    const bytesF16 = f16CacheBytes(shape, ids.length);
    return { hidden, bytes, bytesAtRest: held(ids.length), bytesF16, code: null };
  } finally {
    pool.close();
  }
}

/** Coded pages, sinks as keys and values, and the inputs of the rest, both in f16. */
const heldBytes = (codes: readonly LayerCode[], tokens: number, coded: number, nd: number): number =>
  codes.reduce(
    (sum, { width, pageBytes }) =>
      sum + coded * pageBytes + 4 * nd * Math.min(SINK_TOKENS, tokens) + 2 * width * (tokens - coded * PAGE_TOKENS),
    0,
  );

/** Layers of a model, with gains as part of the weights or not, because bases take minutes. */
const known = new WeakMap<WeightSource, Map<boolean, readonly Layer[]>>();

function layersOf({ model }: Runtime, { variant }: XQuant): readonly Layer[] {
  const { name, config, weights } = model;
  if (config.qkNorm)
    throw new KvError('unsupported', `${name} normalises its keys, so they are no product with inputs`);
  const isChain = variant === 'cl';
  const found = known.get(weights) ?? new Map<boolean, readonly Layer[]>();
  known.set(weights, found);
  const layers = found.get(isChain) ?? readLayers(model, isChain);
  found.set(isChain, layers);
  return layers;
}

function readLayers({ config, weights }: LoadedModel, isChain: boolean): Layer[] {
  const m = config.hiddenSize;
  const read = (of: string): Float32Array => weights.tensor(of).readFloat32();
  const bias = (of: string): Float32Array | null => (weights.has(of) ? read(of) : null);
  return Array.from({ length: config.layers }, (_, layer) => {
    const norm = read(`${layer}.attnNorm`);
    const folded = (w: Float32Array): Float32Array => (isChain ? w.map((one, i) => one * norm[i % m]!) : w);
    return {
      gains: isChain ? new Float32Array(m).fill(1) : norm,
      projection: new Projection(m, folded(read(`${layer}.k`)), folded(read(`${layer}.v`))),
      kBias: bias(`${layer}.k.bias`),
      vBias: bias(`${layer}.v.bias`),
    };
  });
}

function addTo(rows: Float32Array, bias: Float32Array | null): void {
  if (bias !== null) for (let i = 0; i < rows.length; i++) rows[i]! += bias[i % bias.length]!;
}
