/** `pprint`: values over several lines where one is too long, as Python's pprint writes them. */
import { type Bounds, DEPTH_MAX } from './bounds.ts';
import { order } from './compare.ts';
import { TemplateFault } from './fault.ts';
import { LINE_ENDS, SPACES } from './space.ts';
import { Text } from './text.ts';
import { Dict, Tuple, typeName, type Value } from './values.ts';
import { represented } from './written.ts';

/** Letters of a line. */
const WIDTH = 80;
const PARTS = new RegExp(`[^${SPACES.slice(1)}*${SPACES}*`, 'gu');

export function pretty(value: Value, bounds: Bounds): Text {
  const sorted = withSortedNames(value, bounds, 0);
  const writer = new PrettyWriter(bounds);
  writer.write(sorted, { indent: 0, behind: 0, level: 0 });
  return Text.from(writer.text, represented(value, bounds));
}

function withSortedNames(value: Value, bounds: Bounds, depth: number): Value {
  if (depth > DEPTH_MAX) throw new TemplateFault('data lies too deep in data');
  const inner = (one: Value): Value => withSortedNames(one, bounds, depth + 1);
  if (Array.isArray(value)) return value.map(inner);
  if (value instanceof Tuple) return new Tuple(value.items.map(inner));
  if (!(value instanceof Dict)) return value;
  const entries = value.entries().map(([key, one]) => [inner(key), inner(one)] as const);
  return new Dict(entries.sort(([one], [other]) => orderOfAll(one, other, bounds)));
}

/** What has no order is put by its type. */
function orderOfAll(one: Value, other: Value, bounds: Bounds): number {
  try {
    return order(one, other, bounds);
  } catch (error) {
    if (!(error instanceof TemplateFault)) throw error;
    const [a, b] = [one, other].map((key) => (key === null ? 'NoneType' : typeName(key)));
    return a! < b! ? -1 : a! > b! ? 1 : 0;
  }
}

interface Place {
  readonly indent: number;
  /** Letters that follow on the last line. */
  readonly behind: number;
  readonly level: number;
}

class PrettyWriter {
  text = '';
  readonly #bounds: Bounds;

  constructor(bounds: Bounds) {
    this.#bounds = bounds;
  }

  write(value: Value, { indent, behind, level }: Place): void {
    const shown = represented(value, this.#bounds);
    const fits = shown.length <= WIDTH - indent - behind;
    const inner = { indent, behind, level: level + 1 };
    if (fits) this.text += shown.value;
    else if (value instanceof Dict) this.#dict(value, inner);
    else if (Array.isArray(value)) this.#items(value, '[', ']', inner);
    else if (value instanceof Tuple) this.#items(value.items, '(', value.items.length === 1 ? ',)' : ')', inner);
    else if (value instanceof Text && !value.isMarkup) this.#string(value, inner);
    else this.text += shown.value;
  }

  #dict(dict: Dict, { indent, behind, level }: Place): void {
    const entries = dict.entries();
    this.text += '{';
    for (const [index, [key, value]] of entries.entries()) {
      const name = represented(key, this.#bounds);
      this.text += `${index === 0 ? '' : `,\n${' '.repeat(indent + 1)}`}${name.value}: `;
      const isLast = index === entries.length - 1;
      this.write(value, { indent: indent + 1 + name.length + 2, behind: isLast ? behind + 1 : 1, level });
    }
    this.text += '}';
  }

  #items(items: readonly Value[], open: string, close: string, { indent, behind, level }: Place): void {
    this.text += open;
    for (const [index, item] of items.entries()) {
      if (index > 0) this.text += `,\n${' '.repeat(indent + 1)}`;
      const isLast = index === items.length - 1;
      this.write(item, { indent: indent + 1, behind: isLast ? behind + close.length : 1, level });
    }
    this.text += close;
  }

  /** A text in pieces, which Python joins. */
  #string(text: Text, { indent, behind, level }: Place): void {
    const isAlone = level === 1;
    const pieces = this.#pieces(text, WIDTH - indent - (isAlone ? 1 : 0), behind + (isAlone ? 1 : 0));
    if (pieces.length === 1) {
      this.text += pieces[0]!;
      return;
    }
    const joined = pieces.join(`\n${' '.repeat(indent + (isAlone ? 1 : 0))}`);
    this.text += isAlone ? `(${joined})` : joined;
  }

  #pieces(text: Text, width: number, behind: number): string[] {
    const shown = (piece: string): Text => represented(Text.own(piece), this.#bounds);
    const pieces: string[] = [];
    const lines = linesOf(text.value);
    for (const [index, line] of lines.entries()) {
      const isLast = index === lines.length - 1;
      const whole = shown(line);
      if (whole.length <= width - (isLast ? behind : 0)) {
        pieces.push(whole.value);
        continue;
      }
      const parts = line.match(PARTS)!.filter((part) => part !== '');
      let current = '';
      for (const [at, part] of parts.entries()) {
        const most = width - (isLast && at === parts.length - 1 ? behind : 0);
        if (shown(current + part).length <= most) current += part;
        else {
          if (current !== '') pieces.push(shown(current).value);
          current = part;
        }
      }
      if (current !== '') pieces.push(shown(current).value);
    }
    return pieces;
  }
}

/** Lines with their ends. */
function linesOf(text: string): string[] {
  const lines: string[] = [];
  let at = 0;
  for (const end of text.matchAll(LINE_ENDS)) {
    lines.push(text.slice(at, end.index + end[0].length));
    at = end.index + end[0].length;
  }
  return at < text.length ? [...lines, text.slice(at)] : lines;
}
