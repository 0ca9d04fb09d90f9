/** The files of the live page, by the path that a browser asks for: a fixed list, so no request names a file. */
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { KvError } from '../../native/index.ts';

interface PageFile {
  readonly type: string;
  readonly url: URL | string;
}

/** Where the compiler puts the modules: browsers run what it writes, so sources are of no use here. */
const BUILT = import.meta.url.endsWith('.ts') ? '../../dist/' : '../../';
const ROOT = new URL(BUILT, import.meta.url);
const FOLDERS = ['engine/serve/page/', 'witness/report/page/'] as const;
const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

/** What the page may do: run and ask what this server has, and nothing else. */
export const PAGE_POLICY = [
  "default-src 'none'",
  ...["script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"],
  ...["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"],
].join('; ');

/** True for the page and for what may be a file of it. */
export const isPagePath = (path: string): boolean =>
  path === '/' || FOLDERS.some((folder) => path.startsWith(`/${folder}`));

let files: ReadonlyMap<string, PageFile> | null = null;

/** The file under a path; null: there is none. Throws 'not-found' when the page was not built. */
export function pageFile(path: string): { readonly type: string; readonly bytes: Buffer } | null {
  files ??= listed();
  const file = files.get(path);
  return file === undefined ? null : { type: file.type, bytes: readFileSync(file.url) };
}

function listed(): ReadonlyMap<string, PageFile> {
  const found = new Map<string, PageFile>();
  for (const folder of FOLDERS)
    for (const name of namesIn(folder)) {
      const type = TYPES[/\.(\w+)$/.exec(name)?.[1] ?? ''];
      if (type !== undefined) found.set(`/${folder}${name}`, { type, url: new URL(folder + name, ROOT) });
    }
  const own = `/${FOLDERS[0]}`;
  const { resolve } = createRequire(import.meta.url);
  found.set('/', found.get(`${own}index.html`)!);
  // In place of the module that only names the package.
  found.set(`${own}uplot.js`, { type: TYPES['js']!, url: resolve('uplot/dist/uPlot.esm.js') });
  found.set(`${own}uplot.css`, { type: TYPES['css']!, url: resolve('uplot/dist/uPlot.min.css') });
  return found;
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(new URL(folder, ROOT));
  } catch (cause) {
    throw new KvError('not-found', `the live page is missing: ${folder}`, {
      hint: 'install the package again, or run `npm run build` in a checkout',
      cause,
    });
  }
}
