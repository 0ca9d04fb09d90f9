/** What a chat is opened with. */
import { anyText, oneName, type Rows, seenLater, suchThat, whole } from '../../native/index.ts';
import { SEND_OPTIONS, SESSION_OPTIONS } from '../options/table.ts';
import type { GenerateOptions, SessionOptions, ToolChoice } from '../options/types.ts';
import type { ContextEnd } from '../session/chat/types.ts';
import { CHAT_TEMPLATE } from '../transformer/named-templates.ts';
import type { ChatMessage, ChatTool } from '../transformer/types.ts';
import type { EngineSession } from './engine-session.ts';

/**
 * Options of engine.chat: how the conversation begins and ends, those of openSession for its cache, and those of
 * generate as defaults for every answer.
 */
export interface ChatOptions extends SessionOptions, Omit<GenerateOptions, 'signal' | 'onProgress'> {
  /** The system message. */
  readonly system?: string;
  /** What was said before; with `system`, behind it. Default: nothing. */
  readonly messages?: readonly ChatMessage[];
  /** Functions that the model may ask for. */
  readonly tools?: readonly ChatTool[];
  /**
   * True if answers call tools, and that calls cannot be malformed. Takes the package @mlc-ai/web-xgrammar. Default: as
   * the model likes, and nothing checks its calls.
   */
  readonly toolChoice?: ToolChoice;
  /** A chat template (Jinja) instead of the model's own, or 'hermes', which knows tools, for ChatML models. */
  readonly template?: string;
  /**
   * Most tokens of the conversation, answers included; with atContextEnd 'compress' those before it is compressed.
   * Default: the context of the model, or as many as a budget in bytes can hold.
   */
  readonly contextTokens?: number;
  /** Default 'refuse'. */
  readonly atContextEnd?: ContextEnd;
  /**
   * A session that is open already, such as a resumed one: what it holds of the conversation is not read again. Takes
   * the place of the options of openSession.
   */
  readonly session?: EngineSession;
}

const LISTS = {
  rule: suchThat<readonly never[]>(Array.isArray, 'a list'),
  refusal: 'messages and tools must be lists',
} as const;

/** How a conversation begins and ends. */
export const CONVERSATION_OPTIONS = {
  system: { rule: anyText(), help: 'system message of a chat', flag: '--system <text>' },
  messages: { ...LISTS, help: 'what was said before' },
  tools: { ...LISTS, help: 'functions that the model may ask for' },
  template: {
    rule: CHAT_TEMPLATE,
    help: "a chat template (Jinja) instead of the model's own, or 'hermes' for tools with ChatML models",
  },
  atContextEnd: {
    rule: oneName('refuse', 'drop-oldest', 'compress'),
    default: 'refuse',
    refusal: 'atContextEnd says what happens when the context is full',
    hint: "one of 'refuse', 'drop-oldest' and 'compress'",
    help: 'a chat that fills its context: refuse the question, drop-oldest turns, or compress older pages within the same bytes',
    flag: '--at-context-end <choice>',
  },
  contextTokens: {
    rule: whole(1, undefined, 'a whole number up to the context of the model'),
    help: 'where the context of a chat ends (default: that of the model, or what the budget holds)',
    flag: '--context-tokens <n>',
  },
  session: { rule: seenLater('a session'), help: 'a session that is open already' },
} as const satisfies Rows<Omit<ChatOptions, keyof SessionOptions | keyof typeof SEND_OPTIONS>>;

/** Defaults of every answer. */
const { signal: _signal, onProgress: _onProgress, continueFinalMessage: _continues, ...ANSWER } = SEND_OPTIONS;
export const ANSWER_OPTIONS = ANSWER;

export const CHAT_OPTIONS = {
  ...SESSION_OPTIONS,
  ...ANSWER_OPTIONS,
  ...CONVERSATION_OPTIONS,
} as const satisfies Rows<ChatOptions>;
