/**
 * A template as tokens, with the white space around tags trimmed as `trim_blocks` and `lstrip_blocks` of Jinja have it:
 * a line break behind a block goes, and so do blanks before a block that begins its line; `-` takes all white space,
 * `+` none.
 */
import { TemplateFault } from './fault.ts';
import { isSpace, trimmedEnd } from './space.ts';

export type TokenKind = 'data' | 'name' | 'string' | 'integer' | 'float' | 'sign' | 'begin' | 'end' | 'eof';

/** begin and end: of `{{` or `{%`, which is its text. */
export interface Token {
  readonly kind: TokenKind;
  readonly text: string;
  readonly line: number;
}

const SIGNS = /\/\/|\*\*|==|!=|>=|<=|[-+/*%~[\](){}<>=.:|,;]/y;
const NAME = /[\p{L}\p{Nl}_][\p{L}\p{Nl}\p{Mn}\p{Mc}\p{Nd}\p{Pc}]*/uy;
const FLOAT = /(?:\d+_)*\d+(?:\.(?:\d+_)*\d+(?:e[+-]?(?:\d+_)*\d+)?|e[+-]?(?:\d+_)*\d+)/iy;
const INTEGER = /0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*/iy;
const STRING = /'[^'\\]*(?:\\[\s\S][^'\\]*)*'|"[^"\\]*(?:\\[\s\S][^"\\]*)*"/y;
const RAW = /\{%[-+]?\s*raw\s*(-?)%\}/y;
const END_RAW = /\{%([-+]?)\s*endraw\s*([-+]?)%\}/g;
const OPENING: Readonly<Record<string, string>> = { '(': ')', '[': ']', '{': '}' };

export function tokensOf(source: string): Token[] {
  return new Lexer(source.replace(/\r\n?/g, '\n').replace(/\n$/, '')).all();
}

class Lexer {
  readonly #source: string;
  readonly #tokens: Token[] = [];
  #at = 0;
  #lineAt = 0;
  #line = 1;
  /** True where a line begins, since the tag before took its line break. */
  #beginsLine = true;

  constructor(source: string) {
    this.#source = source;
  }

  all(): Token[] {
    while (this.#at < this.#source.length) this.#data();
    this.#push('eof', '');
    return this.#tokens;
  }

  #push(kind: TokenKind, text: string): void {
    for (; this.#lineAt < this.#at; this.#lineAt++) if (this.#source[this.#lineAt] === '\n') this.#line++;
    this.#tokens.push({ kind, text, line: this.#line });
  }

  /** The text up to the next tag, and the tag. */
  #data(): void {
    const source = this.#source;
    let tag = source.indexOf('{', this.#at);
    while (tag >= 0 && !'{%#'.includes(source[tag + 1] ?? ' ')) tag = source.indexOf('{', tag + 1);
    if (tag < 0) tag = source.length;
    const sign = '-+'.includes(source[tag + 2] ?? ' ') ? source[tag + 2]! : '';
    this.#text(source.slice(this.#at, tag), sign, source[tag + 1] !== '{');
    this.#at = tag;
    if (tag === source.length) return;
    const raw = this.#match(RAW);
    this.#at = tag + 2 + sign.length;
    if (raw !== null) this.#raw(tag + raw[0].length, raw[1]!);
    else if (source[tag + 1] === '#') this.#comment();
    else {
      this.#push('begin', source.slice(tag, tag + 2));
      this.#tag(source[tag + 1] === '{' ? '}}' : '%}');
    }
  }

  #text(text: string, sign: string, isBlock: boolean): void {
    let kept = text;
    if (sign === '-') kept = trimmedEnd(text);
    else if (sign === '' && isBlock) {
      const lineStart = text.lastIndexOf('\n') + 1;
      const blank = trimmedEnd(text.slice(lineStart)) === '';
      if ((lineStart > 0 || this.#beginsLine) && blank) kept = text.slice(0, lineStart);
    }
    if (kept !== '') this.#push('data', kept);
  }

  #comment(): void {
    const from = this.#at;
    const end = this.#source.indexOf('#}', this.#at);
    if (end < 0) throw this.#fault('a comment does not end');
    this.#at = end + 2;
    this.#behind(end > from ? this.#source[end - 1]! : '', true);
  }

  /** What a tag takes of the white space behind it. */
  #behind(sign: string, isBlock: boolean): void {
    const from = this.#at;
    if (sign === '-') while (isSpace(this.#source[this.#at] ?? '')) this.#at++;
    else if (isBlock && sign !== '+' && this.#source[this.#at] === '\n') this.#at++;
    this.#beginsLine = this.#at > from && this.#source[this.#at - 1] === '\n';
  }

  #raw(from: number, sign: string): void {
    this.#at = from;
    this.#behind(sign === '-' ? '-' : '+', true);
    END_RAW.lastIndex = this.#at;
    const end = END_RAW.exec(this.#source);
    if (end === null) throw this.#fault('raw text does not end');
    this.#text(this.#source.slice(this.#at, end.index), end[1]!, true);
    this.#at = end.index + end[0].length;
    this.#behind(end[2]!, true);
  }

  /** The inside of a tag, up to the end that is in no bracket. */
  #tag(end: string): void {
    const open: string[] = [];
    for (;;) {
      while (isSpace(this.#source[this.#at] ?? '')) this.#at++;
      if (this.#at >= this.#source.length) throw this.#fault('a tag does not end');
      if (open.length === 0 && this.#ends(end)) return;
      this.#inner(open);
    }
  }

  #ends(end: string): boolean {
    const letter = this.#source[this.#at]!;
    const sign = letter === '-' || (letter === '+' && end === '%}') ? letter : '';
    if (!this.#source.startsWith(sign + end, this.#at)) return false;
    this.#at += sign.length + end.length;
    this.#push('end', end);
    this.#behind(sign, end === '%}');
    return true;
  }

  #inner(open: string[]): void {
    const afterDot = this.#source[this.#at - 1] === '.';
    const found =
      (afterDot ? null : this.#token('float', FLOAT)) ??
      this.#token('integer', INTEGER) ??
      this.#token('name', NAME) ??
      this.#token('string', STRING) ??
      this.#token('sign', SIGNS);
    if (found === null) throw this.#fault(`nobody knows what ${JSON.stringify(this.#source[this.#at])} is`);
    if (found.kind !== 'sign') return;
    const closing = OPENING[found.text];
    if (closing !== undefined) open.push(closing);
    else if (')]}'.includes(found.text) && open.pop() !== found.text) throw this.#fault(`a ${found.text} too many`);
  }

  #token(kind: TokenKind, pattern: RegExp): Token | null {
    const found = this.#match(pattern);
    if (found === null) return null;
    const text = kind === 'string' ? unescaped(found[0].slice(1, -1)) : found[0];
    this.#at += found[0].length;
    this.#push(kind, text);
    return this.#tokens.at(-1)!;
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#source);
  }

  #fault(what: string): TemplateFault {
    this.#push('eof', '');
    return new TemplateFault(`line ${this.#line}: ${what}`);
  }
}

const ESCAPES: Readonly<Record<string, string>> = {
  n: '\n',
  t: '\t',
  r: '\r',
  a: '\x07',
  b: '\b',
  f: '\f',
  v: '\v',
  '\n': '',
  '\\': '\\',
  "'": "'",
  '"': '"',
};
const ESCAPE = /\\(?:([0-7]{1,3})|x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([\s\S]))/g;

/** Escapes as Python reads them; an unknown one stays with its stroke. */
function unescaped(text: string): string {
  return text.replace(ESCAPE, (whole, octal: string, x: string, u: string, wide: string, letter: string) => {
    if (octal !== undefined) return String.fromCodePoint(Number.parseInt(octal, 8));
    const code = Number.parseInt(x ?? u ?? wide, 16);
    if (code > 0x10ffff || (Number.isNaN(code) && 'xuUN'.includes(letter)))
      throw new TemplateFault(`${whole} is no letter`);
    return Number.isNaN(code) ? (ESCAPES[letter] ?? whole) : String.fromCodePoint(code);
  });
}
