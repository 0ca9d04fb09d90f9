/**
 * `npm run evaluate -- learning`: the divergence of sessions that know nothing, that were taught by other kinds of
 * text, and by the same kind, beside the policy as it was, uniform formats, and the best table in hindsight. Parts:
 * bytes (equal bytes), curve, questions (recall), ablations.
 */

import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { evaluate } from '../../engine/evaluate/evaluate.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { readBook } from '../../engine/state/folder.ts';
import { type KvErrorCode, replaceFile, table } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { descent, measureSides, type SideCost, tableWithin } from './hindsight.ts';
import { content, KINDS, type Passage, passagesOf, RECALL, WINDOWS } from './passages.ts';
import { arrowTable, conditionsOf, geometricMean, Results } from './results.ts';
import { type Asked, budgetOptions, type Score, Scorer, UNSCORED } from './score.ts';
import { type School, stateAfter } from './teach.ts';
import { ABLATIONS, ablated, BEFORE, isKnown, UNIFORM } from './variants.ts';

/**
 * `other` and `same`: a calibration and sessions on other kinds of text or on the same kind. `sessions`: sessions on
 * other kinds, no calibration.
 */
export type Experience = 'none' | 'sessions' | 'other' | 'same';

export interface LearningRow {
  readonly text: string;
  readonly kind: string;
  readonly tokens: number;
  readonly budget: string;
  readonly experience: Experience;
  /** Sessions that taught. */
  readonly sessions: number;
  /** What was left out; null: nothing. */
  readonly without: string | null;
  readonly kld: number | null;
  readonly predicted: number | null;
  readonly bits: number | null;
  /** Why there is no kld. */
  readonly code: KvErrorCode | null;
  readonly kldBefore: number | null;
  readonly kldUniform: number | null;
  readonly kldHindsight: number | null;
  /** The bits of the table in hindsight that keeps a divergence budget. */
  readonly bitsHindsight: number | null;
  readonly asked: number | null;
  readonly recalled: number | null;
  readonly recalledExact: number | null;
}

export interface LearningRequest {
  readonly school: School;
  readonly json: string | null;
  readonly parts: readonly string[];
  readonly kinds: readonly string[];
  readonly lengths: readonly number[];
  /** Instead of those below. */
  readonly budgets: readonly string[] | null;
  /** Points of the curve. */
  readonly sessions: readonly number[];
  /** Passages of each kind. */
  readonly passages: number;
  /** Tokens that probes of the table in hindsight read; 0: no such table. */
  readonly probedTokens: number;
  readonly recallDocuments: number;
}

export const PARTS = ['bytes', 'curve', 'questions', 'ablations'] as const;
/** Sessions that taught, where there is no curve. */
const TAUGHT = 10;
/** Four kinds whose texts are compared at equal bytes. */
const COMPARED_KINDS = ['wiki', 'novel', 'german', 'code'];
const BYTE_BUDGETS: Readonly<Record<number, readonly string[]>> = {
  2048: ['30%', '25%', '20%', '15%'],
  4096: ['30%', '25%', '20%', '13%'],
};
const CURVE_BUDGETS = ['25%', 'kld:0.01'];
const RECALL_BUDGETS: Readonly<Record<number, string>> = { 2048: '25%', 4096: '20%' };
const ABLATION_BUDGETS: Readonly<Record<number, string>> = { 2048: '25%', 4096: '20%' };

type Wanted = Pick<LearningRow, 'tokens' | 'budget' | 'experience' | 'sessions' | 'without'> & {
  readonly passage: Passage;
};

const keyOf = (row: Omit<Wanted, 'passage'> & { readonly text: string }): string =>
  [row.text, row.tokens, row.budget, row.experience, row.sessions, row.without ?? ''].join(' | ');

type Yardsticks = Pick<LearningRow, 'kldBefore' | 'kldUniform' | 'kldHindsight' | 'bitsHindsight'>;

/** Computes the rows that the file lacks, and prints what they say. */
export async function learning(request: LearningRequest): Promise<void> {
  const { school, json } = request;
  const results = Results.open<LearningRow>(json, conditionsOf('learning', school.runtime, school.dense), keyOf);
  const scorer = new Scorer(school.runtime);
  const wanted = wantedRows(request);
  for (const [index, row] of wanted.entries()) {
    const key = keyOf({ ...row, text: row.passage.text });
    if (results.find(key) !== undefined) continue;
    const yardsticks = await yardsticksOf(request, scorer, results.rows, row);
    const score = await scorer.score(row.passage, await askedOf(school, row));
    const { passage, ...conditions } = row;
    results.add({
      text: passage.text,
      kind: passage.kind,
      ...conditions,
      ...score,
      ...yardsticks,
      asked: null,
      recalled: null,
      recalledExact: null,
    });
    school.say(`${index + 1} of ${wanted.length}: ${key}: ${told(score, yardsticks)}`);
  }
  if (request.parts.includes('questions')) await recall(request, results);
  print(request, results.rows);
  process.stdout.write(arrowTable(scorer.arrows, scorer.forms));
}

const told = (score: Score, { kldBefore, kldHindsight }: Yardsticks): string =>
  score.code ??
  `KLD ${score.kld!.toPrecision(3)} at ${score.bits!.toFixed(2)} bits, before ${kldBefore?.toPrecision(3) ?? '–'}, in hindsight ${kldHindsight?.toPrecision(3) ?? '–'}`;

/** Rows in the order in which they are computed: those of one passage together, since they share the exact rows. */
function wantedRows({ school, parts, kinds, lengths, budgets, sessions, passages }: LearningRequest): Wanted[] {
  const rows: Wanted[] = [];
  for (const tokens of lengths)
    for (const kind of kinds)
      for (const passage of passagesOf(school.runtime.model.tokenizer, kind, passages, tokens)) {
        const add = (
          given: readonly string[],
          experience: Experience,
          taught: number,
          without: string | null = null,
        ) => {
          for (const budget of given) rows.push({ passage, tokens, budget, experience, sessions: taught, without });
        };
        if (parts.includes('bytes') && COMPARED_KINDS.includes(kind))
          for (const experience of ['none', 'other', 'same'] as const)
            add(budgets ?? BYTE_BUDGETS[tokens] ?? ['25%'], experience, experience === 'none' ? 0 : TAUGHT);
        if (parts.includes('curve') && tokens === lengths[0])
          for (const count of sessions) add(budgets ?? CURVE_BUDGETS, count === 0 ? 'none' : 'sessions', count);
        if (parts.includes('ablations') && COMPARED_KINDS.includes(kind)) {
          const given = budgets ?? [ABLATION_BUDGETS[tokens] ?? '25%'];
          add(given, 'other', TAUGHT);
          for (const { without } of ABLATIONS.filter(isKnown)) add(given, 'other', TAUGHT, without);
        }
      }
  return [...new Map(rows.map((row) => [keyOf({ ...row, text: row.passage.text }), row])).values()];
}

async function askedOf(school: School, { passage, budget, experience, sessions, without }: Wanted): Promise<Asked> {
  const stateDir = await stateOf(school, passage.kind, experience, sessions);
  const whole = { options: budgetOptions(budget), stateDir };
  return without === null ? whole : ablated(whole, ABLATIONS.find((one) => one.without === without)!);
}

/**
 * What taught: a calibration and sessions. On the points of the curve sessions alone, so that it shows what they are
 * worth.
 */
function stateOf(school: School, kind: string, experience: Experience, sessions: number): Promise<string | null> {
  if (experience === 'none') return Promise.resolve(null);
  const kinds = experience === 'same' ? [kind] : KINDS.filter((one) => one !== kind);
  return stateAfter(school, kinds, sessions, experience !== 'sessions');
}

/** Yardsticks do not depend on experience, so rows of one passage and budget share them. */
async function yardsticksOf(
  request: LearningRequest,
  scorer: Scorer,
  rows: readonly LearningRow[],
  { passage, tokens, budget }: Wanted,
): Promise<Yardsticks> {
  const same = rows.find((row) => row.text === passage.text && row.tokens === tokens && row.budget === budget);
  if (same !== undefined) {
    const { kldBefore, kldUniform, kldHindsight, bitsHindsight } = same;
    return { kldBefore, kldUniform, kldHindsight, bitsHindsight };
  }
  const score = async (options: SessionOptions): Promise<Score> => scorer.score(passage, { options, stateDir: null });
  const options = budgetOptions(budget);
  const hindsight = await hindsightOf(request, scorer, passage, budget);
  return {
    kldBefore: (await score({ ...options, ...BEFORE })).kld,
    kldUniform: (await score({ ...options, ...UNIFORM })).kld,
    kldHindsight: hindsight.kld,
    bitsHindsight: budget.startsWith('kld:') ? hindsight.bits : null,
  };
}

/** The table in hindsight at a byte budget, or the smallest one that keeps a divergence budget. */
async function hindsightOf(
  { school, probedTokens }: LearningRequest,
  scorer: Scorer,
  passage: Passage,
  budget: string,
): Promise<Score> {
  if (probedTokens === 0) return UNSCORED;
  const { runtime } = school;
  const tables = descent(runtime, await costsOf(school, passage, probedTokens));
  const score = (options: SessionOptions): Promise<Score> => scorer.score(passage, { options, stateDir: null });
  const { kldBudget } = budgetOptions(budget);
  if (kldBudget === undefined) {
    const options = tableWithin(runtime, tables, budget, passage.ids.length);
    return options === null ? UNSCORED : score(options);
  }
  let kept: Score = UNSCORED;
  for (let low = 0, high = tables.length - 1; low <= high; ) {
    const middle = (low + high) >> 1;
    const tried = await score({ policy: 'table', cacheTypes: tables[middle]! });
    if (tried.kld !== null && tried.kld <= kldBudget) {
      kept = tried;
      low = middle + 1;
    } else high = middle - 1;
  }
  return kept;
}

/** Measured once and kept beside the states. */
async function costsOf(school: School, passage: Passage, probedTokens: number): Promise<SideCost[]> {
  const path = join(school.dir, `sides of ${passage.text}, ${passage.ids.length}, ${probedTokens}.json`);
  if (existsSync(path)) return JSON.parse(readFileSync(path, 'utf8')) as SideCost[];
  const costs = await measureSides(school.runtime, passage, probedTokens, school.say);
  mkdirSync(school.dir, { recursive: true });
  replaceFile(path, Buffer.from(JSON.stringify(costs)));
  return costs;
}

/** Questions about documents with codes, right after they were read. */
async function recall(
  { school, lengths, recallDocuments }: LearningRequest,
  results: Results<LearningRow>,
): Promise<void> {
  for (const tokens of lengths)
    for (const experience of ['none', 'other', 'same'] as const) {
      const budget = RECALL_BUDGETS[tokens] ?? '25%';
      const sessions = experience === 'none' ? 0 : TAUGHT;
      const conditions = { text: 'recall questions', tokens, budget, experience, sessions, without: null };
      if (results.find(keyOf(conditions)) !== undefined) continue;
      const stateDir = await stateOf(school, RECALL, experience, sessions);
      const book = stateDir === null ? null : await readBook(stateDir);
      const [row] = await evaluate(school.runtime, {
        texts: [{ name: 'recall', content: content(WINDOWS.recall) }],
        caches: [{ name: 'price', options: { ...budgetOptions(budget), ...unknowing(school, stateDir) } }],
        tokens,
        windows: 0,
        recallDocuments,
        seed: 1,
        book,
      });
      await book?.close();
      const { asked, recalled, recalledExact } = row!;
      const yardsticks = { kldBefore: null, kldUniform: null, kldHindsight: null, bitsHindsight: null };
      results.add({ ...conditions, kind: RECALL, ...UNSCORED, ...yardsticks, asked, recalled, recalledExact });
      school.say(`${keyOf(conditions)}: ${recalled} of ${asked}, exact cache ${recalledExact}`);
    }
}

const unknowing = ({ runtime }: School, stateDir: string | null): SessionOptions =>
  stateDir === null ? { thresholds: defaultThresholds(runtime.shape.layers) } : {};

/** Geometric mean of a ratio over rows that have both numbers, as text. */
function ratio(
  rows: readonly LearningRow[],
  of: (row: LearningRow) => number | null,
  to: (row: LearningRow) => number | null,
): string {
  const ratios = rows.flatMap((row) => {
    const [above, below] = [of(row), to(row)];
    return above === null || below === null || above <= 0 || below <= 0 ? [] : [above / below];
  });
  return ratios.length === 0 ? '–' : geometricMean(ratios).toFixed(3);
}

interface Group {
  readonly name: string;
  readonly rows: readonly LearningRow[];
}

function groups(rows: readonly LearningRow[], nameOf: (row: LearningRow) => string): Group[] {
  const names = [...new Set(rows.map(nameOf))];
  return names.map((name) => ({ name, rows: rows.filter((row) => nameOf(row) === name) }));
}

const kld = (row: LearningRow): number | null => row.kld;
const kept = ({ rows }: Group): string => `${rows.filter((row) => row.kld !== null).length}/${rows.length}`;

function ratioTable(title: string, list: readonly Group[]): string {
  return `\n${title}\n${table(
    [
      { title: 'sessions', align: 'left', value: ({ name }) => name },
      { title: 'ran', value: kept },
      { title: '/ before', value: ({ rows }) => ratio(rows, kld, (row) => row.kldBefore) },
      { title: '/ uniform', value: ({ rows }) => ratio(rows, kld, (row) => row.kldUniform) },
      { title: '/ hindsight', value: ({ rows }) => ratio(rows, kld, (row) => row.kldHindsight) },
    ],
    list,
  )}`;
}

/** Geometric means of KLD ratios over texts. */
function print({ parts, sessions }: LearningRequest, rows: readonly LearningRow[]): void {
  const whole = rows.filter((row) => row.without === null && row.asked === null && !row.budget.startsWith('kld:'));
  const out = (text: string): void => void process.stdout.write(`${text}\n`);
  if (parts.includes('bytes')) {
    const compared = whole.filter((row) => COMPARED_KINDS.includes(row.kind) && row.experience !== 'sessions');
    const name = (row: LearningRow): string => `${row.tokens}, ${row.budget}, ${row.experience}`;
    out(ratioTable('KLD at equal bytes', groups(compared, name)));
  }
  if (parts.includes('curve')) {
    const curve = rows.filter(
      (row) =>
        row.without === null &&
        row.asked === null &&
        ['none', 'sessions'].includes(row.experience) &&
        sessions.includes(row.sessions) &&
        CURVE_BUDGETS.includes(row.budget),
    );
    for (const { name, rows: some } of groups(curve, (row) => `${row.tokens} tokens, ${row.budget}`))
      out(curveText(name, some));
  }
  if (parts.includes('ablations')) {
    const parted = new Set(
      rows.filter((row) => row.without !== null).map((row) => `${row.text} ${row.tokens} ${row.budget}`),
    );
    const beside = rows.filter(
      (row) =>
        row.experience === 'other' && row.sessions === TAUGHT && parted.has(`${row.text} ${row.tokens} ${row.budget}`),
    );
    out(
      ratioTable(
        'Ablations, KLD at equal bytes',
        groups(beside, (row) => (row.without === null ? 'whole' : `without ${row.without}`)),
      ),
    );
    const missing = ABLATIONS.filter((one) => !isKnown(one)).map(({ without }) => without);
    if (missing.length > 0) out(`not in this version: ${missing.join(', ')}`);
  }
  for (const row of rows.filter((one) => one.asked !== null))
    out(
      `recall at ${row.tokens}, ${row.budget}, ${row.experience}: ${row.recalled} of ${row.asked}, exact cache ${row.recalledExact}`,
    );
}

const BAR = 40;

/**
 * One line per kind and number of sessions: what stands against the table in hindsight, drawn with | where the two are
 * equal.
 */
function curveText(name: string, rows: readonly LearningRow[]): string {
  const isKld = rows[0]!.budget.startsWith('kld:');
  const of = (row: LearningRow): number | null => (isKld ? row.bits : row.kld);
  const to = (row: LearningRow): number | null => (isKld ? row.bitsHindsight : row.kldHindsight);
  const lines = groups(rows, (row) => row.kind).flatMap(({ name: kind, rows: some }) =>
    groups(
      [...some].sort((a, b) => a.sessions - b.sessions),
      (row) => String(row.sessions),
    ).map((group) => {
      const value = Number(ratio(group.rows, of, to));
      const length = Number.isFinite(value) ? Math.min(2 * BAR, Math.round(value * BAR)) : 0;
      const bar = '█'.repeat(length).padEnd(BAR);
      const klds = group.rows.flatMap((row) => (row.kld === null ? [] : [row.kld]));
      const bits = group.rows.flatMap((row) => (row.bits === null ? [] : [row.bits]));
      const mean = bits.reduce((sum, one) => sum + one, 0) / bits.length;
      return `${kind.padEnd(8)} ${group.name.padStart(3)}  KLD ${geometricMean(klds).toPrecision(3).padEnd(8)} ${mean.toFixed(2)} bits  ${ratio(group.rows, of, to).padStart(6)} ${bar.slice(0, BAR)}|${bar.slice(BAR)}`;
    }),
  );
  return `\nLearning curve, ${name}: ${isKld ? 'bits' : 'KLD'} in ratio to the table in hindsight, after n sessions on other kinds\n${lines.join('\n')}`;
}
