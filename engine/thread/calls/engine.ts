/** Calls about the engine as a whole. */
import type { Caller } from '../../../native/index.ts';
import { type Forecast, forecast } from '../../cache/budget.ts';
import { metricsText } from '../../cache/kv-bytes.ts';
import type { Prompt } from '../../options/types.ts';
import { tokenizeInTurns } from '../../session/prompt.ts';
import type { Host } from '../host.ts';
import { type LoadedInfo, loadedInfo } from '../loaded.ts';

export const engineCalls = (host: Host) => ({
  info: (): LoadedInfo => loadedInfo(host),

  metrics: (): string => {
    host.shared.measure();
    const caches = [...host.sessions].map(({ governed }) => governed);
    return metricsText(host.meter, caches, host.state?.log ?? null);
  },

  tokenize: (
    { prompt, tokensMax }: { prompt: Prompt; tokensMax: number },
    { signal }: Caller<never>,
  ): Promise<number[]> => tokenizeInTurns(host.runtime.model.tokenizer, prompt, true, { tokensMax, signal }),

  forecast: ({ tokens }: { tokens: number }): Forecast => forecast(host.runtime.shape, tokens),

  memoryIsLow: (isLow: boolean): void => host.memoryIsLow(isLow),

  flush: (): Promise<number> => host.flush(),

  close: (): Promise<number | null> => host.close(),
});
