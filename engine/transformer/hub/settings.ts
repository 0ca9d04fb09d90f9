/**
 * Where models of others are, and how they are reached, from the variables that Hugging Face's and Ollama's own
 * programs read. So a machine that is set up for them needs nothing more. An empty variable counts as not set.
 */
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { KvError, readRegular } from '../../../native/index.ts';
import type { LoadProgress } from '../types.ts';

export interface HubSettings {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly token: string | null;
  /** Variable or file that the token is from, for messages. */
  readonly tokenFrom: string | null;
  /** The cache folder of the Hub: models--ORG--REPO below it. */
  readonly cacheDir: string;
  /** True if nothing may be asked of the network. */
  readonly offline: boolean;
  /** How long a server may be silent. */
  readonly stallMs: number;
  /** The pause before the second attempt; each further one is twice as long. */
  readonly pauseMs: number;
  /** Before a download of at least so many bytes the headers are looked at. */
  readonly lookBytes: number;
  /** Ollama's folders of models, the one to look in first. */
  readonly ollamaDirs: readonly string[];
}

export interface ObtainOptions {
  /** Default: as the environment says. */
  readonly settings?: HubSettings | undefined;
  /** Default false, or what the environment says. */
  readonly offline?: boolean | undefined;
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

const ENDPOINT = 'https://huggingface.co';
const STALL_SECONDS = 30;
const PAUSE_MS = 500;
const LOOK_BYTES = 64 * 2 ** 20;
const TOKEN_BYTES_MAX = 4096;

/** Throws KvError 'bad-config' for a variable that cannot be used, 'io' for a token file that cannot be read. */
export function hubSettings(offline = false, environment: Environment = process.env): HubSettings {
  const value = (name: string): string | undefined => environment[name] || undefined;
  const home = (path: string): string => resolve(path.replace(/^~(?=$|[/\\])/, () => value('HOME') ?? homedir()));
  const caches = value('XDG_CACHE_HOME') ?? '~/.cache';
  const hfHome = home(value('HF_HOME') ?? join(caches, 'huggingface'));
  return {
    endpoint: endpointOf(value('HF_ENDPOINT')),
    ...tokenOf(value, home(value('HF_TOKEN_PATH') ?? join(hfHome, 'token'))),
    cacheDir: home(value('HF_HUB_CACHE') ?? value('HUGGINGFACE_HUB_CACHE') ?? join(hfHome, 'hub')),
    offline: isOffline(offline, environment),
    stallMs: secondsOf('HF_HUB_DOWNLOAD_TIMEOUT', value('HF_HUB_DOWNLOAD_TIMEOUT'), STALL_SECONDS) * 1000,
    pauseMs: PAUSE_MS,
    lookBytes: LOOK_BYTES,
    // The second is where the service of Ollama's installer for Linux keeps them.
    ollamaDirs:
      value('OLLAMA_MODELS') === undefined
        ? [home('~/.ollama/models'), '/usr/share/ollama/.ollama/models']
        : [home(value('OLLAMA_MODELS')!)],
  };
}

/** True if nothing may be asked of the network. */
export const isOffline = (offline = false, environment: Environment = process.env): boolean =>
  offline || isOn(environment['HF_HUB_OFFLINE']);

const isOn = (text: string | undefined): boolean => /^(1|on|yes|true)$/i.test(text ?? '');

function endpointOf(text: string | undefined): string {
  const url = URL.canParse(text ?? ENDPOINT) ? new URL(text ?? ENDPOINT) : null;
  if (url !== null && /^https?:$/.test(url.protocol) && url.search === '' && url.hash === '' && url.username === '')
    return url.href.replace(/\/+$/, '');
  throw new KvError('bad-config', 'HF_ENDPOINT is not the address of a server', {
    values: { HF_ENDPOINT: text?.slice(0, 200) },
    hint: `leave it out for ${ENDPOINT}, or give one that begins with https://`,
  });
}

function secondsOf(name: string, text: string | undefined, otherwise: number): number {
  const seconds = text === undefined ? otherwise : Number(text);
  if (seconds > 0 && seconds <= 86_400) return seconds;
  throw new KvError('bad-config', `${name} is not a number of seconds`, { values: { [name]: text?.slice(0, 80) } });
}

function tokenOf(value: (name: string) => string | undefined, path: string): Pick<HubSettings, 'token' | 'tokenFrom'> {
  for (const name of ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN']) {
    const token = value(name)?.trim();
    if (token !== undefined && token !== '') return { token: checkedToken(token, name), tokenFrom: name };
  }
  if (isOn(value('HF_HUB_DISABLE_IMPLICIT_TOKEN')) || !existsSync(path)) return { token: null, tokenFrom: null };
  const token = readRegular(path, { bytesMax: TOKEN_BYTES_MAX, code: 'bad-config' }).toString('utf8').trim();
  return token === '' ? { token: null, tokenFrom: null } : { token: checkedToken(token, path), tokenFrom: path };
}

/** A line break in it would begin a header of its own. The token itself is in no message. */
function checkedToken(token: string, from: string): string {
  if (/^[\x21-\x7e]{1,2000}$/.test(token)) return token;
  throw new KvError('bad-config', `what ${from} holds is not a token`, { values: { from } });
}
