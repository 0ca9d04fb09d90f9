/** `palimpsest report` writes what a session did as a page that a browser shows without a network. */
import { bytesText, jsonText, KvError, replaceFile } from '../../native/index.ts';
import { openLogQuery, sessionReport } from '../../witness/index.ts';
import { logDir } from '../state.ts';
import { type Settings, text } from './options.ts';

export async function reportPage(settings: Settings): Promise<void> {
  const dir = logDir(text(settings, 'state') ?? '.palimpsest');
  const path = text(settings, 'output') ?? 'report.html';
  const session = text(settings, 'session') ?? (await lastSession(dir));
  const page = Buffer.from(sessionReport(dir, session));
  replaceFile(path, page);
  const done = { path, session, bytes: page.length };
  const line = settings['json'] === true ? jsonText(done) : `${path}: session ${session}, ${bytesText(page.length)}`;
  process.stdout.write(`${line}\n`);
}

async function lastSession(dir: string): Promise<string> {
  const [last] = await openLogQuery(dir).sessions({ limit: 1 });
  if (last !== undefined) return last.session;
  throw new KvError('not-found', 'the log has no session', { values: { dir }, hint: 'run something first' });
}
