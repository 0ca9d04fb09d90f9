/**
 * `npm run bench -- begin` measures what it takes a session to find out at its beginning whose pages it can begin with,
 * where many are open: half of them have a text of 1,024 tokens in common, the others each one of its own. Processor
 * time of the model's thread, in microseconds.
 */
import { writeFileSync } from 'node:fs';
import { Meter } from '../../engine/metrics/meter.ts';
import { Session } from '../../engine/session/session.ts';
import { SharedMemory } from '../../engine/session/shared-memory.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { openPool } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { typical } from './measure.ts';
import { columns, fixed } from './table.ts';

export interface BeginRow {
  readonly sessions: number;
  readonly text: 'known' | 'unknown';
  readonly tokens: number;
  readonly foundTokens: number;
  readonly microseconds: number;
}

const COMMON_TOKENS = 1024;
const OWN_TOKENS = 140;
const SESSIONS = [1, 50, 200];
const BUDGET_BYTES = 2 ** 32;

/** Token ids that look like nothing in particular. */
function ids(count: number, seed: number): number[] {
  let word = seed;
  return Array.from({ length: count }, () => {
    word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
    return 10 + (word % 4000);
  });
}

export async function begin(
  say: (line: string) => void,
  { rounds, json }: { readonly rounds: number; readonly json: string | null },
): Promise<void> {
  const runtime = await Runtime.open({ model: 'reference', threads: 1 });
  const pool = openPool(BUDGET_BYTES);
  const sessions: Session[] = [];
  const prefixes = { key: new Uint8Array(32), keepsClosed: false };
  const shared = new SharedMemory({ pool, meter: new Meter(), form: null, prefixes, sessions: () => sessions });
  const thresholds = defaultThresholds(runtime.shape.layers);
  const open = (): Session => Session.open(runtime, { pool, shared, thresholds, log: null });
  const rows: BeginRow[] = [];
  const common = ids(COMMON_TOKENS, 1);
  for (const count of SESSIONS) {
    while (sessions.length < count) {
      const session = open();
      sessions.push(session);
      const own = ids(OWN_TOKENS, sessions.length + 1);
      await session.read(sessions.length % 2 === 1 ? [...common, ...own.slice(0, 9)] : own);
    }
    for (const text of ['unknown', 'known'] as const) {
      const times: number[] = [];
      let foundTokens = 0;
      for (let round = -1; round < rounds; round++) {
        const session = open();
        const asked = text === 'known' ? [...common, 7] : ids(COMMON_TOKENS + 1, 1000 + round);
        const start = performance.now();
        foundTokens = await shared.begin(session, asked, undefined);
        shared.hasRead(session);
        if (round >= 0) times.push(1000 * (performance.now() - start));
        session.close();
      }
      rows.push({ sessions: count, text, tokens: COMMON_TOKENS + 1, foundTokens, microseconds: typical(times) });
    }
  }
  say(`beginning with a text of ${COMMON_TOKENS + 1} tokens, reference model, microseconds`);
  const lines = rows.map((row) => [row.sessions, row.text, row.foundTokens, fixed(row.microseconds, 0)]);
  for (const line of columns(['open sessions', 'text', 'found', 'us'], lines)) say(`  ${line}`);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
  for (const session of sessions) session.close();
  shared.close();
  pool.close();
  await runtime.close();
}
