/** Adapters as the command line names them: NAME=PATH, or NAME=PATH:SCALE. */
import { checkOption, KvError } from '../../native/index.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { SessionAdapter } from '../options/types.ts';

export interface LoraSetting {
  /** Paths by name, for the engine. */
  readonly paths: Readonly<Record<string, string>>;
  /** For sessions. */
  readonly adapters: readonly SessionAdapter[];
}

const FORM = /^([^=]+)=(.+?)(?::([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?$/i;

/** What --lora says; null: it is not given. Throws 'bad-argument'. */
export function loraOf(settings: Readonly<Record<string, unknown>>): LoraSetting | null {
  const given = settings['lora'] as readonly string[] | undefined;
  if (given === undefined) return null;
  const adapters: SessionAdapter[] = [];
  const paths = new Map<string, string>();
  for (const text of given) {
    const [, name, path, scale] = FORM.exec(text) ?? [];
    if (name === undefined || path === undefined)
      throw new KvError('bad-argument', `--lora takes NAME=PATH or NAME=PATH:SCALE, not '${text.slice(0, 200)}'`, {
        values: { lora: text },
        hint: '--lora style=./adapter:0.5',
      });
    adapters.push({ name, ...(scale === undefined ? {} : { scale: Number(scale) }) });
    paths.set(name, path);
  }
  checkOption('adapters', SESSION_OPTIONS.adapters, adapters);
  return { paths: Object.fromEntries(paths), adapters };
}
