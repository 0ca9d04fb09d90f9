/** Just enough of TypeScript's grammar to tell code from comments and strings, and to find what a file imports. */

type Kind = 'code' | 'comment' | 'text';

/** After one of these a slash starts a regular expression, not a division. */
const BEFORE_REGEX = /(?:^|[=(,:;!&|?{}[\]+\-*%<>~^]|\b(?:return|typeof|case|in|of|do|else|await|yield|void|delete))$/;

/**
 * Cuts a source into stretches of code, comments, and text (the inside of strings, templates and regular expressions).
 */
export function* stretches(source: string): Generator<{ kind: Kind; text: string }> {
  let start = 0;
  let at = 0;
  /** Brace depth at which each open `${` of a template closes. */
  const templates: number[] = [];
  let depth = 0;
  const cut = function* (kind: Kind, to: number): Generator<{ kind: Kind; text: string }> {
    if (to > start) yield { kind, text: source.slice(start, to) };
    start = to;
  };
  /** Moves to the end of template text: behind ` or behind ${. */
  const template = function* (): Generator<{ kind: Kind; text: string }> {
    while (at < source.length && source[at] !== '`' && !source.startsWith('${', at)) at += source[at] === '\\' ? 2 : 1;
    yield* cut('text', Math.min(at, source.length));
    if (source[at] === '`') at++;
    else {
      templates.push(depth);
      depth++;
      at += 2;
    }
  };
  while (at < source.length) {
    const char = source[at];
    if (source.startsWith('//', at) || source.startsWith('/*', at)) {
      yield* cut('code', at);
      const end = char === '/' && source[at + 1] === '/' ? source.indexOf('\n', at) : source.indexOf('*/', at + 2);
      at = end === -1 ? source.length : source[at + 1] === '*' ? end + 2 : end;
      yield* cut('comment', at);
    } else if (char === "'" || char === '"') {
      yield* cut('code', ++at);
      while (at < source.length && source[at] !== char && source[at] !== '\n') at += source[at] === '\\' ? 2 : 1;
      yield* cut('text', Math.min(at, source.length));
      at++;
    } else if (char === '`') {
      yield* cut('code', ++at);
      yield* template();
    } else if (char === '}' && templates.at(-1) === depth - 1) {
      templates.pop();
      depth--;
      yield* cut('code', ++at);
      yield* template();
    } else if (char === '/' && BEFORE_REGEX.test(source.slice(Math.max(0, at - 40), at).trimEnd())) {
      yield* cut('code', ++at);
      let inClass = false;
      while (at < source.length && source[at] !== '\n' && (inClass || source[at] !== '/')) {
        if (source[at] === '[') inClass = true;
        else if (source[at] === ']') inClass = false;
        at += source[at] === '\\' ? 2 : 1;
      }
      yield* cut('text', Math.min(at, source.length));
      at++;
    } else {
      if (char === '{') depth++;
      else if (char === '}') depth--;
      at++;
    }
  }
  yield* cut('code', source.length);
}

const blank = (text: string): string => text.replace(/[^\n]/g, ' ');

/** The same text with some kinds of stretches blanked out; line numbers stay. */
export function only(source: string, ...kinds: Kind[]): string {
  let out = '';
  for (const { kind, text } of stretches(source)) out += kinds.includes(kind) ? text : blank(text);
  return out;
}

export interface Import {
  readonly specifier: string;
  readonly line: number;
  /**
   * `import type`, `export type`, or `import('…')` in a type position cannot be told apart from a dynamic import:
   * 'dynamic'.
   */
  readonly kind: 'value' | 'type' | 'dynamic' | 'url';
}

const lineOf = (text: string, index: number): number => text.slice(0, index).split('\n').length;

/** Everything a module names as another module: import, export … from, import(), new URL('…', import.meta.url). */
export function importsOf(source: string): Import[] {
  const code = only(source, 'code');
  const full = only(source, 'code', 'text');
  const found: Import[] = [];
  const collect = (pattern: RegExp, kindOf: (match: RegExpMatchArray) => Import['kind']): void => {
    for (const match of code.matchAll(pattern)) {
      const from = match.index + match[0].length;
      const quote = code[from - 1]!;
      const specifier = full.slice(from, full.indexOf(quote, from));
      found.push({
        specifier,
        line: lineOf(code, match.index + match[0].search(/import|export|new/)),
        kind: kindOf(match),
      });
    }
  };
  collect(/(?:^|[;}\n])\s*(import|export)(\s+type\b(?!\s*from\b|\s*,))?[^'"`;=()]*?\bfrom\s*['"]/g, (m) =>
    m[2] ? 'type' : 'value',
  );
  collect(/(?:^|[;}\n])\s*import\s*['"]/g, () => 'value');
  collect(/\bimport\s*\(\s*['"]/g, () => 'dynamic');
  collect(/\bnew\s+URL\s*\(\s*['"]/g, () => 'url');
  return found;
}
