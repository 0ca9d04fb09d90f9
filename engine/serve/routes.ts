/** What can be asked of the live view: one table, from which requests are served and the OpenAPI document is made. */
import { z } from 'zod';
import { KvError, nearestName } from '../../native/index.ts';
import { EXPOSITION_TYPE } from '../metrics/registry.ts';
import { answeredPath } from './answered.ts';
import { ANSWERS, form, laterForm } from './answers.ts';
import { nothingThere, type Way } from './guard.ts';
import { isPagePath } from './page-files.ts';

const LIMIT_MAX = 1000;

const page = {
  limit: z.int().min(1).max(LIMIT_MAX).default(100).describe('most rows'),
  cursor: z.string().max(64).optional().describe('`next` of the rows before'),
};
const timeMs = z.int().min(0).optional();
const id = z
  .string()
  .regex(/^\d{1,16}(:\d{1,10})?$/)
  .describe('id of an entry, such as 17 or 2:17');
const session = z.string().min(1).max(200).describe('id of a session');

const none = z.strictObject({});

/** Where an answer comes from. */
export type Source = 'log' | 'metrics' | 'document' | 'stream' | 'live' | 'engine';

export interface Route {
  readonly path: string;
  readonly does: string;
  readonly source: Source;
  /** What the log's reader is asked. */
  readonly method?: 'sessions' | 'session' | 'map' | 'decisions' | 'explain' | 'quality' | 'memory' | 'verify';
  /** True if it changes something: it is asked by POST, under the conditions of guard.ts. */
  readonly changes?: true;
  /** True if a key that is told of its own answers alone may ask it, of sessions of theirs. */
  readonly own?: true;
  readonly inPath: z.ZodObject;
  readonly inQuery: z.ZodObject;
  readonly type: string;
  /** Left out: text, or an OpenAPI document. */
  readonly answer?: z.ZodType;
}

const JSON_TYPE = 'application/json; charset=utf-8';
const EVENTS_TYPE = 'text/event-stream; charset=utf-8';

export const ROUTES: readonly Route[] = [
  {
    path: '/v1/sessions',
    does: 'Sessions, newest first.',
    source: 'log',
    method: 'sessions',
    inPath: none,
    inQuery: z.strictObject(page),
    type: JSON_TYPE,
    answer: ANSWERS.sessions,
  },
  {
    path: '/v1/sessions/{session}',
    does: 'One session with its memory and quality.',
    source: 'log',
    method: 'session',
    own: true,
    inPath: z.strictObject({ session }),
    inQuery: none,
    type: JSON_TYPE,
    answer: ANSWERS.session,
  },
  {
    path: '/v1/sessions/{session}/map',
    does: 'What the pages of a session are in, and how they came to it, as columns: the live page draws its tier map of this.',
    source: 'log',
    method: 'map',
    own: true,
    inPath: z.strictObject({ session }),
    inQuery: none,
    type: JSON_TYPE,
    answer: ANSWERS.map,
  },
  {
    path: '/v1/live',
    does: 'What the server does, once a second, as server-sent events: `event` is snapshot, `data` one snapshot as JSON; or problem, where none could be made.',
    source: 'live',
    own: true,
    inPath: none,
    inQuery: none,
    type: EVENTS_TYPE,
    answer: ANSWERS.live,
  },
  {
    path: '/v1/decisions',
    does: 'Decisions that all given filters let through, newest first, refused ones included.',
    source: 'log',
    method: 'decisions',
    own: true,
    inPath: none,
    inQuery: z.strictObject({
      ...page,
      session: session.optional(),
      layer: z.int().min(0).max(9999).optional(),
      model: z.string().max(300).optional().describe('name or digest of the model'),
      page: z.int().min(0).optional(),
      side: z.enum(['k', 'v', 'kv']).optional(),
      from: form.optional().describe('format or latent that the page had'),
      to: laterForm.optional().describe('that which it was to get; freed: pages that were let go'),
      reason: z.string().max(100).optional().describe('a rule or a threshold'),
      accepted: z.boolean().optional().describe('true: only moves that were made; false: only refused ones'),
      fromMs: timeMs.describe('not before, milliseconds since the epoch'),
      toMs: timeMs.describe('not after'),
      tokensMin: z.int().min(0).optional().describe('tokens in the cache when it was decided, at least'),
      tokensMax: z.int().min(0).optional().describe('at most'),
    }),
    type: JSON_TYPE,
    answer: ANSWERS.decisions,
  },
  {
    path: '/v1/decisions/stream',
    does: 'Decisions as they are written, as server-sent events: `id` says how far the log was told, `event` is decision, `data` one decision as JSON. A client that comes back with Last-Event-ID misses nothing.',
    source: 'stream',
    own: true,
    inPath: none,
    inQuery: z.strictObject({
      session: session.optional(),
      after: z
        .string()
        .max(4096)
        .regex(/^(start|\d{1,16}(:\d{1,10})?(,\d{1,16}(:\d{1,10})?)*)$/)
        .optional()
        .describe('as the header Last-Event-ID: `id` of the last event seen, or start; left out: from now on'),
    }),
    type: EVENTS_TYPE,
    answer: ANSWERS.decision,
  },
  {
    path: '/v1/decisions/{id}/explain',
    does: 'Why a decision was made, what it cost, and what came after it.',
    source: 'log',
    method: 'explain',
    inPath: z.strictObject({ id }),
    inQuery: none,
    type: JSON_TYPE,
    answer: ANSWERS.explanation,
  },
  {
    path: '/v1/memory',
    does: 'Bytes of the caches of sessions, newest first.',
    source: 'log',
    method: 'memory',
    inPath: none,
    inQuery: z.strictObject(page),
    type: JSON_TYPE,
    answer: ANSWERS.memory,
  },
  {
    path: '/v1/quality',
    does: 'What is known of the quality of sessions, newest first.',
    source: 'log',
    method: 'quality',
    inPath: none,
    inQuery: z.strictObject(page),
    type: JSON_TYPE,
    answer: ANSWERS.quality,
  },
  {
    path: '/v1/verify',
    does: 'Whether every byte of the log is what was written, checked some seconds ago at most.',
    source: 'log',
    method: 'verify',
    inPath: none,
    inQuery: none,
    type: JSON_TYPE,
    answer: ANSWERS.verification,
  },
  {
    path: '/metrics',
    does: 'Metrics for Prometheus, where they are switched on; a key that is told of its own answers alone gets its own.',
    source: 'metrics',
    own: true,
    inPath: none,
    inQuery: none,
    type: EXPOSITION_TYPE,
  },
  {
    path: '/v1/low-memory',
    does: 'Tells the engine behind this server that memory is short, or no longer: pages of its sessions go lower, and sessions that wait are parked.',
    source: 'engine',
    changes: true,
    inPath: none,
    inQuery: z.strictObject({ low: z.boolean().describe('whether it is short') }),
    type: JSON_TYPE,
    answer: ANSWERS.lowMemory,
  },
  {
    path: '/openapi.json',
    does: 'This document.',
    source: 'document',
    inPath: none,
    inQuery: none,
    type: JSON_TYPE,
  },
];

/** `answers`: true if prompts are answered here. isOwn: it tells whoever asks of themselves alone. */
export function wayOf(url: string, answers: boolean): { readonly way: Way; readonly isOwn: boolean } {
  const path = url.split('?', 1)[0]!;
  if (isPagePath(path)) return { way: 'greets', isOwn: true };
  const answered = answers ? answeredPath(path) : null;
  const way = answered?.body !== undefined ? 'answers' : answered?.open === true ? 'greets' : 'removes';
  if (answered !== null) return { way: way === 'removes' && answered.removes !== true ? 'shows' : way, isOwn: true };
  const route = ROUTES.find((one) => fits(one.path, path));
  if (route === undefined) return { way: 'nowhere', isOwn: false };
  return { way: route.changes === true ? 'changes' : 'shows', isOwn: route.own === true };
}

/**
 * What a request asks for: its route, and the parameters of path and query, checked. `answers`: true if prompts are
 * answered here. Throws 'not-found', 'bad-argument'.
 */
export function resolve(
  path: string,
  search: URLSearchParams,
  answers: boolean,
): { readonly route: Route; readonly parameters: object } {
  // Fixed paths stand before those with a name in them, as in the table.
  for (const route of ROUTES) {
    const names = matchPath(route.path, path);
    if (names === null) continue;
    return { route, parameters: { ...checked(route.inPath, names), ...checked(route.inQuery, oneOfEach(search)) } };
  }
  throw nothingThere(answers);
}

/** True if a path has the form of a pattern, whatever its names say. */
function fits(pattern: string, path: string): boolean {
  const [wanted, given] = [pattern.split('/'), path.split('/')];
  return wanted.length === given.length && wanted.every((part, at) => part.startsWith('{') || part === given[at]);
}

function matchPath(pattern: string, path: string): Record<string, string> | null {
  if (!fits(pattern, path)) return null;
  const names: Record<string, string> = {};
  const given = path.split('/');
  for (const [index, part] of pattern.split('/').entries()) {
    const name = /^\{(\w+)\}$/.exec(part)?.[1];
    if (name !== undefined) names[name] = decoded(given[index]!);
  }
  return names;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch (cause) {
    throw new KvError('bad-argument', 'the path is not percent-encoded as it must be', { cause });
  }
}

function oneOfEach(search: URLSearchParams): Record<string, string> {
  const found: Record<string, string> = Object.create(null);
  for (const [name, value] of search) {
    if (name in found) throw new KvError('bad-argument', `${name.slice(0, 40)} is given twice`);
    found[name] = value;
  }
  return found;
}

/**
 * Text → the values that the schema wants. A name that it does not have is refused, because a misspelt filter would let
 * everything through.
 */
function checked(schema: z.ZodObject, texts: Readonly<Record<string, string>>): object {
  const values: Record<string, unknown> = Object.create(null);
  for (const [name, text] of Object.entries(texts)) {
    if (!Object.hasOwn(schema.shape, name)) {
      const known = Object.keys(schema.shape);
      const nearest = nearestName(name, known);
      throw new KvError('bad-argument', `there is no parameter '${name.slice(0, 40)}' here`, {
        hint: nearest === null ? `there are: ${known.join(', ') || 'none'}` : `is '${nearest}' meant?`,
      });
    }
    const { type } = z.toJSONSchema(schema.shape[name] as z.ZodType, { io: 'input' });
    values[name] = text;
    if (type === 'integer' && /^\d{1,16}$/.test(text)) values[name] = Number(text);
    if (type === 'boolean' && (text === 'true' || text === 'false')) values[name] = text === 'true';
  }
  const { success, data, error } = schema.safeParse(values);
  if (success) return data;
  const [{ path, message }] = error.issues as [z.core.$ZodIssue];
  throw new KvError('bad-argument', `${path.join('.')}: ${message}`, { values: { parameter: path.join('.') } });
}
