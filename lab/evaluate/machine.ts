/**
 * `npm run evaluate -- machine`: which arrows of the machines are taken by sessions as people have them and by some in
 * which something is wrong, and what the machine of a layer is worth: each session runs once more with a machine that
 * takes no arrow, so that every tier is open, every layer healthy and none trusted.
 */
import type { SessionOptions } from '../../engine/options/types.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { KvError, nativeInfo, PAGE_TOKENS } from '../../native/index.ts';
import {
  Arrows,
  type Course,
  createPolicy,
  defaultThresholds,
  type Policy,
  type ThresholdSet,
} from '../../policy/index.ts';
import { modelOf } from './frontier.ts';
import { type Passage, passagesOf } from './passages.ts';
import { damage, misled, wrongLaw } from './plants.ts';
import { arrowTable, Results } from './results.ts';
import { rewired } from './rewired.ts';
import { REFUSALS, Scorer } from './score.ts';
import { unruled, withThresholds } from './variants.ts';

/** One session, with the machine or without: what it decided, and what that took and cost. */
export interface MachineRow {
  readonly model: string;
  readonly text: string;
  readonly tokens: number;
  readonly session: string;
  readonly hasMachine: boolean;
  /** Moves that were made, each as 'layer/page/side/from/to'. */
  readonly moves: readonly string[];
  /** Candidates that were tried, repetitions included. */
  readonly tried: number;
  /** Milliseconds of trials, decisions and moves. */
  readonly deciding: number;
  /** Milliseconds of all. */
  readonly ms: number;
  /** null: the session is not read to its end, or was refused. */
  readonly kld: number | null;
}

export interface MachineRequest {
  readonly models: readonly string[];
  readonly parts: readonly string[];
  readonly kinds: readonly string[];
  readonly passages: number;
  readonly tokens: number;
  readonly dense: 'auto' | 'exact';
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly json: string | null;
  readonly say: (line: string) => void;
}

interface Bench {
  readonly runtime: Runtime;
  readonly scorer: Scorer;
  readonly passage: Passage;
  readonly arrows: Arrows;
  readonly forms: Map<string, number>;
  /** What a session before this one found of its errors; null: none was read. */
  readonly course: Course | null;
}

export const MACHINE_PARTS = ['plain', 'used', 'taught', 'planted'] as const;

/** A kind of session: how it is opened, and what is done with it. */
interface Kind {
  readonly part: (typeof MACHINE_PARTS)[number];
  readonly name: string;
  readonly options: SessionOptions;
  readonly thresholds?: (set: ThresholdSet, bench: Bench) => ThresholdSet;
  /** Tells the policy something wrong. */
  readonly mislead?: (policy: Policy) => Policy;
  /** In place of reading all. The session is then compared with nobody, unless it reads to the end all the same. */
  readonly use?: (session: Session, ids: readonly number[]) => Promise<void>;
  readonly isCompared?: boolean;
  /** Every layer sees so many tokens back. */
  readonly slidingWindow?: number;
}

const SCORED = 512;
/** Where something is planted, and where it ends, in shares of the text. */
const [PLANTED, ENDS] = [0.5, 0.75];
const at = (ids: readonly number[], share: number): number => Math.floor(share * ids.length);
/** Tokens written one by one, more than the latency of steps is taken over. */
const WRITTEN = 80;

const within = (kvBudget: string, more: SessionOptions = {}): SessionOptions => ({ kvBudget, ...more });

const KINDS: readonly Kind[] = [
  { part: 'plain', name: '25%', options: within('25%') },
  { part: 'plain', name: '17.5%', options: within('17.5%') },
  { part: 'plain', name: 'a stated divergence of 0.003', options: { kldBudget: 0.003 } },
  { part: 'taught', name: 'taught, 25%', options: within('25%'), thresholds: taught },
  {
    part: 'used',
    name: 'low memory signalled for a quarter of it',
    options: within('40%'),
    use: pressed,
    isCompared: true,
  },
  { part: 'used', name: 'a latency budget, and a new chat', options: within('25%'), use: chat },
  {
    part: 'used',
    name: 'answers with pages that come back',
    options: within('25%', { originals: 'memory', promote: 4 }),
    use: answer,
  },
  { part: 'used', name: 'latents', options: within('30%', { latents: 'xq4' }) },
  { part: 'used', name: 'a sliding window of 512 tokens', options: within('17.5%'), slidingWindow: 512 },
  {
    part: 'planted',
    name: 'planted: coefficients of two layers',
    options: within('25%'),
    thresholds: (set, { runtime }) => wrongLaw(set, runtime.shape.layers),
  },
  { part: 'planted', name: 'planted: codes of a page', options: within('25%'), use: damaged, isCompared: true },
  { part: 'planted', name: 'planted: trials of a layer', options: within('25%'), thresholds: wide, mislead: misled },
];

/** As many whole originals are kept as it takes to watch every layer and put some back. */
function wide(set: ThresholdSet): ThresholdSet {
  return withThresholds(set, { 'canary.share': 0.02 });
}

function taught(set: ThresholdSet, { course }: Bench): ThresholdSet {
  return course === null ? set : { ...set, course };
}

async function pressed(session: Session, ids: readonly number[]): Promise<void> {
  await session.read(ids.slice(0, at(ids, PLANTED)));
  session.governed.memoryIsLow(true);
  await session.read(ids.slice(at(ids, PLANTED), at(ids, ENDS)));
  session.governed.memoryIsLow(false);
  await session.read(ids.slice(at(ids, ENDS)));
}

/** Codes of one page of each layer are those of another page. */
async function damaged(session: Session, ids: readonly number[]): Promise<void> {
  await session.read(ids.slice(0, at(ids, PLANTED)));
  damage(session, [...Array(session.cache.shape.layers).keys()]);
  await session.read(ids.slice(at(ids, PLANTED)));
}

/** Steps behind a long history are slower than those of a chat that begins anew. */
async function chat(session: Session, ids: readonly number[]): Promise<void> {
  const write = async (from: number): Promise<void> => {
    for (const id of ids.slice(from, from + WRITTEN)) await session.read([id]);
  };
  await session.read(ids.slice(0, ids.length - WRITTEN));
  await write(ids.length - WRITTEN);
  session.rewind(0);
  await session.read(ids.slice(0, 2 * PAGE_TOKENS));
  await write(2 * PAGE_TOKENS);
  await session.read(ids.slice(2 * PAGE_TOKENS + WRITTEN, at(ids, PLANTED)));
}

async function answer(session: Session, ids: readonly number[]): Promise<void> {
  await session.read(ids.slice(0, -2 * PAGE_TOKENS));
  for (let from = ids.length - 2 * PAGE_TOKENS; from < ids.length; from += PAGE_TOKENS) {
    const before = session.length;
    for await (const _ of session.generate(ids.slice(from, from + 20), { maxTokens: 8, temperature: 0 }));
    // Asked again in other words: the prompt stays, and the last page of it is read once more.
    session.rewind(before);
    session.rewind(before - PAGE_TOKENS);
    await session.read(ids.slice(before - PAGE_TOKENS, before));
  }
}

const keyOf = ({ model, text, tokens, session, hasMachine }: MachineRow): string =>
  [model, text, tokens, session, hasMachine].join(' | ');

/** Computes the rows that the file lacks. → what is to be printed */
export async function machine(request: MachineRequest): Promise<string> {
  const { dense, json, say } = request;
  const results = Results.open<MachineRow>(json, { kind: 'machine', isa: nativeInfo().isa, dense }, keyOf);
  const arrows = new Arrows();
  const forms = new Map<string, number>();
  for (const name of request.models) {
    const { runtime, own } = await modelOf(name, request);
    try {
      const scorer = new Scorer(runtime);
      const passages = request.kinds.flatMap((kind) =>
        passagesOf(runtime.model.tokenizer, kind, request.passages, request.tokens),
      );
      for (const passage of passages) {
        const course = await courseOf(runtime, passage);
        for (const kind of KINDS.filter(({ part }) => request.parts.includes(part)))
          for (const hasMachine of [true, false]) {
            const bench = { runtime, scorer, passage, arrows, forms, course };
            const row = await rowOf(name, bench, kind, hasMachine, results);
            if (row !== null)
              say(`${keyOf(row)}: ${row.moves.length} moves, KLD ${row.kld?.toExponential(2) ?? 'none'}`);
          }
      }
    } finally {
      await own.close();
    }
  }
  return `${ablationTable(results.rows)}${arrowTable(arrows, forms)}`;
}

/** What a session finds in the first half of a text and leaves to the next. */
async function courseOf(runtime: Runtime, { ids }: Passage): Promise<Course | null> {
  const half = ids.slice(0, at(ids, PLANTED));
  const thresholds = defaultThresholds(runtime.shape.layers);
  const options = { ...within('25%'), tokensExpected: half.length, thresholds };
  const session = Session.open(runtime, await setupOf(runtime, options, { book: null, log: null }));
  try {
    await session.read(half);
    return session.governed.policy.course?.() ?? null;
  } finally {
    session.close();
  }
}

async function rowOf(
  model: string,
  bench: Bench,
  kind: Kind,
  hasMachine: boolean,
  results: Results<MachineRow>,
): Promise<MachineRow | null> {
  const { passage } = bench;
  const key = { model, text: passage.text, tokens: passage.ids.length, session: kind.name, hasMachine };
  if (results.find(keyOf(key as MachineRow)) !== undefined) return null;
  // A latency that steps are above and below in turn is known once they were made.
  const latency = kind.use === chat ? await latencyOf(bench, kind) : undefined;
  const measured = await measure(bench, kind, hasMachine, latency);
  const row = { ...key, ...measured };
  results.add(row);
  return row;
}

type Measured = Omit<MachineRow, 'model' | 'text' | 'tokens' | 'session' | 'hasMachine'>;

async function measure(bench: Bench, kind: Kind, hasMachine: boolean, latencyMs?: number): Promise<Measured> {
  const { passage, scorer } = bench;
  const moves: string[] = [];
  let session: Session | null = null;
  const start = performance.now();
  try {
    session = await open(bench, kind, hasMachine, moves, latencyMs);
    await (kind.use ?? ((one, ids) => one.read(ids)))(session, passage.ids);
    const ms = performance.now() - start;
    const { layers, trialMs, decideMs, transcodeMs } = session.report();
    const tried = layers.reduce((sum, { movesTried }) => sum + movesTried, 0);
    const isCompared = kind.slidingWindow === undefined && (kind.use === undefined || kind.isCompared === true);
    const kld = isCompared ? (await scorer.against(passage, session.hiddenRows())).meanKld : null;
    // As a chat that begins anew: everything is taken back.
    session.rewind(0);
    if (hasMachine) count(bench.forms, session);
    return { moves, tried, deciding: trialMs + decideMs + transcodeMs, ms, kld };
  } catch (error) {
    if (!(error instanceof KvError && REFUSALS.includes(error.code))) throw error;
    return { moves, tried: 0, deciding: 0, ms: performance.now() - start, kld: null };
  } finally {
    session?.close();
  }
}

function count(forms: Map<string, number>, { governed }: Session): void {
  for (const [name, times] of governed.arrows.counts) forms.set(name, (forms.get(name) ?? 0) + times);
}

async function open(
  bench: Bench,
  kind: Kind,
  hasMachine: boolean,
  moves: string[],
  latencyMs: number | undefined,
): Promise<Session> {
  const { passage, arrows } = bench;
  const { shape, model } = bench.runtime;
  const {
    slidingWindow,
    thresholds = (set: ThresholdSet): ThresholdSet => set,
    mislead = (one: Policy): Policy => one,
  } = kind;
  const runtime =
    slidingWindow === undefined
      ? bench.runtime
      : rewired(bench.runtime, {
          name: `${model.name} with a sliding window`,
          config: { slidingWindow: Array.from({ length: shape.layers }, () => slidingWindow) },
          input: (input) => input,
          tensor: (_, stored) => stored,
        });
  const options: SessionOptions = {
    ...kind.options,
    compareTokens: SCORED,
    tokensExpected: passage.ids.length,
    thresholds: thresholds(defaultThresholds(shape.layers), bench),
    ...(latencyMs === undefined ? {} : { stepLatencyBudgetMs: latencyMs }),
  };
  const setup = await setupOf(runtime, options, { book: null, log: null });
  const own = hasMachine ? createPolicy('price') : unruled(createPolicy('price'));
  return Session.open(runtime, { ...setup, policy: watched(mislead(own), hasMachine ? arrows : null, moves) });
}

/** Between what steps take behind a long history and behind a short one. */
async function latencyOf(bench: Bench, kind: Kind): Promise<number> {
  const session = await open(bench, kind, true, [], 1e6);
  const p95: number[] = [];
  const { latency } = session.governed.pacing;
  try {
    const { ids } = bench.passage;
    await session.read(ids.slice(0, ids.length - WRITTEN));
    for (const id of ids.slice(ids.length - WRITTEN)) await session.read([id]);
    p95.push(latency.p95);
    session.rewind(0);
    for (const id of ids.slice(0, WRITTEN)) await session.read([id]);
    p95.push(latency.p95);
  } finally {
    session.close();
  }
  return Math.sqrt(p95[0]! * p95[1]!);
}

/** Counts the arrows of its layers, and writes down the moves that are made. */
function watched(policy: Policy, arrows: Arrows | null, moves: string[]): Policy {
  const open: Policy['open'] = (context) => {
    const session = policy.open(context);
    const decide = session.decide.bind(session);
    arrows?.begin();
    return Object.assign(session, {
      decide: (situation: Parameters<typeof decide>[0]) => {
        for (const { layer, page, side, from, to, accepted } of situation.outcomes)
          if (accepted) moves.push([layer, page, side, from, to].join('/'));
        const decisions = decide(situation);
        arrows?.see(session.summary().layerStates);
        return decisions;
      },
    });
  };
  return { ...policy, open };
}

/** What each session is without the machine, beside what it is with it. */
export function ablationTable(rows: readonly MachineRow[]): string {
  const lines = [
    'model | session | moves | of them not without | tried without / with | deciding | KLD without / with',
  ];
  for (const whole of rows.filter(({ hasMachine }) => hasMachine)) {
    const without = rows.find((row) => keyOf(row) === keyOf({ ...whole, hasMachine: false }));
    if (without === undefined) continue;
    const share = ({ deciding, ms }: MachineRow): string => `${((100 * deciding) / ms).toFixed(0)}%`;
    const kld = whole.kld === null || without.kld === null ? 'none' : (without.kld / whole.kld).toFixed(3);
    lines.push(
      [
        whole.model,
        whole.session,
        whole.moves.length,
        lost(whole.moves, without.moves),
        whole.tried === 0 ? 'none' : (without.tried / whole.tried).toFixed(2),
        `${share(without)} / ${share(whole)}`,
        kld,
      ].join(' | '),
    );
  }
  return `${lines.join('\n')}\n`;
}

/** How many moves of the first list the second one lacks. */
function lost(of: readonly string[], from: readonly string[]): number {
  const left = new Map<string, number>();
  for (const move of from) left.set(move, (left.get(move) ?? 0) + 1);
  let count = 0;
  for (const move of of) {
    const there = left.get(move) ?? 0;
    if (there === 0) count++;
    else left.set(move, there - 1);
  }
  return count;
}
