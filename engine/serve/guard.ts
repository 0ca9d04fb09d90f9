/**
 * Who may ask, and how much, and who may change something: that takes a token, and a way that does not leave this
 * machine. Every request passes here before anything else looks at it: method, size, rate, Host and
 * token. The limits on connections and time are those of node:http and are set in server.ts.
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { KvError, readRegular } from '../../native/index.ts';
import { Refusal } from '../openai/failure.ts';
import { type ApiKey, Keys } from './keys.ts';

export const URL_CHARS_MAX = 4096;
const TOKEN_BYTES_MAX = 4096;
/** 128 bits in base64 have 22 characters. */
const TOKEN_CHARS_MIN = 16;
/** Addresses whose rate is remembered; the one that asked longest ago is forgotten first. */
const ADDRESSES_MAX = 10_000;
/** Requests that may come at once after a pause, in seconds of the rate. */
const BURST_SECONDS = 2;

/** What somebody is told who takes this for a server that answers prompts. */
export const SHOWS_ONLY = 'this server shows a log and generates nothing: clients of OpenAI servers are not served';

/**
 * How an address is asked: it shows something, or what may also be removed, changes something, answers what a body
 * asks, tells everybody that the server is there, or there is nothing under it.
 */
export type Way = 'shows' | 'removes' | 'changes' | 'answers' | 'greets' | 'nowhere';

/** What is said of a path that is none. `answers`: true if prompts are answered here. */
export const nothingThere = (answers: boolean): KvError =>
  new KvError('not-found', 'there is nothing under this path', {
    hint: `/openapi.json lists what there is${answers ? '' : `; ${SHOWS_ONLY}`}`,
  });

const METHODS: Readonly<Record<Way, readonly string[]>> = {
  shows: ['GET', 'HEAD'],
  greets: ['GET', 'HEAD'],
  nowhere: ['GET', 'HEAD'],
  removes: ['GET', 'HEAD', 'DELETE'],
  changes: ['POST'],
  answers: ['POST'],
};

/** What a guard lets through. */
export interface GuardRules {
  /** None: whoever reaches the port may ask. */
  readonly keys: readonly ApiKey[];
  /**
   * True if the server listens on this machine alone. Then a Host header that names another is what a page does that
   * had its name point here.
   */
  readonly isLoopback: boolean;
  readonly requestsPerSecond: number;
  /** True if prompts are answered here. */
  readonly answers: boolean;
  /** The one origin whose pages may ask; undefined: none but this server's own. */
  readonly allowOrigin: string | undefined;
}

const hasBody = (headers: IncomingHttpHeaders): boolean =>
  headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) !== 0;

export const isLoopback = (host: string): boolean =>
  host === 'localhost' || host === '::1' || /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host);

/** The token in a file, without the white space around it. Throws 'bad-config', 'not-found', 'io'. */
export function readToken(path: string): string {
  const token = readRegular(path, { bytesMax: TOKEN_BYTES_MAX, code: 'bad-config' }).toString('utf8').trim();
  checkToken(token, path);
  return token;
}

/** Throws 'bad-config' for a token that could be guessed or cannot stand in a header. */
export function checkToken(token: unknown, where: string): void {
  if (typeof token === 'string' && token.length >= TOKEN_CHARS_MIN && /^[\w.~+/=-]+$/.test(token)) return;
  throw new KvError(
    'bad-config',
    `${where}: a token has ${TOKEN_CHARS_MIN} characters or more of A–Z a–z 0–9 - . _ ~ + / =`,
    {
      hint: 'openssl rand -base64 24 makes one',
    },
  );
}

/** What a key is told that asks about others. */
export const ownAlone = (headers: Readonly<Record<string, string>> = {}): Refusal =>
  new Refusal(
    403,
    new KvError('not-allowed', 'this key is told of its own answers alone', { hint: 'ask with a key that sees all' }),
    headers,
  );

export class Guard {
  readonly #rules: GuardRules;
  readonly #keys: Keys;
  readonly #rates = new Map<string, { left: number; atMs: number }>();

  constructor(rules: GuardRules) {
    this.#rules = rules;
    this.#keys = new Keys(rules.keys);
  }

  /**
   * Who asks; null: whoever reaches the port. Throws a Refusal. way: how the address is asked; isOwn: it tells whoever
   * asks of themselves alone.
   */
  check({ method = '', url = '', headers, socket }: IncomingMessage, way: Way, isOwn = false): ApiKey | null {
    const remote = socket.remoteAddress ?? '';
    this.#spend(addressOf(remote));
    // What browsers ask before they ask carries no token.
    if (method === 'OPTIONS' && headers.origin !== undefined && headers.origin === this.#rules.allowOrigin) {
      this.#checkHost(headers.host ?? '');
      return null;
    }
    const allowed = METHODS[way];
    if (!allowed.includes(method)) throw this.#notAsked(way, allowed, hasBody(headers));
    if (url.length > URL_CHARS_MAX)
      throw new Refusal(414, new KvError('bad-argument', `an address has at most ${URL_CHARS_MAX} characters`));
    if (way !== 'answers' && hasBody(headers))
      throw new Refusal(413, new KvError('bad-argument', 'a request has no body here'), { connection: 'close' });
    this.#checkHost(headers.host ?? '');
    if (way === 'greets') return null;
    const key = this.#checkKey(headers, isOwn);
    if (way === 'changes') this.#checkChange(remote);
    if (way === 'answers' || way === 'removes') this.#checkOrigin(headers.origin, headers.host);
    return key;
  }

  #notAsked(way: Way, allowed: readonly string[], isFollowed: boolean): Refusal {
    // What a body asks for is not read, so nothing may follow it.
    const close: Readonly<Record<string, string>> = isFollowed ? { connection: 'close' } : {};
    if (way === 'nowhere') return new Refusal(404, nothingThere(this.#rules.answers), close);
    const error = new KvError(
      'unsupported',
      `only ${allowed.join(' and ')} ${allowed.length > 1 ? 'are' : 'is'} served`,
      { hint: this.#rules.answers ? 'GET /openapi.json lists what there is' : SHOWS_ONLY },
    );
    return new Refusal(405, error, { allow: allowed.join(', '), ...close });
  }

  /**
   * A page of anybody's can have a browser on this machine ask for answers, which cost time and memory even where it
   * may not read them.
   */
  #checkOrigin(origin: string | undefined, host = ''): void {
    const { allowOrigin } = this.#rules;
    if (origin === undefined || origin === allowOrigin || /^https?:\/\/(.*)$/.exec(origin)?.[1] === host) return;
    throw new Refusal(
      403,
      new KvError('not-allowed', 'pages of this origin are not answered', {
        values: { origin: origin.slice(0, 200) },
        hint: 'serve it from this address, or name its origin with --allow-origin',
      }),
      { connection: 'close' },
    );
  }

  /**
   * A page of anybody's can have a browser on this machine send a POST, and whoever runs a program here can send one:
   * only the token tells them from those who may.
   */
  #checkChange(remote: string): void {
    if (this.#keys.areNone)
      throw new Refusal(
        403,
        new KvError('not-allowed', 'a server without a token changes nothing', { hint: 'serve(engine, { token })' }),
      );
    if (!this.#rules.isLoopback || !isLoopback(remote.replace(/^::ffff:/, '')))
      throw new Refusal(
        403,
        new KvError('not-allowed', 'a server that other machines may reach changes nothing', {
          hint: 'serve on 127.0.0.1',
        }),
      );
  }

  #checkHost(host: string): void {
    if (!this.#rules.isLoopback) return;
    const name = /^(?:\[([0-9a-fA-F:]+)\]|([^:]+))(?::\d{1,5})?$/.exec(host);
    if (name !== null && isLoopback((name[1] ?? name[2])!.toLowerCase())) return;
    throw new Refusal(403, new KvError('not-allowed', 'this server answers to localhost, 127.0.0.1 and [::1] only'));
  }

  #checkKey(headers: IncomingHttpHeaders, isOwn: boolean): ApiKey | null {
    if (this.#keys.areNone) return null;
    const close: Readonly<Record<string, string>> = hasBody(headers) ? { connection: 'close' } : {};
    const key = this.#keys.find(headers);
    if (key === null)
      throw new Refusal(
        401,
        new KvError('not-allowed', 'a token is needed', { hint: 'send Authorization: Bearer TOKEN' }),
        { 'www-authenticate': 'Bearer', ...close },
      );
    if (key.requestsPerSecond !== undefined) this.#spend(`key ${key.name}`, key.requestsPerSecond, close);
    if (key.sees === 'all' || isOwn) return key;
    throw ownAlone(close);
  }

  /** Takes one request from what an address or a key may ask now. */
  #spend(
    address: string,
    requestsPerSecond: number = this.#rules.requestsPerSecond,
    more: Readonly<Record<string, string>> = {},
  ): void {
    const most = Math.max(1, requestsPerSecond * BURST_SECONDS);
    const nowMs = performance.now();
    const { left, atMs } = this.#rates.get(address) ?? { left: most, atMs: nowMs };
    const now = Math.min(most, left + ((nowMs - atMs) / 1000) * requestsPerSecond);
    // Deleted first, so that the map stays in the order of the latest requests.
    this.#rates.delete(address);
    if (this.#rates.size >= ADDRESSES_MAX) this.#rates.delete(this.#rates.keys().next().value!);
    this.#rates.set(address, { left: now < 1 ? now : now - 1, atMs: nowMs });
    if (now < 1)
      throw new Refusal(
        429,
        new KvError('busy', 'too many requests from this address or key', { hint: 'ask more slowly' }),
        {
          'retry-after': String(Math.ceil((1 - now) / requestsPerSecond)),
          ...more,
        },
      );
  }
}

/** Whose rate an address counts for: of IPv6 the network of 64 bits, all of which one machine may have. */
export function addressOf(remote: string): string {
  if (!remote.includes(':') || remote.includes('.')) return remote.replace(/^::ffff:/, '');
  const [head = '', tail] = remote.split('::');
  const front = head === '' ? [] : head.split(':');
  const back = tail === undefined || tail === '' ? [] : tail.split(':');
  const zeros = tail === undefined ? 0 : 8 - front.length - back.length;
  return [...front, ...Array<string>(Math.max(0, zeros)).fill('0'), ...back].slice(0, 4).join(':');
}
