/**
 * What the helpers see of a text: its bytes, and pairs and triples of them by a hash. The same in JavaScript, for
 * training, and as an ONNX graph, which takes the text as bytes.
 */
import { type OnnxGraph, type OnnxNode, writeOnnxModel } from '../../engine/transformer/onnx-writer.ts';

/** Rows for single bytes, pairs and triples. Primes, so that the remainder takes all bytes into account. */
const [BYTES, PAIRS, TRIPLES] = [256, 1021, 4093] as const;
export const ROWS = BYTES + PAIRS + TRIPLES;
const BASE = 257;

/** How often each row occurs in a text, as shares of all. */
export interface Bag {
  readonly rows: Uint16Array;
  readonly shares: Float32Array;
}

export function bagOf(text: Uint8Array): Bag {
  const counts = new Map<number, number>();
  const count = (row: number): unknown => counts.set(row, (counts.get(row) ?? 0) + 1);
  for (let i = 0; i < text.length; i++) {
    const [a, b, c] = [text[i]!, text[i + 1], text[i + 2]];
    count(a);
    if (b !== undefined) count(BYTES + ((a * BASE + b) % PAIRS));
    if (b !== undefined && c !== undefined) count(BYTES + PAIRS + (((a * BASE + b) * BASE + c) % TRIPLES));
  }
  const total = [...counts.values()].reduce((sum, n) => sum + n, 0);
  return { rows: Uint16Array.from(counts.keys()), shares: Float32Array.from(counts.values(), (n) => n / total) };
}

/** A trained model: table [ROWS, dim]; out [dim, answers] and bias [answers] follow the mean of its rows. */
export interface Trained {
  readonly dim: number;
  readonly table: Float32Array;
  readonly out: Float32Array;
  readonly bias: Float32Array;
}

/** The table in bytes, with one scale for all of it. */
export function inBytes(table: Float32Array): { readonly bytes: Int8Array; readonly scale: number } {
  const most = table.reduce((max, x) => Math.max(max, Math.abs(x)), 0);
  const scale = most / 127;
  return { bytes: Int8Array.from(table, (x) => Math.round(x / scale)), scale };
}

/** text [bytes] → answer [1, answers], behind Softmax or at the length of one. */
export function onnxOf(
  name: string,
  { dim, table, out, bias }: Trained,
  last: 'Softmax' | 'LpNormalization',
): Uint8Array {
  const answers = bias.length;
  const { bytes, scale } = inBytes(table);
  const whole = (id: string, ...values: number[]) =>
    ({ name: id, type: 'int64', shape: [values.length], data: BigInt64Array.from(values, BigInt) }) as const;
  const nodes: OnnxNode[] = [
    { op: 'Cast', inputs: ['text'], outputs: ['b'], attributes: { to: { int: 7 } } },
    // Pairs (a, b) and triples (a, b, c) as the text moved by one and two.
    { op: 'Slice', inputs: ['b', '0', '-1', '0'], outputs: ['a2'] },
    { op: 'Slice', inputs: ['b', '1', 'end', '0'], outputs: ['b2'] },
    { op: 'Mul', inputs: ['a2', 'base'], outputs: ['a2base'] },
    { op: 'Add', inputs: ['a2base', 'b2'], outputs: ['pair'] },
    { op: 'Mod', inputs: ['pair', 'pairs'], outputs: ['pairRest'] },
    { op: 'Add', inputs: ['pairRest', 'pairsFrom'], outputs: ['pairRow'] },
    { op: 'Slice', inputs: ['pair', '0', '-1', '0'], outputs: ['ab'] },
    { op: 'Slice', inputs: ['b2', '1', 'end', '0'], outputs: ['c'] },
    { op: 'Mul', inputs: ['ab', 'base'], outputs: ['abbase'] },
    { op: 'Add', inputs: ['abbase', 'c'], outputs: ['triple'] },
    { op: 'Mod', inputs: ['triple', 'triples'], outputs: ['tripleRest'] },
    { op: 'Add', inputs: ['tripleRest', 'triplesFrom'], outputs: ['tripleRow'] },
    { op: 'Concat', inputs: ['b', 'pairRow', 'tripleRow'], outputs: ['rows'], attributes: { axis: { int: 0 } } },
    { op: 'Gather', inputs: ['table', 'rows'], outputs: ['codes'] },
    { op: 'Cast', inputs: ['codes'], outputs: ['levels'], attributes: { to: { int: 1 } } },
    { op: 'ReduceMean', inputs: ['levels', '0'], outputs: ['mean'], attributes: { keepdims: { int: 1 } } },
    { op: 'MatMul', inputs: ['mean', 'out'], outputs: ['product'] },
    { op: 'Add', inputs: ['product', 'bias'], outputs: ['sum'] },
    { op: last, inputs: ['sum'], outputs: ['answer'], attributes: { axis: { int: -1 } } },
  ];
  const graph: OnnxGraph = {
    name,
    nodes,
    initializers: [
      whole('0', 0),
      whole('1', 1),
      whole('-1', -1),
      whole('end', 2 ** 31),
      whole('base', BASE),
      whole('pairs', PAIRS),
      whole('pairsFrom', BYTES),
      whole('triples', TRIPLES),
      whole('triplesFrom', BYTES + PAIRS),
      { name: 'table', type: 'int8', shape: [ROWS, dim], data: bytes },
      { name: 'out', type: 'float32', shape: [dim, answers], data: out.map((x) => x * scale) },
      { name: 'bias', type: 'float32', shape: [answers], data: bias },
    ],
    inputs: [{ name: 'text', type: 'uint8', shape: ['bytes'] }],
    outputs: [{ name: 'answer', type: 'float32', shape: [1, answers] }],
  };
  return writeOnnxModel(graph);
}
