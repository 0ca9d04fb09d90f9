/**
 * `npm run evaluate -- prefix`: what sessions are worth that began alike. A system prompt with two documents, about
 * which each session is asked something else; then the divergence of one more session over other questions, at equal
 * bytes, with what those left behind and without. What they leave is the course of errors, which sessions of any text
 * do, and what was asked of the beginning; each can be taken out of what the scored session is told.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seeded } from '../../engine/evaluate/recall.ts';
import { createEngine } from '../../engine/thread/engine.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { PAGE_TOKENS, table } from '../../native/index.ts';
import { createPolicy, type Policy, type ThresholdSet } from '../../policy/index.ts';
import { type Passage, passagesOf } from './passages.ts';
import { geometricMean } from './results.ts';
import { type Asked, Scorer } from './score.ts';

export const PREFIX_BUDGETS = ['20%', '30%'];
export const PREFIX_SESSIONS = [0, 1, 5, 20];

export interface PrefixRequest {
  readonly runtime: Runtime;
  readonly dense: 'auto' | 'exact';
  readonly cacheDir: string;
  /** The kinds of the two documents, in pairs. */
  readonly kinds: readonly string[];
  /** Of a session: a prefix, and the questions that are scored. */
  readonly tokens: number;
  readonly budgets: readonly string[];
  /** After how many sessions it is scored. */
  readonly sessions: readonly number[];
  /** Scores it as well with either of the two things that sessions leave, and with none of them. */
  readonly isApart: boolean;
  readonly say: (line: string) => void;
}

/** Which of what sessions left is told to the session that is scored. */
export type Told = 'nothing' | 'both' | 'course' | 'later' | 'neither';

interface Row {
  readonly documents: string;
  readonly budget: string;
  readonly sessions: number;
  readonly told: Told;
  readonly kld: number;
  /** Forms of all page sides at its end. */
  readonly forms: readonly number[];
}

/** Of the tokens of a session, the questions that are scored. */
const ASKED_SHARE = 0.3;
/** Tokens of a sentence that an answer repeats, and answers of a session that teaches. */
const QUOTE_TOKENS = 40;
const ANSWER_TOKENS = 32;
const SYSTEM =
  'You answer questions about two documents. You may call search(query), open(page) and sum(numbers). Say in which document it stands.\n\n';
const QUESTIONS = [
  'What is said there of the beginning?',
  'Who is named, and what did they do?',
  'Which of both says more about it?',
  'How does it go on?',
  'Repeat what matters most.',
  'What does the second document add?',
];

/** → a table */
export async function prefix(request: PrefixRequest): Promise<string> {
  const rows: Row[] = [];
  for (let at = 0; at + 1 < request.kinds.length; at += 2)
    for (const budget of request.budgets)
      rows.push(...(await measured(request, request.kinds.slice(at, at + 2) as [string, string], budget)));
  const unknowing = (row: Row): Row =>
    rows.find((one) => one.documents === row.documents && one.budget === row.budget && one.sessions === 0) ?? row;
  const base = (row: Row): number => unknowing(row).kld;
  const otherwise = (row: Row): number =>
    row.forms.filter((form, at) => form !== unknowing(row).forms[at]).length / row.forms.length;
  const means = request.sessions.flatMap((sessions) =>
    toldOf(request, sessions).map((told) => rows.filter((row) => row.sessions === sessions && row.told === told)),
  );
  return `${table(
    [
      { title: 'documents', align: 'left', value: (row: Row) => row.documents },
      { title: 'budget', value: ({ budget }) => budget },
      { title: 'sessions before', value: ({ sessions }) => String(sessions) },
      { title: 'told of them', align: 'left', value: ({ told }) => told },
      { title: 'KLD', value: ({ kld }) => kld.toExponential(2) },
      { title: 'page sides in another form', value: (row) => `${(100 * otherwise(row)).toFixed(0)}%` },
      { title: 'of knowing nothing', value: (row) => (row.kld / base(row)).toFixed(2) },
    ],
    rows,
  )}\n${means
    .map(
      (some) =>
        `after ${some[0]?.sessions} sessions (${some[0]?.told}) ${geometricMean(some.map((row) => row.kld / base(row))).toFixed(2)}`,
    )
    .join(', ')}\n`;
}

/** What is told after so many sessions, in the order in which it is scored. */
const toldOf = ({ isApart }: PrefixRequest, sessions: number): readonly Told[] =>
  sessions === 0 ? ['nothing'] : isApart ? ['both', 'course', 'later', 'neither'] : ['both'];

/** Takes out of what a session is told all but this. */
export function tellOnly(told: Told): Pick<Asked, 'adjust' | 'policy'> {
  const withoutCourse = (set: ThresholdSet): ThresholdSet => {
    const { course: _, ...rest } = set;
    return rest;
  };
  return {
    ...(told === 'later' || told === 'neither' ? { adjust: withoutCourse } : {}),
    ...(told === 'course' || told === 'neither' ? { policy: unasked(createPolicy('price')) } : {}),
  };
}

/** The policy as if nobody had been asked what was asked of the beginning. */
const unasked = (policy: Policy): Policy => ({
  ...policy,
  open: (context) => {
    const session = policy.open(context);
    const decide = session.decide.bind(session);
    return Object.assign(session, {
      decide: (told: Parameters<typeof decide>[0]) => {
        const { later: _, ...situation } = told;
        return decide(situation);
      },
    });
  },
});

/** Sessions that begin alike. */
export interface Alike {
  /** The beginning with the questions that are scored. */
  readonly passage: Passage;
  /** How many tokens these are. */
  readonly scored: number;
  /** Asks something else of the same beginning, in an engine with this state folder; `n` from 1. */
  readonly ask: (stateDir: string, n: number) => Promise<void>;
}

/** What a request for `prefix` needs to make them. */
export type AlikeRequest = Pick<PrefixRequest, 'runtime' | 'dense' | 'cacheDir' | 'tokens'>;

export function alike(request: AlikeRequest, kinds: readonly [string, string], budget: string): Alike {
  const { runtime, tokens } = request;
  const shared = prefixOf(request, kinds);
  const scored = questions(shared, runtime, 0, tokens - shared.length);
  const asked = runtime.model.tokenizer.encode(QUESTIONS[0]!).length + 3 * QUOTE_TOKENS;
  return {
    passage: { text: kinds.join(' and '), kind: 'prefix', ids: [...shared, ...scored] },
    scored: scored.length,
    ask: (stateDir, n) => ask(request, stateDir, budget, [...shared, ...questions(shared, runtime, n, asked)]),
  };
}

async function measured(request: PrefixRequest, kinds: readonly [string, string], budget: string): Promise<Row[]> {
  const { runtime, say } = request;
  const { passage, scored, ask: teach } = alike(request, kinds, budget);
  const scorer = new Scorer(runtime);
  const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-prefix-'));
  const rows: Row[] = [];
  try {
    for (let done = 0; done <= Math.max(...request.sessions); done++) {
      for (const told of request.sessions.includes(done) ? toldOf(request, done) : []) {
        let forms: number[] = [];
        const { compared } = await scorer.compare(passage, {
          options: { kvBudget: budget, compareTokens: scored },
          stateDir: done === 0 ? null : stateDir,
          isShipped: true,
          ...tellOnly(told),
          look: async ({ cache }) => {
            forms = Array.from({ length: runtime.shape.layers }, (_, layer) => cache.table(layer)).flatMap(
              ({ kFormat, vFormat }) => [...kFormat, ...vFormat],
            );
          },
        });
        const kld = compared?.meanKld ?? Number.NaN;
        rows.push({ documents: passage.text, budget, sessions: done, told, kld, forms });
        say(`${passage.text}, ${budget}, after ${done} sessions, ${told}: ${kld.toExponential(3)}`);
      }
      if (done < Math.max(...request.sessions)) await teach(stateDir, done + 1);
    }
  } finally {
    rmSync(stateDir, { recursive: true, force: true });
  }
  return rows;
}

/** Whole pages of a system prompt and two documents. */
function prefixOf({ runtime: { model }, tokens }: AlikeRequest, kinds: readonly [string, string]): number[] {
  const length = Math.floor(((1 - ASKED_SHARE) * tokens) / PAGE_TOKENS) * PAGE_TOKENS;
  const documents = kinds.flatMap((kind) => [
    ...model.tokenizer.encode(`\n\nA document:\n\n`),
    ...passagesOf(model.tokenizer, kind, 1, Math.ceil(length / 2))[0]!.ids,
  ]);
  return [...model.tokenizer.encode(SYSTEM), ...documents].slice(0, length);
}

/** Questions and answers that repeat sentences from anywhere in the documents. */
function questions(
  shared: readonly number[],
  { model: { tokenizer } }: Runtime,
  seed: number,
  tokens: number,
): number[] {
  const random = seeded(seed);
  const ids: number[] = [];
  for (let n = Math.floor(random() * QUESTIONS.length); ids.length < tokens; n++) {
    const quote = (): readonly number[] => {
      const at = Math.floor(random() * (shared.length - QUOTE_TOKENS));
      return shared.slice(at, at + QUOTE_TOKENS);
    };
    const question = tokenizer.encode(`\n\nQuestion: ${QUESTIONS[n % QUESTIONS.length]}\nAnswer: it is written, "`);
    ids.push(...question, ...quote(), ...tokenizer.encode('", and elsewhere, "'), ...quote());
  }
  return ids.slice(0, tokens);
}

/** One session of an engine, as anybody's. */
async function ask(
  { runtime, dense, cacheDir, tokens }: AlikeRequest,
  stateDir: string,
  kvBudget: string,
  prompt: readonly number[],
): Promise<void> {
  const { model, threads } = runtime;
  const engine = await createEngine({ model: model.path, dense, threads, cacheDir, stateDir });
  try {
    const session = await engine.openSession({ kvBudget, tokensExpected: tokens });
    await session.generate([...prompt], { maxTokens: ANSWER_TOKENS, temperature: 0 }).result;
    await session.close();
  } finally {
    await engine.close();
  }
}
