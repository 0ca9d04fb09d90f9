/**
 * `npm run bench -- load` asks a server for minutes as many people would: `palimpsest serve` in a process of its own,
 * clients here. Each holds conversations of one to four turns, of texts of very different lengths, most of them as
 * streams; some go away in the middle of an answer. What comes and the documents do not name is counted as a fault, and
 * with one the command fails.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { seeded } from '../../engine/evaluate/recall.ts';
import { LoadClient, type LoadTally, newTally } from './load-client.ts';
import { type AskedServer, PeerProcess, ServerProcess } from './load-servers.ts';
import { columns, fixed } from './table.ts';

const spread = z.object({ p50: z.number(), p95: z.number(), p99: z.number() }).readonly();
type Spread = z.infer<typeof spread>;

export const loadRow = z
  .object({
    model: z.string(),
    /** null: this server. */
    peer: z.string().nullable(),
    threads: z.int().positive(),
    clients: z.int().positive(),
    minutes: z.number().positive(),
    kvBudgetBytes: z.int().positive(),
    /** Answers that came whole, and those that their clients left. */
    answers: z.int(),
    left: z.int(),
    /** Refusals that clients try again (429 and 503), before an answer began and in the middle of one. */
    refused: z.int(),
    refusedInAnswer: z.int(),
    /** What nobody documented. */
    faults: z.array(z.string()).readonly(),
    tokensPerSecond: z.number(),
    /** Of answers that came as streams. */
    firstTokenMs: spread,
    betweenTokensMs: spread,
    /** The most that caches held, and by how much the process grew at most beyond what it had after first answers. */
    countedBytesMost: z.int(),
    residentGrowthBytes: z.int(),
  })
  .readonly();
export type LoadRow = z.infer<typeof loadRow>;

export interface Load {
  readonly root: string;
  readonly model: string;
  readonly threads: number;
  readonly clients: readonly number[];
  readonly minutes: number;
  readonly json: string | null;
  /** The program of a llama-server, which is asked the same after each row; null: none is. */
  readonly peer: string | null;
}

/** Holds some eight of these conversations, of SmolLM2 or of the reference model. */
const budgetOf = (model: string): number => (model === 'reference' ? 2 ** 22 : 2 ** 26);
/** How often memory is looked at. */
const LOOK_MS = 500;
/** Answers before the process counts as warm. */
const WARM = 4;

function spreadOf(values: readonly number[]): Spread {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share: number): number => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? 0;
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99) };
}

/** What the process held while `work` ran. */
async function watched(server: AskedServer, work: Promise<unknown>): Promise<{ counted: number; resident: number }> {
  const most = { counted: 0, resident: 0 };
  let isOver = false;
  const ended = work.finally(() => {
    isOver = true;
  });
  while (!isOver) {
    most.counted = Math.max(most.counted, await server.countedBytes());
    most.resident = Math.max(most.resident, server.residentBytes);
    await Promise.race([sleep(LOOK_MS), ended.catch(() => {})]);
  }
  await ended;
  return most;
}

async function measured(plan: Load, clients: number, peer: string | null): Promise<LoadRow> {
  const state = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const asked = { ...plan, kvBudgetBytes: budgetOf(plan.model), state };
  const server = peer === null ? await ServerProcess.start(asked) : await PeerProcess.start(asked, peer);
  const tally: LoadTally = newTally();
  const random = seeded(clients);
  try {
    await Promise.all(Array.from({ length: WARM }, () => new LoadClient(server.url, random, newTally()).turn()));
    const base = server.residentBytes;
    const endMs = performance.now() + plan.minutes * 60_000;
    const all = Array.from({ length: clients }, () => new LoadClient(server.url, random, tally).until(endMs));
    const beganMs = performance.now();
    const most = await watched(server, Promise.all(all));
    const seconds = (performance.now() - beganMs) / 1000;
    const code = await server.stop();
    if (code !== 0) tally.faults.push(`the server ended with code ${code}`);
    return loadRow.parse({
      ...{ model: plan.model, peer: peer && 'llama-server', threads: plan.threads, clients, minutes: plan.minutes },
      kvBudgetBytes: server.kvBytesMost,
      ...{ answers: tally.answers, left: tally.left, refused: tally.refused, faults: tally.faults },
      refusedInAnswer: tally.refusedInAnswer,
      tokensPerSecond: tally.tokens / seconds,
      ...{ firstTokenMs: spreadOf(tally.firstMs), betweenTokensMs: spreadOf(tally.betweenMs) },
      ...{ countedBytesMost: most.counted, residentGrowthBytes: most.resident - base },
    });
  } finally {
    await server.stop();
    rmSync(state, { recursive: true, force: true });
  }
}

const figures = ({ p50, p95, p99 }: Spread): string => [p50, p95, p99].map((ms) => fixed(ms, 0)).join(', ');

export async function load(say: (line: string) => void, plan: Load): Promise<void> {
  const rows: LoadRow[] = [];
  const servers = [null, ...(plan.peer === null ? [] : [plan.peer])];
  for (const clients of plan.clients) for (const peer of servers) rows.push(await measured(plan, clients, peer));
  const titles = ['server', 'clients', 'answers', 'left', 'refused', 'in answers', 'faults', 'tokens/s'];
  const more = ['first token ms (p50, p95, p99)', 'between tokens ms', 'caches MiB', 'growth MiB'];
  const lines = rows.map((row) => [
    ...[
      row.peer ?? 'palimpsest',
      row.clients,
      row.answers,
      row.left,
      row.refused,
      row.refusedInAnswer,
      row.faults.length,
    ],
    ...[fixed(row.tokensPerSecond, 1), figures(row.firstTokenMs), figures(row.betweenTokensMs)],
    ...[fixed(row.countedBytesMost / 2 ** 20, 1), fixed(row.residentGrowthBytes / 2 ** 20, 1)],
  ]);
  for (const line of columns([...titles, ...more], lines)) say(line);
  for (const fault of new Set(rows.flatMap(({ faults }) => faults))) say(`fault: ${fault}`);
  if (plan.json !== null) writeFileSync(plan.json, `${JSON.stringify(rows, null, 2)}\n`);
  if (rows.some(({ faults }) => faults.length > 0)) process.exitCode = 1;
}
