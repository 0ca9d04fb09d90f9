/**
 * The paths that clients of OpenAI's API ask for answers, over one engine. Everybody who may ask shares its memory;
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
  readonly service: Service;
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
  constructor(engine: Engine, options: AnswersOptions, store: WatchedStore | null, stalledMs: number = STALLED_MS) {
    this.service = new Service(engine, options, store);
    this.#store = store;
    this.#responses = new ResponseStore(store);
    this.#stalledMs = stalledMs;
  }

  /** The name that clients ask for. */
  get model(): string {
    return this.service.model;
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
    const service = this.service;
    const { engine } = service;
    app.get('/health', (c) => c.json(this.#health));
    app.get('/v1/models', (c) => c.json({ object: 'list', data: [service.card] }));
    app.get('/v1/models/:model{.+}', (c) => {
      service.checkModel(c.req.param('model'));
      return c.json(service.card);
    });
    this.post(app, '/v1/chat/completions', (body, asker) =>
      ChatCompletion.begin(service, body.bytes, body.value, asker),
    );
    this.post(app, '/v1/responses', ({ value }, asker) => ResponseAnswer.begin(service, this.#responses, value, asker));
    const stored = ({ req, env }: Context<Env>) =>
      this.#responses.get(req.param('id')!, 'id', this.#askerOf(env.incoming).salt);
    app.get('/v1/responses/:id', async (c) => c.json((await stored(c)).response));
    app.delete('/v1/responses/:id', async (c) => {
      const { response, sessions } = await stored(c);
      await this.#responses.forget(response.id);
      // Its text is in the cache of its conversation as well. Responses behind it are removed by their own ids.
      await service.conversations.erase(sessions.at(-1)!);
      return c.json({ id: response.id, object: 'response', deleted: true });
    });
    this.post(app, '/v1/completions', ({ value }, asker) => TextCompletion.begin(service, value, asker));
    this.#serveSessions(app);
    this.ask(app, '/v1/embeddings', ({ value }, asker) => embeddings(service, value, asker));
    this.ask(app, '/tokenize', async ({ value }) => {
      const { content, add_special: special } = checkedBody(TOKENIZE_REQUEST, value);
      return { tokens: await engine.tokenize(content, Number.MAX_SAFE_INTEGER, special === true) };
    });
    this.ask(app, '/detokenize', async ({ value }) => {
      const { tokens } = checkedBody(DETOKENIZE_REQUEST, value);
      return { content: tokens.length === 0 ? '' : await engine.detokenize(tokens) };
    });
    this.ask(app, '/apply-template', async ({ bytes, value }) => {
      checkedBody(TEMPLATE_REQUEST, value);
      const { messages, options } = conversationIn(bytes, 'the body');
      const { template } = service;
      return { prompt: await engine.render(messages, { ...options, ...(template === undefined ? {} : { template }) }) };
    });
  }

  /** Requests are answered also where the store fails. Whoever reaches the port is told no more than codes. */
  get #health(): object {
    const store = this.#store?.troubles ?? {};
    return Object.keys(store).length === 0 ? { status: 'ok' } : { status: 'degraded', store };
  }

  #serveSessions(app: Hono<Env>): void {
    const { conversations } = this.service;
    app.get('/v1/sessions/held', async (c) =>
      c.json({ object: 'list', data: await conversations.list(this.#askerOf(c.env.incoming)) }),
    );
    const path = (what: string): string => `/v1/sessions/:session/${what}`;
    this.ask(app, path('park'), (_, asker, id) => conversations.park(id, asker));
    this.ask(app, path('resume'), (_, asker, id) => conversations.resume(id, asker));
    this.ask(app, path('fork'), (_, asker, id) => conversations.fork(id, asker));
    this.ask(app, path('delete'), async (_, asker, id) => {
      await conversations.remove(id, asker);
      await this.#responses.erase(id);
      return { id, deleted: true };
    });
  }

  /** Keeps the conversations that wait where there is a store, and closes them. The engine and the store stay. */
  close(): Promise<void> {
    return this.service.close();
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
