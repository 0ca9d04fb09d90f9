/** `palimpsest inspect PATH` says what a file is and what it contains, or why it cannot be read. */
import { closeSync, existsSync, openSync, readdirSync, readSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { inspectIndex, readThresholdFile } from '../../memory/index.ts';
import { columnsOf, fields, jsonText, KvError, openFlags, printable } from '../../native/index.ts';
import { isLogDir, verifyLog, verifyText } from '../../witness/index.ts';
import { isPolicyFile, readPolicyFile } from '../options/policy-file.ts';
import { logDir, memoryDir, sqlDir } from '../state/folder.ts';
import { MAGIC } from '../trace/header.ts';
import { Trace } from '../trace/reader.ts';
import { isRemoteName } from '../transformer/hub/name.ts';
import { isAway, obtainModel } from '../transformer/hub/obtain.ts';
import { inspectModel, inspectRemote, inspectVocabulary } from '../transformer/inspect-model.ts';
import { MODEL_NAMES } from '../transformer/load.ts';
import { fitRows, remarkRows } from './fit-text.ts';
import { inspectChat } from './inspect-chat.ts';
import { latentBitsOf, latentRows } from './latent-bits.ts';
import { fitOf } from './machine-fit.ts';
import { cacheDirOf, flag, number, type Settings, text } from './options.ts';
import { contentOf, describe } from './thresholds.ts';

type Kind = 'policy' | 'model' | 'thresholds' | 'trace' | 'log' | 'index' | 'state';

/** The kind of a file, found from its content rather than its name, or the kind of a folder, found from its files. */
export function kindOf(path: string): Kind {
  if (isRemoteName(path) || (MODEL_NAMES.includes(path) && !existsSync(path))) return 'model';
  if (!existsSync(path))
    throw new KvError('not-found', `there is nothing at ${path}`, { values: { path, names: MODEL_NAMES } });
  const stat = statSync(path);
  if (stat.isDirectory()) {
    if (isLogDir(path)) return 'log';
    if (isLogDir(logDir(path))) return 'state';
    return readdirSync(path).includes('manifest.json') ? 'index' : 'model';
  }
  if (!stat.isFile()) throw new KvError('unsupported', `${path} is neither a file nor a folder`, { values: { path } });
  if (path.endsWith('.wal')) throw partOf(path, 'a segment of a log');
  if (/^(vectors|payloads)\.\d+\./.test(basename(path))) throw partOf(path, 'a part of a vector index');
  const head = headOf(path);
  if (head.subarray(0, MAGIC.length).equals(MAGIC)) return 'trace';
  if (isPolicyFile(path)) return 'policy';
  // No model is a JSON file, and the reader of thresholds says what is wrong with one.
  return head.toString('utf8').trimStart().startsWith('{') ? 'thresholds' : 'model';
}

const partOf = (path: string, what: string): KvError =>
  new KvError('bad-argument', `${path} is ${what}`, { values: { path }, hint: `inspect the folder: ${dirname(path)}` });

/** The first 64 bytes of a file, zeros behind its end. */
function headOf(path: string): Buffer {
  const head = Buffer.alloc(64);
  const file = openSync(path, openFlags(false));
  try {
    readSync(file, head, 0, head.length, 0);
    return head;
  } finally {
    closeSync(file);
  }
}

function flat(value: unknown, prefix = ''): [string, string][] {
  if (value === null) return [];
  if (Array.isArray(value)) return [[prefix, value.length > 12 ? `${value.length} values` : value.join(' ')]];
  if (typeof value !== 'object') return [[prefix, String(value)]];
  return Object.entries(value).flatMap(([key, inner]) => flat(inner, prefix === '' ? key : `${prefix}.${key}`));
}

interface Inspected {
  readonly ok: boolean;
  readonly json: Readonly<Record<string, unknown>>;
  readonly plain: string;
}

/**
 * Describes a file or folder. Throws what the reader of its kind throws, except that a damaged log gives a report with
 * ok = false.
 */
export async function inspectPath(
  path: string,
  cacheDir: string,
  columns?: number,
  how: ModelView = {},
): Promise<Inspected> {
  const kind = kindOf(path);
  switch (kind) {
    case 'log': {
      const report = verifyLog(path);
      return { ok: report.ok, json: { kind, ...report }, plain: `log\n${verifyText(report, columns)}` };
    }
    case 'index': {
      const manifest = inspectIndex(path);
      return {
        ok: true,
        json: { ...manifest, kind },
        plain: `vector index\n${fields(flat({ ...manifest, kind: null }), columns)}`,
      };
    }
    case 'state':
      return inspectState(path, cacheDir, columns);
    case 'policy': {
      const said = readPolicyFile(path);
      const plain = `policy\n${fields(flat(said), columns)}`;
      return { ok: true, json: { kind, ...said }, plain };
    }
    case 'thresholds': {
      const file = readThresholdFile(path);
      return { ok: true, json: { ...contentOf(file), kind }, plain: `thresholds\n${describe(file, columns)}` };
    }
    case 'trace': {
      const trace = Trace.open(path);
      const { header, measured, bytes } = trace;
      trace.close();
      const plain = fields(flat({ ...header, kind: null, bytes }), columns);
      return { ok: true, json: { ...header, kind, bytes, measured }, plain: `trace of a run\n${plain}` };
    }
    case 'model':
      return inspectModelAt(path, cacheDir, how, columns);
  }
}

interface ModelView {
  /** The length that memory is reckoned for; default: the context length of the model. */
  readonly tokens?: number | undefined;
  readonly offline?: boolean;
}

async function inspectModelAt(
  path: string,
  cacheDir: string,
  { tokens, offline }: ModelView,
  columns?: number,
): Promise<Inspected> {
  const vocabulary = inspectVocabulary(path);
  if (vocabulary !== null) {
    const rows = [...flat({ ...vocabulary, kind: null, remarks: null }), ...remarkRows(vocabulary.remarks)];
    const plain = `vocabulary without a model\n${fields(rows, columns)}`;
    return { ok: true, json: { ...vocabulary }, plain };
  }
  const away = isAway(path, { offline });
  // Nothing is fetched: what is not here is refused, because this is offline mode.
  if (!away) await obtainModel(path, { offline });
  const model = away ? await inspectRemote(path, { offline }) : await inspectModel(path, { cacheDir });
  const title = away ? 'model that is not here: what its headers say' : 'model';
  const { memory, ...rest } = model;
  const fit = fitOf(model.config, memory, { tokens });
  const remarks = 'remarks' in model ? model.remarks : [];
  const latents = latentBitsOf(model.config);
  const own = flat({ ...rest, kind: null, remarks: null });
  const rows = [...own, ...remarkRows(remarks), ...fitRows(fit), ...latentRows(latents)];
  return { ok: true, json: { ...rest, fit, latents, fetched: !away }, plain: `${title}\n${fields(rows, columns)}` };
}

/**
 * An index that is damaged, or of an earlier version, is made again from the log when a session opens: nothing is lost
 * with it.
 */
function unusable(error: unknown): Inspected {
  if (!(error instanceof KvError) || error.code !== 'bad-index') throw error;
  const plain = `vector index: made again from the log when a session opens (${error.message})`;
  return { ok: true, json: { kind: 'index', problem: error.message }, plain };
}

/** Describes each part of a state folder, as if it had been inspected by itself. */
async function inspectState(path: string, cacheDir: string, columns?: number): Promise<Inspected> {
  const log = await inspectPath(logDir(path), cacheDir, columns);
  const experiences = join(memoryDir(path), 'experiences');
  const index = existsSync(experiences) ? await inspectPath(experiences, cacheDir, columns).catch(unusable) : null;
  const sql = existsSync(sqlDir(path));
  return {
    ok: log.ok,
    json: { kind: 'state', log: log.json, index: index?.json ?? null, sql },
    plain: [
      `state folder ${printable(path)}`,
      '',
      log.plain,
      '',
      index?.plain ?? 'no vector index yet',
      '',
      sql ? 'SQL index: there' : 'SQL index: the first audit list makes it',
    ].join('\n'),
  };
}

export async function inspect(path: string, settings: Settings): Promise<void> {
  const chat = text(settings, 'messages');
  if (chat !== undefined) return inspectChat(path, chat, settings);
  const { ok, json, plain } = await inspectPath(path, cacheDirOf(settings), columnsOf(process.stdout), {
    tokens: number(settings, 'tokens'),
    offline: flag(settings, 'offline'),
  });
  process.stdout.write(`${flag(settings, 'json') ? jsonText(json) : plain}\n`);
  if (!ok) process.exitCode = 2;
}
