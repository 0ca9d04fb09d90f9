/**
 * What work costs in CPU seconds, and a table of it.
 *   node scripts/cost.mjs FILE TITLE -- PROGRAM ARGUMENT…     runs a program and adds a line about it to FILE
 * A line is a stage as JSON: { title, seconds, cpuSeconds, code }. Several may be under way at once.
 */
import { spawnSync } from 'node:child_process';
import { appendFileSync, readFileSync, realpathSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';

/** In which /proc counts; it has been 100 on every Linux for decades. */
const TICKS_PER_SECOND = 100;

/**
 * CPU seconds of this process and of all that it started and that have ended; null where the system does not tell (it
 * is not Linux).
 */
export function cpuSeconds() {
  try {
    // The name, in brackets, may hold spaces. Behind it: state and ten numbers, then utime, stime, cutime, cstime (man
    // 5 proc).
    const fields = readFileSync('/proc/self/stat', 'utf8').split(') ').at(-1).split(' ');
    return fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / TICKS_PER_SECOND;
  } catch {
    return null;
  }
}

/** Begins to measure. → a function that ends it and answers the stage. */
export function measure(title) {
  const [start, before] = [Date.now(), cpuSeconds()];
  return (code = 0) => ({
    title,
    seconds: (Date.now() - start) / 1000,
    cpuSeconds: before === null ? null : cpuSeconds() - before,
    code,
  });
}

export const record = (file, stage) => appendFileSync(file, `${JSON.stringify(stage)}\n`);

/** The stages of a file, or none where it is missing. */
export function stagesOf(file) {
  try {
    return readFileSync(file, 'utf8')
      .trim()
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));
  } catch {
    return [];
  }
}

const minutes = (seconds) => (seconds === null || seconds === undefined ? '-' : (seconds / 60).toFixed(1)).padStart(8);

/** Lines of a table: rows of { title, seconds, cpuSeconds }. */
export const costTable = (head, rows) => [
  `${minutes(null).replace('-', 'min')}${'CPU min'.padStart(9)}  ${head}`,
  ...rows.map(({ title, seconds, cpuSeconds }) => `${minutes(seconds)} ${minutes(cpuSeconds)}  ${title}`),
];

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const [file, title, , program, ...args] = process.argv.slice(2);
  const done = measure(title);
  const { status, signal } = spawnSync(program, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  const code = status ?? 128 + (os.constants.signals[signal] ?? 0);
  record(file, done(code));
  process.exitCode = code;
}
