/** What a chat is asked for and what it tells: public types, and what crosses to the model's thread. */

import type { ChatMessage, ChatTool, ToolCall } from '../../transformer/types.ts';
import type { Generated } from '../types.ts';
import type { ParsedCall } from './calls/call.ts';

/**
 * What happens when a question and its answer do not fit any more. 'refuse': nothing, the question is refused with the
 * numbers. 'drop-oldest': the oldest turns leave, down to three quarters of the context, and what is behind them is
 * read again. 'compress': nothing leaves, older pages go to lower formats within the same bytes; what does not fit in
 * the lowest ones, or into the positions of the model, is refused with the numbers.
 */
export type ContextEnd = 'refuse' | 'drop-oldest' | 'compress';

/** What a question would take. */
export interface ChatCount {
  /** Tokens of the conversation with it, as the template renders it. */
  readonly tokens: number;
  /** How many of those the cache holds and keeps. */
  readonly reusedTokens: number;
  /** The others. */
  readonly readTokens: number;
  /**
   * What is left for the answer, with 'compress' in the lowest formats; negative where not even the conversation fits.
   */
  readonly roomTokens: number;
}

/** A conversation that has outgrown its context and was compressed for it. */
export interface Compressed {
  /** Tokens in the cache beyond the `contextTokens` of the chat. */
  readonly overTokens: number;
  /** Tokens that the conversation can have in the lowest formats: `mostTokens` of the chat. */
  readonly mostTokens: number;
  /** Bits of a number in the cache now, metadata included. */
  readonly effectiveBits: number;
}

/** An answer, what it took, and what the chat had to give up for it. */
export interface ChatAnswer extends Generated {
  /** The message as the chat keeps it: text and calls; with `continueFinalMessage` also what it went on with. */
  readonly message: ChatMessage;
  /**
   * Tools that the model asks for: answer each with a message of role 'tool'. Empty: none. What is no proper call is in
   * the text.
   */
  readonly toolCalls: readonly ToolCall[];
  /**
   * True if a call had to fulfil the schema of its tool: not without toolChoice, nor with 'auto' where the package
   * @mlc-ai/web-xgrammar is not there, nor if a tool was called whose schema cannot be followed (`strict: false`).
   */
  readonly callsConstrained: boolean;
  /** Tokens of the conversation that the cache held already. */
  readonly reusedTokens: number;
  /** Tokens in the cache now. */
  readonly contextTokens: number;
  /** What left the conversation, because it did not fit any more. Empty: nothing. */
  readonly dropped: readonly ChatMessage[];
  /** What atContextEnd 'compress' came to; null: the conversation is within its context. */
  readonly compressed: Compressed | null;
  /** What it was drawn with. */
  readonly seed: number;
}

/** What the model's thread is told of a conversation. */
export interface Conversation {
  readonly messages: readonly ChatMessage[];
  /** By message: the ids that it was written in, null where nobody wrote it here. */
  readonly written: readonly (readonly number[] | null)[];
  readonly tools: readonly ChatTool[];
  readonly template: string | undefined;
  /** When it was opened: what templates are told of the time, so that a prompt stays what it was. */
  readonly date: Date;
  readonly contextTokens: number;
  /** With 'compress' what the budget can hold in the lowest formats, otherwise the same. */
  readonly mostTokens: number;
  readonly atContextEnd: ContextEnd;
  /** The answer goes on with the text of the last message. */
  readonly continueFinalMessage: boolean;
}

/** What it answers. */
export interface Answered extends Generated {
  readonly calls: readonly ParsedCall[];
  readonly callsConstrained: boolean;
  /** The ids that the answer was written in; null where they say more than its text. */
  readonly written: readonly number[] | null;
  readonly reusedTokens: number;
  readonly contextTokens: number;
  /** Messages that left, from the first behind those of the system. */
  readonly droppedMessages: number;
  readonly compressed: Compressed | null;
}

/** What a template makes of tools. */
export interface ChatDescription {
  /** How the model writes calls; null: in no way that is known here. */
  readonly callFormat: string | null;
}
