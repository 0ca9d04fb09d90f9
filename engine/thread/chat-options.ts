/** What a chat is opened with. */

import type { GenerateOptions, SessionOptions, ToolChoice } from '../options/types.ts';
import type { ContextEnd } from '../session/chat/types.ts';
import type { ChatMessage, ChatTool } from '../transformer/types.ts';
import type { EngineSession } from './engine-session.ts';

/** Options of engine.chat: how the conversation begins and ends, those of openSession for its cache, and those of generate as defaults for every answer. */
export interface ChatOptions extends SessionOptions, Omit<GenerateOptions, 'signal' | 'onProgress'> {
  /** The system message. */
  readonly system?: string;
  /** What was said before; with `system`, behind it. Default: nothing. */
  readonly messages?: readonly ChatMessage[];
  /** Functions that the model may ask for. */
  readonly tools?: readonly ChatTool[];
  /** Whether answers call tools, and that calls cannot be malformed. Takes the package @mlc-ai/web-xgrammar. Default: as the model likes, and nothing checks its calls. */
  readonly toolChoice?: ToolChoice;
  /** A chat template (Jinja) instead of the model's own. */
  readonly template?: string;
  /** Most tokens of the conversation, answers included; with atContextEnd 'compress' those before it is compressed. Default: the context of the model, or as many as a budget in bytes can hold. */
  readonly contextTokens?: number;
  /** Default 'refuse'. */
  readonly atContextEnd?: ContextEnd;
  /** A session that is open already, such as a resumed one: what it holds of the conversation is not read again. Takes the place of the options of openSession. */
  readonly session?: EngineSession;
}
