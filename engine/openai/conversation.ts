/** What is known of one conversation: its terms, whose it is, and the digests by which it is found again. */
import { createHash } from 'node:crypto';
import type { SessionReport } from '../cache/types.ts';
import type { SessionOptions } from '../options/types.ts';
import type { Chat } from '../thread/chat.ts';
import type { Engine } from '../thread/engine.ts';
import type { ChatMessage, ChatTool, ToolCall } from '../transformer/types.ts';

/** What a conversation is opened with. Two requests that differ in any of it are of two conversations. */
export interface ConversationTerms {
  readonly tools: readonly ChatTool[];
  readonly template: string | undefined;
  readonly session: SessionOptions;
  /** What its sessions are opened with because of whose they are; a conversation goes on where this has changed. */
  readonly own?: OwnersOptions | undefined;
  /** Whose it is; undefined: of whoever may ask. */
  readonly owner?: string | undefined;
}

/** What bounds the sessions of one owner, and what the log has of them. */
export type OwnersOptions = Pick<SessionOptions, 'kvGroup' | 'witness' | 'logRules'>;

/** A conversation that is held, as lists tell it. */
export interface HeldSession {
  readonly id: string;
  readonly state: 'idle' | 'running' | 'parked';
  readonly tokens: number;
  readonly kv_bytes: number;
  readonly effective_bits: number;
  /** Milliseconds since the epoch. */
  readonly last_used_ms: number;
}

/** What is told of one beside its id, its state and its time. */
export type ToldOf = Omit<HeldSession, 'id' | 'state' | 'last_used_ms'>;

/** Who looks at conversations: their own, or all. */
export interface Looking {
  readonly salt?: string;
  readonly seesAll?: boolean;
}

/** What is known of a conversation beside its chat. */
export interface Known {
  readonly id: string;
  readonly terms: ConversationTerms;
  readonly digest: string;
  /** True if only its id leads to it: a fork, or one that came back. */
  readonly isNamed: boolean;
  usedMs: number;
  /** The digest under which the store has it, or what it goes on with; null: it has nothing of it. */
  keptAs: string | null;
  /** Ids of the sessions that something of it was said in, its own among them. */
  readonly sessions: readonly string[];
  /** Nothing of it may be kept any more. */
  isErased: boolean;
}

/** A chat that is held. */
export interface Held {
  readonly chat: Chat;
  readonly known: Known;
}

/** before: the sessions that it goes on from. */
export const knownOf = (
  chat: Chat,
  terms: ConversationTerms,
  digest: string,
  before: readonly string[] = [],
): Known => ({
  ...{ id: chat.session.id, terms, digest, isNamed: false, usedMs: 0, keptAs: null, isErased: false },
  sessions: [...before, chat.session.id].slice(-SESSIONS_MAX),
});

/** Sessions of one conversation that are remembered, the newest: each time that a server goes on there is one more. */
const SESSIONS_MAX = 1000;

/** What a chat is opened with. */
export const askedOf = ({ tools, template }: ConversationTerms) => ({
  tools,
  ...(template === undefined ? {} : { template }),
});

export const sees = ({ salt, seesAll = false }: Looking, { terms }: Known): boolean => seesAll || terms.owner === salt;

export const toldOf = ({ tokens, kvBytesNow, effectiveBits }: SessionReport): ToldOf => ({
  tokens,
  kv_bytes: kvBytesNow,
  effective_bits: effectiveBits,
});

/** The arguments of a call as JSON, numbers as they were written. */
export const argumentsOf = (call: ToolCall): string => call.argumentsText ?? JSON.stringify(call.arguments);

/** The template that conversations are rendered by; undefined: the model's own. */
export const templateOf = ({ info }: Engine, given: string | undefined): string | undefined =>
  given ?? (info.chat ? undefined : 'hermes');

const digestOf = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('base64');

/** The digest of a conversation in which nothing was said yet. */
export const digestOfTerms = ({ tools, template, session }: ConversationTerms): string =>
  digestOf([tools, template ?? null, session]);

/** By number of messages, the digest of so many of them. Ids of calls are those of whoever keeps them, and left out. */
export function digestsOf(terms: string, messages: readonly ChatMessage[]): string[] {
  const digests = [terms];
  for (const { role, content, toolCalls = [], name = null } of messages) {
    const calls = toolCalls.map((call) => [call.name, argumentsOf(call)]);
    digests.push(digestOf([digests.at(-1), role, content, calls, name]));
  }
  return digests;
}
