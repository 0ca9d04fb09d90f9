/**
 * `node --import tsx scripts/parked.ts [--model NAME] [--predictor FILE] [--kinds wiki,novel] [--tokens N] [--kv-budget
 * 25%] [--rounds 9]`: what parking a session saves and costs, of SmolLM2 or another model. A passage of each kind is
 * read, parked as it is and (with a predictor) by prediction, resumed, and read on for two pages. Prints the bits of a
 * number at rest, the divergence of what is read on from the exact cache, and the processor time of resuming (the
 * median of
 * --rounds times, and the first one, which packs the predictor) against that of reading the same tokens, on one thread.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { SessionOptions } from '../engine/options/types.ts';
import { addDivergence, emptySums, NO_TARGET, toDivergence } from '../engine/session/divergence.ts';
import { setupOf } from '../engine/session/experience.ts';
import { readParked, writeParked } from '../engine/session/park/folder.ts';
import { parkedBytes } from '../engine/session/park/park.ts';
import { Predictor, parsePredictor } from '../engine/session/park/predictor.ts';
import { resumeSession } from '../engine/session/park/resume.ts';
import { Session } from '../engine/session/session.ts';
import { Runtime } from '../engine/transformer/runtime/runtime.ts';
import { passagesOf } from '../lab/evaluate/passages.ts';
import { median } from './bench/measure.ts';

const LATER = 256;
const { values } = parseArgs({
  options: {
    model: { type: 'string', default: 'smollm2-135m' },
    predictor: { type: 'string' },
    kinds: { type: 'string', default: 'wiki,novel,german,code' },
    tokens: { type: 'string', default: '1536' },
    'kv-budget': { type: 'string' },
    rounds: { type: 'string', default: '9' },
  },
});
const tokens = Number(values.tokens);
const runtime = await Runtime.open({ model: values.model, threads: 1 });
const predictor =
  values.predictor === undefined
    ? null
    : new Predictor(parsePredictor(readFileSync(values.predictor), values.predictor));
const width = runtime.model.config.hiddenSize;
const folder = mkdtempSync(join(tmpdir(), 'palimpsest-parked-'));

async function open(options: SessionOptions): Promise<Session> {
  const asked = { tokensExpected: tokens + LATER, compareTokens: LATER, ...options };
  return Session.open(runtime, await setupOf(runtime, asked, null));
}

const seconds = async <T>(work: () => T | Promise<T>): Promise<[T, number]> => {
  const start = process.cpuUsage();
  const result = await work();
  const { user, system } = process.cpuUsage(start);
  return [result, (user + system) / 1e6];
};

console.log('| kind | pages | bits at rest | in memory | KLD | first s | resume s | reading s | times faster |');
console.log('|---|---|---|---|---|---|---|---|---|');
for (const kind of values.kinds.split(',')) {
  const { ids } = passagesOf(runtime.model.tokenizer, kind, 1, tokens + LATER)[0]!;
  const exact = await open({ exact: true });
  await exact.read(ids);
  const rows = exact.hiddenRows();
  exact.close();
  const session = await open(values['kv-budget'] === undefined ? {} : { kvBudget: values['kv-budget'] });
  const [, readS] = await seconds(() => session.read(ids.slice(0, tokens)));
  const { kvBytesF16, kvBytesNow } = session.report();
  const bits = (bytes: number): string => ((16 * bytes) / kvBytesF16).toFixed(2);
  for (const by of predictor === null ? [null] : [null, predictor]) {
    const path = join(folder, 'one');
    const bytes = parkedBytes(session, by);
    writeParked(path, bytes);
    const resume = () => seconds(() => resumeSession(runtime, session.setup, readParked(path), {}, by));
    const [{ session: back, resumed }, firstS] = await resume();
    const times: number[] = [];
    for (let round = 0; round < Number(values.rounds); round++) {
      const [again, time] = await resume();
      again.session.close();
      times.push(time);
    }
    const resumeS = median(times);
    await back.read(ids.slice(tokens));
    const sums = emptySums();
    const targets = Int32Array.from(ids.slice(tokens + 1).concat(NO_TARGET));
    await addDivergence(sums, runtime.dense, rows, back.hiddenRows().slice(-LATER * width), targets, width);
    back.close();
    const numbers = [
      toDivergence(sums).meanKld.toFixed(5),
      firstS.toFixed(3),
      resumeS.toFixed(3),
      readS.toFixed(2),
      (readS / resumeS).toFixed(1),
    ];
    const form = resumed.why ?? (by === null ? 'as they are' : 'predicted');
    console.log(`| ${[kind, form, bits(bytes.length), bits(kvBytesNow), ...numbers].join(' | ')} |`);
  }
  session.close();
}
rmSync(folder, { recursive: true });
predictor?.close();
await runtime.close();
