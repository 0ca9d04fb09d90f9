/** `npm run evaluate -- stated`: whether a stated divergence is kept and used, and how well it was predicted. */
import type { SessionReport } from '../../engine/cache/types.ts';
import type { KvErrorCode } from '../../native/index.ts';
import { type ThresholdSet, thresholdOf, withThreshold } from '../../policy/index.ts';
import { passagesOf } from './passages.ts';
import { arrowTable, conditionsOf, Results } from './results.ts';
import { type BudgetsRequest, Scorer } from './score.ts';

export interface StatedRow {
  readonly text: string;
  readonly kind: string;
  readonly tokens: number;
  readonly asked: number;
  /** Tokens from one that is read twice to the next; left out: none is. */
  readonly reread?: number;
  /** True if they were read over doubled errors, without originals. */
  readonly doubled?: boolean;
  readonly predicted: number | null;
  readonly measured: number | null;
  readonly bits: number | null;
  /** Whether the session said that it was more than stated; left out where it did not run. */
  readonly told?: boolean;
  /** What reading took, the trials and what is read twice included. */
  readonly readMs?: number;
  readonly code: KvErrorCode | null;
}

export interface StatedRequest extends Omit<BudgetsRequest, 'budgets'> {
  readonly asked: readonly number[];
  /** Folder whose sessions taught; null: none did. */
  readonly stateDir: string | null;
  /** Sessions keep originals, and read tokens twice every so many; 0: they do neither. */
  readonly reread: number;
  /** They keep no originals all the same, so that errors are doubled. */
  readonly doubled: boolean;
}

export const ASKED = [0.002, 0.005, 0.01, 0.02, 0.05] as const;
/** What is aimed at: the share of the budget that is used, and how far the prediction is off. */
const USED_MIN = 0.5;
const PREDICTED_WITHIN = 0.3;

type Conditions = Pick<StatedRow, 'text' | 'tokens' | 'asked' | 'reread' | 'doubled'>;

const keyOf = ({ text, tokens, asked, reread, doubled = false }: Conditions): string =>
  [text, tokens, asked, ...(reread === undefined ? [] : [`reread ${reread}`]), ...(doubled ? ['doubled'] : [])].join(
    ' | ',
  );

/** Computes the rows that the file lacks, and prints the shares. */
export async function stated({
  runtime,
  dense,
  json,
  kinds,
  lengths,
  asked,
  passages,
  stateDir,
  reread,
  doubled,
  say,
}: StatedRequest): Promise<void> {
  const results = Results.open<StatedRow>(json, conditionsOf('stated', runtime, dense), keyOf);
  const scorer = new Scorer(runtime);
  for (const tokens of lengths)
    for (const kind of kinds)
      for (const passage of passagesOf(runtime.model.tokenizer, kind, passages, tokens))
        for (const kldBudget of asked) {
          const twice = reread > 0 ? { reread, ...(doubled ? { doubled } : {}) } : {};
          const conditions = { text: passage.text, kind, tokens, asked: kldBudget, ...twice };
          if (results.find(keyOf(conditions)) !== undefined) continue;
          const { compared, report, code } = await scorer.compare(passage, {
            options: { kldBudget, ...(reread > 0 && !doubled ? ORIGINALS : {}) },
            stateDir,
            isShipped: true,
            adjust: (set) => withReread(set, reread),
          });
          const measured = compared?.meanKld ?? null;
          const predicted = report?.summary.predictedKld ?? null;
          const bits = report?.effectiveBits ?? null;
          const took = report === null ? {} : { readMs: readMsOf(report), told: (report.stated?.timesBroken ?? 0) > 0 };
          results.add({ ...conditions, measured, predicted, bits, ...took, code });
          say(
            `${keyOf(conditions)}: measured ${measured?.toPrecision(3)}, predicted ${predicted?.toPrecision(3)}, ${bits?.toFixed(2)} bits`,
          );
        }
  process.stdout.write(`${shares(results.rows)}\n${arrowTable(scorer.arrows, scorer.forms)}`);
}

/** More bytes than those of any passage here take. */
const ORIGINALS = { originals: 'memory', originalsBytes: '16GiB' } as const;

const withReread = (set: ThresholdSet, every: number): ThresholdSet =>
  withThreshold(set, { ...thresholdOf(set, 'reread.every'), value: every, origin: 'option' });

const readMsOf = ({ denseMs, attentionMs, trialMs, decideMs, transcodeMs }: SessionReport): number =>
  Math.round(denseMs + attentionMs + trialMs + decideMs + transcodeMs);

/** The three shares that are aimed at, for all rows and for each budget. */
export function shares(rows: readonly StatedRow[]): string {
  const line = (name: string, some: readonly StatedRow[]): string => {
    const ran = some.flatMap(({ measured, predicted, asked }) =>
      measured === null || predicted === null ? [] : [{ used: measured / asked, off: predicted / measured - 1 }],
    );
    const share = (is: (one: { used: number; off: number }) => boolean): string =>
      `${((100 * ran.filter(is).length) / Math.max(1, ran.length)).toFixed(0)}%`.padStart(5);
    const used = share((one) => one.used >= USED_MIN && one.used <= 1);
    const over = share((one) => one.used > 1);
    const isTold = some.filter(({ measured, asked, told }) => measured !== null && measured > asked && told === true);
    const near = share((one) => Math.abs(one.off) <= PREDICTED_WITHIN);
    return `${name.padEnd(8)} ${String(ran.length).padStart(4)} runs  measured/asked in [0.5, 1] ${used}  above 1 ${over} (told ${isTold.length})  predicted within 30% ${near}`;
  };
  const asked = [...new Set(rows.map((row) => row.asked))];
  return [
    line('all', rows),
    ...asked.map((one) =>
      line(
        String(one),
        rows.filter((row) => row.asked === one),
      ),
    ),
  ].join('\n');
}
