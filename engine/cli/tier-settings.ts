/** The flags of policy `tiers`, and the option that they make together. */
import { InvalidArgumentError } from 'commander';
import { given, KvError } from '../../native/index.ts';
import { type TierOptions, type TiersOptions, tiersAsked } from '../../policy/index.ts';
import { layerList } from './layer-list.ts';

/** '512,q8', '25%' or 'trellis4:trellis2': the size, the formats, or both. */
function tierOf(text: string): TierOptions {
  const parts = text.split(',').map((part) => part.trim());
  const [first, second] = parts;
  if (parts.length > 2 || first === undefined || first === '' || second === '')
    throw new InvalidArgumentError(`'${text}' is no size and formats such as 512,q8.`);
  if (second !== undefined) return { size: sizeOf(first), types: second };
  return /^\d/.test(first) ? { size: sizeOf(first) } : { types: first };
}

const sizeOf = (text: string): number | string => (/^\d+$/.test(text) ? Number(text) : text);

/** Throws what commander tells of a flag if the options of a tier do not fit. */
function checked(options: TiersOptions): TiersOptions {
  try {
    tiersAsked(options);
    return options;
  } catch (error) {
    if (error instanceof KvError) throw new InvalidArgumentError(`${error.message}.`);
    throw error;
  }
}

const number = (text: string): number => (text.trim() === '' ? Number.NaN : Number(text));

/** How the texts of the flags are read. Whether tiers fit each other is seen when all are known. */
export const TIER_READERS = {
  tierHot: (text: string): TierOptions => tierOf(text),
  tierWarm: (text: string): TierOptions => tierOf(text),
  tierCold: (text: string): TierOptions => ({ types: text }),
  tierImportance: (text: string): number => checked({ importance: number(text) }).importance!,
  tierDecay: (text: string): number => checked({ decay: number(text) }).decay!,
  tierAnchors: (text: string): readonly number[] => layerList(text),
  tierGroup: (text: string): number => checked({ group: number(text) }).group!,
};

const NAMES = {
  hot: 'tierHot',
  warm: 'tierWarm',
  cold: 'tierCold',
  importance: 'tierImportance',
  decay: 'tierDecay',
  anchors: 'tierAnchors',
  group: 'tierGroup',
} as const satisfies Record<keyof TiersOptions, keyof typeof TIER_READERS>;

/** The tiers that settings ask for; undefined: none. Throws 'bad-argument', 'unsupported'. */
export function tiersOf(settings: Readonly<Record<string, unknown>>): TiersOptions | undefined {
  const entries = Object.entries(NAMES).map(([option, setting]) => [option, settings[setting]]);
  const options = given<TiersOptions>(Object.fromEntries(entries) as TiersOptions);
  if (Object.keys(options).length === 0) return undefined;
  tiersAsked(options);
  return options;
}
