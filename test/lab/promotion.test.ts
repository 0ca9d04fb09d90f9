/**
 * What pages that come back are worth, measured as the lab does: every way answers the same questions, pages come back
 * in the ways that say so, and a budget beside which they come back leaves all other pages as they are.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { promotion } from '../../lab/evaluate/promotion.ts';
import { TEXTS_DIR } from '../../lab/evaluate/texts.ts';

const HAS_TEXTS = existsSync(TEXTS_DIR) || existsSync(join(import.meta.dirname, '..', '..', '..', 'shared', 'data'));

it.skipIf(!HAS_TEXTS)(
  'compares answers with and without, question by question (needs npm run fetch:texts)',
  async () => {
    const runtime = await Runtime.open({ model: 'reference', threads: 1 });
    const request = {
      runtime,
      caches: ['price@25%'],
      contexts: [1024],
      kinds: ['novel'],
      documents: [0],
      pages: [0, 2],
    };
    const said: string[] = [];
    try {
      const told = await promotion({ ...request, isBeside: true, say: (line) => said.push(line) });
      const [exact, as, two] = ['exact', 'as it is', '2 pages'].map((name) =>
        told.split('\n').find((line) => line.trim().startsWith(name)),
      );
      expect([exact, as, two].every((line) => line !== undefined)).toBe(true);
      const cells = (line: string): string[] => line.trim().split(/ {2,}/);
      expect(Number(cells(as!)[2])).toBe(0);
      expect(Number(cells(two!)[3])).toBeGreaterThan(0);
      expect(Number.parseFloat(cells(two!)[4]!)).toBeGreaterThan(Number.parseFloat(cells(as!)[3]!));
      expect(said.filter((line) => line.split(': ')[1]!.split(' ').length === 5).length).toBe(3);
    } finally {
      await runtime.close();
    }
  },
);
