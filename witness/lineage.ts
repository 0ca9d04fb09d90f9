/**
 * The entries that tell how the pages of a session came to be what they are: its own, and before them those of the
 * session that it goes on from, or with whose pages it began, up to where it did.
 */
import type { NoteBody } from './entries/log-notes.ts';
import { readSeries } from './read.ts';
import { missingBySession } from './replay.ts';
import { seriesOf } from './series.ts';
import type { Entry, OpenBody } from './types.ts';

/** An entry, and how much of what it tells of is in the session that was asked about. */
export interface Line {
  readonly entry: Entry;
  /** First tokens of the cache whose pages these are; infinite: it is an entry of the session itself. */
  readonly tokens: number;
}

/** With what a session began that another one had read. */
export interface Beginning {
  /** The other one. */
  readonly session: string;
  readonly tokens: number;
  /** Of a fork: those of them in pages that both hold. Undefined: it began with whole pages, in an empty cache. */
  readonly forkedTokens?: number | undefined;
  /** Of one that was parked: the last entry behind which it was, so that what follows it is of no concern. */
  readonly parkedAt?: number;
}

/** Those of a session up to an entry of it, in the order in which they tell of its pages. */
export interface Lineage {
  readonly lines: readonly Line[];
  /** A session of which the log lacks entries that belong here; null: none. */
  readonly lacking: string | null;
}

/** A note that names the session whose pages are adopted, or that was parked. */
type Adopting = NoteBody & Readonly<Partial<Record<'from' | 'resumed' | 'parkedAt', unknown>>>;

/** What an entry says of the beginning of its session; null: nothing. */
export function beginningIn({ kind, body }: Entry): Beginning | null {
  if (kind === 'open') {
    const { forkOf, tokens, heldTokens } = (body as OpenBody).effective;
    const isFork = typeof forkOf === 'string' && typeof tokens === 'number' && typeof heldTokens === 'number';
    return isFork ? { session: forkOf, tokens, forkedTokens: heldTokens } : null;
  }
  if (kind !== 'note') return null;
  const { adopted, from, resumed, parkedAt } = body as Adopting;
  if (typeof from !== 'string') return null;
  if (typeof resumed === 'number' && typeof parkedAt === 'number') return { session: from, tokens: resumed, parkedAt };
  return adopted === undefined ? null : { session: from, tokens: adopted };
}

/** True for what relatives moved before the session knew what it begins with: the entries of those have it. */
const isBefore = ({ kind, body }: Entry): boolean =>
  kind === 'change' && (body as Entry<'change'>['body']).tokens === 0;

/** `entries`: those of the session. Throws 'sealed' where an earlier session was erased. */
export function lineageOf(dir: string, entries: readonly Entry[]): Lineage {
  const earlier = ancestorsOf(dir, entries);
  const missing = earlier.size === 0 ? null : missingBySession(dir);
  const lines: Line[] = [];
  let lacking: string | null = null;
  const tell = (told: Iterable<Entry>, tokens: number): void => {
    for (const entry of told) {
      const beginning = beginningIn(entry);
      if (beginning !== null) {
        const { session, parkedAt = entry.seq - 1 } = beginning;
        const before = earlier.get(session)!.filter(({ seq }) => seq <= parkedAt && seq < entry.seq);
        tell(before, Math.min(tokens, beginning.tokens));
        const isWhole = before[0]?.kind === 'open' && !missing!.has(session);
        if (!isWhole) lacking ??= session;
      }
      if (!isBefore(entry)) lines.push({ entry, tokens });
    }
  };
  tell(entries, Number.POSITIVE_INFINITY);
  return { lines, lacking };
}

/**
 * Entries of all sessions that these go on from, by session, each up to where anything else did. The log is read twice,
 * however many there are: for what every session began with, and for theirs.
 */
function ancestorsOf(dir: string, entries: readonly Entry[]): ReadonlyMap<string, readonly Entry[]> {
  const found = new Map<string, Entry[]>();
  const last = entries.findLast((entry) => beginningIn(entry) !== null);
  if (last === undefined) return found;
  const [series, to] = [seriesOf(last.seq), last.seq];
  const beginnings = new Map<string, string[]>();
  for (const entry of readSeries(dir, series, { to, kinds: ['open', 'note'] })) {
    const from = beginningIn(entry)?.session;
    if (from !== undefined) beginnings.set(entry.session, [...(beginnings.get(entry.session) ?? []), from]);
  }
  const open = entries.flatMap((entry) => beginningIn(entry)?.session ?? []);
  for (let session = open.pop(); session !== undefined; session = open.pop()) {
    if (found.has(session)) continue;
    found.set(session, []);
    open.push(...(beginnings.get(session) ?? []));
  }
  for (const entry of readSeries(dir, series, { to, sessions: [...found.keys()] }))
    found.get(entry.session)!.push(entry);
  return found;
}
