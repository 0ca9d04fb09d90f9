/** A few words that say what a session was like, as a fingerprint and a filter: 'german novel, 25%, long'. */
import { type Condition, type Filter, type Fingerprint, fingerprint, type Measurements } from '../memory/index.ts';
import { KvError } from '../native/index.ts';

/**
 * What a word says: numbers of the fingerprint, which order what is found, and conditions, which leave out the rest.
 */
interface Meaning {
  readonly axes?: Partial<Measurements>;
  readonly must?: readonly Condition[];
}

const tokens = (axis: number, range: { readonly min?: number; readonly max?: number }): Meaning => ({
  axes: { tokens: axis },
  must: [{ field: 'tokens', range }],
});

const is = (field: string, equals: string): Meaning => ({ must: [{ field, equals }] });

/**
 * Kinds of content are means over windows of 1,024 tokens with the tokenizer of SmolLM2: eight English novels, two
 * splits of WikiText-2, eight files of Python and four German novels. A language comes last, since it says more of the
 * bytes of a token than a genre does.
 */
const KINDS: Readonly<Record<string, Partial<Measurements>>> = {
  novel: { bytesPerToken: 4.01, letterShare: 0.775, foreignShare: 0, distinctShare: 0.45 },
  encyclopedia: { bytesPerToken: 4.04, letterShare: 0.72, foreignShare: 0.003, distinctShare: 0.31 },
  code: { bytesPerToken: 4.04, letterShare: 0.556, foreignShare: 0, distinctShare: 0.28 },
  english: { bytesPerToken: 4.02, foreignShare: 0 },
  german: { bytesPerToken: 2.59, letterShare: 0.771, foreignShare: 0.039, distinctShare: 0.38 },
};

/** Every word that has a meaning of its own, in the order in which meanings are put together. */
const WORDS: Readonly<Record<string, Meaning>> = {
  ...Object.fromEntries(Object.entries(KINDS).map(([kind, axes]) => [kind, { axes }])),
  short: tokens(512, { max: 1023 }),
  medium: tokens(2048, { min: 1024, max: 4095 }),
  long: tokens(8192, { min: 4096 }),
  price: is('policy', 'price'),
  uniform: is('policy', 'uniform'),
  age: is('policy', 'age'),
  fixed: is('policy', 'fixed'),
  done: is('reason', 'done'),
  failed: is('reason', 'error'),
  measured: { must: [{ field: 'meanKld', range: { min: 0 } }] },
};

const ALSO: Readonly<Record<string, string>> = {
  novels: 'novel',
  wiki: 'encyclopedia',
  python: 'code',
  program: 'code',
};
/** Words that say nothing. */
const EMPTY = new Set([
  'a',
  'an',
  'and',
  'at',
  'of',
  'with',
  'in',
  'the',
  'text',
  'texts',
  'tokens',
  'budget',
  'sessions',
]);

/** How far from what was said a number may be: a quarter of it. */
const SLACK = 0.25;
const around = (value: number): { readonly min: number; readonly max: number } => ({
  min: value * (1 - SLACK),
  max: value * (1 + SLACK),
});

/** '25%': bits per number of the cache, 16 in f16. '4k': tokens. */
function meaningOf(word: string, models: ReadonlyMap<string, string>): Meaning | null {
  const name = ALSO[word] ?? word;
  if (Object.hasOwn(WORDS, name)) return WORDS[name]!;
  const percent = /^(\d{1,3}(?:\.\d{1,3})?)%$/.exec(word)?.[1];
  if (percent !== undefined && Number(percent) > 0) {
    const share = Number(percent) / 100;
    return { axes: { pressure: share }, must: [{ field: 'effectiveBits', range: around(16 * share) }] };
  }
  const [, count, k] = /^(\d{1,7})(k?)$/.exec(word) ?? [];
  if (count !== undefined && Number(count) > 0) {
    const length = Number(count) * (k === 'k' ? 1024 : 1);
    const { min, max } = around(length);
    return tokens(length, { min: Math.floor(min), max: Math.ceil(max) });
  }
  const digest = models.get(word);
  return digest === undefined ? null : is('modelDigest', digest);
}

/** What was understood of the words. */
export interface WordsMeaning {
  /** What sessions are compared with; axes that no word speaks of stand at their neutral values. */
  readonly fingerprint: Fingerprint;
  /** What they must be. */
  readonly filter: Filter;
}

/**
 * Words, separated by spaces or commas, in any order. `models`: names of models in lower case, and their digests.
 * Throws 'bad-argument' naming words that mean nothing here, and those that contradict each other are left to find
 * nothing.
 */
export function meaningOfWords(text: string, models: ReadonlyMap<string, string> = new Map()): WordsMeaning {
  const words = text
    .toLowerCase()
    .split(/[\s,;]+/)
    .filter((word) => word !== '' && !EMPTY.has(word));
  const unknown = words.filter((word) => meaningOf(word, models) === null);
  if (unknown.length > 0 || words.length === 0)
    throw new KvError(
      'bad-argument',
      words.length === 0
        ? 'no word says what sessions are to be like'
        : `no meaning is known of ${unknown.map((word) => `'${word}'`).join(', ')}`,
      {
        values: { unknown: unknown.join(' ') },
        hint: `known are ${Object.keys(WORDS).join(', ')}, a share of f16 such as 25%, a length such as 4k, and models of the log${models.size === 0 ? '' : ` (${[...models.keys()].slice(0, 5).join(', ')})`}`,
      },
    );
  const order = Object.keys(WORDS);
  const sorted = [...words].sort((a, b) => order.indexOf(ALSO[a] ?? a) - order.indexOf(ALSO[b] ?? b));
  let axes: Partial<Measurements> = {};
  const must: Condition[] = [];
  for (const word of sorted) {
    const meaning = meaningOf(word, models)!;
    axes = { ...axes, ...meaning.axes };
    must.push(...(meaning.must ?? []));
  }
  // Axes without a measurement are neutral; NaN stands for one.
  const unknownShape = { layers: Number.NaN, queryHeads: Number.NaN, kvHeads: Number.NaN, headDim: Number.NaN };
  return { fingerprint: fingerprint({ ...unknownShape, tokens: Number.NaN, ...axes }), filter: { must } };
}
