/**
 * `npm run evaluate -- packs`: what pages in the codec of a kernel pack are worth. Sessions of one budget read the same
 * texts with and without the pack `block6`, so they are compared at equal bytes.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SessionPack } from '../../engine/cache/pack-pages.ts';
import { compileModule, PackInstance } from '../../engine/packs/instance.ts';
import { instrumentModule } from '../../engine/packs/instrument.ts';
import { type CodecManifest, readManifest } from '../../engine/packs/manifest.ts';
import { sha256Of } from '../../engine/packs/store.ts';
import { type KvErrorCode, packageRoot, parseJson } from '../../native/index.ts';
import { passagesOf } from './passages.ts';
import { conditionsOf, Results } from './results.ts';
import { type BudgetsRequest, Scorer } from './score.ts';

export interface PackRow {
  readonly text: string;
  readonly tokens: number;
  readonly budget: string;
  /** Whether its pages may be in the pack. */
  readonly pack: boolean;
  readonly kld: number | null;
  readonly bits: number | null;
  /** Share of the sealed pages that are in the pack. */
  readonly share: number | null;
  readonly code: KvErrorCode | null;
}

export const PACK_BUDGETS = ['15%', '20%', '30%', '40%'];

const keyOf = ({ text, tokens, budget, pack }: Pick<PackRow, 'text' | 'tokens' | 'budget' | 'pack'>): string =>
  [text, tokens, budget, pack ? 'block6' : 'price'].join(' | ');

/** Computes the rows that the file lacks. → all, as a table */
export async function packs({
  runtime,
  dense,
  json,
  kinds,
  lengths,
  budgets,
  passages,
  say,
}: BudgetsRequest): Promise<string> {
  const results = Results.open<PackRow>(json, conditionsOf('packs', runtime, dense), keyOf);
  const scorer = new Scorer(runtime);
  const codec = block6();
  for (const tokens of lengths)
    for (const kind of kinds)
      for (const passage of passagesOf(runtime.model.tokenizer, kind, passages, tokens))
        for (const kvBudget of budgets)
          for (const pack of [false, true]) {
            const conditions = { text: passage.text, tokens, budget: kvBudget, pack };
            if (results.find(keyOf(conditions)) !== undefined) continue;
            let share: number | null = null;
            const { kld, bits, code } = await scorer.score(passage, {
              ...{ options: { kvBudget }, stateDir: null, isShipped: true, pack: pack ? codec : undefined },
              look: async ({ governed: { shape, kv, packs: held } }) => {
                share = (held?.count ?? 0) / (shape.layers * kv.table(0).pages);
              },
            });
            results.add({ ...conditions, kld, bits, share, code });
            say(`${keyOf(conditions)}: KLD ${kld?.toPrecision(3)}, ${bits?.toFixed(2)} bits ${code ?? ''}`);
          }
  return packTable(results.rows);
}

/** The codec that is committed here. */
function block6(): SessionPack {
  const folder = join(packageRoot(), 'packs', 'block6');
  const bytes = readFileSync(join(folder, 'block6.wasm'));
  const path = join(folder, 'manifest.json');
  const manifest = readManifest(parseJson(readFileSync(path), { code: 'bad-file', what: path }), path) as CodecManifest;
  const module = compileModule(instrumentModule(bytes));
  const { name, formats } = manifest;
  return {
    ...{ name, digest: sha256Of(bytes) },
    open: () => PackInstance.open(module, { fuelPerToken: formats[0]!.fuelPerToken }),
  };
}

function packTable(rows: readonly PackRow[]): string {
  const shown = (row: PackRow | undefined): string => row?.code ?? row?.kld?.toPrecision(3) ?? '–';
  const lines = rows
    .filter(({ pack }) => !pack)
    .map((without) => {
      const { text, tokens, budget } = without;
      const held = rows.find((row) => keyOf(row) === keyOf({ ...without, pack: true }));
      const ratio = without.kld === null || held?.kld == null ? '–' : (held.kld / without.kld).toPrecision(3);
      const share = held?.share == null ? '–' : `${Math.round(100 * held.share)}%`;
      return `| ${text} | ${tokens} | ${budget} | ${[without, held].map(shown).join(' | ')} | ${ratio} | ${share} |`;
    });
  const head = [
    '| text | tokens | budget | `price` | with `block6` | ratio | pages in it |',
    '|---|---|---|---|---|---|---|',
  ];
  return `${[...head, ...lines].join('\n')}\n`;
}
