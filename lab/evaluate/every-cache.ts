/** Every cache that this version knows: formats from their registry, policies and methods from theirs. */
import { ALL_FAMILIES, FORMAT_NAMES, FORMATS, type FormatName, type Side, servesSide } from '../../native/index.ts';
import { isUselessPair, policies } from '../../policy/index.ts';
import { kvarnOf } from '../methods/kvarn.ts';
import { kvQuantOf } from '../methods/kvquant.ts';
import { methodCaches } from '../methods/methods.ts';
import { modifiedOf } from '../methods/modifiers.ts';
import { oscarOf } from '../methods/oscar.ts';
import { rotateKvOf } from '../methods/rotatekv.ts';
import { transformOf } from '../methods/transform.ts';
import { windowlessOf } from '../methods/windowless.ts';
import { xquantOf } from '../methods/xquant.ts';

/** Budgets that policies are measured at. */
const BUDGETS = ['35%', '30%', '25%', '20%'];
/** Policies that are no rule of their own but carry out what the caller says. */
const CARRIED_OUT = ['fixed', 'table', 'none'];

/** All pages in two formats, with the open page in 8 bits. */
export const fixedCache = (k: string, v: string): string => `${k}:${v}+q8`;

/** A cache without what all have in common: the open page in 8 bits. */
export const bareName = (cache: string): string => cache.replace(/\+q8$/, '');

/** Families that have the bytes of another and are paired as its members. */
const LIKE: Readonly<Record<string, string>> = { rotq: 'rot', squat: 'kivi' };
const kin = (name: string): string => LIKE[name] ?? name;

/**
 * The formats of a family and their pairs in which values are no finer than keys, because keys are dearer in every one
 * that was measured.
 */
export function formatCaches(): string[] {
  const coded = (name: FormatName): boolean => name !== 'f16';
  const caches = ALL_FAMILIES.filter(([name]) => kin(name) === name).flatMap(([family]) => {
    const members = ALL_FAMILIES.flatMap(([name, { formats }]) => (kin(name) === family ? formats : []));
    const names = FORMAT_NAMES.filter((name) => coded(name) && members.some((format) => format.name === name));
    return names.flatMap((name) => {
      if (!servesSide(name, 'k')) return partners(name, 'k', names).map((k) => [k, name] as const);
      const others = partners(name, 'v', names).filter(
        (v) => !servesSide(v, 'k') || FORMATS[v].codeBits <= FORMATS[name].codeBits,
      );
      return others.map((v) => [name, v] as const);
    });
  });
  return [...new Set(caches.filter(([k, v]) => !isUselessPair(k, v)).map(([k, v]) => fixedCache(k, v)))];
}

/**
 * The formats of one side that a format of the other is paired with: those of its family, or else those of as many
 * bits.
 */
function partners(name: FormatName, side: Side, family: readonly FormatName[]): FormatName[] {
  const own = family.filter((one) => servesSide(one, side));
  if (own.length > 0) return own;
  const others = FORMAT_NAMES.filter((one) => servesSide(one, side) && one !== 'f16');
  const apart = (one: FormatName): number => Math.abs(FORMATS[one].codeBits - FORMATS[name].codeBits);
  const least = Math.min(...others.map(apart));
  return others.filter((one) => apart(one) === least).slice(0, 1);
}

export const policyCaches = (): string[] =>
  Object.keys(policies)
    .filter((id) => !CARRIED_OUT.includes(id))
    .flatMap((id) => BUDGETS.map((budget) => `${id}@${budget}`));

export const everyCache = (): string[] => ['exact', ...formatCaches(), ...policyCaches(), ...methodCaches()];

/**
 * What a cache is an example of: a family of formats, a policy or a kind of eviction. Charts draw each with a sign of
 * its own.
 */
export function kindOf(named: string): string {
  const cache = windowlessOf(named) ?? named;
  if (xquantOf(cache) !== null) return 'xquant';
  if (modifiedOf(cache) !== null) return 'modified';
  if (rotateKvOf(cache) !== null) return 'rotatekv';
  if (kvQuantOf(cache) !== null) return 'kvquant';
  if (kvarnOf(cache) !== null) return 'kvarn';
  if (oscarOf(cache) !== null) return 'oscar';
  if (transformOf(cache) !== null) return 'transform';
  const [first = ''] = cache.split(/[:@+]/);
  return ALL_FAMILIES.find(([, { formats }]) => formats.some(({ name }) => name === first))?.[0] ?? first;
}
