/**
 * Looks through an ONNX file before onnxruntime sees it, and refuses what a helper has no use for: data in other files,
 * operators that do not belong to ONNX, graphs within graphs (If, Loop, Scan), functions, training, sparse tensors.
 * Nothing is allocated by what the file says: messages are walked in place, and every length must lie within the
 * message around it. Field numbers are those of onnx.proto. It does not say that a graph is harmless: what one may
 * take is bounded by the process that runs it.
 */
import { KvError } from '../../native/index.ts';

/** What a file may be at most. */
export interface OnnxLimits {
  readonly bytesMax: number;
  readonly nodesMax: number;
  /** Constant tensors. */
  readonly tensorsMax: number;
}

export const ONNX_LIMITS: OnnxLimits = { bytesMax: 256 * 2 ** 20, nodesMax: 10_000, tensorsMax: 10_000 };

/** A tensor that goes in or comes out, as the file declares it. */
export interface OnnxDeclared {
  readonly name: string;
  /** Of its elements; '': none of those that are known here, or none is declared. */
  readonly type: string;
  /** null: an axis of any length. The whole is null where no shape is declared. */
  readonly shape: readonly (number | null)[] | null;
}

/** What a file turned out to be. */
export interface OnnxFacts {
  readonly bytes: number;
  /** Of ONNX itself. */
  readonly opset: number;
  readonly nodes: number;
  readonly tensors: number;
  /** Bytes of its constant tensors. */
  readonly tensorBytes: number;
  /** Operators in use, in alphabetical order. */
  readonly operators: readonly string[];
  /** The tensors that it is given. */
  readonly inputs: readonly OnnxDeclared[];
  /** Those that it answers with. */
  readonly outputs: readonly OnnxDeclared[];
}

/** Versions that onnxruntime 1.30 reads, and that our files and usual exporters write. */
const IR_VERSIONS = [3, 13] as const;
const OPSETS = [7, 24] as const;
/** Domains of operators that belong to ONNX itself. */
const OWN_DOMAINS: ReadonlySet<string> = new Set(['', 'ai.onnx']);
/** Domains that a file may list: those of onnxruntime are listed by its tools whether or not they are used. */
const LISTED_DOMAINS: ReadonlySet<string> = new Set([...OWN_DOMAINS, 'ai.onnx.ml', 'com.microsoft']);
/** Longest name; those of exporters have up to 200 characters. */
const NAME_BYTES_MAX = 1024;
/** Names that one node takes and gives. */
const NODE_NAMES_MAX = 1024;
/** Axes of a tensor. */
const AXES_MAX = 8;
/** Types of elements, by their numbers in onnx.proto. */
const ELEMENTS: Readonly<Record<number, { readonly name: string; readonly bytes: number }>> = {
  1: { name: 'float32', bytes: 4 },
  2: { name: 'uint8', bytes: 1 },
  3: { name: 'int8', bytes: 1 },
  4: { name: 'uint16', bytes: 2 },
  5: { name: 'int16', bytes: 2 },
  6: { name: 'int32', bytes: 4 },
  7: { name: 'int64', bytes: 8 },
  9: { name: 'bool', bytes: 1 },
  10: { name: 'float16', bytes: 2 },
  11: { name: 'float64', bytes: 8 },
  16: { name: 'bfloat16', bytes: 2 },
};

const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5] as const;
type Wire = typeof VARINT | typeof FIXED64 | typeof BYTES | typeof FIXED32;

/** One field of a message: a number, or where its bytes lie. */
interface Field {
  readonly number: number;
  readonly wire: Wire;
  /** Of a varint. */
  readonly value: number;
  readonly from: number;
  readonly to: number;
}

/** What may stand in a message, by field number. */
type Rules = Readonly<Record<number, { readonly wire: Wire | 'packed'; readonly once?: boolean }>>;

const once = (wire: Wire): Rules[number] => ({ wire, once: true });
const many = (wire: Wire | 'packed'): Rules[number] => ({ wire });
const INT = once(VARINT);
const TEXT = once(BYTES);
const PART = many(BYTES);

/** Everything else is refused: training_info and functions of a model, sparse initializers of a graph, … */
const MODEL: Rules = { 1: INT, 2: TEXT, 3: TEXT, 4: TEXT, 5: INT, 6: TEXT, 7: TEXT, 8: PART, 14: PART };
const OPSET: Rules = { 1: TEXT, 2: INT };
const GRAPH: Rules = { 1: PART, 2: TEXT, 5: PART, 10: TEXT, 11: PART, 12: PART, 13: PART, 14: PART, 16: PART };
const NODE: Rules = { 1: PART, 2: PART, 3: TEXT, 4: TEXT, 5: PART, 6: TEXT, 7: TEXT, 8: TEXT, 9: PART };
/** 6 and 11 would be graphs, 14 and 15 types, 21 refers to a function, 22 and 23 are sparse. */
const ATTRIBUTE: Rules = {
  1: TEXT,
  2: once(FIXED32),
  3: INT,
  4: TEXT,
  5: TEXT,
  7: many('packed'),
  8: many('packed'),
  9: PART,
  10: PART,
  13: TEXT,
  20: INT,
};
/** 3 would be a segment of a tensor, 13 says where its data are; 14 that they are elsewhere, unless it is 0. */
const TENSOR: Rules = {
  1: many('packed'),
  2: INT,
  4: many('packed'),
  5: many('packed'),
  7: many('packed'),
  8: TEXT,
  9: TEXT,
  10: many('packed'),
  11: many('packed'),
  12: TEXT,
  14: INT,
  16: PART,
};
const VALUE: Rules = { 1: TEXT, 2: TEXT, 3: TEXT, 4: PART };
/** 4, 5, 8 and 9 would be sequences, maps, sparse and optional values, which may hold each other without end. */
const TYPE: Rules = { 1: TEXT, 6: TEXT };
const TENSOR_TYPE: Rules = { 1: INT, 2: TEXT };
const SHAPE: Rules = { 1: PART };
const AXIS: Rules = { 1: INT, 2: TEXT, 3: TEXT };

const text = new TextDecoder('utf-8', { fatal: true });

class Scan {
  readonly #name: string;
  readonly #bytes: Uint8Array;
  readonly #limits: OnnxLimits;
  readonly #operators = new Set<string>();
  #nodes = 0;
  #tensors = 0;
  #tensorBytes = 0;

  constructor(name: string, bytes: Uint8Array, limits: OnnxLimits) {
    this.#name = name;
    this.#bytes = bytes;
    this.#limits = limits;
  }

  model(): OnnxFacts {
    const { length: bytes } = this.#bytes;
    const { bytesMax } = this.#limits;
    if (bytes > bytesMax) this.#refuse(`has ${bytes} bytes, at most ${bytesMax} are taken`, { bytes, bytesMax });
    let graph: Field | null = null;
    let irVersion = 0;
    const opsets = new Map<string, number>();
    for (const field of this.#fields(0, bytes, MODEL, 'model')) {
      if (field.number === 1) irVersion = field.value;
      if (field.number === 7) graph = field;
      if (field.number === 8) this.#opset(field, opsets);
    }
    if (graph === null) this.#refuse('has no graph, so it is no ONNX model', { bytes });
    this.#within(irVersion, IR_VERSIONS, 'is of IR version');
    const opset = opsets.get('') ?? 0;
    this.#within(opset, OPSETS, 'is of opset');
    const { inputs, outputs } = this.#graph(graph!);
    return {
      bytes,
      opset,
      nodes: this.#nodes,
      tensors: this.#tensors,
      tensorBytes: this.#tensorBytes,
      operators: [...this.#operators].sort(),
      inputs,
      outputs,
    };
  }

  #opset(at: Field, opsets: Map<string, number>): void {
    let domain = '';
    let version = 0;
    for (const field of this.#fields(at.from, at.to, OPSET, 'opset')) {
      if (field.number === 1) domain = this.#textOf(field, 'domain');
      else version = field.value;
    }
    if (!LISTED_DOMAINS.has(domain)) this.#refuse(`asks for operators of '${domain}'`, { domain });
    const known = OWN_DOMAINS.has(domain) ? '' : domain;
    if (opsets.has(known)) this.#refuse(`lists the opset of '${domain}' twice`, { domain });
    opsets.set(known, version);
  }

  #graph({ from, to }: Field): Pick<OnnxFacts, 'inputs' | 'outputs'> {
    const inputs: OnnxDeclared[] = [];
    const outputs: OnnxDeclared[] = [];
    for (const field of this.#fields(from, to, GRAPH, 'graph')) {
      if (field.number === 1) this.#node(field);
      if (field.number === 5) this.#tensor(field);
      if (field.number === 11) inputs.push(this.#value(field));
      if (field.number === 12) outputs.push(this.#value(field));
      if (field.number === 13) this.#value(field);
      if (inputs.length + outputs.length > NODE_NAMES_MAX) this.#refuse('takes and gives too many tensors', {});
    }
    if (this.#nodes === 0 || outputs.length === 0) this.#refuse('computes nothing', { nodes: this.#nodes });
    return { inputs, outputs };
  }

  #node({ from, to }: Field): void {
    if (++this.#nodes > this.#limits.nodesMax) this.#refuse('has too many nodes', { nodesMax: this.#limits.nodesMax });
    let operator = '';
    let domain = '';
    let names = 0;
    for (const field of this.#fields(from, to, NODE, 'node')) {
      if (field.number === 1 || field.number === 2) {
        this.#textOf(field, 'name');
        if (++names > NODE_NAMES_MAX) this.#refuse('has a node of too many names', { namesMax: NODE_NAMES_MAX });
      }
      if (field.number === 4) operator = this.#textOf(field, 'operator');
      if (field.number === 5) this.#attribute(field);
      if (field.number === 7) domain = this.#textOf(field, 'domain');
    }
    if (!OWN_DOMAINS.has(domain))
      this.#refuse(`uses the operator ${operator} of '${domain}', which is not ONNX's own`, { operator, domain });
    if (operator === '') this.#refuse('has a node without an operator', {});
    this.#operators.add(operator);
  }

  #attribute({ from, to }: Field): void {
    for (const field of this.#fields(from, to, ATTRIBUTE, 'attribute'))
      if (field.number === 5 || field.number === 10) this.#tensor(field);
  }

  #tensor({ from, to }: Field): void {
    const { tensorsMax } = this.#limits;
    if (++this.#tensors > tensorsMax) this.#refuse('has too many constant tensors', { tensorsMax });
    const dims: number[] = [];
    let type = 0;
    let raw: number | null = null;
    let typed = 0;
    for (const field of this.#fields(from, to, TENSOR, 'tensor')) {
      if (field.number === 1) this.#dims(field, dims);
      if (field.number === 2) type = field.value;
      if (field.number === 9) raw = field.to - field.from;
      if ([4, 5, 7, 10, 11].includes(field.number)) typed += Math.max(1, field.to - field.from);
      if (field.number === 14 && field.value !== 0) this.#refuse('has data outside of the file', {});
    }
    const each = ELEMENTS[type]?.bytes;
    if (each === undefined) this.#refuse(`has a tensor of the data type ${type}, which is not taken`, { type });
    const elements = dims.reduce((product, dim) => product * dim, 1);
    // Numbers that are spelled one by one take a byte each at least, so a tensor never is larger than its file by more
    // than eight times.
    const most = raw === null ? typed : raw / each!;
    const isRight = raw === null ? elements <= most : elements === most && typed === 0;
    if (!isRight) this.#refuse('has a tensor whose data do not fit its shape', { shape: dims.join('×'), elements });
    this.#tensorBytes += elements * each!;
  }

  /** A list of sizes, as one field for all or as one for each. */
  #dims(field: Field, dims: number[]): void {
    if (field.wire === VARINT) dims.push(field.value);
    else
      for (let at = field.from; at < field.to; ) {
        const [value, next] = this.#varint(at, field.to);
        dims.push(value);
        at = next;
        if (dims.length > AXES_MAX) break;
      }
    if (dims.length > AXES_MAX) this.#refuse(`has a tensor of more than ${AXES_MAX} axes`, { axesMax: AXES_MAX });
  }

  /** → a tensor that goes in or comes out */
  #value({ from, to }: Field): OnnxDeclared {
    let value: OnnxDeclared = { name: '', type: '', shape: null };
    for (const field of this.#fields(from, to, VALUE, 'value')) {
      if (field.number === 1) value = { ...value, name: this.#textOf(field, 'name') };
      if (field.number === 2)
        for (const part of this.#fields(field.from, field.to, TYPE, 'type'))
          if (part.number === 1) value = { ...value, ...this.#tensorType(part) };
    }
    return value;
  }

  #tensorType({ from, to }: Field): Pick<OnnxDeclared, 'type' | 'shape'> {
    let type = '';
    let shape: (number | null)[] | null = null;
    for (const field of this.#fields(from, to, TENSOR_TYPE, 'type of a tensor')) {
      if (field.number === 1) type = ELEMENTS[field.value]?.name ?? '';
      else shape = [...this.#fields(field.from, field.to, SHAPE, 'shape')].map((axis) => this.#axis(axis));
      if (shape !== null && shape.length > AXES_MAX)
        this.#refuse(`has a tensor of more than ${AXES_MAX} axes`, { axesMax: AXES_MAX });
    }
    return { type, shape };
  }

  /** → its length; null: any */
  #axis({ from, to }: Field): number | null {
    let length: number | null = null;
    for (const field of this.#fields(from, to, AXIS, 'axis')) if (field.number === 1) length = field.value;
    return length;
  }

  *#fields(from: number, to: number, rules: Rules, what: string): Generator<Field, void, undefined> {
    const seen = new Set<number>();
    for (let at = from; at < to; ) {
      const [key, start] = this.#varint(at, to);
      const [number, wire] = [Math.floor(key / 8), key % 8];
      const rule = rules[number];
      if (rule === undefined) this.#refuse(`has field ${number} in a ${what}, which is not taken`, { at, number });
      if (rule!.wire === 'packed' ? ![VARINT, FIXED64, BYTES, FIXED32].includes(wire as Wire) : wire !== rule!.wire)
        this.#refuse(`has field ${number} of a ${what} in another form`, { at, number, wire });
      if (rule!.once === true && seen.has(number))
        this.#refuse(`has field ${number} of a ${what} twice`, { at, number });
      seen.add(number);
      const field = this.#field(number, wire as Wire, start, to);
      yield field;
      at = field.to;
    }
  }

  #field(number: number, wire: Wire, start: number, to: number): Field {
    if (wire === VARINT) {
      const [value, next] = this.#varint(start, to);
      return { number, wire, value, from: start, to: next };
    }
    const [length, from] = wire === BYTES ? this.#varint(start, to) : ([wire === FIXED64 ? 8 : 4, start] as const);
    if (length > to - from) this.#refuse('ends within a field, or a length in it is wrong', { at: start, length });
    return { number, wire, value: 0, from, to: from + length };
  }

  /** → value and where it ends. What is above 2^53, as negative numbers are, is only nearly right: no length is. */
  #varint(at: number, to: number): readonly [number, number] {
    let value = 0;
    for (let place = 0; place < 10; place++) {
      if (at + place >= to) break;
      const byte = this.#bytes[at + place]!;
      value += (byte % 128) * 2 ** (7 * place);
      if (byte < 128) return [value, at + place + 1];
    }
    return this.#refuse('ends within a number, or a number in it is too long', { at });
  }

  #textOf({ from, to }: Field, what: string): string {
    if (to - from > NAME_BYTES_MAX) this.#refuse(`has a ${what} of ${to - from} bytes`, { bytesMax: NAME_BYTES_MAX });
    try {
      return text.decode(this.#bytes.subarray(from, to));
    } catch {
      return this.#refuse(`has a ${what} that is no text`, { at: from });
    }
  }

  #within(value: number, [least, most]: readonly [number, number], what: string): void {
    if (value < least || value > most) this.#refuse(`${what} ${value}; ${least} to ${most} are taken`, { value });
  }

  #refuse(what: string, values: Readonly<Record<string, unknown>>): never {
    throw new KvError('bad-model', `the ONNX file ${this.#name} ${what}`, {
      values: { file: this.#name, ...values },
      hint: 'a helper is one graph of operators of ONNX itself, in one file that holds all its data',
    });
  }
}

/**
 * → what an ONNX file is. name: of the file, for messages. Throws 'bad-model' for one that is damaged, too large, or
 * has what no helper needs.
 */
export function scanOnnx(name: string, bytes: Uint8Array, limits: OnnxLimits = ONNX_LIMITS): OnnxFacts {
  return new Scan(name, bytes, limits).model();
}
