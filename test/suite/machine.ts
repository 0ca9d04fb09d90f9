/**
 * A machine of the tests: a log of sessions, and threshold books that are opened over it and share them on a Qdrant
 * server.
 */
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import {
  type BookOptions,
  FINGERPRINT_VERSION,
  fingerprint,
  type LoggedEntry,
  openQdrantIndex,
  openThresholdBook,
  SESSION_FIELDS,
  type SessionRecord,
  sessionsOf,
  type ThresholdBook,
  type VectorIndex,
} from '../../memory/index.ts';
import type { QdrantProcess } from './qdrant-server.ts';

/** Where all sessions of the machines are. */
export const here = fingerprint({ layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64, tokens: 4096, pressure: 0.25 });
export const query = { modelDigest: 'm1', family: 'llama', fingerprint: here, layers: 2 };

/** The two entries of a session that ended at `seq`. */
export function sessionAt(seq: number, price = 1e-8): [LoggedEntry, LoggedEntry] {
  const session = `s${seq}`;
  const open = { model: { name: 'x', digest: 'm1', architecture: 'llama' }, policy: { id: 'price', version: 1 } };
  const close = {
    ...{ tokens: 4096, kvBytes: 1000, kvBytesF16: 4000, effectiveBits: 4, decisions: 3, refused: 1, reason: 'done' },
    ...{
      priceThreshold: price,
      predictedKld: 0.02,
      meanKld: null,
      fingerprint: here,
      gains: { k: [1, 1], v: [1, 1] },
      c: 4,
      costs: [{ layer: 1, side: 'v', cost: 4, rows: 8 }],
    },
  };
  return [
    { seq: seq - 1, session, kind: 'open', body: open },
    { seq, session, kind: 'close', body: close },
  ];
}

export interface MachineOptions {
  readonly id: string;
  readonly server: QdrantProcess;
  readonly collection: string;
  /** A folder in which it makes one of its own. */
  readonly root: string;
}

export class Machine {
  readonly log: LoggedEntry[] = [];
  readonly notes: string[] = [];
  readonly id: string;
  readonly #server: QdrantProcess;
  readonly #collection: string;
  readonly #dir: string;
  book!: ThresholdBook;

  constructor({ id, server, collection, root }: MachineOptions) {
    this.id = id;
    this.#server = server;
    this.#collection = collection;
    this.#dir = mkdtempSync(join(root, 'machine-'));
  }

  async open(url = this.#server.url, change: Partial<BookOptions> = {}): Promise<ThresholdBook> {
    this.book = await openThresholdBook({
      dir: this.#dir,
      logId: this.id,
      entries: (known) => this.log.filter(({ seq }) => seq >= Math.max(0, ...known)),
      shared: { url, collection: this.#collection },
      onShared: ({ trouble }) => this.notes.push(trouble === null ? 'back' : 'away'),
      ...change,
    });
    return this.book;
  }

  /**
   * Opens it until the server has all: a busy machine may take more than the two seconds that one opening waits for
   * that.
   */
  async catchUp(): Promise<void> {
    for (let tries = 0; tries < 50; tries++) {
      await this.book?.close();
      await this.open();
      if (this.book.status.shared!.waiting === 0) return;
    }
  }

  async record(seq: number, price?: number): Promise<void> {
    const entries = sessionAt(seq, price);
    this.log.push(...entries);
    await this.book.record(...entries);
  }

  /** What the server has of this log, asked without the book. */
  async there(): Promise<number[]> {
    const index = await openQdrantIndex<SessionRecord>({
      ...{ url: this.#server.url, collection: this.#collection, dim: here.length },
      ...{ fields: SESSION_FIELDS, version: FINGERPRINT_VERSION },
    });
    return (await seqsOf(index, this.id)).sort((a, b) => a - b);
  }

  get ends(): number[] {
    return [...sessionsOf(this.log, this.id, here.length)].map(({ id }) => id.seq).sort((a, b) => a - b);
  }
}

/** Seqs of everything that an index has of a log. */
export async function seqsOf<T extends object>(index: VectorIndex<T>, log: string): Promise<number[]> {
  const filter = { must: [{ field: 'log', equals: log }] };
  const seqs: number[] = [];
  for (let after: string | null = null; ; ) {
    const page: Awaited<ReturnType<typeof index.list>> = await index.list({
      filter,
      after,
      limit: 5000,
      deadlineMs: 30_000,
    });
    seqs.push(...page.items.map(({ id }) => id.seq));
    if (page.next === null) return seqs;
    after = page.next;
  }
}
