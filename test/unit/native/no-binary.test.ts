// Without any binary: whoever needs one is told, while a log is written, verified and read as with one. Tried with the
// built package in a folder that has none, and where the binary is set aside, byte by byte against one that was written
// with it.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import { openWitnessLog, readLog, verifyLog } from '../../../witness/index.ts';
import { recordSession } from '../witness/session.ts';

const root = join(import.meta.dirname, '../../..');
const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bare-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const PROGRAM = `
import { nativeInfo } from './dist/native/index.js';
import { openWitnessLog, readLog, verifyLog } from './dist/witness/index.js';
const log = await openWitnessLog({ dir: 'log', encrypt: true });
for (let n = 0; n < 300; n++) log.append('s', 'note', { n });
await log.close();
let refusal = null;
try {
  nativeInfo();
} catch ({ code }) {
  refusal = code;
}
const { ok, entries } = verifyLog('log');
console.log(JSON.stringify({ refusal, ok, entries, last: [...readLog('log')].at(-1).body.n }));
`;

it('writes and verifies logs where no binary runs', () => {
  for (const name of ['dist', 'package.json']) cpSync(join(root, name), join(dir, name), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(dir, 'node_modules'));
  writeFileSync(join(dir, 'main.mjs'), PROGRAM);
  const { stdout, stderr } = spawnSync(process.execPath, ['main.mjs'], { cwd: dir, encoding: 'utf8' });
  expect(stderr).toBe('');
  expect(JSON.parse(stdout)).toEqual({ refusal: 'missing-dependency', ok: true, entries: 300, last: 299 });
});

it.each([true, false])('says of a log what it says with a binary, encrypted: %s', async (isEncrypted) => {
  const written: object[] = [];
  for (const [name, isUsed] of [
    ['with', true],
    ['without', false],
  ] as const) {
    useEntriesBinary(isUsed);
    const log = await openWitnessLog({
      dir: join(dir, `${name}-${isEncrypted}`),
      encrypt: isEncrypted,
      clock: () => 5,
    });
    recordSession(log, 's');
    await log.close();
  }
  for (const isUsed of [true, false]) {
    useEntriesBinary(isUsed);
    for (const name of ['with', 'without']) {
      const at = join(dir, `${name}-${isEncrypted}`);
      const { ok, entries, unopened } = verifyLog(at);
      written.push({ ok, entries, unopened, said: [...readLog(at)].map(({ seq, kind, body }) => [seq, kind, body]) });
    }
  }
  useEntriesBinary(true);
  expect(written[0]).toMatchObject({ ok: true, unopened: 0 });
  for (const other of written) expect(other).toEqual(written[0]);
});
