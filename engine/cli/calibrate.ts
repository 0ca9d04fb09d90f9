/**
 * `palimpsest calibrate` measures what each format does to the output in every layer, and writes what was learned of
 * it.
 */

import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { importThresholds, toThresholdFile, writeThresholdFile } from '../../memory/index.ts';
import {
  type Column,
  columnsOf,
  given,
  jsonText,
  KvError,
  plural,
  printable,
  table,
  wrap,
} from '../../native/index.ts';
import {
  type ActivationChoice,
  chooseActivations,
  type Estimate,
  FITTED_TOKENS,
  type Law,
  type Threshold,
  thresholdOf,
} from '../../policy/index.ts';
import { activationText } from '../../witness/index.ts';
import { type CalibrationText, calibrate, isComplete } from '../calibrate/calibrate.ts';
import { activationCostsOf, lawOf, thresholdsOf } from '../calibrate/fit.ts';
import { measureLong, withGrowth } from '../calibrate/long.ts';
import { type Measured, writeMeasured } from '../calibrate/measured.ts';
import { type Sensitivity, sensitivities, sensitivityPlot } from '../calibrate/sensitivity.ts';
import { makeFolder, memoryDir } from '../state/folder.ts';
import { productsOf } from '../transformer/activations.ts';
import { Runtime } from '../transformer/runtime/runtime.ts';
import { interruptible } from './interrupt.ts';
import { loadingModel } from './loading.ts';
import { engineOptions, flag, number, type Settings, stateDirOf, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { readText } from './read-text.ts';

/** The windows of this length in the tables of the documents. */
const TOKENS_DEFAULT = 2048;

export async function calibrateCommand(settings: Settings): Promise<void> {
  const paths = settings['text'] as string[] | undefined;
  if (paths === undefined || paths.length === 0)
    throw new KvError('bad-argument', 'no text was given', {
      hint: '--text FILE, several of different kinds if you can',
    });
  const texts: CalibrationText[] = [];
  for (const path of paths) texts.push({ name: nameOf(path), content: await readText(path, 'text') });
  if (flag(settings, 'predictor')) return (await import('./fit-predictor.ts')).fitCommand(settings, texts);
  const output = text(settings, 'output');
  const state = stateDirOf(settings);
  await interruptible(async (signal) => {
    const { model, dense, threads, isa, binding, cacheDir, offline } = engineOptions(settings);
    const named = { model, dense, threads, isa, binding, cacheDir, offline };
    const runtime = await loadingModel(settings, signal, (how) => Runtime.open({ ...named, ...how }));
    const { shape } = runtime;
    const target = { modelDigest: runtime.model.digest, shape, family: runtime.model.config.architecture };
    const path = output === undefined ? measuredIn(state, target.modelDigest) : `${output}.measured`;
    const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
    try {
      if (output === undefined) makeFolder(state);
      const start = performance.now();
      let before: number | null = null;
      const measured = await calibrate(runtime, {
        texts,
        tokens: number(settings, 'tokens') ?? TOKENS_DEFAULT,
        windows: number(settings, 'windows') ?? 1,
        path,
        signal,
        onProgress: (window, done, total) => {
          before ??= done - 1;
          const seconds = ((performance.now() - start) / 1000 / (done - before)) * (total - done);
          progress.share('probing', done, total, `${printable(window.text)}, ${seconds.toFixed(0)} s left`);
        },
      });
      const law = lawOf(measured);
      await measureLong(runtime, measured, thresholdsOf(law), {
        ...{ texts, tokens: number(settings, 'longTokens'), signal },
        onProgress: (name, done, total) => progress.share('reading long windows', done, total, printable(name)),
        onMeasured: () => writeMeasured(path, measured),
      });
      progress.done();
      const tokens = measured.windows.length * (measured.settings.history + measured.settings.later);
      const activations = activationCostsOf(measured) ?? undefined;
      const known = given({ sessions: measured.windows.length, tokens, activations });
      const set = withGrowth(thresholdsOf(law), measured.long ?? []);
      const file = toThresholdFile(set, target, null, known);
      if (output === undefined) {
        makeFolder(memoryDir(state));
        importThresholds(memoryDir(state), file, target);
      } else writeThresholdFile(output, file);
      print(settings, measured, law, {
        growth: thresholdOf(set, 'divergence.length'),
        activations:
          activations === undefined ? null : chooseActivations(activations, productsOf(runtime.model.config)),
        written: output ?? state,
        measured: path,
        seconds: (performance.now() - start) / 1000,
      });
    } catch (error) {
      if (error instanceof KvError && error.code === 'aborted' && existsSync(path))
        process.stderr.write(`\nwhat was measured is kept in ${path}: the same command goes on from there\n`);
      throw error;
    } finally {
      progress.done();
      await runtime.close();
    }
  });
}

/** The name of a text as a file of measurements may have it. */
const nameOf = (path: string): string => printable(basename(path).replace(/\.[a-z]+$/, '')).slice(0, 80);

const measuredIn = (state: string, modelDigest: string): string =>
  join(state, `calibration-${createHash('sha256').update(modelDigest).digest('hex').slice(0, 32)}.json`);

interface Written {
  /** The power by which divergence grows with the length. */
  readonly growth: Threshold;
  /** What --activations auto makes of it; null: the dense half has no such choice. */
  readonly activations: ActivationChoice | null;
  readonly written: string;
  readonly measured: string;
  readonly seconds: number;
}

const growthText = ({ value, samples }: Threshold): string =>
  samples === 0
    ? `No text was long enough to see how divergence grows beyond ${FITTED_TOKENS} tokens: the power ${value} of the length is assumed.`
    : `Beyond ${FITTED_TOKENS} tokens divergence grows as the power ${value} of the length (${plural(samples, 'window')}).`;

const shown = ({ value, sd }: Estimate): string => `${value.toPrecision(3)} ×÷ ${Math.exp(sd).toFixed(2)}`;

function print(settings: Settings, measured: Measured, law: Law, where: Written): void {
  const columns = columnsOf(process.stdout);
  const rows = sensitivities(measured, law);
  const windows = measured.windows.filter(isComplete).length;
  const say = (line = ''): void => void process.stdout.write(`${line}\n`);
  say(sensitivityTable(measured, rows, columns));
  say();
  say(sensitivityPlot(measured.settings.formats, rows));
  say();
  const { text: common, offset, fade } = law;
  say(
    wrap(
      `${plural(windows, 'window')} of ${measured.settings.history + measured.settings.later} tokens. Texts differ by a factor of ${Math.exp(common.sd).toFixed(2)} either way. Errors of later queries: ${shown(offset)} times the first trial, falling with the age of the page to the power of −${shown(fade)}.`,
      columns,
    ),
  );
  if (number(settings, 'longTokens') !== 0) say(wrap(growthText(where.growth), columns));
  if (where.activations !== null) say(wrap(`--activations auto: ${activationText(where.activations)}.`, columns));
  say(wrap(`Written to ${printable(where.written)}; measurements are in ${printable(where.measured)}.`, columns));
  if (flag(settings, 'json')) say(jsonText({ ...where, windows, law, sensitivities: rows }));
}

/** Divergence of one page in each format that was probed, in nats, and what one ε² costs; one row per layer. */
export function sensitivityTable({ settings }: Measured, rows: readonly Sensitivity[], columns?: number): string {
  const sides = (['k', 'v'] as const).flatMap((side): Column<Sensitivity>[] => [
    { title: `${side.toUpperCase()} nats/ε²`, value: (row) => shown(row[side].coefficient) },
    ...settings.formats[side].map(
      (format): Column<Sensitivity> => ({
        title: `${side.toUpperCase()} ${format}`,
        value: (row) => row[side].perPage[format]?.toExponential(1) ?? '–',
      }),
    ),
  ]);
  return table([{ title: 'layer', value: ({ layer }) => String(layer) }, ...sides], rows, columns);
}
