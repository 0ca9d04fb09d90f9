/**
 * A conversation in bytes, to go on in another process: u32 bytes of what was said, that as JSON, and the session as it
 * is parked (session/park/parked-file.ts).
 */
import { z } from 'zod';
import { KvError, parseJson } from '../../native/index.ts';
import type { ChatMessage } from '../transformer/types.ts';

/** A message of a chat. */
export interface Entry {
  readonly message: ChatMessage;
  /** The ids that an answer was written in, and what it was drawn with. */
  readonly written: readonly number[] | null;
  readonly seed: number | null;
  /** What an answer went on with; null: nothing. */
  readonly begun: Entry | null;
}

/** What a chat is beside its session, its tools and its template. */
export interface ChatState {
  readonly entries: readonly Entry[];
  /** Calls that were given an id so far. */
  readonly calls: number;
  readonly contextTokens: number;
  readonly mostTokens: number;
  /** When it was opened: templates are told. */
  readonly dateMs: number;
}

export interface KeptChat {
  readonly chat: ChatState;
  readonly parked: Uint8Array;
}

const count = z.int().min(0);
const call = z.strictObject({
  id: z.string().optional(),
  name: z.string(),
  arguments: z.unknown(),
  argumentsText: z.string().optional(),
});
const message = z.looseObject({
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: z.string(),
  toolCalls: z.array(call).optional(),
});
const entry = z.strictObject({
  message,
  written: z.array(count).nullable(),
  seed: count.nullable(),
  get begun() {
    return entry.nullable();
  },
});
const chatState = z.strictObject({
  entries: z.array(entry),
  calls: count,
  contextTokens: count,
  mostTokens: count,
  dateMs: z.number().min(0).max(8.64e15),
});

const LENGTH_BYTES = 4;

export function chatBytes({ chat, parked }: KeptChat): Buffer {
  const json = Buffer.from(JSON.stringify(chat));
  const length = Buffer.alloc(LENGTH_BYTES);
  length.writeUInt32LE(json.length);
  return Buffer.concat([length, json, parked]);
}

/** Throws 'bad-file'. */
export function keptChat(bytes: Buffer): KeptChat {
  const what = 'a kept conversation';
  const end = bytes.length < LENGTH_BYTES ? Number.POSITIVE_INFINITY : LENGTH_BYTES + bytes.readUInt32LE();
  if (end > bytes.length) throw new KvError('bad-file', `${what} is cut off`, { values: { bytes: bytes.length } });
  const read = chatState.safeParse(parseJson(bytes.subarray(LENGTH_BYTES, end), { what, code: 'bad-file' }));
  if (!read.success) {
    const [issue] = read.error.issues;
    throw new KvError('bad-file', `${what} makes no sense: ${issue?.message}`, {
      values: { at: issue?.path.join('.') },
    });
  }
  return { chat: read.data as ChatState, parked: bytes.subarray(end) };
}
