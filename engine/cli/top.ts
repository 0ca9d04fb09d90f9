/** `palimpsest top`: the sessions that are open, as a table that is looked at again and again, until q or Ctrl-C. */
import { columnsOf, jsonText, KvError } from '../../native/index.ts';
import { isLocked, readLog, seriesDir, seriesOf } from '../../witness/index.ts';
import { readToken } from '../serve/guard.ts';
import { EngineLooks } from '../serve/top-metrics.ts';
import { TopView } from '../serve/top-view.ts';
import { logDir } from '../state/folder.ts';
import { ENDING } from './interrupt.ts';
import { flag, number, type Settings, stateDirOf, text } from './options.ts';
import { outputLost } from './output.ts';
import { readMetrics } from './top-metrics.ts';
import { type Top, topText } from './top-text.ts';

/** Lines that are no rows: pools, the engine, titles, a rule, how many more there are. */
const OTHER_LINES = 6;
const ROWS_SHOWN = 40;

/** Another screen of the terminal without a cursor, back again, and a picture in the place of the one before. */
const ENTER = '\u001b[?1049h\u001b[?25l';
const LEAVE = '\u001b[?25h\u001b[?1049l';
const AGAIN = '\u001b[H\u001b[J';

/** Keys that end it: q, Ctrl-C, Ctrl-D. */
const ENDS = ['q', 'Q', '\u0003', '\u0004'];

export async function top(settings: Settings): Promise<void> {
  const looks = new Looks(settings);
  if (flag(settings, 'once')) {
    process.stdout.write(`${looks.text(await looks.next())}\n`);
    return;
  }
  await again(looks, 1000 * number(settings, 'intervalSeconds')!);
}

async function again(looks: Looks, intervalMs: number): Promise<void> {
  const { stdin, stdout } = process;
  const isScreen = stdout.isTTY && !looks.isJson;
  const hasKeys = isScreen && stdin.isTTY;
  const ended = new AbortController();
  const end = (): void => ended.abort();
  // Without signals of its own, Ctrl-C comes as a key.
  const onKey = (keys: Buffer): void => {
    if ([...keys.toString()].some((key) => ENDS.includes(key))) end();
  };
  for (const name of ENDING) process.once(name, end);
  outputLost.addEventListener('abort', end);
  if (hasKeys) stdin.setRawMode(true).on('data', onKey);
  if (isScreen) stdout.write(ENTER);
  try {
    while (!ended.signal.aborted) {
      const shown = await looks.next().then(
        (found) => looks.text(found),
        (error: unknown) => looks.failure(error),
      );
      if (!ended.signal.aborted) stdout.write(isScreen ? `${AGAIN}${shown}` : `${shown}\n`);
      await pause(intervalMs, ended.signal);
    }
  } finally {
    if (isScreen) stdout.write(LEAVE);
    if (hasKeys) stdin.setRawMode(false).off('data', onKey).pause();
    for (const name of ENDING) process.off(name, end);
    outputLost.removeEventListener('abort', end);
  }
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const end = (): void => {
      clearTimeout(timer);
      resolve();
    };
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  });

/** One look at the log, and at the engine where its URL is known, after the other. */
class Looks {
  readonly isJson: boolean;
  readonly #dir: string;
  readonly #url: string | undefined;
  readonly #token: string | undefined;
  readonly #limit: number | undefined;
  readonly #view = new TopView();
  /** Where reading goes on, by series. */
  readonly #from = new Map<number, number>();
  readonly #engine = new EngineLooks();

  constructor(settings: Settings) {
    const tokenFile = text(settings, 'tokenFile');
    this.isJson = flag(settings, 'json');
    this.#dir = logDir(stateDirOf(settings));
    this.#url = text(settings, 'url');
    this.#token = tokenFile === undefined ? undefined : readToken(tokenFile);
    this.#limit = number(settings, 'limit');
  }

  /** Throws 'not-found' where there is neither a log nor an engine to ask, 'bad-log', 'io'. */
  async next(): Promise<Top> {
    const engine =
      this.#url === undefined ? null : this.#engine.next(await readMetrics(this.#url, this.#token), Date.now());
    try {
      this.#read();
    } catch (error) {
      if (engine === null || !(error instanceof KvError && error.code === 'not-found')) throw error;
    }
    const timeMs = Date.now();
    const written = new Map<number, boolean>();
    const isWritten = (series: number): boolean => {
      const known = written.get(series) ?? isLocked(seriesDir(this.#dir, series));
      written.set(series, known);
      return known;
    };
    return { timeMs, pools: this.#view.pools(isWritten), engine, sessions: this.#view.rows(timeMs, isWritten) };
  }

  text(found: Top): string {
    if (this.isJson) return jsonText({ ...found, sessions: found.sessions.slice(0, this.#limit) });
    const { rows } = process.stdout;
    const room = process.stdout.isTTY && rows > OTHER_LINES ? rows - OTHER_LINES : ROWS_SHOWN;
    return topText(found, columnsOf(process.stdout), this.#limit ?? room);
  }

  /** What is shown while there is nothing to look at; it may come. Throws what will not change. */
  failure(error: unknown): string {
    if (!(error instanceof KvError) || error.code === 'bad-argument') throw error;
    const { code, message } = error;
    return this.isJson ? jsonText({ timeMs: Date.now(), error: { code, message } }) : `${message} (${code})`;
  }

  #read(): void {
    const onUnopened = (session: string): void => this.#view.forget(session);
    for (const entry of readLog(this.#dir, { from: [...this.#from.values()], onUnopened })) {
      this.#from.set(seriesOf(entry.seq), entry.seq + 1);
      this.#view.add(entry);
    }
  }
}
