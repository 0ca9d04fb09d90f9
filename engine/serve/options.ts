/** What a live view is opened with. */
import { above, anyText, type Rows, seenLater, textLike, truth, whole } from '../../native/index.ts';
import type { AnswersOptions } from '../openai/options.ts';
import type { ApiKey } from './keys.ts';
import type { StreamRules } from './stream.ts';

/** Options of serve. Each has a default. */
export interface ServeOptions {
  /** Address to listen on. Default '127.0.0.1'. One that other machines can reach needs a token. */
  readonly host?: string;
  /** Port to listen on; 0: any that is free. Default 9470. */
  readonly port?: number;
  /** True if /metrics is served. Default true. */
  readonly metrics?: boolean;
  /**
   * Whoever asks must send it (`Authorization: Bearer …`); 16 characters or more. Default: none, which is possible on
   * loopback alone.
   */
  readonly token?: string;
  /**
   * Who else may ask: keys by their SHA-256, as `--keys` reads them of a file. Each shares no cache with another, and
   * is told of its own answers alone unless it `sees` all. Default: none.
   */
  readonly keys?: readonly ApiKey[];
  /** The one origin whose pages may read answers, such as 'https://dashboard.example'. Default: none. */
  readonly allowOrigin?: string;
  /** Requests of one address, in the long run; twice as many at once. Default 50. */
  readonly requestsPerSecond?: number;
  /** Connections at one time; more are closed at once. Default 64, and `requestsMax` more with `answers`. */
  readonly connectionsMax?: number;
  /** Milliseconds in which a request must be there. Default 5000. */
  readonly requestMs?: number;
  /**
   * Beside an engine: prompts are answered as OpenAI servers answer them, with these options ({}: their defaults).
   * Default: nothing is answered, and what is served only shows.
   */
  readonly answers?: AnswersOptions;
  /** Limits of clients that follow decisions. Default: 16 clients, 10 s to take what waits, a heartbeat each 15 s. */
  readonly stream?: Partial<StreamRules>;
}

const positive = above(0, Number.MAX_VALUE, 'a number above 0');

export const STREAM_OPTIONS = {
  clientsMax: { rule: positive, default: 16, help: 'clients at one time' },
  stalledMs: {
    rule: positive,
    default: 10_000,
    help: 'a client that has not taken what waits for it after so long is dropped',
  },
  heartbeatMs: { rule: positive, default: 15_000, help: 'how often a comment is sent' },
} as const satisfies Rows<StreamRules>;

export const SERVE_OPTIONS = {
  host: {
    rule: anyText('an address to listen on', 1),
    default: '127.0.0.1',
    help: 'address to listen on; others need --token-file',
    flag: '--host <address>',
  },
  port: {
    rule: whole(0, 65_535),
    default: 9470,
    help: 'port to listen on; 0: any that is free',
    flag: '--port <n>',
  },
  metrics: {
    rule: truth,
    help: 'whether /metrics is served (default: yes; on the command line no)',
    flags: { metrics: { flag: '--metrics', help: 'serve /metrics for Prometheus' } },
  },
  token: {
    rule: seenLater<string>('a text of 16 characters or more'),
    help: 'whoever asks must send it',
    flags: {
      tokenFile: { flag: '--token-file <file>', help: 'file with the token that whoever asks must send' },
    },
  },
  keys: {
    rule: seenLater<readonly ApiKey[]>('a list of keys'),
    help: 'keys of many people',
    flags: { keys: { flag: '--keys <file>', help: 'TOML or JSON file with the keys of those who may ask' } },
  },
  allowOrigin: {
    rule: textLike(/^https?:\/\/[\w.:[\]-]+$/, 'one origin, such as https://dashboard.example'),
    help: 'the one origin whose pages may read answers (default: none)',
    flag: '--allow-origin <origin>',
  },
  requestsPerSecond: { rule: positive, default: 50, help: 'requests of one address, in the long run' },
  connectionsMax: { rule: positive, default: 64, help: 'connections at one time; with answers requestsMax more' },
  requestMs: { rule: positive, default: 5000, help: 'milliseconds in which a request must be there' },
  answers: {
    rule: seenLater<AnswersOptions>('options of answers'),
    help: 'prompts are answered, as OpenAI servers answer them',
  },
  stream: {
    rule: seenLater<Partial<StreamRules>>('{ clientsMax, stalledMs, heartbeatMs }'),
    help: 'limits of clients that follow decisions',
  },
} as const satisfies Rows<ServeOptions>;
