/**
 * The paths that clients of OpenAI's API ask for answers, over one engine, or several of which requests name one by its
 * model; who names none has the first. Everybody who may ask shares its memory;
 * what a request says of the cache (`kv_budget`, `kld_budget`, `cache_salt`, `priority`) is its own.
 */
import type { IncomingMessage } from 'node:http';
import type { HttpBindings } from '@hono/node-server';
import type { Context, Hono } from 'hono';
import { stream } from 'hono/streaming';
import { KvError, parseJson } from '../../native/index.ts';
import type { WatchedStore } from '../store/watched-store.ts';
import type { Engine } from '../thread/engine.ts';
import { conversationIn } from '../transformer/conversation-file.ts';
import { ChatCompletion } from './chat.ts';
import { TextCompletion } from './completion.ts';
import { embeddings } from './embeddings.ts';
import { EVENT_HEADERS, EventStream, LINE_HEADERS, STALLED_MS } from './event-stream.ts';
import { Refusal } from './failure.ts';
import { withField } from './fields.ts';
import type { AnswersOptions } from './options.ts';
import { checkedBody, DETOKENIZE_REQUEST, TEMPLATE_REQUEST, TOKENIZE_REQUEST } from './request.ts';
import { ResponseAnswer } from './response.ts';
import { ResponseStore } from './response-store.ts';
import { type Asker, Service } from './service.ts';

export type Env = { readonly Bindings: HttpBindings };

/** The body of a request: its bytes, and what they say. */
export interface Body {
  readonly bytes: Uint8Array;
  readonly value: unknown;
}

/** What a server knows of whoever asks. */
export type Asking = Omit<Asker, 'signal'>;

/** What an answer is before it is told: begun, and told at once or as events. */
export interface Begun {
  readonly isStreamed: boolean;
  /** True if what it streams is lines of JSON, and no events. */
  readonly isLines?: boolean;
  readonly session: string;
  whole(): Promise<object>;
  tell(events: EventStream): Promise<void>;
}

/** Sessions of one salt that are remembered. */
const SESSIONS_MAX = 1000;

export class AnswersApi {
  /** Of the first model, which also counts the requests for all. */
  readonly service: Service;
  /** Of each model. */
  readonly services: readonly [Service, ...Service[]];
  readonly #store: WatchedStore | null;
  readonly #responses: ResponseStore;
  readonly #stalledMs: number;
  /** By salt, the sessions of its newest answers. */
  readonly #sessions = new Map<string, Set<string>>();
  #askerOf: (request: IncomingMessage) => Asking = () => ({});

  /**
   * store: where responses and conversations outlive this process; null: they do not. stalledMs: readers of events that
   * take nothing for so long are cut off. Throws 'bad-argument', 'bad-config'.
   */
  constructor(
    engines: Engine | readonly [Engine, ...Engine[]],
    options: AnswersOptions,
    store: WatchedStore | null,
    stalledMs: number = STALLED_MS,
  ) {
    const [first, ...others] = 'info' in engines ? [engines] : engines;
    checkNames([first, ...others], options);
    this.service = new Service(first, options, store);
    this.services = [this.service, ...others.map((engine) => new Service(engine, options, store))];
    this.#store = store;
    this.#responses = new ResponseStore(store);
    this.#stalledMs = stalledMs;
  }

  /** The names that clients ask for. */
  get model(): string {
    return this.services.map(({ model }) => model).join(', ');
  }

  /** Throws 'budget-too-small' for a memory that holds no conversation of one of the models. */
  async checkRoom(): Promise<void> {
    for (const service of this.services) await service.checkRoom();
  }

  /** Bytes of keys and values that conversations of each owner hold. */
  async kvBytes(): Promise<ReadonlyMap<string, number>> {
    const bytes = new Map<string, number>();
    for (const { conversations } of this.services)
      for (const [owner, held] of await conversations.kvBytes()) bytes.set(owner, (bytes.get(owner) ?? 0) + held);
    return bytes;
  }

  /** Of the model that somebody names; the first where none is named. Throws 'not-found'. */
  serviceOf(model: string | null | undefined): Service {
    if (model == null) return this.service;
    const found = this.services.find((service) => service.isNamed(model));
    if (found !== undefined) return found;
    if (this.services.length === 1) this.service.checkModel(model);
    const served = this.services.map((service) => service.model);
    throw new KvError('not-found', `the model ${model.slice(0, 100)} is not served here`, {
      values: { model: model.slice(0, 300), param: 'model', served },
      hint: `ask for ${served.join(' or ')}`,
    });
  }

  /** The same of the body of a request; what is no name is refused where the body is checked. */
  serviceFor({ value }: Body, named: (model: string) => string = (model) => model): Service {
    const model = typeof value === 'object' && value !== null && 'model' in value ? value.model : null;
    return typeof model === 'string' ? this.serviceOf(named(model)) : this.service;
  }

  /** The sessions that answered whoever has this salt, as far as they are remembered. */
  sessionsOf(salt: string): ReadonlySet<string> {
    let sessions = this.#sessions.get(salt);
    if (sessions === undefined) this.#sessions.set(salt, (sessions = new Set()));
    return sessions;
  }

  #answered(session: string, salt: string | undefined): void {
    if (salt === undefined) return;
    const sessions = this.sessionsOf(salt) as Set<string>;
    sessions.delete(session);
    sessions.add(session);
    if (sessions.size > SESSIONS_MAX) sessions.delete(sessions.keys().next().value!);
  }

  /** Puts its paths on a server, which says who asks. */
  serveOn(app: Hono<Env>, askerOf: (request: IncomingMessage) => Asking): void {
    this.#askerOf = askerOf;
    app.get('/health', (c) => c.json(this.#health));
    app.get('/v1/models', (c) => c.json({ object: 'list', data: this.services.map(({ card }) => card) }));
    app.get('/v1/models/:model{.+}', (c) => c.json(this.serviceOf(c.req.param('model')).card));
    this.post(app, '/v1/chat/completions', (body, asker) =>
      ChatCompletion.begin(this.serviceFor(body), body.bytes, body.value, asker),
    );
    this.post(app, '/v1/responses', (body, asker) =>
      ResponseAnswer.begin(this.serviceFor(body), this.#responses, body.value, asker),
    );
    const stored = ({ req, env }: Context<Env>) =>
      this.#responses.get(req.param('id')!, 'id', this.#askerOf(env.incoming).salt);
    app.get('/v1/responses/:id', async (c) => c.json((await stored(c)).response));
    app.delete('/v1/responses/:id', async (c) => {
      const { response, sessions } = await stored(c);
      // Its text is in the cache of its conversation as well, which goes first: where the store fails, the response is
      // still there to be asked for again. Responses behind it are removed by their own ids.
      for (const { conversations } of this.services) await conversations.erase(sessions.at(-1)!);
      await this.#responses.forget(response.id);
      return c.json({ id: response.id, object: 'response', deleted: true });
    });
    this.post(app, '/v1/completions', (body, asker) => TextCompletion.begin(this.serviceFor(body), body.value, asker));
    this.#serveSessions(app);
    this.ask(app, '/v1/embeddings', (body, asker) => embeddings(this.serviceFor(body), body.value, asker));
    this.#serveTokens(app);
  }

  #serveTokens(app: Hono<Env>): void {
    this.ask(app, '/tokenize', async (body) => {
      const { content, add_special: special } = checkedBody(TOKENIZE_REQUEST, body.value);
      const { engine } = this.serviceFor(body);
      return { tokens: await engine.tokenize(content, Number.MAX_SAFE_INTEGER, special === true) };
    });
    this.ask(app, '/detokenize', async (body) => {
      const { tokens } = checkedBody(DETOKENIZE_REQUEST, body.value);
      const { engine } = this.serviceFor(body);
      return { content: tokens.length === 0 ? '' : await engine.detokenize(tokens) };
    });
    this.ask(app, '/apply-template', async (body) => {
      checkedBody(TEMPLATE_REQUEST, body.value);
      const { messages, options } = conversationIn(body.bytes, 'the body');
      const { engine, template } = this.serviceFor(body);
      return { prompt: await engine.render(messages, { ...options, ...(template === undefined ? {} : { template }) }) };
    });
  }

  /** Requests are answered also where the store fails. Whoever reaches the port is told no more than codes. */
  get #health(): object {
    const store = this.#store?.troubles ?? {};
    return Object.keys(store).length === 0 ? { status: 'ok' } : { status: 'degraded', store };
  }

  #serveSessions(app: Hono<Env>): void {
    app.get('/v1/sessions/held', async (c) => {
      const looking = this.#askerOf(c.env.incoming);
      const lists = await Promise.all(this.services.map(({ conversations }) => conversations.list(looking)));
      const data = lists.flat().sort((a, b) => b.last_used_ms - a.last_used_ms);
      return c.json({ object: 'list', data });
    });
    const path = (what: string): string => `/v1/sessions/:session/${what}`;
    this.ask(app, path('park'), (_, asker, id) => this.#held((those) => those.park(id, asker)));
    this.ask(app, path('resume'), (_, asker, id) => this.#held((those) => those.resume(id, asker)));
    this.ask(app, path('fork'), (_, asker, id) => this.#held((those) => those.fork(id, asker)));
    this.ask(app, path('delete'), async (_, asker, id) => {
      await this.#held((those) => those.remove(id, asker, () => this.#responses.erase(id)));
      return { id, deleted: true };
    });
  }

  /** Does something with a conversation of whichever model holds it. Throws what the last one throws. */
  async #held<T>(work: (conversations: Service['conversations']) => Promise<T>): Promise<T> {
    for (const { conversations } of this.services.slice(0, -1)) {
      try {
        return await work(conversations);
      } catch (error) {
        if (!(error instanceof KvError) || error.code !== 'not-found') throw error;
      }
    }
    return work(this.services.at(-1)!.conversations);
  }

  /** Keeps the conversations that wait where there is a store, and closes them. Engines and the store stay. */
  async close(): Promise<void> {
    for (const service of this.services) await service.close();
  }

  /** A path whose request takes an answer of JSON. */
  ask(app: Hono<Env>, path: string, answer: (body: Body, asker: Asker, session: string) => Promise<object>): void {
    const { bodyBytesMax } = this.service.limits;
    app.post(path, async (c) => {
      const body = await bodyOf(c, bodyBytesMax);
      const asking = this.#askerOf(c.env.incoming);
      const left = this.service.enter(asking);
      try {
        const gone = new AbortController();
        c.env.outgoing.once('close', () => gone.abort());
        const asker = { ...asking, signal: gone.signal };
        return c.json(await naming(body, () => answer(body, asker, c.req.param('session') ?? '')));
      } finally {
        left();
      }
    });
  }

  /** A path that answers from the model, at once or as events. */
  post(app: Hono<Env>, path: string, begin: (body: Body, asker: Asker) => Promise<Begun>): void {
    app.post(path, async (c) => {
      const gone = new AbortController();
      c.env.outgoing.once('close', () => gone.abort());
      // Who sends slowly takes nobody's place.
      const body = await bodyOf(c, this.service.limits.bodyBytesMax);
      const asker = { ...this.#askerOf(c.env.incoming), signal: gone.signal };
      const left = this.service.enter(asker);
      let isStreaming = false;
      try {
        const begun = await naming(body, () => begin(body, asker));
        this.#answered(begun.session, asker.salt);
        c.header('x-palimpsest-session', begun.session);
        if (!begun.isStreamed) return c.json(await naming(body, () => begun.whole()));
        isStreaming = true;
        for (const [name, value] of Object.entries(begun.isLines === true ? LINE_HEADERS : EVENT_HEADERS))
          c.header(name, value);
        return stream(c, async (out) => {
          out.onAbort(() => gone.abort());
          // An end would look like that of a whole answer, and wait for the reader for ever.
          const events = new EventStream(out, () => c.env.outgoing.destroy(), this.#stalledMs, begun.isLines);
          try {
            await begun.tell(events);
          } finally {
            await events.end();
            left();
          }
        });
      } finally {
        if (!isStreaming) left();
      }
    });
  }
}

/** A name stands for one model. Throws 'bad-argument'. */
function checkNames(engines: readonly Engine[], { modelName }: AnswersOptions): void {
  if (engines.length === 1) return;
  const names = engines.map(({ info }) => info.name);
  if (modelName !== undefined)
    throw new KvError('bad-argument', 'modelName is the name of one model, and several are served', {
      values: { modelName, names },
      hint: 'leave it out: clients ask for the names of the models',
    });
  if (new Set(names).size < names.length)
    throw new KvError('bad-argument', 'two models that are served have one name, so no request could tell them apart', {
      values: { names },
      hint: 'rename the folder or the file of one',
    });
}

/**
 * Throws 'bad-argument' for what is no JSON, or is not said to be, and a Refusal for more bytes than there may be, of
 * which no more is read.
 */
async function bodyOf({ env: { incoming } }: Context<Env>, bytesMax: number): Promise<Body> {
  const { 'content-type': type = '', 'content-length': length = '0' } = incoming.headers;
  if (!/^application\/json\b/i.test(type))
    throw new KvError('bad-argument', 'a request is JSON', { hint: 'send content-type: application/json' });
  const pieces: Buffer[] = [];
  if (Number(length) > bytesMax) throw tooLarge(bytesMax);
  let bytes = 0;
  for await (const piece of incoming as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > bytesMax) throw tooLarge(bytesMax);
    pieces.push(piece);
  }
  const whole = Buffer.concat(pieces);
  return { bytes: whole, value: parseJson(whole, { code: 'bad-argument', what: 'the body' }) };
}

/** What an engine refuses on the way names the field of the request. */
async function naming<T>({ value }: Body, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw withField(error, value);
  }
}

/** Nobody reads the rest, so nothing may follow it. */
function tooLarge(bytesMax: number): Refusal {
  const error = new KvError('bad-argument', `a request has at most ${bytesMax} bytes`, { values: { bytesMax } });
  return new Refusal(413, error, { connection: 'close' });
}
