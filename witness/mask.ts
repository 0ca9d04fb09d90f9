/**
 * What must not be written, as data: rules that leave out kinds of entries, or leave out or mask fields of their
 * bodies. They run before anything is written. An entry to which a rule cannot be applied is left out and counted,
 * rather than written as it was.
 */
import { KvError } from '../native/index.ts';
import { checkBody, hasField } from './body.ts';
import { ENTRIES } from './entries/index.ts';
import { LEFT_OUT_BY_RULE, Trouble } from './trouble.ts';
import {
  ENTRY_KINDS,
  type EntryBodies,
  type EntryKind,
  type LogRule,
  NO_SESSION,
  type RetentionBody,
  type WitnessLog,
} from './types.ts';

/** A rule names a path of at most so many fields, and there are at most so many rules. */
const DEPTH_MAX = 16;
const RULES_MAX = 256;
/** What the log writes about itself, and about what was done to a session, must stay. */
const OWN_KINDS: readonly EntryKind[] = ENTRY_KINDS.filter((kind) => ENTRIES[kind].owner !== 'session');

/** Fields on the way to what a rule means; '*' is any field of an object and any item of a list. */
type Path = readonly string[];
/** null: the entry is not to be written. */
type Mask = <K extends EntryKind>(kind: K, body: EntryBodies[K]) => EntryBodies[K] | null;

interface KindRules {
  isDropped: boolean;
  readonly edits: { readonly path: Path; readonly drops: boolean }[];
}

/**
 * Checks rules and makes one function of them; null without any. Throws 'bad-argument' for a rule that could never
 * apply.
 */
export function maskOf(rules: readonly LogRule[]): Mask | null {
  if (!Array.isArray(rules) || rules.length > RULES_MAX)
    throw new KvError('bad-argument', `rules of a log are a list of at most ${RULES_MAX}`);
  const byKind = new Map<EntryKind, KindRules>();
  for (const rule of rules) {
    const { action, path, kinds } = checkRule(rule);
    for (const kind of kinds) {
      const own = byKind.get(kind) ?? { isDropped: false, edits: [] };
      byKind.set(kind, own);
      if (path === null) own.isDropped = true;
      else own.edits.push({ path, drops: action === 'drop' });
    }
  }
  if (byKind.size === 0) return null;
  return (kind, body) => {
    const own = byKind.get(kind);
    if (own === undefined) return body;
    return own.isDropped ? null : edited(kind, body, own);
  };
}

function edited<K extends EntryKind>(kind: K, body: EntryBodies[K], { edits }: KindRules): EntryBodies[K] | null {
  try {
    const masked = edits.reduce((value: unknown, { path, drops }) => without(value, path, drops), body);
    // Whoever reads it would refuse a body that does not say what its kind must.
    checkBody(kind, masked);
    return masked as EntryBodies[K];
  } catch {
    return null;
  }
}

/** A copy in which what the path names is missing or masked; a path that leads to nothing changes nothing. */
function without(value: unknown, path: Path, drops: boolean): unknown {
  const [name, ...rest] = path;
  if (name === undefined) return masked(value);
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    if (name !== '*') return value;
    return drops && rest.length === 0 ? [] : value.map((item) => without(item, rest, drops));
  }
  const fields = Object.entries(value).flatMap(([key, field]): [string, unknown][] => {
    if (name !== '*' && name !== key) return [[key, field]];
    return drops && rest.length === 0 ? [] : [[key, without(field, rest, drops)]];
  });
  return Object.fromEntries(fields);
}

/** Something of the same type that says nothing. */
function masked(value: unknown): unknown {
  if (typeof value === 'string') return '***';
  if (typeof value === 'number') return 0;
  if (typeof value === 'boolean') return false;
  if (Array.isArray(value)) return [];
  return typeof value === 'object' && value !== null ? {} : value;
}

function checkRule(rule: LogRule): { action: LogRule['action']; path: Path | null; kinds: readonly EntryKind[] } {
  const refuse = (what: string, hint?: string): KvError =>
    new KvError('bad-argument', `a rule of the log cannot be used: ${what}`, { values: { rule }, hint });
  if (typeof rule !== 'object' || rule === null) throw refuse('it is no object');
  const { action, path, kinds, ...others } = rule;
  const [other] = Object.keys(others);
  if (other !== undefined) throw refuse(`it has a field '${other}'`, 'a rule has action, path and kinds');
  if (action !== 'drop' && action !== 'mask') throw refuse('its action is neither drop nor mask');
  const open = ENTRY_KINDS.filter((kind) => !OWN_KINDS.includes(kind));
  const wrong = kinds?.find((kind) => !open.includes(kind));
  if (kinds !== undefined && (!Array.isArray(kinds) || kinds.length === 0 || wrong !== undefined))
    throw refuse(`its kinds are not among those that may be masked`, open.join(', '));
  if (path === undefined) {
    if (action === 'mask') throw refuse('it masks no path');
    if (kinds === undefined) throw refuse('it names neither kinds nor a path', 'witness: false writes nothing at all');
    return { action, path: null, kinds };
  }
  const fields = typeof path === 'string' ? path.split('.') : [];
  if (fields.length === 0 || fields.length > DEPTH_MAX || fields.includes('')) throw refuse('its path is none');
  // A note may say anything, so whoever names notes is believed.
  const having = (kinds ?? open).filter((kind) => hasField(kind, fields) || (kind === 'note' && kinds !== undefined));
  // A misspelt path would leave unmasked what it was meant for.
  if (having.length < (kinds?.length ?? 1)) throw refuse(`no ${kinds?.join(' or ') ?? 'entry'} has a field '${path}'`);
  return { action, path: fields, kinds: having };
}

/** A log to which nothing is written that these rules leave out. Throws 'bad-argument' as a log with rules does. */
export function withRules<Log extends WitnessLog | null>(log: Log, rules: readonly LogRule[]): WitnessLog | Log {
  const mask = maskOf(rules);
  return log === null || mask === null ? log : new MaskedLog(log, mask);
}

/** Writes to a log how many entries of which session withRules has left out since it was asked last. */
export function noteLeftOut(log: WitnessLog | null): void {
  if (log instanceof MaskedLog) log.tellLeftOut();
}

/** A log that writes only what the rules let through. */
export class MaskedLog implements WitnessLog {
  readonly #log: WitnessLog;
  readonly #mask: Mask;
  #left = new Trouble({ code: LEFT_OUT_BY_RULE });
  readonly #counts = new Map<string, number>();
  #closing: Promise<void> | null = null;

  constructor(log: WitnessLog, mask: Mask) {
    this.#log = log;
    this.#mask = mask;
  }

  get id(): string {
    return this.#log.id;
  }

  get dir(): string {
    return this.#log.dir;
  }

  get series(): number {
    return this.#log.series;
  }

  get unanchoredEntries(): number | null {
    return this.#log.unanchoredEntries;
  }

  get bytes(): number {
    return this.#log.bytes;
  }

  get acknowledgedSeq(): number {
    return this.#log.acknowledgedSeq;
  }

  get droppedCount(): number {
    return this.#log.droppedCount + [...this.#counts.values()].reduce((sum, count) => sum + count, 0);
  }

  missingOf(session: string): number {
    return this.#log.missingOf(session) + this.leftOutOf(session);
  }

  leftOutOf(session: string): number {
    return this.#counts.get(session) ?? 0;
  }

  append<K extends EntryKind>(session: string, kind: K, body: EntryBodies[K]): number | null {
    const kept = this.#mask(kind, body);
    if (kept !== null) return this.#log.append(session, kind, kept);
    if (this.#closing !== null) throw new KvError('closed', 'the log was closed');
    this.#left.count(session, Date.now());
    this.#counts.set(session, (this.#counts.get(session) ?? 0) + 1);
    return null;
  }

  removeSegments(firstSegment: number): Promise<RetentionBody | null> {
    return this.#log.removeSegments(firstSegment);
  }

  flush(): Promise<number> {
    return this.#log.flush();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  /** The log says at its end how many entries of which session were left out, as after a full disk. */
  async #close(): Promise<void> {
    try {
      this.tellLeftOut();
    } finally {
      await this.#log.close();
    }
  }

  tellLeftOut(): void {
    const note = this.#left.note(Date.now());
    this.#left = new Trouble({ code: LEFT_OUT_BY_RULE });
    if (note !== null) this.#log.append(NO_SESSION, 'note', note);
  }
}
