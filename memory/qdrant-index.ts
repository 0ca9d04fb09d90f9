/**
 * The vector index of many machines: a collection of a Qdrant server. Its name says the version and the number of axes
 * of its vectors, so that what cannot be compared never meets; a point's id is made from (log, seq), so that whoever
 * sends an entry again replaces it.
 */
import { createHash } from 'node:crypto';
import type { Schemas } from '@qdrant/js-client-rest';
import { KvError } from '../native/index.ts';
import { type Condition, checkFilter, type Fields, type Filter, ID_FIELDS, type VectorId } from './filter.ts';
import { checkQdrantOptions, type QdrantAnswer, type QdrantOptions, QdrantServer } from './qdrant-server.ts';
import {
  checkEntries,
  checkK,
  checkShape,
  checkVector,
  Deadline,
  isVectorId,
  LISTING_DEFAULT,
  type Limits,
  type Listing,
  type Narrowed,
  type Neighbour,
  nearestFirst,
  type VectorEntry,
  type VectorIndex,
} from './vector.ts';

export interface QdrantIndexOptions<T> extends QdrantOptions {
  /** Numbers in a vector. */
  readonly dim: number;
  /** Payload fields that filters may name. */
  readonly fields: Fields;
  /** Version of what the numbers of a vector mean. */
  readonly version: number;
  /**
   * Payload fields that earlier versions stored: taken out of the points of a log when the first entry is sent of it.
   * Default: none.
   */
  readonly retired?: readonly string[];
  /**
   * Payload of any machine → payload that can be used. Points for which it throws are passed over. Default: whatever is
   * there.
   */
  readonly check?: (payload: T) => T;
}

/** Points in one request: some hundred KB. Larger ones are no faster on loopback (measured). */
const BATCH = 512;
/** Candidates per search where a segment has a graph. */
const EF_SEARCH = 128;
/** Pause before a server that is still reading its own log is looked at again. */
const APPLYING_MS = 10;

/** The name of a point: a UUID of version 8 (RFC 9562: made by a rule of one's own) from SHA-256 over log and seq. */
export function pointId({ log, seq }: VectorId): string {
  const bytes = createHash('sha256').update(`palimpsest point\n${seq}\n${log}`).digest().subarray(0, 16);
  bytes[6] = (bytes[6]! & 0x0f) | 0x80;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

/** A point as it is stored: payloads have a place of their own, so that no field of theirs can stand for log or seq. */
interface Stored<T> extends VectorId {
  readonly payload: T;
}

type Call<R extends QdrantAnswer> = Parameters<typeof QdrantServer.prototype.call<R>>[1];

class QdrantIndex<T extends object> implements VectorIndex<T> {
  readonly kind = 'qdrant';
  readonly dim: number;
  readonly fields: Fields;
  readonly collection: string;
  readonly #server: QdrantServer;
  readonly #check: QdrantIndexOptions<T>['check'];
  readonly #retired: readonly string[];
  /** Logs whose points have no retired field any more. */
  readonly #cleared = new Set<string>();
  #ready = false;
  #closed = false;

  constructor(server: QdrantServer, options: QdrantIndexOptions<T>) {
    checkShape(options.dim, options.fields);
    this.dim = options.dim;
    this.fields = options.fields;
    this.collection = `${options.collection ?? 'palimpsest'}-v${options.version}-d${options.dim}`;
    this.#server = server;
    this.#check = options.check;
    this.#retired = options.retired ?? [];
  }

  /**
   * Makes a call once the collection is there. A collection that vanished, as on a server whose disk was replaced, is
   * made again.
   */
  async #call<R extends QdrantAnswer>(limits: Limits | undefined, make: Call<R>): Promise<R> {
    if (this.#closed) throw new KvError('closed', 'the vector index was closed');
    const deadline = new Deadline(limits);
    const left = (): Limits =>
      Number.isFinite(deadline.leftMs) ? { ...limits, deadlineMs: Math.max(0, deadline.leftMs) } : { ...limits };
    for (let attempt = 1; ; attempt++) {
      try {
        if (!this.#ready) await this.#prepare(left);
        this.#ready = true;
        return await this.#server.call(left(), make);
      } catch (error) {
        if (!(error instanceof KvError) || error.code !== 'not-found' || attempt === 2) throw error;
        this.#ready = false;
      }
    }
  }

  /**
   * A call that must not miss anything that was acknowledged. A server that was killed answers before it has applied
   * the end of its write-ahead log (Qdrant 1.17 to 1.18, its pull request 9930): for a moment hundreds of points are
   * missing that are safe on its disk. When the line breaks between the look at its queue and the answer, both are
   * tried again.
   */
  #callComplete<R extends QdrantAnswer>(limits: Limits | undefined, make: Call<R>): Promise<R> {
    return this.#call(limits, async (calls, init) => {
      for (;;) {
        const { data } = await calls.getCollection({ collection_name: this.collection }, init);
        if ((data.result?.update_queue?.length ?? 0) === 0) return make(calls, init);
        await new Promise((resolve) => setTimeout(resolve, APPLYING_MS));
      }
    });
  }

  /**
   * Version, collection, payload indexes. Several machines may do this at once: who comes second is told that it
   * exists.
   */
  async #prepare(left: () => Limits): Promise<void> {
    await this.#server.version(left());
    const collection_name = this.collection;
    const params = { vectors: { size: this.dim, distance: 'Euclid' as const } };
    const { data } = await this.#server.call(left(), (calls, init) =>
      calls.collectionExists({ collection_name }, init),
    );
    if (data.result?.exists !== true) {
      try {
        await this.#server.call(left(), (calls, init) => calls.createCollection({ collection_name, ...params }, init));
      } catch (error) {
        if ((error as KvError).values['status'] !== 409) throw error;
      }
    }
    const found = await this.#server.call(left(), (calls, init) => calls.getCollection({ collection_name }, init));
    const vectors = found.data.result?.config.params.vectors as { size?: number; distance?: string } | undefined;
    if (vectors?.size !== this.dim || vectors.distance !== 'Euclid')
      throw new KvError('bad-index', `the collection ${collection_name} at ${this.#server.url} holds other vectors`, {
        values: { found: vectors, wanted: params.vectors },
        hint: 'name another with --qdrant-collection',
      });
    const indexed = found.data.result?.payload_schema ?? {};
    const missing = Object.entries({ ...this.fields, ...ID_FIELDS }).filter(
      ([field]) => !Object.hasOwn(indexed, pathOf(field)),
    );
    // Filters are right before their indexes are made, only slower.
    for (const [field, field_schema] of missing)
      await this.#server.call(left(), (calls, init) =>
        calls.createFieldIndex({ collection_name, field_name: pathOf(field), field_schema, wait: false }, init),
      );
  }

  /** Returns when the server has written them to its log. */
  async add(entries: readonly VectorEntry<T>[], limits?: Limits): Promise<void> {
    const checked = checkEntries(entries, this.dim);
    const deadline = new Deadline(limits);
    const left = (): Limits | undefined =>
      limits?.deadlineMs === undefined ? limits : { ...limits, deadlineMs: Math.max(0, deadline.leftMs) };
    for (const log of new Set(checked.map(({ id }) => id.log))) await this.#clear(log, left());
    for (let at = 0; at < checked.length; at += BATCH) {
      const points = checked.slice(at, at + BATCH).map(({ id, vector, payload }) => ({
        id: pointId(id),
        vector: vector as number[],
        payload: { log: id.log, seq: id.seq, payload } as Record<string, unknown>,
      }));
      await this.#call(left(), (calls, init) =>
        calls.upsertPoints({ collection_name: this.collection, wait: true, points }, init),
      );
    }
    // Nothing was sent, but a closed index says so.
    if (checked.length === 0 && this.#closed) throw new KvError('closed', 'the vector index was closed');
  }

  /** Takes the fields that are no longer stored out of the points that a log has there. */
  async #clear(log: string, limits: Limits | undefined): Promise<void> {
    if (this.#retired.length === 0 || this.#cleared.has(log)) return;
    const keys = this.#retired.map((field) => `payload.${field}`);
    const filter = {
      must: [{ key: 'log', match: { value: log } }],
      should: keys.map((key) => ({ must_not: [{ is_empty: { key } }] })),
    };
    await this.#call(limits, (calls, init) =>
      calls.deletePayload({ collection_name: this.collection, wait: true, keys, filter }, init),
    );
    this.#cleared.add(log);
  }

  async search(vector: readonly number[], k: number, options: Narrowed = {}): Promise<Neighbour<T>[]> {
    checkK(k);
    const query = checkVector(vector, this.dim);
    const narrowed = this.#narrowed(options);
    const { data } = await this.#call(options, (calls, init) =>
      calls.queryPoints(
        {
          collection_name: this.collection,
          query,
          limit: k,
          with_payload: true,
          params: { hnsw_ef: Math.max(EF_SEARCH, k) },
          ...narrowed,
        },
        init,
      ),
    );
    const found = (data.result?.points ?? []).flatMap(({ score, payload }) => {
      const stored = this.#stored(payload);
      // Qdrant answers with the root.
      return stored === null || !Number.isFinite(score) ? [] : [{ ...stored, distance: score ** 2 }];
    });
    return found.sort(nearestFirst);
  }

  async list(options: Parameters<VectorIndex<T>['list']>[0] = {}): Promise<Listing<T>> {
    const { after = null, limit = LISTING_DEFAULT } = options;
    checkK(limit);
    const narrowed = this.#narrowed(options);
    const { data } = await this.#callComplete(options, (calls, init) =>
      calls.scrollPoints(
        {
          collection_name: this.collection,
          limit,
          with_payload: true,
          with_vector: true,
          ...(after === null ? {} : { offset: after }),
          ...narrowed,
        },
        init,
      ),
    );
    const items = (data.result?.points ?? []).flatMap(({ payload, vector }) => {
      const stored = this.#stored(payload);
      return stored === null || !Array.isArray(vector)
        ? []
        : [{ ...stored, vector: (vector as number[]).map(Math.fround) }];
    });
    const next = data.result?.next_page_offset;
    return { items, next: typeof next === 'string' ? next : null };
  }

  async count(options: Narrowed = {}): Promise<number> {
    const narrowed = this.#narrowed(options);
    const { data } = await this.#callComplete(options, (calls, init) =>
      calls.countPoints({ collection_name: this.collection, exact: true, ...narrowed }, init),
    );
    return data.result?.count ?? 0;
  }

  async remove(filter: Filter, limits?: Limits): Promise<void> {
    const narrowed = this.#narrowed({ filter }).filter ?? {};
    await this.#call(limits, (calls, init) =>
      calls.deletePoints({ collection_name: this.collection, wait: true, filter: narrowed }, init),
    );
  }

  async save(): Promise<void> {
    if (this.#closed) throw new KvError('closed', 'the vector index was closed');
  }

  async close(): Promise<void> {
    this.#closed = true;
  }

  #narrowed({ filter }: Narrowed): { filter?: Schemas['Filter'] } {
    if (filter === undefined) return {};
    checkFilter(filter, this.fields);
    return {
      filter: { must: (filter.must ?? []).map(conditionOf), must_not: (filter.mustNot ?? []).map(conditionOf) },
    };
  }

  /** What any machine may have stored, checked; null: not one of ours. */
  #stored(found: Record<string, unknown> | null | undefined): { id: VectorId; payload: T } | null {
    const { log, seq, payload } = (found ?? {}) as Partial<Stored<T>>;
    const id = { log, seq } as Partial<VectorId>;
    if (!isVectorId(id) || typeof payload !== 'object' || payload === null) return null;
    try {
      return { id, payload: this.#check === undefined ? payload : this.#check(payload) };
    } catch (error) {
      if (error instanceof KvError) return null;
      throw error;
    }
  }
}

const pathOf = (field: string): string => (Object.hasOwn(ID_FIELDS, field) ? field : `payload.${field}`);

function conditionOf(condition: Condition): Schemas['FieldCondition'] {
  const key = pathOf(condition.field);
  if ('equals' in condition) return { key, match: { value: condition.equals } };
  if ('oneOf' in condition) return { key, match: { any: [...condition.oneOf] as string[] | number[] } };
  const { min, max } = condition.range;
  return { key, range: { ...(min === undefined ? {} : { gte: min }), ...(max === undefined ? {} : { lte: max }) } };
}

/**
 * A collection of a Qdrant server, which is first called when the index is. Every machine that names the same server
 * and collection shares it. Throws 'bad-config', 'bad-argument', 'missing-dependency'.
 */
export async function openQdrantIndex<T extends object>(options: QdrantIndexOptions<T>): Promise<VectorIndex<T>> {
  checkQdrantOptions(options);
  return new QdrantIndex<T>(await QdrantServer.open(options), options);
}
