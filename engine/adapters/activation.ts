/**
 * From which token on each adapter of a session adds to its rows. LoRA adds to all. Activated LoRA (Greenewald et al.
 * 2025, arXiv 2504.12397) adds from the first token of the last place on where a prompt has its invocation, and to none
 * where no prompt has it: the rows before are those of the model without it, and so are their pages.
 */
import { firstToken } from '../../native/index.ts';
import type { ScaledAdapter } from '../transformer/types.ts';
import type { AdapterSet } from './adapters.ts';

/** An adapter of a log or a file, and the first token whose row it adds to; null: it adds to none so far. */
export interface Activated {
  readonly digest: string;
  readonly since: number | null;
}

/** Where an invocation begins for the last time; null: nowhere. */
function lastPlace(tokens: readonly number[], invocation: readonly number[]): number | null {
  for (let at = tokens.length - invocation.length; at >= 0; at--)
    if (invocation.every((id, i) => tokens[at + i] === id)) return at;
  return null;
}

export class Activation {
  /** Those that add to some rows, in the order in which they add. */
  readonly scaled: readonly ScaledAdapter[];
  readonly #set: AdapterSet | null;
  /** By adapter; null: it adds to no row. */
  readonly #since: readonly (number | null)[];

  private constructor(set: AdapterSet | null, since: readonly (number | null)[]) {
    this.#set = set;
    this.#since = since;
    this.scaled = (set?.scaled ?? []).flatMap((one, at) => {
      const from = since[at]!;
      return from === null ? [] : [from === 0 ? one : { ...one, since: from }];
    });
  }

  /** Before anything was read. */
  static none(set: AdapterSet | null): Activation {
    return new Activation(set, set?.invocations.map((invocation) => (invocation === null ? 0 : null)) ?? []);
  }

  /** True if a prompt can change it. */
  get isOpen(): boolean {
    return this.#set?.invocations.some((invocation) => invocation !== null) ?? false;
  }

  /** What it is behind a prompt that ends with the last of these tokens, which are all. */
  behind(tokens: readonly number[]): Activation {
    if (!this.isOpen) return this;
    const { invocations } = this.#set!;
    return new Activation(
      this.#set,
      invocations.map((invocation) => (invocation === null ? 0 : lastPlace(tokens, invocation))),
    );
  }

  /** The first token whose row another one computes otherwise; ∞: they are the same. */
  differsAt(other: Activation): number {
    const least = this.#since.map((since, at) => {
      const others = other.#since[at] ?? null;
      return since === others ? null : Math.min(since ?? others!, others ?? since!);
    });
    return Math.min(...least.map((token) => token ?? Number.POSITIVE_INFINITY));
  }

  /** What the key of a page has beside its tokens and what comes before it: who adds, and from which row on. */
  keyOf(page: number): string | null {
    if (!this.isOpen) return null;
    const { invocations, applied } = this.#set!;
    const active = applied.flatMap(({ digest, scale }, at) => {
      const since = this.#since[at]!;
      const adds = invocations[at] !== null && since !== null && since < firstToken(page + 1);
      return adds ? [[digest, scale, Math.max(0, since - firstToken(page))]] : [];
    });
    return active.length === 0 ? null : JSON.stringify(active);
  }

  /** Of those that have an invocation, for a log. */
  get activated(): readonly Activated[] {
    const { invocations = [], applied = [] } = this.#set ?? {};
    return applied.flatMap(({ digest }, at) => (invocations[at] === null ? [] : [{ digest, since: this.#since[at]! }]));
  }

  /** The same as a log says it was. */
  as(activated: readonly Activated[]): Activation {
    if (!this.isOpen) return this;
    const { invocations, applied } = this.#set!;
    // One adapter may be there twice, with two scales: both add from the same token on.
    const since = new Map(activated.map((one) => [one.digest, one.since]));
    return new Activation(
      this.#set,
      applied.map(({ digest }, at) => (invocations[at] === null ? 0 : (since.get(digest) ?? null))),
    );
  }
}
