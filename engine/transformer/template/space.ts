/** White space as Python knows it: other letters than JavaScript's, which has U+FEFF and lacks U+0085 and U+001C. */
export const SPACES = '[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]';
const SPACE = new RegExp(`^${SPACES}$`);
/** Ends of lines for `splitlines`. */
const ENDS = '[\\n\\v\\f\\r\\x1c-\\x1e\\x85\\u2028\\u2029]';
export const LINE_ENDS = new RegExp(`\\r\\n|${ENDS}`, 'g');

export const isSpace = (letter: string): boolean => SPACE.test(letter);

export function trimmedEnd(text: string): string {
  let end = text.length;
  while (end > 0 && isSpace(text[end - 1]!)) end--;
  return text.slice(0, end);
}

export function trimmed(text: string): string {
  let from = 0;
  while (from < text.length && isSpace(text[from]!)) from++;
  return trimmedEnd(text.slice(from));
}
