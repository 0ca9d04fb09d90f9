/**
 * `npm run evaluate -- latents`: what latents are worth where keys and values are twice as wide as layer inputs. No
 * such model is at hand (both TinyStories models share a KV head between two query heads), so SmolLM2's KV heads are
 * repeated for each of its query heads: the same function, in which every query head has a KV head of its own. Sessions
 * with and without latents are compared at equal bytes.
 */

import type { SessionOptions } from '../../engine/options/types.ts';
import type { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { KvErrorCode } from '../../native/index.ts';
import { isLatent, type PageForm, type ThresholdSet } from '../../policy/index.ts';
import { passagesOf } from './passages.ts';
import { conditionsOf, Results } from './results.ts';
import { rewired } from './rewired.ts';
import { type BudgetsRequest, Scorer } from './score.ts';
import { withThresholds } from './variants.ts';

export interface LatentsRow {
  readonly text: string;
  readonly kind: string;
  readonly tokens: number;
  readonly budget: string;
  /**
   * 'none'; the latent that is asked for, with the most operations a token in multiples of the dense half; 'auto',
   * where the session decides, with the milliseconds that a step may take.
   */
  readonly latents: string;
  readonly kld: number | null;
  readonly bits: number | null;
  /** Share of the sealed pages that are held as latents. */
  readonly share: number | null;
  /** Milliseconds for each of the tokens written behind the text. */
  readonly stepMs: number | null;
  readonly code: KvErrorCode | null;
}

interface Way {
  readonly name: string;
  readonly options: SessionOptions;
  /** The most operations a token; left out: what is allowed by default. */
  readonly most?: number;
}

/** 16 operations are so many that steps take about twice as long. */
const WAYS: readonly Way[] = [
  { name: 'none', options: { latents: 'none' } },
  { name: 'xq4', options: { latents: 'xq4' } },
  { name: 'xq4 16', options: { latents: 'xq4' }, most: 16 },
  { name: 'auto', options: { latents: 'auto' } },
  { name: 'auto 1000 ms', options: { latents: 'auto', stepLatencyBudgetMs: 1000 } },
];
/** Tokens that are written for the time of a step. */
const WRITTEN = 8;

const keyOf = ({ text, tokens, budget, latents }: Pick<LatentsRow, 'text' | 'tokens' | 'budget' | 'latents'>): string =>
  [text, tokens, budget, latents].join(' | ');

/** Computes the rows that the file lacks. */
export async function latents({
  runtime,
  dense,
  json,
  kinds,
  lengths,
  budgets,
  passages,
  say,
}: BudgetsRequest): Promise<void> {
  const wide = widened(runtime);
  const results = Results.open<LatentsRow>(json, conditionsOf('latents', wide, dense), keyOf);
  const scorer = new Scorer(wide);
  for (const tokens of lengths)
    for (const kind of kinds)
      for (const passage of passagesOf(runtime.model.tokenizer, kind, passages, tokens))
        for (const kvBudget of budgets)
          for (const { name, options, most } of WAYS) {
            const conditions = { text: passage.text, kind, tokens, budget: kvBudget, latents: name };
            if (results.find(keyOf(conditions)) !== undefined) continue;
            let found: Pick<LatentsRow, 'share' | 'stepMs'> = { share: null, stepMs: null };
            const { kld, bits, code } = await scorer.score(passage, {
              options: { kvBudget, ...options },
              stateDir: null,
              adjust: (set) => (most === undefined ? set : allowed(set, most)),
              look: async (session) => {
                found = { share: latentShare(session), stepMs: await stepMs(session) };
              },
            });
            results.add({ ...conditions, kld, bits, ...found, code });
            say(
              `${keyOf(conditions)}: KLD ${kld?.toPrecision(3)}, ${bits?.toFixed(2)} bits, ${found.share?.toFixed(2)} latent, ${found.stepMs?.toFixed(0)} ms a step ${code ?? ''}`,
            );
          }
}

const allowed = (set: ThresholdSet, value: number): ThresholdSet => withThresholds(set, { 'latent.operations': value });

function latentShare(session: Session): number {
  const counts = session.report().layers.flatMap(({ kPages }) => Object.entries(kPages));
  const sum = (of: (form: PageForm) => boolean): number =>
    counts.reduce((all, [form, count]) => all + (of(form as PageForm) ? count : 0), 0);
  return sum(isLatent) / sum(() => true);
}

async function stepMs(session: Session): Promise<number> {
  const start = performance.now();
  let tokens = 0;
  const pieces = session.generate(null, { maxTokens: WRITTEN });
  for (let piece = await pieces.next(); ; piece = await pieces.next()) {
    if (piece.done !== true) continue;
    tokens = piece.value.tokens;
    break;
  }
  return (performance.now() - start) / Math.max(1, tokens);
}

/** Behind the name of a model: the same with a KV head for each query head. */
export const WIDENED = '+mha';

/** The same model with a KV head of its own for each query head. */
export function widened(runtime: Runtime): Runtime {
  const { kvHeads, queryHeads } = runtime.model.config;
  const times = queryHeads / kvHeads;
  const repeat = (rows: Float32Array, count: number): Float32Array => repeated(rows, count, kvHeads, times);
  const isProjection = (name: string): boolean => /^[0-9]+\.[kv](\.bias)?$/.test(name);
  return rewired(runtime, {
    name: `${runtime.model.name}${WIDENED}`,
    config: { kvHeads: queryHeads },
    input: (input) => ({ ...input, k: repeat(input.k, input.tokens), v: repeat(input.v, input.tokens) }),
    tensor: (name, stored) =>
      isProjection(name)
        ? Object.create(stored, { readFloat32: { value: () => repeat(stored.readFloat32(), 1) } })
        : stored,
  });
}

/** [rows, heads, …] → [rows, heads · times, …], each head `times` times in a row. */
function repeated(values: Float32Array, rows: number, heads: number, times: number): Float32Array {
  const size = values.length / (rows * heads);
  const out = new Float32Array(values.length * times);
  for (let head = 0; head < rows * heads; head++)
    for (let copy = 0; copy < times; copy++)
      out.set(values.subarray(head * size, (head + 1) * size), (head * times + copy) * size);
  return out;
}
