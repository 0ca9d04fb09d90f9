/**
 * Who came when, and what they asked: synthetic traces from a seed, and recorded ones from a file of JSON lines, each
 * a conversation:
 *
 *     {"arriveMs":1200,"weight":1,"closes":true,"turns":[{"thinkMs":0,"promptTokens":812,"answerTokens":190},…]}
 *
 * `arriveMs` counts from the beginning and never falls; `thinkMs` is from the end of an answer to the next prompt; one
 * that does not close stays open without coming back. `weight` is what an error in its text costs beside others.
 */
import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { Random } from './random.ts';

export interface Turn {
  readonly thinkMs: number;
  readonly promptTokens: number;
  readonly answerTokens: number;
}

export interface Conversation {
  readonly arriveMs: number;
  readonly weight: number;
  readonly closes: boolean;
  readonly turns: readonly Turn[];
}

const conversation = z.strictObject({
  arriveMs: z.number().min(0),
  weight: z.number().positive().default(1),
  closes: z.boolean().default(true),
  turns: z
    .array(
      z.strictObject({
        thinkMs: z.number().min(0),
        promptTokens: z.int().min(1).max(10_000_000),
        answerTokens: z.int().min(0).max(10_000_000),
      }),
    )
    .min(1),
});

/** Throws for a line that is no conversation, or out of order, and says which. */
export function recordedTrace(path: string): Conversation[] {
  const lines = readFileSync(path, 'utf8').trimEnd().split('\n');
  let lastMs = 0;
  return lines.map((line, at) => {
    try {
      const one = conversation.parse(JSON.parse(line));
      if (one.arriveMs < lastMs) throw new Error('it came before the one above it');
      lastMs = one.arriveMs;
      return one;
    } catch (cause) {
      throw new Error(`line ${at + 1} of ${path} is no conversation: ${(cause as Error).message}`, { cause });
    }
  });
}

/**
 * `chats`: all are people alike, and most vanish. `mixed`: a third are programs that come back within seconds as long
 * as they live, a third people, each with a pace of its own, and a third ask once. `faithful`: people, each with a pace
 * of its own, who come back again and again and close.
 */
export const TRACE_KINDS = ['chats', 'mixed', 'faithful'] as const;
export type TraceKind = (typeof TRACE_KINDS)[number];

export interface Synthetic {
  readonly kind?: TraceKind;
  readonly seed: number;
  /** How many there are; Infinity: without an end. */
  readonly conversations: number;
  readonly arrivalsPerSecond: number;
  readonly contextTokens: number;
}

/** Medians and deviations of logarithms: chosen, after chats of people (docs/lab/policy.md). */
const THINK = { medianMs: 30_000, sigma: 1.2 };
const PROMPT = { median: 120, sigma: 1.0 };
const ANSWER = { median: 200, sigma: 0.7 };
/** Every fifth begins with a document, of a length by Zipf in pages of 128 tokens. */
const DOCUMENT = { share: 0.2, exponent: 1.1, pageTokens: 128 };
const TURNS_MEAN = 4;
/** So many go without closing. */
const VANISH = 0.7;
/** How far texts differ in what an error costs. */
const WEIGHT_SIGMA = 0.5;

/** How one comes back: how many turns in the mean, at which pace, and whether it closes. */
interface Habit {
  readonly turnsMean: number;
  readonly medianMs: number;
  readonly sigma: number;
  readonly vanish: number;
}

function habitOf(kind: TraceKind, random: Random): Habit {
  const { medianMs, sigma } = THINK;
  if (kind === 'chats') return { turnsMean: TURNS_MEAN, medianMs, sigma, vanish: VANISH };
  const own = random.logNormal(medianMs, sigma);
  if (kind === 'faithful') return { turnsMean: 12, medianMs: own, sigma: 0.5, vanish: 0 };
  const which = random.next();
  if (which < 1 / 3) return { turnsMean: 20, medianMs: 4000, sigma: 0.4, vanish: 0.2 };
  return which < 2 / 3
    ? { turnsMean: 6, medianMs: own, sigma: 0.6, vanish: VANISH }
    : { turnsMean: 1, medianMs, sigma, vanish: 1 };
}

/** Arrivals by Poisson, thinking and lengths log-normal, documents by Zipf. */
export function* syntheticTrace({
  kind = 'chats',
  seed,
  conversations,
  arrivalsPerSecond,
  contextTokens,
}: Synthetic): Generator<Conversation> {
  const random = new Random(seed);
  let arriveMs = 0;
  for (let n = 0; n < conversations; n++) {
    arriveMs += random.exponential(1000 / arrivalsPerSecond);
    const weight = random.logNormal(1, WEIGHT_SIGMA);
    const habit = habitOf(kind, random);
    const closes = random.next() >= habit.vanish;
    const turns: Turn[] = [];
    let left = contextTokens;
    do {
      const isFirst = turns.length === 0;
      const pages = Math.floor(contextTokens / (2 * DOCUMENT.pageTokens));
      const isDocument = isFirst && random.next() < DOCUMENT.share;
      const document = isDocument ? DOCUMENT.pageTokens * random.zipf(pages, DOCUMENT.exponent) : 0;
      const promptTokens = Math.min(
        left,
        document + Math.max(1, Math.round(random.logNormal(PROMPT.median, PROMPT.sigma))),
      );
      left -= promptTokens;
      const answerTokens = Math.min(left, Math.round(random.logNormal(ANSWER.median, ANSWER.sigma)));
      left -= answerTokens;
      turns.push({ thinkMs: isFirst ? 0 : random.logNormal(habit.medianMs, habit.sigma), promptTokens, answerTokens });
    } while (left > 0 && random.next() > 1 / habit.turnsMean);
    yield { arriveMs, weight, closes, turns };
  }
}
