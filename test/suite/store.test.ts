/**
 * The contract of test/suite/store.ts over PGlite and PostgreSQL, and what the embedded database promises on top.
 * Nothing shorter shows that both keep it: PGlite starts a database in WebAssembly for each folder, which takes
 * seconds.
 */

import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PGlite } from '@electric-sql/pglite';
import postgres from 'postgres';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openAuditIndex } from '../../witness/index.ts';
import { placeEmptySql } from '../empty-sql.ts';
import { seeded } from '../random.ts';
import { isDealt } from '../tier.ts';
import { expectSame, storeSuite } from './store.ts';
import { writeSessions } from './store-data.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-store-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));
let folders = 0;
const fresh = (): string => mkdtempSync(join(root, `${folders++}-`));

const template = join(root, 'template');
beforeAll(() => placeEmptySql(join(template, 'sql')));
const sqlIn = (dir: string): string => {
  const sql = join(dir, 'sql');
  if (!existsSync(sql)) cpSync(join(template, 'sql'), sql, { recursive: true });
  return sql;
};

const ENDLESS = 'with recursive r as (select 1 as n union all select n from r) select count(*) from r';

/** Statements on the embedded database, past everything that guards it. */
async function tamper(dir: string, ...statements: string[]): Promise<void> {
  const database = await PGlite.create(join(dir, 'sql', 'pglite'));
  for (const sql of statements) await database.exec(sql);
  await database.close();
}

storeSuite('PGlite', { fresh, where: (dir) => ({ dir: sqlIn(dir) }), tamper });

// Set by scripts/with-postgres.mjs, which starts a server for the time of a command.
const url = process.env['PALIMPSEST_TEST_POSTGRES_URL'];
const server = url ?? '';
describe.skipIf(server === '')('on a server (needs PALIMPSEST_TEST_POSTGRES_URL: scripts/with-postgres.mjs)', () => {
  storeSuite('PostgreSQL', {
    fresh,
    where: () => ({ url: server }),
    tamper: async (_, ...statements) => {
      const sql = postgres(server, { max: 1, onnotice: () => {} });
      for (const statement of statements) await sql.unsafe(statement);
      await sql.end();
    },
  });

  describe('PostgreSQL', () => {
    // Tries two indexers of one log at once, as two machines with one server would.
    test('two indexers of one log do not disturb each other', async () => {
      const logDir = join(fresh(), 'log');
      await writeSessions(logDir, { seed: 40, sessions: 4, decisionsPerSession: 700 });
      const both = await Promise.all([
        openAuditIndex({ logDir, url: server }),
        openAuditIndex({ logDir, url: server }),
      ]);
      await Promise.all(both.map((index) => index.sync()));
      for (const index of both) await expectSame(index, logDir);
      await Promise.all(both.map((index) => index.close()));
    });

    test('a view in the place of a table is refused, and left alone', async () => {
      const logDir = join(fresh(), 'log');
      await writeSessions(logDir, { seed: 42, sessions: 1, decisionsPerSession: 1 });
      await (await openAuditIndex({ logDir, url: server })).close();
      const sql = postgres(server, { max: 1, onnotice: () => {} });
      await sql.unsafe(`alter table decisions rename to put_aside; create view decisions as ${ENDLESS}`);
      await expect(openAuditIndex({ logDir, url: server })).rejects.toThrow(/decisions is no plain table/);
      await sql.unsafe('drop view decisions; alter table put_aside rename to decisions');
      await sql.end();
      await (await openAuditIndex({ logDir, url: server })).close();
    });

    test('a question without end is ended', async () => {
      const logDir = join(fresh(), 'log');
      await writeSessions(logDir, { seed: 43, sessions: 1, decisionsPerSession: 1 });
      const index = await openAuditIndex({ logDir, url: server, statementMsMax: 10_000 });
      await expect(index.query(ENDLESS)).rejects.toThrow(/statement timeout/);
      expect((await index.query('select 1')).rows).toEqual([[1]]);
      await index.close();
    });

    test('a server that is not there is a KvError without the password', async () => {
      const logDir = join(fresh(), 'log');
      await writeSessions(logDir, { seed: 41, sessions: 1, decisionsPerSession: 1 });
      const error = await openAuditIndex({ logDir, url: 'postgres://me:secret@127.0.0.1:1/base' }).then(
        () => null,
        (e: unknown) => e as Error & { code: string },
      );
      expect(error).toMatchObject({ code: 'database' });
      expect(error!.message).not.toContain('secret');
      await expect(openAuditIndex({ logDir, url: 'mysql://x' })).rejects.toMatchObject({ code: 'bad-config' });
    });
  });
});

describe('PGlite', () => {
  // Tries a second opener: PGlite would let it in and lose rows.
  test('a folder is open once at a time', async () => {
    const dir = fresh();
    const logDir = join(dir, 'log');
    await writeSessions(logDir, { seed: 20, sessions: 1, decisionsPerSession: 5 });
    const index = await openAuditIndex({ logDir, dir: sqlIn(dir) });
    await expect(openAuditIndex({ logDir, dir: sqlIn(dir) })).rejects.toMatchObject({ code: 'locked' });
    await index.close();
    const again = await openAuditIndex({ logDir, dir: sqlIn(dir) });
    await expectSame(again, logDir);
    await again.close();
  });

  // Damages the folder in one of two ways, the other one with the next commit; it is built again from the log, and says
  // so.
  test('a broken folder is built again from the log', async () => {
    const dir = fresh();
    const logDir = join(dir, 'log');
    await writeSessions(logDir, { seed: 21, sessions: 2, decisionsPerSession: 50 });
    const notes: string[] = [];
    const open = () => openAuditIndex({ logDir, dir: sqlIn(dir), onNote: (line) => notes.push(line) });
    await (await open()).close();
    const data = join(dir, 'sql', 'pglite');
    const ways: (() => void)[] = [
      () => writeFileSync(join(data, 'PG_VERSION'), '3\n'),
      () => {
        // Every table of the database, overwritten with seeded noise.
        const base = join(data, 'base');
        const next = seeded(5);
        for (const database of readdirSync(base)) {
          for (const name of readdirSync(join(base, database))) {
            const path = join(base, database, name);
            const noise = Buffer.from(
              Array.from({ length: Math.min(8192, statSync(path).size) }, () => Math.floor(next() * 256)),
            );
            writeFileSync(path, noise);
          }
        }
      },
    ];
    const damages = ways.filter((_, place) => isDealt(place, ways.length));
    for (const [i, damage] of damages.entries()) {
      damage();
      const index = await open();
      expect(index.report.rebuilt, `damage ${i}`).toMatch(/does not open|refused/);
      await expectSame(index, logDir);
      await index.close();
      expect(notes).toHaveLength(i + 1);
    }
    const asked = await openAuditIndex({ logDir, dir: sqlIn(dir), rebuild: true, onNote: (line) => notes.push(line) });
    expect(asked.report.written).toBeGreaterThan(100);
    await expectSame(asked, logDir);
    await asked.close();
    expect(notes).toHaveLength(damages.length);
  });

  // Puts in the place of our tables what answers something else, or never: made again before any of it is read.
  const STRANGE = [
    ['a view that never ends', 'drop table decisions', `create view decisions as ${ENDLESS}`],
    [
      'a view for the migrations',
      'drop table drizzle.__drizzle_migrations',
      `create view drizzle.__drizzle_migrations as ${ENDLESS}`,
    ],
    ['a column more', 'alter table sessions add column prompt text'],
    ['a rule', 'create rule lie as on insert to decisions do instead nothing'],
    ['a table less', 'drop table experiences'],
  ];
  // Each makes the database again, which takes longer than all else here.
  test.each(STRANGE.filter((_, place) => isDealt(place, STRANGE.length)))(
    '%s in the database is noticed',
    async (_, ...statements) => {
      const dir = fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 23, sessions: 1, decisionsPerSession: 20 });
      await (await openAuditIndex({ logDir, dir: sqlIn(dir) })).close();
      await tamper(dir, ...statements);
      const index = await openAuditIndex({ logDir, dir: sqlIn(dir) });
      expect(index.report.rebuilt).toContain('is not ours');
      await expectSame(index, logDir);
      await index.close();
    },
  );

  test('a question without end is ended, and the next one is answered', async () => {
    const dir = fresh();
    const logDir = join(dir, 'log');
    await writeSessions(logDir, { seed: 24, sessions: 1, decisionsPerSession: 20 });
    await (await openAuditIndex({ logDir, dir: sqlIn(dir) })).close();
    const index = await openAuditIndex({ logDir, dir: sqlIn(dir), statementMsMax: 4000 });
    await expect(index.query(ENDLESS)).rejects.toThrow(/took longer than 4 s/);
    await index.close();
    const again = await openAuditIndex({ logDir, dir: sqlIn(dir) });
    expect(again.report).toMatchObject({ rebuilt: null, written: 0, wrong: 0 });
    await again.close();
  });

  test('without a folder the tables stand in memory', async () => {
    const logDir = join(fresh(), 'log');
    await writeSessions(logDir, { seed: 25, sessions: 1, decisionsPerSession: 20 });
    const index = await openAuditIndex({ logDir });
    await expectSame(index, logDir);
    await index.close();
  });

  // Kills a process in the middle of indexing; the next one takes over its lock and ends with the log's rows.
  test('a kill while indexing is made up for', async () => {
    const dir = fresh();
    const logDir = join(dir, 'log');
    const sql = sqlIn(dir);
    await writeSessions(logDir, { seed: 22, sessions: 20, decisionsPerSession: 400 });
    const script = `import { openAuditIndex } from ${JSON.stringify(new URL('../../witness/sql/index.ts', import.meta.url).href)};
      await openAuditIndex({ logDir: ${JSON.stringify(logDir)}, dir: ${JSON.stringify(sql)} });`;
    const path = join(dir, 'child.mts');
    writeFileSync(path, script);
    const child = spawn(process.execPath, ['--import', 'tsx', path], { stdio: 'ignore' });
    const ended = new Promise((resolve) => child.on('exit', resolve));
    // The child has the database open, and is at its migrations or its rows, when its lock is there.
    while (!existsSync(join(sql, 'writer.lock')) && child.exitCode === null)
      await new Promise((resolve) => setTimeout(resolve, 5));
    await new Promise((resolve) => setTimeout(resolve, 1500));
    child.kill('SIGKILL');
    await ended;
    const index = await openAuditIndex({ logDir, dir: sql });
    await expectSame(index, logDir);
    await index.close();
  });

  // Looks at what a process has loaded after importing the witness room: no database may be there.
  test('importing the room loads no database', () => {
    const room = JSON.stringify(new URL('../../witness/index.ts', import.meta.url).href);
    const script = `await import(${room});
      const { createRequire } = await import('node:module');
      const loaded = process.report.getReport().sharedObjects.concat(Object.keys(createRequire(import.meta.url).cache));
      const rss = process.memoryUsage().rss;
      console.log(JSON.stringify({ loaded: loaded.filter((f) => /pglite|postgres|drizzle/.test(f)), rss }));`;
    const path = join(fresh(), 'probe.mts');
    writeFileSync(path, script);
    const hooks = join(fresh(), 'hooks.mjs');
    // A module hook sees every ES module that is resolved.
    writeFileSync(
      hooks,
      `import { register } from 'node:module';
       const source = "export async function resolve(s, c, n) { if (/pglite|^postgres|drizzle/.test(s)) throw new Error('loaded ' + s); return n(s, c); }";
       register('data:text/javascript,' + encodeURIComponent(source));`,
    );
    const output = execFileSync(process.execPath, ['--import', 'tsx', '--import', hooks, path], { encoding: 'utf8' });
    expect(JSON.parse(output.trim().split('\n').at(-1)!).loaded).toEqual([]);
  });
});
