/** Calls about the models of a thread that has several, and those of each of them. */
import { type Caller, KvError } from '../../../native/index.ts';
import { metricsText } from '../../cache/kv-bytes.ts';
import type { LoadProgress } from '../../transformer/types.ts';
import { type Commons, doAll } from '../commons.ts';
import { Host, type ModelOptions } from '../host.ts';
import { type HostCalls, hostCalls } from './index.ts';

/** A call of one of the models. */
export interface OfEngine {
  readonly engine: number;
  readonly name: string;
  readonly params: unknown;
}

type AnyCall = (params: unknown, caller: Caller<unknown>) => unknown;

/** rules: what the thread does between pieces of native work. */
export const runtimeCalls = (commons: Commons, rules: Pick<ModelOptions, 'safePoint' | 'resting'>) => {
  const engines = new Map<number, HostCalls>();
  let opened = 0;
  const leave = async (engine: number): Promise<void> => {
    const calls = engines.get(engine);
    engines.delete(engine);
    await calls?.close();
  };
  return {
    openEngine: async (options: ModelOptions, { tell, signal }: Caller<LoadProgress>): Promise<number> => {
      const host = await Host.openIn(commons, { ...options, ...rules, onProgress: tell });
      if (signal.aborted) {
        await host.close();
        throw new KvError('aborted', 'the loading of the model was aborted');
      }
      engines.set(++opened, hostCalls(host));
      return opened;
    },

    closeEngine: ({ engine }: { readonly engine: number }): Promise<void> => leave(engine),

    ofEngine: ({ engine, name, params }: OfEngine, caller: Caller<unknown>): unknown => {
      const calls = engines.get(engine);
      if (calls === undefined) throw new KvError('closed', 'the engine was closed');
      // What crosses has no types, but those of the engine's client are of this table.
      return (calls[name as keyof HostCalls] as AnyCall)(params, caller);
    },

    metrics: (): string => {
      commons.shared.measure();
      const caches = [...commons.sessions].map(({ governed }) => governed);
      return metricsText(commons.meter, caches, commons.state?.log ?? null);
    },

    memoryIsLow: (isLow: boolean): void => commons.memoryIsLow(isLow),

    flush: (): Promise<number> => commons.flush(),

    close: async (): Promise<number | null> => {
      await doAll([...[...engines.keys()].map((engine) => () => leave(engine)), ...commons.endings]);
      return commons.unanchoredEntries;
    },
  };
};

export type RuntimeCalls = ReturnType<typeof runtimeCalls>;
