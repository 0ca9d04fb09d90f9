/** One session over one passage, and how far it ends from the exact cache. */

import type { SessionPack } from '../../engine/cache/pack-pages.ts';
import type { SessionReport } from '../../engine/cache/types.ts';
import { SCORED_TOKENS } from '../../engine/evaluate/evaluate.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import {
  addDivergence,
  type DivergenceSums,
  emptySums,
  NO_TARGET,
  toDivergence,
} from '../../engine/session/divergence.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Divergence } from '../../engine/session/types.ts';
import { memoryDir, readBook } from '../../engine/state/folder.ts';
import { prefixKey } from '../../engine/state/prefix-key.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { ThresholdBook } from '../../memory/index.ts';
import { KvError, type KvErrorCode } from '../../native/index.ts';
import { Arrows, createPolicy, defaultThresholds, type Policy, type ThresholdSet } from '../../policy/index.ts';
import type { WitnessLog } from '../../witness/index.ts';
import type { Passage } from './passages.ts';

/** What is asked of sessions of several budgets over the same texts. */
export interface BudgetsRequest {
  readonly runtime: Runtime;
  readonly dense: 'auto' | 'exact';
  readonly json: string | null;
  readonly kinds: readonly string[];
  readonly lengths: readonly number[];
  readonly budgets: readonly string[];
  readonly passages: number;
  readonly say: (line: string) => void;
}

/** What a session is opened with, beside its passage. */
export interface Asked {
  readonly options: SessionOptions;
  /** The folder whose sessions taught it; null: none. */
  readonly stateDir: string | null;
  /** True if it knows, without a folder, what ships with the package. Default false: it knows nothing. */
  readonly isShipped?: boolean;
  /** Changes what it starts from. */
  readonly adjust?: (set: ThresholdSet) => ThresholdSet;
  /** In place of the policy that the options name. */
  readonly policy?: Policy;
  /** Sees the session when all is read and scored, and how long reading took. */
  readonly look?: (session: Session, readMs: number) => Promise<void>;
  /** In whose codec its pages may be. */
  readonly pack?: SessionPack | undefined;
  /** What it writes to. Default: nothing. */
  readonly log?: WitnessLog;
}

/** Numbers of a session; `code` says why there are none. */
export interface Score {
  readonly kld: number | null;
  readonly predicted: number | null;
  readonly bits: number | null;
  readonly code: KvErrorCode | null;
}

/** How far a run is from the exact cache. */
export interface Compared extends Divergence {
  readonly medianKld: number;
  /** Of 512 tokens, the largest. */
  readonly kld999: number;
}

/** The same of a session, with its report; `code` says why there is none. */
export type Comparison =
  | { readonly compared: Compared; readonly report: SessionReport; readonly code: null }
  | { readonly compared: null; readonly report: null; readonly code: KvErrorCode };

/** Budgets that cannot be kept, and policies that cannot keep them. */
export const REFUSALS: readonly KvErrorCode[] = ['budget-too-small', 'budget-exceeded', 'unsupported'];
export const UNSCORED: Score = { kld: null, predicted: null, bits: null, code: null };

/** A budget as it stands in tables: '25%', or 'kld:0.01' for a divergence. */
export const budgetOptions = (budget: string): SessionOptions =>
  budget.startsWith('kld:') ? { kldBudget: Number(budget.slice(4)) } : { kvBudget: budget };

export class Scorer {
  readonly runtime: Runtime;
  /** What the layers of all sessions that the price policy governs went through. */
  readonly arrows = new Arrows();
  /** What sides of pages of all sessions went through. */
  readonly forms = new Map<string, number>();
  /** Rows of the exact cache for the passage that was scored last. */
  #exact: { readonly passage: Passage; readonly rows: Float32Array } | null = null;

  constructor(runtime: Runtime) {
    this.runtime = runtime;
  }

  /**
   * Scores the last tokens of the passage. A budget that cannot be kept gives its code and no numbers; other errors are
   * thrown.
   */
  async score(passage: Passage, asked: Asked): Promise<Score> {
    const { compared, report, code } = await this.compare(passage, asked);
    if (compared === null) return { ...UNSCORED, code };
    return { kld: compared.meanKld, predicted: report.summary.predictedKld, bits: report.effectiveBits, code };
  }

  /**
   * The same with all that can be said of the session. `compareTokens` of the options is the number of tokens that are
   * scored.
   */
  async compare(passage: Passage, asked: Asked): Promise<Comparison> {
    const { stateDir } = asked;
    // It may be asked again while the session reads.
    const book = stateDir === null ? null : await readBook(stateDir);
    let session: Session | null = null;
    try {
      session = await this.#open(passage, asked, book);
      const start = performance.now();
      await session.read(passage.ids);
      const readMs = performance.now() - start;
      const report = session.report();
      const compared = await this.against(passage, session.hiddenRows());
      await asked.look?.(session, readMs);
      for (const [arrow, count] of session.governed.arrows.counts)
        this.forms.set(arrow, (this.forms.get(arrow) ?? 0) + count);
      return { compared, report, code: null };
    } catch (error) {
      if (error instanceof KvError && REFUSALS.includes(error.code))
        return { compared: null, report: null, code: error.code };
      throw error;
    } finally {
      session?.close();
      await book?.close();
    }
  }

  async #open(
    { ids }: Passage,
    {
      options,
      stateDir,
      isShipped = false,
      adjust,
      policy,
      pack,
      log = null,
    }: Omit<Asked, 'log'> & { readonly log?: WitnessLog | null },
    book: ThresholdBook | null,
  ): Promise<Session> {
    const nothing = { thresholds: defaultThresholds(this.runtime.shape.layers) };
    const asked = { ...(stateDir === null && !isShipped ? nothing : {}), ...options };
    const setup = await setupOf(
      this.runtime,
      { compareTokens: SCORED_TOKENS, ...asked, tokensExpected: ids.length },
      { book, log, ...(stateDir === null ? {} : { prefixKey: prefixKey(memoryDir(stateDir), undefined) }) },
    );
    return Session.open(this.runtime, {
      ...setup,
      ...(adjust === undefined ? {} : { thresholds: adjust(setup.thresholds) }),
      ...(pack === undefined ? {} : { pack: pack.name, sessionPack: pack }),
      ...this.#watched(policy, options),
    });
  }

  /**
   * The policy that is given, or else the default one where there is a budget, with its arrows counted; nothing for
   * policies that are named.
   */
  #watched(given: Policy | undefined, { policy, kvBudget, kldBudget }: SessionOptions): { readonly policy?: Policy } {
    const hasBudget = kvBudget !== undefined || kldBudget !== undefined;
    const watched = given ?? (policy === undefined && hasBudget ? createPolicy('price') : undefined);
    if (watched === undefined) return {};
    const open: Policy['open'] = (context) => {
      const session = watched.open(context);
      const decide = session.decide.bind(session);
      this.arrows.begin();
      return Object.assign(session, {
        decide: (situation: Parameters<typeof decide>[0]) => {
          const decisions = decide(situation);
          this.arrows.see(session.summary().layerStates);
          return decisions;
        },
      });
    };
    return { policy: { ...watched, open } };
  }

  /**
   * How far a run over the passage is from the exact cache. `ours` [scored, m] is the residual stream behind the last
   * layer for its last tokens.
   */
  async against(passage: Passage, ours: Float32Array): Promise<Compared> {
    return comparedBy(await this.rowsAgainst(passage, ours));
  }

  /** The same, of each of these tokens. */
  async rowsAgainst(passage: Passage, ours: Float32Array): Promise<DivergenceSums> {
    const { hiddenSize } = this.runtime.model.config;
    const scored = ours.length / hiddenSize;
    if (this.#exact?.passage !== passage || this.#exact.rows.length !== ours.length) {
      const options = { exact: true, compareTokens: scored };
      const exact = await this.#open(passage, { options, stateDir: null }, null);
      try {
        await exact.read(passage.ids);
        this.#exact = { passage, rows: exact.hiddenRows() };
      } finally {
        exact.close();
      }
    }
    const sums = emptySums();
    const targets = Int32Array.from([...passage.ids.slice(passage.ids.length - scored + 1), NO_TARGET]);
    await addDivergence(sums, this.runtime.dense, this.#exact!.rows, ours, targets, hiddenSize);
    return sums;
  }
}

/** What sums over scored tokens come to. */
export function comparedBy(sums: DivergenceSums): Compared {
  const sorted = [...sums.klds].sort((a, b) => a - b);
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!;
  return { ...toDivergence(sums), medianKld: at(0.5), kld999: at(0.999) };
}
