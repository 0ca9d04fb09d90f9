/**
 * Calls of a Qdrant server through its official client: within a deadline, tried again where that can help, and with
 * one kind of error. Of the client only the typed calls are used, because what it does by itself does not suit a
 * library: it prints warnings, takes port 6333 for https://host:443, has one time limit for all calls, follows
 * redirects, to which it would send the key, and of a Retry-After keeps the first digit, which is why that is not
 * looked at.
 */
import { createRequire } from 'node:module';
import type { QdrantClient } from '@qdrant/js-client-rest';
import { KvError, show, unlessAborted } from '../native/index.ts';
import { Deadline, type Limits } from './vector.ts';

/** Where experience is shared with other machines. */
export interface QdrantOptions {
  /** http:// or https:// address, e.g. http://127.0.0.1:6333. Without a port 6333 is meant. */
  readonly url: string;
  /** Key of the server or a token of it. Default: none. */
  readonly apiKey?: string;
  /** What the names of the collections begin with. Default 'palimpsest'. */
  readonly collection?: string;
  /**
   * A secret, the same on all machines that are to learn from each other what is asked of beginnings that their texts
   * have in common; the server is not told. Default: each state folder has its own.
   */
  readonly prefixKey?: string;
}

/** What a call brings. */
export interface QdrantAnswer {
  readonly data: unknown;
}

type Connections = NonNullable<RequestInit['dispatcher']>;

/** The typed calls of the client. */
type Calls = ReturnType<QdrantClient['api']>;
type Init = { readonly signal: AbortSignal; readonly redirect: 'error'; readonly dispatcher: Connections };

/** How long a call may take where the caller does not say. */
const DEADLINE_DEFAULT_MS = 5000;
/** Times that a call is made in all; a second try half a second later meets a server that was restarted. Chosen. */
const ATTEMPTS = 5;
/** An answer; a listing of 4,096 sessions has a few MB. Chosen. */
const ANSWER_BYTES_MAX = 64 * 2 ** 20;
/** What an answer that is longer ends with. */
const TOO_LONG = 'UND_ERR_RES_EXCEEDED_MAX_SIZE';
/** A call that was aborted has ended by then, unless the abort was lost. */
const END_MS = 50;
const BACKOFF_MS = 50;
const BACKOFF_MAX_MS = 2000;
/** The universal query came with 1.10; a new major version may mean other things by the same names. */
const VERSION_LEAST = [1, 10] as const;

/** Characters of a secret that nobody guesses. */
const PREFIX_KEY_LEAST = 16;

/** Throws 'bad-config' for an address or a name that cannot be one. → the address without anything secret */
export function checkQdrantOptions({ url, apiKey, collection, prefixKey }: QdrantOptions): URL {
  const refuse = (what: string, cause?: unknown): never => {
    throw new KvError('bad-config', `the Qdrant server cannot be used: ${what}`, {
      hint: 'an address such as http://127.0.0.1:6333, the key apart from it',
      cause,
    });
  };
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (cause) {
    return refuse('its address is not a URL', cause);
  }
  if (!/^https?:$/.test(parsed.protocol)) refuse('its address must begin with http:// or https://');
  if (parsed.username !== '' || parsed.password !== '') refuse('its address must not contain a key or a password');
  if (parsed.search !== '' || parsed.hash !== '') refuse('its address must not have a ? or #');
  if (apiKey !== undefined && !/^[\x21-\x7e]{1,4096}$/.test(apiKey)) refuse('the key must be printable ASCII');
  if (collection !== undefined && !/^[A-Za-z0-9_-]{1,100}$/.test(collection))
    refuse('the name of a collection has letters, digits, - and _ only');
  if (prefixKey !== undefined && !(typeof prefixKey === 'string' && prefixKey.length >= PREFIX_KEY_LEAST))
    refuse(`the key of beginnings must have at least ${PREFIX_KEY_LEAST} characters`);
  return parsed;
}

/** The port that was written, even where it is the usual one of the scheme, which a URL leaves out. */
function portOf(url: string, { protocol, port }: URL): number {
  if (port !== '') return Number(port);
  const [usual] = protocol === 'https:' ? [443] : [80];
  return new RegExp(`^[^/]*//[^/]*:0*${usual}(?:/|$)`).test(url) ? usual! : 6333;
}

/**
 * Connections whose answers end at a size: the client reads one without end for ever, and no timer that is to stop it
 * has its turn meanwhile. They are made with the client's own HTTP library, which is not a dependency of this package.
 */
function boundedConnections(): Connections {
  const ofClient = createRequire(createRequire(import.meta.url).resolve('@qdrant/js-client-rest'));
  const { Agent } = ofClient('undici') as { Agent: new (options: object) => Connections };
  // Calls have limits of their own for their time.
  return new Agent({ maxResponseSize: ANSWER_BYTES_MAX, bodyTimeout: 0, headersTimeout: 0, connections: 25 });
}

export class QdrantServer {
  /** For people; nothing secret. */
  readonly url: string;
  readonly #calls: Calls;
  #connections: Connections;

  private constructor(url: string, calls: Calls, connections: Connections) {
    this.url = url;
    this.#calls = calls;
    this.#connections = connections;
  }

  /** Makes no call yet. Throws 'bad-config', 'missing-dependency'. */
  static async open(options: QdrantOptions): Promise<QdrantServer> {
    const parsed = checkQdrantOptions(options);
    const { apiKey } = options;
    let library: typeof import('@qdrant/js-client-rest');
    try {
      library = await import('@qdrant/js-client-rest');
    } catch (cause) {
      throw new KvError('missing-dependency', 'a Qdrant server needs the package @qdrant/js-client-rest', {
        hint: 'npm install @qdrant/js-client-rest@1.18.0',
        cause,
      });
    }
    const prefix = parsed.pathname.replace(/\/+$/, '');
    const client = new library.QdrantClient({
      host: parsed.hostname,
      port: portOf(options.url, parsed),
      https: parsed.protocol === 'https:',
      ...(prefix === '' ? {} : { prefix }),
      // The server sends a compressed answer in two parts, and the second one waits for the client's system to confirm
      // the first, which Linux puts off for 40 ms: every fourth search took as long (measured).
      headers: { 'accept-encoding': 'identity', ...(apiKey === undefined ? {} : { 'api-key': apiKey }) },
      timeout: Number.POSITIVE_INFINITY,
      checkCompatibility: false,
    });
    return new QdrantServer(`${parsed.origin}${prefix}`, client.api(), boundedConnections());
  }

  /** → version of the server. Throws 'unsupported' for one that this client cannot speak to, and what calls throw. */
  async version(limits?: Limits): Promise<string> {
    const { data } = await this.call(limits, (calls, init) => calls.root({}, init));
    const version = show(data.version);
    const [major, minor] = version.split('.').map(Number);
    if (major === VERSION_LEAST[0] && minor! >= VERSION_LEAST[1]) return version;
    throw new KvError('unsupported', `Qdrant ${version} at ${this.url} is not a version that is spoken here`, {
      values: { version, url: this.url },
      hint: `use ${VERSION_LEAST.join('.')} or a later ${VERSION_LEAST[0]}.x`,
    });
  }

  /**
   * Makes a call, and makes it again after growing random pauses when the server cannot be reached or is too busy;
   * calls say the same when made twice. Throws 'aborted', 'network' (not reached), 'bad-config' (key refused),
   * 'not-found', 'database' (refused otherwise, or no answer of a Qdrant server).
   */
  async call<R extends QdrantAnswer>(
    limits: Limits | undefined,
    make: (calls: Calls, init: Init) => Promise<R>,
  ): Promise<R> {
    const deadline = new Deadline({ deadlineMs: DEADLINE_DEFAULT_MS, ...limits });
    const stop = new AbortController();
    const abort = (): void => stop.abort();
    // On Node 20 what AbortSignal.any makes of AbortSignal.timeout is lost when memory is collected.
    const timer = setTimeout(abort, Math.max(1, Math.ceil(deadline.leftMs)));
    limits?.signal?.addEventListener('abort', abort, { once: true });
    try {
      return await this.#tries(deadline, (init) => make(this.#calls, init), stop.signal);
    } finally {
      clearTimeout(timer);
      limits?.signal?.removeEventListener('abort', abort);
    }
  }

  async #tries<R extends QdrantAnswer>(
    deadline: Deadline,
    make: (init: Init) => Promise<R>,
    signal: AbortSignal,
  ): Promise<R> {
    for (let attempt = 1; ; attempt++) {
      let failed: unknown;
      try {
        const answer = await this.#try(make, signal);
        if (typeof answer.data !== 'object' || answer.data === null) throw this.#notItself();
        return answer;
      } catch (error) {
        failed = error;
      }
      if (failed instanceof KvError) throw failed;
      deadline.check();
      const trouble = this.#troubleOf(failed);
      const pauseMs = Math.random() * Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** attempt);
      if (!mayPass(failed) || attempt === ATTEMPTS || deadline.leftMs <= pauseMs) throw trouble;
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
      deadline.check();
    }
  }

  /**
   * One call. Node's fetch forgets its signal while it reads the body of an answer if memory is collected meanwhile; a
   * call that does not end when it should is let be, and its connections are closed.
   */
  async #try<R>(make: (init: Init) => Promise<R>, signal: AbortSignal): Promise<R> {
    const connections = this.#connections;
    const answer = make({ signal, redirect: 'error', dispatcher: connections });
    try {
      return await unlessAborted(answer, signal, () => new Error('it did not answer in time'));
    } catch (error) {
      if (signal.aborted && !(await endsWithin(END_MS, answer))) this.#renew(connections);
      throw error;
    }
  }

  #renew(old: Connections): void {
    if (this.#connections === old) this.#connections = boundedConnections();
    void old.destroy();
  }

  #notItself(): KvError {
    return new KvError('database', `Qdrant at ${this.url} answers what is no JSON object`, {
      values: { url: this.url },
      hint: 'is it a Qdrant server, and is the address right?',
    });
  }

  #troubleOf(error: unknown): KvError {
    const status = statusOf(error);
    const why = reasonOf(error).slice(0, 300);
    const values = { url: this.url, status };
    const at = `Qdrant at ${this.url}`;
    if (isTooLong(error))
      return new KvError('network', `${at} sends more than ${ANSWER_BYTES_MAX} bytes`, { values, cause: error });
    if (status === null)
      return new KvError('network', `${at} was not reached: ${why}`, {
        values,
        hint: 'is it running, and is the address right?',
        cause: error,
      });
    if (status === 401 || status === 403)
      return new KvError('bad-config', `${at} refuses the key`, {
        values,
        hint: 'set PALIMPSEST_QDRANT_API_KEY to a key that may write',
      });
    return new KvError(status === 404 ? 'not-found' : 'database', `${at} refuses (${status}): ${why}`, {
      values,
      cause: error,
    });
  }
}

/** True if it ends, in whatever way. */
const endsWithin = (ms: number, work: Promise<unknown>): Promise<boolean> =>
  new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), ms);
    const ended = (): void => {
      clearTimeout(timer);
      resolve(true);
    };
    work.then(ended, ended);
  });

const isTooLong = (error: unknown): boolean => (error as { cause?: { code?: unknown } }).cause?.code === TOO_LONG;

/** Status of the answer; null: there was none. */
function statusOf(error: unknown): number | null {
  const { status } = error as { status?: unknown };
  if (typeof status === 'number') return status;
  return (error as Error)?.name === 'QdrantClientResourceExhaustedError' ? 429 : null;
}

/** What the server says about it, or else the connection. */
function reasonOf(error: unknown): string {
  const said = (error as { data?: { status?: { error?: unknown } } }).data?.status?.error;
  if (typeof said === 'string') return said;
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${(cause as NodeJS.ErrnoException).code ?? cause.message}` : message;
}

/**
 * True if the same call may succeed a little later: no answer, too many calls, a server that is starting or changing
 * its leader.
 */
function mayPass(error: unknown): boolean {
  const status = statusOf(error);
  if (isTooLong(error)) return false;
  return status === null || status === 429 || (status >= 500 && status !== 507);
}
