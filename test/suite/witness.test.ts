// An independent witness of C2SP (aics-witness, a package of Python) takes our checkpoints: it parses and cosigns them,
// goes on from one to the next by a proof of consistency, and refuses another history. A real server on loopback.
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { nodeFiles } from '../../witness/files.ts';
import {
  makeCheckpointKeys,
  openWitnessLog,
  parseCheckpoint,
  readLog,
  signLog,
  verifierText,
} from '../../witness/index.ts';
import { walkLog } from '../../witness/walk.ts';
import { freePort } from './qdrant-server.ts';

const program = process.env['PALIMPSEST_TEST_WITNESS'] ?? 'aics-witness';
const QUIET = { stdio: 'ignore' } as const;
const isHere = spawnSync(program, ['--version']).status === 0;
const root = mkdtempSync(join(tmpdir(), 'palimpsest-witness-'));
let server: ChildProcess | null = null;
afterAll(() => {
  server?.kill();
  rmSync(root, { recursive: true, force: true });
});

const sha256 = (...parts: Uint8Array[]): Buffer => createHash('sha256').update(Buffer.concat(parts)).digest();
const rootOf = (leaves: readonly Buffer[]): Buffer => {
  if (leaves.length === 1) return leaves[0]!;
  const split = 2 ** Math.floor(Math.log2(leaves.length - 1));
  return sha256(Buffer.of(1), rootOf(leaves.slice(0, split)), rootOf(leaves.slice(split)));
};
/** RFC 6962, section 2.1.2. */
function consistency(old: number, leaves: readonly Buffer[], isWhole = true): Buffer[] {
  if (old === leaves.length) return isWhole ? [] : [rootOf(leaves)];
  const split = 2 ** Math.floor(Math.log2(leaves.length - 1));
  const [left, right] = [leaves.slice(0, split), leaves.slice(split)];
  return old <= split
    ? [...consistency(old, left, isWhole), rootOf(right)]
    : [...consistency(old - split, right, false), rootOf(left)];
}

test.skipIf(!isHere)('our checkpoints are cosigned, and no other history is (needs aics-witness)', async () => {
  const [dir, key, config] = [join(root, 'log'), join(root, 'audit.key'), join(root, 'witness.json')];
  const verifier = makeCheckpointKeys(key);
  const append = async (folder: string, from: number, to: number): Promise<string> => {
    const log = await openWitnessLog({ dir: folder });
    for (let n = from; n < to; n++) log.append('s', 'note', { n });
    await log.close();
    return signLog(folder, key)[0]!;
  };
  const first = await append(dir, 0, 7);
  const [origin] = first.split('\n');
  const port = await freePort();
  execFileSync(
    program,
    ['init', '--config', config, '--name', 'witness.example/w', '--listen', `127.0.0.1:${port}`],
    QUIET,
  );
  execFileSync(program, ['add-log', '--config', config, '--origin', origin!, '--vkey', verifierText(verifier)], QUIET);
  // Our checkpoints also have the hash of the chain and a time, which C2SP allows and it has to be told of.
  const settings = readFileSync(config, 'utf8').replace('"origin"', '"extension_lines": true, "origin"');
  writeFileSync(config, settings);
  server = spawn(program, ['serve', '--config', config], { stdio: 'ignore' });
  const url = `http://127.0.0.1:${port}/add-checkpoint`;
  const submit = async (old: number, proof: readonly Buffer[], note: string): Promise<Response> =>
    fetch(url, {
      method: 'POST',
      body: `old ${old}\n${proof.map((hash) => `${hash.toString('base64')}\n`).join('')}\n${note}`,
    });
  await expect
    .poll(
      () =>
        submit(0, [], first).then(
          ({ status }) => status,
          () => 0,
        ),
      { timeout: 20_000 },
    )
    .toBe(200);
  const leavesOf = (): Buffer[] => [...walkLog(nodeFiles, dir)].map(({ leaf }) => Buffer.from(leaf));
  const second = await append(dir, 7, 20);
  const answer = await submit(7, consistency(7, leavesOf()), second);
  const cosignature = await answer.text();
  expect([answer.status, cosignature]).toEqual([
    200,
    expect.stringMatching(/^— witness\.example\/w [A-Za-z0-9+/=]+\n$/),
  ]);
  // With the line of the witness it is still our checkpoint.
  expect(parseCheckpoint(second + cosignature, [verifier], 'here')).toMatchObject({ size: 20 });
  const third = await append(dir, 20, 33);
  expect((await submit(20, consistency(19, leavesOf()), third)).status).toBe(422);
  expect((await submit(20, consistency(20, leavesOf()), third.replace('\n33\n', '\n34\n'))).status).toBe(403);
  expect((await submit(20, consistency(20, leavesOf()), third)).status).toBe(200);
  expect([...readLog(dir)]).toHaveLength(33);
});
