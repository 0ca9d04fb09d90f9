/**
 * The structure of a kernel pack's module. Everything in the binary is read and compared with what the host serves: a
 * codec or an element-wise kernel that imports nothing, starts nothing, and cannot make its memory or a table larger.
 * Counts and lengths are checked before anything is made of them; types of operands are checked by the machine's own
 * validation.
 */
import { badModule, Cursor } from './cursor.ts';
import { type Instruction, instructionsOf, isValueType, OP, type Scope } from './instructions.ts';
import { machine } from './machine.ts';
import { MODULE_BYTES_MAX, type PackManifest } from './manifest.ts';

export type PackKind = PackManifest['kind'];

/** What a module exports besides memory and __heap_base: functions, by how many i32 each takes; each returns one. */
export const PACK_EXPORTS: Readonly<Record<PackKind, Readonly<Record<string, number>>>> = {
  codec: { pack_abi: 0, pack_page_bytes: 2, pack_encode: 4, pack_decode: 4, pack_dots: 6, pack_mix: 6 },
  elementwise: { pack_abi: 0, pack_apply: 5 },
};

/** 16 MiB, in the pages of WebAssembly. */
export const MEMORY_PAGES_MAX = 256;
export const WASM_PAGE_BYTES = 65_536;

/** What there may be of each. Modules of compilers that were tried have a tenth of it at most. */
const MOST = {
  types: 256,
  parameters: 32,
  functions: 4096,
  tableEntries: 1024,
  globals: 64,
  exports: 16,
  segments: 256,
  locals: 1000,
} as const;

export interface FunctionType {
  readonly parameters: readonly number[];
  readonly results: readonly number[];
}

/** A function of a module: its parameters, its locals, and what its instructions may name. */
export interface PackFunction {
  readonly type: FunctionType;
  /** Of the body, behind its length. */
  readonly start: number;
  readonly end: number;
  /** Groups of locals: how many there are, and where they stand. */
  readonly localGroups: number;
  readonly groupsStart: number;
  readonly groupsEnd: number;
  readonly scope: Scope;
}

/** The instructions of a function of a module, one after the other. */
export const bodyOf = (bytes: Uint8Array, { groupsEnd, end, scope }: PackFunction): Iterable<Instruction> =>
  instructionsOf(new Cursor(bytes, groupsEnd, end), scope);

export interface Section {
  readonly id: number;
  /** Of what it holds, behind its length. */
  readonly start: number;
  readonly end: number;
}

/** A module that is served, as far as the instrumenter must know it. */
export interface PackModule {
  readonly kind: PackKind;
  readonly sections: readonly Section[];
  readonly types: number;
  readonly functions: readonly PackFunction[];
  readonly globals: number;
  readonly exports: number;
  readonly heapBase: number;
  readonly memoryPagesMax: number;
}

/** What is known of a module while it is read. */
interface Reading {
  types: FunctionType[];
  functions: FunctionType[];
  tables: number;
  memory: { readonly min: number; readonly max: number } | null;
  /** For each global: whether it can be written, and the i32 that it begins with. */
  globals: { readonly isVariable: boolean; readonly isI32: boolean; readonly value: number }[];
  exports: Map<string, { readonly kind: number; readonly index: number }>;
  dataCount: number | null;
  bodies: PackFunction[] | null;
  /** Ends of data in memory. */
  dataEnds: number[];
  segments: number;
}

const SECTION_NAMES = [
  ...['custom', 'type', 'import', 'function', 'table', 'memory', 'global', 'export', 'start', 'element', 'code'],
  ...['data', 'data count', 'tag'],
];
/** In the order in which they stand. */
const ORDER = [1, 3, 4, 5, 6, 7, 9, 12, 10, 11];
const READ: Readonly<Record<number, (cursor: Cursor, reading: Reading) => void>> = {
  1: readTypes,
  3: readFunctions,
  4: readTable,
  5: readMemory,
  6: readGlobals,
  7: readExports,
  9: readElements,
  12: (cursor, reading) => {
    reading.dataCount = cursor.u32();
  },
  10: readCode,
  11: readData,
};

function readTypes(cursor: Cursor, reading: Reading): void {
  const values = (what: string): number[] =>
    Array.from({ length: cursor.count(what, MOST.parameters) }, () => {
      const type = cursor.u8();
      return isValueType(type) ? type : cursor.refuse('a value of a type that is not known');
    });
  for (let left = cursor.count('types', MOST.types); left > 0; left--) {
    if (cursor.u8() !== 0x60) cursor.refuse('a type that is none of functions');
    reading.types.push({ parameters: values('parameters'), results: values('results') });
  }
}

function readFunctions(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('functions', MOST.functions); left > 0; left--)
    reading.functions.push(reading.types[cursor.u32()] ?? cursor.refuse('a function of a type that is not there'));
}

function limits(cursor: Cursor, what: string, most: number): { min: number; max: number } {
  if (cursor.u8() !== 1) cursor.refuse(`a ${what} that is shared, of 64 bits, or has no maximum`);
  const [min, max] = [cursor.u32(), cursor.u32()];
  if (max > most || min > max) cursor.refuse(`a ${what} of ${min} to ${max}, where ${most} is the most`);
  return { min, max };
}

function readTable(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('tables', 1); left > 0; left--) {
    if (cursor.u8() !== 0x70) cursor.refuse('a table of something else than functions');
    limits(cursor, 'table', MOST.tableEntries);
    reading.tables++;
  }
}

function readMemory(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('memories', 1); left > 0; left--)
    reading.memory = limits(cursor, 'memory', MEMORY_PAGES_MAX);
}

/** A constant expression. → its value, where it is an i32 */
function constant(cursor: Cursor): { isI32: boolean; value: number } {
  const op = cursor.u8();
  let value = 0;
  if (op === OP.i32Const) value = cursor.signed(32);
  else if (op === 0x42) cursor.signed(64);
  else if (op === 0x43) cursor.skip(4);
  else if (op === 0x44) cursor.skip(8);
  else if (op === 0xfd && cursor.u32() === 0x0c) cursor.skip(16);
  else cursor.refuse('a value to begin with that is no constant');
  if (cursor.u8() !== OP.end) cursor.refuse('a value to begin with that is more than a constant');
  return { isI32: op === OP.i32Const, value };
}

function readGlobals(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('globals', MOST.globals); left > 0; left--) {
    if (!isValueType(cursor.u8())) cursor.refuse('a global of a type that is not known');
    const isVariable = cursor.u8();
    if (isVariable > 1) cursor.refuse('a global that is neither constant nor variable');
    reading.globals.push({ isVariable: isVariable === 1, ...constant(cursor) });
  }
}

function readExports(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('exports', MOST.exports); left > 0; left--) {
    const length = cursor.count('bytes of a name', 32);
    const name = Buffer.from(cursor.bytes.buffer, cursor.bytes.byteOffset + cursor.skip(length), length);
    const text = name.toString('latin1');
    if (reading.exports.has(text)) cursor.refuse('an export that is there twice');
    reading.exports.set(text, { kind: cursor.u8(), index: cursor.u32() });
  }
}

function readElements(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('segments of elements', MOST.segments); left > 0; left--) {
    if (cursor.u32() !== 0 || reading.tables === 0) cursor.refuse('elements that are not of the first table');
    if (!constant(cursor).isI32) cursor.refuse('elements at a place that is no i32');
    for (let count = cursor.count('elements', MOST.tableEntries); count > 0; count--)
      if (cursor.u32() >= reading.functions.length) cursor.refuse('a function that is not there');
  }
}

function readData(cursor: Cursor, reading: Reading): void {
  for (let left = cursor.count('segments of data', MOST.segments); left > 0; left--) {
    const kind = cursor.u32();
    if (kind > 1) cursor.refuse('data of another memory than the first');
    const place = kind === 0 ? constant(cursor) : null;
    if (place !== null && (!place.isI32 || reading.memory === null)) cursor.refuse('data at a place that is no i32');
    const length = cursor.u32();
    cursor.skip(length);
    if (place !== null) reading.dataEnds.push((place.value >>> 0) + length);
    reading.segments++;
  }
}

function readCode(cursor: Cursor, reading: Reading): void {
  const count = cursor.count('bodies', MOST.functions);
  if (count !== reading.functions.length) cursor.refuse(`${count} bodies of ${reading.functions.length} functions`);
  const scope = {
    types: reading.types.length,
    functions: count,
    tables: reading.tables,
    globals: reading.globals.map(({ isVariable }) => isVariable),
    dataCount: reading.dataCount,
  };
  reading.bodies = reading.functions.map((type) => readBody(cursor.within(cursor.u32()), type, scope));
}

function readBody(body: Cursor, type: FunctionType, scope: Omit<Scope, 'locals'>): PackFunction {
  const start = body.at;
  let locals = type.parameters.length;
  const localGroups = body.count('groups of locals', MOST.locals);
  const groupsStart = body.at;
  for (let left = localGroups; left > 0; left--) {
    locals += body.u32();
    if (locals > MOST.locals) body.refuse(`more than ${MOST.locals} locals`);
    if (!isValueType(body.u8())) body.refuse('a local of a type that is not known');
  }
  const groupsEnd = body.at;
  const found = { type, start, end: body.end, localGroups, groupsStart, groupsEnd, scope: { ...scope, locals } };
  // Reading checks them. They are not kept, since a module may have a million.
  for (const _ of bodyOf(body.bytes, found));
  body.at = body.end;
  return found;
}

function readSections(cursor: Cursor, reading: Reading): Section[] {
  const sections: Section[] = [];
  let place = -1;
  while (cursor.left > 0) {
    const id = cursor.u8();
    const rank = ORDER.indexOf(id);
    const name = SECTION_NAMES[id] ?? `number ${id}`;
    if (rank === -1) cursor.refuse(`a section that packs may not have: ${name}`);
    if (rank <= place) cursor.refuse(`a section that is there twice or comes too late: ${name}`);
    place = rank;
    const body = cursor.within(cursor.u32());
    sections.push({ id, start: body.at, end: body.end });
    READ[id]!(body, reading);
    body.done(`the section ${name}`);
  }
  return sections;
}

const I32 = 0x7f;

/** Whether the exports are those of one kind, to the letter. → the kind */
function kindOf({ exports, functions }: Reading, end: number): PackKind {
  const kind = exports.has('pack_apply') ? 'elementwise' : 'codec';
  const wanted = PACK_EXPORTS[kind];
  const names = [...Object.keys(wanted), 'memory', '__heap_base'];
  const missing = names.find((name) => !exports.has(name));
  if (missing !== undefined) throw badModule(`it does not export ${missing}`, end, { missing });
  const extra = [...exports.keys()].find((name) => !names.includes(name));
  if (extra !== undefined) throw badModule(`it exports ${JSON.stringify(extra)}, which nobody asked for`, end);
  for (const [name, count] of Object.entries(wanted)) {
    const { kind: what, index } = exports.get(name)!;
    const type = what === 0 ? functions[index] : undefined;
    const isFit = type?.parameters.length === count && type.results.length === 1;
    if (!isFit || [...type.parameters, ...type.results].some((value) => value !== I32))
      throw badModule(`${name} is no function of ${count} i32 that returns one`, end, { name });
  }
  return kind;
}

/** What of the memory is the host's. */
function heapOf({ exports, globals, memory, dataEnds }: Reading, end: number): { heapBase: number; max: number } {
  const [exported, base] = [exports.get('memory')!, exports.get('__heap_base')!];
  const global = base.kind === 3 ? globals[base.index] : undefined;
  if (memory === null || exported.kind !== 2 || exported.index !== 0) throw badModule('its memory is none', end);
  if (global === undefined || global.isVariable || !global.isI32) throw badModule('__heap_base is no constant', end);
  const [heapBase, most] = [global.value >>> 0, memory.max * WASM_PAGE_BYTES];
  if (heapBase > most) throw badModule('__heap_base lies beyond the memory', end, { heapBase, most });
  const dataEnd = Math.max(0, ...dataEnds);
  if (dataEnd > Math.min(heapBase, memory.min * WASM_PAGE_BYTES))
    throw badModule('data lie beyond __heap_base or the memory', end, { heapBase, dataEnd });
  return { heapBase, max: memory.max };
}

/** Reads a module and all in it. Throws 'bad-pack' for what is not served, with the byte and what is there. */
export function parseModule(bytes: Uint8Array): PackModule {
  if (bytes.length > MODULE_BYTES_MAX)
    throw badModule(`it has ${bytes.length} bytes, where ${MODULE_BYTES_MAX} are the most`, 0);
  const cursor = new Cursor(bytes);
  const head = [0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00];
  if (head.some((byte) => cursor.u8() !== byte)) throw badModule('it is no WebAssembly of version 1', 0);
  const reading: Reading = {
    ...{ types: [], functions: [], tables: 0, memory: null, globals: [], exports: new Map() },
    ...{ dataCount: null, bodies: null, dataEnds: [], segments: 0 },
  };
  const sections = readSections(cursor, reading);
  if (reading.bodies === null) throw badModule('it has no code', bytes.length);
  if (reading.segments !== (reading.dataCount ?? reading.segments))
    throw badModule('its count of data is another one', bytes.length);
  const kind = kindOf(reading, bytes.length);
  const { heapBase, max } = heapOf(reading, bytes.length);
  const [types, globals, exports] = [reading.types.length, reading.globals.length, reading.exports.size];
  return { kind, sections, types, functions: reading.bodies, globals, exports, heapBase, memoryPagesMax: max };
}

/** Throws 'bad-pack' unless the bytes are a module that packs may have. */
export function checkModule(bytes: Uint8Array): PackModule {
  const module = parseModule(bytes);
  if (!machine.validate(bytes)) throw badModule('its operands are not of their types', bytes.length);
  return module;
}
