/**
 * What a parser may do with a file that is not sound: refuse it with a KvError or answer, in bounded time and memory,
 * and write nothing.
 */
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { KV_ERROR_CODES, KvError } from '../../native/index.ts';
import type { Parser } from './parsers.ts';

const MILLISECONDS_MAX = 1000;
const BYTES_MAX = 64 * 2 ** 20;

const heldBytes = (): number => {
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
};

/** Frees what nobody holds; memory outside the heap goes with the second call. */
function collect(): void {
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as () => void;
  gc();
  gc();
}

/**
 * How often a file is read before its parser is called slow: what is compiled or collected while it is read, is so
 * once.
 */
const READINGS = 3;

/**
 * Reads what lies in `dir`. → the error that it was refused with, null when it was read, and the time that was
 * computed: a busy machine is no failure.
 */
async function reading(parser: Parser, dir: string): Promise<{ refusal: KvError | null; tookMs: number }> {
  const start = process.cpuUsage();
  let refusal: KvError | null = null;
  try {
    await parser.read(dir);
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    if (!Object.hasOwn(KV_ERROR_CODES, error.code)) throw new Error(`${error.code} is no code`, { cause: error });
    refusal = error;
  }
  const { user, system } = process.cpuUsage(start);
  return { refusal, tookMs: (user + system) / 1000 };
}

/**
 * Reads what lies in `dir`. → the error that it was refused with, null when it was read. Throws what is no KvError, and
 * where a bound is broken.
 */
export async function judge(parser: Parser, dir: string): Promise<KvError | null> {
  const [before, held] = [listing(dir), heldBytes()];
  const { millisecondsMax = MILLISECONDS_MAX } = parser;
  let { refusal, tookMs } = await reading(parser, dir);
  for (let n = 1; n < READINGS && tookMs > millisecondsMax; n++) ({ refusal, tookMs } = await reading(parser, dir));
  if (tookMs > millisecondsMax) throw new Error(`it took ${tookMs.toFixed(0)} ms`);
  if (heldBytes() - held > BYTES_MAX) collect();
  const grew = heldBytes() - held;
  if (grew > BYTES_MAX) throw new Error(`it holds ${(grew / 2 ** 20).toFixed(0)} MiB more`);
  if (listing(dir) !== before) throw new Error(`it wrote: ${before} became ${listing(dir)}`);
  if (Object.hasOwn(Object.prototype, 'polluted')) throw new Error('it changed the prototype of all objects');
  return refusal;
}

const listing = (dir: string): string =>
  (readdirSync(dir, { recursive: true }) as string[])
    .sort()
    .map((name) => `${name} ${statSync(join(dir, name)).size} ${statSync(join(dir, name)).mtimeMs}`)
    .join(', ');
