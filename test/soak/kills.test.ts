// Kills a Qdrant server, a PostgreSQL server, `palimpsest run` itself, an engine of sixteen sessions, one with pages in
// a kernel pack, and a process that only writes its log, at random moments: nothing that was acknowledged
// is lost, no session fails, and the indexes heal. A few kills of each; `npm run soak -- kills` asks for 200, and
// PALIMPSEST_SEED repeats a seed. Nothing shorter shows what a server or a process leaves behind when it is killed;
// each has to start, work and start again.
import { existsSync } from 'node:fs';
import { afterAll, expect, test } from 'vitest';
import { HAS_POSTGRES } from '../suite/postgres-server.ts';
import { HAS_BINARY, removeServers } from '../suite/qdrant-server.ts';
import { MAIN } from '../suite/run-process.ts';
import { isWhole, type Row, soakKills } from './kills.ts';

const seed = Number(process.env['PALIMPSEST_SEED'] ?? Date.now() % 1e9);
const told = `seed ${seed}`;
afterAll(removeServers);

async function killed(victim: string, count: number): Promise<Row[]> {
  const rows = await soakKills({ victims: [victim], count, seed, file: null });
  expect(rows, told).toHaveLength(count);
  expect(
    rows.filter((row) => !isWhole([row])),
    told,
  ).toEqual([]);
  // How much, is how fast the machine is: nothing at all would prove nothing.
  expect(Math.max(...rows.map(({ acknowledged }) => acknowledged)), told).toBeGreaterThan(0);
  return rows;
}

test.skipIf(!HAS_BINARY)('a Qdrant server (needs ../shared/bin/qdrant)', () => killed('qdrant', 6));
test.skipIf(!HAS_POSTGRES)('a PostgreSQL server (needs PostgreSQL 15 or later)', () => killed('postgres', 5));
test('palimpsest run', () => {
  expect(existsSync(MAIN), 'dist is built').toBe(true);
  return killed('process', 10);
});
test('an engine of sixteen sessions, most of them parked', () => killed('engine', 3));
test('an engine whose sessions have pages in a kernel pack', () => killed('pack', 3));
test('a process that writes its log', () => killed('log', 40));
