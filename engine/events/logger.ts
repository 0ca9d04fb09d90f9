/** Whom events are told: an object of the caller's with a function for each level, as pino and console have. */
import type { EngineEvent } from './event.ts';
import { eventText } from './event.ts';
import { EVENTS, LEVELS, type LogLevel } from './table.ts';

/** Takes an event as an object, and as a sentence behind it. */
export type LogLine = (event: EngineEvent, sentence: string) => unknown;

/** A function for each level; pino and console are such objects. */
export interface Logger {
  /** What helps to find a fault. */
  readonly debug: LogLine;
  /** What happens in ordinary work. */
  readonly info: LogLine;
  /** What somebody should look at. */
  readonly warn: LogLine;
  /** What somebody has to do something about. */
  readonly error: LogLine;
}

export const isLogger = (value: unknown): value is Logger =>
  typeof value === 'object' &&
  value !== null &&
  LEVELS.every((level) => typeof (value as Readonly<Record<LogLevel, unknown>>)[level] === 'function');

/**
 * Gives events to a logger. What that throws, or rejects with, harms nobody: the process warns of it, once for each
 * engine.
 */
export function listen(logger: Logger): (event: EngineEvent) => void {
  let hasWarned = false;
  const warn = (error: unknown): void => {
    if (!hasWarned) process.emitWarning(error instanceof Error ? error : String(error));
    hasWarned = true;
  };
  return (event) => {
    try {
      const given = logger[EVENTS[event.event].level](event, eventText(event));
      if (given instanceof Promise) given.catch(warn);
    } catch (error) {
      warn(error);
    }
  };
}
