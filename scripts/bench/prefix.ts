/**
 * `npm run bench -- prefix` measures the first token of a session whose text begins as that of another one: a document
 * with another question behind it, exact and under the budget of an engine, with the other session open and closed.
 * Each round has a salt of its own, so that its first session finds nothing. Wall time, since that is what a user
 * waits.
 */
import { writeFileSync } from 'node:fs';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { createEngine, type Engine, type SessionOptions } from '../../engine/index.ts';
import { PAGE_TOKENS } from '../../native/index.ts';
import { typical } from './measure.ts';
import { smallModel } from './small-model.ts';
import { columns, fixed } from './table.ts';

export interface PrefixRow {
  readonly sessions: 'exact' | 'budget';
  readonly other: 'open' | 'closed';
  readonly prefixTokens: number;
  readonly cachedTokens: number;
  readonly coldMs: number;
  readonly warmMs: number;
  readonly ratio: number;
}

const PREFIX_TOKENS = 2048;
/** Tokens of a question behind it. */
const QUESTION_TOKENS = 24;
/** The budget of the engine: what ten such sessions take in 8 bits. */
const BUDGET = '640MiB';

const KINDS: Readonly<Record<PrefixRow['sessions'], SessionOptions>> = { exact: { exact: true }, budget: {} };

/** Milliseconds to the first token of a session behind a prompt, and what it found. */
async function firstToken(engine: Engine, options: SessionOptions, prompt: readonly number[]) {
  const session = await engine.openSession(options);
  const start = performance.now();
  const { cachedTokens } = await session.generate(prompt, { maxTokens: 1 }).result;
  return { session, ms: performance.now() - start, cachedTokens };
}

async function prefixRow(
  engine: Engine,
  text: readonly number[],
  kind: Pick<PrefixRow, 'sessions' | 'other'>,
  rounds: number,
): Promise<PrefixRow> {
  const [cold, warm]: [number[], number[]] = [[], []];
  let cachedTokens = 0;
  const document = text.slice(0, PREFIX_TOKENS);
  const question = (at: number): readonly number[] =>
    text.slice(PREFIX_TOKENS + at * QUESTION_TOKENS).slice(0, QUESTION_TOKENS);
  // Code is compiled in the first round.
  for (let round = -1; round < rounds; round++) {
    const options = { ...KINDS[kind.sessions], cacheSalt: `${kind.sessions} ${kind.other} ${round}` };
    const first = await firstToken(engine, options, [...document, ...question(0)]);
    if (kind.other === 'closed') await first.session.close();
    const second = await firstToken(engine, options, [...document, ...question(1)]);
    await Promise.all([first.session.close(), second.session.close()]);
    cachedTokens = second.cachedTokens;
    if (round < 0) continue;
    cold.push(first.ms);
    warm.push(second.ms);
  }
  const [coldMs, warmMs] = [typical(cold), typical(warm)];
  return { ...kind, prefixTokens: PREFIX_TOKENS, cachedTokens, coldMs, warmMs, ratio: warmMs / coldMs };
}

export async function prefix(
  say: (line: string) => void,
  { rounds, json }: { readonly rounds: number; readonly json: string | null },
): Promise<void> {
  const model = smallModel(say);
  const engine = await createEngine({ ...model, threads: 1, stateDir: null, kvBudget: BUDGET });
  const needed = PREFIX_TOKENS + 2 * QUESTION_TOKENS + PAGE_TOKENS;
  const text = await engine.tokenize(ownText(8 * needed));
  const rows: PrefixRow[] = [];
  for (const sessions of ['exact', 'budget'] as const)
    for (const other of ['open', 'closed'] as const)
      rows.push(await prefixRow(engine, text, { sessions, other }, rounds));
  say(`first token behind ${PREFIX_TOKENS} tokens that another session has read, ${model.model}, one thread, ms`);
  const head = ['sessions', 'the other', 'found', 'cold', 'warm', 'warm / cold'];
  const lines = rows.map((row) => [
    ...[row.sessions, row.other, row.cachedTokens, fixed(row.coldMs, 0), fixed(row.warmMs, 1), fixed(row.ratio, 3)],
  ]);
  for (const line of columns(head, lines)) say(`  ${line}`);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
  await engine.close();
}
