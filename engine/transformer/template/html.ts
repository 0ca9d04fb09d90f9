/** What Jinja has for pages, and prompts hardly ever: `striptags` and `urlize`. */
import type { Bounds } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import { SPACES, trimmed } from './space.ts';

/** Names that HTML knows without a semicolon as well: those of the letters from U+00A0 on, in order. */
const LATIN =
  `nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute micro
  para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave
  Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc
  Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc
  iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml`.split(
    /\s+/,
  );
const NAMED: ReadonlyMap<string, string> = new Map([
  ...LATIN.map((name, at) => [name, String.fromCharCode(0xa0 + at)] as const),
  ...(['amp &', 'AMP &', 'lt <', 'LT <', 'gt >', 'GT >', 'quot "', 'QUOT "', 'COPY ©', 'REG ®'] as const).map(
    (pair) => pair.split(' ') as [string, string],
  ),
]);
/** What Windows has at 128 to 159; HTML reads numbers as these. */
const WINDOWS = '€\x81‚ƒ„…†‡ˆ‰Š‹Œ\x8dŽ\x8f\x90‘’“”•–—˜™š›œ\x9džŸ';
const REFERENCE = /&(?:#(\d+);?|#[xX]([\da-fA-F]+);?|([^\t\n\f <&#;]{1,32};?))/g;

/** Letters for references such as `&lt;`. Throws for a name that may be one of HTML's two thousand others. */
function unescaped(text: string): string {
  return text.replace(REFERENCE, (whole, decimal?: string, hex?: string, name = '') => {
    if (decimal !== undefined || hex !== undefined) return numbered(Number.parseInt(decimal ?? hex!, hex ? 16 : 10));
    const known = NAMED.get(name.replace(/;$/, ''));
    if (known !== undefined) return known;
    if (name === 'apos;') return "'";
    for (let end = name.length - 1; end > 1; end--) {
      const letter = NAMED.get(name.slice(0, end));
      if (letter !== undefined) return letter + name.slice(end);
    }
    if (/^[a-zA-Z][a-zA-Z0-9]*;$/.test(name)) throw new TemplateFault(`striptags does not know &${name}`);
    return whole;
  });
}

function numbered(code: number): string {
  if (code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return '\ufffd';
  if (code >= 0x80 && code < 0xa0) return WINDOWS[code - 0x80]!;
  const isNone = code < 9 || code === 11 || (code > 13 && code < 32) || code === 0x7f;
  return isNone || (code >= 0xfdd0 && code < 0xfdf0) || (code & 0xfffe) === 0xfffe ? '' : String.fromCodePoint(code);
}

/** Without what stands between these marks; an end that is missing leaves the rest. */
function without(text: string, open: string, close: string): string {
  const kept: string[] = [];
  let at = 0;
  for (;;) {
    const from = text.indexOf(open, at);
    const end = from < 0 ? -1 : text.indexOf(close, from);
    if (end < 0) break;
    kept.push(text.slice(at, from));
    at = end + close.length;
  }
  return kept.join('') + text.slice(at);
}

/** The text of HTML, white space as one space. */
export function withoutTags(text: string, bounds: Bounds): string {
  bounds.letters(4 * text.length);
  const said = trimmed(without(without(text, '<!--', '-->'), '<', '>'));
  return unescaped(said.replace(new RegExp(`${SPACES}+`, 'g'), ' '));
}

export interface LinkStyle {
  /** Letters that are shown of a link; null: all. */
  readonly shown: number | null;
  readonly attributes: string;
  /** Beginnings of other addresses. */
  readonly schemes: readonly string[];
}

const W = '[\\p{L}\\p{N}_%-]';
const WEB = new RegExp(
  `^(?:(?:https?://|www\\.)(?:${W}+\\.)*(?:[a-z]{2,63}|xn--[\\p{L}\\p{N}_%]{2,59})|(?:${W}{2,63}\\.)+(?:com|net|int|edu|gov|org|info|mil)|https?://(?:\\d{1,3}(?:\\.\\d{1,3}){3}|\\[(?:[\\da-f]{0,4}:){2}(?:[\\da-f]{0,4}:?){1,6}\\]))(?::\\d{1,5})?(?:[/?#].*)?$`,
  'isu',
);
const MAIL = /^.+@[\p{L}\p{N}_][\p{L}\p{N}_.-]*\.[\p{L}\p{N}_]+$/su;
const BRACKETS = [
  ['(', ')'],
  ['<', '>'],
  ['&lt;', '&gt;'],
] as const;

/** Addresses of a text that is escaped become links. */
export function withLinks(text: string, style: LinkStyle, bounds: Bounds): string {
  return text
    .split(new RegExp(`(${SPACES}+)`))
    .map((word) => {
      bounds.search(word.length, Math.ceil(word.length / 2));
      return linked(word, style);
    })
    .join('');
}

const countOf = (text: string, part: string): number => text.split(part).length - 1;

function linked(word: string, style: LinkStyle): string {
  const head = /^(?:[(<]|&lt;)+/.exec(word)?.[0] ?? '';
  let middle = word.slice(head.length);
  let tail = '';
  for (let end: string | undefined; ; ) {
    end = [')', '>', '.', ',', '\n', '&gt;'].find((one) => middle.endsWith(one));
    if (end === undefined) break;
    if (end === '>' && middle.endsWith('&gt;')) end = '&gt;';
    middle = middle.slice(0, middle.length - end.length);
    tail = end + tail;
  }
  for (const [open, close] of BRACKETS) {
    const opened = countOf(middle, open);
    if (opened <= countOf(middle, close)) continue;
    for (let times = Math.min(opened, countOf(tail, close)); times > 0; times--) {
      const end = tail.indexOf(close) + close.length;
      middle += tail.slice(0, end);
      tail = tail.slice(end);
    }
  }
  return head + link(middle, style) + tail;
}

function link(address: string, { shown, attributes, schemes }: LinkStyle): string {
  const points = [...address];
  const label = shown !== null && points.length > shown ? `${points.slice(0, shown).join('')}...` : address;
  if (WEB.test(address)) {
    const scheme = /^https?:\/\//.test(address) ? '' : 'https://';
    return `<a href="${scheme}${address}"${attributes}>${label}</a>`;
  }
  if (address.startsWith('mailto:') && MAIL.test(address.slice(7)))
    return `<a href="${address}">${address.slice(7)}</a>`;
  const isMail =
    !address.startsWith('www.') && !address.startsWith('@') && !address.includes(':') && MAIL.test(address);
  if (isMail) return `<a href="mailto:${address}">${address}</a>`;
  let text = address;
  for (const scheme of schemes)
    if (text !== scheme && text.startsWith(scheme)) text = `<a href="${text}"${attributes}>${text}</a>`;
  return text;
}
