/**
 * Measures parking: what it takes to park a session and to put it back, with its pages as they are and predicted,
 * beside reading the same tokens. Bytes stay in memory, so that no disk is measured; checksums are verified. Without
 * the model, or without what its pages are predicted by, the reference model is measured.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { parkedBytes } from '../../engine/session/park/park.ts';
import { parseParked } from '../../engine/session/park/parked-file.ts';
import type { Predictor } from '../../engine/session/park/predictor.ts';
import { findPredictor } from '../../engine/session/park/predictors.ts';
import { resumeSession } from '../../engine/session/park/resume.ts';
import { Session } from '../../engine/session/session.ts';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { fetchedPath } from '../../engine/transformer/fetch.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
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
        for (const tokens of wholePages(settings.tokens ?? TOKENS)) await parkAt(bench, runtime, predictor, tokens);
      } finally {
        predictor?.close();
        await runtime.close();
      }
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
