/** `palimpsest evaluate` compares caches with the exact one on the user's texts. */
import { basename } from 'node:path';
import {
  type Column,
  columnsOf,
  given,
  jsonText,
  KvError,
  percent,
  plural,
  printable,
  table,
  wrap,
} from '../../native/index.ts';
import { type EvaluateRow, evaluate } from '../evaluate/evaluate.ts';
import { findCaches } from '../evaluate/find-caches.ts';
import { findBook } from '../state/folder.ts';
import { Runtime } from '../transformer/runtime/runtime.ts';
import { interruptible } from './interrupt.ts';
import { loadingModel } from './loading.ts';
import { cacheTypes, engineOptions, flag, number, type Settings, text, thresholdsPathOf } from './options.ts';
import { readText } from './read-text.ts';

/** The caches that were named, each for findCaches(). Throws 'bad-argument'. */
export function cachesOf(settings: Settings): string[] {
  const list = text(settings, 'caches');
  if (list !== undefined) {
    const items = list
      .split(',')
      .map((item) => item.trim())
      .filter((item) => item !== '');
    if (items.length === 0)
      throw new KvError('bad-argument', `--caches '${list}' names no cache`, {
        values: { caches: list },
        hint: 'for example q8,rot4:rot2,price@25%',
      });
    return items;
  }
  const pair = cacheTypes(settings);
  if (pair !== undefined) return [`${pair.k}:${pair.v}`];
  const budget = text(settings, 'kvBudget') ?? '25%';
  return [`${text(settings, 'policy') ?? 'price'}@${budget}`];
}

export async function evaluateCommand(settings: Settings): Promise<void> {
  const paths = settings['text'] as string[] | undefined;
  if (paths === undefined || paths.length === 0)
    throw new KvError('bad-argument', 'no text was given', { hint: '--text FILE, several if you like' });
  const texts: { name: string; content: string }[] = [];
  for (const path of paths)
    texts.push({ name: basename(path).replace(/\.[a-z]+$/, ''), content: await readText(path, 'text') });
  const thresholdsPath = thresholdsPathOf(settings);
  const specs = (await findCaches(cachesOf(settings))).map((cache) =>
    'options' in cache ? { ...cache, options: { ...cache.options, ...given({ thresholdsPath }) } } : cache,
  );
  await interruptible(async (signal) => {
    // Weights in 8 bits would add noise to every comparison, so weights are f32 unless others are requested.
    const options = engineOptions({ dense: 'exact', ...settings });
    const { model, dense, threads, isa, binding, cacheDir, offline, stateDir, qdrant } = options;
    const book = await findBook(stateDir!, qdrant);
    const sessions = (await book?.count()) ?? null;
    const given = { model, dense, threads, isa, binding, cacheDir, offline };
    const runtime = await loadingModel(settings, signal, (how) => Runtime.open({ ...given, ...how }));
    const { binding: used, passedOver } = runtime.native;
    if (passedOver !== null) process.stderr.write(`The ${used} binding computes, and is slower: ${passedOver}.\n`);
    // Rows are collected as they come, so that they are printed even if the rest fails or is interrupted.
    const rows: EvaluateRow[] = [];
    let complete = false;
    try {
      await evaluate(runtime, {
        texts,
        caches: specs,
        tokens: number(settings, 'tokens') ?? 2048,
        windows: number(settings, 'windows') ?? 1,
        recallDocuments: number(settings, 'recall') ?? 0,
        seed: number(settings, 'seed') ?? 0,
        book,
        signal,
        onRow: (row) => {
          rows.push(row);
          process.stderr.write(
            `${printable(row.text)} ${row.cache}: KLD ${row.meanKld.toPrecision(3)} at ${row.effectiveBits.toFixed(2)} bits\n`,
          );
        },
      });
      complete = true;
    } finally {
      printRows(rows);
      if (rows.length > 0)
        process.stdout.write(`\n${wrap(beginning(sessions, stateDir!, thresholdsPath), columnsOf(process.stdout))}\n`);
      if (flag(settings, 'json') && (complete || rows.length > 0)) {
        const { model, dense, native } = runtime;
        process.stdout.write(
          `${jsonText({ model: model.name, dense: dense.name, isa: native.isa, sessions: sessions ?? 0, complete, rows })}\n`,
        );
      }
      await book?.close();
      await runtime.close();
    }
  });
}

/** What the caches of these rows started from. */
function beginning(sessions: number | null, stateDir: string, thresholdsPath: string | undefined): string {
  if (thresholdsPath !== undefined) return `Every cache started from ${printable(thresholdsPath)}.`;
  if (sessions === null) return 'Every cache started from the built-in thresholds.';
  return `Every cache started from what ${plural(sessions, 'session')} in ${printable(stateDir)} taught, as the next session there would. Nothing was written.`;
}

function printRows(rows: readonly EvaluateRow[]): void {
  const columns = columnsOf(process.stdout);
  if (rows.some((row) => row.windows > 0)) process.stdout.write(`${qualityTable(rows, columns)}\n`);
  if (rows.some((row) => row.asked > 0)) process.stdout.write(`\n${recallTable(rows, columns)}\n`);
}

const NAMES: readonly Column<EvaluateRow>[] = [
  { title: 'text', align: 'left', least: 8, value: (row) => row.text },
  { title: 'cache', align: 'left', least: 8, value: (row) => row.cache },
];

export function qualityTable(rows: readonly EvaluateRow[], columns?: number): string {
  return table(
    [
      ...NAMES,
      { title: 'bits', value: (row) => row.effectiveBits.toFixed(2) },
      { title: 'KLD', value: (row) => row.meanKld.toPrecision(3) },
      { title: '99% KLD', value: (row) => row.kld99.toPrecision(3) },
      { title: 'ΔPPL', value: (row) => percent(row.perplexity / row.perplexityExact - 1) },
      { title: 'same top', value: (row) => percent(row.sameTop) },
    ],
    rows,
    columns,
  );
}

export function recallTable(rows: readonly EvaluateRow[], columns?: number): string {
  return table(
    [
      ...NAMES,
      { title: 'asked', value: (row) => String(row.asked) },
      { title: 'recalled', value: (row) => String(row.recalled) },
      { title: 'exact', value: (row) => String(row.recalledExact) },
    ],
    rows,
    columns,
  );
}
