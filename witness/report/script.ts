/**
 * The script of the page as one text: each module of `page/` as a function of its own, behind those that it imports.
 */
import { readFileSync } from 'node:fs';
import { KvError } from '../../native/index.ts';

const IMPORT = /^import \{([^}]*)\} from '(\.\/[\w-]+\.js)';\n/gm;
const EXPORT = /^export ((?:async )?(?:function|const|class) (\w+))/gm;

/** Where the compiler puts the modules: browsers run what it writes, so sources are of no use here. */
const BUILT = import.meta.url.endsWith('.ts') ? '../../dist/witness/report/' : './';
const MAIN = './page/main.js';

/** Throws 'not-found' when the modules were not built. */
export function pageScript(): string {
  const names = new Map<string, string>();
  const parts: string[] = [];
  const add = (url: URL): string => {
    const known = names.get(url.href);
    if (known !== undefined) return known;
    const text = read(url);
    const imports = [...text.matchAll(IMPORT)].map(
      ([, list, specifier]) => `const {${list!.replaceAll(' as ', ': ')}} = ${add(new URL(specifier!, url))};\n`,
    );
    const exported = [...text.matchAll(EXPORT)].map(([, , name]) => name);
    const body = text.replace(IMPORT, '').replace(EXPORT, '$1').trim();
    const name = `module${names.size}`;
    names.set(url.href, name);
    parts.push(`const ${name} = (() => {\n${imports.join('')}${body}\nreturn { ${exported.join(', ')} };\n})();`);
    return name;
  };
  add(new URL(MAIN, new URL(BUILT, import.meta.url)));
  return parts.join('\n');
}

function read(url: URL): string {
  try {
    return readFileSync(url, 'utf8');
  } catch (cause) {
    throw new KvError('not-found', `the script of the page is missing: ${url.pathname}`, {
      hint: 'install the package again, or run `npm run build` in a checkout',
      cause,
    });
  }
}
