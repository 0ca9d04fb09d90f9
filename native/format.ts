/**
 * What the bytes of a page mean. Every format is described once, in its file of native/formats/; what this module answers (names, order,
 * sizes, moves, candidates) is computed from those descriptions.
 */
import { KvError } from './error.ts';
import { type Family, type FormatDescriptor, fieldBytes, TIERS } from './formats/descriptor.ts';
import { type BUILT_IN_CODECS, FAMILIES, type FormatName, type WindowName } from './formats/index.gen.ts';
import { registeredFamilies } from './formats/registry.ts';
import { PAGE_PART_ALIGN, SIDES, type Side } from './layout.ts';

export { CODED_HEAD_DIMS, TIERS, type Tier } from './formats/descriptor.ts';
export type { FormatName, WindowName } from './formats/index.gen.ts';
export { PAGE_PART_ALIGN, PAGE_TOKENS, SIDES, SINK_TOKENS, type Side, SKETCH_ROWS, TRIAL_QUERIES } from './layout.ts';

/** What of a page a move concerns: one side, or both in one move. */
export type Part = Side | 'kv';
export const PARTS: readonly Part[] = ['k', 'v', 'kv'];
/** The sides of a part. */
export const sidesOf = (part: Part): readonly Side[] => (part === 'kv' ? SIDES : [part]);

/** What is known of a format. */
export interface KvFormat extends FormatDescriptor {
  readonly name: FormatName;
}

/** Name of the C++ file → what is defined there. */
export const ALL_FAMILIES: readonly (readonly [name: string, family: Family])[] = [
  ...Object.entries(FAMILIES),
  ...registeredFamilies(),
];

const ORDERED = ALL_FAMILIES.flatMap(([, family]) => family.formats as readonly KvFormat[]).sort(
  (a, b) => a.rank - b.rank,
);

/** Names in order of quality, best first. The place in this list is what tables of pages hold; the id crosses to C++. */
export const FORMAT_NAMES: readonly FormatName[] = ORDERED.map(({ name }) => name);

export const FORMATS: Readonly<Record<FormatName, KvFormat>> = Object.freeze(
  Object.fromEntries(ORDERED.map((format) => [format.name, format])) as Record<FormatName, KvFormat>,
);

/** The readable reference of every format: the specification that the kernels are tested against. */
export const CODECS: typeof BUILT_IN_CODECS = Object.freeze(
  Object.assign({}, ...ALL_FAMILIES.map(([, { codecs }]) => codecs)),
);

/** Place in FORMAT_NAMES of an id that came from C++, −1 for none. */
export const rankOfId = (id: number): number => ORDERED.findIndex((format) => format.id === id);

/** The format of an id that came from C++. */
export const nameOfId = (id: number): FormatName => FORMAT_NAMES[rankOfId(id)]!;

/** What a page is sealed in unless it must be exact. */
export const WINDOW_FORMAT: WindowName = 'q8';
/** Formats that a page which has left the window is tried in, best first. */
export const TRIAL_CANDIDATES: readonly FormatName[] = FORMAT_NAMES.filter((name) => FORMATS[name].tier !== TIERS[0]);
/** The coarsest format. */
export const LOWEST_FORMAT: FormatName = FORMAT_NAMES.at(-1)!;

/** Whether a page side may go from one format to another, sizes apart. */
export function isMove(from: FormatName, to: FormatName): boolean {
  const sources = FORMATS[to].from;
  return from === to || (sources === 'better' ? FORMATS[from].rank < FORMATS[to].rank : sources.includes(from));
}

/** Whether a format serves a head size. */
export function servesHeadDim(format: FormatName, headDim: number): boolean {
  const { headDims } = FORMATS[format];
  return headDims === 'any' || headDims.includes(headDim);
}

const align = (bytes: number): number => Math.ceil(bytes / PAGE_PART_ALIGN) * PAGE_PART_ALIGN;

/** Bytes that one sealed page of one side takes in the pool, padding included: exactly what is allocated. */
export function pageBytes(format: FormatName, kvHeads: number, headDim: number): number {
  return FORMATS[format].parts.reduce(
    (sum, { fields }) => sum + align(kvHeads * fields.reduce((bytes, field) => bytes + fieldBytes(field, headDim), 0)),
    0,
  );
}

export function isFormatName(name: string): name is FormatName {
  return (FORMAT_NAMES as readonly string[]).includes(name);
}

/** ggml and engine names that mean one of ours in all but layout; anything else is refused by name. */
export function parseFormat(text: string): FormatName {
  const name = text.trim().toLowerCase();
  if (isFormatName(name)) return name;
  if (name === 'fp16') return 'f16';
  throw new KvError('unsupported', `unknown cache type '${text}'`, {
    values: { given: text, known: FORMAT_NAMES.join(', ') },
    hint: `use one of ${FORMAT_NAMES.join(', ')}, or a pair such as rot4:rot2 for K:V`,
  });
}

/** Formats of keys and values. */
export interface FormatPair {
  /** Format of keys. */
  readonly k: FormatName;
  /** Format of values. */
  readonly v: FormatName;
}

/** Parses `rot4` or `rot4:rot2` (K:V). */
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
