/** Which files of a repository are the model: one GGUF file, or the folder of a safetensors checkpoint. */
import { basename } from 'node:path/posix';
import { KvError } from '../../../native/index.ts';

/**
 * What is taken where a repository has several GGUF files and none was named, the first that is there: the usual
 * balance of size and quality, then what the dense half holds in 8 bits anyway, largest to smallest, and last what is
 * smaller in the file alone and has lost more.
 */
export const GGUF_ORDER: readonly string[] = [
  ...['Q4_K_M', 'Q8_0', 'Q6_K', 'Q5_K_M', 'Q5_K_S', 'Q5_1', 'Q5_0', 'Q4_K_S', 'Q4_1', 'Q4_0'],
  ...['BF16', 'F16', 'F32'],
  ...['IQ4_NL', 'IQ4_XS', 'MXFP4', 'Q3_K_L', 'Q3_K_M', 'Q3_K_S', 'Q2_K', 'Q2_K_S'],
];
/** What a folder has beside its weights, where it is there. */
const BESIDE =
  /^(config|generation_config|tokenizer|tokenizer_config)\.json$|^chat_template[\w.-]*\.(json|jinja)$|^additional_chat_templates\/tool_use\.jinja$/;
const INDEX = 'model.safetensors.index.json';
const WEIGHTS = 'model.safetensors';
/** Files that are named in a message. */
const NAMED_MAX = 30;

export type Choice =
  | { readonly kind: 'gguf'; readonly file: string }
  /** weights: the file with all of them, or the index that names the files that have them. */
  | { readonly kind: 'folder'; readonly beside: readonly string[]; readonly weights: typeof WEIGHTS | typeof INDEX };

/**
 * paths: all of a repository. file: what was asked for. Throws KvError 'not-found', 'unsupported', 'bad-argument' with
 * the files that there are.
 */
export function chooseFiles(repo: string, paths: readonly string[], file: string | null): Choice {
  if (file !== null) return { kind: 'gguf', file: namedFile(repo, paths, file) };
  if (paths.includes('config.json') && (paths.includes(WEIGHTS) || paths.includes(INDEX))) return folderOf(repo, paths);
  const candidates = paths.filter((path) => isGguf(path) && !isPart(path) && !/mmproj|imatrix/i.test(path));
  if (candidates.length === 1) return { kind: 'gguf', file: candidates[0]! };
  for (const type of GGUF_ORDER) {
    const ofType = candidates.filter((path) => isOfType(path, type));
    if (ofType.length === 1) return { kind: 'gguf', file: ofType[0]! };
    if (ofType.length > 1) throw several(repo, ofType);
  }
  if (candidates.length > 1) throw several(repo, candidates);
  const parts = paths.some((path) => isGguf(path) && isPart(path));
  throw new KvError('unsupported', `${repo} has neither a GGUF file nor a safetensors checkpoint in one folder`, {
    values: { repo, files: listed(paths) },
    hint: parts ? PARTS_HINT : 'name a repository that has one, often the same name with -GGUF behind it',
  });
}

const PARTS_HINT = 'GGUF files in parts are not read: merge them (llama-gguf-split --merge), or choose another file';

function folderOf(repo: string, paths: readonly string[]): Choice {
  if (!paths.includes('tokenizer.json'))
    throw new KvError('unsupported', `${repo} has no tokenizer.json`, {
      values: { repo, files: listed(paths) },
      hint: 'another repository of the same model may have one, or a GGUF file',
    });
  const weights = paths.includes(WEIGHTS) ? WEIGHTS : INDEX;
  return { kind: 'folder', beside: paths.filter((path) => BESIDE.test(path)), weights };
}

function namedFile(repo: string, paths: readonly string[], file: string): string {
  const found = [
    paths.filter((path) => path === file),
    paths.filter((path) => basename(path) === file),
    paths.filter((path) => isGguf(path) && !isPart(path) && isOfType(path, file)),
  ].find((matches) => matches.length > 0);
  if (found === undefined) {
    const ggufs = paths.filter(isGguf);
    throw new KvError('not-found', `${repo} has no file ${file}`, {
      values: { repo, files: listed(ggufs.length > 0 ? ggufs : paths) },
      hint: 'name one of these files, or leave it out',
    });
  }
  if (found.length > 1) throw several(repo, found);
  const [path] = found as [string];
  if (isPart(path))
    throw new KvError('unsupported', `${path} is a part of a model`, {
      values: { repo, file: path },
      hint: PARTS_HINT,
    });
  if (isGguf(path)) return path;
  throw new KvError('unsupported', `${path} is not a GGUF file`, {
    values: { repo, file: path },
    hint: 'leave it out for the whole folder of a safetensors checkpoint',
  });
}

const isGguf = (path: string): boolean => /\.gguf$/i.test(path);
const isPart = (path: string): boolean => /-\d{5}-of-\d{5}\.gguf$/i.test(path);

/**
 * True if a file's name has this type as a word of its own: Q4_K is not in 'model-Q4_K_M.gguf', and Q4_0 not in
 * 'IQ4_0'.
 */
function isOfType(path: string, type: string): boolean {
  const [name, wanted] = [basename(path).toUpperCase(), type.toUpperCase()];
  const at = name.lastIndexOf(wanted);
  const edge = (character: string | undefined, more: string): boolean =>
    character === undefined || `.-${more}`.includes(character);
  return at >= 0 && edge(name[at - 1], '_') && edge(name[at + wanted.length], '');
}

function several(repo: string, files: readonly string[]): KvError {
  return new KvError('bad-argument', `${repo} has several files that may be meant`, {
    values: { repo, files: listed(files) },
    hint: `name one: hf:${repo}:${files[0]}`,
  });
}

const listed = (paths: readonly string[]): string[] => [
  ...[...paths].sort().slice(0, NAMED_MAX),
  ...(paths.length > NAMED_MAX ? [`and ${paths.length - NAMED_MAX} more`] : []),
];
