/** `/v1/completions`: a text that goes on, for models and clients without chats. */
import { KvError } from '../../native/index.ts';
import { proposedOf } from '../options/table.ts';
import type { Prompt } from '../options/types.ts';
import type { Generated } from '../session/types.ts';
import type { EngineSession } from '../thread/engine-session.ts';
import type { GeneratedToken } from '../transformer/sampling/logprobs.ts';
import { completionAsked, sessionAsked } from './asked.ts';
import { usageOf } from './chat-completion.ts';
import type { EventStream } from './event-stream.ts';
import { failureOf } from './failure.ts';
import { COMPLETION_REQUEST, type CompletionRequest, checkedBody } from './request.ts';
import type { Asker, Service, Told } from './service.ts';
import type { UsedTokens } from './turn.ts';

/** A request whose prompt is being read, in a session of its own. */
export class TextCompletion {
  readonly #told: Told;
  readonly #request: CompletionRequest;
  readonly #session: EngineSession;
  readonly #all: Promise<readonly Generated[]>;
  readonly #texts: AsyncIterable<{ readonly text: string; readonly logprobs: readonly GeneratedToken[] | null }>;

  private constructor(service: Service, request: CompletionRequest, session: EngineSession, { all, texts }: Writing) {
    this.#told = service.told('cmpl');
    this.#request = request;
    this.#session = session;
    this.#all = all;
    this.#texts = texts;
  }

  /** Throws what a request is refused with, before anything is told. */
  static async begin(service: Service, body: unknown, { signal, ...asker }: Asker): Promise<TextCompletion> {
    const request = checkedBody(COMPLETION_REQUEST, body);
    service.checkModel(request.model);
    const n = request.n ?? 1;
    if (n > 1 && request.stream === true)
      throw new KvError('unsupported', 'several completions of a text are told at once, not as events', {
        values: { param: 'stream' },
        hint: 'leave out stream, or ask for n: 1; /v1/chat/completions has both',
      });
    const { config } = service.engine.info;
    const ids = await service.engine.tokenize(promptOf(request), 2 * config.contextLength);
    const asked = completionAsked(request, service.sampling);
    // Where nobody said how many, as many as there is room for.
    const room = Math.max(1, config.contextLength - ids.length);
    const maxTokens = asked.maxTokens ?? Math.min(service.limits.maxTokens, room);
    const session = await service.engine.openSession({
      tokensExpected: Math.min(ids.length + maxTokens, config.contextLength),
      ...proposedOf(service.sessionFor(sessionAsked(request, asker)), ids),
      ...asker.own,
    });
    let begun = (): void => {};
    const reading = new Promise<void>((resolve) => {
      begun = resolve;
    });
    const options = { ...asked, maxTokens, signal, onProgress: () => begun() };
    const writing = n > 1 ? several(session, ids, { ...options, n }) : one(session, ids, options);
    writing.all.then(
      (all) => asker.used?.(usedBy(all)),
      () => {},
    );
    try {
      await Promise.race([reading, writing.all]);
    } catch (error) {
      await session.close('error');
      throw error;
    }
    return new TextCompletion(service, request, session, writing);
  }

  get isStreamed(): boolean {
    return this.#request.stream === true;
  }

  get session(): string {
    return this.#session.id;
  }

  /** All of it at once. Throws what it failed with. */
  async whole(): Promise<object> {
    const all = await this.#end();
    const choices = all.map((generated, index) => ({
      text: generated.text,
      index,
      logprobs: generated.logprobs === null ? null : legacyLogprobs(generated.logprobs, 0),
      finish_reason: finishOf(generated),
    }));
    return { ...this.#head(), choices, usage: usage(all), ...receiptOf(all) };
  }

  /** Told as it comes. What goes wrong on the way is the last event. */
  async tell(events: EventStream): Promise<void> {
    const piece = (text: string, logprobs: object | null, finish: string | null, more = {}): Promise<void> =>
      events.send({ ...this.#head(), choices: [{ text, index: 0, logprobs, finish_reason: finish }], ...more });
    try {
      let letters = 0;
      for await (const { text, logprobs } of this.#texts) {
        await piece(text, logprobs === null ? null : legacyLogprobs(logprobs, letters), null);
        letters += text.length;
      }
      const all = await this.#end();
      const tellsUsage = this.#request.stream_options?.include_usage === true;
      await piece('', null, finishOf(all[0]!), tellsUsage ? {} : receiptOf(all));
      if (tellsUsage) await events.send({ ...this.#head(), choices: [], usage: usage(all), ...receiptOf(all) });
      await events.send('[DONE]');
    } catch (error) {
      await this.#session.close('error');
      await events.send({ error: failureOf(error).error });
    }
  }

  #head() {
    const { id, created, model, fingerprint } = this.#told;
    return { id, object: 'text_completion', created, model, system_fingerprint: fingerprint };
  }

  async #end(): Promise<readonly Generated[]> {
    try {
      const all = await this.#all;
      await this.#session.close();
      return all;
    } catch (error) {
      await this.#session.close('error');
      throw error;
    }
  }
}

interface Writing {
  readonly all: Promise<readonly Generated[]>;
  readonly texts: AsyncIterable<{ readonly text: string; readonly logprobs: readonly GeneratedToken[] | null }>;
}

function one(session: EngineSession, ids: Prompt, options: Parameters<EngineSession['generate']>[1]): Writing {
  const generation = session.generate(ids, options);
  return { all: generation.result.then((generated) => [generated]), texts: generation.events() };
}

function several(session: EngineSession, ids: Prompt, options: Parameters<EngineSession['continuations']>[1]): Writing {
  return { all: session.continuations(ids, options), texts: (async function* () {})() };
}

/** The prompt of a request, which may be a list of one. */
function promptOf({ prompt }: CompletionRequest): string | readonly number[] {
  return Array.isArray(prompt) && typeof prompt[0] === 'string' ? prompt[0] : (prompt as string | readonly number[]);
}

const finishOf = ({ finish }: Generated): string => (finish === 'length' ? 'length' : 'stop');

/** What was read and what was not. */
const usage = (all: readonly Generated[]) =>
  usageOf(all.map((one) => ({ ...one, promptTokens: one.promptTokens - one.cachedTokens })));

/** The prompt of several is read once. */
const usedBy = (all: readonly Generated[]): UsedTokens => {
  const [{ promptTokens, cachedTokens }] = all as [Generated];
  return {
    ...{ promptTokens: promptTokens - cachedTokens, cachedTokens },
    tokens: all.reduce((sum, { tokens }) => sum + tokens, 0),
  };
};

/** That of the first, where it was asked for. */
const receiptOf = ([first]: readonly Generated[]) => (first?.receipt == null ? {} : { palimpsest: first.receipt });

/** Log probabilities as this older API has them. `offset`: letters of the text before. */
function legacyLogprobs(tokens: readonly GeneratedToken[], offset: number) {
  let at = offset;
  const offsets = tokens.map(({ text }) => {
    at += text.length;
    return at - text.length;
  });
  return {
    tokens: tokens.map(({ text }) => text),
    token_logprobs: tokens.map(({ logprob }) => logprob),
    top_logprobs: tokens.map(({ top }) => Object.fromEntries(top.map(({ text, logprob }) => [text, logprob]))),
    text_offset: offsets,
  };
}
