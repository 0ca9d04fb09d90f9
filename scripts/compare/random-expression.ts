/** Random expressions of Jinja over the names that test/golden/templates/constructs.json gives. */

/** A number from 0 up to below 1. */
export type Chance = () => number;

const NAMES = 'c w e t q u s m n yes no i f big l ls d empty messages tools zz'.split(' ');
const LITERALS = [
  '0',
  '1',
  '-3',
  '2.5',
  '0.0',
  '1e16',
  '""',
  "'b'",
  "'a-b c'",
  "'<b>&amp; x</b>'",
  "'x@y.org www.a.com'",
  "'one two three four five six seven eight nine ten, eleven-twelve'",
  "'Aa Bb'",
  "'\\ta\\tb\\n'",
  'none',
  'true',
  'false',
  '[]',
  '{}',
  '()',
  '[3, 1, 2]',
  "['b', 'A', 'c']",
  "{'k': 1, 'a': [1, 2.0]}",
  "(1, 'x')",
  'range(3)',
  'range(4, 0, -2)',
  "('<i>' | safe)",
  '(q | e)',
  'd.items()',
  'namespace(a=1)',
  "dict(a=1, b='x')",
];
/** Filters with what they may be given: e an expression, t a text, i a small number, b a truth; =: by name. */
const FILTERS =
  `abs|attr t|batch i|batch i e|capitalize|center i|count|default e|default e b|dictsort|dictsort b|dictsort b t|e|
  escape|filesizeformat|filesizeformat b|first|float|float e|forceescape|format e|format e e|groupby t|groupby i|indent|
  indent i|indent i b b|indent t|int|int e|items|join|join t|join t t|last|length|list|lower|map t|map attribute=t|max|min|
  pprint|reject t|rejectattr t|replace t t|replace t t i|reverse|round|round i|round i t|safe|select|select t|selectattr t|
  slice i|slice i e|sort|sort b|sort b b|string|sum|sum start=e|title|tojson|tojson indent=i|trim|trim t|truncate|
  truncate i|truncate i b t i|unique|unique b|upper|urlencode|urlize|urlize i|urlize i b|wordcount|wordwrap i|wordwrap i b|
  wordwrap i b t|xmlattr|xmlattr b`.split(/\|\s*/);
const METHODS =
  `capitalize|casefold|center i|center i t|count t|count e|endswith t|expandtabs|expandtabs i|find t|find t i|format e|
  format e e|get t|get t e|index t|index e|isalnum|isalpha|isascii|isdecimal|isdigit|isidentifier|islower|isnumeric|isprintable|
  isspace|istitle|isupper|items|join e|keys|ljust i|ljust i t|lower|lstrip|lstrip t|partition t|removeprefix t|removesuffix t|
  replace t t|replace t t i|rfind t|rindex t|rjust i|rpartition t|rsplit|rsplit t|rsplit t i|rstrip|rstrip t|split|split t|
  split t i|splitlines|splitlines b|startswith t|startswith t i|strip|strip t|swapcase|title|upper|values|zfill i`.split(
    /\|\s*/,
  );
const TESTS =
  `boolean|callable|defined|divisibleby i|eq e|escaped|even|false|float|ge e|gt e|in e|integer|iterable|le e|lower|lt e|
  mapping|ne e|none|number|odd|sameas e|sequence|string|true|undefined|upper`.split(/\|\s*/);
const TEXTS = [
  "'a'",
  "'b'",
  "' '",
  "''",
  "'-'",
  "'role'",
  "'upper'",
  "'k'",
  "'value'",
  "'floor'",
  "'%s-%s'",
  "'{}{}'",
  'w',
  'c',
];
const SIGNS = '+ - / // % ~ == != < <= > >= in and or'.split(' ');

export function randomExpression(chance: Chance, depth = 3): string {
  const one = <T>(list: readonly T[]): T => list[Math.floor(chance() * list.length)]!;
  const inner = (): string => `(${randomExpression(chance, depth - 1)})`;
  const arg = (kind: string): string => {
    const [name, of = name] = kind.includes('=') ? kind.split('=') : ['', kind];
    const value = {
      e: inner,
      t: () => one(TEXTS),
      i: () => one(['-1', '0', '1', '2', '5', '9', '30']),
      b: () => one(['true', 'false']),
    };
    return `${kind.includes('=') ? `${name}=` : ''}${value[of as 'e' | 't' | 'i' | 'b']()}`;
  };
  const call = (words: string): string => {
    const [name, ...kinds] = words.split(' ');
    return `${name}(${kinds.map(arg).join(', ')})`;
  };
  if (depth === 0 || chance() < 0.15) return chance() < 0.5 ? one(NAMES) : one(LITERALS);
  const made: readonly (() => string)[] = [
    () => `${inner()} | ${call(one(FILTERS))}`,
    () => `${inner()} | ${call(one(FILTERS))} | ${call(one(FILTERS))}`,
    () => `${inner()} | ${call(one(FILTERS))} | list`,
    () => `${inner()}.${call(one(METHODS))}`,
    () => `${one(NAMES)}.${call(one(METHODS))}`,
    () => `${inner()} ${one(SIGNS)} ${inner()}`,
    () => `${inner()} is ${call(one(TESTS)).replace('()', '')}`,
    () => `${inner()}[${one(['0', '-1', "'k'", '5'])}]`,
    () => `(${one(NAMES)} | ${call(one(FILTERS))})[${one(['1:', ':2', '::-1', ':-1'])}]`,
    () => `${one([...NAMES, "'<b>&amp; x</b> &lt;y&gt &#65;&#x263a; <!-- c --> d'"])} | striptags`,
    () => `[${inner()}, ${inner()}]`,
    () => `(${inner()}, ${inner()})`,
    () => `{${one(TEXTS)}: ${inner()}, ${inner()}: 1}`,
    () => `${inner()} if ${inner()} else ${inner()}`,
    () => `${one(TEXTS)} * ${one(['0', '2', '3'])}`,
  ];
  return one(made)();
}
