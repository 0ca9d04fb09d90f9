// Tries the protobuf writer twice: byte by byte against messages written out by hand from the protobuf encoding rules,
// and by letting ONNX Runtime load a model that uses every kind of attribute, element type and dynamic axis.
import * as ort from 'onnxruntime-node';
import { describe, expect, test } from 'vitest';
import { type OnnxGraph, writeOnnxModel } from '../../../../engine/transformer/onnx-writer.ts';

const EMPTY: OnnxGraph = { name: 'g', nodes: [], initializers: [], inputs: [], outputs: [] };
/** Field number and wire type as protobuf writes them. */
const tag = (field: number, wire: number): number => field * 8 + wire;
const ascii = (text: string): number[] => [...text].map((letter) => letter.charCodeAt(0));
const text = (field: number, value: string): number[] => [tag(field, 2), value.length, ...ascii(value)];
const length = (bytes: number): number[] => (bytes < 128 ? [bytes] : [(bytes % 128) + 128, bytes >> 7]);
const message = (field: number, body: readonly number[]): number[] => [tag(field, 2), ...length(body.length), ...body];

/** ir_version 10, producer, graph, opset 21 of '' and 1 of com.microsoft. */
function model(graph: readonly number[]): number[] {
  return [
    ...[tag(1, 0), 10],
    ...text(2, 'palimpsest'),
    ...message(7, graph),
    ...message(8, [...text(1, ''), tag(2, 0), 21]),
    ...message(8, [...text(1, 'com.microsoft'), tag(2, 0), 1]),
  ];
}

describe('bytes', () => {
  test('an empty graph', () => {
    expect([...writeOnnxModel(EMPTY)]).toEqual(model(text(2, 'g')));
  });

  test('a node with attributes; negative integers are ten bytes', () => {
    const attributes = { axis: { int: -1 }, alpha: { float: 1 }, mode: { text: 'ab' } };
    const node = { op: 'Op', domain: 'com.microsoft', inputs: ['x', ''], outputs: ['y'], attributes } as const;
    const written = [...writeOnnxModel({ ...EMPTY, nodes: [node] })];
    const expected = [
      ...[...text(1, 'x'), ...text(1, ''), ...text(2, 'y'), ...text(4, 'Op')],
      ...message(5, [...text(1, 'axis'), tag(3, 0), ...Array(9).fill(255), 1, ...[160, 1], 2]),
      ...message(5, [...text(1, 'alpha'), tag(2, 5), 0, 0, 128, 63, ...[160, 1], 1]),
      ...message(5, [...text(1, 'mode'), ...text(4, 'ab'), ...[160, 1], 3]),
      ...text(7, 'com.microsoft'),
    ];
    expect(written).toEqual(model([...message(1, expected), ...text(2, 'g')]));
  });

  test('an initializer keeps the bytes of a view, not of its buffer', () => {
    const data = new Uint8Array([9, 9, 1, 2, 3, 9]).subarray(2, 5);
    const written = writeOnnxModel({ ...EMPTY, initializers: [{ name: 'w', type: 'uint8', shape: [1, 3], data }] });
    const tensor = [tag(1, 0), 1, tag(1, 0), 3, tag(2, 0), 2, ...text(8, 'w'), tag(9, 2), 3, 1, 2, 3];
    expect([...written]).toEqual(model([...text(2, 'g'), ...message(5, tensor)]));
  });

  test('a shape that does not fit its data is our own mistake', () => {
    const initializers = [{ name: 'w', type: 'float32', shape: [2, 2], data: new Float32Array(3) } as const];
    expect(() => writeOnnxModel({ ...EMPTY, initializers })).toThrow(/12 bytes, its shape needs 16/);
  });
});

test('2 GiB are refused before anything is copied', () => {
  const data = new Uint8Array(2 ** 26);
  const initializers = Array.from(
    { length: 32 },
    (_, i) => ({ name: `w${i}`, type: 'uint8', shape: [2 ** 26], data }) as const,
  );
  const before = process.memoryUsage().arrayBuffers;
  expect(() => writeOnnxModel({ ...EMPTY, initializers })).toThrow(expect.objectContaining({ code: 'unsupported' }));
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(2 ** 20);
});

describe('ONNX Runtime reads it', () => {
  test('dynamic rows, float and integer weights, optional inputs, all attribute kinds', async () => {
    const written = writeOnnxModel({
      name: 'everything',
      nodes: [
        {
          op: 'Gemm',
          inputs: ['x', 'w', 'b'],
          outputs: ['gemm'],
          attributes: { transB: { int: 1 }, alpha: { float: 2 } },
        },
        { op: 'Reshape', inputs: ['gemm', 'shape'], outputs: ['pairs'] },
        { op: 'ReduceSum', inputs: ['pairs', 'axes'], outputs: ['sums'], attributes: { keepdims: { int: 0 } } },
        { op: 'Transpose', inputs: ['sums'], outputs: ['swapped'] },
        {
          op: 'QuickGelu',
          domain: 'com.microsoft',
          inputs: ['swapped'],
          outputs: ['y'],
          attributes: { alpha: { float: 0 } },
        },
      ],
      initializers: [
        { name: 'w', type: 'float32', shape: [4, 2], data: Float32Array.of(1, 0, 0, 1, 1, 1, 2, -1) },
        { name: 'b', type: 'float32', shape: [4], data: Float32Array.of(0, 1, 2, 3) },
        { name: 'shape', type: 'int64', shape: [3], data: BigInt64Array.of(0n, 2n, -1n) },
        { name: 'axes', type: 'int64', shape: [1], data: BigInt64Array.of(-1n) },
      ],
      inputs: [{ name: 'x', type: 'float32', shape: ['T', 2] }],
      outputs: [{ name: 'y', type: 'float32', shape: [2, 'T'] }],
    });
    const session = await ort.InferenceSession.create(written, { logSeverityLevel: 3 });
    for (const rows of [1, 3]) {
      const x = Float32Array.from({ length: rows * 2 }, (_, i) => i + 1);
      const { y } = await session.run({ x: new ort.Tensor('float32', x, [rows, 2]) });
      // Row (a, b): 2·(a, b, a+b, 2a−b) + (0, 1, 2, 3), pair sums 2a+2b+1 and 6a+5; alpha 0 halves.
      const firsts = Array.from({ length: rows }, (_, t) => (2 * x[2 * t]! + 2 * x[2 * t + 1]! + 1) / 2);
      const seconds = Array.from({ length: rows }, (_, t) => (6 * x[2 * t]! + 5) / 2);
      expect(y!.dims).toEqual([2, rows]);
      expect([...(y!.data as Float32Array)]).toEqual([...firsts, ...seconds]);
    }
    await session.release();
  });
});
