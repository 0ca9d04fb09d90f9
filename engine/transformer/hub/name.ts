/**
 * Names of models that others keep: `hf:ORG/REPO[@REVISION][:FILE]` on the Hugging Face Hub, `ollama:NAME[:TAG]` in
 * Ollama's folder on this machine.
 */
import { KvError } from '../../../native/index.ts';

export interface HubName {
  readonly kind: 'hf';
  /** 'ORG/REPO' */
  readonly repo: string;
  /** A branch, a tag or a commit. */
  readonly revision: string;
  /** A path in the repository, or a part of a GGUF file's name such as 'Q8_0'; null: chosen by choose.ts. */
  readonly file: string | null;
}

export interface OllamaName {
  readonly kind: 'ollama';
  /** Where the model was pulled from. */
  readonly host: string;
  readonly namespace: string;
  readonly model: string;
  readonly tag: string;
}

export type RemoteName = HubName | OllamaName;

/** How such names are written, for hints. */
export const NAME_FORMS = 'hf:ORG/REPO[@REVISION][:FILE] or ollama:NAME[:TAG]';

const PART = /^[A-Za-z0-9][\w.-]{0,127}$/;
const REVISION = /^[\w][\w./-]{0,199}$/;

export const isRemoteName = (name: string): boolean => /^(hf|ollama):/.test(name);

/** null for what is neither. Throws KvError 'bad-argument' for a name that begins so and goes on wrongly. */
export function parseRemoteName(name: string): RemoteName | null {
  if (!isRemoteName(name)) return null;
  const parsed = name.startsWith('hf:') ? hubName(name.slice(3)) : ollamaName(name.slice('ollama:'.length));
  if (parsed !== null) return parsed;
  throw new KvError('bad-argument', `'${name.slice(0, 200)}' is not the name of a model`, {
    values: { model: name.slice(0, 200) },
    hint: `write ${NAME_FORMS}`,
  });
}

function hubName(text: string): HubName | null {
  const match = /^([^/:@]+)\/([^/:@]+)(?:@([^:]+))?(?::(.+))?$/s.exec(text);
  if (match === null) return null;
  const [, organisation = '', repository = '', revision = 'main', file] = match;
  if (!isPart(organisation) || !isPart(repository)) return null;
  if (!REVISION.test(revision) || !isPlainPath(revision)) return null;
  if (file !== undefined && !isPlainPath(file)) return null;
  return { kind: 'hf', repo: `${organisation}/${repository}`, revision, file: file ?? null };
}

function ollamaName(text: string): OllamaName | null {
  // A host may have a port, and a tag begins behind the last colon that no slash follows.
  const match = /^(?:(?:([^/]+)\/)?([^/]+)\/)?([^/:]+)(?::([^/:]+))?$/.exec(text);
  if (match === null) return null;
  const [, host = 'registry.ollama.ai', namespace = 'library', model = '', tag = 'latest'] = match;
  if (!/^[A-Za-z0-9][A-Za-z0-9.-]{0,200}(?::\d{1,5})?$/.test(host)) return null;
  if (![namespace, model, tag].every(isPart)) return null;
  return { kind: 'ollama', host, namespace, model, tag };
}

// '--' stands between organisation and repository in the names of cache folders.
const isPart = (text: string): boolean => PART.test(text) && !text.includes('..') && !text.includes('--');

/** True if a path stays below the folder that it is joined to, on every system, and is safe to print. */
export function isPlainPath(path: string): boolean {
  if (path.length === 0 || path.length > 400 || /[\\:*?"<>|\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u.test(path)) return false;
  return path.split('/').every((part) => part !== '' && part !== '.' && part !== '..' && !/[. ]$/.test(part));
}
