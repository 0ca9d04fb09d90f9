/**
 * Kills of a Qdrant server, while points are sent to it as fast as it takes them and a machine's sessions begin and
 * end. It writes its segments to disk every second instead of every five, so that kills meet that as well.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openQdrantIndex } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { entry, THING_FIELDS, type Thing } from '../suite/index.ts';
import { clustered } from '../suite/index-data.ts';
import { Machine, query, seqsOf } from '../suite/machine.ts';
import { QdrantProcess } from '../suite/qdrant-server.ts';
import type { Kill } from './kills.ts';

const WORK_MS_MAX = 2500;
const AWAY_MS_MAX = 300;
/** Between two sessions, so that the points have their turn. */
const PAUSE_MS = 5;

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

export async function* qdrantLife(next: () => number, kills: number): AsyncGenerator<Kill, void, undefined> {
  const root = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
  const server = await QdrantProcess.start({
    environment: { QDRANT__STORAGE__OPTIMIZERS__FLUSH_INTERVAL_SEC: '1' },
  });
  const machine = new Machine({ id: 'm', server, collection: 'soak', root });
  const index = await openQdrantIndex<Thing>({
    ...{ url: server.url, collection: 'points', dim: 4, fields: THING_FIELDS, version: 1 },
  });
  const vectors = clustered(1000, 4, 9, 1);
  const acknowledged = new Set<number>();
  let point = 0;
  let session = 0;
  const sendPoints = async (): Promise<void> => {
    for (;;) {
      const batch = Array.from({ length: 1 + Math.floor(next() * 40) }, () => entry(point, vectors[point++ % 1000]!));
      try {
        await index.add(batch, { deadlineMs: 300 });
      } catch (error) {
        if (error instanceof KvError && /^(?:network|aborted|database)$/.test(error.code)) return;
        throw error;
      }
      for (const { id } of batch) acknowledged.add(id.seq);
    }
  };
  try {
    await machine.open();
    for (let kill = 0; kill < kills; kill++) {
      const afterMs = 5 + next() ** 2 * WORK_MS_MAX;
      let isOver = false;
      let failed = 0;
      const runSessions = async (): Promise<void> => {
        while (!isOver) {
          try {
            await machine.book.lookup(query);
            await machine.record((session += 2));
            // Now and then a process ends and another begins.
            if (next() < 0.02) {
              await machine.book.close();
              await machine.open();
            }
          } catch {
            failed++;
          }
          await pause(PAUSE_MS);
        }
      };
      const crash = pause(afterMs).then(() => server.kill());
      const sessions = runSessions();
      await Promise.all([crash, sendPoints()]);
      await pause(next() * AWAY_MS_MAX);
      const restarted = performance.now();
      await server.start();
      // The very first look after the restart.
      const points = new Set(await seqsOf(index, 'a'));
      isOver = true;
      await sessions;
      await machine.catchUp();
      const healedMs = performance.now() - restarted;
      const there = new Set(await machine.there());
      yield {
        afterMs,
        acknowledged: acknowledged.size,
        lost: [...acknowledged].filter((seq) => !points.has(seq)).length,
        failed,
        unhealed: machine.ends.filter((seq) => !there.has(seq)).length + Math.max(0, there.size - machine.ends.length),
        healedMs,
      };
    }
    await machine.book.close();
  } finally {
    await server.remove();
    rmSync(root, { recursive: true, force: true });
  }
}
