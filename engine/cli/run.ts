/** `palimpsest run` reads a prompt within a KV budget, streams the answer and reports what the cache did. */
import { columnsOf, fields, KvError, privately, replaceFile } from '../../native/index.ts';
import { lacksText, shortId } from '../../witness/index.ts';
import type { SessionReport } from '../cache/types.ts';
import { GENERATE_OPTIONS, proposedOf } from '../options/table.ts';
import type { Prompt } from '../options/types.ts';
import { checkContinuations, countedTokens } from '../session/prompt.ts';
import type { Divergence, Generated } from '../session/types.ts';
import type { Engine } from '../thread/engine.ts';
import type { EngineSession } from '../thread/engine-session.ts';
import { checkLength, closing, firstMessages, generateOptions, printLogprobs, stream } from './answer.ts';
import { converse } from './conversation.ts';
import { grammarOption, warnIncomplete } from './grammar-settings.ts';
import { interruptible } from './interrupt.ts';
import { jsonResult } from './json-result.ts';
import { opening, withEngine } from './loading.ts';
import { checkSessionSettings, engineOptions, flag, number, type Settings, sessionOptions, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { readText } from './read-text.ts';
import { divergenceRow, layerTable, memoryRows, type ReportRow } from './report.ts';
import { writeReport } from './report-page.ts';
import { samplingOptions } from './sampling-settings.ts';

/** How many tokens before the answer --compare looks at. */
const COMPARED_TOKENS = 512;

export async function run(settings: Settings): Promise<void> {
  const chat = flag(settings, 'chat');
  const path = text(settings, 'prompt') ?? (chat && process.stdin.isTTY !== true ? '-' : undefined);
  if (path === undefined && !chat)
    throw new KvError('bad-argument', 'no prompt was given', {
      hint: '--prompt FILE, --prompt - for standard input, or --chat on a terminal',
    });
  // Mistakes in the request are reported before a model is loaded or a folder is created.
  const options = engineOptions(settings);
  checkSessionSettings(settings);
  checkContinuations(completions(settings), samplingOptions(settings));
  await grammarOption(settings);
  if (flag(settings, 'tierSummary') && completions(settings) > 1)
    throw new KvError(
      'bad-argument',
      'of several completions no tiers are told, since they are printed when all are written',
      {
        hint: 'leave out --tier-summary or --completions',
      },
    );
  if (path === undefined && completions(settings) > 1)
    throw new KvError('bad-argument', 'a conversation goes on with one answer', {
      hint: 'leave out --completions, or give the one question with --prompt FILE',
    });
  const receiptFile = text(settings, 'receiptFile');
  if (path === undefined && receiptFile !== undefined)
    throw new KvError('bad-argument', 'a receipt is of one answer, and a conversation has many', {
      hint: 'leave out --receipt, or give the one question with --prompt FILE',
    });
  const content = path === undefined ? null : await readText(path, 'prompt');
  if (content === '')
    throw new KvError('bad-argument', 'the prompt is empty', {
      values: { prompt: path },
      hint: 'an empty prompt has no next token; give at least one character',
    });
  await interruptible(async (signal) => {
    const session = await withEngine(settings, options, signal, (engine) => {
      if (chat && !engine.info.chat)
        throw new KvError('bad-tokenizer', `${engine.info.name} has no chat template`, {
          values: { model: engine.info.path },
          hint: 'leave out --chat: the prompt is then read as plain text',
        });
      return content === null ? converse(engine, settings, signal) : once(engine, settings, content, signal);
    });
    // Only now does the log have the end of the session.
    const report = text(settings, 'report');
    if (report !== undefined && session !== null) writeReport(settings, session, report);
  });
}

/** → id of the session */
async function once(engine: Engine, settings: Settings, content: string, signal: AbortSignal): Promise<string> {
  const prompt: Prompt = flag(settings, 'chat') ? [...firstMessages(settings), { role: 'user', content }] : content;
  const maxTokens = number(settings, 'maxTokens') ?? GENERATE_OPTIONS.maxTokens.default;
  const ids = await engine.tokenize(prompt, countedTokens(engine.info));
  checkLength(ids.length, maxTokens, engine.info.config.contextLength);
  const compare = flag(settings, 'compare');
  const asked = {
    ...proposedOf(sessionOptions(settings, ids.length + maxTokens), ids),
    ...(compare ? { compareTokens: COMPARED_TOKENS + maxTokens } : {}),
  };
  const session = await opening(engine, signal, () => engine.openSession(asked));
  const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  await closing(session, signal, async () => {
    const generated = await answers(session, ids, settings, progress, signal);
    const receiptFile = text(settings, 'receiptFile');
    if (receiptFile !== undefined) writeReceipt(receiptFile, generated[0]!);
    // Before the exact copy is made, whose memory is not the session's.
    const report = await session.report();
    let divergence: Divergence | null = null;
    if (compare && !signal.aborted) {
      divergence = await session.compare({ signal, onProgress: (event) => progress.update('exact cache', event) });
    }
    progress.done();
    print(engine, settings, report, generated, divergence);
  });
  return session.id;
}

/** A receipt with what was asked, which is for those alone who may see that. */
function writeReceipt(path: string, { receipt }: Generated): void {
  replaceFile(path, Buffer.from(`${JSON.stringify(receipt, null, 1)}\n`), privately());
}

const completions = (settings: Settings): number => number(settings, 'completions') ?? 1;

/**
 * Prints the answer as it comes, or one completion after the other, each with its log probabilities where they are
 * asked for.
 */
async function answers(
  session: EngineSession,
  prompt: Prompt,
  settings: Settings,
  progress: ProgressLine,
  signal: AbortSignal,
): Promise<Generated[]> {
  const options = await generateOptions(settings, progress, signal);
  const n = completions(settings);
  if (n === 1) return [await stream(session.generate(prompt, options), settings, progress)];
  const all = await session.continuations(prompt, { ...options, n });
  progress.done();
  for (const [i, generated] of all.entries()) {
    process.stdout.write(
      `${i === 0 ? '' : '\n'}[${i + 1} of ${n}, seed ${(options.seed ?? 0) + i}]\n${generated.text}\n`,
    );
    warnIncomplete(generated);
    printLogprobs(settings, generated);
  }
  return all;
}

function print(
  engine: Engine,
  settings: Settings,
  report: SessionReport,
  answers: readonly Generated[],
  divergence: Divergence | null,
): void {
  const generated = answers[0]!;
  const lack = lacksText({ missing: report.missingEntries, leftOut: report.leftOutEntries });
  if (lack !== '') process.stderr.write(`warning: the log of this session lacks ${lack}\n`);
  if (!flag(settings, 'json')) {
    const columns = columnsOf(process.stdout);
    const speeds = `${generated.prefillTokensPerSecond.toFixed(0)} tokens/s reading, ${generated.tokensPerSecond.toFixed(1)} tokens/s writing`;
    const rows: ReportRow[] = [
      ...memoryRows(report),
      ...(divergence === null ? [] : [divergenceRow(divergence)]),
      ['Speed', speeds],
      ...(report.logPath === null ? [] : [['Log', `${report.logPath}, session ${shortId(report.session)}`] as const]),
    ];
    process.stdout.write(`\n${layerTable(report, columns)}\n\n${fields(rows, columns)}\n`);
    return;
  }
  const asked = {
    ...(generated.logprobs === null ? {} : { logprobs: generated.logprobs }),
    ...(generated.grammarComplete === null ? {} : { grammarComplete: generated.grammarComplete }),
    ...(number(settings, 'promptLookupTokens') === undefined
      ? {}
      : { drafted: generated.drafted, accepted: generated.accepted }),
    ...(answers.length === 1 ? {} : { completions: answers }),
  };
  process.stdout.write(`${JSON.stringify({ ...jsonResult(engine, report, generated, divergence), ...asked })}\n`);
}
