// The evaluation of the machines on the reference model: a session of each kind, with the machine of a layer and
// without. Fourteen of the arrows of a layer are taken at least, whatever the clock says of latency, those of trust
// and of a degraded layer among them.
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ablationTable, MACHINE_PARTS, type MachineRow, machine } from '../../lab/evaluate/machine.ts';
import { MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();

const row = (change: Partial<MachineRow>): MachineRow => ({
  ...{ model: 'm', text: 't', tokens: 2048, session: '25%', hasMachine: true, moves: [] },
  ...{ tried: 10, deciding: 10, ms: 100, kld: 0.5, ...change },
});

test('a session is set beside what it is without the machine, move by move', () => {
  const table = ablationTable([
    row({ moves: ['0/1/k/q8/rot4', '0/1/v/q8/rot4', '0/1/v/q8/rot4'] }),
    row({ hasMachine: false, moves: ['0/1/v/q8/rot4', '0/2/v/q8/rot4'], tried: 12, deciding: 20, kld: 0.25 }),
    row({ session: 'alone' }),
    row({ session: 'chat', kld: null, tried: 0 }),
    row({ session: 'chat', kld: null, tried: 0, hasMachine: false }),
  ]);
  expect(table.split('\n').slice(1)).toEqual([
    'm | 25% | 3 | 2 | 1.20 | 20% / 10% | 0.500',
    'm | chat | 0 | 0 | none | 10% / 10% | none',
    '',
  ]);
});

test('sessions take most arrows, and without the machine those that nothing crosses decide the same', async () => {
  const told: string[] = [];
  const json = join(folder(), 'machine.json');
  const request = {
    ...{
      models: [MODEL],
      parts: MACHINE_PARTS,
      kinds: ['chronicle'],
      passages: 1,
      tokens: 2048,
      dense: 'auto' as const,
      threads: 1,
    },
    ...{ cacheDir: folder(), json, say: (line: string): void => void told.push(line) },
  } as const;
  const text = await machine(request);
  const [layers, sides] = [...text.matchAll(/(\d+) of (\d+) arrows of/g)].map(([, taken]) => Number(taken));
  expect(layers).toBeGreaterThanOrEqual(14);
  expect(sides).toBeGreaterThanOrEqual(15);
  for (const arrow of ['quality: watched → degraded', 'quality: degraded → recovering', 'trust: unknown → trusted'])
    expect(text).toContain(`  ${arrow}  `);
  // Under a budget that binds, what opens tiers is crossed before the first move: the machine changes nothing there.
  expect(text).toMatch(/ \| 25% \| \d+ \| 0 \| 1\.00 \|/);
  expect(text).not.toMatch(/ \| taught, 25% \| \d+ \| 0 \|/);
  const before = told.length;
  await machine(request);
  expect(told.length, 'nothing is computed twice').toBe(before);
});
