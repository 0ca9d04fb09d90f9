// One contract for every place where servers keep what outlives them: a folder, and a PostgreSQL server.
import {
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import postgres from 'postgres';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openStore } from '../../../../engine/store/open.ts';
import type { Store } from '../../../../engine/store/store.ts';
import { seeded } from '../../../random.ts';
import { HAS_POSTGRES, PostgresProcess } from '../../../suite/postgres-server.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-kept-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** Bytes of which no two runs of a MiB are alike. */
function bytesOf(length: number, seed: number): Buffer {
  const random = seeded(seed);
  return Buffer.from(Uint8Array.from({ length }, () => random() * 256));
}

interface Place {
  readonly name: string;
  /** Past the store: changes a byte of what is kept, or cuts it. */
  change(kind: string): Promise<void>;
  cut(kind: string): Promise<void>;
}

function contract(placeOf: () => Place): void {
  const stores: Store[] = [];
  const open = async (): Promise<Store> => {
    const store = await openStore(placeOf().name);
    stores.push(store);
    return store;
  };
  afterAll(() => Promise.all(stores.map((store) => store.close())));

  test('gives another server the bytes that were put there', async () => {
    const [one, other] = [await open(), await open()];
    // Nothing, less than a row, exactly two, and more than two.
    for (const [n, length] of [0, 1, 1000, 2 ** 21, 2 ** 21 + 7].entries()) {
      const bytes = bytesOf(length, n);
      await one.put('conversation', `key ${n}`, bytes);
      expect((await other.first('conversation', [`key ${n}`]))?.bytes.equals(bytes)).toBe(true);
    }
    expect(await other.first('response', ['key 1'])).toBeNull();
    expect(await other.first('conversation', ['none', 'key'])).toBeNull();
    const found = await other.first('conversation', ['none', 'key 2', 'key 1']);
    expect(found?.key).toBe('key 2');
  });

  test('replaces and removes whole', async () => {
    const [one, other] = [await open(), await open()];
    await one.put('response', 'a', bytesOf(3 * 2 ** 20, 1));
    await other.put('response', 'a', bytesOf(10, 2));
    expect((await one.first('response', ['a']))?.bytes.equals(bytesOf(10, 2))).toBe(true);
    await one.remove('response', 'a');
    await one.remove('response', 'a');
    expect(await other.first('response', ['a'])).toBeNull();
  });

  test('what two servers put at once is that of one of them', async () => {
    const [one, other] = [await open(), await open()];
    const [a, b] = [bytesOf(2 ** 20 + 1, 3), bytesOf(2 ** 20 + 1, 4)];
    await Promise.all([one.put('response', 'both', a), other.put('response', 'both', b)]);
    const { bytes } = (await one.first('response', ['both']))!;
    expect(bytes.equals(a) || bytes.equals(b)).toBe(true);
  });

  test('has nothing of a session that was erased, whoever puts it there meanwhile or later', async () => {
    const [one, other] = [await open(), await open()];
    const keys = Array.from({ length: 12 }, (_, n) => `of gone ${n}`);
    const puts = keys.map((key, n) =>
      (n % 2 === 0 ? one : other).put('conversation', key, bytesOf(1000, n), ['here', 'gone']),
    );
    await one.erase('conversation', 'gone');
    await Promise.all(puts);
    await other.put('conversation', 'late', bytesOf(1000, 1), ['gone']);
    for (const key of [...keys, 'late']) expect(await other.first('conversation', [key])).toBeNull();
    // Those without it, and those of the other kind, are kept as before.
    await other.put('conversation', 'late', bytesOf(1000, 2), ['here']);
    expect((await one.first('conversation', ['late']))?.sessions).toEqual(['here']);
    await other.put('response', 'late', bytesOf(1000, 3), ['gone']);
    expect((await one.first('response', ['late']))?.sessions).toEqual(['gone']);
  });

  test('refuses what was changed, and what is cut off', async () => {
    const store = await open();
    for (const damage of ['change', 'cut'] as const) {
      await store.put('response', 'damaged', bytesOf(1000, 5));
      await placeOf()[damage]('response');
      await expect(store.first('response', ['damaged'])).rejects.toMatchObject({ code: 'checksum-mismatch' });
      await store.remove('response', 'damaged');
    }
  });
}

describe('a folder that is gone', () => {
  test('is away: it does not have nothing', async () => {
    const name = join(root, 'gone');
    const store = await openStore(name);
    await store.put('response', 'a', bytesOf(10, 1), ['one']);
    for (const leave of [() => {}, () => writeFileSync(name, 'no folder')]) {
      renameSync(name, `${name}-away`);
      leave();
      await expect(store.first('response', ['a'])).rejects.toMatchObject({ code: 'io' });
      await expect(store.remove('response', 'a')).rejects.toMatchObject({ code: 'io' });
      await expect(store.erase('response', 'one')).rejects.toMatchObject({ code: 'io' });
      await expect(store.put('response', 'b', bytesOf(10, 2))).rejects.toMatchObject({ code: 'io' });
      rmSync(name, { force: true });
      renameSync(`${name}-away`, name);
      expect((await store.first('response', ['a']))?.sessions).toEqual(['one']);
    }
    // What is there of one kind alone.
    rmSync(join(name, 'conversation'), { recursive: true });
    await expect(store.erase('conversation', 'one')).rejects.toMatchObject({ code: 'io' });
    expect(await store.erase('response', 'one')).toBe(1);
    await store.close();
  });
});

describe('a folder', () => {
  const name = join(root, 'kept');
  const each = (kind: string, damage: (path: string) => void): void => {
    for (const file of readdirSync(join(name, kind))) damage(join(name, kind, file));
  };
  contract(() => ({
    name,
    change: async (kind) =>
      each(kind, (path) => {
        const bytes = readFileSync(path);
        bytes[bytes.length - 1]! ^= 1;
        writeFileSync(path, bytes);
      }),
    cut: async (kind) => each(kind, (path) => truncateSync(path, statSync(path).size - 1)),
  }));

  test('is for its owner alone', async () => {
    const store = await openStore(name);
    await store.put('response', 'mine', bytesOf(1, 1));
    each('response', (path) => expect(statSync(path).mode & 0o077).toBe(0));
  });
});

describe.skipIf(!HAS_POSTGRES)('a PostgreSQL server (needs PostgreSQL 15 or later)', () => {
  let server: PostgresProcess;
  beforeAll(async () => {
    server = await PostgresProcess.start();
  });
  afterAll(() => server.remove());
  const run = async (sql: string, kind: string): Promise<void> => {
    const connection = postgres(server.url, { max: 1, onnotice: () => {} });
    await connection.unsafe(sql, [kind]);
    await connection.end();
  };
  contract(() => ({
    name: server.url,
    change: (kind) =>
      run('update kept_chunks set bytes = set_byte(bytes, 0, get_byte(bytes, 0) # 1) where kind = $1', kind),
    cut: (kind) => run('delete from kept_chunks where kind = $1', kind),
  }));

  test('servers that start at once make its tables once', async () => {
    for (let round = 0; round < 3; round++) {
      const connection = postgres(server.url, { max: 1, onnotice: () => {} });
      await connection.unsafe(`create database fresh_${round}`);
      await connection.end();
      const url = server.url.replace(/postgres$/, `fresh_${round}`);
      const stores = await Promise.all([1, 2, 3, 4].map(() => openStore(url)));
      await stores[0]!.put('response', 'a', bytesOf(10, 1));
      expect(await stores[3]!.first('response', ['a'])).not.toBeNull();
      for (const store of stores) await store.close();
    }
  });

  test('what is older than it may be is removed with its bytes', async () => {
    const store = await openStore(server.url);
    await store.put('response', 'old', bytesOf(10, 1));
    await run("update kept set kept_ms = 0 where kind = $1 and key = 'old'", 'response');
    await store.put('response', 'new', bytesOf(10, 2));
    expect(await store.first('response', ['old'])).toBeNull();
    expect(await store.first('response', ['new'])).not.toBeNull();
    const connection = postgres(server.url, { max: 1, onnotice: () => {} });
    expect(
      await connection`select key from kept_chunks where kind = 'response' and key in ('old', 'new')`,
    ).toHaveLength(1);
    await connection.end();
    await store.close();
  });
});
