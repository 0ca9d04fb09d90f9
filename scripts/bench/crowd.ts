/**
 * `npm run bench -- crowd` measures what many conversations of one engine do to each other, by the clock unless it says
 * otherwise:
 *   pool      16 sessions that write at once on memory for 8, beside 8 on the same memory (crowd-pool.ts)
 *   hog       the steps of short sessions beside one of 16K tokens, while it reads and while it writes (crowd-hog.ts)
 *   waiting   200 conversations in memory for a part of them: the next answer of one that waits (crowd-waiting.ts)
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { bytesText } from '../../native/index.ts';
import type { Place } from './crowd-engine.ts';
import { hogRow, hogRows } from './crowd-hog.ts';
import { poolRow, poolRows } from './crowd-pool.ts';
import { waitingRow, waitingRows } from './crowd-waiting.ts';
import { machine } from './machine.ts';
import { randomModel, SMOLLM2_LONG } from './peers/random-model.ts';
import { smallModel } from './small-model.ts';
import { columns, figure, fixed } from './table.ts';

export const PARTS = ['pool', 'hog', 'waiting'] as const;
export type Part = (typeof PARTS)[number];

/** The name by which it is asked for. */
const SMOLLM2 = 'smollm2-135m';

export const crowdRow = z.union([poolRow, hogRow, waitingRow]);
export type CrowdRow = z.infer<typeof crowdRow>;

type Say = (line: string) => void;

export interface CrowdOptions {
  readonly parts: readonly Part[];
  /** Where SmolLM2 is asked for and has not been fetched, the reference model is measured. */
  readonly model: string;
  readonly threads: readonly number[];
  /** One round, and everything shorter. */
  readonly quick: boolean;
  readonly rounds: number;
  readonly json: string | null;
}

/** What a whole run measures, and what a quick one does. */
function plansOf({ quick, rounds }: CrowdOptions) {
  const pool = { fitting: 8, sessions: 16, promptTokens: 1024, answerTokens: 128, rounds };
  const hog = { hogTokens: 16_384, sessions: 7, promptTokens: 128, answerTokens: 64, rounds };
  const waiting = { conversations: 200, tokens: 2048, asked: 40, compared: 8 };
  if (!quick) return { pool, hog, waiting };
  return {
    pool: { ...pool, promptTokens: 384, answerTokens: 32, rounds: 1 },
    hog: { ...hog, hogTokens: 2048, answerTokens: 32, rounds: 1 },
    waiting: { conversations: 48, tokens: 640, asked: 8, compared: 2 },
  };
}

export async function crowd(say: Say, options: CrowdOptions): Promise<CrowdRow[]> {
  const small = smallModel(say);
  const model = options.model === SMOLLM2 ? small.model : options.model;
  const plans = plansOf(options);
  const about = machine();
  say(`${about.cpu}, ${about.cores} cores, node ${about.node}, commit ${about.commit}`);
  const rows: CrowdRow[] = [];
  for (const threads of options.threads)
    for (const part of options.parts) {
      const loading = { cacheDir: small.cacheDir, model, threads };
      if (part === 'pool') rows.push(...(await poolRows(loading, plans.pool)));
      if (part === 'waiting') rows.push(...(await waitingRows(loading, plans.waiting)));
      if (part === 'hog') {
        // The context of SmolLM2 itself ends before so many tokens.
        const isLong = model === SMOLLM2;
        const long = { ...loading, model: isLong ? randomModel(SMOLLM2_LONG, join(small.cacheDir, 'bench')) : model };
        rows.push(...(await hogRows(long, plans.hog)));
      }
      tell(say, rows, part);
    }
  if (options.json !== null)
    writeFileSync(options.json, `${JSON.stringify({ machine: about, rows: crowdRow.array().parse(rows) }, null, 1)}\n`);
  return rows;
}

const where = ({ model, threads }: Place): string => `${model}, ${threads} ${threads === 1 ? 'thread' : 'threads'}`;

function tell(say: Say, rows: readonly CrowdRow[], part: Part): void {
  say('');
  if (part === 'pool') {
    const lines = rows.flatMap((row) => {
      if (row.part !== 'pool') return [];
      const about = `${where(row)}: ${row.sessions} on memory for ${row.fitting}`;
      const speeds = [row.readTokensPerSecond, row.tokensPerSecond, row.tokensPerCpuSecond].map(figure);
      return [
        [
          about,
          ...speeds,
          fixed(row.ratio, 2, '×'),
          fixed(100 * row.deciding, 2, '%'),
          fixed(row.bits, 2),
          row.waited,
          row.readAgain,
        ],
      ];
    });
    const titles = [
      '',
      'reads, tokens/s',
      'writes',
      'writes, tokens/CPU s',
      'of those that fit',
      'deciding',
      'bits',
      'waited',
      'read again',
    ];
    for (const line of columns(titles, lines)) say(line);
  }
  if (part === 'hog') {
    const lines = rows.flatMap((row) => {
      if (row.part !== 'hog') return [];
      const about = `${where(row)}: ${row.sessions} beside ${row.hogTokens} tokens that ${row.hog}`;
      return [[about, row.steps, figure(row.p50StepMs), figure(row.p95StepMs), fixed(row.ratio, 2, '×')]];
    });
    for (const line of columns(['', 'steps', 'median ms', 'p95 ms', 'of beside one that waits'], lines)) say(line);
  }
  if (part === 'waiting') {
    const lines = rows.flatMap((row) => {
      if (row.part !== 'waiting') return [];
      const about = `${where(row)}: ${row.conversations} of ${row.tokens} in ${bytesText(row.budgetBytes)}, ${row.place}`;
      const times = [figure(row.p50FirstTokenMs), figure(row.p95FirstTokenMs)];
      return [[about, bytesText(row.heldBytes), row.waiting, row.asked, ...times, row.meanKld.toExponential(2)]];
    });
    const titles = ['', 'held', 'waiting', 'asked', 'first token, ms', 'p95 ms', 'KLD'];
    for (const line of columns(titles, lines)) say(line);
  }
}
