// Fetches models from a hub of the test's own, a real HTTP server that cuts, stalls, lies about lengths, damages and
// refuses. Every failure is one KvError that says what to do, nothing half-written is ever taken for a model, and a
// download that was cut goes on where it ended.

import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { fetchFromHub, localModel, obtainModel } from '../../../../../engine/transformer/hub/obtain.ts';
import type { HubSettings } from '../../../../../engine/transformer/hub/settings.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import type { LoadProgress } from '../../../../../engine/transformer/types.ts';
import { seeded } from '../../../../random.ts';
import { refused } from '../../../../refusal.ts';
import { temporaryFolder, tinyGguf, tinyHfConfig, tinySafetensors, tinyTokenizerJson } from '../model-files.ts';
import { HubServer, settingsFor, sha256, type Trick } from './hub-server.ts';

const folder = temporaryFolder();
const gguf = tinyGguf(seeded(1));
const NAME = 'hf:org/tiny-GGUF:tiny.Q8_0.gguf';
const HALF = Math.floor(gguf.length / 2);
let hub: HubServer;
let settings: HubSettings;
let commit: string;
let run = 0;

beforeAll(async () => {
  hub = await HubServer.open();
  commit = hub.add('org/tiny-GGUF', { 'tiny.Q8_0.gguf': gguf, 'README.md': 'words' });
});
beforeEach(() => {
  hub.reset();
  settings = settingsFor(hub, join(folder.dir, `run-${run++}`));
});
afterAll(async () => {
  await hub.close();
  folder.remove();
});

const blobs = (): string[] => {
  const dir = join(settings.cacheDir, 'models--org--tiny-GGUF', 'blobs');
  return existsSync(dir) ? readdirSync(dir) : [];
};
/** A trick for the first requests for a file, in turn; those that follow are answered. */
const first = (...tricks: (Trick | undefined)[]) => {
  let at = 0;
  return (): Trick | undefined => tricks[at++];
};
const ranges = (): (string | undefined)[] => hub.downloads.map(({ range }) => range);
const fetched = (): Promise<string> => fetchFromHub(NAME, { settings });

/** Whatever happened: the cache has no model of this name, and says so. */
async function expectNoModel(): Promise<void> {
  expect((await refused(Promise.resolve().then(() => localModel(NAME, settings)))).code).toBe('not-found');
  expect(blobs()).not.toContain(sha256(gguf));
}

async function expectWhole(path: string): Promise<void> {
  expect(readFileSync(path).equals(gguf)).toBe(true);
  expect(blobs()).toEqual([sha256(gguf)]);
  const model = await loadModel(path);
  model.weights.close();
  expect(model.digest).toBe(sha256(gguf));
}

describe('a GGUF file', () => {
  test('lies where other programs of the Hub look for it, and is not fetched twice', async () => {
    const path = await fetched();
    expect(path).toBe(join(settings.cacheDir, 'models--org--tiny-GGUF/snapshots', commit, 'tiny.Q8_0.gguf'));
    expect(lstatSync(path).isSymbolicLink()).toBe(true);
    expect(readFileSync(join(settings.cacheDir, 'models--org--tiny-GGUF/refs/main'), 'utf8')).toBe(commit);
    await expectWhole(path);
    hub.reset();
    expect(await fetched()).toBe(path);
    expect(hub.downloads).toEqual([]);
    hub.reset();
    // What is here is used without a word to the server.
    for (const name of [NAME, 'hf:org/tiny-GGUF', 'hf:org/tiny-GGUF:Q8_0', `hf:org/tiny-GGUF@${commit}:q8_0`])
      expect(await obtainModel(name, { settings })).toBe(path);
    expect(hub.seen).toEqual([]);
  });

  test('is downloaded where it is not here, and progress is told to the last byte', async () => {
    const told: LoadProgress[] = [];
    await expectWhole(await obtainModel(NAME, { settings, onProgress: (progress) => told.push(progress) }));
    const total = gguf.length;
    expect(told.filter(({ stage }) => stage === 'download').at(-1)).toMatchObject({ done: total, total });
    expect(told.at(-1)).toEqual({ stage: 'verify', file: 'tiny.Q8_0.gguf', done: total, total });
    for (const [before, after] of told.slice(1).map((one, at) => [told[at]!, one] as const))
      if (before.stage === after.stage) expect(after.done).toBeGreaterThanOrEqual(before.done);
  });

  test('a newer revision is fetched by fetch, and by nothing else', async () => {
    const before = await fetched();
    const other = tinyGguf(seeded(2));
    hub.add('org/tiny-GGUF', { 'tiny.Q8_0.gguf': other });
    try {
      expect(await obtainModel(NAME, { settings })).toBe(before);
      const after = await fetched();
      expect(after).not.toBe(before);
      expect(readFileSync(after).equals(other)).toBe(true);
      expect(localModel(NAME, settings)).toBe(after);
    } finally {
      hub.add('org/tiny-GGUF', { 'tiny.Q8_0.gguf': gguf, 'README.md': 'words' });
    }
  });
});

describe('a server that breaks off', () => {
  test('is asked for the rest', async () => {
    hub.trick = first({ kind: 'cut', after: HALF }, { kind: 'end', after: 100 });
    await expectWhole(await fetched());
    const [none, second, third] = ranges();
    expect(none).toBeUndefined();
    // How much of it had come when the connection broke is the system's affair; the third begins where the second
    // ended.
    const from = Number(/^bytes=(\d+)-$/.exec(second ?? 'bytes=0-')?.[1]);
    expect(from).toBeLessThanOrEqual(HALF);
    expect(third).toBe(`bytes=${from + 100}-`);
  });

  test('again and again is given up, and the next download goes on where this one ended', async () => {
    hub.trick = first({ kind: 'end', after: HALF }, ...Array(5).fill({ kind: 'cut', after: 0 }));
    const error = await refused(fetched());
    expect(error).toMatchObject({ code: 'network', values: { attempts: 5 } });
    expect(error.message).toContain('tiny.Q8_0.gguf');
    expect(error.hint).toContain('goes on from there');
    await expectNoModel();
    hub.reset();
    await expectWhole(await fetched());
    expect(ranges()).toEqual([`bytes=${HALF}-`]);
  });

  test('is asked again after 429 and 500, as long as it wants', async () => {
    hub.trick = first(
      { kind: 'status', status: 500 },
      { kind: 'status', status: 503 },
      { kind: 'status', status: 429, headers: { 'retry-after': '0' } },
    );
    await expectWhole(await fetched());
    hub.trick = () => ({ kind: 'status', status: 500 });
    rmSync(settings.cacheDir, { recursive: true });
    expect(await refused(fetched())).toMatchObject({ code: 'network', values: { status: 500, attempts: 5 } });
    await expectNoModel();
  });

  test('in its listing is asked again too', async () => {
    let failing = 2;
    hub.answer = () => (failing-- > 0 ? { status: 500, body: 'busy' } : {});
    await expectWhole(await fetched());
  });

  test('that is silent is left after the time that is said', async () => {
    const impatient = { ...settings, stallMs: 60 };
    hub.trick = () => ({ kind: 'stall', after: 0 });
    const error = await refused(fetchFromHub(NAME, { settings: impatient }));
    expect(error).toMatchObject({ code: 'network', values: { waitedSeconds: 0.06 } });
    expect(error.message).toMatch(/sent nothing for 0\.06 s, 5 times in a row/);
    await expectNoModel();
    // What came before the silence is kept.
    hub.reset();
    hub.trick = first({ kind: 'stall', after: HALF });
    await expectWhole(await fetchFromHub(NAME, { settings: impatient }));
    expect(ranges().at(-1)).toMatch(/^bytes=\d+-$/);
  });

  test('or is not there is an error of the network', async () => {
    const gone = await HubServer.open();
    const nowhere = settingsFor(gone, folder.dir, { cacheDir: settings.cacheDir });
    await gone.close();
    const error = await refused(fetchFromHub(NAME, { settings: nowhere }));
    expect(error).toMatchObject({ code: 'network' });
    expect(error.message).toMatch(/ECONNREFUSED/);
  });
});

describe('a server that refuses', () => {
  test.each([
    [401, null, /private.*HF_TOKEN/],
    [401, 'secret-token', /the token of HF_TOKEN is not valid/],
    [403, null, /accept its terms/],
    [403, 'secret-token', /may not read it/],
  ] as const)('with %i, token %s', async (status, token, hint) => {
    const asked = { ...settings, token, tokenFrom: token === null ? null : 'HF_TOKEN' };
    for (const where of ['file', 'listing']) {
      hub.reset();
      if (where === 'file') hub.trick = () => ({ kind: 'status', status });
      else hub.answer = () => ({ status, body: '{"error":"no"}' });
      const error = await refused(fetchFromHub(NAME, { settings: asked }));
      expect(error).toMatchObject({ code: 'not-allowed', values: { status } });
      expect(error.hint).toMatch(hint);
      expect(JSON.stringify([error.message, error.values, error.hint])).not.toContain('secret-token');
    }
    await expectNoModel();
  });

  test('a repository, a revision or a file that is not there, and says which files are', async () => {
    const none = await refused(fetchFromHub('hf:org/none', { settings }));
    expect(none).toMatchObject({ code: 'not-found' });
    expect(none.hint).toContain('check the name');
    expect(await refused(fetchFromHub('hf:org/tiny-GGUF@v2', { settings }))).toMatchObject({
      values: { revision: 'v2' },
    });
    const file = await refused(fetchFromHub('hf:org/tiny-GGUF:Q4_K_M', { settings }));
    expect(file).toMatchObject({ code: 'not-found', values: { files: ['tiny.Q8_0.gguf'] } });
    hub.trick = () => ({ kind: 'status', status: 404 });
    expect((await refused(fetched())).code).toBe('not-found');
    await expectNoModel();
  });

  test('a range, and begins anew', async () => {
    hub.trick = first({ kind: 'end', after: HALF }, { kind: 'status', status: 416 });
    await expectWhole(await fetched());
    expect(ranges()).toEqual([undefined, `bytes=${HALF}-`, undefined]);
  });

  test('every range, as one that knows none', async () => {
    hub.trick = first({ kind: 'end', after: HALF }, { kind: 'whole' });
    await expectWhole(await fetched());
  });
});

describe('a server that lies', () => {
  const cases: [string, Trick[], RegExp][] = [
    ['more bytes than the listing has', [{ kind: 'lie', more: 1000 }], /sends more/],
    ['a length that is too small', [{ kind: 'lie', headers: { 'content-length': '5' } }], /announces 5 bytes/],
    [
      'another range than was asked for',
      [
        { kind: 'end', after: HALF },
        { kind: 'lie', headers: { 'content-range': `bytes 0-${gguf.length - 1}/${gguf.length}` } },
      ],
      /was asked for .* from byte/,
    ],
    [
      'another size of the whole',
      [
        { kind: 'end', after: HALF },
        { kind: 'lie', headers: { 'content-range': `bytes ${HALF}-${gguf.length - 1}/${gguf.length + 1}` } },
      ],
      /announces \d+ bytes/,
    ],
    [
      'a range that is none',
      [
        { kind: 'end', after: HALF },
        { kind: 'lie', headers: { 'content-range': 'pages 1-2' } },
      ],
      /was asked for/,
    ],
  ];
  test.each(cases)('about %s is an error at once', async (_, tricks, message) => {
    hub.trick = first(...tricks);
    const error = await refused(fetched());
    expect(error).toMatchObject({ code: 'network' });
    expect(error.message).toMatch(message);
    expect(hub.downloads.length).toBe(tricks.length);
    await expectNoModel();
    hub.reset();
    await expectWhole(await fetched());
  });

  test('about the content is found by the digest, and nothing of it is kept', async () => {
    hub.trick = first({ kind: 'damage' });
    const error = await refused(fetched());
    expect(error).toMatchObject({ code: 'checksum-mismatch', values: { expected: sha256(gguf) } });
    expect(blobs()).toEqual([]);
    await expectNoModel();
    await expectWhole(await fetched());
    expect(ranges().at(-1)).toBeUndefined();
  });

  test.each([
    '{',
    '"words"',
    '{"a":1,"a":2}',
    '[{"type":"file"}]',
    '[{"type":"file","path":"x.gguf","size":-1,"oid":"0"}]',
    `{"sha":"${'z'.repeat(40)}"}`,
  ])('in its listing, %s', async (body) => {
    hub.answer = (path) => (path.includes('/tree/') === body.startsWith('[') ? { body } : {});
    expect((await refused(fetched())).code).toBe('network');
    await expectNoModel();
  });

  test('with paths that lead out of the folder brings none of them', async () => {
    const outside = '../../../../outside.gguf';
    hub.answer = (path, content) =>
      path.includes('/tree/')
        ? {
            body: JSON.stringify([
              ...(content as object[]),
              { type: 'file', path: outside, size: 1, lfs: { oid: 'a'.repeat(64), size: 1 } },
            ]),
          }
        : {};
    await expectWhole(await fetchFromHub('hf:org/tiny-GGUF', { settings }));
    expect((await refused(fetchFromHub(`hf:org/tiny-GGUF:${outside}`, { settings }))).code).toBe('bad-argument');
  });

  test('with a further page on another server is not followed', async () => {
    const other = await HubServer.open();
    hub.answer = (path) =>
      path.includes('/tree/')
        ? { headers: { link: `<${other.url}/api/models/org/tiny-GGUF/tree/main>; rel="next"` } }
        : {};
    expect(
      (await refused(fetchFromHub(NAME, { settings: { ...settings, token: 't', tokenFrom: 'HF_TOKEN' } }))).message,
    ).toMatch(/another server/);
    expect(other.seen).toEqual([]);
    await other.close();
  });

  test('with pages that never end is left', async () => {
    hub.answer = (path) =>
      path.includes('/tree/') ? { body: '[]', headers: { link: `<${hub.url}${path}>; rel="next"` } } : {};
    expect((await refused(fetched())).message).toMatch(/more than 200 pages/);
  });
});

describe('the token', () => {
  test('goes to the endpoint, and not to where a download is redirected', async () => {
    const store = await HubServer.open();
    store.add('org/tiny-GGUF', { 'tiny.Q8_0.gguf': gguf, 'README.md': 'words' });
    hub.trick = (seen) => ({ kind: 'redirect', to: `${store.url}${seen.path}` });
    await expectWhole(await fetchFromHub(NAME, { settings: { ...settings, token: 'secret', tokenFrom: 'HF_TOKEN' } }));
    expect(new Set(hub.seen.map(({ authorization }) => authorization))).toEqual(new Set(['Bearer secret']));
    expect(store.downloads.map(({ authorization }) => authorization)).toEqual([undefined]);
    await store.close();
  });
});

describe('what an earlier download left', () => {
  const partials = (): string => join(settings.cacheDir, 'models--org--tiny-GGUF/blobs');
  const put = (name: string, bytes: Buffer): void => {
    mkdirSync(partials(), { recursive: true });
    writeFileSync(join(partials(), name), bytes);
  };
  // No system gives a process so high a number.
  const GONE = 4_194_305;

  test('a process that was killed, is gone on with', async () => {
    put(`${sha256(gguf)}.${GONE}-0a1b2c3d.partial`, gguf.subarray(0, HALF));
    put(`${sha256(gguf)}.partial`, gguf.subarray(0, 10));
    expect(readFileSync(await fetched()).equals(gguf)).toBe(true);
    expect(ranges()).toEqual([`bytes=${HALF}-`]);
  });

  test('a process that is at work, is left to it', async () => {
    const theirs = `${sha256(gguf)}.${process.pid}-0a1b2c3d.partial`;
    put(theirs, gguf.subarray(0, HALF));
    expect(readFileSync(await fetched()).equals(gguf)).toBe(true);
    expect(ranges()).toEqual([undefined]);
    expect(readFileSync(join(partials(), theirs)).length).toBe(HALF);
  });

  test('and is longer than the file, or other bytes, is not trusted', async () => {
    put(`${sha256(gguf)}.partial`, Buffer.alloc(gguf.length + 1));
    await expectWhole(await fetched());
    rmSync(settings.cacheDir, { recursive: true });
    put(`${sha256(gguf)}.partial`, Buffer.alloc(HALF));
    expect((await refused(fetched())).code).toBe('checksum-mismatch');
    await expectWhole(await fetched());
  });

  test.each(['a link', 'another name'])("and is %s of somebody's file, leaves that file alone", async (kind) => {
    const theirs = join(folder.dir, `theirs-${kind.length}`);
    writeFileSync(theirs, gguf.subarray(0, 10));
    const beside = join(partials(), `${sha256(gguf)}.partial`);
    mkdirSync(partials(), { recursive: true });
    if (kind === 'a link') symlinkSync(theirs, beside);
    else linkSync(theirs, beside);
    await expectWhole(await fetched());
    expect(readFileSync(theirs).equals(gguf.subarray(0, 10))).toBe(true);
    expect(ranges()).toEqual([undefined]);
  });

  test('and is whole, is only verified', async () => {
    put(`${sha256(gguf)}.partial`, gguf);
    hub.reset();
    await expectWhole(await fetched());
    expect(hub.downloads).toEqual([]);
  });

  test('two downloads at once do not disturb each other', async () => {
    const paths = await Promise.all([fetched(), fetched(), fetched()]);
    expect(new Set(paths).size).toBe(1);
    await expectWhole(paths[0]!);
  });

  test('an abort keeps what came', async () => {
    const abort = new AbortController();
    hub.trick = first({ kind: 'stall', after: HALF });
    const aborted = refused(fetchFromHub(NAME, { settings, signal: abort.signal }));
    const sizes = (): number[] => blobs().map((name) => statSync(join(partials(), name)).size);
    while (!sizes().includes(HALF)) await setImmediate();
    abort.abort();
    expect((await aborted).code).toBe('aborted');
    await expectNoModel();
    await expectWhole(await fetched());
    expect(ranges().at(-1)).toBe(`bytes=${HALF}-`);
  });
});

describe('a safetensors checkpoint', () => {
  const whole = tinySafetensors(seeded(3));
  const beside = {
    'config.json': JSON.stringify(tinyHfConfig),
    'tokenizer.json': JSON.stringify(tinyTokenizerJson),
    'tokenizer_config.json': JSON.stringify({ add_bos_token: true }),
    'chat_template.jinja': '{{ messages[0].content }}',
  };
  const shards = splitSafetensors(whole);
  const index = JSON.stringify({ metadata: {}, weight_map: shards.map });

  test('is fetched as a folder, without what it does not need', async () => {
    hub.add('org/tiny', { ...beside, 'model.safetensors': whole, 'pytorch_model.bin': 'x', 'onnx/model.onnx': 'x' });
    const dir = await fetchFromHub('hf:org/tiny', { settings });
    expect(readdirSync(dir).sort()).toEqual([...Object.keys(beside), 'model.safetensors'].sort());
    const model = await loadModel('hf:org/tiny'.replace('hf:org/tiny', dir));
    model.weights.close();
    expect(model.tokenizer.chatTemplate).toBe('{{ messages[0].content }}');
    expect(await obtainModel('hf:org/tiny', { settings: { ...settings, offline: true } })).toBe(dir);
  });

  test('in several files is whole when all are here', async () => {
    hub.add('org/shards', { ...beside, 'model.safetensors.index.json': index, ...shards.files });
    hub.trick = (seen) => (seen.path.includes('-00002-of') ? { kind: 'status', status: 500 } : undefined);
    expect((await refused(obtainModel('hf:org/shards', { settings }))).code).toBe('network');
    expect((await refused(Promise.resolve().then(() => localModel('hf:org/shards', settings)))).code).toBe('not-found');
    hub.reset();
    const dir = await obtainModel('hf:org/shards', { settings });
    expect(hub.downloads.map(({ path }) => path.split('/').at(-1))).toEqual([
      'model.safetensors.index.json',
      'model-00002-of-00002.safetensors',
    ]);
    (await loadModel(dir)).weights.close();
    // As another program leaves it that has not ended yet: the index is there, and one link leads nowhere.
    rmSync(join(dir, 'model-00002-of-00002.safetensors'));
    const error = await refused(obtainModel('hf:org/shards', { settings: { ...settings, offline: true } }));
    expect(error).toMatchObject({ code: 'not-found', values: { missing: ['model-00002-of-00002.safetensors'] } });
    expect(error.message).toContain('offline');
  });

  test('whose index names files that are not there, or no plain ones, is refused before anything is fetched', async () => {
    hub.add('org/holes', { ...beside, 'model.safetensors.index.json': index });
    expect(await refused(fetchFromHub('hf:org/holes', { settings }))).toMatchObject({
      code: 'not-found',
      values: { missing: Object.keys(shards.files) },
    });
    hub.add('org/outside', {
      ...beside,
      'model.safetensors.index.json': JSON.stringify({ weight_map: { a: '../x.safetensors' } }),
    });
    expect((await refused(fetchFromHub('hf:org/outside', { settings }))).code).toBe('bad-file');
    expect(existsSync(join(settings.cacheDir, 'models--org--outside'))).toBe(false);
  });
});

/** One safetensors file as two. */
function splitSafetensors(bytes: Buffer): { files: Record<string, Buffer>; map: Record<string, string> } {
  const end = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, end).toString()) as Record<string, { data_offsets: [number, number] }>;
  const names = Object.keys(header);
  const files: Record<string, Buffer> = {};
  const map: Record<string, string> = {};
  for (const part of [0, 1]) {
    const file = `model-0000${part + 1}-of-00002.safetensors`;
    const own: Record<string, object> = {};
    const data: Buffer[] = [];
    let at = 0;
    for (const name of names.filter((_, place) => place % 2 === part)) {
      const { data_offsets, ...entry } = header[name]!;
      const piece = bytes.subarray(end + data_offsets[0], end + data_offsets[1]);
      own[name] = { ...entry, data_offsets: [at, (at += piece.length)] };
      data.push(piece);
      map[name] = file;
    }
    const text = Buffer.from(JSON.stringify(own));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    files[file] = Buffer.concat([length, text, ...data]);
  }
  return { files, map };
}

describe('offline', () => {
  test('nothing is asked of the network, and the error says so', async () => {
    const offline = { ...settings, offline: true };
    for (const work of [obtainModel(NAME, { settings: offline }), fetchFromHub(NAME, { settings: offline })]) {
      const error = await refused(work);
      expect(['not-found', 'network']).toContain(error.code);
      expect(`${error.message} ${error.hint}`).toContain('offline');
    }
    expect(hub.seen).toEqual([]);
  });
});

afterEach(() => {
  // No test may leave a download under the name of a model.
  for (const name of blobs()) expect(name).toMatch(/^[0-9a-f]{40,64}(\.(\d+-[0-9a-f]+\.)?partial)?$/);
});
