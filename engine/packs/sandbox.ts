/**
 * One instance of an instrumented module, and how it is called: arrays go into its memory above `__heap_base`, 64 bytes
 * of a pattern stand before and behind the output, and a call has so much fuel. Whatever goes wrong ends the instance,
 * since nobody knows what its memory is by then.
 */
import { KvError } from '../../native/index.ts';
import { type CompiledModule, machine, type PackExports } from './machine.ts';
import { PACK_FAULTS, type PackFault } from './types.ts';

/** The version of the interface that is served: what pack_abi answers. */
const ABI = 1;
/** Fuel of a call besides that of its tokens. */
export const CALL_FUEL = 10_000;
/** Fuel is counted in 32 bits with a sign. */
const FUEL_MOST = 2 ** 31 - 1;
const GUARD_BYTES = 64;
const ALIGNMENT = 16;
/** Four of these bytes are no number. */
const UNWRITTEN = 0xff;

const PATTERN = Uint8Array.from({ length: GUARD_BYTES }, (_, at) => (at * 151 + 89) & 0xff);
const WORDS = new Int32Array(PATTERN.buffer);

/** The error for a module that broke its contract. */
export const brokeContract = (
  fault: PackFault,
  detail: string,
  values: Readonly<Record<string, unknown>> = {},
  cause?: unknown,
): KvError =>
  new KvError('bad-pack', `a kernel pack broke its contract: ${PACK_FAULTS[fault]} (${detail})`, {
    values: { fault, ...values },
    hint: 'this instance is not used any more; what it was asked for is computed by another form',
    cause,
  });

/** An array of a call: what goes in, and how many bytes there are. */
export interface Area {
  readonly bytes: number;
  readonly given?: Uint8Array | Float32Array;
  /** The call writes it. */
  readonly isOutput?: boolean;
  /** What stands in every byte of an output that is not given: by default what makes no number, so that gaps show. */
  readonly filled?: number;
}

type Call = (...given: number[]) => number;

const aligned = (at: number): number => Math.ceil(at / ALIGNMENT) * ALIGNMENT;

export class Sandbox {
  readonly #exports: PackExports;
  readonly #base: number;
  readonly #bytes: Uint8Array;
  readonly #words: Int32Array;
  readonly #floats: Float32Array;
  #isOver = false;
  #fuelUsed = 0;

  /** Throws 'bad-pack' for a module that cannot be opened, or is of another interface. module: instrumented. */
  constructor(module: CompiledModule) {
    try {
      this.#exports = new machine.Instance(module, {}).exports;
      this.#bytes = new Uint8Array(this.#exports.memory.buffer);
    } catch (cause) {
      throw brokeContract('trap', (cause as Error).message, {}, cause);
    }
    this.#words = new Int32Array(this.#bytes.buffer);
    this.#floats = new Float32Array(this.#bytes.buffer);
    this.#base = aligned(this.#exports.__heap_base.value >>> 0);
    const abi = this.ask('pack_abi', [], CALL_FUEL);
    if (abi !== ABI) throw brokeContract('abi', `${abi}, where ${ABI} is served`, { abi });
  }

  /** Fuel that the last call used. */
  get fuelUsed(): number {
    return this.#fuelUsed;
  }

  /** Bytes of its memory. */
  get roomBytes(): number {
    return this.#bytes.length;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  close(): void {
    this.#isOver = true;
  }

  /** Calls a function that has no arrays. → what it returns */
  ask(name: string, given: readonly number[], fuel: number): number {
    if (this.#isOver)
      throw new KvError('closed', 'this instance of a kernel pack was closed, or broke its contract', {
        values: { call: name },
        hint: 'open another one',
      });
    const { fuel: tank, [name]: found } = this.#exports;
    if (typeof found !== 'function') throw this.over('abi', `there is no ${name}`);
    const full = Math.min(Math.ceil(fuel), FUEL_MOST);
    tank.value = full;
    try {
      return (found as Call)(...given);
    } catch (cause) {
      const fault = tank.value < 0 ? 'fuel' : 'trap';
      throw this.over(fault, fault === 'fuel' ? `${full} in ${name}` : `${name}: ${(cause as Error).message}`, cause);
    } finally {
      this.#fuelUsed = full - tank.value;
      tank.value = 0;
    }
  }

  /**
   * Calls a function with arrays, then numbers. → where the output begins, in bytes. Throws 'bad-pack' with the fault
   * in its values.
   */
  call(name: string, areas: readonly Area[], numbers: readonly number[], fuel: number): number {
    const given: number[] = [];
    let [end, output] = [this.#base, 0];
    for (let i = 0; i < areas.length; i++) {
      const { bytes, isOutput } = areas[i]!;
      const at = isOutput === true ? aligned(end + GUARD_BYTES) : end;
      given.push(at);
      end = aligned(at + bytes + (isOutput === true ? GUARD_BYTES : 0));
      if (isOutput === true) output = i;
    }
    if (end > this.#bytes.length)
      throw this.over('memory', `${end} bytes for ${name}, of ${this.#bytes.length}`, undefined, { wanted: end });
    for (let i = 0; i < areas.length; i++) this.#put(areas[i]!, given[i]!);
    given.push(...numbers);
    const start = given[output]!;
    const behind = start + areas[output]!.bytes;
    this.#guard(start, behind);
    const status = this.ask(name, given, fuel);
    if (!this.#isGuarded(start, behind)) throw this.over('guard band', name);
    if (status !== 0) throw this.over('status', `${name} returned ${status}`, undefined, { status });
    return start;
  }

  #put({ bytes, given, filled = UNWRITTEN }: Area, at: number): void {
    if (given === undefined) this.#bytes.fill(filled, at, at + bytes);
    else if (given instanceof Float32Array) this.#floats.set(given, at / 4);
    else this.#bytes.set(given, at);
  }

  /** A copy of numbers of the output. Throws 'bad-pack' unless all are finite. */
  floats(name: string, start: number, into: Float32Array): Float32Array {
    const found = this.#floats.subarray(start / 4, start / 4 + into.length);
    const rest = found.length % 4;
    const isSound = this.#exports.finite(start, start + 4 * (found.length - rest)) === 1;
    if (!isSound || !found.subarray(found.length - rest).every(Number.isFinite)) throw this.over('not finite', name);
    into.set(found);
    return into;
  }

  bytes(start: number, count: number): Uint8Array {
    return this.#bytes.slice(start, start + count);
  }

  /** Ends the instance. → the error to throw */
  over(fault: PackFault, detail: string, cause?: unknown, values: Readonly<Record<string, unknown>> = {}): KvError {
    this.close();
    return brokeContract(fault, detail, values, cause);
  }

  #guard(start: number, behind: number): void {
    this.#words.set(WORDS, (start - GUARD_BYTES) / 4);
    this.#bytes.set(PATTERN, behind);
  }

  #isGuarded(start: number, behind: number): boolean {
    const from = (start - GUARD_BYTES) / 4;
    for (let i = 0; i < WORDS.length; i++) if (this.#words[from + i] !== WORDS[i]) return false;
    for (let i = 0; i < GUARD_BYTES; i++) if (this.#bytes[behind + i] !== PATTERN[i]) return false;
    return true;
  }
}
