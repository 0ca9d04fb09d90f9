/** Calls about the engine as a whole. */
import type { Caller } from '../../../native/index.ts';
import { type ReceiptProof, requestIn, type VerifyReceiptOptions, verifyReceipt } from '../../../witness/index.ts';
import { type Forecast, forecast } from '../../cache/budget.ts';
import { metricsText } from '../../cache/kv-bytes.ts';
import type { Prompt } from '../../options/types.ts';
import type { Client } from '../../scheduler/fairness.ts';
import { type AnsweredAgain, answerAgain } from '../../session/answer-again.ts';
import { openCallsOf } from '../../session/chat/answering.ts';
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

/** A receipt that is verified, and run again. */
export interface Receipted {
  readonly receipt: unknown;
  readonly options: ReceiptOptions;
}

/** Options of engine.verifyReceipt. */
export interface ReceiptOptions extends Omit<VerifyReceiptOptions, 'policies'> {
  /** What was asked, as it came with the receipt. */
  readonly request: unknown;
}

/** What a log and a model prove of a receipt. */
export interface ProvedAnswer extends ReceiptProof {
  /** The answer, run again. */
  readonly again: AnsweredAgain;
}

const FIRST: Client = { priority: 0, weight: 1 };

export const engineCalls = (host: Host) => ({
  info: (): LoadedInfo => loadedInfo(host),

  metrics: (): string => {
    host.shared.measure();
    const caches = [...host.commons.sessions].map(({ governed }) => governed);
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

  verifyReceipt: async ({ receipt, options }: Receipted, { signal }: Caller<never>): Promise<ProvedAnswer> => {
    const proof = verifyReceipt(receipt, options);
    const request = requestIn(options.request, proof.receipt);
    const again = { receipt: proof.receipt, request, log: options.log };
    const { scheduler } = host.shared;
    const alone = (tokens: number, work: () => Promise<void>): Promise<void> =>
      scheduler.alone({ client: FIRST, reads: true }, { tokens, work });
    const how = { signal, alone, adapters: host.adapters, openCalls: openCallsOf(host.runtime) };
    return { ...proof, again: await answerAgain(host.runtime, again, how) };
  },

  forecast: ({ tokens }: { tokens: number }): Forecast => forecast(host.runtime.shape, tokens),

  memoryIsLow: (isLow: boolean): void => host.commons.memoryIsLow(isLow),

  flush: (): Promise<number> => host.commons.flush(),

  close: (): Promise<number | null> => host.close(),
});
