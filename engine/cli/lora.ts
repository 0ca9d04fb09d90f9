/**
 * Adapters as the command line names them: NAME=PATH or NAME, which is registered, and :SCALE behind either; or
 * `proposed`: those that earlier sessions with such a text used.
 */
import { checkOption, KvError } from '../../native/index.ts';
import { PROPOSED, SESSION_OPTIONS } from '../options/table.ts';
import type { ProposedFor, SessionAdapter } from '../options/types.ts';

export interface LoraSetting {
  /** Paths by name, for the engine; of those that are registered there is none. */
  readonly paths: Readonly<Record<string, string>>;
  /** For sessions. */
  readonly adapters: readonly SessionAdapter[] | ProposedFor;
}

/** The word for those that are proposed; an adapter of that name is given as proposed:1. */
const WORD = 'proposed';

const FORM = /^([^=]+?)(?:=(.+?))?(?::([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?$/i;

/** What --lora says; null: it is not given. Throws 'bad-argument'. */
export function loraOf(settings: Readonly<Record<string, unknown>>): LoraSetting | null {
  const given = settings['lora'] as readonly string[] | undefined;
  if (given === undefined) return null;
  if (given.length === 1 && given[0] === WORD) return { paths: {}, adapters: PROPOSED };
  const adapters: SessionAdapter[] = [];
  const paths = new Map<string, string>();
  for (const text of given) {
    const [, name, path, scale] = FORM.exec(text) ?? [];
    // A path alone has no name.
    if (name === undefined || (path === undefined && /[\\/]/.test(name)))
      throw new KvError(
        'bad-argument',
        `--lora takes NAME, NAME=PATH or NAME=PATH:SCALE, not '${text.slice(0, 200)}'`,
        {
          values: { lora: text },
          hint: '--lora style=./adapter:0.5',
        },
      );
    adapters.push({ name, ...(scale === undefined ? {} : { scale: Number(scale) }) });
    if (path !== undefined) paths.set(name, path);
  }
  checkOption('adapters', SESSION_OPTIONS.adapters, adapters);
  return { paths: Object.fromEntries(paths), adapters };
}
