/**
 * What pages that come back are worth, measured as the lab does: every way answers the same questions, pages come back
 * in the ways that say so, a budget beside which they come back leaves all other pages as they are, and what stands in
 * the file is not computed again.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { type PromotionRow, promotion } from '../../lab/evaluate/promotion.ts';
import { TEXTS_DIR } from '../../lab/evaluate/texts.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const HAS_TEXTS = existsSync(TEXTS_DIR) || existsSync(join(import.meta.dirname, '..', '..', '..', 'shared', 'data'));
const folder = scratchFolders();

it.skipIf(!HAS_TEXTS)(
  'compares answers with and without, question by question (needs npm run fetch:texts)',
  async () => {
    const runtime = await Runtime.open({ model: 'reference', threads: 1 });
    const json = join(folder(), 'rows.json');
    const said: string[] = [];
    const request = {
      runtime,
      dense: 'auto' as const,
      json,
      caches: ['price@25%'],
      contexts: [1024],
      kinds: ['novel'],
      documents: [0],
      pages: [0, 2],
      isBeside: true,
      say: (line: string) => said.push(line),
    };
    try {
      const told = await promotion(request);
      for (const name of ['exact', 'as it is', '2 pages beside'])
        expect(told.split('\n').some((line) => line.trim().startsWith(name))).toBe(true);
      const file = JSON.parse(readFileSync(json, 'utf8')) as { rows: PromotionRow[] };
      const [exact, as, two] = file.rows as [PromotionRow, PromotionRow, PromotionRow];
      expect([exact, as, two].map(({ cache, pages }) => [cache, pages])).toEqual([
        ['exact', 0],
        ['price@25%', 0],
        ['price@25%', 2],
      ]);
      expect(as.sides).toEqual([0, 0, 0, 0, 0]);
      expect(Math.min(...two.sides)).toBeGreaterThan(0);
      expect(two.peakShare).toBeGreaterThan(as.peakShare);
      for (const { nats, recalled } of file.rows) expect([nats.length, recalled.length]).toEqual([5, 5]);
      expect(said.filter((line) => line.split(': ')[1]!.split(' ').length === 5).length).toBe(3);
      writeFileSync(json, readFileSync(json, 'utf8').replace('"recalled": [\n    false', '"recalled": [\n    true'));
      expect(await promotion(request)).toBe(told.replace(/^( *exact .*?) 0 /m, '$1 1 '));
    } finally {
      await runtime.close();
    }
  },
);
