/**
 * Writes ONNX models without a protobuf library; it knows exactly the messages that a dense layer needs.
 * A message is kept as a list of chunks and joined once at the end, so a weight is copied a single time.
 * Field numbers are those of onnx.proto; ir_version 10, opset 21 and com.microsoft 1.
 */
import { assert, KvError } from '../../native/index.ts';

/** The element types in use: their numbers in onnx.proto and their sizes. */
const TYPES = {
  float32: { number: 1, bytes: 4 },
  uint8: { number: 2, bytes: 1 },
  int8: { number: 3, bytes: 1 },
  int32: { number: 6, bytes: 4 },
  int64: { number: 7, bytes: 8 },
} as const;
export type OnnxType = keyof typeof TYPES;

/** Integers and floats are different attribute types in ONNX, so a number must say which it is. */
export type OnnxAttribute = { readonly int: number } | { readonly float: number } | { readonly text: string };

export interface OnnxNode {
  readonly op: string;
  /** '' is ONNX itself. */
  readonly domain?: '' | 'com.microsoft';
  /** An empty name leaves an optional input or output out. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes?: Readonly<Record<string, OnnxAttribute>>;
}

export interface OnnxInitializer {
  readonly name: string;
  readonly type: OnnxType;
  readonly shape: readonly number[];
  /** Little-endian elements, row-major. */
  readonly data: ArrayBufferView;
}

export interface OnnxValue {
  readonly name: string;
  readonly type: OnnxType;
  /** A string is the name of a dynamic axis. */
  readonly shape: readonly (number | string)[];
}

export interface OnnxGraph {
  readonly name: string;
  readonly nodes: readonly OnnxNode[];
  readonly initializers: readonly OnnxInitializer[];
  readonly inputs: readonly OnnxValue[];
  readonly outputs: readonly OnnxValue[];
}

const text = new TextEncoder();

/** A protobuf message under construction: its chunks in order and their total length. */
class Message {
  readonly chunks: Uint8Array[] = [];
  bytes = 0;

  private push(chunk: Uint8Array): void {
    this.chunks.push(chunk);
    this.bytes += chunk.byteLength;
  }

  private raw(value: number): void {
    assert(Number.isSafeInteger(value) && value >= 0, `varint ${value} is not a natural number`);
    const bytes: number[] = [];
    let rest = value;
    while (rest >= 128) {
      bytes.push((rest % 128) + 128);
      rest = Math.floor(rest / 128);
    }
    bytes.push(rest);
    this.push(Uint8Array.from(bytes));
  }

  /** An int64 field; negative values are ten bytes of two's complement. */
  int(field: number, value: number): this {
    this.raw(field * 8);
    if (value >= 0) this.raw(value);
    else {
      const bytes = new Uint8Array(10);
      let rest = BigInt.asUintN(64, BigInt(value));
      for (let i = 0; i < 10; i++, rest >>= 7n) bytes[i] = Number(rest & 127n) | (i < 9 ? 128 : 0);
      this.push(bytes);
    }
    return this;
  }

  float(field: number, value: number): this {
    this.raw(field * 8 + 5);
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setFloat32(0, value, true);
    this.push(bytes);
    return this;
  }

  data(field: number, value: Uint8Array): this {
    this.raw(field * 8 + 2);
    this.raw(value.byteLength);
    this.push(value);
    return this;
  }

  text(field: number, value: string): this {
    return this.data(field, text.encode(value));
  }

  message(field: number, value: Message): this {
    this.raw(field * 8 + 2);
    this.raw(value.bytes);
    for (const chunk of value.chunks) this.push(chunk);
    return this;
  }

  join(): Uint8Array<ArrayBuffer> {
    const joined = new Uint8Array(this.bytes);
    let offset = 0;
    for (const chunk of this.chunks) {
      joined.set(chunk, offset);
      offset += chunk.byteLength;
    }
    return joined;
  }
}

function attributeMessage(name: string, attribute: OnnxAttribute): Message {
  const message = new Message().text(1, name);
  if ('int' in attribute) return message.int(3, attribute.int).int(20, 2);
  if ('float' in attribute) return message.float(2, attribute.float).int(20, 1);
  return message.text(4, attribute.text).int(20, 3);
}

function nodeMessage(node: OnnxNode): Message {
  const message = new Message();
  for (const input of node.inputs) message.text(1, input);
  for (const output of node.outputs) message.text(2, output);
  message.text(4, node.op);
  for (const [name, value] of Object.entries(node.attributes ?? {})) message.message(5, attributeMessage(name, value));
  return node.domain ? message.text(7, node.domain) : message;
}

function initializerMessage({ name, type, shape, data }: OnnxInitializer): Message {
  const elements = shape.reduce((product, size) => product * size, 1);
  const expected = elements * TYPES[type].bytes;
  assert(data.byteLength === expected, `initializer ${name} has ${data.byteLength} bytes, its shape needs ${expected}`);
  const message = new Message();
  for (const size of shape) message.int(1, size);
  return message
    .int(2, TYPES[type].number)
    .text(8, name)
    .data(9, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
}

function valueMessage({ name, type, shape }: OnnxValue): Message {
  const dimensions = new Message();
  for (const size of shape) {
    dimensions.message(1, typeof size === 'number' ? new Message().int(1, size) : new Message().text(2, size));
  }
  const tensor = new Message().int(1, TYPES[type].number).message(2, dimensions);
  return new Message().text(1, name).message(2, new Message().message(1, tensor));
}

/** The bytes of a ModelProto with this graph. Throws KvError 'unsupported' from 2 GiB on, the limit of protobuf. */
export function writeOnnxModel(graph: OnnxGraph): Uint8Array<ArrayBuffer> {
  const body = new Message();
  for (const node of graph.nodes) body.message(1, nodeMessage(node));
  body.text(2, graph.name);
  for (const initializer of graph.initializers) body.message(5, initializerMessage(initializer));
  for (const input of graph.inputs) body.message(11, valueMessage(input));
  for (const output of graph.outputs) body.message(12, valueMessage(output));
  const model = new Message()
    .int(1, 10)
    .text(2, 'palimpsest')
    .message(7, body)
    .message(8, new Message().text(1, '').int(2, 21))
    .message(8, new Message().text(1, 'com.microsoft').int(2, 1));
  if (model.bytes >= 2 ** 31) {
    throw new KvError('unsupported', `the graph '${graph.name}' takes 2 GiB or more, which no ONNX file can hold`, {
      values: { graph: graph.name, bytes: model.bytes },
      hint: "8-bit weights take a quarter: use precision 'auto' for the dense half",
    });
  }
  return model.join();
}
