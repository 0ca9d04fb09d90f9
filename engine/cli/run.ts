/** `palimpsest run`: read a prompt within a KV budget, stream the answer, say what the cache did. */
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline/promises';
import { KvError } from '../../native/index.ts';
import { createEngine, type Engine, type EngineSession } from '../engine.ts';
import type { ChatMessage } from '../model/types.ts';
import type { Divergence, Generated, GenerateOptions, Prompt, SessionReport } from '../types.ts';
import { interruptible } from './interrupt.ts';
import { engineOptions, flag, number, type Settings, sessionOptions, text } from './options.ts';
import { ProgressLine, type ProgressKind } from './progress.ts';
import { divergenceLine, layerTable, memoryLine } from './report.ts';

/** Tokens before the answer whose predictions --compare looks at. */
const COMPARED_TOKENS = 512;

export function readPrompt(path: string | undefined): string {
  if (path === undefined) throw new KvError('bad-argument', 'no prompt was given', { hint: '--prompt FILE, or --prompt - for standard input' });
  try {
    return readFileSync(path === '-' ? 0 : path, 'utf8');
  } catch (cause) {
    throw new KvError('not-found', `cannot read the prompt ${path}`, { values: { path }, cause });
  }
}

export async function run(settings: Settings): Promise<void> {
  const interactive = flag(settings, 'chat') && process.stdin.isTTY === true && settings['prompt'] === undefined;
  const first = interactive ? '' : readPrompt(text(settings, 'prompt'));
  await interruptible(async (signal) => {
    const engine = await createEngine(engineOptions(settings));
    try {
      if (interactive) await converse(engine, settings, signal);
      else await once(engine, settings, first, signal);
    } finally {
      await engine.close();
    }
  });
}

function firstPrompt(settings: Settings, content: string): Prompt {
  if (!flag(settings, 'chat')) return content;
  const system = text(settings, 'system');
  const messages: ChatMessage[] = system === undefined ? [] : [{ role: 'system', content: system }];
  return [...messages, { role: 'user', content }];
}

function generateOptions(settings: Settings, progress: ProgressLine, signal: AbortSignal): GenerateOptions {
  return {
    maxTokens: number(settings, 'maxTokens') ?? 128,
    temperature: number(settings, 'temperature') ?? 0,
    topP: number(settings, 'topP') ?? 1,
    seed: number(settings, 'seed') ?? 0,
    stop: (settings['stop'] as string[] | undefined) ?? [],
    signal,
    onProgress: (event) => progress.update('reading', event),
  };
}

async function once(engine: Engine, settings: Settings, content: string, signal: AbortSignal): Promise<void> {
  const prompt = firstPrompt(settings, content);
  const maxTokens = number(settings, 'maxTokens') ?? 128;
  const ids = await engine.tokenize(prompt);
  const compare = flag(settings, 'compare');
  const session = await engine.openSession({ ...sessionOptions(settings, ids.length + maxTokens), ...(compare ? { compareTokens: COMPARED_TOKENS + maxTokens } : {}) });
  const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  const generated = await stream(session, ids, generateOptions(settings, progress, signal), progress);
  process.stdout.write('\n');
  let divergence: Divergence | null = null;
  if (compare && !signal.aborted) {
    divergence = await session.compare({ signal, onProgress: (event) => progress.update('exact cache', event) });
    progress.done();
  }
  const report = await session.report();
  await session.close(generated.finish === 'aborted' ? 'aborted' : 'done');
  print(engine, settings, report, generated, divergence);
}

async function stream(session: EngineSession, prompt: Prompt, options: GenerateOptions, progress: ProgressLine): Promise<Generated> {
  const generation = session.generate(prompt, options);
  for await (const piece of generation) {
    progress.done();
    process.stdout.write(piece);
  }
  progress.done();
  return generation.result;
}

/** Turns over one cache until the input ends. */
async function converse(engine: Engine, settings: Settings, signal: AbortSignal): Promise<void> {
  const context = engine.info.config.contextLength;
  const session = await engine.openSession(sessionOptions(settings, context));
  const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  const lines = createInterface({ input: process.stdin, output: process.stderr });
  let turn = 0;
  try {
    for (;;) {
      const line = await lines.question('> ', { signal }).catch(() => null);
      if (line === null) break;
      if (line.trim() === '') continue;
      const prompt: Prompt = turn++ === 0 ? firstPrompt(settings, line) : [{ role: 'user', content: line }];
      await stream(session, prompt, generateOptions(settings, progress, signal), progress);
      process.stdout.write('\n');
    }
  } finally {
    lines.close();
    const report = await session.report();
    await session.close(signal.aborted ? 'aborted' : 'done');
    process.stderr.write(`\n${memoryLine(report)}\n`);
  }
}

function print(engine: Engine, settings: Settings, report: SessionReport, generated: Generated, divergence: Divergence | null): void {
  if (!flag(settings, 'json')) {
    process.stdout.write(`\n${layerTable(report)}\n\n${memoryLine(report)}\n`);
    if (divergence !== null) process.stdout.write(`${divergenceLine(divergence)}\n`);
    process.stdout.write(`Speed      ${generated.prefillTokensPerSecond.toFixed(0)} tokens/s reading, ${generated.tokensPerSecond.toFixed(1)} tokens/s writing\n`);
    if (report.logPath !== null) process.stdout.write(`Log        ${report.logPath}, session ${report.session}\n`);
    return;
  }
  process.stdout.write(`${JSON.stringify(jsonResult(engine, report, generated, divergence))}\n`);
}

/** The object behind --json; its fields are documented in the README. */
export function jsonResult(engine: Engine, report: SessionReport, speed: Pick<Generated, 'tokensPerSecond' | 'prefillTokensPerSecond'>, divergence: Divergence | null, recall: { asked: number; recalled: number; recalledExact: number } | null = null): Record<string, unknown> {
  return {
    model: engine.info.name,
    session: report.session,
    policy: report.policy,
    tokens: report.tokens,
    kvBytes: report.kvBytes,
    kvBytesF16: report.kvBytesF16,
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
    schedulerMs: report.schedulerMs,
    trialMs: report.trialMs,
    transcodeMs: report.transcodeMs,
    witnessMs: report.witnessMs,
    denseMs: report.denseMs,
    attentionMs: report.attentionMs,
    logPath: report.logPath,
  };
}
