/** Events of an engine as lines on stderr, from the level of `--log-level` on. */
import { columnsOf, jsonText, printable, wrap } from '../../native/index.ts';
import type { EngineEvent } from '../events/event.ts';
import type { Logger, LogLine } from '../events/logger.ts';
import { LEVELS, type LogLevel } from '../events/table.ts';
import { besideProgress } from './progress.ts';

const WORDS: Readonly<Record<LogLevel, string>> = { debug: 'debug', info: 'info', warn: 'warning', error: 'error' };

/** Tells events of a level and those above it; as sentences, or to programs that read stderr as objects, one a line. */
export function eventLog(lowest: LogLevel, asJson: boolean): Logger {
  const least = LEVELS.indexOf(lowest);
  const lineOf = (level: LogLevel, event: EngineEvent, sentence: string): string =>
    asJson
      ? jsonText({ level, ...event, sentence })
      : wrap(printable(`${WORDS[level]}: ${sentence}`), columnsOf(process.stderr));
  const line =
    (level: LogLevel): LogLine =>
    (event, sentence) => {
      if (LEVELS.indexOf(level) >= least) besideProgress(lineOf(level, event, sentence));
    };
  return { debug: line('debug'), info: line('info'), warn: line('warn'), error: line('error') };
}
