/**
 * `npm run evaluate -- [words]`: the quality table of the README, on SmolLM2 and the windows of evaluation-windows.json.
 * Words filter: kinds (wiki novel german code), lengths (2048 4096), 'fixed', 'policies', 'recall'; none means all.
 * --windows N: windows of each kind, default 2. --json FILE writes every row. Weights are f32, so that nothing but the cache
 * differs. Reads ../shared/data; prints machine and versions.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
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

/** Rows of the same cache and length over windows of one kind become one row: means weighted by scored tokens. */
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
  const words = process.argv.slice(2);
  const jsonAt = words.indexOf('--json');
  const jsonFile = jsonAt < 0 ? null : words.splice(jsonAt, 2)[1]!;
  const modelAt = words.indexOf('--model');
  const model = modelAt < 0 ? 'smollm2-135m' : words.splice(modelAt, 2)[1]!;
  const cachesAt = words.indexOf('--caches');
  const chosen = cachesAt < 0 ? null : words.splice(cachesAt, 2)[1]!.split(',');
  const threadsAt = words.indexOf('--threads');
  const threads = threadsAt < 0 ? undefined : Number(words.splice(threadsAt, 2)[1]);
  const windowsAt = words.indexOf('--windows');
  const windows = windowsAt < 0 ? 2 : Number(words.splice(windowsAt, 2)[1]);
  const wanted = (...names: string[]): boolean => {
    const filters = words.filter((word) => names.includes(word));
    return filters.length > 0;
  };
  const kinds = ['wiki', 'novel', 'german', 'code'].filter(
    (kind) => !['wiki', 'novel', 'german', 'code'].some((k) => words.includes(k)) || words.includes(kind),
  );
  const lengths = [2048, 4096].filter(
    (length) => !(words.includes('2048') || words.includes('4096')) || words.includes(String(length)),
  );
  const parts = ['fixed', 'policies', 'recall'];
  const part = (name: string): boolean => !parts.some((p) => words.includes(p)) || wanted(name);

  const list = JSON.parse(readFileSync(join(root, 'scripts', 'evaluation-windows.json'), 'utf8')) as {
    windows: Window[];
    recall: Omit<Window, 'kind'> & { documents: number };
  };
  const runtime = await Runtime.open({ model, dense: 'exact', threads, cacheDir: join(root, '.cache') });
  const rows: EvaluateRow[] = [];
  console.log(
    `${runtime.model.name}, ${runtime.dense.name}, ${runtime.native.isa}, ${runtime.threads} threads, ${cpus()[0]?.model}, node ${process.version}, ${runtime.native.compiler}`,
  );
  for (const tokens of lengths) {
    const named = [...(part('fixed') ? FIXED : []), ...(part('policies') ? POLICIES[tokens]! : [])];
    const caches = (named.length === 0 ? [] : (chosen ?? named)).map(parseCache);
    for (const kind of caches.length === 0 ? [] : kinds) {
      const perCache = new Map<string, EvaluateRow[]>();
      for (const window of list.windows.filter((w) => w.kind === kind).slice(0, windows)) {
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
    if (part('recall')) {
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
  if (jsonFile !== null)
    writeFileSync(jsonFile, `${JSON.stringify({ machine: cpus()[0]?.model, node: process.version, rows }, null, 1)}\n`);
  await runtime.close();
}

/** price against uniform at equal budgets: geometric mean of the KLD ratio over the kinds. */
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
