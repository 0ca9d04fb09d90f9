/**
 * `npm run evaluate -- experience`: what a session gets from sessions on other kinds of text, with a model of which
 * nobody calibrated a law: its divergence at equal bytes beside that of one that knows nothing and one that has the law
 * of the package, and how many of its decisions would be others without.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { shippedThresholds } from '../../engine/state/shipped-laws.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { nativeInfo, table } from '../../native/index.ts';
import { defaultLaw, type ThresholdSet } from '../../policy/index.ts';
import { decideWithout, openWitnessLog } from '../../witness/index.ts';
import { modelOf } from './frontier.ts';
import { KINDS, type Passage, passagesOf } from './passages.ts';
import { alike } from './prefix.ts';
import { geometricMean, Results } from './results.ts';
import { type Asked, Scorer } from './score.ts';
import { stateAfter } from './teach.ts';

/**
 * What it knows: nothing, what so many sessions on other kinds left (or of that only how errors went on, or only what
 * they found errors in layers to cost), the law of the package, or that and what sessions left that began alike.
 */
export type Known = 'none' | `other${number}${'' | ' course' | ' coefficients'}` | 'calibrated' | 'prefix';

export interface ExperienceRow {
  readonly model: string;
  readonly text: string;
  readonly tokens: number;
  readonly budget: string;
  readonly experience: Known;
  /** Mean divergence in nats; null: refused. */
  readonly kld: number | null;
  /** Share of its decisions that would be others, or none, without what it knew; null where it knew nothing. */
  readonly decisionsChanged: number | null;
  /** Share of the time of reading that trials, decisions, moves and the log took. */
  readonly decideShare: number;
}

export interface ExperienceRequest {
  /** Names or paths, as in `frontier`. */
  readonly models: readonly string[];
  readonly kinds: readonly string[];
  /** Passages of each kind. */
  readonly passages: number;
  readonly budgets: readonly string[];
  /** Most tokens of a passage; a model that reads fewer is given as many as it reads. */
  readonly tokens: number;
  /** After how many sessions it is scored. */
  readonly sessions: readonly number[];
  /** Scores it as well with either of the two things that sessions leave. */
  readonly isApart: boolean;
  /** Scores as well what so many sessions leave that began alike, with documents of two kinds; 0: it does not. */
  readonly alike: number;
  readonly dense: 'auto' | 'exact';
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly json: string | null;
  readonly say: (line: string) => void;
}

export const EXPERIENCE_BUDGETS = ['25%', '20%'];
export const EXPERIENCE_SESSIONS = [1, 3, 10];

type Conditions = Omit<ExperienceRow, 'kld' | 'decisionsChanged' | 'decideShare'>;

const keyOf = ({ model, text, tokens, budget, experience }: Conditions): string =>
  [model, text, tokens, budget, experience].join(' | ');

/** Computes the rows that the file lacks. → all rows of the file */
export async function experience(request: ExperienceRequest): Promise<readonly ExperienceRow[]> {
  const { dense, json } = request;
  const results = Results.open<ExperienceRow>(json, { kind: 'experience', isa: nativeInfo().isa, dense }, keyOf);
  const states = json === null ? mkdtempSync(join(tmpdir(), 'palimpsest-experience-')) : `${json}.states`;
  try {
    for (const name of request.models) {
      const { runtime, own } = await modelOf(name, request);
      try {
        await ofModel(name, runtime, request, states, results);
        if (request.alike > 0) await ofBeginnings(name, runtime, request, results);
      } finally {
        await own.close();
      }
    }
  } finally {
    if (json === null) rmSync(states, { recursive: true, force: true });
  }
  return results.rows;
}

function withoutCourse(set: ThresholdSet): ThresholdSet {
  const { course: _, ...rest } = set;
  return rest;
}

async function ofModel(
  model: string,
  runtime: Runtime,
  request: ExperienceRequest,
  states: string,
  results: Results<ExperienceRow>,
): Promise<void> {
  const { kinds, passages, budgets, sessions, isApart, dense, cacheDir, say } = request;
  const scorer = new Scorer(runtime);
  const tokens = Math.min(request.tokens, runtime.model.config.contextLength);
  const school = { runtime, dense, cacheDir, dir: join(states, runtime.model.digest.slice(0, 12)), say };
  const isCalibrated = shippedThresholds(runtime.model.digest) !== null;
  for (const kind of kinds) {
    const known = new Map<Known, Partial<Asked>>([['none', {}]]);
    const others = KINDS.filter((other) => other !== kind);
    for (const count of sessions) {
      const stateDir = await stateAfter(school, others, count, false);
      known.set(`other${count}`, { stateDir });
      if (!isApart) continue;
      const law = defaultLaw(runtime.shape.layers);
      known.set(`other${count} course`, { stateDir, adjust: (set) => ({ ...set, law }) });
      known.set(`other${count} coefficients`, { stateDir, adjust: withoutCourse });
    }
    if (isCalibrated) known.set('calibrated', { isShipped: true });
    for (const passage of passagesOf(runtime.model.tokenizer, kind, passages, tokens))
      for (const budget of budgets)
        for (const [experience, asked] of known) {
          const conditions = { model, text: passage.text, tokens, budget, experience };
          if (results.find(keyOf(conditions)) !== undefined) continue;
          const row = { ...conditions, ...(await scored(scorer, passage, budget, asked)) };
          results.add(row);
          say(
            `${keyOf(conditions)}: ${row.kld?.toExponential(2) ?? 'refused'}, ${row.decisionsChanged ?? 'no'} changed`,
          );
        }
  }
}

/** Sessions with the law of the package that begin with the same two documents, with and without what others left. */
async function ofBeginnings(
  model: string,
  runtime: Runtime,
  { kinds, budgets, tokens: most, alike: sessions, dense, cacheDir, say }: ExperienceRequest,
  results: Results<ExperienceRow>,
): Promise<void> {
  const scorer = new Scorer(runtime);
  const tokens = Math.min(most, runtime.model.config.contextLength);
  for (let at = 0; at + 1 < kinds.length; at += 2)
    for (const budget of budgets) {
      const {
        passage,
        scored: compareTokens,
        ask,
      } = alike({ runtime, dense, cacheDir, tokens }, [kinds[at]!, kinds[at + 1]!], budget);
      const conditions = (experience: Known): Conditions => ({ model, text: passage.text, tokens, budget, experience });
      if (results.find(keyOf(conditions('prefix'))) !== undefined) continue;
      const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-alike-'));
      const score = async (experience: Known, asked: Partial<Asked>): Promise<void> => {
        const row = await scored(scorer, passage, budget, { ...asked, isShipped: true, options: { compareTokens } });
        results.add({ ...conditions(experience), ...row });
        say(`${keyOf(conditions(experience))}: ${row.kld?.toExponential(2) ?? 'refused'}`);
      };
      try {
        if (results.find(keyOf(conditions('calibrated'))) === undefined) await score('calibrated', {});
        for (let n = 1; n <= sessions; n++) await ask(stateDir, n);
        await score('prefix', { stateDir });
      } finally {
        rmSync(stateDir, { recursive: true, force: true });
      }
    }
}

/** One session, with a log of its own for as long as it is decided again. */
async function scored(
  scorer: Scorer,
  passage: Passage,
  budget: string,
  asked: Partial<Asked>,
): Promise<Pick<ExperienceRow, 'kld' | 'decisionsChanged' | 'decideShare'>> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-experience-'));
  const log = await openWitnessLog({ dir });
  let id: string | null = null;
  let decideShare = 0;
  try {
    const { kld } = await scorer.score(passage, {
      stateDir: null,
      ...asked,
      options: { kvBudget: budget, ...asked.options },
      log,
      look: async (session, readMs) => {
        id = session.id;
        const { decideMs, trialMs, transcodeMs, witnessMs } = session.governed.tally.spent;
        decideShare = round((decideMs + trialMs + transcodeMs + witnessMs) / readMs);
      },
    });
    await log.close();
    const knows = asked.stateDir !== undefined || asked.isShipped === true;
    return { kld, decisionsChanged: knows && id !== null ? changed(dir, id) : null, decideShare };
  } finally {
    await log.close();
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Share of the decisions of a session that are not the same without all that it knew of others. */
function changed(dir: string, id: string): number | null {
  const [report] = decideWithout(dir, id, ['all']);
  return report === undefined || report.decisions === 0 ? null : round(report.differing.length / report.decisions);
}

const round = (share: number): number => Number(share.toFixed(4));

interface Line {
  readonly model: string;
  readonly known: Known;
  readonly rows: readonly ExperienceRow[];
  /** Divergence over knowing nothing, and over the law of the package where there is one, of each row. */
  readonly nothing: readonly number[];
  readonly calibrated: readonly number[];
}

/** By model and what was known: divergence over knowing nothing and over the law of the package, as geometric means. */
export function experienceTable(rows: readonly ExperienceRow[]): string {
  return table(COLUMNS, linesOf(rows));
}

const meanText = (ratios: readonly number[]): string => (ratios.length === 0 ? '' : geometricMean(ratios).toFixed(3));
const percent = (shares: readonly number[]): string => `${((100 * sum(shares)) / shares.length).toFixed(1)}%`;
const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
const changedOf = ({ rows }: Line): number[] =>
  rows.flatMap(({ decisionsChanged }) => (decisionsChanged === null ? [] : [decisionsChanged]));

const COLUMNS = [
  { title: 'model', value: ({ model }: Line) => model },
  { title: 'known', value: ({ known }: Line) => known },
  { title: 'runs', value: ({ rows }: Line) => String(rows.length) },
  { title: 'over nothing', value: ({ nothing }: Line) => meanText(nothing) },
  { title: 'worst', value: ({ nothing }: Line) => (nothing.length === 0 ? '' : Math.max(...nothing).toFixed(2)) },
  {
    title: 'over calibrated',
    value: ({ calibrated }: Line) => meanText(calibrated),
  },
  { title: 'changed', value: (line: Line) => (changedOf(line).length === 0 ? '' : percent(changedOf(line))) },
  { title: 'deciding', value: ({ rows }: Line) => percent(rows.map(({ decideShare }) => decideShare)) },
];

function linesOf(all: readonly ExperienceRow[]): Line[] {
  const runOf = ({ text, tokens, budget }: ExperienceRow): string => [text, tokens, budget].join();
  const lines: Line[] = [];
  for (const model of new Set(all.map((row) => row.model))) {
    const own = all.filter((row) => row.model === model && row.kld !== null);
    for (const known of new Set(own.map((row) => row.experience))) {
      const rows = own.filter((row) => row.experience === known);
      const over = (base: Known): number[] =>
        rows.flatMap((row) => {
          const beside = own.find((one) => one.experience === base && runOf(one) === runOf(row));
          return beside === undefined ? [] : [row.kld! / beside.kld!];
        });
      lines.push({ model, known, rows, nothing: over('none'), calibrated: over('calibrated') });
    }
  }
  return lines;
}
