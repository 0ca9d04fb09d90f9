/**
 * The contract of test/suite/index.ts over a real Qdrant server, and what only a server can do: refuse a key, be of
 * another version, answer late or not at all, have a full disk, be three. `../shared/bin/qdrant` is started for it, or
 * QDRANT_URL (with QDRANT_API_KEY) names one for the contract alone.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openQdrantIndex, pointId, QdrantServer, type VectorIndex } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { entry, refusal, THING_FIELDS, type Thing, vectorIndexSuite } from './index.ts';
import { clustered } from './index-data.ts';
import { freePort, HAS_BINARY, Line, QdrantProcess, removeServers } from './qdrant-server.ts';

const given = process.env['QDRANT_URL'];
const KEY = given === undefined ? 'key-of-the-tests' : process.env['QDRANT_API_KEY'];
let server: QdrantProcess | null = null;
let url = given ?? '';
const run = `test-${process.pid}-${Date.now()}`;
let collections = 0;

beforeAll(async () => {
  if (given !== undefined || !HAS_BINARY) return;
  server = await QdrantProcess.start({ apiKey: KEY! });
  url = server.url;
});
afterAll(async () => {
  if (given !== undefined)
    for (let n = 0; n < collections; n++)
      for (const dim of [1, 2, 3, 4, 10])
        await fetch(`${url}/collections/${run}-${n}-v1-d${dim}`, {
          method: 'DELETE',
          headers: { 'api-key': KEY ?? '' },
        });
  await removeServers();
});

const open = (dim: number, change: object = {}): Promise<VectorIndex<Thing>> =>
  openQdrantIndex<Thing>({
    url,
    ...(KEY === undefined ? {} : { apiKey: KEY }),
    collection: `${run}-${collections++}`,
    dim,
    fields: THING_FIELDS,
    version: 1,
    ...change,
  });

describe.skipIf(given === undefined && !HAS_BINARY)('on a server (needs QDRANT_URL or ../shared/bin/qdrant)', () => {
  vectorIndexSuite('qdrant', (dim, fields) => open(dim, { fields }));
});

test('the name of a point follows from log and seq, and is a UUID', () => {
  const ids = [0, 1, 2 ** 32, 2 ** 52 + 1].flatMap((seq) => ['a', 'b', ''].map((log) => pointId({ log, seq })));
  for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  expect(new Set(ids).size).toBe(ids.length);
  // Other machines and later versions must make the same.
  expect(pointId({ log: 'a', seq: 1 })).toBe('5afff655-e64b-8df7-a963-1e2bb06aeabd');
});

test('an address that cannot be used is refused before any call', async () => {
  for (const bad of [
    ...['', 'localhost:6333', 'ftp://x', 'http://user:pass@x', 'http://x?key=1', 'http://x#y'].map((address) => ({
      url: address,
    })),
    ...[
      { apiKey: 'with space' },
      { apiKey: 'line\nbreak' },
      { apiKey: '' },
      { collection: '../x' },
      { collection: '' },
    ],
  ])
    expect((await refusal(() => open(2, { url: 'http://127.0.0.1:1', ...bad }))).code, JSON.stringify(bad)).toBe(
      'bad-config',
    );
});

/** Something that speaks HTTP and is no Qdrant that can be used. */
async function stranger(answer: (path: string) => { status: number; body: string; headers?: Record<string, string> }) {
  const seen: { path: string; key: string | undefined; encoding: unknown }[] = [];
  const http = createServer((request, response) => {
    const { 'api-key': key, 'accept-encoding': encoding } = request.headers;
    seen.push({ path: request.url!, key: key as string | undefined, encoding });
    const { status, body, headers = {} } = answer(request.url!);
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(body);
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  const { port } = http.address() as { port: number };
  return { url: `http://127.0.0.1:${port}`, port, seen, close: () => new Promise((resolve) => http.close(resolve)) };
}

test('another version, other programs and redirects are refused', async () => {
  const versions = await stranger(() => ({ status: 200, body: '{"title":"qdrant","version":"1.9.7"}' }));
  for (const [what, code] of [['1.9.7', 'unsupported']] as const) {
    const index = await open(2, { url: versions.url });
    const error = await refusal(() => index.count());
    expect([error.code, error.message]).toEqual([code, expect.stringContaining(what)]);
  }
  const page = await stranger(() => ({ status: 200, body: '<html>' }));
  expect((await refusal(async () => (await open(2, { url: page.url })).count({ deadlineMs: 500 }))).code).toMatch(
    /unsupported|network/,
  );
  // The key must not follow a redirect to another host.
  const away = await stranger(() => ({ status: 302, body: '', headers: { location: `${page.url}/` } }));
  const before = page.seen.length;
  expect(
    (await refusal(async () => (await open(2, { url: away.url, apiKey: 'secret' })).count({ deadlineMs: 500 }))).code,
  ).toMatch(/network|aborted/);
  expect(page.seen.length).toBe(before);
  // A compressed answer would take 40 ms longer on every fourth call.
  expect(away.seen[0]).toMatchObject({ key: 'secret', encoding: 'identity' });
  for (const one of [versions, page, away]) await one.close();
});

test('a busy server is asked again', async () => {
  let calls = 0;
  const busy = await stranger(() =>
    ++calls < 3
      ? { status: 429, body: '{"status":{"error":"slow down"}}', headers: { 'retry-after': '30' } }
      : { status: 200, body: '{"title":"qdrant","version":"1.18.3"}' },
  );
  expect(await (await QdrantServer.open({ url: busy.url })).version()).toBe('1.18.3');
  expect(calls).toBe(3);
  await busy.close();
});

test('nobody at that address is said soon', async () => {
  const index = await open(2, { url: `http://127.0.0.1:${await freePort()}` });
  const error = await refusal(() => index.count());
  expect([error.code, error.message]).toEqual(['network', expect.stringContaining('ECONNREFUSED')]);
  expect((await refusal(() => index.count({ deadlineMs: 30 }))).code).toMatch(/network|aborted/);
});

describe.skipIf(!HAS_BINARY)('a Qdrant server (needs ../shared/bin/qdrant)', () => {
  test('refuses another key, and says what to do', async () => {
    const index = await open(2, { apiKey: 'wrong' });
    const error = await refusal(() => index.count());
    expect([error.code, error.message, error.hint]).toEqual([
      'bad-config',
      expect.stringContaining('refuses the key'),
      expect.stringContaining('API_KEY'),
    ]);
    expect(JSON.stringify([error.message, error.values])).not.toContain('wrong');
  });

  // Several machines begin at once with a collection that is not there yet.
  test('is prepared by whoever comes first', async () => {
    const collection = `${run}-${collections++}`;
    const machines = await Promise.all(Array.from({ length: 6 }, () => open(3, { collection })));
    await Promise.all(
      machines.map((index, log) => index.add([{ ...entry(1, [log, 0, 0]), id: { log: `m${log}`, seq: 1 } }])),
    );
    for (const index of machines) expect(await index.count()).toBe(6);
    expect(await machines[0]!.search([5, 0, 0], 1)).toMatchObject([{ id: { log: 'm5', seq: 1 } }]);
    // Another version of the axes never meets them, and another length neither.
    for (const change of [{ version: 2 }, { dim: 4 }])
      expect(await (await open(3, { collection, ...change })).count()).toBe(0);
    const headers = { 'api-key': KEY!, 'content-type': 'application/json' };
    await fetch(`${url}/collections/${run}-other-v1-d3`, {
      method: 'PUT',
      headers,
      body: '{"vectors":{"size":3,"distance":"Cosine"}}',
    });
    const other = await open(3, { collection: `${run}-other` });
    expect((await refusal(() => other.count())).code).toBe('bad-index');
  });

  // Whoever has the key may store anything: what does not pass the check is passed over, and filters are answered by
  // indexes.
  test('holds points of any kind without harm', async () => {
    const collection = `${run}-${collections++}`;
    const check = (payload: Thing): Thing => {
      if (typeof payload.name !== 'string') throw new KvError('bad-argument', 'no name');
      return payload;
    };
    const index = await open(2, { collection, check });
    await index.add([entry(1, [0, 0])]);
    const name = `${collection}-v1-d2`;
    const headers = { 'api-key': KEY!, 'content-type': 'application/json' };
    const strange = [
      { id: 1, vector: [0, 0], payload: {} },
      { id: 2, vector: [0, 0], payload: { log: 'a', seq: -1, payload: { name: 'x' } } },
      { id: 3, vector: [0, 0], payload: { log: 'a', seq: 3, payload: { name: 7 } } },
      { id: 4, vector: [0, 0], payload: { log: 'a', seq: 4, payload: 'text' } },
    ];
    await fetch(`${url}/collections/${name}/points?wait=true`, {
      method: 'PUT',
      headers,
      body: JSON.stringify({ points: strange }),
    });
    expect((await index.search([0, 0], 10)).map(({ id }) => id.seq)).toEqual([1]);
    expect((await index.list()).items.map(({ id }) => id.seq)).toEqual([1]);
    const told = (await (await fetch(`${url}/collections/${name}`, { headers })).json()) as {
      result: { payload_schema: object };
    };
    expect(Object.keys(told.result.payload_schema).sort()).toEqual(
      ['log', ...Object.keys(THING_FIELDS).map((field) => `payload.${field}`), 'seq'].sort(),
    );
  });

  test('that answers late misses the deadline, and cut lines are tried again', async () => {
    const line = await Line.open(server!.port);
    const index = await open(2, { url: line.url });
    await index.add([entry(1, [0, 0])]);
    line.delayMs = 1500;
    const start = performance.now();
    expect((await refusal(() => index.search([0, 0], 1, { deadlineMs: 200 }))).code).toBe('aborted');
    expect(performance.now() - start).toBeLessThan(1000);
    const stop = new AbortController();
    setTimeout(() => stop.abort(), 100);
    expect((await refusal(() => index.count({ signal: stop.signal }))).code).toBe('aborted');
    line.delayMs = 0;
    line.bytesMax = 60;
    const taken = line.taken;
    expect((await refusal(() => index.count({ deadlineMs: 3000 }))).code).toBe('network');
    expect(line.taken - taken).toBeGreaterThan(2);
    setTimeout(() => (line.bytesMax = Number.POSITIVE_INFINITY), 150);
    expect(await index.count()).toBe(1);
    await line.close();
  });

  test('whose disk was replaced is prepared again', async () => {
    const mortal = await QdrantProcess.start();
    const index = await open(2, { url: mortal.url, apiKey: undefined });
    await index.add([entry(1, [0, 0])]);
    await mortal.kill();
    rmSync(join(mortal.dir, 'data'), { recursive: true });
    await mortal.start();
    expect(await index.count()).toBe(0);
    await index.add([entry(2, [0, 0])]);
    expect(await index.count()).toBe(1);
    await mortal.remove();
  });

  const canMount = HAS_BINARY && spawnSync('unshare', ['-rm', 'true']).status === 0;
  // Its disk is a mount of its own that is filled from outside, by way of its process.
  test.skipIf(!canMount)(
    'whose disk is full refuses, and takes it when there is room again (needs unshare)',
    async () => {
      const small = await QdrantProcess.start({
        diskBytes: 160 * 2 ** 20,
        environment: { QDRANT__STORAGE__WAL__WAL_CAPACITY_MB: '1' },
      });
      const index = await open(64, { url: small.url, apiKey: undefined });
      await index.add([entry(0, new Array(64).fill(0))]);
      const fill = join('/proc', String(small.pid), 'root', small.dir, 'data', 'ballast');
      spawnSync('sh', ['-c', `dd if=/dev/zero of='${fill}' bs=64k 2>/dev/null`]);
      let added = 1;
      const failed = await refusal(async () => {
        for (; added < 200_000; added += 500)
          await index.add(
            clustered(500, 64, 3, added).map((vector, i) => entry(added + i, vector)),
            { deadlineMs: 5000 },
          );
      });
      expect(failed.code).toMatch(/^(database|network|aborted)$/);
      rmSync(fill);
      const late = clustered(500, 64, 3, added).map((vector, i) => entry(added + i, vector));
      for (let tries = 0; tries < 40; tries++) {
        try {
          await index.add(late, { deadlineMs: 5000 });
          break;
        } catch (error) {
          expect((error as { code: string }).code).toMatch(/^(database|network|aborted)$/);
        }
      }
      expect(await index.count({ deadlineMs: 20_000 })).toBe(added + 500);
      await small.remove();
    },
  );

  const hasOpenssl = spawnSync('openssl', ['version']).status === 0;
  // A child whose trust in certificates is widened by one, because Node reads that when it starts.
  test.skipIf(!hasOpenssl)(
    'behind TLS is reached by whoever trusts its certificate, and by nobody else (needs openssl)',
    async () => {
      const files = server!.dir;
      const [cert, key] = [join(files, 'cert.pem'), join(files, 'key.pem')];
      const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1'];
      execFileSync(
        'openssl',
        ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-keyout', key, '-out', cert, ...subject],
        { stdio: 'ignore' },
      );
      const safe = await QdrantProcess.start({
        scheme: 'https',
        apiKey: 'k',
        environment: { QDRANT__SERVICE__ENABLE_TLS: 'true', QDRANT__TLS__CERT: cert, QDRANT__TLS__KEY: key },
      });
      const distrusted = await open(2, { url: safe.url, apiKey: 'k' });
      expect(await refusal(() => distrusted.count())).toMatchObject({
        code: 'network',
        message: expect.stringMatching(/SELF_SIGNED|certificate/i),
      });
      const program = join(files, 'tls.mts');
      const module = join(import.meta.dirname, '..', '..', 'memory', 'index.ts');
      writeFileSync(
        program,
        `import { openQdrantIndex } from ${JSON.stringify(module)};
const index = await openQdrantIndex({ url: ${JSON.stringify(safe.url)}, apiKey: 'k', dim: 2, fields: {}, version: 1 });
await index.add([{ id: { log: 'a', seq: 1 }, vector: [1, 2], payload: {} }]);
console.log(await index.count());
`,
      );
      const env = { ...process.env, NODE_EXTRA_CA_CERTS: cert };
      expect(
        execFileSync(process.execPath, ['--import', 'tsx', program], {
          env,
          cwd: join(import.meta.dirname, '..', '..'),
          encoding: 'utf8',
        }),
      ).toBe('1\n');
      await safe.remove();
    },
  );

  // Three servers that share every shard: the collection is written through one and asked through the others, also when
  // one is dead.
  test('of three machines answers while one of them is dead', async () => {
    const ports = [await freePort(), await freePort(), await freePort()];
    const nodes: QdrantProcess[] = [];
    for (const port of ports)
      nodes.push(
        await QdrantProcess.start({
          environment: { QDRANT__CLUSTER__ENABLED: 'true', QDRANT__CLUSTER__P2P__PORT: String(port) },
          flags: [
            '--uri',
            `http://127.0.0.1:${port}`,
            ...(nodes.length === 0 ? [] : ['--bootstrap', `http://127.0.0.1:${ports[0]}`]),
          ],
        }),
      );
    const collection = `${run}-three`;
    const body = JSON.stringify({
      vectors: { size: 3, distance: 'Euclid' },
      shard_number: 3,
      replication_factor: 3,
      write_consistency_factor: 2,
    });
    const headers = { 'content-type': 'application/json' };
    for (let tries = 0; ; tries++) {
      const made = await fetch(`${nodes[0]!.url}/collections/${collection}-v1-d3`, { method: 'PUT', headers, body });
      if (made.ok) break;
      expect(tries, await made.text()).toBeLessThan(50);
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    const indexes = await Promise.all(nodes.map((node) => open(3, { url: node.url, apiKey: undefined, collection })));
    const entries = clustered(900, 3, 5, 8).map((vector, seq) => entry(seq, vector));
    await indexes[0]!.add(entries.slice(0, 600), { deadlineMs: 30_000 });
    for (const index of indexes) expect(await index.count({ deadlineMs: 30_000 })).toBe(600);
    await nodes[2]!.kill();
    await indexes[1]!.add(entries.slice(600), { deadlineMs: 60_000 });
    for (const index of indexes.slice(0, 2)) {
      expect(await index.count({ deadlineMs: 60_000 })).toBe(900);
      expect((await index.search(entries[777]!.vector, 1, { deadlineMs: 60_000 }))[0]!.id.seq).toBe(777);
    }
    await nodes[2]!.start();
    let healed = 0;
    for (let tries = 0; tries < 100 && healed < 900; tries++) {
      healed = await indexes[2]!.count({ deadlineMs: 10_000 }).catch(() => 0);
      if (healed < 900) await new Promise((resolve) => setTimeout(resolve, 200));
    }
    expect(healed).toBe(900);
    for (const node of nodes) await node.remove();
  });
});
