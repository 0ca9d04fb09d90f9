/**
 * `palimpsest start`, which `npm start` runs, reads a document of our own within a budget and with the exact cache, and
 * compares the two.
 */
import pc from 'picocolors';
import { columnsOf, fields, plural, printable, wrap } from '../../native/index.ts';
import { shortId } from '../../witness/index.ts';
import { f16CacheBytes } from '../cache/budget.ts';
import { ownText } from '../evaluate/own-text.ts';
import type { TourEvent, TourResult } from '../evaluate/tour.ts';
import type { SessionOptions } from '../options/types.ts';
import type { Generated } from '../session/types.ts';
import { fetchModel } from '../transformer/fetch.ts';
import { isOffline } from '../transformer/hub/settings.ts';
import { interruptible } from './interrupt.ts';
import { jsonResult } from './json-result.ts';
import { opening, withEngine } from './loading.ts';
import {
  cacheDirOf,
  checkSessionSettings,
  engineOptions,
  flag,
  number,
  type Settings,
  sessionOptions,
  text,
} from './options.ts';
import { bytesPicture, type PicturePoint } from './picture.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { divergenceRow, layerTable, memoryRows, type ReportRow } from './report.ts';

const DOCUMENT_TOKENS = { 'smollm2-135m': 4000, reference: 3800 } as const;
/**
 * The number of the document for --seed 0. With the exact cache, most answers about it are right, so a loss can be
 * seen.
 */
const FIRST_DOCUMENT = 2;

async function chooseModel(settings: Settings): Promise<string> {
  const named = text(settings, 'model');
  if (named !== undefined) return named;
  try {
    await fetchModel('smollm2-135m', {
      cacheDir: cacheDirOf(settings),
      offline: isOffline(flag(settings, 'offline')),
      onProgress: (line) => process.stderr.write(`${line}\n`),
    });
    return 'smollm2-135m';
  } catch (error) {
    process.stderr.write(
      `SmolLM2-135M is not to be had here (${(error as Error).message}); using the reference model, which shows memory and decisions but does not recall.\n`,
    );
    return 'reference';
  }
}

export async function start(settings: Settings): Promise<void> {
  checkSessionSettings(settings);
  const model = await chooseModel(settings);
  await interruptible((signal) =>
    withEngine(settings, engineOptions({ ...settings, model }), signal, async (engine) => {
      const documentTokens =
        number(settings, 'tokens') ?? DOCUMENT_TOKENS[model as keyof typeof DOCUMENT_TOKENS] ?? 4000;
      const { tokensExpected: _, ...options } = sessionOptions({ kvBudget: '25%', ...settings }, 0);
      const say = (line: string): void => void process.stdout.write(`${line}\n`);
      const { info } = engine;
      const columns = columnsOf(process.stdout);
      const heads = `${info.config.queryHeads}/${info.config.kvHeads} heads`;
      const runs = `${info.dense} + ${info.isa}, ${plural(info.threads, 'thread')}`;
      say(
        pc.bold(
          wrap(
            `palimpsest: ${printable(info.name)}, ${plural(info.config.layers, 'layer')}, ${heads}, ${runs}`,
            columns,
          ),
        ),
      );
      say(
        wrap(
          `Reading a document of ${documentTokens} tokens with five access codes in it, within a KV budget of ${options.kvBudget ?? 'none'}${String(options.kvBudget).endsWith('%') ? ' of the f16 cache' : ''}; then the same with the exact cache.`,
          columns,
        ),
      );
      say('');
      const screen = new TourScreen(
        (text(settings, 'progress') ?? 'bar') as ProgressKind,
        f16CacheBytes(info.config, 1),
      );
      const seed = FIRST_DOCUMENT + (number(settings, 'seed') ?? 0);
      const document = { filler: ownText(documentTokens * 6), documentTokens, seed };
      const result = await opening(engine, signal, (opened) => {
        const tell = (event: TourEvent): void => {
          opened();
          screen.show(event);
        };
        return engine.tour(options as SessionOptions, document, tell, signal);
      });
      screen.end();
      const recalled = result.answers.filter((answer) => answer.recalled).length;
      const recalledExact = result.answersExact.filter((answer) => answer.recalled).length;
      printResult(result, recalled, recalledExact, say);
      if (flag(settings, 'json')) {
        const speed: Pick<Generated, 'tokensPerSecond' | 'prefillTokensPerSecond'> = {
          tokensPerSecond: result.tokensPerSecond,
          prefillTokensPerSecond: result.prefillTokensPerSecond,
        };
        say(
          JSON.stringify({
            ...jsonResult(engine, result.report, speed, result.divergence, {
              asked: result.answers.length,
              recalled,
              recalledExact,
            }),
            tokensPerSecondExact: result.tokensPerSecondExact,
            prefillTokensPerSecondExact: result.prefillTokensPerSecondExact,
          }),
        );
      }
    }),
  );
}

class TourScreen {
  readonly #progress: ProgressLine;
  /** The bytes of the cache while the document was read. */
  readonly #points: PicturePoint[] = [];
  readonly #f16BytesPerToken: number;

  constructor(kind: ProgressKind, f16BytesPerToken: number) {
    this.#progress = new ProgressLine(kind);
    this.#f16BytesPerToken = f16BytesPerToken;
  }

  /** Prints the picture of what was read, once, before the first question. */
  #draw(): void {
    const picture = bytesPicture(this.#points.splice(0), this.#f16BytesPerToken);
    if (picture === '') return;
    process.stdout.write(`KV cache while reading: █ this cache, ░ what f16 takes beyond it\n\n${picture}\n\n`);
  }

  show(event: TourEvent): void {
    const name = event.kind === 'document' || event.run === 'ours' ? 'ours' : 'exact';
    if (event.kind === 'progress' && name === 'ours') this.#points.push(event.progress);
    if (event.kind === 'progress') this.#progress.update(name === 'ours' ? 'reading' : 'exact cache', event.progress);
    else if (event.kind === 'question') {
      this.#progress.done();
      this.#draw();
      if (name === 'ours')
        process.stdout.write(
          `  ${event.question.place.padEnd(12)} ${pc.dim(`(depth ${event.question.depth * 100}%)`)} `,
        );
    } else if (event.kind === 'text' && name === 'ours') process.stdout.write(event.text);
    else if (event.kind === 'answer' && name === 'ours') {
      process.stdout.write(
        event.answer.recalled ? pc.green('  ✓\n') : pc.yellow(`  ✗ was ${event.answer.question.code}\n`),
      );
    }
  }

  end(): void {
    this.#progress.done();
  }
}

function printResult(result: TourResult, recalled: number, recalledExact: number, say: (line: string) => void): void {
  const { report } = result;
  say('');
  say(layerTable(report, columnsOf(process.stdout)));
  say('');
  const exact = (text: string): string => `(exact ${text})`;
  const rows: ReportRow[] = [
    ...memoryRows(report),
    divergenceRow(result.divergence),
    [
      'Recall',
      `${recalled} of ${result.answers.length} codes, exact cache ${recalledExact} of ${result.answersExact.length}`,
    ],
    [
      'Speed',
      `reading ${result.prefillTokensPerSecond.toFixed(0)} tokens/s ${exact(result.prefillTokensPerSecondExact.toFixed(0))}, writing ${result.tokensPerSecond.toFixed(1)} ${exact(result.tokensPerSecondExact.toFixed(1))}`,
    ],
    ['Decisions', `${plural(report.decisions, 'move')} planned, ${report.refusedTrials} refused after their trial`],
  ];
  if (report.logPath !== null) rows.push(['Log', report.logPath]);
  say(fields(rows, columnsOf(process.stdout)));
  if (report.logPath === null) return;
  say('');
  say('Ask it why:');
  const command = 'npx palimpsest audit';
  say(`  ${command} list --session ${shortId(report.session)} --limit 10`);
  if (report.notable !== null) say(`  ${command} explain ${report.notable.seq}`);
  say(`  ${command} verify`);
}
