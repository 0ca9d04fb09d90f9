/** The quality table of the README: fixed formats and policies on passages of four kinds, and recall. */

import { writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { qualityTable, recallTable } from '../../engine/cli/evaluate.ts';
import { type EvaluateRow, evaluate, parseCache } from '../../engine/evaluate/evaluate.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { content, WINDOWS } from './passages.ts';

export const TABLE_PARTS = ['fixed', 'policies', 'recall'] as const;

export interface TableRequest {
  readonly runtime: Runtime;
  readonly json: string | null;
  readonly parts: readonly string[];
  readonly kinds: readonly string[];
  readonly lengths: readonly number[];
  /** Windows of each kind. */
  readonly windows: number;
  /** Caches instead of those of the table. */
  readonly caches: readonly string[] | null;
}

const FIXED = ['q8', 'rot4:rot4', 'trellis4:trellis2', 'trellis3:trellis2', 'trellis2:trellis2'];
const POLICIES: Readonly<Record<number, readonly string[]>> = {
  2048: ['price@25%', 'uniform@25%', 'age@25%'],
  4096: ['price@25%', 'uniform@25%', 'age@25%', 'price@20%', 'uniform@20%', 'age@20%'],
};

/** Makes one row of the rows of several windows, with means weighted by the number of scored tokens. */
function merge(rows: readonly EvaluateRow[], kind: string): EvaluateRow {
  const scored = rows.reduce((sum, row) => sum + row.scored, 0);
  const mean = (of: (row: EvaluateRow) => number): number =>
    rows.reduce((sum, row) => sum + of(row) * row.scored, 0) / Math.max(1, scored);
  const total = (of: (row: EvaluateRow) => number): number => rows.reduce((sum, row) => sum + of(row), 0);
  return {
    ...rows[0]!,
    text: kind,
    windows: total((row) => row.windows),
    scored,
    effectiveBits: (16 * total((row) => row.kvBytes)) / total((row) => row.kvBytesF16),
    kvBytes: total((row) => row.kvBytes),
    kvBytesF16: total((row) => row.kvBytesF16),
    meanKld: mean((row) => row.meanKld),
    kld99: mean((row) => row.kld99),
    sameTop: mean((row) => row.sameTop),
    perplexity: Math.exp(mean((row) => Math.log(row.perplexity))),
    perplexityExact: Math.exp(mean((row) => Math.log(row.perplexityExact))),
  };
}

/** Computes and prints the table, for each length and kind as soon as it is known. */
export async function qualityTables({
  runtime,
  json,
  parts,
  kinds,
  lengths,
  windows,
  caches: chosen,
}: TableRequest): Promise<void> {
  const rows: EvaluateRow[] = [];
  for (const tokens of lengths) {
    const named = [...(parts.includes('fixed') ? FIXED : []), ...(parts.includes('policies') ? POLICIES[tokens]! : [])];
    const caches = (named.length === 0 ? [] : (chosen ?? named)).map(parseCache);
    for (const kind of caches.length === 0 ? [] : kinds) {
      const perCache = new Map<string, EvaluateRow[]>();
      for (const window of WINDOWS.windows.filter((w) => w.kind === kind).slice(0, windows)) {
        const made = await evaluate(runtime, {
          texts: [{ name: kind, content: content(window) }],
          caches,
          tokens,
          windows: 1,
          recallDocuments: 0,
          seed: 0,
        });
        for (const row of made) perCache.set(row.cache, [...(perCache.get(row.cache) ?? []), row]);
      }
      const merged = [...perCache.values()].map((group) => merge(group, kind));
      rows.push(...merged);
      console.log(`\n${tokens} tokens, ${kind}\n${qualityTable(merged)}`);
    }
    printRatios(rows.filter((row) => row.tokens === tokens));
    if (parts.includes('recall')) {
      const made = await evaluate(runtime, {
        texts: [{ name: 'recall', content: content(WINDOWS.recall) }],
        caches: (
          chosen ?? (tokens === 4096 ? ['price@25%', 'uniform@25%', 'price@20%'] : ['price@25%', 'uniform@25%'])
        ).map(parseCache),
        tokens,
        windows: 0,
        recallDocuments: WINDOWS.recall.documents,
        seed: 1,
      });
      rows.push(...made);
      console.log(`\n${tokens} tokens\n${recallTable(made)}`);
    }
  }
  if (json !== null)
    writeFileSync(json, `${JSON.stringify({ machine: cpus()[0]?.model, node: process.version, rows }, null, 1)}\n`);
}

/**
 * Prints how the KLD of 'price' compares with that of 'uniform' at the same budget, for each kind of text and on
 * average.
 */
function printRatios(rows: readonly EvaluateRow[]): void {
  for (const share of ['25%', '20%']) {
    const ratios = [...new Set(rows.map((row) => row.text))].flatMap((kind) => {
      const of = (cache: string): EvaluateRow | undefined =>
        rows.find((row) => row.text === kind && row.cache === `${cache}@${share}`);
      const price = of('price');
      const uniform = of('uniform');
      return price === undefined || uniform === undefined ? [] : [price.meanKld / uniform.meanKld];
    });
    if (ratios.length > 0)
      console.log(
        `\nprice / uniform at ${share}, ${rows[0]!.tokens} tokens: ${ratios.map((r) => r.toFixed(2)).join(' ')}, geometric mean ${Math.exp(ratios.reduce((s, r) => s + Math.log(r), 0) / ratios.length).toFixed(3)}`,
      );
  }
}
