/** Calls about the engine as a whole. */
import type { Caller } from '../../../native/index.ts';
import { type Forecast, forecast } from '../../cache/budget.ts';
import { metricsText } from '../../cache/kv-bytes.ts';
import type { Prompt } from '../../options/types.ts';
import { checkIds, countedTokens, heeding, tokenizeInTurns } from '../../session/prompt.ts';
import { checkMessages, checkTools } from '../../transformer/chat-messages.ts';
import { inTurns } from '../../transformer/slices.ts';
import type { ChatMessage, RenderOptions } from '../../transformer/types.ts';
import type { Host } from '../host.ts';
import { type LoadedInfo, loadedInfo } from '../loaded.ts';

/** A conversation that becomes a prompt. */
export interface Rendering {
  readonly messages: readonly ChatMessage[];
  readonly options: RenderOptions;
}

export const engineCalls = (host: Host) => ({
  info: (): LoadedInfo => loadedInfo(host),

  metrics: (): string => {
    host.shared.measure();
    const caches = [...host.sessions].map(({ governed }) => governed);
    return metricsText(host.meter, caches, host.state?.log ?? null);
  },

  tokenize: (
    { prompt, tokensMax, begins }: { prompt: Prompt; tokensMax: number; begins: boolean },
    { signal }: Caller<never>,
  ): Promise<number[]> => tokenizeInTurns(host.runtime.model.tokenizer, prompt, begins, { tokensMax, signal }),

  detokenize: ({ ids }: { readonly ids: readonly number[] }): string => {
    const { tokenizer } = host.runtime.model;
    checkIds(ids, tokenizer.vocabSize);
    return tokenizer.decode(ids, { special: true, continues: true });
  },

  render: ({ messages, options }: Rendering): string => {
    checkMessages(messages);
    checkTools(options.tools ?? []);
    return host.runtime.model.tokenizer.prompt(messages, options);
  },

  renderTokens: ({ messages, options }: Rendering, { signal }: Caller<never>): Promise<number[]> => {
    checkMessages(messages);
    checkTools(options.tools ?? []);
    const { model } = host.runtime;
    const ids = model.tokenizer.chatting(messages, { ...options, tokensMax: countedTokens(model) });
    return inTurns(ids, heeding(signal));
  },

  forecast: ({ tokens }: { tokens: number }): Forecast => forecast(host.runtime.shape, tokens),

  memoryIsLow: (isLow: boolean): void => host.memoryIsLow(isLow),

  flush: (): Promise<number> => host.flush(),

  close: (): Promise<number | null> => host.close(),
});
