/** An answer on the command line: what it is generated with, how it is shown, and how its session ends. */
import { columnsOf, given, jsonText, KvError, plural } from '../../native/index.ts';
import { GENERATE_OPTIONS } from '../options/table.ts';
import type { GenerateOptions } from '../options/types.ts';
import type { Generated } from '../session/types.ts';
import type { EngineSession, Generation } from '../thread/engine-session.ts';
import type { ChatMessage } from '../transformer/types.ts';
import { grammarOption, warnIncomplete } from './grammar-settings.ts';
import { logprobTable } from './logprob-table.ts';
import { optionsOf } from './option-settings.ts';
import { flag, type Settings, text } from './options.ts';
import type { ProgressLine } from './progress.ts';
import { samplingOptions } from './sampling-settings.ts';

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
    `a prompt of ${plural(promptTokens, 'token')} and ${maxTokens} to generate exceed the context of ${contextLength} by ${over}`,
    {
      values: { promptTokens, maxTokens, contextLength },
      hint:
        over < maxTokens
          ? `--max-tokens ${maxTokens - over}, or a shorter prompt`
          : `shorten the prompt by ${plural(over, 'token')}`,
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
    ...(text(settings, 'receiptFile') === undefined ? {} : { receipt: true }),
    signal,
    onProgress: (event) => progress.update('reading', event),
  };
}

/** Prints an answer as it comes, and behind it what it lacks and its log probabilities. */
export async function stream<Result extends Generated>(
  generation: Generation<Result>,
  settings: Settings,
  progress: ProgressLine,
): Promise<Result> {
  try {
    for await (const { text, tiers } of generation.events()) {
      progress.done();
      process.stdout.write(text);
      if (tiers !== null) process.stderr.write(`${jsonText({ label: 'writing', text, tiers })}\n`);
    }
    const generated = await generation.result;
    progress.done();
    process.stdout.write('\n');
    warnIncomplete(generated);
    printLogprobs(settings, generated);
    return generated;
  } finally {
    progress.done();
  }
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
