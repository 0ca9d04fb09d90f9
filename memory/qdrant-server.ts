/**
 * Calls of a Qdrant server over HTTP: within a deadline, with an answer of bounded size, tried again where that can
 * help, and with one kind of error. The official client is not used: it reads an answer without end for ever, which
 * starves the timers that would stop it, prints warnings, takes port 6333 for https://host:443, and follows redirects,
 * to which it would send the key.
 */
import { gathered, jsonOf, KvError, show } from '../native/index.ts';
import { Deadline, type Limits } from './vector.ts';

/** Where experience is shared with other machines. */
export interface QdrantOptions {
  /** http:// or https:// address, e.g. http://127.0.0.1:6333. Without a port 6333 is meant. */
  readonly url: string;
  /** Key of the server or a token of it. Default: none. */
  readonly apiKey?: string;
  /** What the names of the collections begin with. Default 'palimpsest'. */
  readonly collection?: string;
}

/** What is asked: the parts of a path are escaped when it is sent. */
export interface QdrantCall {
  readonly method: 'GET' | 'POST' | 'PUT';
  readonly path: readonly string[];
  /** Answer only when it is carried out, or at once. Default: as the server does. */
  readonly wait?: boolean;
  readonly body?: object;
}

/** How long a call may take where the caller does not say. */
const DEADLINE_DEFAULT_MS = 5000;
/** Times that a call is made in all; a second try half a second later meets a server that was restarted. Chosen. */
const ATTEMPTS = 5;
/** An answer; a listing of 4,096 sessions has a few MB. Chosen. */
const ANSWER_BYTES_MAX = 64 * 2 ** 20;
const BACKOFF_MS = 50;
const BACKOFF_MAX_MS = 2000;
/** The universal query came with 1.10; a new major version may mean other things by the same names. */
const VERSION_LEAST = [1, 10] as const;

/** Throws 'bad-config' for an address or a name that cannot be one. → the address without anything secret */
export function checkQdrantOptions({ url, apiKey, collection }: QdrantOptions): URL {
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
  return parsed;
}

/** The port that was written, even where it is the usual one of the scheme, which a URL leaves out. */
function portOf(url: string, { protocol, port }: URL): number {
  if (port !== '') return Number(port);
  const [usual] = protocol === 'https:' ? [443] : [80];
  return new RegExp(`^[^/]*//[^/]*:0*${usual}(?:/|$)`).test(url) ? usual! : 6333;
}

/** An answer that is a refusal. */
class Refusal extends Error {
  readonly status: number;

  constructor(status: number, said: string) {
    super(said);
    this.status = status;
  }
}

export class QdrantServer {
  /** For people; nothing secret. */
  readonly url: string;
  readonly #base: string;
  readonly #headers: Readonly<Record<string, string>>;

  /** Makes no call yet. Throws 'bad-config'. */
  constructor(options: QdrantOptions) {
    const parsed = checkQdrantOptions(options);
    const { apiKey } = options;
    const prefix = parsed.pathname.replace(/\/+$/, '');
    this.url = `${parsed.origin}${prefix}`;
    this.#base = `${parsed.protocol}//${parsed.hostname}:${portOf(options.url, parsed)}${prefix}`;
    // The server sends a compressed answer in two parts, and the second one waits for the client's system to confirm
    // the first, which Linux puts off for 40 ms: every fourth search took as long (measured).
    this.#headers = {
      accept: 'application/json',
      'accept-encoding': 'identity',
      ...(apiKey === undefined ? {} : { 'api-key': apiKey }),
    };
  }

  /** → version of the server. Throws 'unsupported' for one that this client cannot speak to, and what calls throw. */
  async version(limits?: Limits): Promise<string> {
    const { version: said } = await this.#answer<{ version?: unknown }>(limits, { method: 'GET', path: [] });
    const version = show(said);
    const [major, minor] = version.split('.').map(Number);
    if (major === VERSION_LEAST[0] && minor! >= VERSION_LEAST[1]) return version;
    throw new KvError('unsupported', `Qdrant ${version} at ${this.url} is not a version that is spoken here`, {
      values: { version, url: this.url },
      hint: `use ${VERSION_LEAST.join('.')} or a later ${VERSION_LEAST[0]}.x`,
    });
  }

  /**
   * Makes a call, and makes it again after growing random pauses when the server cannot be reached or is too busy;
   * calls say the same when made twice. → the `result` of the answer, which nobody has checked. Throws 'aborted',
   * 'network' (not reached), 'bad-config' (key refused), 'not-found', 'database' (refused otherwise, or no answer of a
   * Qdrant server).
   */
  async call<R extends object>(limits: Limits | undefined, call: QdrantCall): Promise<Partial<R>> {
    const { result } = await this.#answer<{ result?: Partial<R> | null }>(limits, call);
    return result ?? {};
  }

  async #answer<R extends object>(limits: Limits | undefined, call: QdrantCall): Promise<R> {
    const deadline = new Deadline({ deadlineMs: DEADLINE_DEFAULT_MS, ...limits });
    const ends = [AbortSignal.timeout(Math.max(1, Math.ceil(deadline.leftMs)))];
    if (limits?.signal !== undefined) ends.push(limits.signal);
    const signal = AbortSignal.any(ends);
    for (let attempt = 1; ; attempt++) {
      let failed: unknown;
      try {
        return await this.#ask<R>(call, signal);
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

  /** One request. Throws a Refusal, KvError 'database' for an answer that is not Qdrant's, and what fetch throws. */
  async #ask<R extends object>({ method, path, wait, body }: QdrantCall, limit: AbortSignal): Promise<R> {
    // Whatever ends the reading of an answer ends its connection.
    const own = new AbortController();
    const signal = AbortSignal.any([limit, own.signal]);
    const where = `${this.#base}/${path.map(encodeURIComponent).join('/')}${wait === undefined ? '' : `?wait=${wait}`}`;
    const answer = await fetch(where, {
      method,
      headers: body === undefined ? this.#headers : { ...this.#headers, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal,
      redirect: 'error',
    });
    const { body: chunks } = answer;
    const bytes =
      chunks === null
        ? []
        : await gathered(chunks, ANSWER_BYTES_MAX, `Qdrant at ${this.url}`).finally(() => own.abort());
    const said = jsonOf(Buffer.from(bytes).toString());
    if (!answer.ok) throw new Refusal(answer.status, reasonIn(said) ?? answer.statusText);
    if (typeof said === 'object' && said !== null) return said as R;
    throw new KvError('database', `Qdrant at ${this.url} answers what is no JSON object`, {
      values: { url: this.url, type: answer.headers.get('content-type')?.slice(0, 100) },
      hint: 'is it a Qdrant server, and is the address right?',
    });
  }

  #troubleOf(error: unknown): KvError {
    const status = statusOf(error);
    const why = reasonOf(error).slice(0, 300);
    const values = { url: this.url, status };
    const at = `Qdrant at ${this.url}`;
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

/** Status of the answer; null: there was none. */
const statusOf = (error: unknown): number | null => (error instanceof Refusal ? error.status : null);

/** What a refusal says of itself; null: nothing that is Qdrant's. */
function reasonIn(said: unknown): string | null {
  const reason = (said as { status?: { error?: unknown } | null } | null | undefined)?.status?.error;
  return typeof reason === 'string' ? reason : null;
}

/** What the server says about it, or else the connection. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${(cause as NodeJS.ErrnoException).code ?? cause.message}` : message;
}

/**
 * True if the same call may succeed a little later: no answer, too many calls, a server that is starting or changing
 * its leader.
 */
function mayPass(error: unknown): boolean {
  const status = statusOf(error);
  return status === null || status === 429 || (status >= 500 && status !== 507);
}
