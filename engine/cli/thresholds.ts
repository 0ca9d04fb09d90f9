/** `palimpsest thresholds …` shows, exports, imports, joins, compares and signs what was learned. */
import {
  checkThresholdTarget,
  checkTrust,
  type Difference,
  diffThresholdFiles,
  evidenceInWords,
  FINGERPRINT_DIM,
  formatThresholdFile,
  importedThresholds,
  importThresholds,
  intervalOf,
  keyIdOf,
  mergeThresholdFiles,
  readPrivateKey,
  readThresholdFile,
  sessionsBehind,
  signerOf,
  signThresholdFile,
  type ThresholdBook,
  type ThresholdFile,
  type ThresholdTarget,
  writeKeyPair,
  writeThresholdFile,
} from '../../memory/index.ts';
import {
  brief,
  type Column,
  columnsOf,
  DENSE_SLOTS,
  type DenseSlot,
  FORMAT_NAMES,
  fields,
  given,
  jsonText,
  KvError,
  legend,
  plural,
  printable,
  table,
  wrap,
} from '../../native/index.ts';
import {
  type ActivationCosts,
  type Course,
  defaultThresholds,
  type Estimate,
  isPackId,
  type Law,
} from '../../policy/index.ts';
import { entryId, hashAt, isLogDir, readLog, readLogId, type Unopened, type Unreadable } from '../../witness/index.ts';
import { packId } from '../cache/pack-pages.ts';
import { ActivePacks } from '../packs/active.ts';
import { instrumentModule } from '../packs/instrument.ts';
import { logDir, makeFolder, memoryDir, readBook } from '../state/folder.ts';
import { shippedFile } from '../state/shipped-laws.ts';
import { loadModel } from '../transformer/load.ts';
import { cacheDirOf, flag, number, type Settings, stateDirOf, text, trustedKeys } from './options.ts';
import { countPassedOver, tellPassedOver } from './passed-over.ts';

type Target = ThresholdTarget & {
  readonly family: string;
  readonly defaults: ReturnType<typeof defaultThresholds>;
  readonly shipped: ThresholdFile | null;
};

/**
 * The pack of whose sessions thresholds are wanted: by its name, as sessions ask for it, or as the log names its
 * version. Throws 'not-found' where the state folder has no such name.
 */
function packOf(settings: Settings): string | undefined {
  const asked = text(settings, 'pack');
  if (asked === undefined || isPackId(asked)) return asked;
  const packs = new ActivePacks({ stateDir: stateDirOf(settings), instrument: instrumentModule });
  return packId(packs.asked(asked));
}

/** The model whose thresholds are wanted. Only its header and digest are read. */
async function target(settings: Settings): Promise<Target> {
  const model = await loadModel(text(settings, 'model') ?? 'reference', {
    cacheDir: cacheDirOf(settings),
  });
  try {
    const { layers, queryHeads, kvHeads, headDim, architecture } = model.config;
    return {
      modelDigest: model.digest,
      ...given({ pack: packOf(settings) }),
      shape: { layers, queryHeads, kvHeads, headDim },
      family: architecture,
      defaults: defaultThresholds(layers),
      shipped: shippedFile(model.digest),
    };
  } finally {
    model.weights.close();
  }
}

const bounds = (interval: readonly [number, number] | null): string =>
  interval === null ? '' : `${brief(interval[0], 3)} … ${brief(interval[1], 3)}`;

const seen = (samples: number): string => brief(samples, 3);

function lawTable(law: Law, columns?: number): string {
  const layers = law.coefficient.k.map((_, layer) => layer);
  const side = (name: 'k' | 'v'): Column<number>[] => {
    const at = (layer: number): Estimate => law.coefficient[name][layer]!;
    return [
      { title: `${name.toUpperCase()} nats/ε²`, value: (layer) => brief(at(layer).value, 3) },
      { title: '95%', optional: true, value: (layer) => bounds(intervalOf(at(layer))) },
      { title: 'seen', value: (layer) => seen(at(layer).samples) },
    ];
  };
  const typical = (name: 'k' | 'v'): Column<number>[] =>
    FORMAT_NAMES.filter((format) => law.epsilon[name].some((one) => one[format] !== undefined)).map((format) => ({
      title: `ε ${name.toUpperCase()} ${format}`,
      optional: true,
      value: (layer) => brief(law.epsilon[name][layer]?.[format]?.value ?? null, 2),
    }));
  const factors = (['text', 'offset', 'fade'] as const).map((name) => {
    const one = law[name];
    return `${name} ${brief(one.value, 3)} (${bounds(intervalOf(one))}, seen ${seen(one.samples)})`;
  });
  const rows = table(
    [{ title: 'layer', value: String }, ...side('k'), ...side('v'), ...typical('k'), ...typical('v')],
    layers,
    columns,
  );
  return `${wrap(`Law of errors: ${factors.join('; ')}`, columns)}\n\n${rows}`;
}

function courseTable(course: Course, columns?: number): string {
  const side = (name: 'k' | 'v'): Column<number>[] => {
    const at = (layer: number): Estimate => course.persistence[name][layer]!;
    return [
      { title: `${name.toUpperCase()} persistence`, value: (layer) => brief(at(layer).value, 3) },
      { title: '95%', optional: true, value: (layer) => bounds(intervalOf(at(layer))) },
      { title: 'seen', value: (layer) => seen(at(layer).samples) },
    ];
  };
  const left = course.left.map((one, octave) => `${brief(one.value, 3)} from ${2 ** (octave + 1)}`);
  const { found, page, chance } = course.noise;
  const text = `Course of errors, from ${plural(sessionsBehind(course), 'session')}: of ε² is left, by the age of a page in pages, ${left.join(', ') || 'what nobody measured'}; of a first trial's difference ${brief(100 * found)}% is found again, and variances of ln ε are ${brief(page, 3)} (page) and ${brief(chance, 3)} (single trial)`;
  const layers = course.persistence.k.map((_, layer) => layer);
  const rows = table([{ title: 'layer', value: String }, ...side('k'), ...side('v')], layers, columns);
  return `${wrap(text, columns)}\n\n${rows}`;
}

function activationsTable({ matrices, output, together }: ActivationCosts, columns?: number): string {
  const told = (one: Estimate): string => `${brief(one.value, 2)} (${bounds(intervalOf(one))})`;
  const text = `Activations in 8 bits, divergence of each matrix by itself in nats, from ${plural(output.samples, 'window')}; output matrix ${told(output)}; together over the sum ${told(together)}`;
  const slot = (name: DenseSlot): Column<number> => ({
    title: name,
    value: (layer) => brief(matrices[name][layer]!.value, 2),
  });
  const layers = matrices.q.map((_, layer) => layer);
  const rows = table([{ title: 'layer', value: String }, ...DENSE_SLOTS.map(slot)], layers, columns);
  return `${wrap(text, columns)}\n\n${rows}`;
}

/** The content of a threshold file, for people to read. */
export function describe(file: ThresholdFile, columns?: number): string {
  const { shape, digest, pack } = file.model;
  const spread = (gains: readonly number[]): string =>
    `${brief(Math.min(...gains), 2)} … ${brief(Math.max(...gains), 2)}`;
  const rows = table(
    [
      { title: 'threshold', align: 'left', value: ([id]) => id },
      { title: 'value', value: ([, { value }]) => brief(value, 2) },
      { title: '95%', value: ([, { value, sd }]) => bounds(sd === null ? null : intervalOf({ value, sd })) },
      { title: 'unit', align: 'left', value: ([, { unit }]) => unit },
      { title: 'seen', value: ([, { samples }]) => seen(samples) },
      { title: 'source', align: 'left', least: 16, optional: true, value: ([, { source }]) => source },
    ],
    Object.entries(file.thresholds),
    columns,
  );
  return [
    fields(
      [
        [
          'model',
          `${digest.slice(0, 16) || '(none)'}, ${plural(shape.layers, 'layer')}, ${shape.queryHeads}/${shape.kvHeads} heads of ${shape.headDim}`,
        ],
        ...(pack === undefined ? [] : [['pack', pack] as [string, string]]),
        ['rests on', evidenceInWords(file)],
        ...file.parts.map((part): [string, string] => ['  part', evidenceInWords({ ...part, parts: [] })]),
        ['created by', file.createdBy],
        ['signed by', signerOf(file)],
        ['c', `${brief(file.c, 2)} nats/ε²; gains K ${spread(file.gains.k)}, V ${spread(file.gains.v)}`],
      ],
      columns,
    ),
    ...(file.law === null ? [] : [lawTable(file.law, columns)]),
    ...(file.course === undefined ? [] : [courseTable(file.course, columns)]),
    ...(file.activations === undefined ? [] : [activationsTable(file.activations, columns)]),
    Object.keys(file.thresholds).length === 0 ? 'All thresholds are at their default.' : rows,
  ].join('\n\n');
}

/** Sessions of the log whose end cannot be read, and which the book does not know from a time when it could. */
async function passedOver(log: string, book: ThresholdBook): Promise<Unreadable> {
  const closed = new Map<string, Unopened>();
  for (const _ of readLog(log, { kinds: ['close'], onUnopened: (session, why) => closed.set(session, why) }));
  const anywhere = new Array<number>(FINGERPRINT_DIM).fill(0);
  for (const session of closed.keys()) {
    const known = await book.nearestSessions(anywhere, 1, { must: [{ field: 'session', equals: session }] });
    if (known.length > 0) closed.delete(session);
  }
  return countPassedOver(closed);
}

/**
 * What has been learned for the model according to the state folder, which is not created if it does not exist;
 * sessions that could not be asked what they learned are told on stderr.
 */
async function learnedFile(settings: Settings): Promise<{ readonly file: ThresholdFile; readonly passed: Unreadable }> {
  const model = await target(settings);
  const dir = stateDirOf(settings);
  if (!isLogDir(logDir(dir))) {
    const imported = importedThresholds(memoryDir(dir), model.modelDigest, model.pack);
    if (imported !== null) return { file: imported, passed: { erased: 0, missing: 0, damaged: [] } };
    throw new KvError('not-found', `nothing was learned in ${dir} yet`, {
      values: { dir },
      hint: 'run something first, or name the state folder with --state',
    });
  }
  const book = await readBook(dir);
  try {
    const id = readLogId(logDir(dir)) ?? '';
    const file = await book.exportFile(model, { id, hashAt: (seq) => hashAt(logDir(dir), seq) });
    const passed = await passedOver(logDir(dir), book);
    tellPassedOver(passed);
    return { file, passed };
  } finally {
    await book.close();
  }
}

/** Prints one line of JSON if that is wanted, else a sentence. */
function say(settings: Settings, json: unknown, sentence: string): void {
  process.stdout.write(`${flag(settings, 'json') ? jsonText(json) : sentence}\n`);
}

/** The content as it stands in a file. */
export const contentOf = (file: ThresholdFile): Record<string, unknown> => JSON.parse(formatThresholdFile(file));

/** Reads a file that somebody else may have written; if keys are named, one of them must have signed it. */
function readTrusted(settings: Settings, path: string): ThresholdFile {
  const trusted = trustedKeys(settings);
  const file = readThresholdFile(path);
  if (trusted.length > 0) checkTrust(file, trusted, path);
  return file;
}

function needed(settings: Settings, name: 'key' | 'output'): string {
  const value = text(settings, name);
  if (value === undefined)
    throw new KvError('bad-argument', `--${name} FILE is missing`, { hint: 'add --help for the options' });
  return value;
}

export async function show(settings: Settings, path: string | undefined): Promise<void> {
  const file = path === undefined ? (await learnedFile(settings)).file : readThresholdFile(path);
  say(settings, flag(settings, 'json') ? contentOf(file) : null, describe(file, columnsOf(process.stdout)));
}

export async function exportFile(settings: Settings, path: string): Promise<void> {
  const { file, passed } = await learnedFile(settings);
  writeThresholdFile(path, file);
  const thresholds = Object.keys(file.thresholds).length;
  const told = { path, thresholds, law: file.law !== null, course: file.course !== undefined, passedOver: passed };
  say(settings, told, `${path}: ${wroteText(file)}`);
}

const wroteText = (file: ThresholdFile): string =>
  `${file.law === null ? '' : 'a law of errors and '}${file.course === undefined ? '' : 'a course of errors and '}${plural(Object.keys(file.thresholds).length, 'threshold')}, from ${printable(evidenceInWords(file))}`;

export async function importFile(settings: Settings, path: string): Promise<void> {
  const file = readTrusted(settings, path);
  const model = await target(settings);
  const { pack } = file.model;
  const wanted = { ...model, pack };
  checkThresholdTarget(file, wanted);
  const dir = stateDirOf(settings);
  makeFolder(dir);
  importThresholds(memoryDir(dir), file, wanted);
  const used = pack === undefined ? 'this model' : `this model, in sessions with ${pack},`;
  say(settings, { path, imported: true, signedBy: keyIdIn(file) }, `${path} is used for ${used} from now on`);
}

export async function merge(settings: Settings, paths: readonly string[]): Promise<void> {
  const output = needed(settings, 'output');
  const file = mergeThresholdFiles(paths.map((path) => readTrusted(settings, path)));
  writeThresholdFile(output, file);
  say(settings, { path: output, files: paths.length, parts: file.parts.length }, `${output}: ${wroteText(file)}`);
}

const keyIdIn = ({ signature }: ThresholdFile): string | null => signature && keyIdOf(signature.publicKey);

export async function keygen(settings: Settings, path: string): Promise<void> {
  const { publicKey, path: publicPath } = writeKeyPair(path);
  const keyId = keyIdOf(publicKey);
  say(
    settings,
    { privateKey: path, publicKey: publicPath, keyId },
    `Key ${keyId}: ${path} signs and stays with you, ${publicPath} is for those who trust you`,
  );
}

export async function sign(settings: Settings, path: string): Promise<void> {
  const key = readPrivateKey(needed(settings, 'key'));
  const output = text(settings, 'output') ?? path;
  const file = signThresholdFile(readThresholdFile(path), key);
  writeThresholdFile(output, file);
  say(settings, { path: output, keyId: keyIdIn(file) }, `${output} is signed by ${signerOf(file)}`);
}

/**
 * Whether the signature fits, whose it is, and whether the log of this state folder is still the one that the file
 * tells of.
 */
export async function verify(settings: Settings, path: string): Promise<void> {
  const file = readThresholdFile(path);
  const trusted = trustedKeys(settings);
  // Without a signature there is nothing to verify, so that is refused here in any case.
  const by = trusted.length > 0 || file.signature === null ? checkTrust(file, trusted, path) : null;
  const checkpoints = checkedHere(file, logDir(stateDirOf(settings)));
  const sentences = [
    `${path} is signed by ${signerOf(file)}, ${by === null ? 'and --trusted-key was not given to say whose that is' : `which is trusted (${by.path})`}.`,
    ...(checkpoints === 0
      ? []
      : [`The log here has ${checkpoints === 1 ? 'the hash' : `the ${checkpoints} hashes`} that it names.`]),
  ];
  say(settings, { path, keyId: keyIdIn(file), trusted: by?.path ?? null, checkpoints }, sentences.join('\n'));
}

/**
 * How many checkpoints of a file name the log in this folder. Throws 'bad-log' where one of them has another hash here.
 */
function checkedHere(file: ThresholdFile, dir: string): number {
  const id = isLogDir(dir) ? readLogId(dir) : null;
  const own = [file, ...file.parts]
    .flatMap(({ evidence }) => evidence.logs)
    .filter(({ logId, headHash }) => logId === id && headHash !== null);
  for (const { to, headHash } of own) {
    const here = hashAt(dir, to);
    if (here !== headHash)
      throw new KvError(
        'bad-log',
        here === null
          ? `the log in ${dir} has no entry ${entryId(to)}, which the file names`
          : `the log in ${dir} has another entry ${entryId(to)} than the file names`,
        {
          values: { dir, seq: to, here, file: headHash },
          hint: 'the log was cut or changed after the file was written, or the file tells of a copy that went on by itself',
        },
      );
  }
  return new Set(own.map(({ to }) => to)).size;
}

const toldText = (side: Difference['before']): string => {
  if (side === null) return '–';
  if (typeof side === 'string') return side;
  return `${brief(side.value, 3)}${side.interval === null ? '' : ` (${bounds(side.interval)})`}`;
};

const seenText = (side: Difference['before']): string =>
  side === null || typeof side === 'string' ? '' : seen(side.samples);

const DIFF_COLUMNS: readonly Column<Difference>[] = [
  { title: 'what', align: 'left', least: 20, value: ({ what }) => what },
  { title: 'before', align: 'left', least: 12, value: ({ before }) => toldText(before) },
  { title: 'after', align: 'left', least: 12, value: ({ after }) => toldText(after) },
  { title: 'change', value: ({ factor }) => (factor === null ? '' : factor === 1 ? 'none' : `× ${brief(factor, 3)}`) },
  { title: 'unit', align: 'left', value: ({ unit }) => unit ?? '' },
  {
    title: 'clear',
    align: 'left',
    value: ({ unit, isClear }) => (unit === null ? '' : isClear ? 'yes' : 'no'),
    means: 'whether the change is larger than what both 95% intervals explain',
  },
  {
    title: 'seen',
    align: 'left',
    optional: true,
    value: ({ before, after }) =>
      [before, after]
        .map(seenText)
        .filter((part) => part !== '')
        .join(' → '),
    means: 'sessions or probes behind the number; 0 for what nobody measured',
  },
];

export async function diff(settings: Settings, a: string, b: string): Promise<void> {
  const differences = diffThresholdFiles(readThresholdFile(a), readThresholdFile(b));
  const shown = differences.slice(0, number(settings, 'limit') ?? 20);
  const columns = columnsOf(process.stdout);
  const more = differences.length - shown.length;
  say(
    settings,
    differences,
    differences.length === 0
      ? 'no difference'
      : [
          table(DIFF_COLUMNS, shown, columns),
          ...(more === 0 ? [] : [`… and ${more} more; --limit ${differences.length} shows them`]),
          '',
          legend(DIFF_COLUMNS, columns),
        ].join('\n'),
  );
}
