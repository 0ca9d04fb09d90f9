/** `palimpsest trace record` writes a run down, so that caches can be simulated over it without the model. */
import { columnsOf, fields, grouped, jsonText, KvError, plural, printable } from '../../native/index.ts';
import { parseCache } from '../evaluate/evaluate.ts';
import { parseBytes } from '../options/parse-budget.ts';
import { countedTokens, tokenize } from '../session/prompt.ts';
import { type Recorded, recordTrace } from '../trace/record.ts';
import { parseSample } from '../trace/sample.ts';
import { Runtime } from '../transformer/runtime/runtime.ts';
import { interruptible } from './interrupt.ts';
import { loadingModel } from './loading.ts';
import { engineOptions, flag, number, type Settings, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { readText } from './read-text.ts';

export async function record(settings: Settings): Promise<void> {
  const needed = (name: 'prompt' | 'output', hint: string): string => {
    const path = text(settings, name);
    if (path === undefined || path === '') throw new KvError('bad-argument', `no ${name} was given`, { hint });
    return path;
  };
  const prompt = needed('prompt', '--prompt FILE, or --prompt - for standard input');
  const path = needed('output', '--output FILE');
  const measure = (text(settings, 'measure') ?? '').split(',').filter((name) => name.trim() !== '');
  const request = {
    path,
    sample: parseSample(text(settings, 'sample') ?? 'queries=32'),
    bytesMax: parseBytes(text(settings, 'maxBytes') ?? '256MiB', 'maxBytes'),
    seed: number(settings, 'seed') ?? 0,
    measure: measure.map(parseCache),
  };
  const content = await readText(prompt, 'prompt');
  await interruptible(async (signal) => {
    // Weights are f32 as in evaluate, unless others are requested, so that nothing but the cache differs.
    const { model, dense, threads, isa, binding, cacheDir, offline } = engineOptions({ dense: 'exact', ...settings });
    const given = { model, dense, threads, isa, binding, cacheDir, offline };
    const runtime = await loadingModel(settings, signal, (how) => Runtime.open({ ...given, ...how }));
    const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
    try {
      const tokens = tokensOf(runtime, content, number(settings, 'tokens'));
      const start = performance.now();
      const onProgress = progress.update.bind(progress);
      const recorded = await recordTrace(runtime, tokens, { ...request, signal, onProgress });
      progress.done();
      print(settings, path, recorded, performance.now() - start);
    } finally {
      progress.done();
      await runtime.close();
    }
  });
}

/**
 * The prompt's tokens, or the first `count` of them. Throws 'bad-argument' when there are fewer, 'context-too-long'.
 */
function tokensOf({ model }: Runtime, content: string, count: number | undefined): readonly number[] {
  if (count === undefined) return tokenize(model.tokenizer, content, true, countedTokens(model));
  const tokens = tokenize(model.tokenizer, content, true);
  if (tokens.length >= count) return tokens.slice(0, count);
  throw new KvError('bad-argument', `the prompt has ${plural(tokens.length, 'token')}, not ${count}`, {
    values: { tokens: tokens.length, asked: count },
    hint: 'give a longer prompt, or leave out --tokens',
  });
}

function print(settings: Settings, path: string, { header, measured, bytes }: Recorded, ms: number): void {
  const { shape, sampling, tokens, model } = header;
  const seconds = ms / 1000;
  if (flag(settings, 'json')) {
    process.stdout.write(`${jsonText({ path, model: model.name, tokens, bytes, seconds, sampling, measured })}\n`);
    return;
  }
  const rows: [string, string][] = [
    ['trace', printable(path)],
    ['tokens', String(tokens)],
    ['bytes', grouped(bytes)],
    ['layers', `${sampling.layers.length} of ${shape.layers}`],
    ['KV heads', `${sampling.heads.length} of ${shape.kvHeads}`],
    ['queries', `${sampling.queriesPerPage} of each page`],
    ['seconds', seconds.toFixed(1)],
    ...measured.map(({ cache, meanKld }): [string, string] => [cache, `KLD ${meanKld.toPrecision(3)}, measured`]),
  ];
  process.stdout.write(`${fields(rows, columnsOf(process.stdout))}\n`);
}
