/** What a document may say: one title, and paths that exist. */
import { posix } from 'node:path';

const fenced = (markdown: string): string =>
  markdown.replace(/^(```|~~~)[\s\S]*?^\1[^\n]*$/gm, (block) => block.replace(/[^\n]/g, ' '));

export const titlesOf = (markdown: string): string[] => [...fenced(markdown).matchAll(/^# +(.+)$/gm)].map((m) => m[1]!);

/** Extensions whose mention means a file of ours. */
const FILE = /\.(ts|mjs|md|h|cc|gyp|py|sql|json|toml|gguf|safetensors|onnx)$/;

/** `{a,b}` written out. */
export function expand(path: string): string[] {
  const match = /^(.*?)\{([^{}]*,[^{}]*)\}(.*)$/.exec(path);
  if (match === null) return [path];
  return match[2]!.split(',').flatMap((part) => expand(`${match[1]}${part.trim()}${match[3]}`));
}

/** Things in backticks and link targets that look like paths of this repository. topFolders: names that open a path. */
export function pathsIn(markdown: string, topFolders: readonly string[]): { path: string; line: number }[] {
  const text = fenced(markdown);
  const found: { path: string; line: number }[] = [];
  const add = (raw: string, index: number, link: boolean): void => {
    const path = raw.replace(/[#?].*$/, '');
    if (path === '' || /^[a-z]+:|^[@~$/-]|^\.\w+$|\s/.test(path)) return;
    const ours =
      link ||
      topFolders.some((top) => path.startsWith(`${top}/`)) ||
      (FILE.test(path) && /^[\w.{}<>*,/-]+$/.test(path));
    if (ours) found.push({ path, line: text.slice(0, index).split('\n').length });
  };
  for (const match of text.matchAll(/`([^`\n]+)`/g)) add(match[1]!, match.index, false);
  for (const match of text.matchAll(/\]\(([^)\s]+)\)/g)) add(match[1]!, match.index, true);
  return found;
}

/** Made by building, fetching or running: right to mention, not in the repository. */
const BUILT = /^(dist|node_modules|native\/build|native\/prebuilds|\.cache|\.palimpsest|coverage)(\/|$)/;

/**
 * Is what a document calls `path` there, seen from the document or from the root? A name without folder may stand
 * anywhere below the document; a path with `<name>` or `*` stands for any file of that shape.
 */
export function pathIsThere(path: string, document: string, files: readonly string[]): boolean {
  const dir = posix.dirname(document);
  const below = dir === '.' ? '' : `${dir}/`;
  return expand(path).every(
    (one) =>
      (!one.includes('/') && files.some((file) => file.startsWith(below) && posix.basename(file) === one)) ||
      [posix.normalize(posix.join(dir, one)), posix.normalize(one)].some((candidate) => {
        if (BUILT.test(candidate)) return true;
        const plain = candidate.replace(/\/$/, '');
        if (/[<*]/.test(plain)) {
          const literal = plain.split(/<[^>]*>|\*+/).map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'));
          // A placeholder may be a new file: then the folder it would stand in must be there.
          const shape = new RegExp(`^${literal.join('.*')}`);
          const folder = posix.dirname(plain.slice(0, plain.search(/[<*]/) + 1));
          return plain.includes('<')
            ? folder === '.' || files.some((file) => file.startsWith(`${folder}/`))
            : files.some((file) => shape.test(file));
        }
        return files.some((file) => file === plain || file.startsWith(`${plain}/`));
      }),
  );
}
