// What names of models mean, which files of a repository they choose, where the environment says they are, and that
// caches of other programs, the Hub's and Ollama's, are read where they lie: written here as those programs write them.

import { existsSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { chooseFiles, GGUF_ORDER } from '../../../../../engine/transformer/hub/choose.ts';
import { parseRemoteName } from '../../../../../engine/transformer/hub/name.ts';
import { isAway, localModel, obtainModel } from '../../../../../engine/transformer/hub/obtain.ts';
import { findOllama } from '../../../../../engine/transformer/hub/ollama.ts';
import { type HubSettings, hubSettings } from '../../../../../engine/transformer/hub/settings.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import { seeded } from '../../../../random.ts';
import { refusal } from '../../../../refusal.ts';
import { temporaryFolder, tinyGguf } from '../model-files.ts';
import { sha256 } from './hub-server.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

describe('a name', () => {
  test.each([
    ['hf:org/repo', { repo: 'org/repo', revision: 'main', file: null }],
    ['hf:org/repo:Q8_0', { repo: 'org/repo', revision: 'main', file: 'Q8_0' }],
    ['hf:org/repo@v1.0:sub/model.gguf', { repo: 'org/repo', revision: 'v1.0', file: 'sub/model.gguf' }],
    ['hf:org/repo@refs/pr/3', { repo: 'org/repo', revision: 'refs/pr/3', file: null }],
    ['ollama:llama3.2', { host: 'registry.ollama.ai', namespace: 'library', model: 'llama3.2', tag: 'latest' }],
    ['ollama:me/tiny:1b-q8', { host: 'registry.ollama.ai', namespace: 'me', model: 'tiny', tag: '1b-q8' }],
    ['ollama:hf.co/org/repo:Q8_0', { host: 'hf.co', namespace: 'org', model: 'repo', tag: 'Q8_0' }],
    ['ollama:localhost:5000/me/tiny', { host: 'localhost:5000', namespace: 'me', model: 'tiny', tag: 'latest' }],
  ])('%s is understood', (name, parsed) => {
    expect(parseRemoteName(name)).toMatchObject(parsed);
  });

  test.each(['reference', './hf:x', 'model.gguf', 'C:\\models\\x', ''])('%j is none of these', (name) => {
    expect(parseRemoteName(name)).toBeNull();
  });

  test.each([
    ...[
      'hf:',
      'hf:repo',
      'hf:a/b/c',
      'hf:../x',
      'hf:org/..',
      'hf:org/re po',
      'hf:org--a/b',
      'hf:org/repo@',
      'hf:org/repo:',
      'hf:org/repo@../x',
    ],
    ...[
      'hf:org/repo:../x.gguf',
      'hf:org/repo:/etc/passwd',
      'hf:org/repo:a\\..\\b',
      'hf:org/repo:a\u0000b',
      'hf:org/repo:a//b',
      'hf:org/repo@a/../b',
    ],
    ...[
      'ollama:',
      'ollama:a/b/c/d',
      'ollama:..',
      'ollama:x:',
      'ollama:x:../y',
      'ollama:../../x',
      `hf:org/${'x'.repeat(500)}`,
    ],
  ])('%j is refused', (name) => {
    const error = refusal(() => parseRemoteName(name));
    expect(error).toMatchObject({ code: 'bad-argument' });
    expect(error.hint).toContain('hf:ORG/REPO');
  });
});

describe('which files of a repository', () => {
  const types = ['IQ4_XS', 'Q2_K', 'Q3_K_M', 'Q4_K_M', 'Q4_K_S', 'Q8_0', 'F16'].map((type) => `m-${type}.gguf`);
  const folderPaths = ['config.json', 'tokenizer.json', 'model.safetensors', 'README.md', 'original/x.safetensors'];
  test.each<[string, string[], string | null, string]>([
    ['the one GGUF file', ['README.md', 'm.gguf'], null, 'm.gguf'],
    ['Q4_K_M first', types, null, 'm-Q4_K_M.gguf'],
    ['then Q8_0', types.filter((path) => !path.includes('Q4_K_M')), null, 'm-Q8_0.gguf'],
    ['what lost least, of the smallest', ['m-Q2_K.gguf', 'm-IQ4_XS.gguf', 'm-IQ2_XS.gguf'], null, 'm-IQ4_XS.gguf'],
    ['not what projects images', ['mmproj-m-Q8_0.gguf', 'm-Q8_0.gguf'], null, 'm-Q8_0.gguf'],
    ['not parts', ['m-Q4_K_M-00001-of-00002.gguf', 'm-Q4_K_M-00002-of-00002.gguf', 'm-F16.gguf'], null, 'm-F16.gguf'],
    ['by its whole name', types, 'm-Q2_K.gguf', 'm-Q2_K.gguf'],
    ['by its type, in any case', types, 'q3_k_m', 'm-Q3_K_M.gguf'],
    ['by its name in a folder', ['a/m-Q8_0.gguf', 'b/n-Q8_0.gguf'], 'n-Q8_0.gguf', 'b/n-Q8_0.gguf'],
    ['a type that is a part of no other', ['m-Q4_K_M.gguf', 'm-IQ4_0.gguf', 'm.q4_0.gguf'], 'Q4_0', 'm.q4_0.gguf'],
  ])('%s', (_, paths, file, chosen) => {
    expect(chooseFiles('o/r', paths, file)).toEqual({ kind: 'gguf', file: chosen });
  });

  test('a checkpoint is its folder, also beside GGUF files, which can be named', () => {
    const paths = [...folderPaths, 'tokenizer_config.json', 'chat_template.jinja', 'generation_config.json', ...types];
    paths.push('additional_chat_templates/tool_use.jinja', 'additional_chat_templates/rag.jinja');
    expect(chooseFiles('o/r', paths, null)).toEqual({
      kind: 'folder',
      beside: [
        'config.json',
        'tokenizer.json',
        'tokenizer_config.json',
        'chat_template.jinja',
        'generation_config.json',
        'additional_chat_templates/tool_use.jinja',
      ],
      weights: 'model.safetensors',
    });
    expect(chooseFiles('o/r', paths, 'F16')).toEqual({ kind: 'gguf', file: 'm-F16.gguf' });
  });

  test.each<[string, string[], string | null, string, RegExp]>([
    ['several of a type', ['a-Q8_0.gguf', 'b-Q8_0.gguf'], null, 'bad-argument', /hf:o\/r:a-Q8_0\.gguf/],
    ['several of types without a rank', ['a-IQ1_S.gguf', 'a-IQ2_S.gguf'], null, 'bad-argument', /name one/],
    ['none', ['README.md', 'pytorch_model.bin'], null, 'unsupported', /-GGUF/],
    ['parts alone', ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf'], null, 'unsupported', /merge/],
    ['a part by name', ['m-00001-of-00002.gguf'], 'm-00001-of-00002.gguf', 'unsupported', /merge/],
    ['weights by name', folderPaths, 'model.safetensors', 'unsupported', /leave it out/],
    [
      'a checkpoint without tokenizer.json',
      ['config.json', 'model.safetensors'],
      null,
      'unsupported',
      /another repository/,
    ],
    ['a type that is not there', types, 'Q5_0', 'not-found', /leave it out/],
  ])('%s is refused, and the files are named', (_, paths, file, code, hint) => {
    const error = refusal(() => chooseFiles('o/r', paths, file));
    expect(error).toMatchObject({ code });
    expect(error.hint).toMatch(hint);
    const named = file?.includes('.') === true ? file : paths.find((path) => /\.(gguf|bin|json)$/.test(path))!;
    expect(JSON.stringify([error.values, error.message])).toContain(named);
  });

  test('the order is that of the documentation', () => {
    expect(GGUF_ORDER.slice(0, 2)).toEqual(['Q4_K_M', 'Q8_0']);
    expect(new Set(GGUF_ORDER).size).toBe(GGUF_ORDER.length);
  });
});

describe('where the environment says that models are', () => {
  const home = join(folder.dir, 'home');
  const settings = (environment: Record<string, string>): HubSettings =>
    hubSettings(false, { HOME: home, ...environment });

  test.each([
    [{}, '.cache/huggingface/hub'],
    [{ XDG_CACHE_HOME: join(home, 'xdg') }, 'xdg/huggingface/hub'],
    [{ HF_HOME: '~/hf' }, 'hf/hub'],
    [{ HF_HOME: '~/hf', HUGGINGFACE_HUB_CACHE: join(home, 'old') }, 'old'],
    [{ HF_HOME: '~/hf', HUGGINGFACE_HUB_CACHE: join(home, 'old'), HF_HUB_CACHE: join(home, 'new') }, 'new'],
    [{ HF_HOME: '' }, '.cache/huggingface/hub'],
  ])('the cache folder with %j', (environment, path) => {
    expect(settings(environment as Record<string, string>).cacheDir).toBe(join(home, path));
  });

  test('the token: a variable before a file, and a file where the Hub puts it', () => {
    expect(settings({}).token).toBeNull();
    folder.write('home/.cache/huggingface/token', 'from-file\n');
    folder.write('elsewhere', 'from-elsewhere');
    expect(settings({})).toMatchObject({ token: 'from-file', tokenFrom: join(home, '.cache/huggingface/token') });
    expect(settings({ HF_TOKEN_PATH: join(folder.dir, 'elsewhere') }).token).toBe('from-elsewhere');
    expect(settings({ HF_TOKEN: 'from-variable' })).toMatchObject({ token: 'from-variable', tokenFrom: 'HF_TOKEN' });
    expect(settings({ HF_HUB_DISABLE_IMPLICIT_TOKEN: '1' }).token).toBeNull();
    const error = refusal(() => settings({ HF_TOKEN: 'two\r\nlines' }));
    expect(error.code).toBe('bad-config');
    expect(JSON.stringify([error.message, error.values])).not.toContain('lines');
  });

  test('the endpoint, offline mode, patience, Ollama', () => {
    expect(settings({})).toMatchObject({ endpoint: 'https://huggingface.co', offline: false, stallMs: 30_000 });
    expect(settings({ HF_ENDPOINT: 'http://mirror.local:8080/hub/' }).endpoint).toBe('http://mirror.local:8080/hub');
    for (const on of ['1', 'ON', 'true', 'Yes']) expect(settings({ HF_HUB_OFFLINE: on }).offline).toBe(true);
    expect(settings({ HF_HUB_OFFLINE: '0' }).offline).toBe(false);
    expect(hubSettings(true, { HOME: home }).offline).toBe(true);
    expect(settings({ HF_HUB_DOWNLOAD_TIMEOUT: '2.5' }).stallMs).toBe(2500);
    expect(settings({}).ollamaDirs[0]).toBe(join(home, '.ollama/models'));
    expect(settings({ OLLAMA_MODELS: join(home, 'o') }).ollamaDirs).toEqual([join(home, 'o')]);
    for (const [name, bad] of [
      ['HF_ENDPOINT', 'mirror'],
      ['HF_ENDPOINT', 'ftp://x'],
      ['HF_ENDPOINT', 'https://me:pw@x'],
      ['HF_HUB_DOWNLOAD_TIMEOUT', '-1'],
      ['HF_HUB_DOWNLOAD_TIMEOUT', 'x'],
    ] as const)
      expect(refusal(() => settings({ [name]: bad })).code).toBe('bad-config');
  });
});

const gguf = tinyGguf(seeded(1));
const digest = sha256(gguf);
const settings: HubSettings = {
  ...hubSettings(false, { HOME: folder.dir }),
  endpoint: 'http://127.0.0.1:9',
  cacheDir: join(folder.dir, 'cache'),
  ollamaDirs: [join(folder.dir, 'none'), join(folder.dir, 'ollama')],
};

describe('a cache that another program of the Hub has filled', () => {
  const COMMIT = 'c'.repeat(40);
  const repo = join(settings.cacheDir, 'models--org--theirs');
  const blob = join(repo, 'blobs', digest);
  const link = join(repo, 'snapshots', COMMIT, 'sub/theirs.Q8_0.gguf');
  for (const path of [blob, link, join(repo, 'refs/main')]) mkdirSync(dirname(path), { recursive: true });
  writeFileSync(join(repo, 'refs/main'), COMMIT);
  symlinkSync(join('../../../blobs', digest), link);

  test('whose download has not ended has no model', () => {
    writeFileSync(`${blob}.incomplete`, gguf.subarray(0, 1000));
    expect(refusal(() => localModel('hf:org/theirs', settings))).toMatchObject({
      code: 'not-found',
      hint: 'palimpsest fetch hf:org/theirs',
    });
    expect(isAway('hf:org/theirs', { settings })).toBe(true);
    expect(isAway('hf:org/theirs', { settings: { ...settings, offline: true } })).toBe(false);
  });

  test('is used where it lies, without a copy and without a server', async () => {
    writeFileSync(blob, gguf);
    const listing = (): string => (readdirSync(settings.cacheDir, { recursive: true }) as string[]).sort().join('\n');
    const before = listing();
    for (const name of [
      'hf:org/theirs',
      'hf:org/theirs:theirs.Q8_0.gguf',
      'hf:org/theirs:Q8_0',
      `hf:org/theirs@${COMMIT}`,
    ]) {
      expect(await obtainModel(name, { settings })).toBe(link);
      expect(isAway(name, { settings })).toBe(false);
    }
    const model = await loadModel(link);
    model.weights.close();
    expect(model.digest).toBe(digest);
    expect(listing()).toBe(before);
    expect(refusal(() => localModel('hf:org/theirs@other', settings)).code).toBe('not-found');
    expect(refusal(() => localModel(`hf:org/theirs@${'d'.repeat(40)}`, settings)).code).toBe('not-found');
  });

  test('with a blob that is not what its name says is refused when it is loaded', async () => {
    const damaged = Buffer.from(gguf);
    damaged[damaged.length - 1]! ^= 1;
    writeFileSync(blob, damaged);
    await expect(loadModel(link)).rejects.toMatchObject({
      code: 'checksum-mismatch',
      values: { expected: digest, actual: sha256(damaged) },
    });
    writeFileSync(blob, gguf);
  });

  test.each(['', 'x', '../../../../etc', 'c'.repeat(39), 'c'.repeat(200)])(
    'with the commit %j knows no model',
    (commit) => {
      writeFileSync(join(repo, 'refs/odd'), commit);
      expect(refusal(() => localModel('hf:org/theirs@odd', settings)).code).toBe('not-found');
    },
  );
});

describe("Ollama's folder", () => {
  const dir = settings.ollamaDirs[1]!;
  const blob = join(dir, 'blobs', `sha256-${digest}`);
  const layers = (...more: object[]) => [
    { mediaType: 'application/vnd.ollama.image.model', digest: `sha256:${digest}`, size: gguf.length },
    { mediaType: 'application/vnd.ollama.image.template', digest: `sha256:${'b'.repeat(64)}`, size: 5 },
    ...more,
  ];
  const put = (name: string, content: unknown): void => {
    const path = join(dir, 'manifests', name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
  };
  mkdirSync(dirname(blob), { recursive: true });
  writeFileSync(blob, gguf);
  put('registry.ollama.ai/library/tiny/latest', { schemaVersion: 2, layers: layers() });
  put('hf.co/org/tiny/Q8_0', { layers: layers() });
  const find = (name: string): string => localModel(name, settings)!;

  test('has a model, which is read where it lies', async () => {
    expect(find('ollama:tiny')).toBe(blob);
    expect(find('ollama:tiny:latest')).toBe(blob);
    expect(find('ollama:hf.co/org/tiny:Q8_0')).toBe(blob);
    const model = await loadModel(blob);
    model.weights.close();
    expect(model).toMatchObject({ digest, path: blob });
    expect(existsSync(settings.cacheDir) && readdirSync(settings.cacheDir)).not.toContain('tiny');
  });

  test('without the model says which there are, and how it comes', () => {
    const error = refusal(() => find('ollama:other:7b'));
    expect(error).toMatchObject({ code: 'not-found', values: { installed: ['hf.co/org/tiny:Q8_0', 'tiny:latest'] } });
    expect(error.hint).toContain('ollama pull other:7b');
    expect(refusal(() => findOllama(parseRemoteName('ollama:x') as never, [])).code).toBe('not-found');
  });

  test.each<[string, unknown, string]>([
    ['is no JSON', '{', 'bad-file'],
    ['has no layers', {}, 'bad-file'],
    ['has no weights', { layers: [] }, 'unsupported'],
    ['has weights in two files', { layers: [...layers(), ...layers()] }, 'unsupported'],
    ['has an adapter', { layers: layers({ mediaType: 'application/vnd.ollama.image.adapter' }) }, 'unsupported'],
    [
      'names a path instead of a digest',
      { layers: [{ ...layers()[0], digest: 'sha256:../../../../etc/passwd' }] },
      'bad-file',
    ],
    ['has no size', { layers: [{ ...layers()[0], size: -1 }] }, 'bad-file'],
    ['names a blob of another size', { layers: [{ ...layers()[0], size: 5 }] }, 'bad-file'],
    [
      'names a blob that is not there',
      { layers: [{ ...layers()[0], digest: `sha256:${'f'.repeat(64)}` }] },
      'bad-file',
    ],
  ])('with a manifest that %s is refused', (_, manifest, code) => {
    put('registry.ollama.ai/library/broken/latest', manifest);
    expect(refusal(() => find('ollama:broken')).code).toBe(code);
  });

  test('with a blob that is not what its name says is refused when it is loaded', async () => {
    writeFileSync(blob, Buffer.concat([gguf.subarray(0, -1), Buffer.of(gguf.at(-1)! ^ 1)]));
    await expect(loadModel(find('ollama:tiny'))).rejects.toMatchObject({ code: 'checksum-mismatch' });
  });
});
