/**
 * Requests to a hub. A server that breaks off, is silent for too long or says that it cannot just now is asked again a
 * few times; any other refusal is a KvError at once. The token goes to the endpoint alone: not to where a download is
 * redirected, nor to a further page on another host.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { gathered, KvError, parseJson } from '../../../native/index.ts';
import type { HubSettings } from './settings.ts';

/** Attempts in a row that brought nothing. */
const ATTEMPTS = 5;
/** The longest wait that a server may ask for. */
const WAIT_MS_MAX = 60_000;
/** An answer of the interface; the listing of a repository with 10,000 files has 3 MB. */
export const ANSWER_BYTES_MAX = 16 * 2 ** 20;
/** What is read of a refusal, to say why. */
const REFUSAL_BYTES = 4096;
/** A server that sends less than this in the time that it may be silent is as good as silent. */
const LEAST_BYTES = 1024;

/** What asking again may mend. */
export class Interruption extends Error {
  readonly values: Readonly<Record<string, unknown>>;
  readonly waitMs: number;

  constructor(what: string, values: Readonly<Record<string, unknown>>, waitMs = 0, cause?: unknown) {
    super(what, { cause });
    this.values = values;
    this.waitMs = waitMs;
  }
}

export interface Opened {
  readonly response: Response;
  /**
   * The body as it comes. Ends with an Interruption when the server breaks off or is silent. Leaving the loop ends the
   * connection.
   */
  readonly body: AsyncIterable<Uint8Array>;
  /** Ends the connection of a body that is not read. */
  close(): void;
}

export class HubClient {
  readonly settings: HubSettings;
  readonly signal: AbortSignal | undefined;

  constructor(settings: HubSettings, signal?: AbortSignal) {
    this.settings = settings;
    this.signal = signal;
  }

  /**
   * Asks again after an Interruption, as long as `progress()` has grown by a KiB or attempts are left. Throws
   * 'network', and what `work` throws.
   */
  async patiently<T>(what: string, work: () => Promise<T>, progress: () => number = () => 0): Promise<T> {
    for (let failed = 0, reached = progress(); ; ) {
      this.checkAborted();
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof Interruption)) throw error;
        const now = progress();
        failed = now - reached >= LEAST_BYTES ? 1 : failed + 1;
        if (failed === 1) reached = now;
        if (failed >= ATTEMPTS) throw this.#gaveUp(what, error, failed);
        const waitMs = Math.max(this.settings.pauseMs * 2 ** (failed - 1), error.waitMs);
        await pause(Math.min(waitMs, WAIT_MS_MAX), undefined, { signal: this.signal }).catch(() => {});
      }
    }
  }

  /**
   * One request. Throws an Interruption, or KvError 'not-allowed', 'not-found', 'network', 'aborted'. 206 and 416 are
   * answers.
   */
  async open(url: string, init: RequestInit = {}): Promise<Opened> {
    this.checkOnline(url);
    const silence = new Silence(this.settings.stallMs, this.signal);
    let response: Response;
    try {
      response = await fetch(url, { ...init, headers: this.#headers(url, init.headers), signal: silence.signal });
    } catch (cause) {
      silence.close();
      throw this.#broken(url, silence, cause);
    }
    const body = this.#chunks(url, response, silence);
    if (response.ok || response.status === 416) return { response, body, close: () => silence.leave() };
    throw await this.#refusal(url, response, body);
  }

  /**
   * A whole answer of the interface, for the library: of bounded size, and JSON that parses here before it does there.
   */
  readonly answer = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const url = String(input instanceof Request ? input.url : input);
    if (new URL(url).origin !== new URL(this.settings.endpoint).origin)
      throw new KvError('network', `${this.settings.endpoint} sends on to another server for its answer`, {
        values: { endpoint: this.settings.endpoint, url: url.slice(0, 200) },
      });
    return this.patiently(url, async () => {
      const { response, body } = await this.open(url, init);
      const bytes = await gathered(body, ANSWER_BYTES_MAX, url);
      return checkedAnswer(bytes, `the answer of ${url}`, response.headers.get('link') ?? '');
    });
  };

  checkAborted(): void {
    if (this.signal?.aborted === true) throw new KvError('aborted', 'the download was aborted');
  }

  /** Every request passes here. */
  checkOnline(what: string): void {
    if (!this.settings.offline) return;
    throw new KvError('network', `${what} may not be asked for: this is offline mode`, {
      values: { what },
      hint: 'unset HF_HUB_OFFLINE, and leave out --offline or the option offline',
    });
  }

  #headers(url: string, given: RequestInit['headers']): Headers {
    const headers = new Headers(given ?? {});
    const { token, endpoint } = this.settings;
    if (token !== null && new URL(url).origin === new URL(endpoint).origin)
      headers.set('authorization', `Bearer ${token}`);
    headers.set('user-agent', 'palimpsest');
    // Ranges are of the bytes as they are, not of a compressed form.
    headers.set('accept-encoding', 'identity');
    return headers;
  }

  async *#chunks(url: string, response: Response, silence: Silence): AsyncGenerator<Uint8Array, void> {
    try {
      for await (const chunk of response.body ?? []) {
        // What the caller does with it is no silence of the server.
        silence.pause();
        yield chunk as Uint8Array;
        silence.begin((chunk as Uint8Array).length);
      }
    } catch (cause) {
      throw this.#broken(url, silence, cause);
    } finally {
      // A body that was read to its end has nothing left to abort.
      silence.leave();
    }
  }

  #broken(url: string, silence: Silence, cause: unknown): Error {
    if (cause instanceof KvError || cause instanceof Interruption) return cause;
    if (this.signal?.aborted === true) return new KvError('aborted', 'the download was aborted', { cause });
    if (silence.signal.aborted)
      return new Interruption(
        silence.bytes === 0
          ? `the server sent nothing for ${this.settings.stallMs / 1000} s`
          : `the server sent no more than ${silence.bytes} bytes in ${this.settings.stallMs / 1000} s`,
        { url, waitedSeconds: this.settings.stallMs / 1000 },
        0,
        cause,
      );
    const reason = (cause as Error).cause instanceof Error ? ((cause as Error).cause as Error) : (cause as Error);
    return new Interruption(
      `the connection broke off (${reason.message || String((reason as { code?: string }).code)})`,
      { url },
      0,
      cause,
    );
  }

  async #refusal(url: string, response: Response, body: AsyncIterable<Uint8Array>): Promise<Error> {
    const { status, headers } = response;
    const said = await gathered(body, REFUSAL_BYTES, url).catch(() => new Uint8Array(0));
    const values = {
      url,
      status,
      said: headers.get('x-error-message') ?? new TextDecoder().decode(said).slice(0, 200),
    };
    if (status === 408 || status === 429 || status >= 500)
      return new Interruption(
        `the server answered ${status}`,
        values,
        1000 * (Number(headers.get('retry-after')) || 0),
      );
    if (status === 401 || status === 403) return this.#notAllowed(status, values);
    const code = status === 404 || status === 410 ? 'not-found' : 'network';
    return new KvError(code, `${url} answered ${status}`, { values });
  }

  #notAllowed(status: number, values: Readonly<Record<string, unknown>>): KvError {
    const { token, tokenFrom, endpoint } = this.settings;
    const hints: Record<string, string> = {
      '401 no':
        'it is private, wants its terms accepted, or the name is wrong: set HF_TOKEN to a token that may read it',
      '401 yes': `the token of ${tokenFrom} is not valid here, or the name is wrong`,
      '403 no': `accept its terms at ${endpoint} and set HF_TOKEN to a token of that account`,
      '403 yes': `the token of ${tokenFrom} may not read it: accept its terms at ${endpoint} with that account`,
    };
    const hint = hints[`${status} ${token === null ? 'no' : 'yes'}`];
    return new KvError(
      'not-allowed',
      `${endpoint} answered ${status}: it does not give this to ${token === null ? 'everybody' : 'this token'}`,
      { values, hint },
    );
  }

  #gaveUp(what: string, { message, values, cause }: Interruption, attempts: number): KvError {
    return new KvError('network', `${what}: ${message}, ${attempts} times in a row`, {
      values: { ...values, attempts },
      hint: 'what was downloaded is kept: the same command goes on from there. HF_ENDPOINT names another server, HF_HUB_DOWNLOAD_TIMEOUT how many seconds one may be silent',
      cause,
    });
  }
}

/** Aborts a request whose server has been silent, or nearly so, for too long, or whose caller aborts. */
class Silence {
  readonly #controller = new AbortController();
  readonly #caller: AbortSignal | undefined;
  readonly #stallMs: number;
  readonly #abort = (): void => this.#controller.abort();
  #timer: NodeJS.Timeout | undefined;
  #leftMs: number;
  #beganMs = 0;
  #bytes = 0;

  constructor(stallMs: number, caller: AbortSignal | undefined) {
    this.#stallMs = stallMs;
    this.#leftMs = stallMs;
    this.#caller = caller;
    caller?.addEventListener('abort', this.#abort, { once: true });
    this.begin(0);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** What has come in the time that is counted. */
  get bytes(): number {
    return this.#bytes;
  }

  /** The time is counted on, or, once enough has come, anew. */
  begin(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes >= LEAST_BYTES) [this.#bytes, this.#leftMs] = [0, this.#stallMs];
    this.#beganMs = performance.now();
    this.#timer = setTimeout(this.#abort, this.#leftMs);
  }

  pause(): void {
    clearTimeout(this.#timer);
    this.#leftMs -= performance.now() - this.#beganMs;
  }

  /** Ends the request as well. */
  leave(): void {
    this.close();
    this.#abort();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#caller?.removeEventListener('abort', this.#abort);
  }
}

/**
 * An answer for the library, which parses it once more. Throws KvError 'network' for what is no JSON, or some that no
 * hub would send.
 */
export function checkedAnswer(bytes: Uint8Array<ArrayBuffer>, what: string, link = ''): Response {
  parseJson(bytes, { what, code: 'network', hint: 'is HF_ENDPOINT a hub?' });
  return new Response(bytes, { headers: { 'content-type': 'application/json', link } });
}
