/**
 * `npm run evaluate -- decide --json FRONTIER.json`: which formats of keys and values diverge least at so many bits,
 * for models of each kind, from rows of `frontier quality`. The table is written to scripts/decisions.json, from which
 * `npm run generate` makes what the policy reads and what its page shows.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { KvError, parsePair, replaceFile } from '../../native/index.ts';
import { bareName, fixedCache } from './every-cache.ts';
import { frontierFile, type QualityRow } from './frontier-rows.ts';
import { WIDENED } from './latents.ts';
import { OUTLIERS } from './outliers.ts';
import { pairOf } from './speed.ts';

/** Effective bits that are asked for, window and all else counted. */
const TARGET_BITS = [3, 3.5, 4, 4.5, 5, 5.5, 8.5];
/** Where the table stands. */
export const DECISIONS = join(import.meta.dirname, '../../scripts/decisions.json');

/** The best pair for models of one kind at so many bits. */
export interface DecisionRow {
  /** True if keys have outlier channels. */
  readonly outliers: boolean;
  /** Query heads that share a KV head, and channels of a head. */
  readonly queriesPerKv: number;
  readonly headDim: number;
  /** Tokens that are read. */
  readonly context: number;
  readonly targetBits: number;
  readonly keys: string;
  readonly values: string;
  /** Effective bits of the pair. */
  readonly bits: number;
  /** Geometric mean over passages, in nats. */
  readonly meanKld: number;
}

type Situation = Pick<DecisionRow, 'outliers' | 'queriesPerKv' | 'headDim' | 'context'>;
type Measured = QualityRow & { readonly measured: NonNullable<QualityRow['measured']> };

/** The best pairs of every situation, by bits. Only pairs that were measured on every passage of a situation count. */
export function decisionsFrom(rows: readonly QualityRow[], situationOf: (row: QualityRow) => Situation): DecisionRow[] {
  const measured = rows.filter((row): row is Measured => row.measured !== null && pairOf(bareName(row.cache)) !== null);
  const situations = grouped(measured, (row) => JSON.stringify(situationOf(row)));
  return [...situations].flatMap(([situation, those]) => {
    const passages = new Set(those.map(passageOf)).size;
    const points = [...grouped(those, ({ cache }) => cache)]
      .filter(([, found]) => new Set(found.map(passageOf)).size === passages)
      .map(([cache, found]) => ({
        cache,
        bits: mean(found.map(({ measured: { bits } }) => bits)),
        meanKld: Math.exp(mean(found.map(({ measured: { meanKld } }) => Math.log(meanKld)))),
      }));
    return TARGET_BITS.flatMap((targetBits) => {
      const [best] = points.filter(({ bits }) => bits <= targetBits).sort((a, b) => a.meanKld - b.meanKld);
      if (best === undefined) return [];
      const { k: keys, v: values } = parsePair(bareName(best.cache));
      const [bits, meanKld] = [Number(best.bits.toFixed(2)), Number(best.meanKld.toPrecision(2))];
      return [{ ...(JSON.parse(situation) as Situation), targetBits, keys, values, bits, meanKld }];
    });
  });
}

function grouped<T>(items: readonly T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]);
  return groups;
}

const passageOf = ({ model, context, textDigest }: QualityRow): string => `${model} ${context} ${textDigest}`;
const mean = (values: readonly number[]): number => values.reduce((sum, one) => sum + one, 0) / values.length;

/**
 * Pairs that a table of decisions chooses from: keys in one piece, with a scale per channel or in bands of channels,
 * values of the rotated family.
 */
export const DECIDED_PAIRS: readonly string[] = ['q8:q8']
  .concat(
    ['rot4', 'trellis4', 'kivi4'].flatMap((k) =>
      ['rot4', 'trellis4', 'trellis3', 'trellis2', 'trellis1'].map((v) => `${k}:${v}`),
    ),
  )
  .concat(['trellis3', 'band3', 'kivi2'].flatMap((k) => ['trellis3', 'trellis2', 'trellis1'].map((v) => `${k}:${v}`)))
  .concat(['trellis2', 'band2'].flatMap((k) => ['trellis2', 'trellis1'].map((v) => `${k}:${v}`)))
  .map((pair) => fixedCache(...(pair.split(':') as [string, string])));

/**
 * Writes the table from a file of `frontier` rows. Throws 'bad-config' for one without rows of these pairs, 'not-found'
 * for a model that is not there.
 */
export async function decide(path: string, cacheDir: string): Promise<readonly DecisionRow[]> {
  const { rows } = frontierFile.parse(JSON.parse(readFileSync(path, 'utf8')));
  const quality = rows.filter(
    (row): row is QualityRow =>
      row.part === 'quality' && DECIDED_PAIRS.includes(row.cache) && !row.model.endsWith(WIDENED),
  );
  const shapes = new Map<string, Pick<Situation, 'queriesPerKv' | 'headDim'>>();
  for (const model of new Set(quality.map((row) => row.model.replace(OUTLIERS, '')))) {
    const runtime = await Runtime.open({ model, threads: 1, cacheDir });
    const { queryHeads, kvHeads, headDim } = runtime.shape;
    shapes.set(model, { queriesPerKv: queryHeads / kvHeads, headDim });
    await runtime.close();
  }
  const decisions = decisionsFrom(quality, ({ model, context }) => ({
    outliers: model.endsWith(OUTLIERS),
    ...shapes.get(model.replace(OUTLIERS, ''))!,
    context,
  }));
  if (decisions.length === 0)
    throw new KvError('bad-config', `${path} has no quality of the pairs that are decided on`, {
      values: { pairs: DECIDED_PAIRS.join(',') },
      hint: 'measure them first: npm run evaluate -- frontier quality --caches … --json FILE',
    });
  // In the layout that the format check asks for.
  replaceFile(DECISIONS, Buffer.from(`${JSON.stringify(decisions, null, 2)}\n`));
  return decisions;
}
