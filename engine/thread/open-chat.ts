/** Opens a conversation: checks its options, and plans its session for as many tokens as the budget can hold. */
import { checkKeys, checkOptions, KvError, PAGE_TOKENS, show } from '../../native/index.ts';
import { f16CacheBytes, windowBudget } from '../cache/budget.ts';
import { parseBudget } from '../options/parse-budget.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { SendOptions, SessionOptions } from '../options/types.ts';
import type { Conversation } from '../session/chat/types.ts';
import { templateNamed } from '../transformer/named-templates.ts';
import type { HostClient } from './calls/index.ts';
import { ANSWER_OPTIONS, CHAT_OPTIONS, type ChatOptions, CONVERSATION_OPTIONS } from './chat-options.ts';
import type { EngineSession } from './engine-session.ts';
import type { LoadedInfo } from './loaded.ts';

/** What opens sessions: an engine. */
export interface Opener {
  readonly info: LoadedInfo;
  openSession(options: SessionOptions): Promise<EngineSession>;
}

/** A conversation that was opened. */
export interface OpenedChat {
  readonly session: EngineSession;
  readonly conversation: Conversation;
  readonly callFormat: string | null;
  /** Defaults of every answer. */
  readonly generate: SendOptions;
}

/** The fewest tokens that a conversation is planned for. This number was chosen, not measured. */
export const CHAT_TOKENS_MIN = 2 * PAGE_TOKENS;

export async function openChat(engine: Opener, client: HostClient, options: ChatOptions): Promise<OpenedChat> {
  checkKeys(options, CHAT_OPTIONS, 'chat');
  checkOptions(options, CHAT_OPTIONS);
  const asked = conversationOf(options, engine.info.config.contextLength);
  const { callFormat } = await client.call('describeChat', { chat: asked, toolChoice: options.toolChoice });
  const sessionOptions = only<SessionOptions>(options, SESSION_OPTIONS);
  const generate = only<SendOptions>(options, ANSWER_OPTIONS);
  if (options.session !== undefined) {
    const both = Object.keys(sessionOptions);
    if (both.length > 0)
      throw new KvError('bad-argument', 'a session that is open already has its options', { values: { both } });
    return { session: options.session, conversation: asked, callFormat, generate };
  }
  if (options.tokensExpected !== undefined)
    return { session: await engine.openSession(sessionOptions), conversation: asked, callFormat, generate };
  const { contextLength } = engine.info.config;
  const compresses = asked.atContextEnd === 'compress';
  // Planned for the longest that it may become, so that positions are told alike from the first token on.
  const { session, tokens } = compresses
    ? await openConversation(engine, contextLength, { ...sessionOptions, kvBudget: bytesFor(engine, asked, options) })
    : await openConversation(engine, asked.contextTokens, sessionOptions);
  if (options.contextTokens !== undefined && tokens < asked.contextTokens) {
    await session.close();
    throw holdsLess(asked.contextTokens, tokens, options);
  }
  const contextTokens = Math.min(asked.contextTokens, tokens);
  return { session, conversation: { ...asked, contextTokens, mostTokens: tokens }, callFormat, generate };
}

function holdsLess(contextTokens: number, holdsTokens: number, { kvBudget }: ChatOptions): KvError {
  const whose = kvBudget === undefined ? 'the kvBudget of the engine' : `a kvBudget of ${show(kvBudget)}`;
  return new KvError(
    'budget-too-small',
    `${whose} holds a conversation of ${holdsTokens} tokens, and contextTokens is ${contextTokens}`,
    {
      values: { contextTokens, holdsTokens, kvBudget: kvBudget ?? null },
      hint: `raise the budget, or give contextTokens: ${holdsTokens}; without contextTokens the chat takes what the budget holds`,
    },
  );
}

/**
 * Bytes of a chat that is compressed at the end of its context: those of its budget there, or what its pages take there
 * in 8 bits. Room is made a page ahead.
 */
function bytesFor({ info }: Opener, { contextTokens }: Conversation, { kvBudget }: ChatOptions): number {
  return kvBudget === undefined
    ? windowBudget(info.config, contextTokens + PAGE_TOKENS)
    : parseBudget(kvBudget, f16CacheBytes(info.config, contextTokens));
}

/** Refuses what 'compress' cannot be kept beside: it plans the length of its session, and works in bytes. */
function checkCompress(options: ChatOptions): void {
  const beside = (['session', 'tokensExpected', 'exact'] as const).filter((name) => (options[name] ?? false) !== false);
  if (beside.length > 0)
    throw new KvError('bad-argument', "a chat with atContextEnd 'compress' plans its session by itself", {
      values: { beside },
      hint: 'give contextTokens and a kvBudget; over a session that is open already choose another end',
    });
}

/**
 * Opens a session for as long a conversation as the budget allows, up to so many tokens, and returns it with the number
 * of tokens that it can hold. The pages begin in better formats and are all in the lowest ones when a conversation has
 * reached that length.
 */
export async function openConversation(
  engine: Pick<Opener, 'openSession'>,
  tokensMax: number,
  options: SessionOptions,
): Promise<{ session: EngineSession; tokens: number }> {
  let tokens = tokensMax;
  let before: unknown = null;
  for (;;) {
    try {
      return { session: await engine.openSession({ ...options, tokensExpected: tokens }), tokens };
    } catch (error) {
      if (!(error instanceof KvError && error.code === 'budget-too-small')) throw error;
      const { budgetBytes, neededBytes } = error.values;
      // A budget in percent shrinks with the length, so a shorter conversation would not help.
      if (tokens <= CHAT_TOKENS_MIN || (before !== null && before !== budgetBytes)) throw error;
      // Besides what grows with the length there is a fixed part, so this is never too short. It ends, because each
      // attempt is at least a page shorter, and the last one is refused with the least that would do.
      const fits = Math.floor(Math.min(tokens * (Number(budgetBytes) / Number(neededBytes)), tokens - PAGE_TOKENS));
      [tokens, before] = [Math.max(CHAT_TOKENS_MIN, fits), budgetBytes];
    }
  }
}

function conversationOf(options: ChatOptions, contextLength: number): Conversation {
  const { system, messages = [], tools = [], template, contextTokens = contextLength } = options;
  const { atContextEnd = CONVERSATION_OPTIONS.atContextEnd.default } = options;
  if (atContextEnd === 'compress') checkCompress(options);
  if (contextTokens > contextLength)
    throw new KvError('bad-argument', `contextTokens must be a whole number up to the ${contextLength} of the model`, {
      values: { contextTokens, contextLength },
    });
  const first = system === undefined ? [] : [{ role: 'system', content: system } as const];
  const all = [...first, ...messages];
  const written = all.map(() => null);
  return {
    messages: all,
    written,
    tools,
    template: template === undefined ? undefined : templateNamed(template),
    date: new Date(),
    contextTokens,
    mostTokens: contextTokens,
    atContextEnd,
    continueFinalMessage: false,
  };
}

/** The options of one kind, without those that are undefined. */
function only<Kind extends object>(options: object, names: Readonly<Record<string, unknown>>): Kind {
  const own = Object.entries(options).filter(([name, value]) => Object.hasOwn(names, name) && value !== undefined);
  return Object.fromEntries(own) as Kind;
}
