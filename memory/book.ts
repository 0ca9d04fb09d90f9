/**
 * The threshold book: asks which earlier sessions were like this one and what they ended with, and remembers how this
 * one ended. The log is the truth: the book's index is filled from it whenever its files cannot be trusted or are behind.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { KvError } from '../native/index.ts';
import type { Threshold, ThresholdSet } from '../policy/index.ts';
import { C_DEFAULT, evidenceOf, lawConstant, type Sample, startPrice } from './estimate.ts';
import { checkExperience, experiencesOf, type LoggedEntry } from './experience.ts';
import { checkFingerprint, FINGERPRINT_DIM, FINGERPRINT_VERSION } from './fingerprint.ts';
import { openVectorIndex } from './open-index.ts';
import {
  checkThresholdTarget,
  type EvidenceLog,
  readThresholdFile,
  type ThresholdFile,
  type ThresholdTarget,
  toThresholdFile,
  toThresholdSet,
  writeThresholdFile,
} from './threshold-file.ts';
import type { Experience, Fingerprint, Lookup, Neighbour, VectorIndex } from './types.ts';

/** Number of sessions asked for. A larger number only adds sessions that are farther away. Chosen, not measured. */
const NEIGHBOURS = 8;
/** Distance at which a session counts e^−½: a quarter of the price axis, i.e. budgets of 25% and 19%. Chosen. */
const BANDWIDTH = 0.25;
/** What a session of another model of the same family counts against one of the same model. Chosen. */
const FAMILY_WEIGHT = 0.25;
/** Evidence worth less than this is no evidence. */
const WEIGHT_MIN = 0.05;

/** Seqs that each writer of a log has for himself. */
const WRITER_SEQS = 2 ** 32;

export interface BookOptions {
  /** Folder of the book, created when missing; null: memory only. */
  readonly dir: string | null;
  /** Id of the log that experiences come from; a book of another log is thrown away. */
  readonly logId: string;
  /**
   * 'open' and 'close' entries of that log in order (others are passed over): all, or without those that a writer made before any of
   * his entries in `known`. Called to rebuild and to catch up.
   */
  readonly entries: (known: readonly number[]) => Iterable<LoggedEntry>;
  /** Changes nothing in `dir`: for callers that only ask, and where another process keeps the book. */
  readonly readOnly?: boolean;
}

export interface LookupQuery {
  readonly modelDigest: string;
  /** Architecture of the model: 'llama', 'qwen2' … */
  readonly family: string;
  readonly fingerprint: Fingerprint;
  readonly layers: number;
  /** Thresholds that stand where nothing is known. */
  readonly defaults?: ThresholdSet;
}

export interface ThresholdBook {
  readonly count: number;
  /** Seqs of the experiences in the book, ascending. */
  readonly seqs: readonly number[];
  /** Why the index was built again when it was opened; null when it was good. */
  readonly rebuilt: string | null;
  /** Start values for a session. Never throws for want of evidence. */
  lookup(query: LookupQuery): Promise<Lookup>;
  /** Adds what a session taught and saves. The same seq again replaces. Throws 'bad-argument', 'io'. */
  record(experience: Experience): Promise<void>;
  /** The k experiences nearest to a fingerprint, of any model. */
  similar(fingerprint: Fingerprint, k: number): Promise<Neighbour<Experience>[]>;
  /** Forgets everything and reads it again from the log. → experiences */
  rebuildFrom(entries: Iterable<LoggedEntry>): Promise<number>;
  /** What to export for a model: what was imported for it, as long as nothing was learned here; else what all its sessions here say. */
  exportFile(
    target: ThresholdTarget & { readonly family: string; readonly defaults?: ThresholdSet },
    log: EvidenceLog | null,
  ): Promise<ThresholdFile>;
  close(): Promise<void>;
}

interface Weighted {
  readonly experience: Experience;
  readonly weight: number;
  readonly sameModel: boolean;
}

/** The index knows an experience by a number of 32 bits, the log by its seq. */
class Labels extends Map<number, number> {
  next = 0;

  override set(seq: number, label: number): this {
    this.next = Math.max(this.next, label + 1);
    return super.set(seq, label);
  }
}

class Book implements ThresholdBook {
  readonly #dir: string | null;
  readonly #index: VectorIndex<Experience>;
  readonly #labels: Labels;
  #rebuilt: string | null;

  constructor(dir: string | null, index: VectorIndex<Experience>, labels: Labels, rebuilt: string | null) {
    this.#dir = dir;
    this.#index = index;
    this.#labels = labels;
    this.#rebuilt = rebuilt;
  }

  get rebuilt(): string | null {
    return this.#rebuilt;
  }

  get count(): number {
    return this.#index.count;
  }

  get seqs(): number[] {
    return [...this.#labels.keys()].sort((a, b) => a - b);
  }

  async lookup(query: LookupQuery): Promise<Lookup> {
    checkFingerprint(query.fingerprint);
    checkLayers(query.layers);
    const near = await this.#near(query);
    const weighted = near.map(({ distance, payload }): Weighted => {
      const sameModel = payload.modelDigest === query.modelDigest;
      const weight = Math.exp(-distance / (2 * BANDWIDTH ** 2)) * (sameModel ? 1 : FAMILY_WEIGHT);
      return { experience: payload, weight: weight < WEIGHT_MIN ? 0 : weight, sameModel };
    });
    return {
      thresholds: this.#estimate(weighted, query),
      neighbours: near.map(({ distance, payload }) => ({
        session: payload.session,
        distance: Math.round(distance * 1e6) / 1e6,
        seq: payload.seq,
      })),
    };
  }

  /** Same model first; the rest of the k places goes to its family. */
  async #near(query: LookupQuery): Promise<Neighbour<Experience>[]> {
    const same = await this.#index.search(query.fingerprint, NEIGHBOURS, (e) => e.modelDigest === query.modelDigest);
    if (same.length === NEIGHBOURS) return same;
    const kin = await this.#index.search(
      query.fingerprint,
      NEIGHBOURS - same.length,
      (e) => e.modelDigest !== query.modelDigest && e.family === query.family,
    );
    return [...same, ...kin];
  }

  #estimate(
    weighted: readonly Weighted[],
    query: { modelDigest: string; layers: number; defaults?: ThresholdSet },
  ): ThresholdSet {
    const imported = this.#importedFor(query.modelDigest);
    const base = imported === null ? null : toThresholdSet(imported);
    const ones = Array.from({ length: query.layers }, () => 1);
    const fallback = {
      thresholds: { ...query.defaults?.thresholds, ...base?.thresholds },
      gains: base?.gains ?? query.defaults?.gains ?? { k: ones, v: ones },
      c: base?.c ?? query.defaults?.c ?? C_DEFAULT,
    };

    const counted = weighted.filter((w) => w.weight > 0);
    const sampled = (value: (e: Experience) => number, among = counted): Sample[] =>
      among.map((w) => ({ value: value(w.experience), weight: w.weight }));
    const learned: Record<string, Threshold> = {};
    const learn = (id: string, value: number, unit: string, among: readonly Weighted[], what: string): boolean => {
      if (among.length === 0 || (base?.thresholds[id]?.samples ?? 0) > among.length) return false;
      const worth = evidenceOf(among.map((w) => ({ value: 0, weight: w.weight })));
      learned[id] = {
        id,
        value,
        unit,
        origin: 'learned',
        source: `${what} of ${among.length} nearest sessions, worth ${worth.toFixed(2)}; cautious end`,
        samples: among.length,
        evidence: among.map((w) => w.experience.seq).sort((x, y) => x - y),
      };
      return true;
    };

    learn('price.start', startPrice(sampled((e) => e.priceThreshold)), 'KLD/byte', counted, 'final price thresholds');

    // A session that was compared tells the c that would have been right; the law's sum is predictedKld / c.
    const compared = counted.filter(
      (w) => w.experience.meanKld !== null && w.experience.meanKld > 0 && w.experience.predictedKld > 0,
    );
    const law = lawConstant(sampled((e) => (e.c * e.meanKld!) / e.predictedKld, compared));
    const c = learn('law.c', law, '1', compared, 'measured over predicted divergence') ? law : fallback.c;

    return {
      version: 1,
      thresholds: { ...fallback.thresholds, ...learned },
      // A session's gains are those it was started with. Nothing measures them, so they are no evidence.
      gains: fallback.gains,
      c,
    };
  }

  async record(experience: Experience): Promise<void> {
    await this.#add(checkExperience(experience));
    await this.#index.save();
  }

  #add(experience: Experience): Promise<void> {
    return addTo(this.#index, this.#labels, experience);
  }

  async similar(fingerprint: Fingerprint, k: number): Promise<Neighbour<Experience>[]> {
    checkFingerprint(fingerprint);
    return this.#index.search(fingerprint, k);
  }

  async rebuildFrom(entries: Iterable<LoggedEntry>): Promise<number> {
    await this.#index.clear();
    this.#labels.clear();
    for (const experience of experiencesOf(entries)) await this.#add(experience);
    await this.#index.save();
    return this.count;
  }

  /**
   * Takes in sessions that ended in the log but not in the book: their process was killed in between. A log that no longer has the newest
   * session known of a writer was cut, or went on differently from an older copy: then everything is read again.
   */
  async catchUp(entries: BookOptions['entries']): Promise<void> {
    const count = this.#labels.size;
    const read = [...entries(this.seqs)].filter(isEdge);
    const gone = this.#newest().find((known) => !read.some((entry) => isEndOf(entry, known)));
    if (gone !== undefined) {
      this.#rebuilt = `the log has no session ${gone.session} that ended with entry ${gone.seq}`;
      await this.rebuildFrom(entries([]));
      return;
    }
    const late = read.filter(({ seq }) => !this.#labels.has(seq));
    const opened = new Set<string>();
    let isWhole = true;
    for (const { kind, session } of late) {
      if (kind === 'open') opened.add(session);
      else isWhole &&= opened.has(session);
    }
    // This session was open while another one ended, so its 'open' entry stands further back.
    for (const experience of experiencesOf(isWhole ? late : entries([]))) {
      if (!this.#labels.has(experience.seq)) await this.#add(experience);
    }
    if (this.#labels.size > count) await this.#index.save();
  }

  /** The experience with the highest seq of every writer. Its entry is there only with all that the writer wrote before it. */
  #newest(): Experience[] {
    const newest = new Map<number, Experience>();
    for (const [, experience] of this.#index.entries()) {
      const writer = Math.floor(experience.seq / WRITER_SEQS);
      if (experience.seq > (newest.get(writer)?.seq ?? -1)) newest.set(writer, experience);
    }
    return [...newest.values()];
  }

  async exportFile(
    target: ThresholdTarget & { readonly family: string; readonly defaults?: ThresholdSet },
    log: EvidenceLog | null,
  ): Promise<ThresholdFile> {
    const all = [...this.#index.entries()]
      .map(([, experience]) => experience)
      .filter(({ modelDigest }) => modelDigest === target.modelDigest);
    const imported = this.#importedFor(target.modelDigest);
    if (all.length === 0 && imported !== null) return imported;
    const weighted = all.map((experience) => ({ experience, weight: 1, sameModel: true }));
    const query = {
      modelDigest: target.modelDigest,
      layers: target.shape.layers,
      ...(target.defaults === undefined ? {} : { defaults: target.defaults }),
    };
    return toThresholdFile(this.#estimate(weighted, query), target, log);
  }

  /** The file imported for a model, or null. Throws 'bad-thresholds' when somebody damaged it. */
  #importedFor(modelDigest: string): ThresholdFile | null {
    if (this.#dir === null || !existsSync(importedPath(this.#dir, modelDigest))) return null;
    const file = readThresholdFile(importedPath(this.#dir, modelDigest));
    return file.model.digest === modelDigest ? file : null;
  }

  async close(): Promise<void> {
    await this.#index.close();
  }
}

/**
 * Keeps a checked file in the folder of a book, whoever keeps that book: its values stand in lookups for this model wherever fewer
 * samples were gathered here. Throws 'model-mismatch', 'io'.
 */
export function importThresholds(dir: string, file: ThresholdFile, target: ThresholdTarget): void {
  checkThresholdTarget(file, target);
  mkdirSync(dir, { recursive: true });
  writeThresholdFile(importedPath(dir, file.model.digest), file);
}

/** Whether this entry ended the session that the experience was made from. */
const isEndOf = ({ kind, seq, session, body }: LoggedEntry, known: Experience): boolean =>
  kind === 'close' &&
  seq === known.seq &&
  session === known.session &&
  JSON.stringify((body as Partial<Experience>).fingerprint) === JSON.stringify(known.fingerprint);

const isEdge = (entry: LoggedEntry): boolean => entry.kind === 'open' || entry.kind === 'close';

const importedPath = (dir: string, modelDigest: string): string =>
  join(dir, `imported-${createHash('sha256').update(modelDigest).digest('hex').slice(0, 32)}.json`);

function checkLayers(layers: number): void {
  if (!Number.isInteger(layers) || layers < 1 || layers > 4096) {
    throw new KvError('bad-argument', 'layers must be a whole number from 1 to 4096', { values: { layers } });
  }
}

/**
 * Opens the book of a log: loads its index, rebuilds it from the log when its files cannot be trusted or belong to
 * another log, and takes in sessions that ended after its last save. Throws what `entries` throws, and
 * 'missing-dependency'. One process at a time may keep the book of a folder; any number may read it.
 */
export async function openThresholdBook(options: BookOptions): Promise<ThresholdBook> {
  const { dir, logId, entries } = options;
  const labels = new Labels();
  const opened = await openVectorIndex<Experience>(
    {
      dim: FINGERPRINT_DIM,
      dir: dir === null ? null : join(dir, 'experiences'),
      origin: `log ${logId}, fingerprint ${FINGERPRINT_VERSION}`,
      readOnly: options.readOnly ?? false,
      check: checkExperience,
    },
    async (index) => {
      for (const experience of experiencesOf(entries([]))) await addTo(index, labels, experience);
    },
  );
  for (const [label, { seq }] of opened.index.entries()) labels.set(seq, label);
  const book = new Book(dir, opened.index, labels, opened.rebuilt);
  if (opened.rebuilt === null) await book.catchUp(entries);
  return book;
}

/** The same seq again replaces. */
async function addTo(index: VectorIndex<Experience>, labels: Labels, experience: Experience): Promise<void> {
  const { seq, fingerprint } = experience;
  const label = labels.get(seq) ?? labels.next;
  await index.add(label, fingerprint, experience);
  labels.set(seq, label);
}
