/** Makes modules from instructions in bytes, those that packs may have and others. */
import { signed, unsigned } from '../../../../engine/packs/instrument.ts';
import { PACK_EXPORTS, type PackKind } from '../../../../engine/packs/module.ts';

export const I32 = 0x7f;
export const I64 = 0x7e;
export const F32 = 0x7d;
export const V128 = 0x7b;
/** Types of local variables, each with how many there are. */
export type Locals = readonly (readonly [count: number, type: number])[];

export interface Helper {
  readonly parameters: readonly number[];
  readonly results: readonly number[];
  readonly locals?: Locals;
  readonly body: readonly number[];
}

export interface Parts {
  readonly kind?: PackKind;
  /** Instructions of exported functions, without the end. Those that are left out return 0, pack_abi 1. */
  readonly bodies?: Readonly<Record<string, readonly number[]>>;
  readonly locals?: Readonly<Record<string, Locals>>;
  /** Functions behind those that are exported. */
  readonly helpers?: readonly Helper[];
  /** In pages. */
  readonly memory?: { readonly min: number; readonly max: number };
  readonly heapBase?: number;
  /** Variables of i32 behind __heap_base. */
  readonly variables?: number;
  /** Sections in the place of those that would be there, or besides; null: left out. */
  readonly sections?: Readonly<Record<number, readonly number[] | null>>;
  /** Exports besides. */
  readonly exported?: readonly (readonly [name: string, kind: number, index: number])[];
}

export const i32 = (value: number): number[] => [0x41, ...signed(value)];
const text = (name: string): number[] => [name.length, ...Buffer.from(name)];
const list = (items: readonly (readonly number[])[]): number[] => [...unsigned(items.length), ...items.flat()];

const ORDER = [0, 1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11];

export function assemble(parts: Parts = {}): Uint8Array {
  const { kind = 'codec', bodies = {}, locals = {}, helpers = [], memory = { min: 1, max: 4 } } = parts;
  const { heapBase = 1024, variables = 0, sections = {}, exported = [] } = parts;
  const names = Object.entries(PACK_EXPORTS[kind]);
  const functions: Helper[] = [
    ...names.map(([name, count]) => ({
      parameters: Array.from({ length: count }, () => I32),
      results: [I32],
      locals: locals[name] ?? [],
      body: bodies[name] ?? i32(name === 'pack_abi' ? 1 : 0),
    })),
    ...helpers,
  ];
  const types = functions.map(({ parameters, results }) => [
    ...[0x60, parameters.length, ...parameters, results.length, ...results],
  ]);
  const code = functions.map((one) => {
    const groups = (one.locals ?? []).map(([count, type]) => [...unsigned(count), type]);
    const body = [...list(groups), ...one.body, 0x0b];
    return [...unsigned(body.length), ...body];
  });
  const variable = [I32, 1, ...i32(0), 0x0b];
  const exports = [
    ...names.map(([name], index) => [...text(name), 0, index]),
    ...[
      [...text('memory'), 2, 0],
      [...text('__heap_base'), 3, 0],
    ],
    ...exported.map(([name, what, index]) => [...text(name), what, index]),
  ];
  const all: Record<number, readonly number[] | null> = {
    1: list(types),
    3: list(functions.map((_, index) => unsigned(index))),
    5: [1, 1, ...unsigned(memory.min), ...unsigned(memory.max)],
    6: list([[I32, 0, ...i32(heapBase), 0x0b], ...Array.from({ length: variables }, () => variable)]),
    7: list(exports),
    10: list(code),
    ...sections,
  };
  const bytes = [0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0];
  for (const id of ORDER) {
    const body = all[id];
    if (body !== undefined && body !== null) bytes.push(id, ...unsigned(body.length), ...body);
  }
  return Uint8Array.from(bytes);
}
