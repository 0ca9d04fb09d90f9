/** The part of the global WebAssembly object that packs need, declared by TypeScript only in types for browsers. */

/** A compiled module. It can be given to other threads. */
export type CompiledModule = object;

/** What an instance of a pack exports. */
export interface PackExports {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  readonly __heap_base: { readonly value: number };
  /** Put in by the instrumenter. */
  readonly fuel: { value: number };
  readonly finite: (from: number, end: number) => number;
  readonly [name: string]: unknown;
}

interface Machine {
  validate(bytes: Uint8Array): boolean;
  readonly Module: new (bytes: Uint8Array) => CompiledModule;
  readonly Instance: new (module: CompiledModule, imports: object) => { readonly exports: PackExports };
}

export const machine = (globalThis as unknown as { WebAssembly: Machine }).WebAssembly;
