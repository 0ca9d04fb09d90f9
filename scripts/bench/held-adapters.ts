/**
 * `npm run bench -- held` measures what it costs to hold adapters in 8 bits: divergence from the same adapters in
 * float32, beside what they change. All else is float32. Of the reference model it is the demonstration adapter, which
 * was trained, and a random one of the same size, which says how far random ones stand for trained ones; of SmolLM2
 * they are random. The size of an adapter is the norm of B·A of a matrix over that of the matrix.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readAdapter } from '../../engine/adapters/read.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import { expectedShapes } from '../../engine/transformer/config.ts';
import { createLoopBackend } from '../../engine/transformer/dense-loops.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import type { AdapterMatrix, LoadedModel } from '../../engine/transformer/types.ts';
import { DENSE_SLOTS } from '../../native/index.ts';
import { distributions, divergence, held, LOG } from '../../test/model/held-adapter.ts';
import { normals } from '../../test/native/dense.ts';
import { smallModel } from './small-model.ts';
import { columns, fixed } from './table.ts';

/** Of the text that SmolLM2 reads, some 32 tokens. */
const CHARACTERS = 140;
/** Of the trained one's size, random ones of SmolLM2. */
const PARTS = [1, 1 / 4, 1 / 16];

export interface HeldRow {
  readonly model: string;
  readonly adapter: string;
  readonly size: number;
  /** Nats, between the model and the adapter. */
  readonly changed: number;
  /** Between the adapter and what is held of it. */
  readonly heldCost: number;
}

const squares = (values: Float32Array): number => values.reduce((sum, value) => sum + value * value, 0);

/** The square of the norm of b·a: the sum of the products of bᵀb and a·aᵀ, which are small. */
function addedSquares({ rank, a, b }: AdapterMatrix): number {
  const [inputs, outputs] = [a.length / rank, b.length / rank];
  let total = 0;
  for (let r = 0; r < rank; r++)
    for (let s = 0; s < rank; s++) {
      let [ofA, ofB] = [0, 0];
      for (let i = 0; i < inputs; i++) ofA += a[r * inputs + i]! * a[s * inputs + i]!;
      for (let o = 0; o < outputs; o++) ofB += b[o * rank + r]! * b[o * rank + s]!;
      total += ofA * ofB;
    }
  return total;
}

const weightSquares = ({ weights }: LoadedModel, layer: number, slot: string): number =>
  squares(weights.tensor(`${layer}.${slot}`).readFloat32());

/** The median over matrices. */
function sizeOf(model: LoadedModel, added: readonly AdapterMatrix[]): number {
  const sizes = added.map((one) => Math.sqrt(addedSquares(one) / weightSquares(model, one.layer, one.slot)));
  return sizes.sort((a, b) => a - b)[sizes.length >> 1]!;
}

/** Of all matrices, each of this size. */
function randomAdapter(model: LoadedModel, rank: number, size: number): AdapterMatrix[] {
  const random = seeded(5);
  const shapes = expectedShapes(model.config);
  return Array.from({ length: model.config.layers }, (_, layer) => layer).flatMap((layer) =>
    DENSE_SLOTS.map((slot) => {
      const [outputs = 0, inputs = 0] = shapes.get(`${layer}.${slot}`)!;
      const one = { layer, slot, rank, a: normals(random, rank * inputs), b: normals(random, outputs * rank) };
      const factor = size * Math.sqrt(weightSquares(model, layer, slot) / addedSquares(one));
      return { ...one, b: one.b.map((value) => value * factor) };
    }),
  );
}

type Named = readonly [adapter: string, size: number, added: readonly AdapterMatrix[]];

async function rowsOf(name: string, model: LoadedModel, text: string, adapters: readonly Named[]): Promise<HeldRow[]> {
  const dense = await createLoopBackend(model, { precision: 'exact', threads: 1 });
  try {
    const tokens = model.tokenizer.encode(text);
    const base = await distributions(dense, model, tokens, []);
    const rows: HeldRow[] = [];
    for (const [adapter, size, added] of adapters) {
      const full = await distributions(dense, model, tokens, added);
      const small = await distributions(dense, model, tokens, added.map(held));
      const row = { changed: divergence(base, full), heldCost: divergence(full, small) };
      rows.push({ model: name, adapter, size, ...row });
    }
    return rows;
  } finally {
    await dense.close();
  }
}

export async function heldAdapters(
  say: (line: string) => void,
  { root, json }: { readonly root: string; readonly json: string | null },
): Promise<void> {
  const reference = await loadModel('reference');
  const { added: trained, ranks } = readAdapter(join(root, 'models', 'adapters', 'ships-log'), reference);
  const size = sizeOf(reference, trained);
  const rows = await rowsOf('reference', reference, LOG, [
    [`ships-log, rank ${ranks[1]}`, size, trained],
    [`random, rank ${ranks[1]}`, size, randomAdapter(reference, ranks[1], size)],
  ]);
  const { model, cacheDir } = smallModel(say);
  if (model !== 'reference') {
    const small = await loadModel(model, { cacheDir });
    const text = readFileSync(join(root, 'models', 'text', 'chronicle.txt'), 'utf8').slice(0, CHARACTERS);
    const sizes = PARTS.map((part) => part * size);
    const random = sizes.map((one): Named => ['random, rank 16', one, randomAdapter(small, 16, one)]);
    rows.push(...(await rowsOf(model, small, text, random)));
    small.weights.close();
  }
  reference.weights.close();
  const lines = rows.map(({ model: of, adapter, size: norm, changed, heldCost }) => [
    ...[of, adapter, fixed(norm, 3), changed.toPrecision(3), heldCost.toPrecision(3)],
    fixed((100 * heldCost) / changed, 2, '%'),
  ]);
  for (const line of columns(['model', 'adapter', 'size', 'changes, nats', '8 bits cost', 'of it'], lines)) say(line);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
}
