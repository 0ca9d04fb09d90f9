/** What mode drop remembers while the disk refuses, so that the log can say afterwards what is missing. */
import type { EntryBodies } from './types.ts';

/** In the place of what the disk said: a rule of the caller left the entries out. */
export const LEFT_OUT_BY_RULE = 'RULE';

/** What the disk said. Messages name paths of the machine, and codes are enough to tell one trouble from another. */
export function codeOf(error: unknown): string {
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === 'string' && /^[A-Z][A-Z0-9_]{1,40}$/.test(code) ? code : 'unknown';
}

/** A stretch of time in which the disk refused and entries were dropped (mode drop). */
export class Trouble {
  readonly #error: string;
  readonly #sessions = new Map<string, number>();
  #entries = 0;
  #fromMs: number | null = null;

  constructor(error: unknown) {
    this.#error = codeOf(error);
  }

  count(session: string, timeMs: number): void {
    this.#entries++;
    this.#fromMs ??= timeMs;
    this.#sessions.set(session, (this.#sessions.get(session) ?? 0) + 1);
  }

  /** What an earlier one would have told. */
  add(other: Trouble): void {
    this.#entries += other.#entries;
    this.#fromMs = other.#fromMs ?? this.#fromMs;
    for (const [session, count] of other.#sessions)
      this.#sessions.set(session, (this.#sessions.get(session) ?? 0) + count);
  }

  /** The body of the 'note' entry that says what is missing; null when nothing is. */
  note(timeMs: number): EntryBodies['note'] | null {
    if (this.#entries === 0) return null;
    return {
      note: 'dropped',
      entries: this.#entries,
      sessions: Object.fromEntries(this.#sessions),
      fromMs: this.#fromMs,
      toMs: timeMs,
      error: this.#error,
    };
  }
}
