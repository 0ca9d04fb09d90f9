/** `palimpsest inspect PATH`: says what a file is and what is in it, or refuses it with the reason. */
import { existsSync, openSync, readSync, closeSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { inspectIndex, readThresholdFile } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { isLogDir, verifyLog, verifyText } from '../../witness/index.ts';
import { inspectModel } from '../model/inspect-model.ts';
import { flag, type Settings, text } from './options.ts';
import { table } from './text.ts';

type Kind = 'model' | 'thresholds' | 'log' | 'index';

/** Decides by content, not by name; a folder by what stands in it. */
function kindOf(path: string): Kind {
  if (!existsSync(path)) {
    if (!path.includes('/') && !path.includes('.')) return 'model';
    throw new KvError('not-found', `there is nothing at ${path}`, { values: { path } });
  }
  if (statSync(path).isDirectory()) {
    if (isLogDir(path)) return 'log';
    if (readdirSync(path).includes('manifest.json')) return 'index';
    return 'model';
  }
  const head = Buffer.alloc(4096);
  const file = openSync(path, 'r');
  const length = readSync(file, head, 0, head.length, 0);
  closeSync(file);
  const start = head.subarray(0, length).toString('utf8').trimStart();
  return start.startsWith('{') && start.includes('palimpsest-thresholds') ? 'thresholds' : 'model';
}

function flat(value: unknown, prefix = ''): [string, string][] {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return [[prefix, Array.isArray(value) && value.length > 12 ? `${value.length} values` : JSON.stringify(value)]];
  return Object.entries(value).flatMap(([key, inner]) => flat(inner, prefix === '' ? key : `${prefix}.${key}`));
}

export async function inspect(path: string, settings: Settings): Promise<void> {
  const kind = kindOf(path);
  if (kind === 'log') {
    const report = verifyLog(path);
    process.stdout.write(`${flag(settings, 'json') ? JSON.stringify({ kind, ...report }) : verifyText(report)}\n`);
    if (!report.ok) process.exitCode = 2;
    return;
  }
  const content = kind === 'thresholds' ? readThresholdFile(path) : kind === 'index' ? inspectIndex(path) : await inspectModel(path, { cacheDir: text(settings, 'cache') ?? join('.cache') });
  if (flag(settings, 'json')) process.stdout.write(`${JSON.stringify({ kind, ...content })}\n`);
  else process.stdout.write(`${kind}\n${table(['field', 'value'], flat(content).map(([key, value]) => [key, value.slice(0, 60)]), [0, 1])}\n`);
}
