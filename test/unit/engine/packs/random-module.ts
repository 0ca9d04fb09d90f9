/**
 * Modules from a seed, as element-wise kernels: variables of each type, memory, ifs, blocks, loops that end, tables of
 * branches, calls (each function calls those behind it, and itself a few times), bytes that are filled and copied, and
 * vectors. No number of floats is seen but as a whole one, so that results do not depend on the bits of NaN.
 */
import { unsigned } from '../../../../engine/packs/instrument.ts';
import { assemble, F32, type Helper, I32, I64, i32, type Locals, V128 } from './assemble.ts';

const HELPERS = 4;
/** Variables of functions: parameters a and b, then of i32, i64, f32 and v128, then counters of loops. */
const LOCALS: Locals = [
  [4, I32],
  [2, I64],
  [2, F32],
  [2, V128],
  [8, I32],
];
const TYPES = { i32: 0, i64: 4, f32: 6, v128: 8, counter: 10 } as const;
type Type = 'i32' | 'i64' | 'f32' | 'v128';

class Writer {
  readonly #random: () => number;
  /** Of the function that is written. */
  readonly #index: number;
  readonly #first: number;
  readonly #parameters: number;
  #loops = 0;
  #left = 60;

  constructor(random: () => number, index: number, parameters: number, first: number) {
    this.#random = random;
    this.#index = index;
    this.#parameters = parameters;
    this.#first = first;
  }

  #below(count: number): number {
    return Math.floor(this.#random() * count);
  }

  #one<T>(list: readonly T[]): T {
    return list[this.#below(list.length)]!;
  }

  #variable(type: Type): number {
    return this.#parameters + TYPES[type] + this.#below(type === 'i32' ? 4 : 2);
  }

  /** An address of 1 KiB of memory, for at most 16 bytes. */
  #address(): number[] {
    return [...this.value('i32', 1), ...i32(0x3f0), 0x71, ...i32(0x400), 0x6a];
  }

  value(type: Type, depth: number): number[] {
    if (depth <= 0) return this.#leaf(type);
    const two = (ops: readonly number[], of: Type = type): number[] => [
      ...this.value(of, depth - 1),
      ...this.value(of, depth - 1),
      this.#one(ops),
    ];
    const vector = (ops: readonly number[]): number[] => {
      return [...this.value('v128', depth - 1), ...this.value('v128', depth - 1), 0xfd, ...unsigned(this.#one(ops))];
    };
    const choices: Readonly<Record<Type, readonly (() => number[])[]>> = {
      i32: [
        () => two([0x6a, 0x6b, 0x6c, 0x71, 0x72, 0x73, 0x74, 0x76, 0x77]),
        () => two([0x46, 0x48, 0x4b]),
        () => two([0x51, 0x53], 'i64'),
        () => [...this.#address(), 0x28, 0, 0],
        () => [...this.#address(), 0x2d, 0, 0],
        () => [...this.value('i64', depth - 1), 0xa7],
        () => [...this.value('f32', depth - 1), 0xfc, 0x00],
        () => [...this.value('v128', depth - 1), 0xfd, 0x1b, this.#below(4)],
        () => this.#chosen(depth),
      ],
      i64: [
        () => two([0x7c, 0x7d, 0x7e, 0x83, 0x85]),
        () => [...this.value('i32', depth - 1), 0xac],
        () => [...this.#address(), 0x29, 0, 0],
      ],
      f32: [() => two([0x92, 0x93, 0x94, 0x96]), () => [...this.value('i32', depth - 1), 0xb2]],
      v128: [
        () => vector([0x4e, 0x50, 0x51, 0x6e, 0x71, 0xae, 0xb1, 0x0e]),
        () => [...this.value('i32', depth - 1), 0xfd, this.#one([0x0f, 0x10, 0x11])],
        () => [...this.#address(), 0xfd, 0, 0, 0],
        () => this.#shuffled(depth),
      ],
    };
    return this.#one(choices[type])();
  }

  #chosen(depth: number): number[] {
    return [...this.value('i32', depth - 1), ...this.value('i32', depth - 1), ...this.value('i32', depth - 1), 0x1b];
  }

  #shuffled(depth: number): number[] {
    const lanes = Array.from({ length: 16 }, () => this.#below(32));
    return [...this.value('v128', depth - 1), ...this.value('v128', depth - 1), 0xfd, 0x0d, ...lanes];
  }

  #leaf(type: Type): number[] {
    if (this.#random() < 0.6) return [0x20, this.#variable(type)];
    if (type === 'i32') return i32(this.#below(2 ** 16) - 2 ** 15);
    if (type === 'i64') return [0x42, this.#below(64)];
    if (type === 'f32') return [0x43, ...new Uint8Array(Float32Array.of(this.#below(1000) / 8).buffer)];
    return [0xfd, 0x0c, ...Array.from({ length: 16 }, () => this.#below(256))];
  }

  /** labels: blocks around whose ends can be gone to. */
  statements(count: number, labels: number): number[] {
    const bytes: number[] = [];
    for (let i = 0; i < count && this.#left > 0; i++, this.#left--) bytes.push(...this.#statement(labels));
    return bytes;
  }

  #statement(labels: number): number[] {
    const type = this.#one<Type>(['i32', 'i64', 'f32', 'v128']);
    const simple = [
      () => [...this.value(type, 2), 0x21, this.#variable(type)],
      () => [...this.#address(), ...this.value('i32', 2), 0x36, 0, 0],
      () => [...this.#address(), ...this.value('v128', 1), 0xfd, 0x0b, 0, 0],
      () => [...this.#address(), ...this.value('i32', 1), ...i32(this.#below(15)), 0xfc, 0x0b, 0],
      () => [...this.#address(), ...this.#address(), ...this.value('i32', 1), ...i32(15), 0x71, 0xfc, 0x0a, 0, 0],
      () => [...this.value('i32', 1), 0x24, 1],
      () => [0x23, 1, 0x21, this.#variable('i32')],
      () => this.#call(),
    ];
    const nested = [
      () => this.#if(labels),
      () => [0x02, 0x40, ...this.statements(3, labels + 1), 0x0b],
      () => this.#loop(labels),
      () => this.#table(labels),
      () => [...this.value('i32', 2), 0x0d, this.#below(labels)],
      () => [...this.value('i32', 1), ...this.value('i32', 2), 0x0d, labels, 0x1a],
      () => [...this.value('i32', 1), 0x04, 0x40, ...this.#away(labels + 1), 0x0b],
    ];
    return this.#one(this.#random() < 0.6 ? simple : nested)();
  }

  /** Leaves the function, or a block around; the label of the function is behind those of blocks. */
  #away(labels: number): number[] {
    const ways = [
      () => [...this.value('i32', 1), 0x0f],
      () => [...this.value('i32', 1), 0x0c, labels],
      () => [...this.value('i32', 1), ...this.value('i32', 1), 0x0e, 1, labels, labels],
      () => [0x0c, this.#below(labels)],
    ];
    return this.#one(ways)();
  }

  #if(labels: number): number[] {
    const otherwise = this.#random() < 0.5 ? [0x05, ...this.statements(2, labels + 1)] : [];
    return [...this.value('i32', 2), 0x04, 0x40, ...this.statements(2, labels + 1), ...otherwise, 0x0b];
  }

  /** A loop of a few rounds, whatever happens in it; a branch to it from within goes through its counter as well. */
  #loop(labels: number): number[] {
    if (this.#loops === 8) return [];
    const counter = this.#parameters + TYPES.counter + this.#loops++;
    const rounds = 1 + this.#below(6);
    const isDone = [0x20, counter, ...i32(1), 0x6a, 0x22, counter, ...i32(rounds), 0x4a, 0x0d, 1];
    // A counter that is kept from the last time makes the loop shorter, never endless.
    const body = [...isDone, ...this.statements(3, labels + 2), ...this.value('i32', 1), 0x0d, 0];
    return [0x02, 0x40, 0x03, 0x40, ...body, 0x0b, 0x0b];
  }

  #table(labels: number): number[] {
    const inner = [0x02, 0x40, 0x02, 0x40, ...this.value('i32', 1), ...i32(3), 0x71];
    const targets = Array.from({ length: 4 }, () => this.#below(2 + labels));
    return [...inner, 0x0e, 3, ...targets, 0x0b, ...this.statements(2, labels + 1), 0x0b];
  }

  /** Of a function behind this one, or of itself with a smaller first parameter. */
  #call(): number[] {
    const callee = this.#index + this.#below(HELPERS + 1 - this.#index);
    const isItself = callee === this.#index;
    if (isItself && this.#index === 0) return [];
    const target = this.#first + callee;
    const call = [0x10, target, 0x21, this.#variable('i32')];
    if (!isItself) return [...i32(this.#below(3)), ...this.value('i32', 1), ...call];
    const smaller = [0x20, 0, ...i32(1), 0x6b, ...this.value('i32', 1)];
    return [0x20, 0, ...i32(0), 0x4a, 0x04, 0x40, ...smaller, ...call, 0x0b];
  }
}

/** A module of this seed. Its apply reads and writes the memory from 1024 to 2048. */
export function randomModule(random: () => number): Uint8Array {
  // pack_abi and pack_apply come first.
  const bodyOf = (index: number, parameters: number): number[] => {
    const writer = new Writer(random, index, parameters, 1);
    // Statements are in a block, whose end is the outermost label; behind it stands what is returned.
    const inside = writer.statements(8, 1);
    return [0x02, 0x40, ...inside, 0x0b, ...writer.value('i32', 2)];
  };
  const helpers: Helper[] = Array.from({ length: HELPERS }, (_, i) => ({
    ...{ parameters: [I32, I32], results: [I32], locals: LOCALS },
    body: bodyOf(i + 1, 2),
  }));
  return assemble({
    kind: 'elementwise',
    variables: 1,
    heapBase: 4096,
    bodies: { pack_apply: bodyOf(0, 5) },
    locals: { pack_apply: LOCALS },
    helpers,
  });
}
