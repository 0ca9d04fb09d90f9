// The evaluation of planted faults on the reference model, with a neighbour that comes through a real Qdrant server:
// what is told, by what, and that a session whose codes are made again costs as much as a sound one.
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { FAULTS, type FaultRow, faults, faultTable } from '../../lab/evaluate/faults.ts';
import { HAS_BINARY, QdrantProcess, removeServers } from '../suite/qdrant-server.ts';
import { MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
let qdrantUrl: string | null = null;

beforeAll(async () => {
  if (HAS_BINARY) qdrantUrl = (await QdrantProcess.start()).url;
});
afterAll(removeServers);

test('what is planted is told by what sees it, and costs what is measured', async () => {
  const told: string[] = [];
  const request = {
    ...{ models: [MODEL], faults: FAULTS, kinds: ['chronicle'], passages: 1, tokens: 2048, qdrantUrl },
    ...{ dense: 'auto' as const, threads: 1, cacheDir: folder(), json: join(folder(), 'faults.json') },
    say: (line: string): void => void told.push(line),
  };
  const rows = await faults(request);
  const of = (fault: string): FaultRow => rows.find((row) => row.fault === fault)!;
  expect(rows.map(({ fault }) => fault)).toEqual(
    qdrantUrl === null ? FAULTS.filter((fault) => fault !== 'neighbour') : FAULTS,
  );
  expect(of('none')).toMatchObject({ cost: 1, after: null, by: null, trusted: 0 });
  expect(of('law')).toMatchObject({ after: 64, by: 'gain' });
  expect(of('codes')).toMatchObject({ by: 'codes' });
  expect(of('codes').after).toBeLessThanOrEqual(256);
  expect(of('mended')).toMatchObject({ after: null, by: null });
  expect(of('trials')).toMatchObject({ by: 'error' });
  for (const fault of ['law', 'mended']) expect(of(fault).cost, fault).toBeLessThanOrEqual(1.1);
  // Codes that are not made again cost more than those that are.
  expect(of('codes').cost).toBeGreaterThan(of('mended').cost!);
  expect(of('topic').cost).toBeGreaterThan(0);
  // Where the session had found no course on the server, nothing would have been planted.
  if (qdrantUrl !== null) expect(of('neighbour').cost).toBeGreaterThan(0);
  const before = told.length;
  await faults(request);
  expect(told.length, 'nothing is computed twice').toBe(before);
});

test('sessions stand together by model and fault', () => {
  const row = (change: Partial<FaultRow>): FaultRow => ({
    ...{ model: 'm', text: 't', tokens: 2048, fault: 'law', cost: 1, after: 64, by: 'gain', trusted: 0 },
    ...change,
  });
  const rows = [
    row({}),
    row({ text: 'u', cost: 4, after: 320, trusted: 128 }),
    row({ fault: 'codes', cost: null }),
    row({ fault: 'topic', cost: 0.5, after: null, by: null }),
  ];
  expect(faultTable(rows).split('\n').slice(1)).toEqual([
    'm | 2048 | law | 2 | 1 | gain | 2.00 | 4.00 | 1 | 128',
    'm | 2048 | topic | 1 | 0 | nobody | 0.50 | 0.50 | 0 | 0',
    '',
  ]);
});
