/** How requests for answers are served. */
import { anyText, type Rows, seenLater, whole } from '../../native/index.ts';
import type { GenerateOptions, SessionOptions } from '../options/types.ts';
import { CHAT_TEMPLATE } from '../transformer/named-templates.ts';

/** Options of the `answers` of serve. Each has a default. */
export interface AnswersOptions {
  /** The name that clients ask for the model by. Default: that of the engine's model. */
  readonly modelName?: string;
  /** A chat template (Jinja), or 'hermes'. Default: that of the model; 'hermes' for a model that has none. */
  readonly template?: string;
  /** Most tokens of an answer whose request says nothing of them, as far as the context has room. Default 1024. */
  readonly maxTokens?: number;
  /** Requests that are answered or wait to be at one time; more are refused with 429. Default 256. */
  readonly requestsMax?: number;
  /** Conversations that wait for their next question with all that they have read. Default 64. */
  readonly conversationsMax?: number;
  /**
   * Where responses and conversations outlive this process, for itself and for any other server of the same model:
   * 'postgres://user@host/base', or a folder. Default: in memory.
   */
  readonly store?: string;
  /** Most bytes of a request. Default 8 MiB. */
  readonly bodyBytesMax?: number;
  /** How answers are drawn where a request says nothing of it. Default: those of generate, and a temperature of 0.8. */
  readonly sampling?: GenerateOptions;
  /** What sessions are opened with. Default: nothing, so that all live in the `kvBudget` of the engine. */
  readonly session?: SessionOptions;
}

/** The temperature of requests that name none: that of llama-server and Ollama. */
export const TEMPERATURE = 0.8;

export const ANSWERS_OPTIONS = {
  modelName: {
    rule: anyText('a name', 1),
    help: 'the name that clients ask for the model by (default: its own)',
    flag: '--alias <name>',
  },
  template: { rule: CHAT_TEMPLATE, help: "a chat template instead of the model's own" },
  maxTokens: {
    rule: whole(1),
    default: 1024,
    help: 'most tokens of an answer whose request says nothing of them',
  },
  requestsMax: {
    rule: whole(1),
    default: 256,
    help: 'requests that are answered or wait at one time; more are refused',
    flag: '--requests-max <n>',
  },
  conversationsMax: {
    rule: whole(1),
    default: 64,
    help: 'conversations that wait for their next question with all that they have read',
    flag: '--conversations-max <n>',
  },
  store: {
    rule: anyText('the URL of a PostgreSQL server, or a folder', 1),
    help: 'where conversations outlive the process: postgres://…, or a folder',
    flag: '--store <place>',
  },
  bodyBytesMax: { rule: whole(1024), default: 8 * 2 ** 20, help: 'most bytes of a request' },
  sampling: { rule: seenLater<GenerateOptions>('options of generate'), help: 'how answers are drawn by default' },
  session: { rule: seenLater<SessionOptions>('options of openSession'), help: 'what sessions are opened with' },
} as const satisfies Rows<AnswersOptions>;
