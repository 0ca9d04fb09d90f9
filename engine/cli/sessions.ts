/** `palimpsest sessions …` parks sessions, lists what is parked, and goes on with it. */
import {
  bytesText,
  type Column,
  columnsOf,
  fields,
  grouped,
  jsonText,
  KvError,
  plural,
  printable,
  table,
  timeText,
  wrap,
} from '../../native/index.ts';
import { shortId } from '../../witness/index.ts';
import { proposedOf } from '../options/table.ts';
import type { Prompt } from '../options/types.ts';
import { findParked, type ParkedSession, parkedDir, parkedSessions, readParked } from '../session/park/folder.ts';
import { countedTokens } from '../session/prompt.ts';
import type { Generated } from '../session/types.ts';
import type { ParkedFile } from '../thread/calls/parking.ts';
import type { Engine } from '../thread/engine.ts';
import type { EngineSession } from '../thread/engine-session.ts';
import { checkLength, closing, firstMessages, generateOptions, stream } from './answer.ts';
import { interruptible } from './interrupt.ts';
import { opening, withEngine } from './loading.ts';
import {
  checkSessionSettings,
  engineOptions,
  flag,
  number,
  type Settings,
  sessionOptions,
  stateDirOf,
  text,
} from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { readText } from './read-text.ts';

/**
 * What a session is planned for beside its prompt where nobody says how long it is to become: an answer of the usual
 * length.
 */
const ANSWER_TOKENS = 128;

const COLUMNS: readonly Column<ParkedSession>[] = [
  { title: 'session', value: ({ session }) => (session === null ? '–' : shortId(session)) },
  { title: 'parked', value: ({ parkedMs }) => (parkedMs === null ? '–' : timeText(parkedMs)) },
  { title: 'model', value: ({ model }) => printable(model ?? '–') },
  { title: 'tokens', value: ({ tokens }) => (tokens === null ? '–' : grouped(tokens)) },
  { title: 'file', value: ({ fileBytes }) => bytesText(fileBytes) },
  { title: 'in memory', value: ({ kvBytes }) => (kvBytes === null ? '–' : bytesText(kvBytes)) },
  { title: 'f16', optional: true, value: ({ kvBytesF16 }) => (kvBytesF16 === null ? '–' : bytesText(kvBytesF16)) },
  { title: 'trouble', value: ({ trouble }) => printable(trouble ?? '') },
];

export async function list(settings: Settings): Promise<void> {
  const found = parkedSessions(stateDirOf(settings));
  const columns = columnsOf(process.stdout);
  if (flag(settings, 'json')) process.stdout.write(`${jsonText(found)}\n`);
  else if (found.length === 0)
    process.stdout.write(`${wrap(`Nothing is parked in ${printable(parkedDir(stateDirOf(settings)))}.`, columns)}\n`);
  else process.stdout.write(`${table(COLUMNS, found, columns)}\n`);
}

export async function park(settings: Settings): Promise<void> {
  const path = text(settings, 'prompt');
  if (path === undefined)
    throw new KvError('bad-argument', 'no prompt was given', {
      hint: '--prompt FILE, or --prompt - for standard input',
    });
  const options = engineOptions(settings);
  checkSessionSettings(settings);
  const content = await readText(path, 'prompt');
  await onEngine(options, settings, async (engine, progress, signal) => {
    const prompt: Prompt = flag(settings, 'chat') ? [...firstMessages(settings), { role: 'user', content }] : content;
    const ids = await engine.tokenize(prompt, countedTokens(engine.info));
    const tokens = Math.max(number(settings, 'tokens') ?? 0, ids.length + ANSWER_TOKENS);
    checkLength(ids.length, tokens - ids.length, engine.info.config.contextLength);
    const session = await opening(engine, signal, () =>
      engine.openSession(proposedOf(sessionOptions(settings, tokens), ids)),
    );
    await closing(session, signal, async () => {
      await session.read(ids, { signal, onProgress: (event) => progress.update('reading', event) });
      progress.done();
      const parked = await session.park(text(settings, 'output'), { predict: flag(settings, 'predict') });
      print(settings, { ...parked, resumed: null, generated: null });
    });
  });
}

export async function resume(settings: Settings, given: string): Promise<void> {
  const again = flag(settings, 'park');
  if ((text(settings, 'output') !== undefined || flag(settings, 'predict')) && !again)
    throw new KvError('bad-argument', '--output and --predict are of a session that is parked again', {
      hint: 'add --park',
    });
  const path = findParked(stateDirOf(settings), given);
  const { head, lastHidden } = readParked(path);
  const options = engineOptions({ ...settings, model: text(settings, 'model') ?? head.model.name });
  const prompt = text(settings, 'prompt');
  const content = prompt === undefined ? null : await readText(prompt, 'prompt');
  if (content === null && lastHidden === null)
    throw new KvError('bad-argument', 'nothing was read yet in this session', { hint: '--prompt FILE' });
  await onEngine(options, settings, async (engine, progress, signal) => {
    const session = await engine.resume(path, {
      signal,
      onProgress: (event) => progress.update('reading again', event),
    });
    progress.done();
    const { resumed } = session;
    if (resumed?.why != null)
      process.stderr.write(
        `${wrap(printable(`The parked cache was not used, and ${plural(resumed.tokens, 'token was', 'tokens were')} read again: ${resumed.why}.`), columnsOf(process.stderr))}\n`,
      );
    await closing(session, signal, async () => {
      const asked: Prompt | null =
        content !== null && flag(settings, 'chat') ? [...firstMessages(settings), { role: 'user', content }] : content;
      const generated = await answer(session, asked, settings, progress, signal);
      const parked = again
        ? await session.park(text(settings, 'output'), { predict: flag(settings, 'predict') })
        : null;
      print(settings, { ...(parked ?? { session: session.id }), resumed, generated });
    });
  });
}

async function onEngine(
  options: ReturnType<typeof engineOptions>,
  settings: Settings,
  work: (engine: Engine, progress: ProgressLine, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  await interruptible((signal) =>
    withEngine(settings, options, signal, async (engine) => {
      const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
      try {
        await work(engine, progress, signal);
      } finally {
        progress.done();
      }
    }),
  );
}

async function answer(
  session: EngineSession,
  prompt: Prompt | null,
  settings: Settings,
  progress: ProgressLine,
  signal: AbortSignal,
): Promise<Generated> {
  const options = await generateOptions(settings, progress, signal);
  return stream(session.generate(prompt, options), settings, progress);
}

interface Done extends Partial<ParkedFile> {
  readonly session: string;
  readonly resumed: EngineSession['resumed'];
  readonly generated: Generated | null;
}

function print(settings: Settings, done: Done): void {
  if (flag(settings, 'json')) {
    process.stdout.write(`${jsonText(done)}\n`);
    return;
  }
  const { session, resumed, path, fileBytes, tokens, kvBytes } = done;
  const rows: (readonly [string, string])[] = [['Session', shortId(session)]];
  if (resumed !== null)
    rows.push([
      'Resumed',
      `${shortId(resumed.from)}, ${plural(resumed.tokens, 'token')} in ${(resumed.resumeMs / 1000).toFixed(2)} s, ${resumed.by === 'pages' ? 'from its pages' : 'by reading them again'}`,
    ]);
  if (path !== undefined)
    rows.push([
      'Parked',
      `${plural(tokens!, 'token')}, ${bytesText(fileBytes!)} (in memory ${bytesText(kvBytes!)}), in ${printable(path)}`,
    ]);
  process.stdout.write(`\n${fields(rows, columnsOf(process.stdout))}\n`);
}
