/**
 * Measures parking: what it takes to park a session and to put it back, with its pages as they are and predicted,
 * beside reading the same tokens. Bytes stay in memory, so that no disk is measured; checksums are verified. Without
 * the model, or without what its pages are predicted by, the reference model is measured.
 */
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { Meter } from '../../engine/metrics/meter.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { parkedBytes } from '../../engine/session/park/park.ts';
import { parseParked } from '../../engine/session/park/parked-file.ts';
import type { Predictor } from '../../engine/session/park/predictor.ts';
import { findPredictor } from '../../engine/session/park/predictors.ts';
import { resumeSession } from '../../engine/session/park/resume.ts';
import { Session } from '../../engine/session/session.ts';
import { SharedMemory } from '../../engine/session/shared-memory.ts';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { fetchedPath } from '../../engine/transformer/fetch.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { openPool } from '../../native/index.ts';
import { type Bench, rowOf, thousands, wholePages } from './bench.ts';
import { type Subject, sideBySide } from './measure.ts';
import type { BenchRow } from './rows.ts';
import { columns, figure, fixed } from './table.ts';

const TOKENS = [2048];
/** Reading takes seconds. */
const ROUNDS_MOST = 5;
/** How many times faster than reading a session is to be back. */
const GOAL = 40;

export async function park(bench: Bench): Promise<void> {
  const { settings, root, say } = bench;
  const cacheDir = defaultCacheDir();
  const fetched = fetchedPath('smollm2-135m', cacheDir);
  const named = settings.model === 'smollm2-135m' ? fetched : settings.model;
  if (!existsSync(named)) say(`\npark: ${settings.model} is not here; npm run fetch:model fetches it`);
  for (const model of new Set([existsSync(named) ? named : 'reference', 'reference']))
    for (const threads of settings.threads) {
      const runtime = await Runtime.open({ model, threads, cacheDir });
      const predictor = findPredictor(runtime.model.digest, join(root, '.palimpsest'));
      try {
        if (predictor === null)
          say(`\npark: palimpsest calibrate -m ${runtime.model.name} --predictor fits what its pages are predicted by`);
        for (const tokens of wholePages(settings.tokens ?? TOKENS)) {
          await parkAt(bench, runtime, predictor, tokens);
          await aheadAt(bench, runtime, tokens);
        }
      } finally {
        predictor?.close();
        await runtime.close();
      }
    }
}

/** What another session has at work while the one that is parked waits for its turn. */
const BUSY_TOKENS = 256;

/**
 * How long the first token of a parked session takes from when its call may begin, which waits behind another one:
 * where its pages come back while it waits, and where they come back then.
 */
export async function aheadAt(bench: Bench, runtime: Runtime, tokens: number): Promise<BenchRow[]> {
  const { settings, say } = bench;
  const { threads, shape } = runtime;
  const { queryHeads, kvHeads, headDim } = shape;
  const rounds = Math.min(ROUNDS_MOST, settings.rounds);
  const rows: BenchRow[] = [];
  say(`\npark ${runtime.model.name}, ${thousands(tokens)} tokens on disk: first token of a call that waited its turn`);
  const found = new Map<boolean, number[]>([
    [false, []],
    [true, []],
  ]);
  for (let round = 0; round < rounds; round++)
    for (const [isAhead, seconds] of found) seconds.push(await firstTokenSeconds(runtime, tokens, isAhead));
  for (const [isAhead, all] of found) {
    const seconds = all.toSorted((a, b) => a - b)[rounds >> 1]!;
    const format = isAhead ? 'first token, back ahead' : 'first token, back then';
    say(`  ${format}: ${figure(1000 * seconds)} ms`);
    rows.push(
      rowOf(
        bench,
        { queryHeads, kvHeads, headDim },
        { bench: 'park', tokens, threads, format, nsPerToken: (1e9 * seconds) / tokens },
      ),
    );
  }
  for (const row of rows) bench.add(row);
  return rows;
}

async function firstTokenSeconds(runtime: Runtime, tokens: number, fetchesAhead: boolean): Promise<number> {
  const ids = runtime.model.tokenizer.encode(ownText((tokens + BUSY_TOKENS) * 8));
  const stateDir = mkdtempSync(join(tmpdir(), 'park-'));
  const pool = openPool(2 ** 31);
  const sessions: Session[] = [];
  const form = { place: 'disk', stateDir } as const;
  const shared = new SharedMemory({
    ...{ pool, meter: new Meter(), form, sessions: () => sessions, maxConcurrent: 1, fetchesAhead },
  });
  const setup = await setupOf(runtime, { tokensExpected: tokens + BUSY_TOKENS }, null);
  for (let n = 0; n < 2; n++) sessions.push(Session.open(runtime, { ...setup, pool, shared }));
  const [parked, busy] = sessions as [Session, Session];
  try {
    await parked.read(ids.slice(0, tokens));
    shared.parkAll(busy.governed);
    let fromMs = 0;
    const working = busy.read(ids.slice(tokens, tokens + BUSY_TOKENS)).then(() => {
      fromMs = performance.now();
    });
    await parked.read(ids.slice(tokens, tokens + 1));
    const seconds = (performance.now() - fromMs) / 1000;
    await working;
    return seconds;
  } finally {
    for (const session of sessions) {
      session.close();
      shared.forget(session);
    }
    pool.close();
    rmSync(stateDir, { recursive: true, force: true });
  }
}

/** What is timed, and what it leaves in a file. */
interface ParkSubject extends Subject {
  readonly what: string;
  /** Bytes of the file that is gone back from. */
  readonly fileBytes?: number;
}

export async function parkAt(
  bench: Bench,
  runtime: Runtime,
  predictor: Predictor | null,
  tokens: number,
): Promise<BenchRow[]> {
  const { settings, stream } = bench;
  const { threads, shape } = runtime;
  const { subjects, kvBytesF16, close } = await parkSubjects(runtime, predictor, tokens);
  const rounds = Math.min(ROUNDS_MOST, settings.rounds);
  const { seconds } = await sideBySide(subjects, { stream, threads, rounds });
  close();
  tellTimes(bench, runtime, { subjects, seconds, tokens, kvBytesF16 });
  const { queryHeads, kvHeads, headDim } = shape;
  const rows = subjects.map(({ what }, i) =>
    rowOf(
      bench,
      { queryHeads, kvHeads, headDim },
      {
        bench: 'park',
        tokens,
        threads,
        format: what,
        nsPerToken: (1e9 * seconds[i]!) / tokens,
      },
    ),
  );
  for (const row of rows) bench.add(row);
  return rows;
}

/** Reading tokens anew, and parking what they left and going back to it, in each way. */
async function parkSubjects(
  runtime: Runtime,
  predictor: Predictor | null,
  tokens: number,
): Promise<{ subjects: ParkSubject[]; kvBytesF16: number; close: () => void }> {
  const ids = runtime.model.tokenizer.encode(ownText(tokens * 8)).slice(0, tokens);
  const setup = await setupOf(runtime, { tokensExpected: tokens }, null);
  const read = async (): Promise<Session> => {
    const session = Session.open(runtime, setup);
    await session.read(ids);
    return session;
  };
  const session = await read();
  const spent: Session[] = [];
  const finish = (): void => {
    for (const one of spent.splice(0)) one.close();
  };
  const ways = predictor === null ? [null] : [null, predictor];
  const parking = ways.flatMap((by): ParkSubject[] => {
    const form = by === null ? 'as it is' : 'predicted';
    const bytes = parkedBytes(session, by);
    const back = async (): Promise<void> => {
      const { session: again, resumed } = await resumeSession(
        runtime,
        setup,
        parseParked(bytes, 'what was parked'),
        {},
        by,
      );
      spent.push(again);
      if (resumed.why !== null) throw new Error(`a parked session was read again: ${resumed.why}`);
    };
    return [
      { what: `park ${form}`, run: () => void parkedBytes(session, by) },
      { what: `back ${form}`, fileBytes: bytes.length, finish, run: back },
    ];
  });
  const reading: ParkSubject = {
    what: 'read',
    finish,
    run: async () => {
      spent.push(await read());
    },
  };
  return {
    subjects: [reading, ...parking],
    kvBytesF16: session.report().kvBytesF16,
    close: () => session.close(),
  };
}

interface Timed {
  readonly subjects: readonly ParkSubject[];
  readonly seconds: readonly number[];
  readonly tokens: number;
  readonly kvBytesF16: number;
}

function tellTimes(
  { say }: Bench,
  { model, threads }: Runtime,
  { subjects, seconds, tokens, kvBytesF16 }: Timed,
): void {
  say(
    `\npark ${model.name}, ${thousands(tokens)} tokens, ${threads} ${threads === 1 ? 'thread' : 'threads'} (goal: back ${GOAL} times as fast as reading)`,
  );
  const lines = subjects.map(({ what, fileBytes }, i) => [
    what,
    figure(1000 * seconds[i]!),
    figure(tokens / seconds[i]!),
    i === 0 ? null : fixed(seconds[0]! / seconds[i]!, 1, '×'),
    fileBytes === undefined ? null : fixed((16 * fileBytes) / kvBytesF16, 2),
  ]);
  for (const line of columns(['', 'ms', 'tokens/s', 'reading takes', 'bits at rest'], lines)) say(`  ${line}`);
}
