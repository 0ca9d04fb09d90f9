/**
 * Measures parking: what it takes to park a session and to put it back, with its pages as they are and predicted, beside reading the same tokens. Bytes stay in
 * memory, so that no disk is measured; checksums are verified. Without the model, or without what its pages are predicted by, the reference model is measured.
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
  const cacheDir = join(root, '.cache');
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

export async function parkAt(
  bench: Bench,
  runtime: Runtime,
  predictor: Predictor | null,
  tokens: number,
): Promise<BenchRow[]> {
  const { settings, stream, say } = bench;
  const { threads, model, shape } = runtime;
  const ids = model.tokenizer.encode(ownText(tokens * 8)).slice(0, tokens);
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
  const sizes: number[] = [];
  const subjects: (Subject & { readonly what: string })[] = [
    {
      what: 'read',
      finish,
      run: async () => {
        spent.push(await read());
      },
    },
    ...ways.flatMap((by) => {
      const form = by === null ? 'as it is' : 'predicted';
      const bytes = parkedBytes(session, by);
      sizes.push(0, bytes.length);
      return [
        { what: `park ${form}`, run: () => void parkedBytes(session, by) },
        {
          what: `back ${form}`,
          finish,
          run: async () => {
            const back = await resumeSession(runtime, setup, parseParked(bytes, 'what was parked'), {}, by);
            spent.push(back.session);
            if (back.resumed.why !== null) throw new Error(`a parked session was read again: ${back.resumed.why}`);
          },
        },
      ];
    }),
  ];
  const rounds = Math.min(ROUNDS_MOST, settings.rounds);
  const { seconds } = await sideBySide(subjects, { stream, threads, rounds });
  const { kvBytesF16 } = session.report();
  session.close();
  say(
    `\npark ${model.name}, ${thousands(tokens)} tokens, ${threads} ${threads === 1 ? 'thread' : 'threads'} (goal: back ${GOAL} times as fast as reading)`,
  );
  const lines = subjects.map(({ what }, i) => [
    what,
    figure(1000 * seconds[i]!),
    figure(tokens / seconds[i]!),
    i === 0 ? null : fixed(seconds[0]! / seconds[i]!, 1, '×'),
    i === 0 || sizes[i - 1] === 0 ? null : fixed((16 * sizes[i - 1]!) / kvBytesF16, 2),
  ]);
  for (const line of columns(['', 'ms', 'tokens/s', 'reading takes', 'bits at rest'], lines)) say(`  ${line}`);
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
