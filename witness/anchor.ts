/**
 * Anchoring while a log is written: signed checkpoints go to places outside of it, at the latest 64 entries or a second
 * behind the disk as long as the places take them. Nobody waits for that. Each place has one checkpoint on its way and
 * one that waits, the latest, because it covers what the ones before it covered; so memory is bounded however long a
 * place is away.
 */
import type { KeyObject } from 'node:crypto';
import { readPrivateKey } from '../memory/index.ts';
import { type AnchorTarget, anchorTarget } from './anchor-targets.ts';
import type { ChainEnd } from './batch.ts';
import { type AnchorOptions, signCheckpoint } from './checkpoint.ts';
import { headerKeyId, verifierOf } from './note.ts';
import { Pause } from './pause.ts';

const ENTRIES_MAX = 64;
const MS_MAX = 1000;
const RETRY_MS = 250;
const RETRY_MS_MAX = 30_000;
/** What closing waits for the places to take the last checkpoint. */
const CLOSE_MS_MAX = 5000;

/** Told when a place begins to refuse checkpoints, and when it takes them again. */
export type OnAway = (kind: AnchorTarget['kind'], isAway: boolean) => void;

/** A place, what was last kept there, and what waits for it. */
class Delivery {
  readonly #target: AnchorTarget;
  readonly #onAway: OnAway;
  #waiting: { readonly leaves: number; readonly note: string } | null = null;
  #run: Promise<void> | null = null;
  #isAway = false;
  #isClosing = false;
  readonly #pause = new Pause();
  /** Entries that a checkpoint there covers. */
  leaves = 0;

  constructor(target: AnchorTarget, onAway: OnAway) {
    this.#target = target;
    this.#onAway = onAway;
  }

  offer(leaves: number, note: string): void {
    this.#waiting = { leaves, note };
    this.#run ??= this.#deliver().finally(() => {
      this.#run = null;
    });
  }

  async #deliver(): Promise<void> {
    let pauseMs = RETRY_MS;
    for (let one = this.#waiting; one !== null; one = this.#waiting) {
      try {
        await this.#target.write(one.note);
        this.leaves = one.leaves;
        if (this.#waiting === one) this.#waiting = null;
        pauseMs = RETRY_MS;
        this.#setAway(false);
      } catch {
        this.#setAway(true);
        await this.#pause.wait(this.#isClosing ? RETRY_MS : pauseMs);
        pauseMs = Math.min(RETRY_MS_MAX, 2 * pauseMs);
      }
    }
  }

  #setAway(isAway: boolean): void {
    if (isAway === this.#isAway) return;
    this.#isAway = isAway;
    this.#onAway(this.#target.kind, isAway);
  }

  /** Gives what waits a last chance, and gives it up then. */
  async close(): Promise<void> {
    this.#isClosing = true;
    this.#pause.end();
    const giveUp = setTimeout(() => {
      this.#waiting = null;
      this.#pause.end();
    }, CLOSE_MS_MAX);
    await this.#run;
    clearTimeout(giveUp);
    await this.#target.close().catch(() => {});
  }
}

/** The anchoring of one writer. */
export class Anchor {
  readonly #key: KeyObject;
  readonly #deliveries: readonly Delivery[];
  #origin: { readonly logId: string; readonly series: number } | null = null;
  #latest: { readonly end: ChainEnd; readonly timeMs: number } | null = null;
  #signed = 0;
  #onAway: OnAway = () => {};
  #timer: NodeJS.Timeout | null = null;

  /** Throws 'bad-config' for a place that is none, 'bad-signature', 'not-found' or 'io' for the key. */
  constructor({ key, to }: AnchorOptions, logDir: string) {
    this.#key = readPrivateKey(key);
    this.#deliveries = to.map((where) => new Delivery(anchorTarget(where, logDir), (...told) => this.#onAway(...told)));
  }

  /** Who is told when a place is away, and when it is back. What it throws is ignored: the log may be closing. */
  tell(onAway: OnAway): void {
    this.#onAway = (...told) => {
      try {
        onAway(...told);
      } catch {
        // It is told whoever asks for `unanchoredEntries`.
      }
    };
  }

  /** Id of the key, for headers. */
  get keyId(): string {
    return headerKeyId(verifierOf(this.#key));
  }

  /**
   * What is signed from now on. `leaves`: entries that the series has already, which count as anchored by whoever wrote
   * them.
   */
  begin(logId: string, series: number, leaves: number): void {
    this.#origin = { logId, series };
    this.#signed = leaves;
    for (const delivery of this.#deliveries) delivery.leaves = leaves;
  }

  /** Entries that a checkpoint covers in at least one place. */
  get leaves(): number {
    return Math.max(0, ...this.#deliveries.map((one) => one.leaves));
  }

  /** These entries are on disk. `timeMs`: of the last of them. */
  advance(end: ChainEnd, timeMs: number): void {
    this.#latest = { end, timeMs };
    if (end.tree.leaves - this.#signed >= ENTRIES_MAX) this.#sign();
    else this.#timer ??= setTimeout(() => this.#sign(), MS_MAX);
  }

  #sign(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#latest === null || this.#origin === null) return;
    const { end, timeMs } = this.#latest;
    const { leaves } = end.tree;
    this.#latest = null;
    this.#signed = leaves;
    const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
    const hashes = { rootHash: hex(end.tree.root()), headHash: hex(end.headHash) };
    const note = signCheckpoint({ ...this.#origin, size: leaves, ...hashes, timeMs }, this.#key);
    for (const delivery of this.#deliveries) delivery.offer(leaves, note);
  }

  /** Signs what is left, and waits a moment for the places to take it. */
  async close(): Promise<void> {
    this.#sign();
    await Promise.all(this.#deliveries.map((one) => one.close()));
  }
}
