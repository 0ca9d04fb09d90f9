// Checkpoints while a log is written, in real places: a file, an HTTP server that refuses at first, a PostgreSQL
// server, one that is away for good. The log never waits for them, says what they lack, and can be verified against
// what they have.

import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import postgres from 'postgres';
import { afterAll, describe, expect, it } from 'vitest';
import type { KvError } from '../../../native/index.ts';
import {
  type Checkpoint,
  headerKeyId,
  makeCheckpointKeys,
  openWitnessLog,
  parseCheckpoint,
  readCheckpoints,
  readLog,
  verifyAgainst,
  type WitnessLog,
} from '../../../witness/index.ts';
import { decodeHeader } from '../../../witness/segment.ts';
import { HAS_POSTGRES, PostgresProcess } from '../../suite/postgres-server.ts';
import { fill, scratchFolders } from './folder.ts';

const folder = scratchFolders();
const home = folder();
const key = join(home, 'audit.key');
const verifier = makeCheckpointKeys(key);
const servers: { close(): unknown }[] = [];
afterAll(() => {
  for (const server of servers) server.close();
});

const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 5));
};

const open = (dir: string, ...to: string[]): Promise<WitnessLog> =>
  openWitnessLog({ dir, anchor: { key, to }, segmentBytesMax: 5000 });

async function listen(answer: (body: string) => number): Promise<string> {
  const server: Server = createServer((request, response) => {
    let body = '';
    request.setEncoding('utf8').on('data', (text: string) => (body += text));
    request.on('end', () => response.writeHead(answer(body)).end());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  servers.push(server);
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/checkpoints`;
}

describe('a file', () => {
  it('gets a checkpoint at least every 64 entries, and the last when the log is closed', async () => {
    const [dir, path] = [join(folder(), 'log'), join(folder(), 'anchor.txt')];
    const log = await open(dir, path);
    expect(log.unanchoredEntries).toBe(0);
    for (let n = 0; n < 20; n++) {
      await fill(log, 16);
      // The window: what the next checkpoint will cover, and what was appended while the last one was on its way.
      await until(() => log.unanchoredEntries! < 64);
    }
    await fill(log, 3);
    await log.close();
    expect(log.unanchoredEntries).toBe(0);
    const checkpoints = readCheckpoints(path, [verifier]);
    expect(checkpoints.length).toBeGreaterThanOrEqual(6);
    expect(checkpoints.at(-1)!.size).toBe(323);
    expect(verifyAgainst(dir, checkpoints)).toMatchObject({ ok: true, anchor: { unanchoredEntries: 0 } });
    const header = decodeHeader(readFileSync(join(dir, '00000001.wal')));
    expect(header).toMatchObject({ keyId: headerKeyId(verifier) });
    // The next writer goes on where this one ended.
    const again = await open(dir, path);
    expect(again.unanchoredEntries).toBe(0);
    await fill(again, 1);
    expect(again.unanchoredEntries).toBe(1);
    // Nobody closes it and few entries come: a second later they are covered.
    await until(() => again.unanchoredEntries === 0);
    await again.close();
    expect(readCheckpoints(path, [verifier]).at(-1)!.size).toBe(324);
  });

  it('must lie outside of the state folder, and the key must be one', async () => {
    const dir = join(folder(), 'log');
    const refused = async (options: { key: string; to: string[] }): Promise<string> =>
      openWitnessLog({ dir, anchor: options }).then(
        () => 'opened',
        (error: KvError) => error.code,
      );
    for (const where of [join(dir, 'anchor.txt'), join(dir, '..', 'anchor.txt'), 'ftp://host/file', ''])
      expect(await refused({ key, to: [where] }), where).toBe('bad-config');
    expect(await refused({ key: join(home, 'none'), to: ['stdout'] })).toBe('not-found');
    expect(await refused({ key: `${key}.pub`, to: ['stdout'] })).toBe('bad-signature');
    expect((await openWitnessLog({ dir })).unanchoredEntries).toBeNull();
  });
});

describe('an HTTP server', () => {
  it('is tried again until it takes a checkpoint, while the log goes on and says that it is away', async () => {
    const taken: Checkpoint[] = [];
    let refusals = 2;
    const url = await listen((body) => {
      if (refusals-- > 0) return 503;
      taken.push(parseCheckpoint(body, [verifier], 'posted'));
      return 204;
    });
    const dir = join(folder(), 'log');
    const log = await open(dir, url);
    await fill(log, 70);
    await until(() => refusals < 2);
    const seq = log.append('s', 'note', { n: 'while it is away' });
    expect(await log.flush()).toBeGreaterThanOrEqual(seq!);
    expect(log.unanchoredEntries).toBeGreaterThan(70);
    await until(() => log.unanchoredEntries! <= 2);
    await log.close();
    expect(log.unanchoredEntries).toBe(0);
    expect(verifyAgainst(dir, taken)).toMatchObject({ ok: true, anchor: { unanchoredEntries: 0 } });
    const said = [...readLog(dir)].filter(({ session }) => session === '').map(({ body }) => body);
    expect(said).toEqual([
      { what: 'anchor', kind: 'http', isAway: true },
      { what: 'anchor', kind: 'http', isAway: false },
    ]);
    // Its address stands nowhere.
    expect(readFileSync(join(dir, '00000000.wal')).includes('127.0.0.1')).toBe(false);
  });

  it('that is away for good keeps nobody from closing, and the entries are counted', async () => {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    await new Promise((resolve) => server.close(resolve));
    const dir = join(folder(), 'log');
    const log = await open(dir, `http://127.0.0.1:${port}/`);
    await fill(log, 5);
    await log.close();
    expect(log.unanchoredEntries).toBeGreaterThanOrEqual(5);
    expect(verifyAgainst(dir, [])).toMatchObject({ ok: true });
  });
});

describe.skipIf(!HAS_POSTGRES)('a PostgreSQL server (needs PostgreSQL 15 or later)', () => {
  it('gets a row for each checkpoint', async () => {
    const server = await PostgresProcess.start();
    try {
      const dir = join(folder(), 'log');
      const log = await open(dir, server.url, join(folder(), 'also.txt'));
      await fill(log, 130);
      await log.close();
      expect(log.unanchoredEntries).toBe(0);
      const sql = postgres(server.url, { max: 1, onnotice: () => {} });
      const rows = await sql`select origin, size, note from palimpsest_checkpoints order by size`;
      await sql.end();
      const checkpoints = rows.map(({ note }) => parseCheckpoint(String(note), [verifier], 'row'));
      expect(checkpoints.at(-1)!.size).toBe(130);
      expect(rows.at(-1)).toMatchObject({ origin: `palimpsest/${log.id}/0`, size: '130' });
      expect(verifyAgainst(dir, checkpoints)).toMatchObject({ ok: true, anchor: { unanchoredEntries: 0 } });
    } finally {
      await server.remove();
    }
  });
});
