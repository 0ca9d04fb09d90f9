/** A pack that is a codec, opened for one session: a module could carry what it saw of one session into another. */
import { KvError } from '../../native/index.ts';
import { type CompiledModule, machine } from './machine.ts';
import { brokeContract, CALL_FUEL, Sandbox } from './sandbox.ts';
import type { PackCodec } from './types.ts';

/** Tokens of a page, and one more, with which contracts are tried. */
export const PACK_TOKENS_MAX = 129;
export const PACK_DIM_MAX = 512;
export const PACK_QUERIES_MAX = 64;
/** The head size that fuel is counted for. */
export const FUEL_DIM = 128;

/** How much a module may use. */
export interface PackLimits {
  /** The most fuel that a token takes in any call: of a head with 128 channels, and for one query. */
  readonly fuelPerToken: number;
}

const shown = (values: Readonly<Record<string, number>>): string =>
  Object.entries(values)
    .map(([name, value]) => `${name} ${value}`)
    .join(', ');

/** Throws 'bad-shape' for a shape that packs are not asked for. */
export function checkPackShape(shape: {
  readonly tokens: number;
  readonly dim: number;
  readonly queries?: number;
}): void {
  const { tokens, dim, queries = 1 } = shape;
  const isWithin = (value: number, most: number): boolean => Number.isInteger(value) && value >= 1 && value <= most;
  if (isWithin(tokens, PACK_TOKENS_MAX) && isWithin(dim, PACK_DIM_MAX) && isWithin(queries, PACK_QUERIES_MAX)) return;
  throw new KvError('bad-shape', `a kernel pack is not asked for ${shown({ tokens, dim, queries })}`, {
    values: { tokens, dim, queries },
    hint: `tokens 1 to ${PACK_TOKENS_MAX}, dim 1 to ${PACK_DIM_MAX}, queries 1 to ${PACK_QUERIES_MAX}`,
  });
}

/** Throws 'bad-shape' for an array that has another length than its shape. */
export function checkLength(name: string, array: ArrayLike<number>, length: number): void {
  if (array.length !== length)
    throw new KvError('bad-shape', `${name} has ${array.length} elements, not ${length}`, { values: { name, length } });
}

/** Compiles an instrumented module, once for all of its instances. Throws 'bad-pack'. */
export function compileModule(instrumented: Uint8Array): CompiledModule {
  try {
    return new machine.Module(instrumented);
  } catch (cause) {
    throw brokeContract('module', (cause as Error).message, {}, cause);
  }
}

/** Fuel of a call: twice what its tokens may take, and something for itself. */
export const fuelOf = ({ fuelPerToken }: PackLimits, tokens: number, dim: number, queries = 1): number =>
  fuelPerToken * tokens * Math.max(1, dim / FUEL_DIM) * queries * 2 + CALL_FUEL;

export class PackInstance implements PackCodec {
  readonly #sandbox: Sandbox;
  readonly #limits: PackLimits;
  /** Bytes of pages by shape: a module is asked once. */
  readonly #pageBytes = new Map<number, number>();

  private constructor(sandbox: Sandbox, limits: PackLimits) {
    this.#sandbox = sandbox;
    this.#limits = limits;
  }

  /** module: instrumented, as bytes or compiled (`compileModule`). Throws 'bad-pack'. */
  static open(module: Uint8Array | CompiledModule, limits: PackLimits): PackInstance {
    const compiled = module instanceof Uint8Array ? compileModule(module) : module;
    return new PackInstance(new Sandbox(compiled), limits);
  }

  /** Fuel that the last call used. */
  get fuelUsed(): number {
    return this.#sandbox.fuelUsed;
  }

  /** True once it was closed or broke its contract. */
  get isOver(): boolean {
    return this.#sandbox.isOver;
  }

  /** Bytes of a page, as the module says. */
  pageBytes(tokens: number, dim: number): number {
    const key = tokens * 1024 + dim;
    const known = this.#pageBytes.get(key);
    if (known !== undefined && !this.isOver) return known;
    checkPackShape({ tokens, dim });
    const bytes = this.#sandbox.ask('pack_page_bytes', [tokens, dim], CALL_FUEL) >>> 0;
    if (bytes === 0) throw this.#sandbox.over('status', `no page has ${shown({ tokens, dim })}`);
    if (bytes > this.#sandbox.roomBytes) throw this.#sandbox.over('memory', `${bytes} bytes for a page`);
    this.#pageBytes.set(key, bytes);
    return bytes;
  }

  /** x: [tokens, dim] of one head, finite. → the page. Throws 'bad-pack', 'bad-shape' and 'closed', as all calls do. */
  encode(x: Float32Array, tokens: number, dim: number): Uint8Array {
    const bytes = this.pageBytes(tokens, dim);
    checkLength('x', x, tokens * dim);
    // A page begins with zeros, so that what a module leaves out is the same every time.
    const areas = [
      { bytes: x.byteLength, given: x },
      { bytes, isOutput: true, filled: 0 },
    ];
    const page = this.#sandbox.call('pack_encode', areas, [tokens, dim], fuelOf(this.#limits, tokens, dim));
    return this.#sandbox.bytes(page, bytes);
  }

  /** → [tokens, dim], in `out` where one is given */
  decode(page: Uint8Array, tokens: number, dim: number, out = new Float32Array(tokens * dim)): Float32Array {
    checkLength('page', page, this.pageBytes(tokens, dim));
    checkLength('out', out, tokens * dim);
    const areas = [
      { bytes: page.length, given: page },
      { bytes: out.byteLength, isOutput: true },
    ];
    const x = this.#sandbox.call('pack_decode', areas, [tokens, dim], fuelOf(this.#limits, tokens, dim));
    return this.#sandbox.floats('pack_decode', x, out);
  }

  /** q: [queries, dim]; out: [queries, tokens], which becomes q·k̂. */
  dots(page: Uint8Array, q: Float32Array, out: Float32Array, tokens: number, dim: number, queries: number): void {
    checkLength('q', q, queries * dim);
    this.#products('pack_dots', { page, factors: q, out, each: tokens, isAdded: false }, { tokens, dim, queries });
  }

  /** w: [queries, tokens]; out: [queries, dim], to which wᵀ·v̂ is added. */
  mix(page: Uint8Array, w: Float32Array, out: Float32Array, tokens: number, dim: number, queries: number): void {
    checkLength('w', w, queries * tokens);
    this.#products('pack_mix', { page, factors: w, out, each: dim, isAdded: true }, { tokens, dim, queries });
  }

  #products(
    name: string,
    given: {
      readonly page: Uint8Array;
      readonly factors: Float32Array;
      readonly out: Float32Array;
      readonly each: number;
      readonly isAdded: boolean;
    },
    shape: { readonly tokens: number; readonly dim: number; readonly queries: number },
  ): void {
    const { tokens, dim, queries } = shape;
    const { page, factors, out, each, isAdded } = given;
    checkPackShape(shape);
    checkLength('page', page, this.pageBytes(tokens, dim));
    checkLength('out', out, queries * each);
    const areas = [
      { bytes: page.length, given: page },
      { bytes: factors.byteLength, given: factors },
      { bytes: out.byteLength, ...(isAdded ? { given: out } : {}), isOutput: true },
    ];
    const fuel = fuelOf(this.#limits, tokens, dim, queries);
    this.#sandbox.floats(name, this.#sandbox.call(name, areas, [tokens, dim, queries], fuel), out);
  }

  close(): void {
    this.#sandbox.close();
  }
}
