/**
 * What the policy `tiers` takes: how large each tier is, in which formats, and what keeps a page in it. Everything is
 * made explicit here, so that the log of a session says what it was governed by.
 */
import {
  checkServed,
  FORMATS,
  type FormatName,
  type FormatPair,
  isMove,
  KvError,
  PAGE_TOKENS,
  pageEnd,
  pageOf,
  parsePair,
  SIDES,
  show,
  unknownName,
} from '../../native/index.ts';
import type { PolicyContext } from '../types.ts';
import { checkPair } from '../unsafe.ts';

/**
 * The most that a tier holds of each layer: a number of tokens, `'4 pages'`, or `'25%'` of the bytes of the budget.
 * Pages are whole: what is begun counts.
 */
export type TierSize = number | string;

/** A tier that has an end. */
export interface TierOptions {
  /** The most that it holds, of each layer beside its window. */
  readonly size?: TierSize;
  /** Formats of its keys and values: a pair, as { k, v } or as 'trellis4:trellis3'. */
  readonly types?: FormatPair | string;
}

/** Options of policy `tiers`. */
export interface TiersOptions {
  /** The tier that pages enter when they leave the window. Default 512 tokens in q8. */
  readonly hot?: TierOptions;
  /** The tier of pages that the hot one has no place for. Default 4096 tokens in trellis4:trellis4. */
  readonly warm?: TierOptions;
  /** The tier of all others, which has no end. Default trellis3:trellis1. */
  readonly cold?: Pick<TierOptions, 'types'>;
  /**
   * The share of a tier's places, 0 to 1, that go to the pages with most attention; the newest pages have the others.
   * Default 0.5.
   */
  readonly importance?: number;
  /** What the attention of earlier queries counts, a page of tokens later: 0 to 1. Default 0.5. */
  readonly decay?: number;
  /** Pages, from 0, that stay in the hot tier of every layer before all others. Default: none; sinks always stay. */
  readonly anchors?: readonly number[];
  /**
   * Numbers that are to share a scale in the formats below q8. Every format has one such size; another is refused.
   * Default: that of the formats.
   */
  readonly group?: number;
}

export const TIER_NAMES = ['hot', 'warm', 'cold'] as const;
export type TierName = (typeof TIER_NAMES)[number];

/** How large a tier is: so many pages of each layer, or such a share of the bytes of the budget. */
export type TierRoom = { readonly pages: number } | { readonly share: number };

/** A tier with nothing left out. */
interface TierAsked {
  readonly size: TierSize;
  readonly types: FormatPair;
}

/** The options with nothing left out but the group, as the log has them. */
export interface TiersAsked {
  readonly hot: TierAsked;
  readonly warm: TierAsked;
  readonly cold: Pick<TierAsked, 'types'>;
  readonly importance: number;
  readonly decay: number;
  readonly anchors: readonly number[];
  readonly group?: number;
}

const DEFAULTS = {
  hot: { size: 512, types: 'q8:q8' },
  warm: { size: 4096, types: 'trellis4:trellis4' },
  cold: { types: 'trellis3:trellis1' },
  importance: 0.5,
  decay: 0.5,
} as const;

/** Far more pages than any session has. */
const PAGES_MAX = 1_000_000;
const EXAMPLE = "tiers: { hot: { size: 512 }, warm: { size: '25%', types: 'trellis4:trellis3' } }";

const refuse = (path: string, value: unknown, says: string): never => {
  throw new KvError('bad-argument', `tiers.${path} must be ${says}`, {
    values: { path, given: show(value) },
    hint: `for example ${EXAMPLE}`,
  });
};

/** The fields of a table and nothing else. Throws 'bad-argument'. */
function tableOf(path: string, value: unknown, known: readonly string[]): Readonly<Record<string, unknown>> {
  if (value === undefined) return {};
  const isTable = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (!isTable)
    throw new KvError('bad-argument', `${path} must be a table`, {
      values: { path, given: show(value) },
      hint: `for example ${EXAMPLE}`,
    });
  for (const name of Object.keys(value))
    if (!known.includes(name)) throw unknownName('bad-argument', `${path} has no field`, name, known);
  return value as Readonly<Record<string, unknown>>;
}

/** Reads a size as people write it. Throws 'bad-argument'. */
export function roomOf(path: string, size: unknown): TierRoom {
  const says = "a number of tokens, '4 pages' or '25%' of the budget";
  if (typeof size !== 'number' && typeof size !== 'string') return refuse(path, size, says);
  const [, digits, unit] = /^(\d{1,9}(?:\.\d{1,6})?)\s*(tokens?|pages?|%)?$/.exec(String(size).trim()) ?? [];
  if (digits === undefined) return refuse(path, size, says);
  const count = Number(digits);
  if (unit === '%') return count <= 100 ? { share: count / 100 } : refuse(path, size, 'at most 100%');
  const pages = Math.ceil(unit?.startsWith('page') === true ? count : pageOf(pageEnd(count)));
  if (!Number.isInteger(count) || pages > PAGES_MAX) return refuse(path, size, says);
  return { pages };
}

/** Throws 'bad-argument' and, for formats that nothing should be set to, 'unsupported'. */
function typesOf(path: string, types: unknown): FormatPair {
  const pair =
    typeof types === 'string' ? parsePair(types) : (tableOf(`tiers.${path}`, types, SIDES) as unknown as FormatPair);
  for (const side of SIDES) {
    if (!Object.hasOwn(FORMATS, pair[side] ?? '')) refuse(path, types, "a pair of formats such as 'trellis4:trellis2'");
    checkServed(pair[side]);
  }
  checkPair(pair.k, pair.v);
  return { k: pair.k, v: pair.v };
}

function numberOf(path: 'importance' | 'decay', value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value <= 1) return value;
  return refuse(path, value, 'a number from 0 to 1');
}

const isPage = (page: unknown): boolean => Number.isInteger(page) && Number(page) >= 0 && Number(page) < PAGES_MAX;

/** Makes options explicit. Throws 'bad-argument', 'unsupported'. */
export function tiersAsked(options: unknown): TiersAsked {
  const names = [...TIER_NAMES, 'importance', 'decay', 'anchors', 'group'];
  const given = tableOf('tiers', options, names);
  const tier = (name: TierName): Readonly<Record<string, unknown>> => ({
    ...DEFAULTS[name],
    ...tableOf(`tiers.${name}`, given[name], name === 'cold' ? ['types'] : ['size', 'types']),
  });
  const bounded = (name: 'hot' | 'warm'): TierAsked => {
    const { size, types } = tier(name);
    roomOf(`${name}.size`, size);
    return { size: size as TierSize, types: typesOf(`${name}.types`, types) };
  };
  const { anchors = [], group, importance = DEFAULTS.importance, decay = DEFAULTS.decay } = given;
  if (!Array.isArray(anchors) || !anchors.every(isPage)) refuse('anchors', anchors, 'a list of pages, from 0');
  if (group !== undefined && !(Number.isInteger(group) && Number(group) > 0))
    refuse('group', group, 'a whole number above 0');
  const asked: TiersAsked = {
    hot: bounded('hot'),
    warm: bounded('warm'),
    cold: { types: typesOf('cold.types', tier('cold')['types']) },
    importance: numberOf('importance', importance),
    decay: numberOf('decay', decay),
    anchors: [...new Set(anchors as number[])].sort((a, b) => a - b),
    ...(group === undefined ? {} : { group: group as number }),
  };
  checkWayDown(asked);
  return asked;
}

/** Every tier must be one that pages can reach from the one above. Throws 'unsupported'. */
function checkWayDown(asked: TiersAsked): void {
  for (const [above, below] of [
    ['hot', 'warm'],
    ['warm', 'cold'],
    ['hot', 'cold'],
  ] as const) {
    for (const side of SIDES) {
      const [from, to] = [asked[above].types[side], asked[below].types[side]];
      if (isMove(from, to)) continue;
      throw new KvError(
        'unsupported',
        `pages of the ${above} tier cannot go from ${from} to ${to} in the ${below} one`,
        {
          values: { path: `${below}.types`, side, from, to },
          hint: 'give a lower tier the same formats or coarser ones, of the same family where a format asks for that',
        },
      );
    }
  }
}

/** Bytes of a scale that several tokens of a channel share: a half. */
const SCALE_BYTES = 2;

/** Numbers that share a scale: some tokens of a channel where scales belong to channels, else a token of a head. */
function groupOf(format: FormatName, headDim: number): number {
  const scales = FORMATS[format].parts.flatMap(({ fields }) => fields).find(({ name }) => name === 'scales');
  return scales?.channelBytes === undefined ? headDim : (PAGE_TOKENS * SCALE_BYTES) / scales.channelBytes;
}

/** Refuses groups that the formats of the tiers do not have. Throws 'unsupported'. */
export function checkGroup({ group, ...asked }: TiersAsked, { headDim }: PolicyContext): void {
  if (group === undefined) return;
  for (const name of TIER_NAMES) {
    for (const side of SIDES) {
      const format = asked[name].types[side];
      if (FORMATS[format].tier === 'exact' || groupOf(format, headDim) === group) continue;
      const others = (Object.keys(FORMATS) as FormatName[]).filter(
        (one) => FORMATS[one].yardstick !== true && FORMATS[one].tier !== 'exact' && groupOf(one, headDim) === group,
      );
      throw new KvError(
        'unsupported',
        `a scale of ${format} is for ${groupOf(format, headDim)} numbers, which the format fixes, and not for ${group}`,
        {
          values: { path: `${name}.types`, side, format, group: groupOf(format, headDim), asked: group },
          hint:
            others.length === 0
              ? 'leave group out: no format has groups of this size'
              : `leave group out, or use ${others.join(', ')}`,
        },
      );
    }
  }
}

/** Where there is no budget, no tier can have a share of it. Throws 'unsupported'. */
export function checkOwnSizes(options: unknown): void {
  const asked = tiersAsked(options);
  for (const name of ['hot', 'warm'] as const) {
    const { size } = asked[name];
    if ('pages' in roomOf(`${name}.size`, size)) continue;
    throw new KvError('unsupported', `the ${name} tier is to have ${size} of a budget of bytes, and there is none`, {
      values: { path: `${name}.size`, size },
      hint: 'give a kvBudget, or a size in tokens or pages',
    });
  }
}
