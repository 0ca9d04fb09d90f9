/**
 * Every instruction that a pack may have, with what follows it in the binary: WebAssembly 1.0, sign extension,
 * saturating conversions, memory.copy and its like, and SIMD. The list is closed: what is not in it is refused.
 */
import type { Cursor } from './cursor.ts';

/** What follows an instruction. */
type Immediate =
  | 'nothing'
  | 'block'
  | 'label'
  | 'labels'
  | 'function'
  | 'indirect'
  | 'types'
  | 'local'
  | 'global'
  | 'global written'
  | 'address'
  | 'memory'
  | 'i32'
  | 'i64'
  | 'f32'
  | 'f64'
  | 'v128'
  | 'lane'
  | 'address and lane'
  | 'lanes'
  | 'data'
  | 'data and memory'
  | 'two memories';

/** Instructions of two bytes have their prefix in the high byte. */
export const OP = {
  unreachable: 0x00,
  block: 0x02,
  loop: 0x03,
  if: 0x04,
  else: 0x05,
  end: 0x0b,
  br: 0x0c,
  brIf: 0x0d,
  brTable: 0x0e,
  return: 0x0f,
  call: 0x10,
  callIndirect: 0x11,
  localGet: 0x20,
  localSet: 0x21,
  localTee: 0x22,
  globalGet: 0x23,
  globalSet: 0x24,
  i32Const: 0x41,
  i32LtS: 0x48,
  i32Sub: 0x6b,
  i32ShrU: 0x76,
  memoryInit: 0xfc08,
  memoryCopy: 0xfc0a,
  memoryFill: 0xfc0b,
} as const;

const table = new Map<number, Immediate>();
const add = (immediate: Immediate, ...ranges: readonly (number | readonly [number, number])[]): void => {
  for (const range of ranges) {
    const [from, to] = typeof range === 'number' ? [range, range] : range;
    for (let op = from; op <= to; op++) table.set(op, immediate);
  }
};
add('nothing', 0x00, 0x01, OP.else, OP.end, OP.return, 0x1a, 0x1b, [0x45, 0xc4], [0xfc00, 0xfc07]);
add('block', OP.block, OP.loop, OP.if);
add('label', OP.br, OP.brIf);
add('labels', OP.brTable);
add('function', OP.call);
add('indirect', OP.callIndirect);
add('types', 0x1c);
add('local', OP.localGet, OP.localSet, OP.localTee);
add('global', OP.globalGet);
add('global written', OP.globalSet);
add('address', [0x28, 0x3e], [0xfd00, 0xfd0b], 0xfd5c, 0xfd5d);
add('memory', 0x3f, OP.memoryFill);
add('i32', OP.i32Const);
add('i64', 0x42);
add('f32', 0x43);
add('f64', 0x44);
add('data', 0xfc09);
add('data and memory', OP.memoryInit);
add('two memories', OP.memoryCopy);
add('v128', 0xfd0c);
add('lanes', 0xfd0d);
add('lane', [0xfd15, 0xfd22]);
add('address and lane', [0xfd54, 0xfd5b]);
add('nothing', [0xfd0e, 0xfd14], [0xfd23, 0xfd53], [0xfd5e, 0xfd99], [0xfd9b, 0xfda1], 0xfda3, 0xfda4);
add('nothing', [0xfda7, 0xfdae], 0xfdb1, [0xfdb5, 0xfdba], [0xfdbc, 0xfdc1], 0xfdc3, 0xfdc4, [0xfdc7, 0xfdce]);
add('nothing', 0xfdd1, [0xfdd5, 0xfde1], [0xfde3, 0xfded], [0xfdef, 0xfdff]);

/** What is known and not served, for the message. */
function forbidden(op: number): string {
  const [prefix, low] = [op >> 8, op & 0xff];
  if (op === 0x40) return 'memory.grow';
  if (op === 0x12 || op === 0x13 || op === 0x14 || op === 0x15) return 'a tail call or a call by reference';
  if (op === 0x25 || op === 0x26 || (prefix === 0xfc && low >= 0x0c)) return 'an instruction on tables';
  if (prefix === 0 && low >= 0xd0 && low <= 0xd6) return 'a reference';
  if (prefix === 0 && ((low >= 0x06 && low <= 0x0a) || low === 0x18 || low === 0x19 || low === 0x1f))
    return 'an exception';
  return 'an instruction that is not known';
}

/** What an instruction may name. */
export interface Scope {
  readonly types: number;
  readonly functions: number;
  readonly tables: number;
  readonly locals: number;
  /** For each global: whether it can be written. */
  readonly globals: readonly boolean[];
  /** Segments of data, as far as their number stands before the code; null: it does not. */
  readonly dataCount: number | null;
}

/** One instruction of a body. */
export interface Instruction {
  readonly op: number;
  /** Its first byte, and the first one behind it. */
  readonly start: number;
  readonly end: number;
  /** For branches: the outermost of the labels, counted from the innermost. Else 0. */
  readonly label: number;
  /** Blocks that it is in, the function being one. */
  readonly depth: number;
}

const VALUE_TYPES: readonly number[] = [0x7f, 0x7e, 0x7d, 0x7c, 0x7b];
export const isValueType = (byte: number): boolean => VALUE_TYPES.includes(byte);

/** Blocks in blocks, the most: none of the compilers that were tried goes beyond 40. */
const NESTED_MOST = 500;
const LABELS_MOST = 4096;

const below = (cursor: Cursor, what: string, count: number): number => {
  const index = cursor.u32();
  if (index >= count) cursor.refuse(`${what} ${index} of ${count}`);
  return index;
};

const zero = (cursor: Cursor, what: string): void => {
  if (cursor.u8() !== 0) cursor.refuse(`another ${what} than the first`);
};

function address(cursor: Cursor): void {
  if (cursor.u32() > 4) cursor.refuse('an alignment that no access has');
  cursor.u32();
}

function blockType(cursor: Cursor, types: number): void {
  const type = cursor.signed(33);
  const isValue = type < 0 && isValueType(type + 0x80);
  if (type === -64 || isValue || (type >= 0 && type < types)) return;
  cursor.refuse('a block of a type that is not known');
}

function labels(cursor: Cursor, depth: number): number {
  const count = cursor.count('labels', LABELS_MOST);
  let outermost = 0;
  for (let i = 0; i <= count; i++) outermost = Math.max(outermost, below(cursor, 'label', depth));
  return outermost;
}

function data(cursor: Cursor, { dataCount }: Scope): void {
  if (dataCount === null) cursor.refuse('data without a count of it before the code');
  below(cursor, 'data segment', dataCount);
}

/** Reads what follows an instruction. → the outermost label that it names */
function readImmediate(cursor: Cursor, immediate: Immediate, scope: Scope, depth: number): number {
  switch (immediate) {
    case 'nothing':
      return 0;
    case 'label':
      return below(cursor, 'label', depth);
    case 'labels':
      return labels(cursor, depth);
    case 'block':
      blockType(cursor, scope.types);
      return 0;
    case 'function':
      below(cursor, 'function', scope.functions);
      return 0;
    case 'indirect':
      below(cursor, 'type', scope.types);
      below(cursor, 'table', scope.tables);
      return 0;
    case 'local':
      below(cursor, 'local', scope.locals);
      return 0;
    case 'global':
    case 'global written': {
      const index = below(cursor, 'global', scope.globals.length);
      if (immediate === 'global written' && !scope.globals[index]!) cursor.refuse(`global ${index} is not variable`);
      return 0;
    }
    default:
      readPlain(cursor, immediate, scope);
      return 0;
  }
}

const FIXED: Readonly<Partial<Record<Immediate, number>>> = { f32: 4, f64: 8, v128: 16 };

function readPlain(cursor: Cursor, immediate: Immediate, scope: Scope): void {
  const fixed = FIXED[immediate];
  if (fixed !== undefined) cursor.skip(fixed);
  else if (immediate === 'i32') cursor.signed(32);
  else if (immediate === 'i64') cursor.signed(64);
  else if (immediate === 'lane') lane(cursor, 16);
  else if (immediate === 'lanes') for (let i = 0; i < 16; i++) lane(cursor, 32);
  else if (immediate === 'types') types(cursor);
  else if (immediate.startsWith('address')) {
    address(cursor);
    if (immediate === 'address and lane') lane(cursor, 16);
  } else {
    if (immediate.startsWith('data')) data(cursor, scope);
    if (immediate !== 'data') zero(cursor, 'memory');
    if (immediate === 'two memories') zero(cursor, 'memory');
  }
}

function lane(cursor: Cursor, count: number): void {
  if (cursor.u8() >= count) cursor.refuse('a lane that no vector has');
}

function types(cursor: Cursor): void {
  if (cursor.count('types', 1) !== 1 || !isValueType(cursor.u8()))
    cursor.refuse('a choice of a type that is not known');
}

/** The number of the next instruction, prefix included. */
function readOp(cursor: Cursor): number {
  const first = cursor.u8();
  if (first < 0xfc) return first;
  if (first === 0xfe) cursor.refuse('an atomic instruction');
  const second = first === 0xff ? 0 : cursor.u32();
  if (first === 0xfd && second > 0xff) cursor.refuse('a relaxed SIMD instruction');
  return (first << 8) + Math.min(second, 0xff);
}

/**
 * All instructions of a body, behind its locals, with what they name checked; types of operands are left to
 * `WebAssembly.validate`.
 */
export function* instructionsOf(cursor: Cursor, scope: Scope): Generator<Instruction, void> {
  /** What the blocks are that are open: the function, and how those in it began. */
  const open: number[] = [OP.block];
  while (open.length > 0) {
    const start = cursor.at;
    const op = readOp(cursor);
    const immediate = table.get(op);
    if (immediate === undefined) {
      cursor.at = start;
      cursor.refuse(`${forbidden(op)} (0x${op.toString(16)})`);
    }
    const depth = open.length;
    const label = readImmediate(cursor, immediate, scope, depth);
    if (immediate === 'block' && open.push(op) > NESTED_MOST)
      cursor.refuse(`more than ${NESTED_MOST} blocks in blocks`);
    if (op === OP.else && (depth === 1 || open[depth - 1] !== OP.if)) cursor.refuse('an else without its if');
    if (op === OP.else) open[depth - 1] = OP.else;
    if (op === OP.end) open.pop();
    yield { op, start, end: cursor.at, label, depth };
  }
  cursor.done('a function');
}
