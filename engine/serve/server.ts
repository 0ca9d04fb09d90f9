/**
 * The live view: metrics, and a small API that answers questions about a log, over HTTP. Two uses: over a state folder
 * that any process writes, and beside an engine, whose own metrics are then complete. It only reads, but that it passes
 * on to the engine that memory is short.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { getRequestListener, type HttpBindings } from '@hono/node-server';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import { type Context, Hono } from 'hono';
import { checkKeys, checkOptions, defaultsOf, given, KvError, show } from '../../native/index.ts';
import { isLogDir } from '../../witness/index.ts';
import { serveAnthropic } from '../anthropic/paths.ts';
import { PREFIX } from '../metrics/meter.ts';
import { Registry } from '../metrics/registry.ts';
import { serveOllama } from '../ollama/paths.ts';
import { AnswersApi, type Asking } from '../openai/api.ts';
import type { OwnersOptions } from '../openai/conversation.ts';
import { type Failure, failureOf, Refusal } from '../openai/failure.ts';
import { ANSWERS_OPTIONS } from '../openai/options.ts';
import type { UsedTokens } from '../openai/turn.ts';
import { logDir } from '../state/folder.ts';
import { openStore } from '../store/open.ts';
import type { Store } from '../store/store.ts';
import { STORE_CALLS, WatchedStore } from '../store/watched-store.ts';
import type { Engine } from '../thread/engine.ts';
import { EngineRuntime } from '../thread/runtime.ts';
import { checkToken, Guard, isLoopback, ownAlone } from './guard.ts';
import { KeyMetrics } from './key-metrics.ts';
import { type ApiKey, checkedKeys, streamsMaxOf, tokenKey } from './keys.ts';
import { Live } from './live.ts';
import { openApi } from './openapi.ts';
import { SERVE_OPTIONS, type ServeOptions, STREAM_OPTIONS } from './options.ts';
import { PAGE_POLICY, pageFile } from './page-files.ts';
import { LogReader } from './reader.ts';
import { type Route, resolve, wayOf } from './routes.ts';
import { type Places, type StreamRules, Streams } from './stream.ts';
import { refuseUnread } from './unread.ts';

/** A running live view. */
export interface LiveView {
  /** 'http://127.0.0.1:9470' */
  readonly url: string;
  /**
   * Takes no more requests, which it says with 503 (and `/health` with `draining`), and waits until those under way are
   * answered, so long at most; whoever follows decisions is cut off. close() it then.
   */
  drain(mostMs: number): Promise<void>;
  /** Stops answering, and cuts off those who follow. */
  close(): Promise<void>;
  /** The same as close(). */
  [Symbol.asyncDispose](): Promise<void>;
}

const HEADER_BYTES_MAX = 8192;
/** A connection that says nothing between two requests is closed after so long. */
const IDLE_MS = 5000;
/** A client that takes nothing of its answer for so long does not get the rest. */
const UNTAKEN_MS = 15_000;

type Env = { readonly Bindings: HttpBindings };

/** What every answer says to a browser that gets it: do not guess, keep, frame or run it. */
const HEADERS = {
  'cache-control': 'no-store',
  'x-content-type-options': 'nosniff',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
} as const;

/**
 * Serves the live view of an engine of this process, or of a runtime with the engines that it has by now, of which
 * requests name one by its model, or of a state folder that any process writes. With an engine,
 * /metrics is complete; over a folder it has what the log tells. An engine that writes no log has /metrics alone. The
 * log is read in a thread of its own. Throws 'bad-argument', 'bad-config', 'not-found' for a folder without a log,
 * 'budget-too-small' where the kvBudget of the engine holds no conversation, 'io' where the port is taken. Close it
 * before the engine.
 */
export async function serve(source: Engine | EngineRuntime | string, options: ServeOptions = {}): Promise<LiveView> {
  checkKeys(options, SERVE_OPTIONS, 'serve');
  checkServe(options);
  const engine = typeof source === 'string' ? null : source;
  const dir = typeof source === 'string' ? logDir(source) : enginesOf(source)[0].info.logPath;
  if (engine === null && !isLogDir(dir!))
    throw new KvError('not-found', `there is no witness log in ${show(source)}`, {
      values: { dir },
      hint: 'run something first, or name the right state folder with --state',
    });
  const place = options.answers?.store;
  const store = engine === null || place === undefined ? null : await openStore(place);
  // Its thread would keep the process that is refused.
  const reader = dir === null ? null : new LogReader(dir);
  try {
    return await listening(new View(reader, engine, options, store));
  } catch (error) {
    await reader?.close();
    await store?.close();
    throw error;
  }
}

/** An engine, or those of a runtime that are open by now. Throws 'bad-argument' where there is none. */
function enginesOf(source: Engine | EngineRuntime): readonly [Engine, ...Engine[]] {
  if (!(source instanceof EngineRuntime)) return [source];
  const [first, ...others] = source.engines;
  if (first === undefined)
    throw new KvError('bad-argument', 'the runtime has no engine to serve', { hint: 'openEngine one before' });
  return [first, ...others];
}

async function listening(view: View): Promise<LiveView> {
  try {
    await view.checkRoom();
    return await view.listen();
  } catch (error) {
    await view.close();
    throw error;
  }
}

/** Options with the defaults of those that have one. */
const withDefaults = (options: ServeOptions) => ({
  host: SERVE_OPTIONS.host.default,
  port: SERVE_OPTIONS.port.default,
  requestsPerSecond: SERVE_OPTIONS.requestsPerSecond.default,
  // Whoever waits for an answer holds a connection, and is told so where there are too many.
  connectionsMax:
    SERVE_OPTIONS.connectionsMax.default +
    (options.answers === undefined ? 0 : (options.answers?.requestsMax ?? ANSWERS_OPTIONS.requestsMax.default)),
  requestMs: SERVE_OPTIONS.requestMs.default,
  ...given<ServeOptions>(options),
});

function checkServe(options: ServeOptions): void {
  checkOptions(options, SERVE_OPTIONS);
  const { host, token, keys, stream } = withDefaults(options);
  if (token !== undefined) checkToken(token, 'token');
  if (keys !== undefined) checkedKeys(keys, 'keys');
  if (!isLoopback(host) && token === undefined && keys === undefined)
    throw new KvError('bad-argument', `other machines may reach ${host}, so a token is needed`, {
      values: { host },
      hint: 'name a file with one (--token-file) or with many (--keys), or leave out the host',
    });
  if (stream === undefined) return;
  checkKeys(stream, STREAM_OPTIONS, 'serve');
  checkOptions(stream, STREAM_OPTIONS);
}

class View implements LiveView {
  readonly #reader: LogReader | null;
  readonly #engine: Engine | EngineRuntime | null;
  readonly #options: ServeOptions;
  readonly #server: Server;
  readonly #guard: Guard;
  readonly #streams: Streams | null;
  readonly #live: Live;
  readonly #answers: AnswersApi | null;
  readonly #store: WatchedStore | null;
  readonly #listener: (request: IncomingMessage, response: ServerResponse) => Promise<void>;
  readonly #registry = new Registry(PREFIX);
  readonly #requests = this.#registry.counter(
    'http_requests_total',
    'Requests to this server, by how they were answered.',
    {
      outcome: ['answered', 'refused', 'failed'],
    },
  );
  readonly #dropped = this.#registry.counter(
    'stream_clients_dropped_total',
    'Clients that followed decisions and were cut off because they did not read.',
    {},
  );
  readonly #keyMetrics: KeyMetrics;
  /** Whose key a request had. */
  readonly #askers = new WeakMap<IncomingMessage, ApiKey>();
  /** What is under way. */
  readonly #answering = new Set<ServerResponse>();
  /** Called when all that was under way is answered; null: it does not drain. */
  #drained: (() => void) | null = null;
  #url = '';
  #closing: Promise<void> | null = null;

  constructor(
    reader: LogReader | null,
    engine: Engine | EngineRuntime | null,
    options: ServeOptions,
    store: Store | null,
  ) {
    const { host, requestsPerSecond, connectionsMax, requestMs, token, keys = [] } = withDefaults(options);
    this.#reader = reader;
    this.#engine = engine;
    this.#store = store === null ? null : this.#watched(store, engine);
    this.#options = options;
    this.#guard = new Guard({
      keys: [...(token === undefined ? [] : [tokenKey(token)]), ...keys],
      isLoopback: isLoopback(host),
      requestsPerSecond,
      answers: options.answers !== undefined,
      allowOrigin: options.allowOrigin,
    });
    this.#keyMetrics = new KeyMetrics(keys.map(({ name }) => name));
    this.#dropped.add({}, 0);
    for (const outcome of ['answered', 'refused', 'failed'] as const) this.#requests.add({ outcome }, 0);
    const rules = { ...defaultsOf<StreamRules>(STREAM_OPTIONS), ...given<Partial<StreamRules>>(options.stream ?? {}) };
    this.#streams = reader === null ? null : new Streams(reader, rules, () => this.#dropped.add({}));
    this.#answers =
      engine === null || options.answers === undefined
        ? null
        : new AnswersApi(enginesOf(engine), options.answers, this.#store);
    const sources = {
      model: this.#answers?.model ?? null,
      metrics: engine === null ? null : () => engine.metrics(),
      reader,
    };
    this.#live = new Live(sources, rules, () => this.#dropped.add({}));
    // Requests are those of node:http: nothing of the process is put in their place.
    this.#listener = getRequestListener(this.#routes().fetch, { overrideGlobalObjects: false });
    this.#server = createServer({
      maxHeaderSize: HEADER_BYTES_MAX,
      headersTimeout: requestMs,
      requestTimeout: requestMs,
      keepAliveTimeout: IDLE_MS,
      connectionsCheckingInterval: Math.min(1000, requestMs),
    });
    this.#server.maxConnections = connectionsMax;
    this.#server.on('request', (request, response) => this.#hear(request, response, false));
    this.#server.on('checkContinue', (request, response) => this.#hear(request, response, true));
    this.#server.on('checkExpectation', (request, response) => this.#refuse(notExpected(), request, response));
    this.#server.on('clientError', (error, socket) => {
      const isAnswering = [...this.#answering].some((one) => one.socket === socket && one.headersSent);
      refuseUnread(error, socket, isAnswering, HEADERS);
    });
    this.#server.on('upgrade', (_, socket) => socket.destroy());
    this.#server.on('connect', (_, socket) => socket.destroy());
  }

  get url(): string {
    return this.#url;
  }

  /** Throws 'budget-too-small' where every request for an answer would be refused. */
  async checkRoom(): Promise<void> {
    await this.#answers?.checkRoom();
  }

  listen(): Promise<this> {
    const { host, port } = withDefaults(this.#options);
    return new Promise((done, fail) => {
      this.#server.once('error', (cause) =>
        fail(
          new KvError('io', `the server cannot listen on ${host}:${port}: ${cause.message}`, {
            values: { host, port },
            hint: 'name another port (0: any that is free)',
            cause,
          }),
        ),
      );
      this.#server.listen(port, host, () => {
        const { address, port: heard, family } = this.#server.address() as AddressInfo;
        this.#url = `http://${family === 'IPv6' ? `[${address}]` : address}:${heard}`;
        // Reading begins before anybody asks; what is wrong with the log is told to whoever does.
        this.#reader?.ask('metrics', undefined).catch(() => {});
        done(this);
      });
    });
  }

  async drain(mostMs: number): Promise<void> {
    const drained = new Promise<void>((resolve) => {
      this.#drained = resolve;
    });
    if (this.#answering.size === 0) this.#drained!();
    this.#streams?.end();
    this.#live.end();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, mostMs);
    });
    await Promise.race([drained, late]);
    clearTimeout(timer);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await this.#answers?.close();
    await this.#store?.close();
    await this.#reader?.close();
    await closed;
  }

  /** Everybody passes the guard before a word of what they ask is read. */
  #hear(request: IncomingMessage, response: ServerResponse, waits: boolean): void {
    // A client that goes away in the middle is no failure of ours.
    response.on('error', () => {});
    try {
      const { way, isOwn } = wayOf(request.url ?? '', this.#answers !== null);
      const key = this.#guard.check(request, way, isOwn);
      if (this.#drained !== null) {
        this.#tellDraining(request, response);
        return;
      }
      this.#isUnderWay(response);
      if (key !== null) this.#asks(key, request, response);
      if (waits && way === 'answers') response.writeContinue();
    } catch (error) {
      this.#refuse(error, request, response);
      return;
    }
    void this.#listener(request, response);
  }

  #asks(key: ApiKey, request: IncomingMessage, response: ServerResponse): void {
    this.#askers.set(request, key);
    const ended = this.#keyMetrics.began(key.name);
    response.once('close', () => ended(response.writableFinished ? response.statusCode : null));
  }

  #isUnderWay(response: ServerResponse): void {
    this.#answering.add(response);
    response.once('close', () => {
      this.#answering.delete(response);
      if (this.#answering.size === 0) this.#drained?.();
    });
  }

  /** Clients come back and find another server; who asks for its health sends none any more. */
  #tellDraining(request: IncomingMessage, response: ServerResponse): void {
    const headers = { 'retry-after': '1', connection: 'close' };
    if (request.url !== '/health') throw new Refusal(503, new KvError('closed', 'the server is about to end'), headers);
    const text = JSON.stringify({ status: 'draining' });
    this.#send(response, request, 503, 'application/json; charset=utf-8', text, headers);
  }

  /** Its failures are counted, and told to whoever listens to the engine. */
  #watched(store: Store, engine: Engine | EngineRuntime | null): WatchedStore {
    const failures = this.#registry.counter('store_failures_total', 'Calls of the store that failed.', {
      call: STORE_CALLS,
    });
    for (const call of STORE_CALLS) failures.add({ call }, 0);
    return new WatchedStore(
      store,
      (call) => failures.add({ call }),
      ({ call, code, failed }) =>
        code === null
          ? engine?.tell('store-takes-again', { call, failed })
          : engine?.tell('store-refuses', { call, code }),
    );
  }

  /** What answers, by path. */
  #routes(): Hono<Env> {
    const app = new Hono<Env>();
    app.use(async (c, next) => {
      await next();
      // What node:http answers by itself was counted, and has its headers.
      if (c.res.headers.has('x-hono-already-sent')) return;
      this.#count(c.res.status);
      for (const [name, value] of Object.entries(this.#headers(c.res.headers.get('content-type'), c.env.incoming)))
        c.res.headers.set(name, value);
    });
    // Clients send headers of their own, such as x-stainless-lang, and a page that may ask may send any.
    app.options('*', (c) =>
      c.body(null, 204, {
        'access-control-allow-methods': 'GET, POST, DELETE',
        'access-control-allow-headers':
          c.req.header('access-control-request-headers') ?? 'authorization, content-type, x-api-key',
        'access-control-max-age': '600',
      }),
    );
    if (this.#answers !== null) {
      this.#answers.serveOn(app, (request) => askerOf(this.#askers.get(request), this.#keyMetrics));
      serveAnthropic(this.#answers, app);
      serveOllama(this.#answers, app);
    }
    app.all('*', (c) => this.#show(c));
    app.onError((error, c) => {
      this.#refuse(error, c.env.incoming, c.env.outgoing);
      return RESPONSE_ALREADY_SENT;
    });
    return app;
  }

  /** What a log or an engine tells. */
  async #show({ env: { incoming: request, outgoing: response } }: Context<Env>): Promise<Response> {
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    const [path, search] = addressOfRequest(request.url ?? '');
    const file = pageFile(path);
    if (file !== null) {
      this.#send(response, request, 200, file.type, file.bytes, { 'content-security-policy': PAGE_POLICY });
      return RESPONSE_ALREADY_SENT;
    }
    const { route, parameters } = resolve(path, search, this.#answers !== null);
    const own = this.#checkOwn(request, route, parameters);
    if (route.source === 'live' && request.method === 'GET') {
      this.#count(200);
      await this.#live.serve({ own, ...this.#placesOf(request) }, response, this.#headers(route.type, request));
      return RESPONSE_ALREADY_SENT;
    }
    if (route.source === 'stream' && request.method === 'GET') {
      const { after = request.headers['last-event-id'] ?? null, ...rest } = parameters as {
        after?: string;
        session?: string;
      };
      const headers = this.#headers(route.type, request);
      const asked = { ...rest, ...this.#placesOf(request), after: after as string | null };
      await this.#log.streams.serve(asked, response, headers);
      this.#count(200);
      return RESPONSE_ALREADY_SENT;
    }
    const isMetrics = route.source === 'metrics';
    const text = isMetrics
      ? await this.#metrics(request, gone.signal)
      : await this.#text(route, parameters, gone.signal);
    this.#send(response, request, 200, route.type, text);
    return RESPONSE_ALREADY_SENT;
  }

  /** The sessions that whoever asks is told of; null: all. Throws a Refusal for a question about others. */
  #checkOwn(request: IncomingMessage, { source }: Route, parameters: object): ReadonlySet<string> | null {
    const key = this.#askers.get(request);
    if (key === undefined || key.sees === 'all') return null;
    const own = this.#answers?.sessionsOf(key.name) ?? new Set<string>();
    if (source !== 'live' && source !== 'metrics' && !own.has((parameters as { session?: string }).session ?? ''))
      throw ownAlone();
    return own;
  }

  /** How many places of a stream whoever asks may have. */
  #placesOf(request: IncomingMessage): Places {
    const key = this.#askers.get(request);
    return key === undefined ? { who: '', most: Number.POSITIVE_INFINITY } : { who: key.name, most: streamsMaxOf(key) };
  }

  async #text({ source, method }: Route, parameters: object, gone: AbortSignal): Promise<string> {
    if (source === 'stream' || source === 'live' || source === 'metrics') return '';
    if (source === 'document') return JSON.stringify(openApi(this.#answers !== null));
    if (source === 'engine') return JSON.stringify(await this.#lowMemory(parameters as { low: boolean }));
    const { reader } = this.#log;
    if (method === 'verify') return JSON.stringify(await reader.verify());
    return JSON.stringify(await reader.ask(method!, parameters as never, gone));
  }

  async #lowMemory({ low }: { readonly low: boolean }): Promise<{ readonly low: boolean }> {
    if (this.#engine === null)
      throw new KvError('not-found', 'no engine is behind this server, which reads the log of a folder', {
        hint: 'send SIGUSR2 to the process that runs the engine, or serve(engine) in it',
      });
    await this.#engine.setLowMemory(low);
    return { low };
  }

  /** Complete where the engine runs here; else what the log tells. A key that sees its own answers gets its own. */
  async #metrics(request: IncomingMessage, gone: AbortSignal): Promise<string> {
    if (this.#options.metrics === false)
      throw new KvError('not-found', 'metrics are not served here', { hint: 'start the server with --metrics' });
    const key = this.#askers.get(request);
    const kvBytes = (await this.#answers?.kvBytes()) ?? new Map<string, number>();
    if (key !== undefined && key.sees !== 'all') return this.#keyMetrics.text(kvBytes, key.name);
    const own =
      this.#engine === null ? await this.#log.reader.ask('metrics', undefined, gone) : await this.#engine.metrics();
    return own + this.#registry.text() + this.#keyMetrics.text(kvBytes);
  }

  get #log(): { readonly reader: LogReader; readonly streams: Streams } {
    if (this.#reader === null || this.#streams === null)
      throw new KvError('not-found', 'the engine writes no log, so there is nothing to read here', {
        hint: 'createEngine with a stateDir',
      });
    return { reader: this.#reader, streams: this.#streams };
  }

  #count(status: number): void {
    this.#requests.add({ outcome: status < 400 ? 'answered' : status < 500 ? 'refused' : 'failed' });
  }

  #headers(type: string | null, { headers: { origin } }: IncomingMessage): Record<string, string> {
    const { allowOrigin } = this.#options;
    const shared = allowOrigin === undefined ? {} : { vary: 'origin' };
    const allowed =
      allowOrigin === undefined || origin !== allowOrigin
        ? {}
        : {
            'access-control-allow-origin': allowOrigin,
            'access-control-expose-headers': 'retry-after, x-palimpsest-session',
          };
    return { ...HEADERS, ...(type === null ? {} : { 'content-type': type }), ...shared, ...allowed };
  }

  #send(
    response: ServerResponse,
    request: IncomingMessage,
    status: number,
    type: string,
    text: string | Buffer,
    more: Readonly<Record<string, string>> = {},
  ): void {
    this.#count(status);
    response.setTimeout(UNTAKEN_MS, () => response.destroy());
    const length = String(Buffer.byteLength(text));
    response.writeHead(status, { ...this.#headers(type, request), 'content-length': length, ...more });
    response.end(request.method === 'HEAD' ? undefined : text);
  }

  #refuse(thrown: unknown, request: IncomingMessage, response: ServerResponse): void {
    // Who went away gets no answer.
    if (response.headersSent || response.destroyed) {
      response.destroy();
      return;
    }
    const { status, error, headers } = failureOf(thrown);
    const body = failureBody(request.url ?? '', error);
    this.#send(response, request, status, 'application/json; charset=utf-8', `${JSON.stringify(body)}\n`, headers);
  }
}

/** Nobody reads the body that may follow. */
const notExpected = (): Refusal =>
  new Refusal(
    417,
    new KvError('unsupported', 'a request may expect 100-continue alone', { hint: 'leave out the header Expect' }),
    { connection: 'close' },
  );

/** A failure in the words of the API that was asked. */
function failureBody(url: string, error: Failure['error']): object {
  if (url.startsWith('/api/')) return { error: error.message };
  return url.startsWith('/v1/messages') ? { type: 'error', error } : { error };
}

/** What a key is to the answers: nothing for the one that all share. */
const askerOf = (key: ApiKey | undefined, metrics: KeyMetrics): Asking => {
  if (key === undefined) return {};
  const { name, priority = 0, weight = 1, sees, requestsMax, kvBudget, logged = true, logRules } = key;
  const seesAll = sees === 'all';
  if (name === '') return { seesAll };
  const kvGroup = kvBudget === undefined ? undefined : { name, kvBudget };
  const own = given<OwnersOptions>({ kvGroup, logRules, witness: logged ? undefined : false });
  const used = (tokens: UsedTokens): void => metrics.used(name, tokens);
  return { salt: name, priority, weight, seesAll, own, used, ...given({ requestsMax }) };
};

/** The path and the query of a request. Throws 'bad-argument'. */
function addressOfRequest(url: string): [path: string, search: URLSearchParams] {
  const match = /^(\/[^?#]*)(?:\?([^#]*))?$/.exec(url);
  if (match === null) throw new KvError('bad-argument', 'a request names a path');
  return [match[1]!, new URLSearchParams(match[2] ?? '')];
}
