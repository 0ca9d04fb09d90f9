/** The files a contributor writes: everything in the checkout but what git ignores, what is generated, and binaries. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Dot names that are ours; the others belong to tools and editors. */
const OURS = new Set(['.ci', '.gitignore', '.npmrc', '.oxlintrc.json']);

export const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

/** Folders that are built, fetched or kept by tools. The walk needs no git: a packed source tree is checked as well. */
const LEFT_OUT = new Set(['node_modules', 'dist', 'dist.new', 'dist.old', 'coverage', 'build', 'prebuilds']);

/** Paths relative to the root, with forward slashes, sorted. */
export function walk(dir = '', base = root): string[] {
  const found: string[] = [];
  for (const entry of readdirSync(join(base, dir), { withFileTypes: true })) {
    if (entry.name.startsWith('.') && !OURS.has(entry.name)) continue;
    const path = dir === '' ? entry.name : `${dir}/${entry.name}`;
    if (entry.isDirectory()) {
      if (!LEFT_OUT.has(entry.name)) found.push(...walk(path, base));
    } else if (entry.isFile()) found.push(path);
  }
  return found.sort();
}

export const read = (path: string): string => readFileSync(join(root, path), 'utf8');

export const exists = (path: string): boolean => existsSync(join(root, path));

/** Written by a program: fresh because another check says so, and free of rules of style. */
export const isGenerated = (path: string): boolean =>
  /\.gen\.\w+$/.test(path) || path.startsWith('migrations/meta/') || path === 'package-lock.json';

const TEXT = /\.(ts|mjs|js|cc|h|gyp|py|md|json|sql|toml|yml|yaml|txt)$|^(\.ci\/run|\.npmrc|\.gitignore|LICENSE)$/;

/** Text that people read and write: no weights, no vectors of golden bytes, no captured fixtures. */
export const isWritten = (path: string): boolean =>
  TEXT.test(path) && !isGenerated(path) && !/^(models|test\/golden|test\/fixtures)\//.test(path) && path !== 'LICENSE';

export const isCode = (path: string): boolean => /\.(ts|mjs|js|cc|h|py|gyp)$/.test(path) && isWritten(path);
