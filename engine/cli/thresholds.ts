/** `palimpsest thresholds …` shows, exports and imports what was learned. */
import {
  checkThresholdTarget,
  diffThresholdFiles,
  importThresholds,
  readThresholdFile,
  type ThresholdFile,
  type ThresholdTarget,
  writeThresholdFile,
} from '../../memory/index.ts';
import { brief, columnsOf, jsonText, KvError, printable, table } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { isLogDir, readLogId } from '../../witness/index.ts';
import { loadModel } from '../model/load.ts';
import { logDir, makeFolder, memoryDir, readBook } from '../state.ts';
import { flag, type Settings, text } from './options.ts';

type Target = ThresholdTarget & { readonly family: string; readonly defaults: ReturnType<typeof defaultThresholds> };

/** The model whose thresholds are wanted. Only its header and digest are read. */
async function target(settings: Settings): Promise<Target> {
  const model = await loadModel(text(settings, 'model') ?? 'reference', {
    cacheDir: text(settings, 'cache') ?? '.cache',
  });
  try {
    const { layers, queryHeads, kvHeads, headDim, architecture } = model.config;
    return {
      modelDigest: model.digest,
      shape: { layers, queryHeads, kvHeads, headDim },
      family: architecture,
      defaults: defaultThresholds(layers),
    };
  } finally {
    model.weights.close();
  }
}

/** The thresholds, for people to read. */
export function describe(file: ThresholdFile, columns?: number): string {
  const { shape, digest } = file.model;
  const spread = (gains: readonly number[]): string =>
    `${brief(Math.min(...gains), 2)} … ${brief(Math.max(...gains), 2)}`;
  const rows = table(
    [
      { title: 'threshold', align: 'left', value: ([id]) => id },
      { title: 'value', value: ([, { value }]) => brief(value, 2) },
      { title: 'unit', align: 'left', value: ([, { unit }]) => unit },
      { title: 'seen', value: ([, { samples }]) => String(samples) },
      { title: 'source', align: 'left', least: 16, optional: true, value: ([, { source }]) => source },
    ],
    Object.entries(file.thresholds),
    columns,
  );
  return `model ${printable(digest.slice(0, 16)) || '(none)'}, ${shape.layers} layers, ${shape.queryHeads}/${shape.kvHeads} heads of ${shape.headDim}\nc ${brief(file.c, 2)}, gains K ${spread(file.gains.k)}, V ${spread(file.gains.v)}\n\n${rows}`;
}

/** What has been learned for the model according to the state folder, which is not created if it does not exist. */
async function learnedFile(settings: Settings): Promise<ThresholdFile> {
  const model = await target(settings);
  const dir = text(settings, 'state') ?? '.palimpsest';
  if (!isLogDir(logDir(dir)))
    throw new KvError('not-found', `nothing was learned in ${dir} yet`, {
      values: { dir },
      hint: 'run something first, or name the state folder with --state',
    });
  const book = await readBook(dir);
  try {
    const id = readLogId(logDir(dir)) ?? '';
    return await book.exportFile(model, { id, acknowledgedSeq: book.seqs.at(-1) ?? -1 });
  } finally {
    await book.close();
  }
}

export async function show(settings: Settings, path: string | undefined): Promise<void> {
  const file = path === undefined ? await learnedFile(settings) : readThresholdFile(path);
  process.stdout.write(`${flag(settings, 'json') ? jsonText(file) : describe(file, columnsOf(process.stdout))}\n`);
}

export async function exportFile(settings: Settings, path: string): Promise<void> {
  const file = await learnedFile(settings);
  writeThresholdFile(path, file);
  process.stdout.write(
    flag(settings, 'json')
      ? `${JSON.stringify({ path, thresholds: Object.keys(file.thresholds).length })}\n`
      : `${path}: ${Object.keys(file.thresholds).length} thresholds\n`,
  );
}

export async function importFile(settings: Settings, path: string): Promise<void> {
  const file = readThresholdFile(path);
  const model = await target(settings);
  checkThresholdTarget(file, model);
  const dir = text(settings, 'state') ?? '.palimpsest';
  makeFolder(dir);
  importThresholds(memoryDir(dir), file, model);
  process.stdout.write(
    flag(settings, 'json')
      ? `${JSON.stringify({ path, imported: true })}\n`
      : `${path} is used for this model from now on\n`,
  );
}

export async function diff(settings: Settings, a: string, b: string): Promise<void> {
  const lines = diffThresholdFiles(readThresholdFile(a), readThresholdFile(b));
  if (flag(settings, 'json')) process.stdout.write(`${jsonText(lines)}\n`);
  else process.stdout.write(lines.length === 0 ? 'no difference\n' : `${lines.map(printable).join('\n')}\n`);
}
