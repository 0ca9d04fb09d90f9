/**
 * What a session knew of others before one of its decisions: what it began with, and what it was told while it read its
 * text; with the sessions that were asked.
 */
import { brief, grouped, KvError, plural, printable, timeText } from '../native/index.ts';
import type { ThresholdSet } from '../policy/index.ts';
import { isLearned, type Without } from './counterfactual.ts';
import type { NoteBody } from './entries/log-notes.ts';
import type { Explanation, KnownBefore } from './explanation.ts';
import type { LogFiles } from './files.ts';
import { readEntry } from './read.ts';
import { entryId } from './series.ts';
import type { Entry, LikeSession } from './types.ts';

/** So many sessions are named of each kind of knowledge. */
const NAMED = 8;

/** Reads the entries of a session up to a decision. */
export class KnownStory {
  readonly #seq: number;
  #start: ThresholdSet | null = null;
  /** Those that were asked when it began, and last. */
  #first: readonly LikeSession[] | null = null;
  #neighbours: readonly LikeSession[] = [];
  #hasText = false;
  #alike: readonly LikeSession[] = [];
  #pages: readonly number[] = [];
  #answers = 0;

  constructor(seq: number) {
    this.#seq = seq;
  }

  add(entry: Entry): void {
    if (entry.seq >= this.#seq) return;
    if (entry.kind === 'open') this.#start = (entry as Entry<'open'>).body.context.thresholds;
    if (entry.kind === 'evidence') {
      this.#neighbours = (entry as Entry<'evidence'>).body.neighbours;
      this.#first ??= this.#neighbours;
    }
    if (entry.kind === 'note') this.#alike = ((entry as Entry<'note'>).body as NoteBody).beginning ?? this.#alike;
    if (entry.kind !== 'situation') return;
    const { later, text } = (entry as Entry<'situation'>).body.situation;
    this.#hasText ||= text !== undefined;
    if (later === undefined) return;
    this.#pages = later.map(({ page }) => page);
    this.#answers = Math.max(...later.map(({ answers }) => answers));
  }

  tell(dir: string, files?: LogFiles): KnownBefore[] {
    const named = (all: readonly LikeSession[]): KnownBefore['sessions'] =>
      all.slice(0, NAMED).map((one) => ({ ...one, endMs: one.log === undefined ? endOf(dir, one, files) : null }));
    const known: KnownBefore[] = [];
    const { course, sources } = this.#start ?? {};
    if (course !== undefined) {
      const samples = Math.max(0, ...[...course.persistence.k, ...course.persistence.v].map((one) => one.samples));
      const from = sources?.course;
      // What is from a file is from none of the sessions that were asked.
      const source = from?.origin === 'file' ? from.source : null;
      const sessions = source === null ? named(this.#first ?? []) : [];
      known.push({ what: 'course', samples, source, of: [], sessions });
    }
    if (this.#pages.length > 0) {
      const sessions = named(this.#alike);
      known.push({ what: 'later', samples: this.#answers, source: null, of: this.#pages.map(String), sessions });
    }
    if (this.#start !== null && (this.#hasText || isLearned(this.#start)))
      known.push({
        ...learnedOf(this.#start, this.#hasText),
        sessions: named(this.#hasText ? this.#neighbours : (this.#first ?? [])),
      });
    return known;
  }
}

function learnedOf(set: ThresholdSet, hasText: boolean): Omit<KnownBefore, 'sessions'> {
  const told = Object.values(set.thresholds).filter(({ origin }) => origin === 'learned' || origin === 'file');
  const gains = [...set.gains.k, ...set.gains.v].some((gain) => gain !== 1) ? ['gains'] : [];
  const law = set.law === undefined ? [] : ['law'];
  return {
    what: 'learned',
    samples: told.length === 0 ? null : Math.max(...told.map(({ samples }) => samples)),
    source: set.sources?.law?.source ?? null,
    of: [...told.map(({ id }) => id), ...law, ...gains, ...(hasText ? ['text'] : [])],
  };
}

/** When an earlier session of this log ended; null where its entry is not there, or cannot be opened. */
function endOf(dir: string, { seq, session }: LikeSession, files: LogFiles | undefined): number | null {
  try {
    const entry = readEntry(dir, seq, files);
    return entry.session === session ? entry.timeMs : null;
  } catch (error) {
    if (error instanceof KvError) return null;
    throw error;
  }
}

/** What was taken out, in words. */
export const WITHOUT_NAMES: Readonly<Record<Without, string>> = {
  course: 'how errors went on in earlier sessions',
  later: 'what others asked of its beginning',
  learned: 'what was learned of thresholds and of the law of errors',
  all: 'all of it',
};

/** What the session knew, for people. */
export function tellKnown({ knownBefore }: Pick<Explanation, 'knownBefore'>): string {
  if (knownBefore.length === 0) return 'Its session knew nothing of others.';
  return knownBefore.map((one) => `${KNOWN[one.what](one)}${sessionsText(one)}.`).join(' ');
}

const KNOWN: Readonly<Record<KnownBefore['what'], (known: KnownBefore) => string>> = {
  course: ({ samples, source }) =>
    `Its session began with the course of errors of ${plural(samples ?? 0, 'earlier session')}${source === null ? '' : `, from ${printable(source)}`}`,
  later: ({ samples, of }) =>
    `It was told what ${plural(samples ?? 0, 'answer')} had asked of ${plural(of.length, 'page')} of its beginning`,
  learned: ({ samples, source, of }) => {
    const from = samples === null || samples === 0 ? '' : `, from ${plural(samples, 'session')}`;
    const law = source === null ? '' : `; its law is from ${printable(source)}`;
    return `It began with values that were learned (${of.map(printable).join(', ')})${from}${law}`;
  },
};

function sessionsText({ sessions }: KnownBefore): string {
  if (sessions.length === 0) return '';
  const told = sessions.map(({ session, distance, seq, log, endMs }) => {
    const where = log === undefined ? '' : ` of log ${printable(log)}`;
    const when = endMs === null ? '' : `, ended ${timeText(endMs)}`;
    return `${printable(session)} (distance ${brief(distance)}, entry ${entryId(seq)}${where}${when})`;
  });
  return `; asked were ${told.join(', ')}`;
}

/** What would have been decided without it, for people. */
export function tellWithout({
  without,
  withoutUnknown,
  decision,
}: Explanation | Omit<Explanation, 'sentences'>): string {
  if (withoutUnknown !== null) return `Not known: ${withoutUnknown}.`;
  const told = without.map((one) => `Without ${WITHOUT_NAMES[one.without]}: ${otherwiseText(one, decision)}.`);
  return `${told.join(' ')} Trials stay those of the log.`;
}

const priceText = (price: number | null): string => (price === null ? 'no price' : `${brief(price)} KLD per byte`);

function otherwiseText(
  { what, price, move }: Explanation['without'][number],
  { from, to, accepted }: Explanation['decision'],
): string {
  const prices = move === null ? '' : ` at ${priceText(move.price)}, where the log has ${priceText(price)}`;
  if (move === null) return 'this side would not have moved for as long as the log goes';
  const then = `${move.from} to ${move.to}`;
  if (what === 'same') return `the same,${prices}`;
  if (what === 'other-form') return `${then} in place of ${from} to ${to},${prices}`;
  if (what === 'other-verdict') return `planned as well, and ${accepted ? 'refused' : 'made'},${prices}`;
  return `not moved at this point but ${what}, with ${grouped(move.tokens)} tokens, ${then},${prices}`;
}
