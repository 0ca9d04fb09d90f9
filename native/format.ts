/**
 * The formats of pages: their names, order and sizes, and which moves between them are possible. All of this is
 * computed from the descriptors in native/formats/, where each format is described once.
 */
import { KvError } from './error.ts';
import { type Family, type FormatDescriptor, fieldBytes, TIERS } from './formats/descriptor.ts';
import { type BUILT_IN_CODECS, FAMILIES, type FormatName, type WindowName } from './formats/index.gen.ts';
import { registeredFamilies, servesYardsticks } from './formats/registry.ts';
import { PAGE_PART_ALIGN, PAGE_TOKENS, padded, SIDES, type Side } from './layout.ts';

export { CODED_HEAD_DIMS, TIERS, type Tier } from './formats/descriptor.ts';
export type { FormatName, WindowName } from './formats/index.gen.ts';
export { PAGE_PART_ALIGN, PAGE_TOKENS, SIDES, SINK_TOKENS, type Side, SKETCH_ROWS, TRIAL_QUERIES } from './layout.ts';

/** The largest number that a row may hold: the largest half. */
export const ROW_MOST = 65504;

/** The part of a page that a move concerns: one side, or both. */
export type Part = Side | 'kv';
export const PARTS: readonly Part[] = ['k', 'v', 'kv'];
/** The sides of a part. */
export const sidesOf = (part: Part): readonly Side[] => (part === 'kv' ? SIDES : [part]);

/** The properties of a format. */
export interface KvFormat extends FormatDescriptor {
  readonly name: FormatName;
}

/** Every family of formats with its name, which is that of its files. */
export const ALL_FAMILIES: readonly (readonly [name: string, family: Family])[] = [
  ...Object.entries(FAMILIES),
  ...registeredFamilies(),
];

const ORDERED = ALL_FAMILIES.flatMap(([, family]) => family.formats as readonly KvFormat[]).sort(
  (a, b) => a.rank - b.rank,
);

/** The names of all formats, best first. Page tables hold indices into this list, and C++ uses ids. */
export const FORMAT_NAMES: readonly FormatName[] = ORDERED.map(({ name }) => name);

export const FORMATS: Readonly<Record<FormatName, KvFormat>> = Object.freeze(
  Object.fromEntries(ORDERED.map((format) => [format.name, format])) as Record<FormatName, KvFormat>,
);

/** The reference implementation of every format, which the kernels are tested against. */
export const CODECS: typeof BUILT_IN_CODECS = Object.freeze(
  Object.assign({}, ...ALL_FAMILIES.map(([, { codecs }]) => codecs)),
);

/** The index in FORMAT_NAMES of the format with an id of C++, or −1 if there is none. */
export const rankOfId = (id: number): number => ORDERED.findIndex((format) => format.id === id);

/** The format with an id of C++. */
export const nameOfId = (id: number): FormatName => FORMAT_NAMES[rankOfId(id)]!;

/** The format in which a page is sealed, unless it must be exact. */
export const WINDOW_FORMAT: WindowName = 'q8';
/** True if a format is a published method to compare with. Only a build with yardsticks computes it. */
export const isYardstick = (format: FormatName): boolean => FORMATS[format].yardstick === true;
/**
 * True if policies choose a format wherever a page goes down, and not only where a session's cache types name it or
 * keys have outlier channels.
 */
export const isAutomatic = (format: FormatName): boolean =>
  !isYardstick(format) && FORMATS[format].forOutlierKeys !== true;
/** True if the binary of this process computes a format. */
export const isServed = (format: FormatName): boolean => servesYardsticks() || !isYardstick(format);
/** The formats that the binary of this process computes, best first. */
export const servedFormats = (): readonly FormatName[] => FORMAT_NAMES.filter(isServed);
/**
 * The same as far as it is known when the package is imported: without the yardsticks that palimpsest-lab brings later,
 * which isServed() tells.
 */
export const SERVED_FORMATS: readonly FormatName[] = servedFormats();

/** The families of the formats that are served, with what of each is computed. */
export const servedFamilies = (): readonly (readonly [name: string, formats: readonly FormatDescriptor[]])[] =>
  ALL_FAMILIES.map(
    ([name, { formats }]) => [name, formats.filter((format) => isServed(format.name as FormatName))] as const,
  ).filter(([, formats]) => formats.length > 0);

/** Throws 'unsupported' for a yardstick where the binary does not compute those, and says how to have it. */
export function checkServed(format: FormatName): FormatName {
  if (isServed(format)) return format;
  throw new KvError('unsupported', `${format} is a yardstick, which this build does not compute`, {
    values: { given: format, served: servedFormats().join(', ') },
    hint: 'palimpsest-lab brings it: once that is installed, palimpsest evaluate has it, and so has any program under node --import palimpsest-lab/register; from a checkout, npm run evaluate and npm run bench -- --yardsticks have it, and other programs with npm run build:native -- --yardsticks and node --import ./native/yardsticks/register.ts',
  });
}

/** The formats that a page may be demoted to once it has left the window, best first; yardsticks among them. */
export const LOWER_FORMATS: readonly FormatName[] = FORMAT_NAMES.filter((name) => FORMATS[name].tier !== TIERS[0]);
/** The formats that policies choose from where nothing else is named. */
export const TRIAL_CANDIDATES: readonly FormatName[] = LOWER_FORMATS.filter(isAutomatic);
/** The format that has the bytes of this one and errs less, if there is one. */
export const replacementOf = (format: FormatName): FormatName | undefined =>
  FORMAT_NAMES.find((name) => FORMATS[name].replaces === format);
/** True if policies put a side in a format. */
export const servesSide = (format: FormatName, side: Side): boolean => (FORMATS[format].sides ?? SIDES).includes(side);
/** The coarsest format of each side that policies choose. */
export const LOWEST_FORMATS: FormatPair = Object.freeze({
  k: TRIAL_CANDIDATES.findLast((name) => servesSide(name, 'k'))!,
  v: TRIAL_CANDIDATES.findLast((name) => servesSide(name, 'v'))!,
});

/** True if a side of a page may move from one format to another, if both serve the head size. */
export function isMove(from: FormatName, to: FormatName): boolean {
  const sources = FORMATS[to].from;
  return from === to || (sources === 'better' ? FORMATS[from].rank < FORMATS[to].rank : sources.includes(from));
}

/** True if a format serves a head size. */
export function servesHeadDim(format: FormatName, headDim: number): boolean {
  const { headDims } = FORMATS[format];
  return headDims === 'any' || headDims.includes(headDim);
}

/**
 * The bytes that one side of a page takes in the pool, padding included. `room`: tokens that there is room for, fewer
 * than a page where it is open.
 */
export function pageBytes(format: FormatName, kvHeads: number, headDim: number, room: number = PAGE_TOKENS): number {
  return FORMATS[format].parts.reduce(
    (sum, { fields }) =>
      sum +
      padded(kvHeads * fields.reduce((bytes, field) => bytes + fieldBytes(field, headDim, room), 0), PAGE_PART_ALIGN),
    0,
  );
}

export function isFormatName(name: string): name is FormatName {
  return (FORMAT_NAMES as readonly string[]).includes(name);
}

/** Names of ggml and of other engines for formats that are like one of ours except for their layout. */
export function parseFormat(text: string): FormatName {
  const name = text.trim().toLowerCase();
  if (isFormatName(name)) return checkServed(name);
  if (name === 'fp16') return 'f16';
  throw new KvError('unsupported', `unknown cache type '${text}'`, {
    values: { given: text, known: servedFormats().join(', ') },
    hint: `use one of ${servedFormats().join(', ')}, or a pair such as rot4:rot2 for K:V`,
  });
}

/** The formats of keys and values. */
export interface FormatPair {
  /** The format of keys. */
  readonly k: FormatName;
  /** The format of values. */
  readonly v: FormatName;
}

/** Parses one format for both sides, such as `rot4`, or one for each, such as `rot4:rot2` (K:V). */
export function parsePair(text: string): FormatPair {
  const parts = text.split(':');
  if (parts.length > 2) {
    throw new KvError('unsupported', `'${text}' is not a cache type or a K:V pair`, {
      values: { given: text },
      hint: 'write rot4 or rot4:rot2',
    });
  }
  const k = parseFormat(parts[0] ?? '');
  return { k, v: parts[1] === undefined ? k : parseFormat(parts[1]) };
}
