/**
 * An answer that is free until a call begins, from where on it follows the grammar of calls; or in which no call may
 * begin.
 */
import type { Constraint, Following, TokenMask } from '../../../transformer/grammar/constraint.ts';
import type { CallWatch } from './watch.ts';

export class CallFollowing implements Following {
  readonly #watch: CallWatch;
  /** null: no call may begin. */
  readonly #call: Constraint | null;
  #hasBegun = false;

  /** Owns the constraint. */
  constructor(watch: CallWatch, call: Constraint | null) {
    this.#watch = watch;
    this.#call = call;
  }

  get mask(): TokenMask | null {
    return this.#hasBegun ? this.#call!.mask : null;
  }

  get isComplete(): boolean | null {
    return this.#hasBegun ? this.#call!.isComplete : null;
  }

  get isOver(): boolean {
    return this.#hasBegun && this.#call!.isOver;
  }

  /** A token that would begin a call, and say more behind its mark than a call can. */
  async refuses(id: number): Promise<boolean> {
    const begun = this.#hasBegun ? null : this.#watch.begun(id);
    return begun !== null && (await this.#call?.admits(begun)) !== true;
  }

  async accept(id: number): Promise<void> {
    if (this.#hasBegun) return this.#call!.accept(id);
    const begun = this.#watch.begun(id);
    if (begun === null) return this.#watch.push(id);
    this.#hasBegun = true;
    await this.#call!.begin(begun);
  }

  async fulfils(text: string): Promise<boolean> {
    return !this.#hasBegun || this.#call!.fulfils(text);
  }

  close(): void {
    this.#call?.close();
  }
}
