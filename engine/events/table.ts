/**
 * Everything that an engine tells whoever keeps it running, once: the name of each event, its level, its fields with
 * their units, and its sentence. The types of events, what is checked before one is told, and the table of
 * docs/operate.md come from here.
 */
import { QUALITY_SOURCES } from '../../policy/index.ts';
import { amount, code, type EventField, oneOf, sessionId } from './field.ts';

/** Levels from the least important on. */
export const LEVELS = ['debug', 'info', 'warn', 'error'] as const;
export type LogLevel = (typeof LEVELS)[number];

/** What is known of an event before it happens. */
export interface EventRow {
  readonly level: LogLevel;
  readonly fields: Readonly<Record<string, EventField<never>>>;
  /** The sentence, with names of fields in braces. */
  readonly says: string;
}

const session = sessionId('the session');
const tokens = amount('tokens', 'tokens that it holds');
const bytesBefore = amount('bytes', 'what it took in memory before');
const bytesAfter = amount('bytes', 'what it takes in memory now');
const cause = oneOf(['pool', 'low-memory'], 'the sessions together need the memory, or a caller said it is low');
const server = oneOf(['file', 'stdout', 'http', 'postgres'], 'what kind of place');
const storeCall = oneOf(['put', 'first', 'remove', 'erase'], 'what was asked of it: to keep, to look up, to remove');
const budgetNats = amount('nats', 'the divergence budget of the session');
const expectedNats = amount('nats', 'the divergence expected of its moves so far');
const measuredTokens = amount('tokens', 'tokens by which that was measured; none: it is predicted alone');
const layers = amount('layers', 'how many');
const by = oneOf(
  QUALITY_SOURCES,
  'by what: errors measured over those promised, a shift of all errors, a gain that is not believed, or codes that were damaged',
);
const helper = oneOf(['kinds', 'places'], 'what the auxiliary model tells of a text');
const failures = amount('failures', 'how often it failed, in a row');
const room = {
  session,
  tokens: amount('tokens', 'tokens at the end of the call'),
  budgetBytes: amount('bytes', 'the budget of the engine'),
};

/** All events, by their names. */
export const EVENTS = {
  'session-parked': {
    level: 'info',
    fields: {
      session,
      place: oneOf(['memory', 'disk', 'reread'], 'where its pages are; reread: nowhere, its tokens are read again'),
      cause,
      tokens,
      idleMs: amount('ms', 'how long it had waited'),
      bytesBefore,
      bytesAfter,
    },
    says: 'Session {session} was parked ({place}, {cause}): {bytesBefore} of memory became {bytesAfter}.',
  },
  'session-kept': {
    level: 'warn',
    fields: { session, cause, code: code('why'), tokens },
    says: 'Session {session} could not be parked ({code}) and keeps its memory.',
  },
  'session-woken': {
    level: 'info',
    fields: {
      session,
      by: oneOf(['pages', 'reading'], 'its pages came back, or its tokens are read again'),
      tokens,
      bytesBefore,
      bytesAfter,
    },
    says: 'Session {session} is back ({by}): {bytesBefore} of memory became {bytesAfter}.',
  },
  'byte-budget-gave-way': {
    level: 'warn',
    fields: {
      session,
      tokens,
      budgetBytes: amount('bytes', 'the byte budget of the session'),
      neededBytes: amount('bytes', 'what it needs now'),
    },
    says: 'The byte budget of session {session} gave way to its divergence budget: {budgetBytes} became {neededBytes}.',
  },
  'divergence-budget-gave-way': {
    level: 'warn',
    fields: {
      session,
      tokens,
      budgetNats,
      predictedNats: expectedNats,
    },
    says: 'The divergence budget of session {session} gave way to its byte budget: {budgetNats} are allowed, its moves so far come to {predictedNats}, and more must follow.',
  },
  'stated-divergence-broken': {
    level: 'warn',
    fields: { session, tokens, budgetNats, expectedNats, measuredTokens },
    says: 'Session {session} is expected to have diverged by {expectedNats} ({measuredTokens} measured), and {budgetNats} were stated.',
  },
  'stated-divergence-kept': {
    level: 'info',
    fields: { session, tokens, budgetNats, expectedNats, measuredTokens },
    says: 'Session {session} keeps its stated divergence again: {expectedNats} are expected ({measuredTokens} measured) of {budgetNats}.',
  },
  'growth-without-end': {
    level: 'warn',
    fields: {
      session,
      tokens,
      bytes: amount('bytes', 'what its cache takes now'),
      bytesPerToken: amount('bytes', 'by which each token makes it larger'),
      limitBytes: amount(
        'bytes',
        'its byte budget where all pages are as low as they may go, or else what memory there is',
      ),
      tokensLeft: amount('tokens', 'until it has reached that at this pace'),
    },
    says: 'The cache of session {session} grows without end: by {bytesPerToken} a token, so that {limitBytes} are reached in {tokensLeft}, before its context is. Give it a byte budget, or a larger one.',
  },
  'originals-lost': {
    level: 'warn',
    fields: { session, tokens, code: code('why') },
    says: 'Session {session} goes on without originals of its pages ({code}).',
  },
  'codes-mended': {
    level: 'warn',
    fields: { session, tokens, sides: amount('page sides', 'how many') },
    says: 'Codes of {sides} of session {session} were damaged in memory, and were made again of originals.',
  },
  'codes-damaged': {
    level: 'warn',
    fields: { session, tokens, sides: amount('page sides', 'how many') },
    says: "Codes of {sides} of session {session} were damaged in memory and stay so, because there is no original to make them again of, or no room. Keep originals: give sessions originals: 'disk'.",
  },
  'layers-watched': {
    level: 'info',
    fields: { session, tokens, layers, by },
    says: 'Session {session} watches {layers}, which may err more than was promised, or did ({by}).',
  },
  'layers-degraded': {
    level: 'warn',
    fields: { session, tokens, layers, by },
    says: 'Session {session} takes {layers} for degraded ({by}): errors there exceed what was promised, and moves get dearer.',
  },
  'layers-healthy': {
    level: 'info',
    fields: { session, tokens },
    says: 'No layer of session {session} is watched any more.',
  },
  'layers-doubted': {
    level: 'info',
    fields: { session, tokens, layers },
    says: 'Session {session} no longer trusts {layers}: trials do not agree with what earlier sessions told, and all pages are tried again.',
  },
  'engine-budget-pressed': {
    level: 'debug',
    fields: {
      session,
      asking: sessionId('the session that needed room'),
      freedBytes: amount('bytes', 'what its pages gave up'),
      budgetBytes: room.budgetBytes,
    },
    says: 'The budget of the engine, {budgetBytes}, is short: pages of session {session} went {freedBytes} lower for session {asking}.',
  },
  'call-waits': {
    level: 'info',
    fields: room,
    says: 'A call of session {session} waits: the budget of the engine, {budgetBytes}, has no room for its {tokens} now.',
  },
  'call-short': {
    level: 'debug',
    fields: { ...room, shortBytes: amount('bytes', 'what is lacking if no page goes lower and nobody is parked') },
    says: 'A call of session {session} begins {shortBytes} short to its {tokens}: pages go lower, or sessions that wait are parked (budget {budgetBytes}).',
  },
  'call-refused': {
    level: 'warn',
    fields: room,
    says: 'A call of session {session} was refused: the budget of the engine, {budgetBytes}, has no room for its {tokens}.',
  },
  'calls-fewer': {
    level: 'warn',
    fields: {
      calls: amount('calls', 'how many'),
      reclaimedBytes: amount('bytes', 'what sessions left that were parked for others'),
      refaultedBytes: amount('bytes', 'what of it was soon wanted back'),
    },
    says: 'Sessions are parked and wanted back at once ({refaultedBytes} of {reclaimedBytes}): only {calls} may be at work at once.',
  },
  'calls-more': {
    level: 'info',
    fields: { calls: amount('calls', 'how many') },
    says: 'Memory is calm: {calls} may be at work at once.',
  },
  'calls-unbounded': {
    level: 'info',
    fields: {},
    says: 'Memory is calm: as many calls as there is room for may be at work at once.',
  },
  'qdrant-away': {
    level: 'warn',
    fields: {},
    says: 'Qdrant does not answer; sessions go on with what this state folder knows.',
  },
  'qdrant-back': { level: 'info', fields: {}, says: 'Qdrant answers again.' },
  'anchor-away': {
    level: 'warn',
    fields: { place: server },
    says: 'A place for checkpoints of the log ({place}) refuses them; they are tried again.',
  },
  'anchor-back': {
    level: 'info',
    fields: { place: server },
    says: 'A place for checkpoints of the log ({place}) takes them again.',
  },
  'entries-unanchored': {
    level: 'error',
    fields: { entries: amount('entries', 'how many, at the end of the log') },
    says: 'Not anchored: no place has a checkpoint that covers the last {entries} of the log, so a change there would not show. Sign one now: palimpsest audit checkpoint --key audit.key -o anchor.txt',
  },
  'store-refuses': {
    level: 'warn',
    fields: { call: storeCall, code: code('why') },
    says: 'The store of the server fails ({call}, {code}): conversations are read again by whoever goes on with them elsewhere.',
  },
  'store-takes-again': {
    level: 'info',
    fields: { call: storeCall, failed: amount('calls', 'those that failed meanwhile') },
    says: 'The store of the server works again ({call}); {failed} failed.',
  },
  'helper-failed': {
    level: 'warn',
    fields: { helper, failures, restMs: amount('ms', 'how long it is not started again') },
    says: 'Helper {helper} failed ({failures} in a row), and is started again when it is asked after {restMs}.',
  },
  'helper-back': {
    level: 'info',
    fields: { helper },
    says: 'Helper {helper} answers again.',
  },
  'helper-broken': {
    level: 'warn',
    fields: { helper, failures },
    says: 'Helper {helper} failed ({failures} in a row), and is not asked any more: sessions go on without its hints.',
  },
  'log-refused': {
    level: 'warn',
    fields: { code: code('what the disk said') },
    says: 'The log cannot be written ({code}).',
  },
  'log-written-again': {
    level: 'warn',
    fields: { lostEntries: amount('entries', 'those of this writer that will never be in the log') },
    says: 'The log is written again; {lostEntries} were lost.',
  },
  'log-repaired': {
    level: 'warn',
    fields: { droppedBytes: amount('bytes', 'what the last writer left unfinished') },
    says: 'The writer of the log before this one did not end it: {droppedBytes} behind the last whole entry were cut off.',
  },
  'log-retained': {
    level: 'info',
    fields: {
      segments: amount('segments', 'segments that went'),
      entries: amount('entries', 'entries in them'),
      sessions: amount('sessions', 'sessions of which nothing is left'),
      bytesBefore: amount('bytes', 'the log before'),
      bytesAfter: amount('bytes', 'the log after'),
    },
    says: 'Retention removed {segments} of the log with {entries}; nothing is left of {sessions}. {bytesBefore} became {bytesAfter}.',
  },
  'retention-failed': {
    level: 'warn',
    fields: { code: code('why') },
    says: 'Retention removes nothing from the log ({code}).',
  },
  'state-taken-over': {
    level: 'warn',
    fields: { part: oneOf(['log', 'memory'], 'which part of the state folder') },
    says: 'The state folder was taken over ({part}) from a writer that ended without releasing it.',
  },
  'model-changed': {
    level: 'warn',
    fields: { session },
    says: 'A file of the model was changed while it is in use; a call of session {session} ended with it. Open the model again.',
  },
  'thresholds-found': {
    level: 'debug',
    fields: { session, sessions: amount('sessions', 'earlier sessions that they are from') },
    says: 'Session {session} starts with what {sessions} taught.',
  },
  'thresholds-not-found': {
    level: 'debug',
    fields: { session },
    says: 'Session {session} starts with the defaults: no earlier session was like it.',
  },
} as const satisfies Readonly<Record<string, EventRow>>;

/** The name of an event. */
export type EventName = keyof typeof EVENTS;
