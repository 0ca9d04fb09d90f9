/**
 * The mover: the one place where a page changes its form. A change happens and becomes an entry of the log, or neither; a planned
 * move that was refused becomes an entry as well.
 */
import { assert, FORMATS, type KvCache, type Part, type Side } from '../../native/index.ts';
import {
  type Decision,
  type FormChange,
  isLatent,
  type Outcome,
  type PageForm,
  type Situation,
  type Verdict,
} from '../../policy/index.ts';
import type { ChangeBody, EntryBodies, WitnessLog } from '../../witness/index.ts';
import type { Meter } from '../metrics/meter.ts';
import type { Canaries } from './canaries.ts';
import { formsOf, latentOf } from './forms.ts';

/** Milliseconds that deciding took. */
export interface Spent {
  /** All that is not one of the others. */
  decideMs: number;
  trialMs: number;
  transcodeMs: number;
  witnessMs: number;
}

export interface LayerCounts {
  tried: number;
  accepted: number;
  refused: number;
  epsilonMax: number | null;
}

export class Mover {
  decisions = 0;
  refused = 0;
  /** Log entry of the accepted move with the largest ε so far: the one worth asking about. */
  notable: {
    readonly seq: number;
    readonly epsilon: number;
    readonly layer: number;
    readonly page: number;
    readonly side: Part;
    readonly from: PageForm;
    readonly to: PageForm;
  } | null = null;
  readonly #session: string;
  readonly #cache: KvCache;
  readonly #log: WitnessLog | null;
  readonly #meter: Meter;
  readonly #counts: readonly LayerCounts[];
  readonly #spent: Spent;
  readonly #canaries: Canaries;
  /** Latents go with the first of a page's sides that moves. */
  readonly #dropsLatents: boolean;
  readonly #onMove: (move: FormChange, bytesBefore: number) => void;
  #outcomes: Outcome[] = [];
  #changes: FormChange[] = [];

  constructor(
    session: string,
    cache: KvCache,
    log: WitnessLog | null,
    meter: Meter,
    counts: readonly LayerCounts[],
    spent: Spent,
    canaries: Canaries,
    dropsLatents: boolean,
    onMove: (move: FormChange, bytesBefore: number) => void,
  ) {
    this.#session = session;
    this.#cache = cache;
    this.#log = log;
    this.#meter = meter;
    this.#counts = counts;
    this.#spent = spent;
    this.#canaries = canaries;
    this.#dropsLatents = dropsLatents;
    this.#onMove = onMove;
  }

  get waitingOutcomes(): number {
    return this.#outcomes.length;
  }

  /** What became of the moves since the last call, the first `most` of it. */
  takeOutcomes(most: number): readonly Outcome[] {
    const outcomes = this.#outcomes;
    this.#outcomes = outcomes.slice(most);
    return outcomes.length <= most ? outcomes : outcomes.slice(0, most);
  }

  /**
   * Carries out a decision if its verdict accepts it, and logs it either way. `usedBytes`: before the move, without kept originals, which may
   * take `canaryBytesMax`. → bytes freed
   */
  carryOut(
    { index, tokens }: Situation,
    order: number,
    decision: Decision,
    epsilonNow: number | null,
    verdict: Verdict,
    usedBytes: number,
    canaryBytesMax: number,
  ): number {
    const { layer, page, side, from, to } = decision;
    const { accepted } = verdict;
    const bytesFreed = accepted ? this.#move(decision, tokens, canaryBytesMax) : 0;
    if (accepted) this.#onMove({ layer, page, side, from, to }, usedBytes);
    this.#count(layer, accepted, decision.epsilonTo);
    this.#meter.decision(decision, verdict);
    this.#outcomes.push({ layer, page, side, from, to, accepted, epsilonNow, bytesFreed });
    const seq = this.write('decision', {
      situation: index,
      order,
      decision,
      epsilonNow,
      verdict,
      bytesBefore: usedBytes,
      bytesAfter: usedBytes - bytesFreed,
      tokens,
    });
    if (seq === null && this.#log !== null) this.#meter.dropped.add({});
    const epsilon = decision.epsilonTo ?? 0;
    if (accepted && seq !== null && epsilon >= (this.notable?.epsilon ?? 0))
      this.notable = { seq, epsilon, layer, page, side, from, to };
    return bytesFreed;
  }

  /** Makes a change of a page that no policy decided, and tells the policy and the log. → bytes freed */
  change(cause: ChangeBody['cause'], layer: number, page: number, tokens: number, work: () => number): number {
    const before = formsOf(this.#cache, layer, page);
    const bytesBefore = this.#cache.usedBytes;
    const bytesFreed = work();
    this.#canaries.sync();
    const after = formsOf(this.#cache, layer, page);
    // Both sides of a page that was held as a latent are in the format in which they were made again.
    const changes = before.map(({ side, form: from }, i) => ({ layer, page, side, from, to: after[i]!.form }));
    this.tell(
      cause,
      changes.filter(({ from, to }) => from !== to),
      bytesBefore,
      tokens,
    );
    return bytesFreed;
  }

  /** Pages have changed their form: the log has it, and the next situation tells the policy. */
  tell(cause: ChangeBody['cause'], changes: readonly FormChange[], bytesBefore: number, tokens: number): void {
    if (changes.length === 0) return;
    this.#changes.push(...changes);
    this.write('change', { cause, changes, bytesBefore, bytesAfter: this.#cache.usedBytes, tokens });
  }

  takeChanges(): readonly FormChange[] {
    const changes = this.#changes;
    this.#changes = [];
    return changes;
  }

  write<K extends keyof EntryBodies>(kind: K, body: EntryBodies[K]): number | null {
    if (this.#log === null) return null;
    const start = performance.now();
    const seq = this.#log.append(this.#session, kind, body);
    const ms = performance.now() - start;
    this.#spent.witnessMs += ms;
    this.#meter.appendSeconds.observe(ms / 1000);
    return seq;
  }

  #move(decision: Decision, tokens: number, canaryBytesMax: number): number {
    const { side } = decision;
    const start = performance.now();
    const bytesFreed =
      side === 'kv' ? this.#toLatent(decision) : this.#transcode(decision, side, tokens, canaryBytesMax);
    if (!this.#isIn(decision)) this.#meter.mismatches.add({});
    this.#spent.transcodeMs += performance.now() - start;
    return bytesFreed;
  }

  /** Whether a page is in the form that was decided: asked of the cache, not of what was asked of it. */
  #isIn({ layer, page, side, to }: Decision): boolean {
    if (side !== 'kv') return this.#cache.format(layer, page, side) === to;
    const latent = latentOf(this.#cache.table(layer), page);
    return latent?.isHeld === true && latent.name === to;
  }

  #toLatent({ layer, page, from, to }: Decision): number {
    assert(isLatent(to), `layer ${layer} page ${page} is to go from ${from} to ${to}, which is no latent`);
    return this.#cache.toLatent(layer, page, to);
  }

  #transcode(decision: Decision, side: Side, tokens: number, canaryBytesMax: number): number {
    const { layer, page, from, to } = decision;
    assert(
      !isLatent(from) && !isLatent(to),
      `the ${side} side of layer ${layer} page ${page} is to go from ${from} to ${to}`,
    );
    // It can no longer take the place of both sides.
    const latentBytes =
      this.#dropsLatents && latentOf(this.#cache.table(layer), page) !== null ? this.#cache.dropLatent(layer, page) : 0;
    const now = this.#cache.format(layer, page, side);
    // A page that was restored from its latent is better than the policy knows, and may still be moved.
    if (FORMATS[now].rank > FORMATS[from].rank)
      assert(false, `decision of layer ${layer} page ${page} ${side} says ${from}, the cache says ${now}`);
    const isFiner = FORMATS[to].rank < FORMATS[now].rank;
    const bytesFreed = isFiner
      ? this.#canaries.restore(layer, page, side)
      : this.#canaries.before({ ...decision, side, from, to }, tokens, canaryBytesMax) +
        this.#cache.transcode(layer, page, side, to);
    return latentBytes + bytesFreed;
  }

  #count(layer: number, accepted: boolean, epsilon: number | null): void {
    this.decisions++;
    const counts = this.#counts[layer]!;
    if (!accepted) {
      this.refused++;
      counts.refused++;
      return;
    }
    counts.accepted++;
    if (epsilon !== null) counts.epsilonMax = Math.max(counts.epsilonMax ?? 0, epsilon);
  }
}
