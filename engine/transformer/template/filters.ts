/** Filters of values: texts, numbers, JSON. Those of lists are in `list-filters.ts`. */
import { attributeOf } from './access.ts';
import { TemplateFault } from './fault.ts';
import { centered, fixed, formatPercent } from './formats.ts';
import { undetermined } from './globals.ts';
import { withLinks, withoutTags } from './html.ts';
import { LIST_FILTERS } from './list-filters.ts';
import { pretty } from './pretty.ts';
import { SPACES } from './space.ts';
import { sameKind, Text } from './text.ts';
import { capitalized, intOf, recased, replaced, stripped, TEXT_METHODS, textOfArgument } from './text-methods.ts';
import {
  argumentsOf,
  type Call,
  Dict,
  type Filter,
  isTrue,
  itemsOf,
  iterable,
  lengthOf,
  numberOf,
  Tuple,
  typeName,
  Undefined,
  type Value,
} from './values.ts';
import { wrapped } from './wrap.ts';
import { jsonText, textOf } from './written.ts';

/** A filter of the text that a value has. */
const ofText =
  (names: readonly string[], work: (text: Text, args: readonly (Value | undefined)[], call: Call) => Value): Filter =>
  (value, call) =>
    work(textOf(value, call.machine.bounds), argumentsOf(call, 'the filter', ...names), call);

const optionalText = (value: Value | undefined, otherwise: string, call: Call): Text =>
  value === undefined ? Text.own(otherwise) : textOf(value, call.machine.bounds);

function defaultValue(value: Value, call: Call): Value {
  const [otherwise = Text.empty, boolean = false] = argumentsOf(call, 'default', 'default_value', 'boolean');
  return value instanceof Undefined || (isTrue(boolean) && !isTrue(value)) ? otherwise : value;
}

function json(value: Value, call: Call): Text {
  const [ascii = false, indent = null, separators = null, sorted = false] = argumentsOf(
    call,
    'tojson',
    'ensure_ascii',
    'indent',
    'separators',
    'sort_keys',
  );
  const [between, behind] = separators === null ? [] : itemsOf(separators, call.machine.bounds);
  const wide =
    indent instanceof Text
      ? indent.value
      : indent === null
        ? null
        : ' '.repeat(Math.min(64, Math.max(0, intOf(indent, 0, 'tojson'))));
  const style = {
    ascii: isTrue(ascii),
    indent: wide,
    separators: [
      between === undefined ? (wide === null ? ', ' : ',') : textOfArgument(between, 'tojson').value,
      behind === undefined ? ': ' : textOfArgument(behind, 'tojson').value,
    ] as const,
    sorted: isTrue(sorted),
  };
  return jsonText(value, style, call.machine.bounds);
}

function indented(value: Value, call: Call): Text {
  const [width, first = false, blank = false] = argumentsOf(call, 'indent', 'width', 'first', 'blank');
  if (value instanceof Undefined) value.fail();
  if (!(value instanceof Text)) throw new TemplateFault(`indent of a ${typeName(value)}`);
  const text = value;
  const indent =
    width instanceof Text ? width : Text.own(' '.repeat(Math.min(1000, Math.max(0, intOf(width, 4, 'indent')))));
  const whole = Text.join([text, Text.own('\n')]);
  const lines = linesIn(whole, call);
  call.machine.bounds.letters(text.value.length + lines.length * indent.value.length);
  const isIndented = (line: Text, index: number): boolean =>
    index === 0 ? isTrue(first) : isTrue(blank) || line.value !== '';
  const parts = lines.map((line, index) => (isIndented(line, index) ? Text.join([indent, line]) : line));
  return sameKind(text, Text.join(parts, Text.own('\n')));
}

const linesIn = (text: Text, { machine }: Call): Text[] =>
  TEXT_METHODS.get('splitlines')!(text, { args: [], named: new Map(), machine }) as Text[];

function toInt(value: Value, call: Call): Value {
  const [otherwise = 0n, base = 10n] = argumentsOf(call, 'int', 'default', 'base');
  const number = value instanceof Undefined ? value.fail() : numberOf(value);
  if (typeof number === 'bigint') return number;
  if (number !== undefined) return Number.isFinite(number) ? BigInt(Math.trunc(number)) : otherwise;
  if (!(value instanceof Text)) return otherwise;
  const digits = stripped(value, undefined, 'both', call.machine.bounds).value.replaceAll('_', '');
  const radix = intOf(base, 10, 'int');
  if (radix === 16 && /^[-+]?(?:0x)?[\da-f]+$/i.test(digits)) return BigInt(Number.parseInt(digits, 16));
  if (radix === 10 && /^[-+]?\d{1,4300}$/.test(digits)) return BigInt(digits.replace('+', ''));
  if (radix !== 10 && radix !== 16) throw new TemplateFault(`int in base ${radix}`);
  const float = floatOf(digits);
  return float === null || !Number.isFinite(float) ? otherwise : BigInt(Math.trunc(float));
}

const floatOf = (text: string): number | null =>
  /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i.test(text) ? Number(text) : null;

function toFloat(value: Value, call: Call): Value {
  const [otherwise = 0] = argumentsOf(call, 'float', 'default');
  const number = value instanceof Undefined ? value.fail() : numberOf(value);
  if (number !== undefined) return Number(number);
  if (!(value instanceof Text)) return otherwise;
  return floatOf(stripped(value, undefined, 'both', call.machine.bounds).value) ?? otherwise;
}

function absolute(value: Value): Value {
  const number = value instanceof Undefined ? value.fail() : numberOf(value);
  if (number === undefined) throw new TemplateFault(`abs of a ${typeName(value)}`);
  return number < 0 ? -number : number;
}

function rounded(value: Value, call: Call): Value {
  const [precision, method = Text.own('common')] = argumentsOf(call, 'round', 'precision', 'method');
  const number = value instanceof Undefined ? value.fail() : numberOf(value);
  if (number === undefined) throw new TemplateFault(`round of a ${typeName(value)}`);
  const places = intOf(precision, 0, 'round');
  const how = textOfArgument(method, 'round').value;
  const scale = 10 ** places;
  const float = Number(number);
  if (how === 'ceil') return Math.ceil(float * scale) / scale;
  if (how === 'floor') return Math.floor(float * scale) / scale;
  if (how !== 'common') throw new TemplateFault(`round by ${how}`);
  if (typeof number === 'bigint')
    return places >= 0 ? number : roundedInt(number, 10n ** BigInt(Math.min(400, -places)));
  if (places > 0) return Math.sign(float) * Number(fixed(Math.abs(float), places));
  const whole = Math.round(float * scale);
  // A half goes to the even side, as Python rounds.
  const even = Math.abs(float * scale - Math.trunc(float * scale)) === 0.5 && whole % 2 !== 0 ? whole - 1 : whole;
  return even / scale;
}

function forceEscaped(value: Value, call: Call): Text {
  return escaped(textOf(value, call.machine.bounds).plain, call);
}

/** To a multiple of a scale; a half goes to the even one. */
function roundedInt(number: bigint, scale: bigint): bigint {
  const rest = ((number % scale) + scale) % scale;
  const below = number - rest;
  const goesUp = 2n * rest > scale || (2n * rest === scale && (below / scale) % 2n !== 0n);
  return goesUp ? below + scale : below;
}

function escaped(value: Value, call: Call): Text {
  const text = textOf(value, call.machine.bounds);
  call.machine.bounds.letters(text.value.length);
  return text.escaped;
}

const WORD = new RegExp(`[^-({[<${SPACES.slice(1)}+`, 'g');
const titled = (value: string): string =>
  value.replace(WORD, (word) => {
    const first = String.fromCodePoint(word.codePointAt(0)!);
    return first.toUpperCase() + word.slice(first.length).toLowerCase();
  });

function truncated(value: Value, call: Call): Value {
  const [length, kill = false, end, leeway] = argumentsOf(call, 'truncate', 'length', 'killwords', 'end', 'leeway');
  const most = intOf(length, 255, 'truncate');
  const tail = optionalText(end, '...', call);
  const count = lengthOf(value);
  const over = intOf(leeway, 5, 'truncate');
  if (most < tail.length || over < 0) throw new TemplateFault('truncate to fewer letters than its end has');
  if (count !== undefined && count <= most + over) return value;
  if (!(value instanceof Text)) throw new TemplateFault(`truncate of a ${typeName(value)}`);
  const text = value;
  const cut = text.slice(0, text.unitOf(Math.max(0, most - tail.length)));
  const space = isTrue(kill) ? -1 : cut.value.lastIndexOf(' ');
  const kept = space < 0 ? cut : cut.slice(0, space);
  return text.isMarkup ? Text.join([kept, tail.escaped]).markup : Text.join([kept, tail]);
}

function formatFilter(value: Value, { args, named, machine }: Call): Text {
  const values = new Dict([...named].map(([name, one]) => [Text.own(name), one] as const));
  return formatPercent(textOf(value, machine.bounds), named.size > 0 ? values : new Tuple(args), machine.bounds);
}

function length(value: Value): bigint {
  const count = lengthOf(value);
  if (count === undefined) throw new TemplateFault(`a ${typeName(value)} has no length`);
  return BigInt(count);
}

/** Sizes beyond the first, a thousand times as large each. */
const SIZES: readonly string[] = ['k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];

function fileSize(value: Value, call: Call): Text {
  const [binary = false] = argumentsOf(call, 'filesizeformat', 'binary');
  const bytes = toFloat(value, { ...call, args: [null], named: new Map() });
  if (typeof bytes !== 'number') throw new TemplateFault(`filesizeformat of a ${typeName(value)}`);
  const base = isTrue(binary) ? 1024 : 1000;
  if (bytes === 1) return Text.own('1 Byte');
  if (bytes < base) return Text.own(`${Math.trunc(bytes)} Bytes`);
  const found = SIZES.findIndex((_, at) => bytes < base ** (at + 2));
  const at = found < 0 ? SIZES.length - 1 : found;
  const size = isTrue(binary) ? `${SIZES[at]!.toUpperCase()}iB` : `${SIZES[at]}B`;
  const count = formatPercent(Text.own('%.1f'), (base * bytes) / base ** (at + 2), call.machine.bounds);
  return Text.join([count, Text.own(` ${size}`)]);
}

function xmlAttributes(value: Value, call: Call): Text {
  const [spaced = true] = argumentsOf(call, 'xmlattr', 'autospace');
  if (!(value instanceof Dict)) throw new TemplateFault(`xmlattr of a ${typeName(value)}`);
  const parts = value.entries().flatMap(([key, one]) => {
    if (one === null || one instanceof Undefined) return [];
    const name = textOfArgument(key, 'xmlattr');
    if (/[\s/>=]/.test(name.value)) throw new TemplateFault('the name of an attribute has a letter that none has');
    return [Text.join([escaped(name, call), Text.own('="'), escaped(one, call), Text.own('"')])];
  });
  const all = Text.join(parts, Text.own(' '));
  return isTrue(spaced) && parts.length > 0 ? Text.join([Text.own(' '), all]) : all;
}

const counted = (text: Text): bigint => BigInt(text.value.match(/[\p{L}\p{N}_]+/gu)?.length ?? 0);

/** A text, or pairs as a query has them. */
function urlEncode(value: Value, call: Call): Text {
  const { bounds } = call.machine;
  const quoted = (one: Value): Text => recased(textOf(one, bounds).plain, urlEncoded, bounds);
  if (value instanceof Text || value instanceof Undefined || iterable(value) === undefined) return quoted(value);
  const inQuery = (one: Value): Text =>
    recased(quoted(one), (text) => text.replaceAll('/', '%2F').replaceAll('%20', '+'), bounds);
  const pairs = value instanceof Dict ? value.entries() : itemsOf(value, bounds).map((pair) => itemsOf(pair, bounds));
  const parts = pairs.map((pair) => {
    if (pair.length !== 2) throw new TemplateFault('urlencode takes a text or pairs');
    return Text.join([inQuery(pair[0]!), Text.own('='), inQuery(pair[1]!)]);
  });
  return Text.join(parts, Text.own('&'));
}

function urlized(value: Value, call: Call): Text {
  const { bounds } = call.machine;
  const [most = null, nofollow = false, target = null, rel = null, schemes = null] = argumentsOf(
    call,
    'urlize',
    'trim_url_limit',
    'nofollow',
    'target',
    'rel',
    'extra_schemes',
  );
  const text = textOf(value, bounds).escaped;
  const given =
    rel === null
      ? []
      : textOfArgument(rel, 'urlize')
          .value.split(/\s+/)
          .filter((one) => one !== '');
  const rels = [...new Set([...given, ...(isTrue(nofollow) ? ['nofollow'] : []), 'noopener'])].sort();
  const extra = schemes === null ? [] : itemsOf(schemes, bounds).map((one) => textOfArgument(one, 'urlize'));
  if (!extra.every((one) => /^(?:[\w.+-]{2,}:\/{0,2})$/.test(one.value)))
    throw new TemplateFault('urlize takes the beginnings of addresses');
  const aim = target === null ? null : textOf(target, bounds);
  const style = {
    shown: most === null ? null : intOf(most, 0, 'urlize'),
    attributes: ` rel="${Text.own(rels.join(' ')).escaped.value}"${aim?.value ? ` target="${aim.escaped.value}"` : ''}`,
    schemes: extra.map((one) => one.value),
  };
  return Text.from(withLinks(text.value, style, bounds), text, ...extra, ...(aim === null ? [] : [aim]));
}

function wordWrapped(value: Value, call: Call): Text {
  const { bounds } = call.machine;
  const [width, long = true, between = Text.own('\n'), hyphens = true] = argumentsOf(
    call,
    'wordwrap',
    'width',
    'break_long_words',
    'wrapstring',
    'break_on_hyphens',
  );
  if (value instanceof Undefined) value.fail();
  const wrapping = {
    width: intOf(width, 79, 'wordwrap'),
    breakLongWords: isTrue(long),
    breakOnHyphens: isTrue(hyphens),
  };
  const gap = between === null ? Text.own('\n') : textOfArgument(between, 'wordwrap');
  const text = textOfArgument(value, 'wordwrap');
  const lines = linesIn(text, call);
  if (wrapping.width < 1 && lines.length > 0) throw new TemplateFault('wordwrap to a width of nothing');
  return Text.join(
    lines.map((line) => Text.join(wrapped(line, wrapping, bounds), gap)),
    gap,
  );
}

const urlEncoded = (text: string): string =>
  encodeURIComponent(text)
    .replace(/[!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`)
    .replaceAll('%2F', '/');

const upper = (text: string): string => text.toUpperCase();
const lower = (text: string): string => text.toLowerCase();
const cased = (change: (text: string) => string): Filter =>
  ofText([], (text, _args, call) => recased(text, change, call.machine.bounds));

export const FILTERS: ReadonlyMap<string, Filter> = new Map<string, Filter>([
  ...LIST_FILTERS,
  ['abs', absolute],
  ['attr', (value, { args: [name] }) => attributeOf(value, textOfArgument(name, 'attr').value)],
  ['capitalize', cased(capitalized)],
  ['center', ofText(['width'], (text, [width]) => centered(text, Math.min(1000, intOf(width, 80, 'center')), ' '))],
  ['count', length],
  ['d', defaultValue],
  ['default', defaultValue],
  ['e', escaped],
  ['escape', escaped],
  ['filesizeformat', fileSize],
  ['float', toFloat],
  ['forceescape', forceEscaped],
  ['format', formatFilter],
  ['indent', indented],
  ['int', toInt],
  ['length', length],
  ['lower', cased(lower)],
  ['pprint', (value, { machine }) => pretty(value, machine.bounds)],
  ['random', () => undetermined('random')],
  [
    'replace',
    ofText(['old', 'new', 'count'], (text, [old, now, times], call) =>
      replaced(
        text.plain,
        optionalText(old, '', call),
        optionalText(now, '', call),
        intOf(times, -1, 'replace'),
        call.machine.bounds,
      ),
    ),
  ],
  ['round', rounded],
  ['safe', ofText([], (text) => text.markup)],
  ['string', ofText([], (text) => text)],
  ['striptags', ofText([], (text, _args, call) => Text.from(withoutTags(text.value, call.machine.bounds), text))],
  ['title', ofText([], (text, _args, call) => recased(text.plain, titled, call.machine.bounds))],
  ['tojson', json],
  ['trim', ofText(['chars'], (text, [letters], call) => stripped(text, letters, 'both', call.machine.bounds))],
  ['truncate', truncated],
  ['upper', cased(upper)],
  ['urlencode', urlEncode],
  ['urlize', urlized],
  ['wordcount', ofText([], counted)],
  ['wordwrap', wordWrapped],
  ['xmlattr', xmlAttributes],
]);
