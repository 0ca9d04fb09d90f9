/**
 * The live view: metrics, and a small API that answers questions about a log, over HTTP. Two uses: over a state folder
 * that any process writes, and beside an engine, whose own metrics are then complete. It only reads, but that it passes
 * on to the engine that memory is short.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { checkKeys, checkOptions, defaultsOf, given, KvError, type KvErrorCode, show } from '../../native/index.ts';
import { isLogDir } from '../../witness/index.ts';
import { PREFIX } from '../metrics/meter.ts';
import { Registry } from '../metrics/registry.ts';
import { logDir } from '../state/folder.ts';
import type { Engine } from '../thread/engine.ts';
import { checkToken, Guard, isLoopback, Refusal } from './guard.ts';
import { openApi } from './openapi.ts';
import { SERVE_OPTIONS, type ServeOptions, STREAM_OPTIONS } from './options.ts';
import { LogReader } from './reader.ts';
import { changes, type Route, resolve } from './routes.ts';
import { type StreamRules, Streams } from './stream.ts';

/** A running live view. */
export interface LiveView {
  /** 'http://127.0.0.1:9470' */
  readonly url: string;
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

/** What every answer says to a browser that gets it: do not guess, keep, frame or run it. */
const HEADERS = {
  'cache-control': 'no-store',
  'x-content-type-options': 'nosniff',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
} as const;

const STATUS: Readonly<Partial<Record<KvErrorCode, number>>> = {
  'bad-argument': 400,
  'not-found': 404,
  'not-allowed': 403,
  sealed: 410,
  'bad-file': 410,
  busy: 503,
  closed: 503,
};

/**
 * Serves the live view of an engine of this process, or of a state folder that any process writes. With an engine,
 * /metrics is complete; over a folder it has what the log tells. An engine that writes no log has /metrics alone. The
 * log is read in a thread of its own. Throws 'bad-argument', 'bad-config', 'not-found' for a folder without a log, 'io'
 * where the port is taken. Close it before the engine.
 */
export async function serve(source: Engine | string, options: ServeOptions = {}): Promise<LiveView> {
  checkKeys(options, SERVE_OPTIONS, 'serve');
  checkServe(options);
  const engine = typeof source === 'string' ? null : source;
  const dir = typeof source === 'string' ? logDir(source) : source.info.logPath;
  if (engine === null && !isLogDir(dir!))
    throw new KvError('not-found', `there is no witness log in ${show(source)}`, {
      values: { dir },
      hint: 'run something first, or name the right state folder with --state',
    });
  const view = new View(dir === null ? null : new LogReader(dir), engine, options);
  try {
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
  connectionsMax: SERVE_OPTIONS.connectionsMax.default,
  requestMs: SERVE_OPTIONS.requestMs.default,
  ...given<ServeOptions>(options),
});

function checkServe(options: ServeOptions): void {
  checkOptions(options, SERVE_OPTIONS);
  const { host, token, stream } = withDefaults(options);
  if (token !== undefined) checkToken(token, 'token');
  if (!isLoopback(host) && token === undefined)
    throw new KvError('bad-argument', `other machines may reach ${host}, so a token is needed`, {
      values: { host },
      hint: 'name a file with one (--token-file), or leave out the host',
    });
  if (stream === undefined) return;
  checkKeys(stream, STREAM_OPTIONS, 'serve');
  checkOptions(stream, STREAM_OPTIONS);
}

class View implements LiveView {
  readonly #reader: LogReader | null;
  readonly #engine: Engine | null;
  readonly #options: ServeOptions;
  readonly #server: Server;
  readonly #guard: Guard;
  readonly #streams: Streams | null;
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
  #closing: Promise<void> | null = null;

  constructor(reader: LogReader | null, engine: Engine | null, options: ServeOptions) {
    const { host, requestsPerSecond, connectionsMax, requestMs, token = null } = withDefaults(options);
    this.#reader = reader;
    this.#engine = engine;
    this.#options = options;
    this.#guard = new Guard({ token, isLoopback: isLoopback(host), requestsPerSecond });
    this.#dropped.add({}, 0);
    for (const outcome of ['answered', 'refused', 'failed'] as const) this.#requests.add({ outcome }, 0);
    const rules = { ...defaultsOf<StreamRules>(STREAM_OPTIONS), ...given<Partial<StreamRules>>(options.stream ?? {}) };
    this.#streams = reader === null ? null : new Streams(reader, rules, () => this.#dropped.add({}));
    this.#server = createServer({
      maxHeaderSize: HEADER_BYTES_MAX,
      headersTimeout: requestMs,
      requestTimeout: requestMs,
      keepAliveTimeout: IDLE_MS,
      connectionsCheckingInterval: Math.min(1000, requestMs),
    });
    this.#server.maxConnections = connectionsMax;
    this.#server.on('request', (request, response) => void this.#answer(request, response));
    // Nobody is waited for who asks for something else first.
    this.#server.on('checkContinue', (request, response) => void this.#answer(request, response));
    this.#server.on('upgrade', (_, socket) => socket.destroy());
    this.#server.on('connect', (_, socket) => socket.destroy());
  }

  get url(): string {
    const { address, port, family } = this.#server.address() as AddressInfo;
    return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  listen(): Promise<this> {
    const { host, port } = withDefaults(this.#options);
    return new Promise((done, fail) => {
      this.#server.once('error', (cause) =>
        fail(
          new KvError('io', `the live view cannot listen on ${host}:${port}: ${cause.message}`, {
            values: { host, port },
            hint: 'name another port (0: any that is free)',
            cause,
          }),
        ),
      );
      this.#server.listen(port, host, () => {
        // Reading begins before anybody asks; what is wrong with the log is told to whoever does.
        this.#reader?.ask('metrics', undefined).catch(() => {});
        done(this);
      });
    });
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
    await this.#reader?.close();
    await closed;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // A client that goes away in the middle is no failure of ours.
    response.on('error', () => {});
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    try {
      this.#guard.check(request, changes(request.url ?? ''));
      const { route, parameters } = resolve(...addressOfRequest(request.url ?? ''));
      await this.#serve(route, parameters, request, response, gone.signal);
    } catch (error) {
      this.#refuse(error, request, response);
    }
  }

  async #serve(
    route: Route,
    parameters: object,
    request: IncomingMessage,
    response: ServerResponse,
    gone: AbortSignal,
  ): Promise<void> {
    if (route.source === 'stream' && request.method === 'GET') {
      const { after = request.headers['last-event-id'] ?? null, ...rest } = parameters as {
        after?: string;
        session?: string;
      };
      const headers = this.#headers(route.type, request);
      await this.#log.streams.serve({ ...rest, after: after as string | null }, response, headers);
      this.#requests.add({ outcome: 'answered' });
      return;
    }
    const text = await this.#text(route, parameters, gone);
    this.#send(response, request, 200, route.type, text);
  }

  async #text({ source, method }: Route, parameters: object, gone: AbortSignal): Promise<string> {
    if (source === 'stream') return '';
    if (source === 'document') return JSON.stringify(openApi());
    if (source === 'metrics') return this.#metrics(gone);
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

  /** Complete where the engine runs here; else what the log tells. */
  async #metrics(gone: AbortSignal): Promise<string> {
    if (this.#options.metrics === false)
      throw new KvError('not-found', 'metrics are not served here', { hint: 'start the server with --metrics' });
    const own =
      this.#engine === null ? await this.#log.reader.ask('metrics', undefined, gone) : await this.#engine.metrics();
    return own + this.#registry.text();
  }

  get #log(): { readonly reader: LogReader; readonly streams: Streams } {
    if (this.#reader === null || this.#streams === null)
      throw new KvError('not-found', 'the engine writes no log, so there is nothing to read here', {
        hint: 'createEngine with a stateDir',
      });
    return { reader: this.#reader, streams: this.#streams };
  }

  #headers(type: string, { headers: { origin } }: IncomingMessage): Record<string, string> {
    const { allowOrigin } = this.#options;
    const shared = allowOrigin === undefined ? {} : { vary: 'origin' };
    const allowed =
      allowOrigin === undefined || origin !== allowOrigin ? {} : { 'access-control-allow-origin': allowOrigin };
    return { ...HEADERS, 'content-type': type, ...shared, ...allowed };
  }

  #send(
    response: ServerResponse,
    request: IncomingMessage,
    status: number,
    type: string,
    text: string,
    more: Readonly<Record<string, string>> = {},
  ): void {
    this.#requests.add({ outcome: status < 400 ? 'answered' : status < 500 ? 'refused' : 'failed' });
    response.setTimeout(UNTAKEN_MS, () => response.destroy());
    const length = String(Buffer.byteLength(text));
    response.writeHead(status, { ...this.#headers(type, request), 'content-length': length, ...more });
    response.end(request.method === 'HEAD' ? undefined : text);
  }

  #refuse(thrown: unknown, request: IncomingMessage, response: ServerResponse): void {
    const error = thrown instanceof Refusal ? thrown.error : thrown;
    const status =
      thrown instanceof Refusal ? thrown.status : error instanceof KvError ? (STATUS[error.code] ?? 500) : 500;
    // Who went away gets no answer.
    if (response.headersSent || response.destroyed) {
      response.destroy();
      return;
    }
    // What is no KvError is a fault of ours, and its text may tell what nobody asked for.
    const { code, message, values, hint } =
      error instanceof KvError
        ? error
        : { code: null, message: 'a fault of ours: the answer could not be made', values: {}, hint: null };
    const body = JSON.stringify({ error: { code, message, values, hint: hint ?? null } });
    const headers = thrown instanceof Refusal ? thrown.headers : {};
    this.#send(response, request, status, 'application/json; charset=utf-8', `${body}\n`, headers);
  }
}

/** The path and the query of a request. Throws 'bad-argument'. */
function addressOfRequest(url: string): [path: string, search: URLSearchParams] {
  const match = /^(\/[^?#]*)(?:\?([^#]*))?$/.exec(url);
  if (match === null) throw new KvError('bad-argument', 'a request names a path');
  return [match[1]!, new URLSearchParams(match[2] ?? '')];
}
