/**
 * A conversation as token ids that fit the context: rendered, and shortened where the caller chose that. Runs in the
 * model's thread.
 */
import { KvError, plural } from '../../../native/index.ts';
import { inTurns } from '../../transformer/slices.ts';
import type { ChatMessage, LoadedModel } from '../../transformer/types.ts';
import { countedTokens, heeding } from '../prompt.ts';
import type { CallFormat } from './calls/call.ts';
import { callFormatOf } from './calls/formats.ts';
import { leavingMessages, systemMessages } from './turns.ts';
import type { ContextEnd, Conversation } from './types.ts';

/**
 * Once turns have to leave, so many do that the rest and the answer fit this share of the context: all of the rest is
 * read again then, which should not happen at every turn. Chosen, not measured.
 */
const SHARE_LEFT = 0.75;

export interface Fitted {
  readonly ids: readonly number[];
  /** How many messages behind those of the system left. */
  readonly dropped: number;
}

/** What fits with an answer of so many tokens. Throws 'context-too-long' where nothing does, or nothing may leave. */
export async function fit(
  model: LoadedModel,
  chat: Conversation,
  maxTokens: number,
  signal?: AbortSignal,
): Promise<Fitted> {
  const { contextTokens, mostTokens } = chat;
  if (chat.atContextEnd !== 'drop-oldest') {
    const ids = await idsOf(model, chat, 0, signal);
    if (ids.length + maxTokens > mostTokens) throw tooLong(chat, ids.length, maxTokens, 0);
    return { ids, dropped: 0 };
  }
  const whole = await tryIds(model, chat, 0, signal);
  if (whole !== null && whole.length + maxTokens <= contextTokens) return { ids: whole, dropped: 0 };
  const leaving = leavingMessages(chat.messages);
  // The fewest turns with which the goal is met, or all but the newest one.
  let [low, high] = [0, leaving.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    const ids = await tryIds(model, chat, leaving[middle]!, signal);
    if (ids !== null && ids.length + maxTokens <= contextTokens * SHARE_LEFT) high = middle;
    else low = middle + 1;
  }
  const dropped = leaving[low] ?? 0;
  const ids = dropped === 0 ? whole : await tryIds(model, chat, dropped, signal);
  if (ids === null || ids.length + maxTokens > contextTokens)
    throw tooLong(chat, ids?.length ?? null, maxTokens, dropped);
  return { ids, dropped };
}

/**
 * The ids of a conversation without its first `dropped` messages behind those of the system. Throws what templates and
 * tokenizers throw.
 */
export async function idsOf(
  model: LoadedModel,
  chat: Conversation,
  dropped = 0,
  signal?: AbortSignal,
): Promise<number[]> {
  const { tools } = chat;
  const template = chat.template ?? model.tokenizer.templateFor(tools);
  const system = systemMessages(chat.messages);
  const stays = <T>(list: readonly T[]): T[] => [...list.slice(0, system), ...list.slice(system + dropped)];
  const format = template === null ? null : callFormatOf(template);
  const ids = model.tokenizer.chatting(stays(chat.messages), {
    template: chat.template,
    tools,
    date: chat.date,
    continueFinalMessage: chat.continueFinalMessage,
    written: stays(chat.written),
    saysTheSame: (rendered, message) => saysTheSame(format, rendered, message),
    tokensMax: countedTokens(model),
  });
  return inTurns(ids, heeding(signal));
}

/** null: far too long to be counted. */
async function tryIds(
  model: LoadedModel,
  chat: Conversation,
  dropped: number,
  signal: AbortSignal | undefined,
): Promise<number[] | null> {
  try {
    return await idsOf(model, chat, dropped, signal);
  } catch (error) {
    if (error instanceof KvError && error.code === 'context-too-long') return null;
    throw error;
  }
}

/** True if a template writes the calls of a message in other letters, but says the same. */
function saysTheSame(format: CallFormat | null, rendered: string, message: ChatMessage): boolean {
  const parsed = format?.parse(rendered) ?? null;
  if (parsed === null || parsed.text !== message.content.trim()) return false;
  const told = (calls: readonly { readonly name: string; readonly arguments: unknown }[]): string =>
    JSON.stringify(calls.map((call) => [call.name, call.arguments]));
  return told(parsed.calls) === told(message.toolCalls ?? []);
}

const HINTS: Readonly<Record<ContextEnd, string>> = {
  refuse:
    "say it shorter, rewind(), give a smaller maxTokens, or choose what gives way: atContextEnd: 'drop-oldest' or 'compress'",
  'drop-oldest': 'say it shorter, or give a smaller maxTokens',
  compress: 'say it shorter, rewind(), give a smaller maxTokens, or open the chat with a larger kvBudget',
};

function tooLong(chat: Conversation, tokens: number | null, maxTokens: number, dropped: number): KvError {
  const { contextTokens, mostTokens, atContextEnd } = chat;
  const over = tokens === null ? null : tokens + maxTokens - mostTokens;
  const without = dropped === 0 ? '' : ` without its ${plural(dropped, 'oldest message')}`;
  const length = tokens === null ? 'far too many' : `${tokens}`;
  return new KvError(
    'context-too-long',
    `the conversation has ${length} tokens${without}, and with ${maxTokens} for the answer it does not fit ${mostTokens}`,
    { values: { tokens, maxTokens, contextTokens, mostTokens, over, dropped }, hint: HINTS[atContextEnd] },
  );
}
