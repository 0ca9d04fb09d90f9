/** `palimpsest report`, and `run --report`: what a session did, as a page that a browser shows without a network. */
import { bytesText, jsonText, KvError, replaceFile } from '../../native/index.ts';
import { openLogQuery, sessionReport } from '../../witness/index.ts';
import { logDir } from '../state/folder.ts';
import { checkpointsOf } from './anchor.ts';
import { flag, type Settings, stateDirOf, text } from './options.ts';

const log = (settings: Settings): string => logDir(stateDirOf(settings));

export async function reportPage(settings: Settings): Promise<void> {
  const path = text(settings, 'output') ?? 'report.html';
  const session = text(settings, 'session') ?? (await lastSession(log(settings)));
  const checkpoints = checkpointsOf(settings);
  const bytes = writeReport(settings, session, path, checkpoints === null ? {} : { checkpoints });
  const line = flag(settings, 'json') ? jsonText({ path, session, bytes }) : `${path}: ${bytesText(bytes)}`;
  process.stdout.write(`${line}\n`);
}

/** Writes the report of a session. → bytes of the file */
export function writeReport(
  settings: Settings,
  session: string,
  path: string,
  compared: Parameters<typeof sessionReport>[2] = {},
): number {
  const page = Buffer.from(sessionReport(log(settings), session, compared));
  replaceFile(path, page);
  return page.length;
}

async function lastSession(dir: string): Promise<string> {
  const [last] = await openLogQuery(dir).sessions({ limit: 1 });
  if (last !== undefined) return last.session;
  throw new KvError('not-found', 'the log has no session', { values: { dir }, hint: 'run something first' });
}
