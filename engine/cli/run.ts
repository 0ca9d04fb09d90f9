/** `palimpsest run` reads a prompt within a KV budget, streams the answer and reports what the cache did. */
import { columnsOf, fields, given, grouped, KvError, plural, wrap } from '../../native/index.ts';
import { shortId } from '../../witness/index.ts';
import type { SessionReport } from '../cache/types.ts';
import { GENERATE_OPTIONS } from '../options/table.ts';
import type { GenerateOptions, Prompt } from '../options/types.ts';
import { checkContinuations, countedTokens } from '../session/prompt.ts';
import type { Divergence, Generated } from '../session/types.ts';
import type { Chat } from '../thread/chat.ts';
import { type ChatOptions, CONVERSATION_OPTIONS } from '../thread/chat-options.ts';
import { createEngine, type Engine } from '../thread/engine.ts';
import type { EngineSession, Generation } from '../thread/engine-session.ts';
import type { ChatMessage } from '../transformer/types.ts';
import { ChatInput } from './chat.ts';
import { failureText } from './failure.ts';
import { grammarOption, warnIncomplete } from './grammar-settings.ts';
import { interruptible } from './interrupt.ts';
import { loadingModel } from './loading.ts';
import { logprobTable } from './logprob-table.ts';
import { optionsOf } from './option-settings.ts';
import { cacheTypes, engineOptions, flag, number, type Settings, sessionOptions, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { readText } from './read-text.ts';
import { divergenceRow, layerTable, memoryRows, type ReportRow } from './report.ts';
import { writeReport } from './report-page.ts';
import { samplingOptions } from './sampling-settings.ts';

/** How many tokens before the answer --compare looks at. */
const COMPARED_TOKENS = 512;

/** The errors after which a conversation goes on. */
const GOES_ON: readonly string[] = ['aborted', 'context-too-long', 'budget-too-small', 'budget-exceeded'];

export async function run(settings: Settings): Promise<void> {
  const chat = flag(settings, 'chat');
  const path = text(settings, 'prompt') ?? (chat && process.stdin.isTTY !== true ? '-' : undefined);
  if (path === undefined && !chat)
    throw new KvError('bad-argument', 'no prompt was given', {
      hint: '--prompt FILE, --prompt - for standard input, or --chat on a terminal',
    });
  // Mistakes in the request are reported before a model is loaded or a folder is created.
  const options = engineOptions(settings);
  cacheTypes(settings);
  checkContinuations(completions(settings), samplingOptions(settings));
  await grammarOption(settings);
  if (path === undefined && completions(settings) > 1)
    throw new KvError('bad-argument', 'a conversation goes on with one answer', {
      hint: 'leave out --completions, or give the one question with --prompt FILE',
    });
  const content = path === undefined ? null : await readText(path, 'prompt');
  if (content === '')
    throw new KvError('bad-argument', 'the prompt is empty', {
      values: { prompt: path },
      hint: 'an empty prompt has no next token; give at least one character',
    });
  await interruptible(async (signal) => {
    const engine = await loadingModel(settings, signal, (how) => createEngine({ ...options, ...how }));
    let session: string;
    try {
      if (chat && !engine.info.chat)
        throw new KvError('bad-tokenizer', `${engine.info.name} has no chat template`, {
          values: { model: engine.info.path },
          hint: 'leave out --chat: the prompt is then read as plain text',
        });
      session =
        content === null ? await converse(engine, settings, signal) : await once(engine, settings, content, signal);
    } finally {
      await engine.close();
    }
    // Only now does the log have the end of the session.
    const report = text(settings, 'report');
    if (report !== undefined) writeReport(settings, session, report);
  });
}

export function firstMessages(settings: Settings): ChatMessage[] {
  const system = text(settings, 'system');
  return system === undefined ? [] : [{ role: 'system', content: system }];
}

/** Throws if the prompt cannot fit, before a session is opened. */
export function checkLength(promptTokens: number, maxTokens: number, contextLength: number): void {
  const over = promptTokens + maxTokens - contextLength;
  if (over <= 0) return;
  throw new KvError(
    'context-too-long',
    `a prompt of ${promptTokens} tokens and ${maxTokens} to generate exceed the context of ${contextLength} by ${over}`,
    {
      values: { promptTokens, maxTokens, contextLength },
      hint:
        over < maxTokens
          ? `--max-tokens ${maxTokens - over}, or a shorter prompt`
          : `shorten the prompt by ${over} tokens`,
    },
  );
}

export async function generateOptions(
  settings: Settings,
  progress: ProgressLine,
  signal: AbortSignal,
): Promise<GenerateOptions> {
  return {
    ...optionsOf<GenerateOptions>(settings, GENERATE_OPTIONS),
    ...samplingOptions(settings),
    ...given<GenerateOptions>({ grammar: await grammarOption(settings) }),
    signal,
    onProgress: (event) => progress.update('reading', event),
  };
}

/** → id of the session */
async function once(engine: Engine, settings: Settings, content: string, signal: AbortSignal): Promise<string> {
  const prompt: Prompt = flag(settings, 'chat') ? [...firstMessages(settings), { role: 'user', content }] : content;
  const maxTokens = number(settings, 'maxTokens') ?? GENERATE_OPTIONS.maxTokens.default;
  const ids = await engine.tokenize(prompt, countedTokens(engine.info));
  checkLength(ids.length, maxTokens, engine.info.config.contextLength);
  const compare = flag(settings, 'compare');
  const session = await engine.openSession({
    ...sessionOptions(settings, ids.length + maxTokens),
    ...(compare ? { compareTokens: COMPARED_TOKENS + maxTokens } : {}),
  });
  const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  await closing(session, signal, async () => {
    const generated = await answers(session, ids, settings, progress, signal);
    let divergence: Divergence | null = null;
    if (compare && !signal.aborted) {
      divergence = await session.compare({ signal, onProgress: (event) => progress.update('exact cache', event) });
    }
    progress.done();
    print(engine, settings, await session.report(), generated, divergence);
  });
  return session.id;
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
  if (n === 1) {
    const generated = await stream(session.generate(prompt, options), progress);
    process.stdout.write('\n');
    warnIncomplete(generated);
    printLogprobs(settings, generated);
    return [generated];
  }
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

/** Where they are asked for, and --json does not hold them. */
export function printLogprobs(settings: Settings, { logprobs }: Generated): void {
  if (logprobs !== null && !flag(settings, 'json'))
    process.stdout.write(`\n${logprobTable(logprobs, columnsOf(process.stdout))}\n`);
}

/** Runs `work` and closes the session afterwards, with the reason why it ended. */
export async function closing(session: EngineSession, signal: AbortSignal, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    await session.close(signal.aborted ? 'aborted' : 'error');
    throw error;
  }
  await session.close(signal.aborted ? 'aborted' : 'done');
}

export async function stream<Result extends Generated>(
  generation: Generation<Result>,
  progress: ProgressLine,
): Promise<Result> {
  try {
    for await (const piece of generation) {
      progress.done();
      process.stdout.write(piece);
    }
    return await generation.result;
  } finally {
    progress.done();
  }
}

/** Opens a conversation as the settings say, and tells how it ends. */
async function openChat(engine: Engine, settings: Settings, say: (line: string) => void): Promise<Chat> {
  const { tokensExpected: _, ...options } = sessionOptions(settings, 0);
  const chat = await engine.chat({
    ...options,
    ...optionsOf<ChatOptions>(settings, CONVERSATION_OPTIONS),
  });
  const { contextLength } = engine.info.config;
  if (chat.contextTokens < (number(settings, 'contextTokens') ?? contextLength))
    say(
      `The budget of ${text(settings, 'kvBudget')} holds a conversation of about ${grouped(chat.contextTokens)} tokens; the model could hold ${grouped(contextLength)}.`,
    );
  if (chat.mostTokens > chat.contextTokens)
    say(
      `From ${grouped(chat.contextTokens)} tokens on the conversation is compressed; its bytes can hold about ${grouped(chat.mostTokens)}.`,
    );
  say('Ctrl-C ends an answer, or between two answers the conversation; so does Ctrl-D.');
  return chat;
}

/**
 * Holds a conversation with one cache until the input ends. Ctrl-C ends an answer, or the conversation if it is waiting
 * for a question. → id of the session
 */
async function converse(engine: Engine, settings: Settings, signal: AbortSignal): Promise<string> {
  const say = (line: string): void => void process.stderr.write(`${wrap(line, columnsOf(process.stderr))}\n`);
  const chat = await openChat(engine, settings, say);
  const { session } = chat;
  const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  const input = new ChatInput(signal);
  let last: Generated | null = null;
  try {
    await closing(session, signal, async () => {
      for (;;) {
        const line = await input.next();
        if (line === null) break;
        if (line.trim() === '') continue;
        const options = await generateOptions(settings, progress, input.startTurn());
        try {
          const answer = await stream(chat.send(line, options), progress);
          last = answer;
          process.stdout.write('\n');
          warnIncomplete(answer);
          printLogprobs(settings, answer);
          if (answer.dropped.length > 0)
            say(`The ${plural(answer.dropped.length, 'oldest message')} left the conversation, which was full.`);
          if (answer.compressed !== null)
            say(
              `The conversation is ${plural(answer.compressed.overTokens, 'token')} over its context and now at ${answer.compressed.effectiveBits.toFixed(1)} bits a number; at most ${grouped(answer.compressed.mostTokens)} tokens fit.`,
            );
        } catch (error) {
          // A question that does not fit leaves the conversation as it was, and a shorter one may fit.
          if (!(error instanceof KvError) || signal.aborted || !GOES_ON.includes(error.code)) throw error;
          process.stderr.write(`${failureText(error)}\n`);
        } finally {
          input.endTurn();
        }
      }
      const report = await session.report();
      process.stderr.write(`\n${fields(memoryRows(report), columnsOf(process.stderr))}\n`);
      if (flag(settings, 'json'))
        process.stdout.write(
          `${JSON.stringify(jsonResult(engine, report, last ?? { tokensPerSecond: 0, prefillTokensPerSecond: 0 }, null))}\n`,
        );
    });
    return session.id;
  } finally {
    input.close();
  }
}

function print(
  engine: Engine,
  settings: Settings,
  report: SessionReport,
  answers: readonly Generated[],
  divergence: Divergence | null,
): void {
  const generated = answers[0]!;
  if (report.missingEntries > 0)
    process.stderr.write(
      `warning: ${plural(report.missingEntries, 'entry', 'entries')} of this session are missing from the log: the disk refused them\n`,
    );
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

/** The object that --json prints. The README describes its fields. */
export function jsonResult(
  engine: Engine,
  report: SessionReport,
  speed: Pick<Generated, 'tokensPerSecond' | 'prefillTokensPerSecond'>,
  divergence: Divergence | null,
  recall: { asked: number; recalled: number; recalledExact: number } | null = null,
): Record<string, unknown> {
  return {
    model: engine.info.name,
    session: report.session,
    policy: report.policy,
    tokens: report.tokens,
    kvBytes: report.kvBytes,
    kvBytesF16: report.kvBytesF16,
    reservedBytes: report.reservedBytes,
    reservedPeakBytes: report.reservedPeakBytes,
    scratchBytes: report.scratchBytes,
    budgetBytes: report.budgetBytes,
    effectiveBits: report.effectiveBits,
    tokensPerSecond: speed.tokensPerSecond,
    prefillTokensPerSecond: speed.prefillTokensPerSecond,
    meanKld: divergence?.meanKld ?? null,
    kld99: divergence?.kld99 ?? null,
    sameTop: divergence?.sameTop ?? null,
    asked: recall?.asked ?? 0,
    recalled: recall?.recalled ?? null,
    recalledExact: recall?.recalledExact ?? null,
    decisions: report.decisions,
    refusedTrials: report.refusedTrials,
    isa: engine.info.isa,
    threads: engine.info.threads,
    decideMs: report.decideMs,
    trialMs: report.trialMs,
    transcodeMs: report.transcodeMs,
    witnessMs: report.witnessMs,
    denseMs: report.denseMs,
    attentionMs: report.attentionMs,
    logPath: report.logPath,
  };
}
