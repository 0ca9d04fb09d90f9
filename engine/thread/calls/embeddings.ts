/** The call that makes a text a vector. */
import { type Caller, KvError } from '../../../native/index.ts';
import { f16CacheBytes } from '../../cache/budget.ts';
import type { EmbedOptions, Prompt } from '../../options/types.ts';
import { MeanState } from '../../session/embedding.ts';
import { checkFits, checkIds, countedTokens, tokenizeInTurns } from '../../session/prompt.ts';
import { Session } from '../../session/session.ts';
import type { Host } from '../host.ts';

export interface Embedding {
  readonly vector: Float32Array;
  readonly tokens: number;
}

export interface Embedded {
  readonly text: Prompt;
  readonly options: Omit<EmbedOptions, 'signal'>;
}

export const embeddingCalls = (host: Host) => ({
  /** Reads it in a session of its own, as exactly as the model has it, which is gone then. */
  embed: async ({ text, options }: Embedded, { signal }: Caller<never>): Promise<Embedding> => {
    const { model, shape } = host.runtime;
    const { contextLength, vocabSize } = model.config;
    const ids = await tokenizeInTurns(model.tokenizer, text, true, { tokensMax: countedTokens(model), signal });
    checkIds(ids, vocabSize);
    checkFits({ held: 0, prompt: ids.length, reserve: 0 }, contextLength);
    checkRoom(host, f16CacheBytes(shape, ids.length), ids.length);
    const state = new MeanState(model);
    const asked = { ...options, exact: true, witness: false, tokensExpected: ids.length };
    const onHidden = (hidden: Float32Array): void => state.add(hidden);
    const session = await host.opening(asked, (setup) => Session.open(host.runtime, { ...setup, onHidden }));
    host.keep(session);
    try {
      await session.read(ids, { signal });
    } finally {
      await host.closeSession(session.id, signal.aborted ? 'aborted' : 'done');
    }
    return { vector: state.vector(), tokens: ids.length };
  },
});

/** Throws 'budget-too-small' for a text that would not fit if there were no other. */
function checkRoom({ budgetBytes }: Host, neededBytes: number, tokens: number): void {
  if (budgetBytes === undefined || neededBytes <= budgetBytes) return;
  throw new KvError(
    'budget-too-small',
    `a text of ${tokens} tokens takes ${neededBytes} bytes while it is read, and all sessions have ${budgetBytes}`,
    { values: { neededBytes, budgetBytes, tokens }, hint: 'a shorter text, or a larger kvBudget of the engine' },
  );
}
