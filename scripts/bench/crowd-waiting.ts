/**
 * Conversations within less memory than their pages take: how soon the next answer of one that waits begins, and how
 * far it goes on from the exact cache, where those that wait are parked in memory, on disk, or dropped and read again.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { seeded } from '../../engine/evaluate/recall.ts';
import type { Engine, EngineSession } from '../../engine/index.ts';
import { KvError } from '../../native/index.ts';
import { type Loading, open, place, placeOf, sum, textsOf } from './crowd-engine.ts';
import { median, p95 } from './measure.ts';

const PLACES = ['memory', 'disk', 'reread'] as const;

export const waitingRow = place
  .extend({
    part: z.literal('waiting'),
    place: z.enum(PLACES),
    conversations: z.int().positive(),
    tokens: z.int().positive(),
    budgetBytes: z.int().positive(),
    /** What all of them took in memory at most, parked ones included. */
    heldBytes: z.int().positive(),
    /** Conversations that waited without their pages before any was asked. */
    waiting: z.int().nonnegative(),
    asked: z.int().nonnegative(),
    p50FirstTokenMs: z.number().positive(),
    p95FirstTokenMs: z.number().positive(),
    /** From the exact cache, of the tokens behind, in nats. */
    meanKld: z.number().nonnegative(),
    comparedTokens: z.int().positive(),
  })
  .readonly();
export type WaitingRow = z.infer<typeof waitingRow>;
export interface WaitingPlan {
  readonly conversations: number;
  readonly tokens: number;
  /** How many are asked. */
  readonly asked: number;
  /** How many of those are compared with the exact cache, which reads each anew. */
  readonly compared: number;
}

/** Texts that are really read; each is that of several conversations, which share nothing. */
const TEXTS = 10;
const QUESTION_TOKENS = 16;
const COMPARED_TOKENS = 64;
/** 2 GiB for 200 conversations of 2,048 tokens of SmolLM2, as a share of what they take in f16. */
const SHARE = 2 ** 31 / (200 * 2048 * 23_040);
/** Dropped and read again are those whose pages may not go lower; others go on as they do by default. */
const OPTIONS = { memory: {}, disk: {}, reread: { policy: 'none' } } as const;

type Way = keyof typeof OPTIONS;

/** Texts with what follows them, and for each way the files in which sessions that have read them are parked. */
interface Read {
  readonly texts: readonly (readonly number[])[];
  readonly files: Readonly<Record<Way, readonly string[]>>;
}

/** Reads the texts, one after the other, and parks each as it is. */
async function readTexts(engine: Engine, folder: string, plan: WaitingPlan): Promise<Read> {
  const texts = await textsOf(engine, Math.min(TEXTS, plan.conversations), plan.tokens + COMPARED_TOKENS);
  const parked = async (way: Way): Promise<string[]> => {
    const files: string[] = [];
    for (const [at, text] of texts.entries()) {
      const session = await engine.openSession(OPTIONS[way]);
      await session.read(text.slice(0, plan.tokens));
      files.push((await session.park(join(folder, `${way}-${at}.parked`))).path);
    }
    return files;
  };
  const plain = await parked('memory');
  return { texts, files: { memory: plain, disk: plain, reread: await parked('reread') } };
}

const bytesOf = async (sessions: readonly EngineSession[]): Promise<number> =>
  sum(await Promise.all(sessions.map(async (session) => (await session.report()).kvBytesNow)));

const isAway = async (session: EngineSession): Promise<boolean> => (await session.report()).parked !== null;

/** All of a list in an order by chance. */
function shuffled<T>(list: readonly T[], random: () => number): T[] {
  const keyed = list.map((one) => [random(), one] as const).sort(([a], [b]) => a - b);
  return keyed.map(([, one]) => one);
}

/**
 * Milliseconds to the first token of those that wait, by chance, and how far some go on from the exact cache. The first
 * time does not count, since code is compiled in it.
 */
async function ask(sessions: readonly EngineSession[], texts: readonly (readonly number[])[], plan: WaitingPlan) {
  const [ms, klds]: [number[], number[]] = [[], []];
  let heldBytes = await bytesOf(sessions);
  for (const [at, session] of shuffled([...sessions.entries()], seeded(1))) {
    if (ms.length > plan.asked) break;
    if (!(await isAway(session))) continue;
    const later = texts[at % texts.length]!.slice(plan.tokens);
    const start = performance.now();
    await session.generate(later.slice(0, QUESTION_TOKENS), { maxTokens: 1 }).result;
    ms.push(performance.now() - start);
    if (ms.length <= plan.compared) {
      await session.read(later.slice(QUESTION_TOKENS));
      klds.push((await session.compare()).meanKld);
    }
    heldBytes = Math.max(heldBytes, await bytesOf(sessions));
  }
  return { ms: ms.slice(1), klds, heldBytes };
}

/** Brings all conversations into memory that holds a part of them, and asks some of those that wait. */
async function waitingIn(loading: Loading, way: Way, read: Read, budgetBytes: number, plan: WaitingPlan) {
  const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-crowd-'));
  const engine = await open(loading, { kvBudget: budgetBytes, idleSessions: way, stateDir });
  try {
    const sessions: EngineSession[] = [];
    for (let at = 0; at < plan.conversations; at++) {
      const file = read.files[way][at % read.texts.length]!;
      const session = await engine.resume(file, { compareTokens: COMPARED_TOKENS });
      const { why } = session.resumed!;
      if (why !== null) throw new KvError('unsupported', `a conversation was read again: ${why}`);
      sessions.push(session);
    }
    const away = await Promise.all(sessions.map(isAway));
    const { ms, klds, heldBytes } = await ask(sessions, read.texts, plan);
    const { conversations, tokens } = plan;
    const row: WaitingRow = {
      ...{ ...placeOf(engine), part: 'waiting', place: way, conversations, tokens, budgetBytes, heldBytes },
      ...{ waiting: away.filter((isThere) => isThere).length, asked: ms.length },
      ...{ p50FirstTokenMs: median(ms), p95FirstTokenMs: p95(ms) },
      ...{ meanKld: sum(klds) / klds.length, comparedTokens: klds.length * COMPARED_TOKENS },
    };
    return row;
  } finally {
    await engine.close();
    rmSync(stateDir, { recursive: true, force: true });
  }
}

/** A row for each way to wait. */
export async function waitingRows(loading: Loading, plan: WaitingPlan): Promise<WaitingRow[]> {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-crowd-'));
  try {
    const small = await open(loading, {});
    const { f16Bytes } = await small.forecast(plan.tokens);
    await small.close();
    const budgetBytes = Math.floor(SHARE * plan.conversations * f16Bytes);
    const engine = await open(loading, { kvBudget: budgetBytes });
    const read = await readTexts(engine, folder, plan);
    await engine.close();
    const rows: WaitingRow[] = [];
    for (const way of PLACES) rows.push(await waitingIn(loading, way, read, budgetBytes, plan));
    return rows;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
