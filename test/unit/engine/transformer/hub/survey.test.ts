// Whether a model fits, from the headers of a file on a server that counts what is asked of it, against what the same
// model is when it is here; the estimate of its weights against what the dense half then takes; and engines that are
// made by name, with their progress.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { fitOf } from '../../../../../engine/cli/machine-fit.ts';
import { createEngine } from '../../../../../engine/thread/engine.ts';
import { openDense } from '../../../../../engine/transformer/dense-choice.ts';
import { createLoopBackend } from '../../../../../engine/transformer/dense-loops.ts';
import { createNativeBackend } from '../../../../../engine/transformer/dense-native.ts';
import { fetchFromHub } from '../../../../../engine/transformer/hub/obtain.ts';
import type { HubSettings } from '../../../../../engine/transformer/hub/settings.ts';
import { surveyModel } from '../../../../../engine/transformer/hub/survey.ts';
import { inspectModel, inspectRemote } from '../../../../../engine/transformer/inspect-model.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import { memoryNeed } from '../../../../../engine/transformer/memory.ts';
import type { LoadProgress, ModelConfig } from '../../../../../engine/transformer/types.ts';
import { ggufParts, readFamily } from '../../../../model/family-files.ts';
import { seeded } from '../../../../random.ts';
import { referenceModel, temporaryFolder, tinyGguf, gguf as writeGguf } from '../model-files.ts';
import { HubServer, settingsFor } from './hub-server.ts';

const folder = temporaryFolder();
let hub: HubServer;
let settings: HubSettings;
let run = 0;
const gguf = tinyGguf(seeded(1));
const before = { ...process.env };

beforeAll(async () => {
  hub = await HubServer.open();
  hub.add(
    'org/reference',
    Object.fromEntries(readdirSync(referenceModel).map((name) => [name, readFileSync(join(referenceModel, name))])),
  );
  hub.add('org/tiny-GGUF', { 'tiny.gguf': gguf });
});
beforeEach(() => {
  hub.reset();
  settings = settingsFor(hub, join(folder.dir, `run-${run++}`));
  Object.assign(process.env, {
    HF_ENDPOINT: hub.url,
    HF_HUB_CACHE: settings.cacheDir,
    HF_TOKEN: '',
    HF_HUB_OFFLINE: '',
  });
});
afterAll(async () => {
  for (const name of ['HF_ENDPOINT', 'HF_HUB_CACHE', 'HF_TOKEN', 'HF_HUB_OFFLINE'])
    if (before[name] === undefined) delete process.env[name];
    else process.env[name] = before[name];
  await hub.close();
  folder.remove();
});

describe('what the headers say', () => {
  test('of a checkpoint is what is found when it is here, for a twentieth of the bytes', async () => {
    const remote = await inspectRemote('hf:org/reference', { settings });
    const here = await inspectModel(referenceModel);
    for (const part of ['config', 'parameters', 'tensors', 'format', 'memory'] as const)
      expect(remote[part]).toEqual(here[part]);
    expect(remote.downloadBytes).toBe(
      remote.files.reduce((sum, name) => sum + readFileSync(join(referenceModel, name)).length, 0),
    );
    expect(remote.readBytes).toBeLessThan(remote.downloadBytes / 20);
    expect(readdirSync(folder.dir)).not.toContain(`run-${run - 1}`);
  });

  test('of a GGUF file likewise, also from a server without ranges, and one that breaks off', async () => {
    const path = folder.write('tiny.gguf', gguf);
    const here = await inspectModel(path);
    const tricks = [undefined, { kind: 'whole' }, { kind: 'end', after: 100 }] as const;
    for (const trick of tricks) {
      let first = true;
      hub.trick = () => {
        const now = first ? trick : undefined;
        first = false;
        return now;
      };
      const { config, parameters, tensors } = await inspectRemote('hf:org/tiny-GGUF', { settings });
      expect({ config, parameters, tensors }).toEqual({
        config: here.config,
        parameters: here.parameters,
        tensors: here.tensors,
      });
    }
  });

  test('is asked for in more pieces when the header is long', async () => {
    const long = tinyGguf(seeded(1), (metadata) =>
      metadata.set('general.notes', { type: 'strings', value: Array.from({ length: 900 }, () => 'x'.repeat(1000)) }),
    );
    hub.add('org/long-GGUF', { 'long.gguf': Buffer.from(long) });
    const { config, readBytes } = await surveyModel('hf:org/long-GGUF', { settings });
    expect(config.layers).toBe(1);
    expect(readBytes).toBeGreaterThan(900_000);
    expect(hub.downloads.length).toBeGreaterThan(1);
    expect(hub.downloads.every(({ range }) => range !== undefined)).toBe(true);
  });

  test('of a damaged one is refused as the file would be', async () => {
    hub.add('org/bad-GGUF', { 'bad.gguf': Buffer.concat([Buffer.from('GGUF'), Buffer.alloc(4000, 255)]) });
    await expect(surveyModel('hf:org/bad-GGUF', { settings })).rejects.toMatchObject({ code: 'bad-file' });
    await expect(surveyModel('ollama:x', { settings })).rejects.toMatchObject({ code: 'bad-argument' });
  });
});

describe('before a large download', () => {
  const looking = (): HubSettings => ({ ...settings, lookBytes: 0 });

  test('a model that cannot run here is refused, from its header', async () => {
    const big = Buffer.alloc(2 ** 22);
    const other = tinyGguf(seeded(1), (metadata) =>
      metadata.set('general.architecture', { type: 'string', value: 'gemma9' }),
    );
    hub.add('org/other-GGUF', { 'other.gguf': Buffer.from(other) });
    await expect(fetchFromHub('hf:org/other-GGUF', { settings: looking() })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('gemma9'),
    });
    const config = { ...JSON.parse(readFileSync(join(referenceModel, 'config.json'), 'utf8')), model_type: 'gemma9' };
    hub.add('org/other', { 'config.json': JSON.stringify(config), 'tokenizer.json': '{}', 'model.safetensors': big });
    await expect(fetchFromHub('hf:org/other', { settings: looking() })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('gemma9'),
    });
    expect(hub.downloads.every(({ path, range }) => range !== undefined || path.endsWith('config.json'))).toBe(true);
    expect(readdirSync(folder.dir)).not.toContain(`run-${run - 1}`);
  });

  test('of weights of a type that is not read, likewise', async () => {
    const content = Buffer.from(readFileSync(join(referenceModel, 'model.safetensors')));
    const end = 8 + Number(content.readBigUInt64LE(0));
    // A type of the same size, so that the header stays sound.
    const header = content.subarray(8, end).toString();
    const type = /"dtype":\s*"(F32|F16|BF16)"/.exec(header)![1]!;
    const unread = { F32: 'I32', F16: 'I16', BF16: 'I16 ' }[type]!;
    content.write(
      header.replaceAll(`"${type}"`, `"${unread.trim()}"${' '.repeat(type.length - unread.trim().length)}`),
      8,
    );
    const others = ['config.json', 'tokenizer.json'].map((name) => [name, readFileSync(join(referenceModel, name))]);
    hub.add('org/integers', { ...Object.fromEntries(others), 'model.safetensors': content });
    await expect(fetchFromHub('hf:org/integers', { settings: looking() })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(/of the type I(32|16)/),
    });
    expect((await inspectRemote('hf:org/integers', { settings })).memory.unreadable).toEqual([unread.trim()]);
  });

  test('one that can is fetched', async () => {
    expect(readFileSync(await fetchFromHub('hf:org/tiny-GGUF', { settings: looking() })).equals(gguf)).toBe(true);
  });
});

describe('whether it fits', () => {
  test.each([
    ['native', createNativeBackend, 'auto'],
    ['loops', createLoopBackend, 'exact'],
  ] as const)('counts the weights that %s takes to the byte, or nearly', async (name, create, precision) => {
    const experts = writeGguf(ggufParts(readFamily('mixtral')));
    for (const path of [referenceModel, folder.write('one.gguf', gguf), folder.write('experts.gguf', experts)]) {
      const model = await loadModel(path);
      const dense = await create(model, { precision, threads: 1 });
      const { weightsBytes } = memoryNeed(model.config, model.weights, { name }, precision);
      // The kernels round the sizes of small buffers up.
      expect(Math.abs(weightsBytes - dense.bytes)).toBeLessThan(0.02 * dense.bytes + 4096);
      await dense.close();
      model.weights.close();
    }
  });

  test('counts every expert of a model, but the rows of those that answer', async () => {
    const model = await loadModel(folder.write('experts.gguf', writeGguf(ggufParts(readFamily('qwen3-moe')))));
    const { config, weights } = model;
    const { parameters } = await inspectModel(model.path);
    // Two layers: eight experts of three matrices, q, k, v, o, the router, and norms of the stream and of heads;
    // embedding, head and norm.
    const layer = 8 * 3 * 64 * 96 + 2 * (256 + 128) * 96 + 8 * 96 + 2 * 96 + 2 * 64;
    expect(parameters).toBe(2 * layer + 2 * 256 * 96 + 96);
    const scratch = (experts: ModelConfig['experts']): number =>
      memoryNeed({ ...config, experts }, weights, { name: 'native' }, 'auto').scratchBytes;
    // What one more expert of a row needs: gate, up and answer, for 128 rows.
    const more = scratch({ ...config.experts!, used: 4 }) - scratch(config.experts);
    expect(more).toBe(4 * 128 * (2 * 64 + 96));
    weights.close();
  });

  test('counts those of the dense half that this machine chooses', async () => {
    const model = await loadModel(referenceModel);
    const { dense, choice } = await openDense(model, { precision: 'auto', threads: 1 });
    const { weightsBytes } = memoryNeed(model.config, model.weights, choice, 'auto');
    expect(Math.abs(weightsBytes - dense.bytes)).toBeLessThan(0.02 * dense.bytes);
    await dense.close();
    model.weights.close();
  });

  test('is yes, with a smaller cache, or no', async () => {
    const model = await loadModel(referenceModel);
    const need = memoryNeed(model.config, model.weights, { name: 'native' }, 'auto');
    const fit = (freeBytes: number) => fitOf(model.config, need, { tokens: 8192, freeBytes });
    const whole = fit(2 ** 40);
    expect(whole.fits).toBe('yes');
    const needs = 2 ** 40 - whole.spareF16Bytes;
    const least = 2 ** 40 - whole.spareLeastBytes;
    expect(least).toBeLessThan(needs);
    expect([fit(needs), fit(needs - 1), fit(least), fit(least - 1)].map(({ fits }) => fits)).toEqual([
      'yes',
      'with a smaller cache',
      'with a smaller cache',
      'no',
    ]);
    expect(whole.cache.f16Bytes).toBe(2 * 2 * 8192 * model.config.layers * model.config.kvHeads * model.config.headDim);
    expect(fit(2 ** 40).unreadable).toEqual([]);
    expect(fitOf(model.config, { ...need, unreadable: ['IQ1_S'] }, { freeBytes: 2 ** 40 }).fits).toBe('no');
    expect(fitOf(model.config, need).freeBytes).toBeGreaterThan(0);
    model.weights.close();
  });
});

describe('createEngine by name', () => {
  test('downloads, tells how far it is, and answers as the model does', async () => {
    const told: LoadProgress[] = [];
    const answer = async (model: string, offline = false): Promise<string> => {
      const engine = await createEngine({
        model,
        offline,
        stateDir: null,
        threads: 1,
        onProgress: (progress) => told.push(progress),
      });
      const text = await (await engine.openSession()).generate('Once upon a time', { maxTokens: 8 }).text();
      await engine.close();
      return text;
    };
    const text = await answer('hf:org/reference');
    expect(text).toBe(await answer('reference'));
    const stages = told.map(({ stage }) => stage);
    expect(stages.indexOf('download')).toBe(0);
    expect(stages.lastIndexOf('load')).toBe(stages.length - 1);
    const layers = told.filter(({ stage }) => stage === 'load');
    expect(layers.at(-1)!.done).toBe(layers.at(-1)!.total);
    // Here now: not a word to the server.
    hub.reset();
    expect(await answer('hf:org/reference', true)).toBe(text);
    expect(hub.seen).toEqual([]);
  });

  test('is refused offline, with a bad option before a download, and by what the caller throws', async () => {
    const make = (more: object) => createEngine({ model: 'hf:org/reference', stateDir: null, ...more });
    await expect(make({ offline: true })).rejects.toMatchObject({
      code: 'not-found',
      message: expect.stringContaining('offline'),
    });
    await expect(make({ kvBudget: 'much' })).rejects.toMatchObject({ code: 'bad-argument' });
    await expect(make({ offline: 'yes' })).rejects.toMatchObject({ code: 'bad-argument' });
    await expect(make({ onProgress: 1 })).rejects.toMatchObject({ code: 'bad-argument' });
    expect(hub.seen).toEqual([]);
    await expect(make({ signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'aborted' });
    await fetchFromHub('hf:org/reference', { settings });
    const thrown = new Error("the caller's own");
    const onProgress = (): void => {
      throw thrown;
    };
    await expect(make({ onProgress })).rejects.toBe(thrown);
    const abort = new AbortController();
    await expect(make({ signal: abort.signal, onProgress: () => abort.abort() })).rejects.toMatchObject({
      code: 'aborted',
    });
  });
});
