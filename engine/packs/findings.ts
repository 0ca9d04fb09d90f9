/** What is found while a contract is tried. */
import { KvError } from '../../native/index.ts';
import { CALL_FUEL } from './sandbox.ts';
import { type ContractProblem, type ContractReport, PACK_FAULTS, type PackFault } from './types.ts';

/** The numbers of one case. */
export type Case = Readonly<Record<string, number | string>>;

export class Findings {
  /** The first of each kind. */
  readonly #problems = new Map<PackFault, ContractProblem>();
  readonly #fuelPerToken: number;
  #calls = 0;
  #fuel = 0;
  #error = 0;

  /** fuelPerToken: as promised. */
  constructor(fuelPerToken: number) {
    this.#fuelPerToken = fuelPerToken;
  }

  found(check: PackFault, message: string, values: Case): void {
    if (!this.#problems.has(check)) this.#problems.set(check, { check, message, values });
  }

  /** What a case throws for a broken contract is a problem; anything else goes on. → false: it was thrown */
  try(values: Case, work: () => void): boolean {
    try {
      work();
      return true;
    } catch (error) {
      if (!(error instanceof KvError) || error.code !== 'bad-pack') throw error;
      this.found(error.values['fault'] as PackFault, error.message, values);
      return false;
    }
  }

  /** A call was made, for so many tokens, counted for heads of 128 channels and for queries. */
  called(name: string, used: number, tokens: number, values: Case): void {
    this.#calls++;
    if (tokens >= 64) this.#fuel = Math.max(this.#fuel, used / tokens);
    const most = this.#fuelPerToken * tokens + CALL_FUEL / 2;
    if (used > most) this.found('fuel', `${name} takes ${used}, where at most ${most} are promised`, values);
  }

  /** share: of a row, that is lost. */
  lost(share: number, most: number, values: Case): void {
    this.#error = Math.max(this.#error, share);
    if (!(share <= most)) this.found('error', `a row differs by ${share} of its norm, ${most} is promised`, values);
  }

  same(a: Uint8Array | Float32Array, b: Uint8Array | Float32Array, what: string, values: Case): void {
    if (!equalBytes(a, b)) this.found('repeat', `${what}: ${PACK_FAULTS.repeat}`, values);
  }

  get report(): ContractReport {
    return {
      kept: this.#problems.size === 0,
      calls: this.#calls,
      problems: [...this.#problems.values()],
      fuelPerToken: Math.ceil(this.#fuel),
      error: this.#error,
    };
  }
}

const bytesOf = (data: Uint8Array | Float32Array): Buffer => Buffer.from(data.buffer, data.byteOffset, data.byteLength);

export const equalBytes = (a: Uint8Array | Float32Array, b: Uint8Array | Float32Array): boolean =>
  bytesOf(a).equals(bytesOf(b));
