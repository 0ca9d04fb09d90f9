// Fetched models lie in one folder for a user: a program that runs in another folder finds them, and leaves none there.
import { join } from 'node:path';
import { afterEach, expect, test, vi } from 'vitest';
import { defaultCacheDir } from '../../../../engine/transformer/cache-dir.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { refused } from '../../../refusal.ts';

afterEach(() => vi.unstubAllEnvs());

const HOME = '/of/ada';

test('is where the system keeps the caches of a user', () => {
  expect(defaultCacheDir({ HOME }, 'linux')).toBe('/of/ada/.cache/palimpsest');
  expect(defaultCacheDir({ HOME, XDG_CACHE_HOME: '/var/ada' }, 'linux')).toBe('/var/ada/palimpsest');
  expect(defaultCacheDir({ HOME }, 'darwin')).toBe('/of/ada/Library/Caches/palimpsest');
  expect(defaultCacheDir({ LOCALAPPDATA: '/local' }, 'win32')).toBe('/local/palimpsest/Cache');
  expect(defaultCacheDir({ HOME }, 'win32')).toBe('/of/ada/AppData/Local/palimpsest/Cache');
});

test('is the folder that PALIMPSEST_CACHE names, unless it is empty', () => {
  expect(defaultCacheDir({ HOME, PALIMPSEST_CACHE: '/models' }, 'linux')).toBe('/models');
  expect(defaultCacheDir({ HOME, PALIMPSEST_CACHE: '' }, 'linux')).toBe('/of/ada/.cache/palimpsest');
});

test('is where a model is looked for whose folder nobody names', async () => {
  vi.stubEnv('PALIMPSEST_CACHE', '/nowhere/at/all');
  const { code, values } = await refused(loadModel('smollm2-135m'));
  expect({ code, path: values?.['path'] }).toEqual({
    code: 'not-found',
    path: join('/nowhere/at/all', 'models', 'SmolLM2-135M-Instruct.Q4_1.gguf'),
  });
});
