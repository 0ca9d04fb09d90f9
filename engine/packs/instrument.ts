/**
 * Puts fuel into a module. Whoever enters a function or the head of a loop pays for all instructions that can follow
 * without another head: those of the function or loop that lie in no loop within. An instruction between two heads runs
 * once at most, so fuel bounds how many run, on every machine alike and without a clock. memory.fill, memory.copy and
 * memory.init pay for their bytes besides. Fuel is a global, exported as `fuel`, that begins with 0: nothing runs
 * before the host allows it. A module that has too little is stopped with a negative number in it.
 *
 * A function of the host is put in as well: `finite`, which looks through an output for what is no finite number, where
 * that takes a tenth of the time that it takes outside.
 *
 * In a function fuel is in a local, where it costs a register; it goes back into the global before calls and whatever
 * leaves the function. The same module always becomes the same bytes.
 */
import { type Instruction, OP } from './instructions.ts';
import { bodyOf, checkModule, type PackFunction, type PackModule } from './module.ts';

/** Bytes that memory.fill and its like move for one unit, as a shift: 16. */
const BYTES_SHIFT = 4;

const I32 = 0x7f;
const EMPTY_BLOCK = 0x40;

/** A whole number below 2^32 in as few bytes as it takes. */
export function unsigned(value: number): number[] {
  const bytes: number[] = [];
  let left = value;
  do {
    const low = left % 128;
    left = Math.floor(left / 128);
    bytes.push(left > 0 ? low | 0x80 : low);
  } while (left > 0);
  return bytes;
}

/** The same for a signed number of 32 bits. */
export function signed(value: number): number[] {
  const bytes: number[] = [];
  for (let left = value; ; left >>= 7) {
    const low = left & 0x7f;
    const isLast = (left >> 7 === 0 && low < 0x40) || (left >> 7 === -1 && low >= 0x40);
    bytes.push(isLast ? low : low | 0x80);
    if (isLast) return bytes;
  }
}

/** Bytes that are written one after the other. */
class Output {
  #bytes = new Uint8Array(1024);
  #length = 0;

  add(bytes: ArrayLike<number>): void {
    const needed = this.#length + bytes.length;
    if (needed > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
      larger.set(this.#bytes);
      this.#bytes = larger;
    }
    this.#bytes.set(bytes, this.#length);
    this.#length = needed;
  }

  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }
}

/** Where a function keeps its fuel. */
interface Places {
  readonly global: number;
  readonly local: number;
}

/** Fuel is on the stack: it is kept, and the module stopped where it is below 0. */
const pay = ({ global, local }: Places): number[] => [
  ...[OP.localTee, ...unsigned(local), OP.i32Const, 0, OP.i32LtS, OP.if, EMPTY_BLOCK],
  ...[OP.localGet, ...unsigned(local), OP.globalSet, ...unsigned(global), OP.unreachable, OP.end],
];

const entered = (places: Places, price: number): number[] => [
  ...[OP.globalGet, ...unsigned(places.global), OP.i32Const, ...signed(price), OP.i32Sub],
  ...pay(places),
];

const looped = (places: Places, price: number): number[] => [
  ...[OP.localGet, ...unsigned(places.local), OP.i32Const, ...signed(price), OP.i32Sub],
  ...pay(places),
];

/** The number of bytes is on the stack, and stays there. */
const moved = (places: Places): number[] => {
  const bytes = unsigned(places.local + 1);
  const price = [OP.localGet, ...bytes, OP.i32Const, BYTES_SHIFT, OP.i32ShrU, OP.i32Sub];
  return [OP.localTee, ...bytes, OP.localGet, ...unsigned(places.local), ...price, ...pay(places)];
};

const given = ({ global, local }: Places): number[] => [
  ...[OP.localGet, ...unsigned(local), OP.globalSet, ...unsigned(global)],
];
const taken = ({ global, local }: Places): number[] => [
  ...[OP.globalGet, ...unsigned(global), OP.localSet, ...unsigned(local)],
];

/** What the function and each of its loops pay, in the order in which they begin. */
function pricesOf(bytes: Uint8Array, found: PackFunction): number[] {
  const prices = [0];
  /** The loop that each open block lies in, by its number in the list; the function is the first. */
  const open = [0];
  for (const { op } of bodyOf(bytes, found)) {
    if (op === OP.loop) open.push(prices.push(0) - 1);
    else if (op === OP.block || op === OP.if) open.push(open.at(-1)!);
    prices[open.at(-1)!]!++;
    if (op === OP.end) open.pop();
  }
  return prices;
}

/** Whether fuel must be in the global when this instruction runs. */
function isWayOut({ op, label, depth }: Instruction): boolean {
  if (op === OP.call || op === OP.callIndirect || op === OP.return) return true;
  if (op === OP.br || op === OP.brIf || op === OP.brTable) return label === depth - 1;
  return op === OP.end && depth === 1;
}

const MOVES: readonly number[] = [OP.memoryInit, OP.memoryCopy, OP.memoryFill];

/** A function with fuel, its length before it. */
function fueled(bytes: Uint8Array, found: PackFunction, global: number): Uint8Array {
  const places = { global, local: found.scope.locals };
  const prices = pricesOf(bytes, found);
  const body = new Output();
  body.add(unsigned(found.localGroups + 1));
  body.add(bytes.subarray(found.groupsStart, found.groupsEnd));
  body.add([2, I32]);
  body.add(entered(places, prices[0]!));
  let loops = 0;
  /** What was read and not yet written. */
  let from = found.groupsEnd;
  for (const instruction of bodyOf(bytes, found)) {
    const { op, start, end } = instruction;
    const before = isWayOut(instruction) ? given(places) : MOVES.includes(op) ? moved(places) : [];
    if (before.length > 0) {
      body.add(bytes.subarray(from, start));
      body.add(before);
      from = start;
    }
    const isCall = op === OP.call || op === OP.callIndirect;
    if (!isCall && op !== OP.loop) continue;
    body.add(bytes.subarray(from, end));
    body.add(isCall ? taken(places) : looped(places, prices[++loops]!));
    from = end;
  }
  body.add(bytes.subarray(from, found.end));
  return withLength(body.bytes);
}

function withLength(bytes: Uint8Array): Uint8Array {
  const output = new Output();
  output.add(unsigned(bytes.length));
  output.add(bytes);
  return output.bytes;
}

/** A list with more at its end. list: of a section, with the count before it. */
function withMore(list: Uint8Array, count: number, more: readonly (readonly number[])[]): Uint8Array {
  let digits = 0;
  while (list[digits]! >= 0x80) digits++;
  const output = new Output();
  output.add(unsigned(count + more.length));
  output.add(list.subarray(digits + 1));
  output.add(more.flat());
  return output.bytes;
}

const SECTION = { type: 1, function: 3, memory: 5, global: 6, export: 7, code: 10 } as const;

const FINITE_TYPE = [0x60, 2, I32, I32, 1, I32];
/** The exponent of what is no finite number, four times. */
const EXPONENT = [0xfd, 0x0c, ...Array.from({ length: 4 }, () => [0x00, 0x00, 0x80, 0x7f]).flat()];
/** finite(from, end): 1 if all floats there are, of which there are whole fours. Local 2 has the lanes that are not. */
const FINITE_BODY = [
  ...[1, 1, 0x7b, OP.block, EMPTY_BLOCK, OP.loop, EMPTY_BLOCK],
  ...[OP.localGet, 0, OP.localGet, 1, 0x4f, OP.brIf, 1],
  ...[OP.localGet, 2, OP.localGet, 0, 0xfd, 0x00, 0, 0],
  ...[...EXPONENT, 0xfd, 0x4e, ...EXPONENT, 0xfd, 0x37, 0xfd, 0x50, OP.localSet, 2],
  ...[OP.localGet, 0, OP.i32Const, 16, 0x6a, OP.localSet, 0, OP.br, 0, OP.end, OP.end],
  ...[OP.localGet, 2, 0xfd, 0x53, 0x45, OP.end],
];

const exported = (name: string, kind: number, index: number): number[] => [
  ...[name.length, ...Buffer.from(name), kind, ...unsigned(index)],
];

function sectionWithFuel(bytes: Uint8Array, id: number, body: Uint8Array, module: PackModule): Uint8Array {
  const { types, globals, exports, functions, memoryPagesMax } = module;
  // All of the memory is there at once, so that no call can tell from its size what others needed.
  if (id === SECTION.memory) return Uint8Array.from([1, 1, ...unsigned(memoryPagesMax), ...unsigned(memoryPagesMax)]);
  if (id === SECTION.type) return withMore(body, types, [FINITE_TYPE]);
  if (id === SECTION.function) return withMore(body, functions.length, [unsigned(types)]);
  if (id === SECTION.global) return withMore(body, globals, [[I32, 1, OP.i32Const, 0, OP.end]]);
  if (id === SECTION.export)
    return withMore(body, exports, [exported('fuel', 3, globals), exported('finite', 0, functions.length)]);
  if (id !== SECTION.code) return body;
  const output = new Output();
  output.add(unsigned(functions.length + 1));
  for (const found of functions) output.add(fueled(bytes, found, globals));
  output.add(withLength(Uint8Array.from(FINITE_BODY)));
  return output.bytes;
}

/** A module with fuel, from one that packs may have. Throws 'bad-pack' for any other. */
export function instrumentModule(bytes: Uint8Array): Uint8Array {
  const module = checkModule(bytes);
  const output = new Output();
  output.add(bytes.subarray(0, 8));
  for (const { id, start, end } of module.sections) {
    output.add([id]);
    output.add(withLength(sectionWithFuel(bytes, id, bytes.subarray(start, end), module)));
  }
  return output.bytes.slice();
}
