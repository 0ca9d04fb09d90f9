/** A server that answers from the reference model, and what its clients are. */
import { createOpenAI as createOpenAI4 } from '@ai-sdk/openai';
import { createOpenAICompatible as createCompatible3 } from '@ai-sdk/openai-compatible';
import * as ai7 from 'ai';
import { createOpenAICompatible as createCompatible2 } from 'ai-sdk-compatible2';
import { createOpenAI as createOpenAI3 } from 'ai-sdk-openai2';
import * as ai6 from 'ai6';
import OpenAI7 from 'openai';
import OpenAI6 from 'openai6';
import { afterAll, beforeAll } from 'vitest';
import {
  type AnswersOptions,
  createEngine,
  type Engine,
  type LiveView,
  type ServeOptions,
  serve,
} from '../../../../engine/index.ts';

/** Of two generations. Their types differ from version to version; what tests call has not. */
export const CLIENTS = [
  ['openai 7', OpenAI7],
  ['openai 6', OpenAI6 as unknown as typeof OpenAI7],
] as const;

/** The same of AI SDK, each with the providers of its time. */
export const AI_SDKS = [
  ['ai 7', { ...ai7, createOpenAICompatible: createCompatible3, createOpenAI: createOpenAI4 }],
  [
    'ai 6',
    { ...ai6, createOpenAICompatible: createCompatible2, createOpenAI: createOpenAI3 } as unknown as typeof ai7 & {
      createOpenAICompatible: typeof createCompatible3;
      createOpenAI: typeof createOpenAI4;
    },
  ],
] as const;

export interface Served {
  readonly engine: Engine;
  readonly view: LiveView;
  /** 'http://127.0.0.1:…' */
  readonly url: string;
}

/** Opens one before the tests of a file, and closes it after them. */
export function withServer(use: (served: Served) => void, answers: AnswersOptions = {}, more: ServeOptions = {}): void {
  let served: Served | undefined;
  beforeAll(async () => {
    const engine = await createEngine({ model: 'reference', threads: 1, stateDir: null, kvBudget: 64 * 2 ** 20 });
    const view = await serve(engine, { port: 0, requestsPerSecond: 10_000, connectionsMax: 256, ...more, answers });
    served = { engine, view, url: view.url };
    use(served);
  });
  afterAll(async () => {
    await served?.view.close();
    await served?.engine.close();
  });
}

/** What a server told in one answer by server-sent events: the data of each. */
export const eventsIn = (text: string): string[] =>
  text
    .split('\n\n')
    .filter((event) => event.startsWith('data: ') || event.startsWith('event: '))
    .map((event) => event.replace(/^event: .*\n/, '').slice('data: '.length));
