/**
 * `npm run bench -- lookup` measures prompt look-up decoding against decoding without: greedy answers to prompts that
 * ask for a summary, for a file of code with small changes, and for a story, each read by a session of its own, in
 * turns. The tokens must be the same. Processor time of the answer alone counts; reading the prompt is the same work
 * for both.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Generated } from '../../engine/session/types.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { now, typical } from './measure.ts';
import { smallModel } from './small-model.ts';
import { columns, fixed } from './table.ts';

export interface LookupRow {
  readonly task: string;
  readonly promptTokens: number;
  readonly tokens: number;
  readonly temperature: number;
  readonly tokensPerCpuSecond: number;
  readonly tokensPerCpuSecondOff: number;
  readonly drafted: number;
  readonly accepted: number;
}

interface Task {
  readonly name: string;
  readonly system: string;
  readonly question: string;
  readonly temperature: number;
}

/** The number that docs/library.md proposes. */
const PROPOSED = 8;
const ANSWER_TOKENS = 256;

/** The tasks, over texts of this repository. */
function tasksOf(root: string): readonly Task[] {
  const text = (path: string, most: number): string => readFileSync(join(root, path), 'utf8').slice(0, most);
  const code = text('engine/session/stop.ts', 2400);
  const prose = text('models/text/chronicle.txt', 4000);
  const edit = 'You edit code. You answer with the whole file and nothing else.';
  return [
    {
      name: 'a summary',
      system: 'You summarize texts.',
      question: `Summarize this text in three sentences, in its own words:\n\n${prose}`,
      temperature: 0,
    },
    {
      name: 'an edit of code',
      system: edit,
      question: `Write this file again. Rename nothing, and add a comment at its end:\n\n${code}`,
      temperature: 0,
    },
    {
      name: 'the same, drawn',
      system: edit,
      question: `Write this file again. Rename nothing, and add a comment at its end:\n\n${code}`,
      temperature: 0.7,
    },
    {
      name: 'a story',
      system: 'You tell stories.',
      question: 'Tell me a story of a keeper of bees who went to sea.',
      temperature: 0,
    },
  ];
}

/** Reads a prompt and answers it. → the answer, its tokens, and the processor time that writing took */
async function answered(runtime: Runtime, ids: readonly number[], { temperature }: Task, promptLookupTokens: number) {
  const session = Session.open(runtime, await setupOf(runtime, { tokensExpected: ids.length + ANSWER_TOKENS }, null));
  await session.read(ids);
  const stream = session.generate(null, { maxTokens: ANSWER_TOKENS, temperature, seed: 1, promptLookupTokens });
  const start = now(1);
  let generated: Generated | null = null;
  while (generated === null) {
    const next = await stream.next();
    if (next.done === true) generated = next.value;
  }
  const seconds = now(1) - start;
  const tokens = session.tokens.slice(ids.length);
  session.close();
  return { generated, seconds, tokens };
}

export async function lookupRow(runtime: Runtime, task: Task, rounds: number): Promise<LookupRow> {
  const { tokenizer } = runtime.model;
  const { system, question, name, temperature } = task;
  const ids =
    tokenizer.chatTemplate === null
      ? tokenizer.encode(question)
      : tokenizer.chat(
          [
            { role: 'system', content: system },
            { role: 'user', content: question },
          ],
          {},
        );
  const seconds: [number[], number[]] = [[], []];
  let last: Awaited<ReturnType<typeof answered>> | null = null;
  // Code is compiled in the first round.
  for (let round = -1; round < rounds; round++) {
    const off = await answered(runtime, ids, task, 0);
    last = await answered(runtime, ids, task, PROPOSED);
    if (off.tokens.join() !== last.tokens.join()) throw new Error(`${name}: look-up wrote other tokens`);
    if (round < 0) continue;
    seconds[0].push(off.seconds);
    seconds[1].push(last.seconds);
  }
  const { tokens, drafted, accepted } = last!.generated;
  const [off, on] = seconds.map((list) => tokens / typical(list));
  return {
    ...{ task: name, promptTokens: ids.length, tokens, temperature },
    ...{ tokensPerCpuSecond: on!, tokensPerCpuSecondOff: off!, drafted, accepted },
  };
}

export async function lookup(
  say: (line: string) => void,
  { root, rounds, json }: { readonly root: string; readonly rounds: number; readonly json: string | null },
): Promise<void> {
  const runtime = await Runtime.open({ ...smallModel(say), threads: 1 });
  const rows: LookupRow[] = [];
  for (const task of tasksOf(root)) rows.push(await lookupRow(runtime, task, rounds));
  say(`answers of ${runtime.model.name} with up to ${PROPOSED} proposed tokens, one thread, tokens per CPU second`);
  const head = ['task', 'prompt', 'answer', 'without', 'with', 'gain', 'proposed', 'right'];
  const lines = rows.map((row) => [
    row.task,
    row.promptTokens,
    row.tokens,
    fixed(row.tokensPerCpuSecondOff, 0),
    fixed(row.tokensPerCpuSecond, 0),
    fixed(row.tokensPerCpuSecond / row.tokensPerCpuSecondOff, 2, '×'),
    row.drafted,
    row.accepted,
  ]);
  for (const line of columns(head, lines)) say(`  ${line}`);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
  await runtime.close();
}
