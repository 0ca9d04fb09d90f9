/**
 * `npm run evaluate -- harm`: whether the price policy does harm anywhere. Its divergence beside that of `uniform`,
 * which measures nothing, at equal budgets: over models with and without outlier channels in their keys, texts and
 * budgets.
 */
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { nativeInfo } from '../../native/index.ts';
import { modelOf } from './frontier.ts';
import { passagesOf } from './passages.ts';
import { geometricMean, Results } from './results.ts';
import { Scorer } from './score.ts';
import { UNIFORM } from './variants.ts';

/** One passage within one budget under both policies: mean divergence in nats; null: refused. */
export interface HarmRow {
  readonly model: string;
  readonly text: string;
  readonly tokens: number;
  readonly budget: string;
  readonly price: number | null;
  readonly uniform: number | null;
}

export interface HarmRequest {
  /** Names or paths, as in `frontier`. */
  readonly models: readonly string[];
  readonly kinds: readonly string[];
  /** Passages of each kind. */
  readonly passages: number;
  readonly budgets: readonly string[];
  /** Most tokens of a passage; a model that reads fewer is given as many as it reads. */
  readonly tokens: number;
  readonly dense: 'auto' | 'exact';
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly json: string | null;
  readonly say: (line: string) => void;
}

export const HARM_BUDGETS = ['20%', '25%', '30%'];

const keyOf = ({ model, text, tokens, budget }: Omit<HarmRow, 'price' | 'uniform'>): string =>
  [model, text, tokens, budget].join(' | ');

/** Computes the rows that the file lacks. → all rows of the file */
export async function harm(request: HarmRequest): Promise<readonly HarmRow[]> {
  const { dense, json } = request;
  const results = Results.open<HarmRow>(json, { kind: 'harm', isa: nativeInfo().isa, dense }, keyOf);
  for (const name of request.models) {
    const { runtime, own } = await modelOf(name, request);
    try {
      await harmOf(name, runtime, request, results);
    } finally {
      await own.close();
    }
  }
  return results.rows;
}

async function harmOf(
  model: string,
  runtime: Runtime,
  { kinds, passages, budgets, tokens: most, say }: HarmRequest,
  results: Results<HarmRow>,
): Promise<void> {
  const scorer = new Scorer(runtime);
  const tokens = Math.min(most, runtime.model.config.contextLength);
  for (const kind of kinds)
    for (const passage of passagesOf(runtime.model.tokenizer, kind, passages, tokens))
      for (const budget of budgets) {
        const conditions = { model, text: passage.text, tokens, budget };
        if (results.find(keyOf(conditions)) !== undefined) continue;
        const options = { kvBudget: budget };
        const price = await scorer.score(passage, { options, stateDir: null, isShipped: true });
        const uniform = await scorer.score(passage, { options: { ...options, ...UNIFORM }, stateDir: null });
        results.add({ ...conditions, price: price.kld, uniform: uniform.kld });
        say(`${keyOf(conditions)}: price ${told(price.kld)}, uniform ${told(uniform.kld)}`);
      }
}

const told = (kld: number | null): string => kld?.toExponential(2) ?? 'refused';

/** Divergence of `price` over that of `uniform`, by model and budget: geometric mean and the worst text. */
export function ratios(rows: readonly HarmRow[]): string {
  const lines = ['model  budget  texts  geometric mean  worst text\n'];
  for (const model of new Set(rows.map((row) => row.model)))
    for (const budget of new Set(rows.map((row) => row.budget))) {
      const found = rows
        .filter((row) => row.model === model && row.budget === budget)
        .flatMap(({ price, uniform }) => (price === null || uniform === null ? [] : [price / uniform]));
      if (found.length === 0) continue;
      lines.push(
        `${model}  ${budget}  ${found.length}  ${geometricMean(found).toFixed(2)}  ${Math.max(...found).toFixed(2)}\n`,
      );
    }
  return lines.join('');
}
