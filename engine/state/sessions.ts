/**
 * The session index: which earlier sessions were like this one, what they used, and where they are. For placement and
 * prefetch.
 */
import {
  type Filter,
  type Fingerprint,
  type Neighbour,
  openThresholdBook,
  type QdrantOptions,
  type SessionRecord,
  type SharedStatus,
} from '../../memory/index.ts';
import { checkKeys, given, type Rows } from '../../native/index.ts';
import { ENGINE_OPTIONS, STATE_OPTIONS } from '../options/table.ts';
import { readBook } from './folder.ts';

/** Options of openSessionIndex. */
export interface SessionIndexOptions {
  /** State folder whose sessions are asked; null: only those on the server. Default './.palimpsest'. */
  readonly stateDir?: string | null;
  /** Server where sessions of many machines are. Default: none. */
  readonly qdrant?: QdrantOptions;
}

const SESSION_INDEX_OPTIONS = {
  stateDir: ENGINE_OPTIONS.stateDir,
  qdrant: STATE_OPTIONS.qdrant,
} as const satisfies Rows<SessionIndexOptions>;

/** Sessions as vectors: their fingerprints. Reads only, and locks nobody out. */
export interface SessionIndex {
  /** How the server was when it was last asked; null: none was named. */
  readonly shared: SharedStatus | null;
  /**
   * The k sessions nearest to a fingerprint, nearest first, of all that pass the filter. A session that ends is in it
   * at once; here it is seen when the index is opened again. A server that is away is passed over, and `shared` says
   * so. Throws 'bad-shape', 'bad-argument'.
   */
  nearestSessions(fingerprint: Fingerprint, k: number, filter?: Filter): Promise<Neighbour<SessionRecord>[]>;
  /** Frees the index. */
  close(): Promise<void>;
}

/**
 * Opens the sessions of a state folder, of a server, or both. Throws 'not-found' for a folder without a log, 'bad-log',
 * 'bad-config', 'missing-dependency'.
 */
export async function openSessionIndex(options: SessionIndexOptions = {}): Promise<SessionIndex> {
  checkKeys(options, SESSION_INDEX_OPTIONS, 'openSessionIndex');
  const { stateDir = '.palimpsest', qdrant } = options;
  const book =
    stateDir === null
      ? await openThresholdBook({
          dir: null,
          logId: '',
          entries: () => [],
          ...given<{ shared: QdrantOptions & { send: false } }>({ shared: qdrant && { ...qdrant, send: false } }),
        })
      : await readBook(stateDir, qdrant);
  return {
    get shared() {
      return book.status.shared;
    },
    nearestSessions: (fingerprint, k, filter) => book.nearestSessions(fingerprint, k, filter),
    close: () => book.close(),
  };
}
