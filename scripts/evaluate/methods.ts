/** Every method that this version knows, as caches to evaluate: formats from their registry, policies and eviction rules from theirs. */
import { ALL_FAMILIES, FORMAT_NAMES, FORMATS, type FormatName, type Side, servesSide } from '../../native/index.ts';
import { isUselessPair, policies, yardsticks } from '../../policy/index.ts';
import { kvarnCaches, kvarnOf, kvarnPages } from './kvarn.ts';
import { kvQuantCaches, kvQuantOf, kvQuantPages } from './kvquant.ts';
import { modifiedCaches, modifiedOf, modifiedPages } from './modifiers.ts';
import { nsnPages } from './nsn.ts';
import type { PageMethod } from './paged.ts';
import { productPages, productTextPages } from './product.ts';
import { xquantPages } from './rematerialize.ts';
import { rotateKvOf, rotateKvPages } from './rotatekv.ts';
import { transformCaches, transformOf, transformPages } from './transform.ts';
import { xquantCaches, xquantOf } from './xquant.ts';

/** Budgets that policies are measured at. */
const BUDGETS = ['35%', '30%', '25%', '20%'];
/** Shares of the tokens that eviction rules may hold. */
const SHARES = ['50%', '25%'];
/** Policies that are no rule of their own but carry out what the caller says. */
const CARRIED_OUT = ['fixed', 'table', 'none'];
/** Rules that keep tokens in lower formats before they drop any. They run in the simulator. */
const TIERED = ['age-tiers', 'anchors', 'coded-h2o'];

/** All pages in two formats, with the open page in 8 bits. */
export const fixedCache = (k: string, v: string): string => `${k}:${v}+q8`;

/** A cache without what all have in common: the open page in 8 bits. */
export const bareName = (cache: string): string => cache.replace(/\+q8$/, '');

/** Families that have the bytes of another and are paired as its members. */
const LIKE: Readonly<Record<string, string>> = { rotq: 'rot', squat: 'kivi' };
const kin = (name: string): string => LIKE[name] ?? name;

/** The formats of a family and their pairs in which values are no finer than keys, because keys are dearer in every one that was measured. */
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

/** The formats of one side that a format of the other is paired with: those of its family, or else those of as many bits. */
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

export const evictionCaches = (): string[] =>
  [...yardsticks.keys()].filter((id) => !TIERED.includes(id)).flatMap((id) => SHARES.map((share) => `${id}@${share}`));

export const everyCache = (): string[] => [
  'exact',
  ...formatCaches(),
  ...policyCaches(),
  ...evictionCaches(),
  ...xquantCaches(),
  ...['rotatekv4', 'rotatekv3', 'rotatekv2'],
  ...kvQuantCaches(),
  ...kvarnCaches(),
  ...transformCaches(),
  ...PUBLISHED.keys(),
  ...modifiedCaches(),
];

export interface Eviction {
  readonly id: string;
  /** Tokens that it may hold of so many. */
  readonly budgetTokens: (tokens: number) => number;
}

/** The eviction rule that a cache names, with a share of the tokens ('h2o@25%') or their number ('h2o@1024'); null for any other cache. */
export function evictionOf(cache: string): Eviction | null {
  const [, id = '', budget = '', unit] = /^([a-z0-9]+)@([0-9.]+)(%?)$/.exec(cache) ?? [];
  const amount = Number(budget);
  if (!yardsticks.has(id) || TIERED.includes(id) || !(amount > 0)) return null;
  return {
    id,
    budgetTokens: (tokens) => Math.floor(unit === '%' ? (tokens * amount) / 100 : Math.min(amount, tokens)),
  };
}

/** Published methods of coded pages that have one name. */
const PUBLISHED: ReadonlyMap<string, PageMethod> = new Map<string, PageMethod>([
  ['nsn2', nsnPages],
  ['pq2', productPages],
  ['pq2-text', productTextPages],
]);

/** The method of coded pages that a cache names; null for any other cache. */
export function pageMethodOf(cache: string): PageMethod | null {
  const xquant = xquantOf(cache);
  if (xquant !== null) return xquantPages(xquant);
  const modified = modifiedOf(cache);
  if (modified !== null) return modifiedPages(modified);
  const kvQuant = kvQuantOf(cache);
  if (kvQuant !== null) return kvQuantPages(kvQuant);
  const kvarn = kvarnOf(cache);
  if (kvarn !== null) return kvarnPages(kvarn);
  const transform = transformOf(cache);
  if (transform !== null) return transformPages(transform);
  const rotated = rotateKvOf(cache);
  return rotated === null ? (PUBLISHED.get(cache) ?? null) : rotateKvPages(rotated);
}

/** What a cache is an example of: a family of formats, a policy or a kind of eviction. Charts draw each with a sign of its own. */
export function methodOf(cache: string): string {
  if (xquantOf(cache) !== null) return 'xquant';
  if (modifiedOf(cache) !== null) return 'modified';
  if (rotateKvOf(cache) !== null) return 'rotatekv';
  if (kvQuantOf(cache) !== null) return 'kvquant';
  if (kvarnOf(cache) !== null) return 'kvarn';
  if (transformOf(cache) !== null) return 'transform';
  const [first = ''] = cache.split(/[:@+]/);
  return ALL_FAMILIES.find(([, { formats }]) => formats.some(({ name }) => name === first))?.[0] ?? first;
}
