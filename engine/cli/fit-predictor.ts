/** `palimpsest calibrate --predictor` fits what parked pages are predicted by, and writes it where sessions find it. */

import { dirname } from 'node:path';
import {
  bytesText,
  columnsOf,
  jsonText,
  KvError,
  PAGE_TOKENS,
  plural,
  printable,
  replaceFile,
  wrap,
} from '../../native/index.ts';
import type { CalibrationText } from '../calibrate/calibrate.ts';
import { fitPredictor } from '../session/park/fit.ts';
import { formPredictor } from '../session/park/predictor.ts';
import { predictorPath } from '../session/park/predictors.ts';
import { makeFolder } from '../state/folder.ts';
import { Runtime } from '../transformer/runtime/runtime.ts';
import { interruptible } from './interrupt.ts';
import { loadingModel } from './loading.ts';
import { engineOptions, flag, number, type Settings, stateDirOf, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';

/** Tokens of a window: many short ones of different kinds are better than few long ones. */
const TOKENS_DEFAULT = 1024;

export async function fitCommand(settings: Settings, texts: readonly CalibrationText[]): Promise<void> {
  const output = text(settings, 'output');
  await interruptible(async (signal) => {
    const { model, dense, threads, isa, binding, cacheDir, offline } = engineOptions(settings);
    const given = { model, dense, threads, isa, binding, cacheDir, offline };
    const runtime = await loadingModel(settings, signal, (how) => Runtime.open({ ...given, ...how }));
    const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
    try {
      const tokens = number(settings, 'tokens') ?? TOKENS_DEFAULT;
      const windows = texts.flatMap((one) => windowsOf(runtime, one, tokens, number(settings, 'windows') ?? 1));
      const start = performance.now();
      let read = 0;
      const fitted = await fitPredictor(runtime, windows, {
        signal,
        onProgress: (event) => {
          if (event.tokens === event.tokensTotal) read++;
          progress.share('reading', read, windows.length, '');
        },
      });
      progress.done();
      const bytes = formPredictor(fitted);
      const path = output ?? predictorPath(stateDirOf(settings), runtime.model.digest);
      if (output === undefined) makeFolder(dirname(path));
      replaceFile(path, bytes);
      const done = {
        written: path,
        bytes: bytes.length,
        windows: windows.length,
        tokens,
        seconds: (performance.now() - start) / 1000,
      };
      const sentence = `Fitted to ${plural(windows.length, 'window')} of ${tokens} tokens: ${bytesText(bytes.length)}, written to ${printable(path)}.`;
      process.stdout.write(`${flag(settings, 'json') ? jsonText(done) : wrap(sentence, columnsOf(process.stdout))}\n`);
    } finally {
      progress.done();
      await runtime.close();
    }
  });
}

/** Windows spread evenly over a text. Throws 'bad-argument' for one that is too short. */
function windowsOf({ model }: Runtime, { name, content }: CalibrationText, tokens: number, count: number): number[][] {
  const ids = model.tokenizer.encode(content);
  if (tokens < PAGE_TOKENS || tokens > model.config.contextLength || ids.length < tokens * count)
    throw new KvError(
      'bad-argument',
      `${name} has ${ids.length} tokens, which are not ${plural(count, 'window')} of ${tokens}`,
      {
        values: { text: name, tokens: ids.length, asked: tokens * count, least: PAGE_TOKENS },
        hint: 'give a longer text, or fewer or shorter windows with --windows and --tokens',
      },
    );
  const step = Math.floor((ids.length - tokens * count) / count) + tokens;
  return Array.from({ length: count }, (_, window) => ids.slice(window * step, window * step + tokens));
}
