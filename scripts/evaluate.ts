/**
 * `npm run evaluate -- [words] [flags]` computes the quality table of the README, with SmolLM2 and the windows of text that
 * evaluation-windows.json lists. The words select kinds of text (wiki, novel, german, code), lengths (2048, 4096) and parts
 * (fixed, policies, recall); without a word of one of these sorts, all of that sort are computed.
 *   --windows N      windows of each kind, 2 by default
 *   --caches LIST    these caches instead of those of the table
 *   --model NAME     another model
 *   --threads N
 *   --json FILE      writes every row to this file
 * The weights are f32, so that nothing but the cache differs. The texts are read from ../shared/data.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { qualityTable, recallTable } from '../engine/cli/evaluate.ts';
import { type EvaluateRow, evaluate, parseCache } from '../engine/evaluate/evaluate.ts';
import { Runtime } from '../engine/runtime.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
const data = join(root, '..', 'shared', 'data');

interface Window {
  readonly kind: string;
  readonly file: string;
  readonly from: number;
  readonly characters: number;
}

const FIXED = ['q8', 'rot4:rot4', 'rot4:rot2', 'rot3:rot2', 'rot2:rot2'];
const POLICIES: Readonly<Record<number, readonly string[]>> = {
  2048: ['price@25%', 'uniform@25%', 'age@25%'],
  4096: ['price@25%', 'uniform@25%', 'age@25%', 'price@20%', 'uniform@20%', 'age@20%'],
};

const content = (window: Omit<Window, 'kind'>): string =>
  execFileSync('xz', ['-dc', join(data, window.file)], { maxBuffer: 2 ** 28 })
    .toString('utf8')
    .slice(window.from, window.from + window.characters);

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

async function main(): Promise<void> {
  const { values, positionals: words } = parseArgs({
    allowPositionals: true,
    options: {
      windows: { type: 'string', default: '2' },
      caches: { type: 'string' },
      model: { type: 'string', default: 'smollm2-135m' },
      threads: { type: 'string' },
      json: { type: 'string' },
    },
  });
  const chosen = values.caches?.split(',');
  const threads = values.threads === undefined ? undefined : Number(values.threads);
  const selected = (names: readonly string[]): readonly string[] => {
    const named = names.filter((name) => words.includes(name));
    return named.length > 0 ? named : names;
  };
  const kinds = selected(['wiki', 'novel', 'german', 'code']);
  const lengths = selected(['2048', '4096']).map(Number);
  const parts = selected(['fixed', 'policies', 'recall']);

  const list = JSON.parse(readFileSync(join(root, 'scripts', 'evaluation-windows.json'), 'utf8')) as {
    windows: Window[];
    recall: Omit<Window, 'kind'> & { documents: number };
  };
  const runtime = await Runtime.open({ model: values.model, dense: 'exact', threads, cacheDir: join(root, '.cache') });
  const rows: EvaluateRow[] = [];
  console.log(
    `${runtime.model.name}, ${runtime.dense.name}, ${runtime.native.isa}, ${runtime.threads} threads, ${cpus()[0]?.model}, node ${process.version}, ${runtime.native.compiler}`,
  );
  for (const tokens of lengths) {
    const named = [...(parts.includes('fixed') ? FIXED : []), ...(parts.includes('policies') ? POLICIES[tokens]! : [])];
    const caches = (named.length === 0 ? [] : (chosen ?? named)).map(parseCache);
    for (const kind of caches.length === 0 ? [] : kinds) {
      const perCache = new Map<string, EvaluateRow[]>();
      for (const window of list.windows.filter((w) => w.kind === kind).slice(0, Number(values.windows))) {
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
        texts: [{ name: 'recall', content: content(list.recall) }],
        caches: (
          chosen ?? (tokens === 4096 ? ['price@25%', 'uniform@25%', 'price@20%'] : ['price@25%', 'uniform@25%'])
        ).map(parseCache),
        tokens,
        windows: 0,
        recallDocuments: list.recall.documents,
        seed: 1,
      });
      rows.push(...made);
      console.log(`\n${tokens} tokens\n${recallTable(made)}`);
    }
  }
  if (values.json !== undefined)
    writeFileSync(
      values.json,
      `${JSON.stringify({ machine: cpus()[0]?.model, node: process.version, rows }, null, 1)}\n`,
    );
  await runtime.close();
}

/** Prints how the KLD of 'price' compares with that of 'uniform' at the same budget, for each kind of text and on average. */
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

await main();
