/**
 * Loads a WebAssembly build (native/wasm/, scripts/build-wasm.mjs) and returns the same classes and functions as the
 * addon. The module itself lists what can be called. A call writes its arguments into the module's memory, copies typed
 * arrays there and back, and throws what the module throws.
 *
 * An instance has one thread and its own memory of at most 4 GiB. When that is full, a call returns the same status as
 * the addon does when the system has no memory left.
 */
import { readFileSync } from 'node:fs';
import { padded, STATUS_NO_MEMORY } from './layout.ts';

/** The kinds of values, as in native/wasm/napi.h. */
const UNDEFINED = 0;
const NULL = 1;
const BOOLEAN = 2;
const NUMBER = 3;
const TYPED_ARRAY = 4;
const OBJECT = 5;
const OTHER = 6;
const JSON_TEXT = 7;

/** The typed arrays in the order of napi_typedarray_type. */
const ARRAY_TYPES = [
  'Int8Array',
  'Uint8Array',
  'Uint8ClampedArray',
  'Int16Array',
  'Uint16Array',
  'Int32Array',
  'Uint32Array',
  'Float32Array',
  'Float64Array',
];

const SLOT_BYTES = 24;
const SLOTS = 32;
const ALIGN = 64;
/** How much memory for arrays is kept between calls. What a call needs beyond that is freed after it. */
const KEPT_BYTES = 4 << 20;

/**
 * The bytes of a page of WebAssembly, how many pages a module begins with (scripts/build-wasm.mjs), and how many 32
 * bits can address.
 */
const PAGE_BYTES = 65536;
const INITIAL_PAGES = 64;
const MEMORY_BYTES = 2 ** 32;

/** An exception of the module. Kind 0 means that its memory is full, 1 is a TypeError and 2 a RangeError. */
class Thrown extends Error {
  readonly kind: number;
  constructor(kind: number, text: string) {
    super(text);
    this.kind = kind;
  }
}

interface Exports {
  readonly __stack_pointer: { value: number };
  _initialize(): void;
  surface(): void;
  slotsAddress(): number;
  numberAddress(): number;
  textAddress(): number;
  textLength(): number;
  allocate(bytes: number): number;
  release(address: number): void;
  construct(maker: number): number;
  destroy(address: number): void;
  call(callee: number, self: number, count: number): number;
}

interface Surface {
  readonly [name: string]:
    | number
    | { readonly constructor: number; readonly methods: Readonly<Record<string, number>> };
}

/** The part of the global WebAssembly object that we use. TypeScript declares it only in its types for browsers. */
interface WebAssemblyNamespace {
  readonly Module: {
    new (bytes: Uint8Array): object;
    imports(module: object): { module: string; name: string }[];
  };
  readonly Memory: new (pages: { initial: number; maximum: number }) => { readonly buffer: ArrayBuffer };
  readonly Instance: new (module: object, imports: Record<string, Record<string, unknown>>) => { exports: unknown };
}

/** The WASI calls that the C library makes to write a message before it aborts. There is nowhere to write it. */
const NOT_SUPPORTED = 52;

class WasmBinding {
  readonly #exports: Exports;
  readonly #memory: { readonly buffer: ArrayBuffer };
  readonly #slots: number;
  readonly #number: number;
  /** The address of every handle that JavaScript holds. */
  readonly #addresses = new WeakMap<object, number>();
  readonly #collected: FinalizationRegistry<number>;
  #room = 0;
  #roomBytes = 0;
  #view: DataView;

  constructor(file: string, memoryBytes: number) {
    const { Module, Memory, Instance } = (globalThis as unknown as { WebAssembly: WebAssemblyNamespace }).WebAssembly;
    const module = new Module(readFileSync(file));
    const imports: Record<string, Record<string, unknown>> = {};
    for (const { module: space, name } of Module.imports(module)) {
      imports[space] ??= {};
      imports[space][name] = () => NOT_SUPPORTED;
    }
    this.#memory = new Memory({ initial: INITIAL_PAGES, maximum: Math.ceil(memoryBytes / PAGE_BYTES) });
    imports.env = { memory: this.#memory };
    imports.palimpsest = {
      fail: (kind: number, text: number, length: number) => {
        throw new Thrown(kind, this.#text(text, length));
      },
    };
    this.#exports = new Instance(module, imports).exports as Exports;
    this.#collected = new FinalizationRegistry((address) => this.#exports.destroy(address));
    this.#view = new DataView(this.#memory.buffer);
    this.#exports._initialize();
    this.#slots = this.#exports.slotsAddress();
    this.#number = this.#exports.numberAddress();
  }

  #text(address: number, length: number): string {
    return Buffer.from(this.#memory.buffer, address, length).toString();
  }

  /** The memory as numbers. The array is made anew when the memory has grown. */
  #numbers(): DataView {
    const { buffer } = this.#memory;
    if (this.#view.buffer !== buffer) this.#view = new DataView(buffer);
    return this.#view;
  }

  /**
   * Runs a call into the module. If it throws, the stack pointer of the module is set back to where it was before the
   * call.
   */
  #enter<Result>(work: () => Result): Result {
    const stack = this.#exports.__stack_pointer.value;
    try {
      return work();
    } catch (error) {
      this.#exports.__stack_pointer.value = stack;
      throw error;
    }
  }

  /** Functions and classes by name. */
  surface(): Record<string, unknown> {
    this.#exports.surface();
    const about = JSON.parse(this.#text(this.#exports.textAddress(), this.#exports.textLength())) as Surface;
    return Object.fromEntries(
      Object.entries(about).map(([name, what]) => [
        name,
        typeof what === 'number'
          ? (...given: unknown[]) => this.#call(what, 0, given)
          : this.#class(name, what.constructor, what.methods),
      ]),
    );
  }

  #class(name: string, maker: number, methods: Readonly<Record<string, number>>): unknown {
    // A method of one class with a handle of another is refused, as V8 refuses it for the addon.
    const own = new WeakSet<object>();
    const create = (handle: object): void => {
      const address = this.#enter(() => this.#exports.construct(maker));
      own.add(handle);
      this.#addresses.set(handle, address);
      this.#collected.register(handle, address);
    };
    const Handle = {
      [name]: class {
        constructor() {
          create(this);
        }
      },
    }[name]!;
    for (const [method, callee] of Object.entries(methods)) {
      const call = (handle: object, given: unknown[]): unknown => {
        const address = this.#addresses.get(handle);
        if (address === undefined || !own.has(handle)) throw new TypeError('Illegal invocation');
        return this.#call(callee, address, given);
      };
      Object.defineProperty(Handle.prototype, method, {
        value(this: object, ...given: unknown[]) {
          return call(this, given);
        },
      });
    }
    return Handle;
  }

  #call(callee: number, self: number, given: readonly unknown[]): unknown {
    const count = Math.min(given.length, SLOTS);
    const arrays: [ArrayBufferView, number][] = [];
    try {
      return this.#enter(() => {
        this.#write(given, count, arrays);
        const kind = this.#exports.call(callee, self, count);
        this.#copyBack(arrays);
        if (kind === NUMBER) return this.#numbers().getFloat64(this.#number, true);
        if (kind !== JSON_TEXT) return undefined;
        return JSON.parse(this.#text(this.#exports.textAddress(), this.#exports.textLength()));
      });
    } catch (error) {
      if (!(error instanceof Thrown)) throw error;
      if (error.kind === 1) throw new TypeError(error.message);
      if (error.kind === 2) throw new RangeError(error.message);
      return STATUS_NO_MEMORY;
    } finally {
      if (this.#roomBytes > KEPT_BYTES) this.#makeRoom(0);
    }
  }

  /** Makes room for at least so many bytes of arrays; 0 frees it. */
  #makeRoom(bytes: number): void {
    if (bytes !== 0 && bytes <= this.#roomBytes) return;
    this.#exports.release(this.#room);
    this.#room = 0;
    this.#roomBytes = 0;
    if (bytes === 0) return;
    const room = bytes > 0xffff_ffff ? 0 : this.#exports.allocate(bytes) >>> 0;
    if (room === 0) throw new Thrown(0, 'no memory');
    this.#room = room;
    this.#roomBytes = bytes;
  }

  /** Writes the arguments into the slots. Arrays are copied to addresses with the same alignment as their own. */
  #write(given: readonly unknown[], count: number, arrays: [ArrayBufferView, number][]): void {
    let bytes = 0;
    for (let i = 0; i < count; i++) {
      const value = given[i];
      if (!ArrayBuffer.isView(value) || value.byteLength === 0) continue; // Detached arrays have no bytes either.
      const at = padded(bytes, ALIGN) + (value.byteOffset % ALIGN);
      arrays.push([value, at]);
      bytes = at + value.byteLength;
    }
    if (bytes > 0) this.#makeRoom(bytes);
    const memory = new Uint8Array(this.#memory.buffer);
    for (const pair of arrays) {
      pair[1] += this.#room;
      memory.set(bytesOf(pair[0]), pair[1]);
    }
    const numbers = this.#numbers();
    let next = 0;
    for (let i = 0; i < count; i++) {
      const value = given[i];
      const slot = this.#slots + i * SLOT_BYTES;
      let kind = OTHER;
      if (value === undefined) kind = UNDEFINED;
      else if (value === null) kind = NULL;
      else if (typeof value === 'boolean' || typeof value === 'number') {
        kind = typeof value === 'boolean' ? BOOLEAN : NUMBER;
        numbers.setFloat64(slot + 16, Number(value), true);
      } else if (ArrayBuffer.isView(value)) {
        const type = ARRAY_TYPES.indexOf(Object.prototype.toString.call(value).slice(8, -1));
        const address = value.byteLength === 0 ? this.#slots : arrays[next++]![1];
        if (type >= 0) {
          kind = TYPED_ARRAY;
          numbers.setUint32(slot + 4, type, true);
          numbers.setUint32(slot + 8, address, true);
          numbers.setUint32(slot + 12, (value as Uint8Array).length, true);
        }
      } else if (typeof value === 'object') {
        const address = this.#addresses.get(value);
        if (address !== undefined) {
          kind = OBJECT;
          numbers.setUint32(slot + 8, address, true);
        }
      }
      numbers.setUint32(slot, kind, true);
    }
  }

  /** Copies all arrays back, because only the call knows which of them it has written. */
  #copyBack(arrays: readonly [ArrayBufferView, number][]): void {
    const memory = new Uint8Array(this.#memory.buffer);
    for (const [array, at] of arrays) bytesOf(array).set(memory.subarray(at, at + array.byteLength));
  }
}

const bytesOf = (array: ArrayBufferView): Uint8Array =>
  new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

/**
 * Loads a module whose memory may grow to memoryBytes, and returns what the addon of that name would export. Throws
 * what reading and compiling it throw.
 */
export function openWasm(file: string, memoryBytes = MEMORY_BYTES): unknown {
  return new WasmBinding(file, memoryBytes).surface();
}
