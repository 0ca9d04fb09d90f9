// Tries the scan of ONNX files: what our writer makes is described rightly and onnxruntime loads it, a hundred hostile
// variants are refused with one error each before anything is allocated, and bytes changed at random never end in
// another one.
import * as ort from 'onnxruntime-node';
import { describe, expect, test } from 'vitest';
import { ONNX_LIMITS, scanOnnx } from '../../../../engine/sidecar/onnx-scan.ts';
import { type OnnxGraph, writeOnnxModel } from '../../../../engine/transformer/onnx-writer.ts';
import { KvError } from '../../../../native/index.ts';
import { seeded } from '../../../random.ts';
import { refusal } from '../../../refusal.ts';

const GRAPH: OnnxGraph = {
  name: 'g',
  nodes: [
    { op: 'MatMul', inputs: ['x', 'w'], outputs: ['y'] },
    { op: 'Softmax', inputs: ['y'], outputs: ['z'], attributes: { axis: { int: -1 } } },
  ],
  initializers: [{ name: 'w', type: 'float32', shape: [3, 2], data: new Float32Array(6).fill(0.5) }],
  inputs: [{ name: 'x', type: 'float32', shape: ['n', 3] }],
  outputs: [{ name: 'z', type: 'float32', shape: ['n', 2] }],
};
const GOOD = writeOnnxModel(GRAPH);

const varint = (value: number): number[] => {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
  return [...bytes, rest];
};
const part = (field: number, body: readonly number[] | string): number[] => {
  const bytes = typeof body === 'string' ? [...Buffer.from(body)] : body;
  return [...varint(field * 8 + 2), ...varint(bytes.length), ...bytes];
};
const int = (field: number, value: number): number[] => [...varint(field * 8), ...varint(value)];

const IR = int(1, 10);
const OPSET = part(8, [...part(1, ''), ...int(2, 21)]);
const OUTPUT = part(12, part(1, 'z'));
const node = (...more: number[][]): number[] =>
  part(1, [...part(1, 'x'), ...part(2, 'z'), ...part(4, 'Relu'), ...more.flat()]);
const graph = (...more: number[][]): number[] => part(7, [...node(), ...OUTPUT, ...more.flat()]);
const model = (...parts: number[][]): Uint8Array => Uint8Array.from(parts.flat());
const within = (...more: number[][]): Uint8Array => model(IR, graph(...more), OPSET);
const tensor = (...fields: number[][]): number[] => part(5, fields.flat());
const FLOATS = int(2, 1);
const HUGE = 2 ** 40;

/** What must be refused, each made from a random number. */
const HOSTILE: Readonly<Record<string, (random: (below: number) => number) => Uint8Array>> = {
  'cut off': (random) => GOOD.subarray(0, random(GOOD.length - 1)),
  'a length beyond the file': (random) => within(part(2, 'n'), [...varint(10 * 8 + 2), ...varint(HUGE + random(9))]),
  'a number without end': (random) => model(IR, [8 * 5, ...Array<number>(11 + random(9)).fill(255)], graph(), OPSET),
  'data in another file': (random) =>
    within(
      tensor(int(1, 1), FLOATS, part(13, [...part(1, 'location'), ...part(2, '../'.repeat(random(9)))]), int(14, 1)),
    ),
  'data said to be elsewhere': (random) =>
    within(tensor(int(1, 1), FLOATS, part(9, [0, 0, 0, 0]), int(14, 1 + random(9)))),
  'operators of a domain of its own': (random) =>
    within(part(1, [...part(4, 'Run'), ...part(7, `evil.${random(99)}`)])),
  'operators of onnxruntime alone': () => within(part(1, [...part(4, 'FusedMatMul'), ...part(7, 'com.microsoft')])),
  'a listed domain': (random) => model(IR, graph(), OPSET, part(8, [...part(1, `evil.${random(99)}`), ...int(2, 1)])),
  'a graph within a graph': (random) => {
    let inner = node();
    for (let depth = 0; depth < 1 + random(300); depth++)
      inner = node(part(5, [...part(1, 'body'), ...part(6, inner)]));
    return within(inner);
  },
  'a list of graphs': () => within(node(part(5, [...part(1, 'bodies'), ...part(11, node())]))),
  functions: () => model(IR, graph(), OPSET, part(25, part(1, 'f'))),
  training: () => model(IR, graph(), OPSET, part(20, graph())),
  'sparse constants': () => within(part(15, tensor(FLOATS))),
  'a shape without its data': (random) => within(tensor(int(1, HUGE + random(9)), int(1, HUGE), FLOATS, part(9, [0]))),
  'a shape beyond all numbers': () => within(tensor(...Array<number[]>(8).fill(int(1, 2 ** 53)), int(1, 0), FLOATS)),
  'floats that are too few': (random) => within(tensor(int(1, 5 + random(99)), FLOATS, part(4, [0, 0, 0, 0]))),
  'a type of data that is text': () => within(tensor(int(1, 1), int(2, 8), part(6, 'x'))),
  'an opset of tomorrow': (random) => model(IR, graph(), part(8, int(2, 25 + random(99)))),
  'two opsets': () => model(IR, graph(), OPSET, part(8, [...part(1, 'ai.onnx'), ...int(2, 9)])),
  'two graphs': () => model(IR, graph(), graph(), OPSET),
  'no graph': () => model(IR, OPSET),
  'no output': () => model(IR, part(7, node()), OPSET),
  'an endless name': (random) => within(node(part(2, 'n'.repeat(1025 + random(99))))),
  'a name that is no text': () => within(node(part(2, [0xc0, 0x80]))),
  'an old group': (random) => within([10 * 8 + 3, ...varint(random(99)), 10 * 8 + 4]),
  'a field that nobody knows': (random) => within(int(200 + random(99), 1)),
  'a sequence of sequences': () => within(part(13, [...part(1, 'v'), ...part(2, part(4, part(1, part(4, []))))])),
  'names without number': () => within(node(...Array<number[]>(1100).fill(part(1, '')))),
  'nodes without number': () => within(...Array<number[]>(ONNX_LIMITS.nodesMax).fill(node())),
  'text instead of a file': () => Buffer.from('{"model": 1}'),
  'nothing at all': () => new Uint8Array(0),
};

describe('what is taken', () => {
  test('a file of our writer is described as it is, and onnxruntime loads it', async () => {
    expect(scanOnnx('good.onnx', GOOD)).toEqual({
      bytes: GOOD.length,
      opset: 21,
      nodes: 2,
      tensors: 1,
      tensorBytes: 24,
      operators: ['MatMul', 'Softmax'],
      inputs: [{ name: 'x', type: 'float32', shape: [null, 3] }],
      outputs: [{ name: 'z', type: 'float32', shape: [null, 2] }],
    });
    await (await ort.InferenceSession.create(GOOD, { logSeverityLevel: 3 })).release();
  });

  test('the least file of this test is taken, so that what is refused is refused for what was done to it', () => {
    expect(scanOnnx('least', within()).operators).toEqual(['Relu']);
    expect(scanOnnx('least', within(tensor(int(1, 1), FLOATS, part(9, [0, 0, 0, 0])))).tensorBytes).toBe(4);
  });
});

describe('what is refused', () => {
  const kinds = Object.entries(HOSTILE);
  const each = Math.ceil(100 / kinds.length);
  test.each(kinds)('%s', (what, make) => {
    for (let seed = 0; seed < each; seed++) {
      const next = seeded(seed);
      const error = refusal(() =>
        scanOnnx(
          'hostile.onnx',
          make((below) => Math.floor(next() * below)),
        ),
      );
      expect(error.code, `${what}, seed ${seed}`).toBe('bad-model');
      expect(error.message).toContain('hostile.onnx');
    }
  });

  test('a file that is larger than what is asked for', () => {
    const limits = { ...ONNX_LIMITS, bytesMax: GOOD.length - 1 };
    expect(refusal(() => scanOnnx('large.onnx', GOOD, limits)).values).toMatchObject({ bytesMax: GOOD.length - 1 });
  });

  test('bytes changed at random are taken or refused, and nothing else', () => {
    const next = seeded(7);
    let refusals = 0;
    for (let round = 0; round < 3000; round++) {
      const bytes = Uint8Array.from(GOOD);
      for (let i = 0; i < 1 + next() * 4; i++) bytes[Math.floor(next() * bytes.length)] = Math.floor(next() * 256);
      try {
        scanOnnx('changed', bytes);
      } catch (error) {
        if (!(error instanceof KvError) || error.code !== 'bad-model') throw error;
        refusals++;
      }
    }
    expect(refusals).toBeGreaterThan(1000);
  });
});
