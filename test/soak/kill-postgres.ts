/**
 * Kills of a PostgreSQL server that holds the tables of a log, while sessions are logged and the tables take them in.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import postgres from 'postgres';
import { KvError } from '../../native/index.ts';
import { type AuditIndex, openAuditIndex, readLog } from '../../witness/index.ts';
import { PostgresProcess } from '../suite/postgres-server.ts';
import { writeSessions } from '../suite/store-data.ts';
import type { Kill } from './kills.ts';

const WORK_MS_MAX = 1500;
const OPEN_TRIES = 100;

const isRefusal = (error: unknown): boolean => error instanceof KvError && error.code === 'database';

export async function* postgresLife(next: () => number, kills: number): AsyncGenerator<Kill, void, undefined> {
  const root = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
  const logDir = join(root, 'log');
  const server = await PostgresProcess.start();
  const decisions = (): number => [...readLog(logDir, { kinds: ['decision'] })].length;
  let acknowledged = 0;
  let written = 0;
  const write = async (): Promise<void> => {
    const plan = { sessions: 1 + Math.floor(next() * 3), decisionsPerSession: 1 + Math.floor(next() * 60) };
    await writeSessions(logDir, { ...plan, seed: written, prefix: `w${written++}-`, leaveOpen: next() < 0.2 });
  };
  try {
    await write();
    for (let kill = 0; kill < kills; kill++) {
      const afterMs = 5 + next() * WORK_MS_MAX;
      let index: AuditIndex | null = null;
      let failed = 0;
      let isDown = false;
      const crash = new Promise((resolve) => setTimeout(resolve, afterMs)).then(async () => {
        await server.kill();
        isDown = true;
      });
      while (!isDown) {
        // A session logs whatever becomes of the tables.
        await write().catch(() => failed++);
        const told = decisions();
        try {
          if (index === null) index = await openAuditIndex({ logDir, url: server.url });
          else await index.sync();
          acknowledged = told;
        } catch (error) {
          if (!isRefusal(error)) throw error;
          await index?.close();
          index = null;
        }
      }
      await crash;
      await index?.close();
      await write().catch(() => failed++);
      const restarted = performance.now();
      await server.start();
      const lost = Math.max(0, acknowledged - (await rowsOn(server.url)));
      const { entries, wrong } = await reopened(logDir, server.url);
      const healedMs = performance.now() - restarted;
      const again = await reopened(logDir, server.url);
      // What comparing every row once more still finds was not healed.
      const unhealed = wrong + again.wrong + again.written + Math.abs(entries - [...readLog(logDir)].length);
      yield { afterMs, acknowledged, lost, failed, unhealed, healedMs };
      acknowledged = decisions();
    }
  } finally {
    await server.remove();
    rmSync(root, { recursive: true, force: true });
  }
}

/** Rows of decisions, counted past the index, before it is opened again. */
async function rowsOn(url: string): Promise<number> {
  const sql = postgres(url, { max: 1, fetch_types: false, onnotice: () => {} });
  try {
    const [table] = await sql`select to_regclass('decisions') is not null as made`;
    if (table!['made'] !== true) return 0;
    const [row] = await sql`select count(*)::int as rows from decisions`;
    return row!['rows'] as number;
  } finally {
    await sql.end();
  }
}

async function reopened(logDir: string, url: string): Promise<AuditIndex['report']> {
  for (let tries = 1; ; tries++) {
    try {
      const index = await openAuditIndex({ logDir, url });
      await index.close();
      return index.report;
    } catch (error) {
      if (!isRefusal(error) || tries === OPEN_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
