/**
 * What a field of an event may hold: ids, names of a closed list, codes and numbers. None of them has room for what
 * somebody asked, was answered, or keeps secret.
 */
import { bytesText, plural } from '../../native/index.ts';

/** A field of an event: what it may hold, and what that is in words. */
export interface EventField<T> {
  /** True for a value that it may hold. */
  readonly holds: (value: unknown) => boolean;
  /** Its type in words, with the unit last. */
  readonly type: string;
  /** The value in a sentence. */
  readonly text: (value: T) => string;
  /** What it says. */
  readonly means: string;
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const CODE = /^[A-Za-z][A-Za-z0-9_-]{0,39}$/;

/** The id of a session. */
export const sessionId = (means: string): EventField<string> => ({
  holds: (value) => typeof value === 'string' && UUID.test(value),
  type: 'id',
  // As lists in a terminal have it.
  text: (id) => id.slice(-8),
  means,
});

/** One of few names. */
export const oneOf = <const Name extends string>(names: readonly Name[], means: string): EventField<Name> => ({
  holds: (value) => (names as readonly unknown[]).includes(value),
  type: names.join(', '),
  text: (name) => name,
  means,
});

/** A code of the operating system, or one of KV_ERROR_CODES. */
export const code = (means: string): EventField<string> => ({
  holds: (value) => typeof value === 'string' && CODE.test(value),
  type: 'code',
  text: (value) => value,
  means,
});

type Unit =
  | 'bytes'
  | 'tokens'
  | 'ms'
  | 'nats'
  | 'entries'
  | 'segments'
  | 'sessions'
  | 'page sides'
  | 'layers'
  | 'calls'
  | 'failures';
/** What is counted, one of it. */
const ONE: Readonly<Record<Exclude<Unit, 'bytes' | 'nats'>, string>> = {
  tokens: 'token',
  ms: 'ms',
  entries: 'entry',
  segments: 'segment',
  sessions: 'session',
  'page sides': 'page side',
  layers: 'layer',
  calls: 'call',
  failures: 'failure',
};

const inUnit = (value: number, unit: Unit): string => {
  if (unit === 'bytes') return bytesText(value);
  return unit === 'nats' ? `${Number(value.toPrecision(3))} nats` : plural(value, ONE[unit], unit);
};

/** A count or a measure from 0 on. */
export const amount = (unit: Unit, means: string): EventField<number> => ({
  holds: (value) => typeof value === 'number' && Number.isFinite(value) && value >= 0,
  type: unit,
  text: (value) => inUnit(value, unit),
  means,
});
