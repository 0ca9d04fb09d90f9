/**
 * The threshold book: asks which earlier sessions were like this one and what they ended with, and remembers how this
 * one ended. The log is the truth: the book's index is filled from it whenever its files cannot be trusted or are
 * behind.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { checkOption, given, plural, SHAPE_OPTIONS, SIDES } from '../native/index.ts';
import {
  type Course,
  defaultLaw,
  isUnsure,
  type Precedent,
  type Threshold,
  type ThresholdSet,
  type ThresholdSource,
} from '../policy/index.ts';
import { joinCosts } from './coefficients.ts';
import { joinCourses, sessionsBehind } from './courses.ts';
import { C_DEFAULT, C_SESSION_SD, evidenceOf, lawConstant, type Sample, startPrice, textFactor } from './estimate.ts';
import type { Condition, Filter } from './filter.ts';
import {
  checkFingerprint,
  currentFingerprint,
  FINGERPRINT_DIM,
  FINGERPRINT_VERSION,
  textPlaceOf,
} from './fingerprint.ts';
import { hintDistance, type TextHint } from './hint.ts';
import { covers, joinRanges, rangesOf } from './log-ranges.ts';
import { openVectorIndex } from './open-index.ts';
import { precedentOf, toldOf } from './precedent.ts';
import { joinPrefixes } from './prefix.ts';
import { openQdrantIndex } from './qdrant-index.ts';
import { checkQdrantOptions, type QdrantOptions } from './qdrant-server.ts';
import {
  checkSession,
  RECORD_VERSION,
  RETIRED_FIELDS,
  SESSION_FIELDS,
  type SessionRecord,
  sessionOf,
  sessionsOf,
  type TimedEntry,
} from './session-record.ts';
import { allOf, SharedIndex, type SharedStatus } from './shared-index.ts';
import {
  checkThresholdTarget,
  type EvidenceLog,
  readThresholdFile,
  type ThresholdTarget,
  toThresholdFile,
  toThresholdSet,
  writeThresholdFile,
} from './threshold-file.ts';
import { mergeThresholdFiles } from './threshold-merge.ts';
import type { ThresholdFile } from './threshold-schema.ts';
import type { Experience, Fingerprint, Lookup, PrefixLookup } from './types.ts';
import { K_MAX, type Neighbour, nearestFirst, type VectorEntry, type VectorIndex } from './vector.ts';

/** Number of sessions asked for. A larger number only adds sessions that are farther away. Chosen, not measured. */
const NEIGHBOURS = 8;
/** Distance at which a session counts e^−½: a quarter of the price axis, i.e. budgets of 25% and 19%. Chosen. */
const BANDWIDTH = 0.25;
/** Sessions of the model that are asked what errors in its layers cost, which no budget changes. Chosen. */
const COST_NEIGHBOURS = 64;
/** Sessions with the same beginning that are asked. Chosen: a mean of more is hardly surer. */
const PREFIX_NEIGHBOURS = 64;
/** What a session without adapters counts against one with the same. Chosen. */
const PLAIN_WEIGHT = 0.5;
/**
 * What a session of another model of the same family, or with other adapters, counts against one of the same model.
 * Chosen.
 */
const FAMILY_WEIGHT = 0.25;
/** What a session with other pages in a kernel pack, or with none, counts against one with the same pack. Chosen. */
const OTHER_PACK_WEIGHT = 0.5;
/** Evidence worth less than this is no evidence. */
const WEIGHT_MIN = 0.05;
/** Sessions of a model that are looked through for those whose texts are nearest. Chosen. */
const TEXT_CANDIDATES = 256;
/** Values that one condition of a filter may have. */
const FORGET_AT_ONCE = 1024;

export interface BookOptions {
  /** Folder of the book, created when missing; null: memory only. */
  readonly dir: string | null;
  /** Id of the log that sessions are told in; a book of another log is thrown away. */
  readonly logId: string;
  /**
   * 'open' and 'close' entries of that log in order (others are passed over): all, or without those that a writer made
   * before any of his entries in `known`. Called to rebuild and to catch up.
   */
  readonly entries: (known: readonly number[]) => Iterable<TimedEntry>;
  /**
   * Which sessions were erased from that log; null: none. Asked when the book is opened and whenever it is written.
   * Default: none.
   */
  readonly erased?: () => ((session: string) => boolean) | null;
  /** Changes nothing in `dir`: for callers that only ask, and where another process keeps the book. */
  readonly readOnly?: boolean;
  /** A server that this book shares its sessions with; `send: false` only asks there. Default: none. */
  readonly shared?: QdrantOptions & { readonly send?: boolean };
  /** Told when the server goes away or comes back. */
  readonly onShared?: (status: SharedStatus) => void;
}

/** Where a book looks things up. */
export interface BookStatus {
  /** The local index: 'hnsw', or 'exact' where its library is missing. */
  readonly index: string;
  /** The server; null: none was named. */
  readonly shared: SharedStatus | null;
}

export interface LookupQuery {
  /** What adaptedDigest says, of a model with adapters. */
  readonly modelDigest: string;
  /** Of a model with adapters that of the model without: its sessions come after those with the same adapters. */
  readonly plainDigest?: string;
  /** The kernel pack of the session, `pack:NAME@DIGEST`: sessions with the same come first. Default: none. */
  readonly pack?: string | undefined;
  /** Architecture of the model: 'llama', 'qwen2' … */
  readonly family: string;
  readonly fingerprint: Fingerprint;
  readonly layers: number;
  /** What helpers said of the text; left out: nothing. */
  readonly hint?: TextHint | undefined;
  /** Thresholds that stand where nothing is known. */
  readonly defaults?: ThresholdSet;
}

/** A text that is asked about. */
export interface TextQuery extends Pick<LookupQuery, 'fingerprint' | 'hint'> {
  /** That of the model without adapters. */
  readonly plainDigest: string;
  /** How many are asked for. */
  readonly k: number;
  /** Sessions with fewer tokens do not say what their text was. */
  readonly tokensLeast: number;
}

export interface PrefixQuery extends Pick<LookupQuery, 'modelDigest' | 'fingerprint' | 'layers'> {
  /** Digests of the pages, from the first one on. */
  readonly pages: readonly string[];
}

export interface ThresholdBook {
  readonly status: BookStatus;
  /** Seqs of the sessions in the book, ascending. */
  readonly seqs: readonly number[];
  /** Why the index was built again when it was opened; null when it was good. */
  readonly rebuilt: string | null;
  /** Sessions of this log that taught something. */
  count(): Promise<number>;
  /** Start values for a session. Never throws for want of evidence, nor for a server that is away. */
  lookup(query: LookupQuery): Promise<Lookup>;
  /** What sessions of the model that began with these pages (prefix.ts) know of them. Never throws for want of any. */
  lookupPrefix(query: PrefixQuery): Promise<PrefixLookup>;
  /**
   * The sessions of a model, whatever adapters they had, whose texts are nearest, by what is known of texts alone: of
   * those with the nearest fingerprints. Their distances are those of the texts.
   */
  precedents(query: TextQuery): Promise<Precedent[]>;
  /** Adds the session that these entries are of, and saves. The same again replaces. Throws 'io'. */
  record(open: TimedEntry, close: TimedEntry): Promise<void>;
  /**
   * The k sessions nearest to a fingerprint, of any model unless the filter says otherwise; those of other machines too
   * where a server is shared.
   */
  nearestSessions(fingerprint: Fingerprint, k: number, filter?: Filter): Promise<Neighbour<SessionRecord>[]>;
  /** Forgets everything and reads it again from the log. → sessions that taught something */
  rebuildFrom(entries: Iterable<TimedEntry>): Promise<number>;
  /**
   * What to export for a model: what all its sessions here say, merged with what was imported for it. What sessions
   * learned under a law that came with the package is told in relation to it, so that law is a part of the file, beside
   * what was learned here.
   */
  exportFile(target: ExportTarget, log: EvidenceLog | null): Promise<ThresholdFile>;
  /** Forgets a session, and leaves nothing of it in the folder. On a server `forgetShared` does. Throws 'io'. */
  forget(session: string): Promise<void>;
  close(): Promise<void>;
}

/** The model that is exported for, and what stands where nothing was learned of it. */
export interface ExportTarget extends ThresholdTarget {
  readonly family: string;
  readonly defaults?: ThresholdSet;
  /** What came with the package for it. */
  readonly shipped?: ThresholdFile | null;
}

interface Weighted {
  readonly experience: Experience;
  readonly weight: number;
  readonly sameModel: boolean;
  /** Id of the log that it stands in. */
  readonly log: string;
}

/** What sessions tell of a threshold. */
interface Told extends Pick<Threshold, 'id' | 'value' | 'unit'> {
  /** How they tell it, for its source. */
  readonly what: string;
  readonly sd?: number;
}

/** Passes the sessions that taught something. */
const TEACHES = { field: 'teaches', equals: true } as const;

/** Passes the sessions of a model that measured what errors in its layers cost. */
const probedOf = ({ modelDigest, plainDigest = modelDigest }: LookupQuery): Filter => ({
  must: [TEACHES, { field: 'modelDigest', oneOf: [modelDigest, plainDigest] }, { field: 'probed', equals: true }],
});

/** True if sessions may know more of a law than it says. */
const asksForCosts = ({ law }: ThresholdSet, layers: number): boolean =>
  SIDES.some((side) => Array.from({ length: layers }, (_, layer) => layer).some((layer) => isUnsure(law, layer, side)));

class Book implements ThresholdBook {
  readonly #dir: string | null;
  readonly #log: string;
  readonly #index: VectorIndex<SessionRecord>;
  readonly #shared: SharedIndex<SessionRecord> | null;
  readonly #sends: boolean;
  readonly #erased: NonNullable<BookOptions['erased']>;
  readonly #seqs = new Set<number>();
  #rebuilt: string | null;

  constructor(
    { dir, logId, shared, erased = () => null }: BookOptions,
    index: VectorIndex<SessionRecord>,
    server: SharedIndex<SessionRecord> | null,
    rebuilt: string | null,
  ) {
    this.#dir = dir;
    this.#log = logId;
    this.#index = index;
    this.#shared = server;
    this.#sends = shared?.send ?? true;
    this.#erased = erased;
    this.#rebuilt = rebuilt;
  }

  get rebuilt(): string | null {
    return this.#rebuilt;
  }

  get status(): BookStatus {
    return { index: this.#index.kind, shared: this.#shared?.status ?? null };
  }

  get seqs(): number[] {
    return [...this.#seqs].sort((a, b) => a - b);
  }

  count(): Promise<number> {
    return this.#index.count({ filter: { must: [TEACHES] } });
  }

  async lookup(query: LookupQuery): Promise<Lookup> {
    checkFingerprint(query.fingerprint);
    checkLayers(query.layers);
    const near = await this.#near(query);
    const weighted = near.map(({ id, distance, payload }): Weighted => {
      const sameModel = payload.modelDigest === query.modelDigest;
      const ofModel = sameModel ? 1 : payload.modelDigest === query.plainDigest ? PLAIN_WEIGHT : FAMILY_WEIGHT;
      const share = payload.pack === (query.pack ?? null) ? ofModel : ofModel * OTHER_PACK_WEIGHT;
      const weight = Math.exp(-distance / (2 * BANDWIDTH ** 2)) * share;
      return { experience: payload.experience!, weight: weight < WEIGHT_MIN ? 0 : weight, sameModel, log: id.log };
    });
    const imported = this.#imported(query);
    const thresholds = this.#estimate(weighted, query, imported);
    const probed = asksForCosts(thresholds, query.layers)
      ? await this.#search(query.fingerprint, COST_NEIGHBOURS, probedOf(query))
      : [];
    return {
      thresholds: this.#withCosts(thresholds, probed, query.layers, imported),
      neighbours: this.#told(near),
      shared: this.status.shared,
    };
  }

  /** The file of sessions with the same pack, else that of sessions without any. */
  #imported({ modelDigest, plainDigest = modelDigest, pack }: LookupQuery): ThresholdFile | null {
    const ofPack = pack === undefined ? null : importedThresholds(this.#dir, plainDigest, pack);
    return ofPack ?? importedThresholds(this.#dir, plainDigest);
  }

  #told(near: readonly Neighbour<SessionRecord>[]): Lookup['neighbours'] {
    return near.map((one) => toldOf(one, this.#log));
  }

  async lookupPrefix({ modelDigest, fingerprint, layers, pages }: PrefixQuery): Promise<PrefixLookup> {
    checkFingerprint(fingerprint);
    checkLayers(layers);
    const [first] = pages;
    if (first === undefined) return { known: null, neighbours: [] };
    const near = await this.#search(fingerprint, PREFIX_NEIGHBOURS, {
      must: [TEACHES, { field: 'modelDigest', equals: modelDigest }, { field: 'prefix', equals: first }],
    });
    const given = near.flatMap(({ payload }) => payload.experience?.prefix ?? []);
    return { known: joinPrefixes(given, pages, layers), neighbours: this.#told(near) };
  }

  /**
   * Same model first, and of one with adapters that without; the rest of the k places goes to its family. Of each,
   * those with the pack that was asked for come first.
   */
  async #near(query: LookupQuery): Promise<Neighbour<SessionRecord>[]> {
    const { modelDigest, plainDigest, family, pack } = query;
    const near: Neighbour<SessionRecord>[] = [];
    const models = [
      modelDigest,
      ...(plainDigest === undefined || plainDigest === modelDigest ? [] : [plainDigest]),
    ].map((equals) => ({ field: 'modelDigest', equals }) as const);
    const add = async (filter: Filter): Promise<void> => {
      if (near.length < NEIGHBOURS) near.push(...(await this.#hinted(query, NEIGHBOURS - near.length, filter)));
    };
    const samePack = pack === undefined ? [] : [{ field: 'pack', equals: pack } as const];
    const addOf = async (of: Condition, mustNot: readonly Condition[] = []): Promise<void> => {
      for (const same of samePack) await add({ must: [TEACHES, of, same], mustNot });
      await add({ must: [TEACHES, of], mustNot: [...mustNot, ...samePack] });
    };
    for (const model of models) await addOf(model);
    await addOf({ field: 'family', equals: family }, models);
    return near;
  }

  /** The nearest by fingerprint and hint. A hint only adds to a distance: what lies beyond all candidates stays. */
  async #hinted({ fingerprint, hint }: LookupQuery, k: number, filter: Filter): Promise<Neighbour<SessionRecord>[]> {
    if (hint === undefined) return this.#search(fingerprint, k, filter);
    for (let candidates = 4 * k; ; candidates = Math.min(K_MAX, 4 * candidates)) {
      const near = await this.#search(fingerprint, candidates, filter);
      const ranked = near
        .map((one) => ({ ...one, distance: one.distance + hintDistance(hint, one.payload.hint) }))
        .sort(nearestFirst)
        .slice(0, k);
      if (near.length < candidates || candidates === K_MAX) return ranked;
      if (near.at(-1)!.distance >= ranked.at(-1)!.distance) return ranked;
    }
  }

  /** Sessions of this log from its own index, those of others from the server. */
  async #search(fingerprint: Fingerprint, k: number, filter: Filter): Promise<Neighbour<SessionRecord>[]> {
    const near = await this.#index.search(fingerprint, k, { filter });
    if (this.#shared === null) return near;
    return [...near, ...(await this.#shared.search(fingerprint, k, filter))].sort(nearestFirst).slice(0, k);
  }

  #estimate(
    weighted: readonly Weighted[],
    query: { layers: number; defaults?: ThresholdSet },
    imported: ThresholdFile | null,
  ): ThresholdSet {
    const base = imported === null ? null : toThresholdSet(imported, importedName(imported.model));
    const ones = Array.from({ length: query.layers }, () => 1);
    const fallback = {
      // What the file says nothing of is as it was without it.
      thresholds: { ...base?.thresholds, ...query.defaults?.thresholds, ...statedIn(base) },
      gains: base?.gains ?? query.defaults?.gains ?? { k: ones, v: ones },
      c: base?.c ?? query.defaults?.c ?? C_DEFAULT,
    };

    const counted = weighted.filter((w) => w.weight > 0);
    const sampled = (value: (e: Experience) => number, among = counted): Sample[] =>
      among.map((w) => ({ value: value(w.experience), weight: w.weight }));
    const learned: Record<string, Threshold> = {};
    /** → whether these sessions tell more than the file that was imported */
    const learn = (told: Told, among: readonly Weighted[]): boolean => {
      if (among.length === 0 || (base?.thresholds[told.id]?.samples ?? 0) > among.length) return false;
      learned[told.id] = this.#learned(told, among);
      return true;
    };

    const price = startPrice(sampled((e) => e.priceThreshold));
    learn({ id: 'price.start', value: price, unit: 'KLD/byte', what: 'final price thresholds' }, counted);

    // A session that was compared tells the c that would have been right; the law's sum is predictedKld / c.
    const compared = counted.filter(
      (w) => w.experience.meanKld !== null && w.experience.meanKld > 0 && w.experience.predictedKld > 0,
    );
    const law = lawConstant(sampled((e) => (e.c * e.meanKld!) / e.predictedKld, compared));
    const sd = C_SESSION_SD / Math.sqrt(1 + evidenceOf(sampled(() => 1, compared)));
    const lawTold = { id: 'law.c', value: law, unit: '1', what: 'measured over predicted divergence', sd };
    const c = learn(lawTold, compared) ? law : fallback.c;

    const here = counted.flatMap((w) => rangesOf(w.log, [w.experience.seq]));
    const ranges = joinRanges([...(base?.ranges ?? []), ...here]);
    const measured = counted.flatMap(({ experience: { text }, weight }) =>
      text === undefined ? [] : [{ ...text, weight }],
    );
    const course = this.#course(counted, query.layers, base);
    const told = base?.law ?? query.defaults?.law;
    const lawSource = base?.law === undefined ? query.defaults?.sources?.law : base.sources?.law;
    const sources = { ...(lawSource === undefined ? {} : { law: lawSource }), ...course?.sources };
    const assumed = told ?? (measured.length === 0 ? undefined : defaultLaw(query.layers));

    return {
      version: 1,
      ...(assumed === undefined ? {} : { law: { ...assumed, text: textFactor(assumed.text, measured) } }),
      ...(course === null ? {} : { course: course.course }),
      ...(Object.keys(sources).length === 0 ? {} : { sources }),
      thresholds: { ...fallback.thresholds, ...learned },
      // A session's gains are those it was started with. Nothing measures them, so they are no evidence.
      gains: fallback.gains,
      c,
      ...(ranges.length === 0 ? {} : { ranges }),
    };
  }

  /** The course of the sessions here, or that of a file that was imported where it rests on more of them. */
  #course(
    counted: readonly Weighted[],
    layers: number,
    base: ThresholdSet | null,
  ): { readonly course: Course; readonly sources: { readonly course?: ThresholdSource } } | null {
    // Layers of another model are others, also where its family is the same.
    const told = counted.filter(({ experience, sameModel }) => sameModel && experience.course !== undefined);
    const own = joinCourses(
      told.map(({ experience, weight }) => ({ course: experience.course!, weight })),
      layers,
    );
    const [here, imported] = [own, base?.course ?? null].map((one) => (one === null ? 0 : sessionsBehind(one)));
    if (base?.course !== undefined && imported! > here!)
      return { course: base.course, sources: given<{ course?: ThresholdSource }>({ course: base.sources?.course }) };
    if (own === null) return null;
    const source = `courses of errors of ${plural(told.length, 'nearest session')}`;
    const evidence = this.#seqsOf(told);
    return { course: own, sources: { course: { origin: 'learned', source, samples: told.length, evidence } } };
  }

  #learned({ id, value, unit, what, sd }: Told, among: readonly Weighted[]): Threshold {
    const worth = evidenceOf(among.map((w) => ({ value: 0, weight: w.weight })));
    return {
      id,
      value,
      unit,
      origin: 'learned',
      source: `${what} of ${among.length} nearest sessions, worth ${worth.toFixed(2)}; cautious end`,
      samples: among.length,
      ...(sd === undefined ? {} : { sd }),
      evidence: this.#seqsOf(among),
    };
  }

  /**
   * A set with the coefficients that these sessions of the model found; the same where they found none. Those that an
   * imported file rests on are in its law already.
   */
  #withCosts(
    set: ThresholdSet,
    sessions: readonly Pick<VectorEntry<SessionRecord>, 'id' | 'payload'>[],
    layers: number,
    imported: ThresholdFile | null,
  ): ThresholdSet {
    const known = imported === null ? [] : (toThresholdSet(imported).ranges ?? []);
    const told = sessions.flatMap(({ id: { log, seq }, payload: { experience } }) => {
      const isKnown = covers(known, [{ logId: log, from: seq, to: seq }]);
      return isKnown || experience?.costs === undefined ? [] : [{ log, experience, costs: experience.costs }];
    });
    if (told.length === 0) return set;
    const from = told.flatMap(({ log, experience: { seq } }) => rangesOf(log, [seq]));
    const law: ThresholdSource = {
      origin: 'learned',
      source: `what ${plural(told.length, 'session')} found errors in single layers to cost`,
      samples: told.length,
      evidence: this.#seqsOf(told),
    };
    const costs = told.map((one) => one.costs);
    return {
      ...set,
      law: joinCosts(set.law ?? defaultLaw(layers), costs),
      ranges: joinRanges([...(set.ranges ?? []), ...from]),
      sources: { ...set.sources, law },
    };
  }

  /** The entries that ended these sessions. Those of other machines stand in other logs. */
  #seqsOf(among: readonly Pick<Weighted, 'log' | 'experience'>[]): number[] {
    return among
      .filter((w) => w.log === this.#log)
      .map((w) => w.experience.seq)
      .sort((x, y) => x - y);
  }

  async record(open: TimedEntry, close: TimedEntry): Promise<void> {
    const session = sessionOf(open, close, this.#log, FINGERPRINT_DIM);
    if (session === null) return;
    await this.#add([session]);
    await this.#forgetErased();
    await this.#index.save();
    await this.#sync();
  }

  async forget(session: string): Promise<void> {
    const ofSession = { field: 'session', equals: session } as const;
    await this.#forgetErased();
    await this.#index.remove({ must: [ofSession] });
    // Also where nothing was known of it: a save that was killed may have left it in files that the next one removes.
    await this.#index.save();
  }

  /** Another process may have erased sessions that this one has in memory. → how many those were */
  async #forgetErased(): Promise<number> {
    const isErased = this.#erased();
    if (isErased === null) return 0;
    const gone = (await allOf(this.#index)).filter(({ payload }) => isErased(payload.session));
    for (let at = 0; at < gone.length; at += FORGET_AT_ONCE) {
      const some = gone.slice(at, at + FORGET_AT_ONCE);
      await this.#index.remove({ must: [{ field: 'session', oneOf: some.map(({ payload }) => payload.session) }] });
    }
    for (const { id } of gone) this.#seqs.delete(id.seq);
    return gone.length;
  }

  async #add(sessions: readonly VectorEntry<SessionRecord>[]): Promise<void> {
    await this.#index.add(sessions);
    for (const session of sessions) {
      this.#seqs.add(session.id.seq);
      this.#shared?.add(session);
    }
  }

  async #sync(): Promise<void> {
    if (this.#sends) await this.#shared?.sync(this.#index);
  }

  async nearestSessions(fingerprint: Fingerprint, k: number, filter: Filter = {}): Promise<Neighbour<SessionRecord>[]> {
    checkFingerprint(fingerprint);
    return this.#search(fingerprint, k, filter);
  }

  async precedents({ plainDigest, fingerprint, hint, k, tokensLeast }: TextQuery): Promise<Precedent[]> {
    checkFingerprint(fingerprint);
    const near = await this.#search(fingerprint, TEXT_CANDIDATES, {
      must: [
        { field: 'plainDigest', equals: plainDigest },
        { field: 'tokens', range: { min: tokensLeast } },
      ],
    });
    const place = textPlaceOf(fingerprint);
    return near
      .flatMap((one) => {
        const there = one.payload.textPlace;
        if (there === null) return [];
        const distance = place.reduce((sum, x, axis) => sum + (x - there[axis]!) ** 2, 0);
        return [{ ...one, distance: distance + hintDistance(hint, one.payload.hint) }];
      })
      .sort(nearestFirst)
      .slice(0, k)
      .map((one) => precedentOf(one, this.#log));
  }

  async rebuildFrom(entries: Iterable<TimedEntry>): Promise<number> {
    await this.#index.remove({});
    this.#seqs.clear();
    await this.#add([...sessionsOf(entries, this.#log, FINGERPRINT_DIM)]);
    await this.#index.save();
    if (this.#sends) await this.#shared?.restart(true);
    await this.#sync();
    return this.count();
  }

  /** Takes over what is in the index, and brings it up to the log. */
  async start(entries: BookOptions['entries']): Promise<void> {
    if ((await this.#forgetErased()) > 0) await this.#index.save();
    const newest = new Map<number, VectorEntry<SessionRecord>>();
    for (const item of await allOf(this.#index)) {
      this.#seqs.add(item.id.seq);
      const { writer } = item.payload;
      if (item.id.seq > (newest.get(writer)?.id.seq ?? -1)) newest.set(writer, item);
    }
    if (this.#rebuilt === null) await this.#catchUp(entries, [...newest.values()]);
    await this.#sync();
  }

  /**
   * Takes in sessions that ended in the log but not in the book: their process was killed in between. A log that no
   * longer has the newest session known of a writer was cut, or went on differently from an older copy: then everything
   * is read again.
   */
  async #catchUp(entries: BookOptions['entries'], newest: readonly VectorEntry<SessionRecord>[]): Promise<void> {
    const read = [...entries(this.seqs)].filter(isEdge);
    const gone = newest.find((known) => !read.some((entry) => isEndOf(entry, known)));
    if (gone !== undefined) {
      this.#rebuilt = `the log has no session ${gone.payload.session} that ended with entry ${gone.id.seq}`;
      await this.rebuildFrom(entries([]));
      return;
    }
    const late = read.filter(({ seq }) => !this.#seqs.has(seq));
    const opened = new Set<string>();
    let isWhole = true;
    for (const { kind, session } of late) {
      if (kind === 'open') opened.add(session);
      else isWhole &&= opened.has(session);
    }
    // This session was open while another one ended, so its 'open' entry stands further back.
    const sessions = sessionsOf(isWhole ? late : entries([]), this.#log, FINGERPRINT_DIM);
    const fresh = [...sessions].filter(({ id }) => !this.#seqs.has(id.seq));
    if (fresh.length === 0) return;
    await this.#add(fresh);
    await this.#index.save();
  }

  async exportFile(target: ExportTarget, log: EvidenceLog | null): Promise<ThresholdFile> {
    const model = { field: 'modelDigest', equals: target.modelDigest } as const;
    const ofModel = await allOf(this.#index, { must: [TEACHES, model] });
    // What sessions learned beside pages in a pack is told of that pack alone.
    const all = ofModel.filter(({ payload }) => payload.pack === (target.pack ?? null));
    const imported = importedThresholds(this.#dir, target.modelDigest, target.pack);
    if (all.length === 0 && imported !== null) return imported;
    const weighted = all.map(({ payload }) => ({
      experience: payload.experience!,
      weight: 1,
      sameModel: true,
      log: this.#log,
    }));
    const { defaults, shape } = target;
    const query = { layers: shape.layers, ...(defaults === undefined ? {} : { defaults }) };
    const known = this.#estimate(weighted, query, null);
    // What sessions measured beside a law that was imported is theirs alone: files are joined by how sure they are.
    const set = imported === null ? this.#withCosts(known, all, shape.layers, null) : known;
    const own = toThresholdFile(set, target, log, {
      sessions: all.length,
      tokens: weighted.reduce((sum, { experience }) => sum + experience.tokens, 0),
    });
    const shipped = own.law === null ? null : (target.shipped ?? null);
    const others = [imported, shipped].filter((file) => file !== null);
    // What holds of any session holds beside a pack too.
    const { model: whose } = own;
    return others.length === 0 ? own : mergeThresholdFiles([...others.map((file) => ({ ...file, model: whose })), own]);
  }

  async close(): Promise<void> {
    if ((await this.#forgetErased()) > 0) await this.#index.save();
    await this.#sync();
    await this.#shared?.close();
    await this.#index.close();
  }
}

/**
 * Keeps a checked file in the folder of a book, whoever keeps that book: its values stand in lookups for this model
 * wherever fewer samples were gathered here. Throws 'model-mismatch', 'io'.
 */
export function importThresholds(dir: string, file: ThresholdFile, target: ThresholdTarget): void {
  checkThresholdTarget(file, target);
  mkdirSync(dir, { recursive: true });
  writeThresholdFile(importedPath(dir, file.model), file);
}

/**
 * The file that was imported into the folder of a book for a model and a pack, or null. Throws 'bad-thresholds' when
 * somebody damaged it. pack: default none.
 */
export function importedThresholds(dir: string | null, digest: string, pack?: string): ThresholdFile | null {
  const path = dir === null ? null : importedPath(dir, { digest, ...given({ pack }) });
  if (path === null || !existsSync(path)) return null;
  const file = readThresholdFile(path);
  return file.model.digest === digest && file.model.pack === pack ? file : null;
}

/** True if this entry ended that session. */
const isEndOf = ({ kind, seq, session, body }: TimedEntry, known: VectorEntry<SessionRecord>): boolean =>
  kind === 'close' &&
  seq === known.id.seq &&
  session === known.payload.session &&
  JSON.stringify(currentFingerprint((body as Partial<Experience>).fingerprint ?? []).map(Math.fround)) ===
    JSON.stringify(known.vector);

const isEdge = (entry: TimedEntry): boolean => entry.kind === 'open' || entry.kind === 'close';

/** What a file says, and not what is assumed where it says nothing. */
const statedIn = (set: ThresholdSet | null): ThresholdSet['thresholds'] =>
  Object.fromEntries(Object.entries(set?.thresholds ?? {}).filter(([, { origin }]) => origin === 'file'));

type ImportedFor = Pick<ThresholdFile['model'], 'digest' | 'pack'>;

const importedName = ({ digest, pack }: ImportedFor): string => {
  const whole = pack === undefined ? digest : `${digest}+${pack}`;
  return `imported-${createHash('sha256').update(whole).digest('hex').slice(0, 32)}.json`;
};

const importedPath = (dir: string, model: ImportedFor): string => join(dir, importedName(model));

const checkLayers = (layers: number): void => checkOption('layers', SHAPE_OPTIONS.layers, layers);

/**
 * Opens the book of a log: loads its index, rebuilds it from the log when its files cannot be trusted or belong to
 * another log, and takes in sessions that ended after its last save. Throws what `entries` throws, and
 * 'missing-dependency'. One process at a time may keep the book of a folder; any number may read it.
 */
export async function openThresholdBook(options: BookOptions): Promise<ThresholdBook> {
  const { dir, logId, entries, shared } = options;
  const server = shared === undefined ? null : await openShared(shared, options);
  const opened = await openVectorIndex<SessionRecord>(
    {
      dim: FINGERPRINT_DIM,
      fields: SESSION_FIELDS,
      dir: dir === null ? null : join(dir, 'experiences'),
      // An index of before sessions told their adapters is made again from the log.
      origin: `log ${logId}, fingerprint ${FINGERPRINT_VERSION}, record ${RECORD_VERSION}`,
      readOnly: options.readOnly ?? false,
      check: checkSession,
    },
    (index) => index.add([...sessionsOf(entries([]), logId, FINGERPRINT_DIM)]),
  );
  const book = new Book(options, opened.index, server, opened.rebuilt);
  await book.start(entries);
  return book;
}

async function openShared(shared: QdrantOptions, options: BookOptions) {
  const { logId, onShared = () => {}, erased = () => null } = options;
  const { origin } = checkQdrantOptions(shared);
  const index = await openQdrantIndex<SessionRecord>({
    ...shared,
    dim: FINGERPRINT_DIM,
    version: FINGERPRINT_VERSION,
    fields: SESSION_FIELDS,
    retired: RETIRED_FIELDS,
    check: checkSession,
  });
  const told = (entries: readonly VectorEntry<SessionRecord>[]): VectorEntry<SessionRecord>[] => {
    // A session that waited for the server may have been erased since.
    const isErased = erased();
    return entries.filter(({ payload }) => isErased?.(payload.session) !== true);
  };
  return new SharedIndex(index, origin, logId, told, onShared);
}
