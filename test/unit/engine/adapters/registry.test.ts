// Adapters that a state folder knows by name: what was added comes back to the bit, for models in either format; a name
// moves, and what nothing stands for goes; what was damaged is refused; and an engine reads them when a session asks.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Adapters } from '../../../../engine/adapters/adapters.ts';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { AdapterRegistry } from '../../../../engine/adapters/registry.ts';
import { createEngine } from '../../../../engine/index.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import type { LoadedModel } from '../../../../engine/transformer/types.ts';
import { ggufParts, hfFiles, readFamily } from '../../../model/family-files.ts';
import { refusal, refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';
import { gguf, type RawTensor, temporaryFolder } from '../transformer/model-files.ts';
import { adaptable, lowRank, matricesOf, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const folder = temporaryFolder();
let llama: LoadedModel;
let stored: LoadedModel;
const PATHS: string[] = [];
beforeAll(async () => {
  const golden = readFamily('llama');
  for (const [file, content] of Object.entries(hfFiles(golden))) folder.write(`llama/${file}`, content);
  llama = await loadModel(join(folder.dir, 'llama'));
  stored = await loadModel(folder.write('llama.gguf', gguf(ggufParts(golden))));
  for (let i = 0; i < 2; i++) {
    const factors = lowRank(adaptable('llama'), () => 3 + i, i + 1);
    PATHS.push(writePeft(folder, `a${i}`, peftConfig({ r: 3 + i }), peftTensors(factors)));
  }
});
afterAll(() => {
  llama.weights.close();
  stored.weights.close();
  folder.remove();
});

/** An adapter with magnitudes. */
function dora(): string {
  const factors = lowRank(adaptable('llama'), () => 3, 5);
  const magnitudes = factors.map(({ module, b }, i): [string, RawTensor] => {
    const values = Float32Array.from({ length: b.length / 3 }, (_, o) => 1 + ((o + i) % 5) / 8);
    const bytes = new Uint8Array(values.buffer);
    return [`base_model.model.${module}.lora_magnitude_vector`, { dtype: 'F32', shape: [values.length], bytes }];
  });
  const tensors = { ...peftTensors(factors), ...Object.fromEntries(magnitudes) };
  return writePeft(folder, 'dora', peftConfig({ r: 3, use_dora: true }), tensors);
}

let count = 0;
const fresh = (): { dir: string; registry: AdapterRegistry; files(): string[] } => {
  const dir = join(folder.dir, `state-${count++}`);
  return { dir, registry: new AdapterRegistry(dir), files: () => readdirSync(join(dir, 'adapters', 'files')) };
};

test('what was added comes back, also for a model whose rows have another order', () => {
  for (const [own, other] of [
    [llama, stored],
    [stored, llama],
  ] as const) {
    const { registry } = fresh();
    for (const path of [PATHS[0]!, dora()]) {
      const adapter = readAdapter(path, own);
      const registered = registry.add('style', adapter, own);
      expect(registry.read(registered, own)).toEqual(adapter);
      // Of DoRA what was computed from the weights is kept, which the other file has as well.
      expect(registry.read(registered, other)).toEqual(readAdapter(path, other));
    }
  }
});

test('names move, are sorted and may hold anything; what no name stands for goes', () => {
  const { registry, files } = fresh();
  expect(registry.list()).toEqual([]);
  const [one, two] = PATHS.map((path) => readAdapter(path, llama));
  const names = ['b', '../a', 'A', 'ü/\u0000', 'x'.repeat(256)];
  for (const name of names) registry.add(name, one!, llama);
  expect(registry.list().map(({ name }) => name)).toEqual([...names].sort());
  expect(files()).toHaveLength(1);
  registry.add('b', two!, llama);
  expect(registry.find('b')!.digest).toBe(two!.digest);
  expect(files()).toHaveLength(2);
  registry.add('b', one!, llama);
  expect(files()).toHaveLength(1);
  for (const name of names) expect(registry.remove(name).digest).toBe(one!.digest);
  expect([files(), registry.list()]).toEqual([[], []]);
  expect(refusal(() => registry.remove('b')).code).toBe('not-found');
  for (const name of ['', 'x'.repeat(257)])
    expect(refusal(() => registry.add(name, one!, llama)).code).toBe('bad-argument');
});

test('what was damaged is refused, and another model', () => {
  const { dir, registry, files } = fresh();
  const registered = registry.add('style', readAdapter(PATHS[0]!, llama), llama);
  const path = join(dir, 'adapters', 'files', files()[0]!);
  const bytes = readFileSync(path);
  const refusedAs = (content: Uint8Array): string => {
    writeFileSync(path, content);
    return refusal(() => registry.read(registered, llama)).code;
  };
  const turned = Buffer.from(bytes);
  turned[bytes.length - 3]! ^= 1;
  expect(refusedAs(turned)).toBe('checksum-mismatch');
  expect(refusedAs(bytes.subarray(0, bytes.length - 4))).toBe('bad-file');
  expect(refusedAs(new Uint8Array())).toBe('bad-file');
  writeFileSync(path, bytes);
  expect(registry.read(registered, llama).digest).toBe(registered.digest);
  const narrow = { config: { ...llama.config, hiddenSize: llama.config.hiddenSize / 2 } };
  expect(refusal(() => registry.read(registered, narrow)).code).toBe('model-mismatch');
  const [name] = readdirSync(join(dir, 'adapters', 'names'));
  for (const text of ['', '{}', JSON.stringify({ ...registered, digest: '../../x' })]) {
    writeFileSync(join(dir, 'adapters', 'names', name!), text);
    expect(refusal(() => registry.find('style')).code).toBe('bad-file');
  }
});

test('an engine has those of its state folder: known, then resident, and what was named is kept by who has it', async () => {
  const { dir, registry } = fresh();
  const model = await loadModel(MODEL);
  const paths = [8, 2].map((r, i) => {
    const factors = lowRank(matricesOf(model.config), () => r, 90 + i, 0.4);
    return writePeft(folder, `r${i}`, peftConfig({ r }), peftTensors(factors));
  });
  const adapters = paths.map((path) => readAdapter(path, model));
  for (const [i, adapter] of adapters.entries()) registry.add(`style${i}`, adapter, model);
  model.weights.close();
  const named = { a: paths[0]!, b: paths[1]! };
  const isolated = await createEngine({ model: MODEL, threads: 1, stateDir: null, adapters: named });
  const engine = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
  const answer = async (of: typeof engine, name: string): Promise<string> => {
    const session = await of.openSession({ exact: true, witness: false, adapters: [{ name }] });
    const text = await session.generate(ids(20), { maxTokens: 8 }).text();
    await session.close();
    return text;
  };
  try {
    expect((await engine.adapters.list()).map(({ name, state, bytes }) => [name, state, bytes])).toEqual([
      ['style0', 'known', 0],
      ['style1', 'known', 0],
    ]);
    const expected = [await answer(isolated, 'a'), await answer(isolated, 'b')];
    expect(await answer(engine, 'style0')).toBe(expected[0]);
    const open = await engine.openSession({ exact: true, witness: false, adapters: [{ name: 'style0' }] });
    expect(await engine.adapters.list()).toMatchObject([
      { name: 'style0', state: 'resident', sessions: 1, digest: adapters[0]!.digest },
      { name: 'style1', state: 'known', sessions: 0 },
    ]);
    // Somebody else gives the name to another adapter.
    new AdapterRegistry(dir).add('style0', adapters[1]!, { config: engine.info.config });
    expect(await answer(engine, 'style0')).toBe(expected[1]);
    expect(await open.generate(ids(20), { maxTokens: 8 }).text()).toBe(expected[0]);
    await open.close();
    expect((await refused(engine.adapters.remove('style1'))).code).toBe('not-found');
    registry.remove('style1');
    expect((await refused(engine.openSession({ adapters: [{ name: 'style1' }] }))).code).toBe('not-found');
    expect(existsSync(join(dir, 'adapters', 'names'))).toBe(true);
  } finally {
    await engine.close();
    await isolated.close();
  }
});

test('registered adapters that nobody has are freed when they are too many: the idle, large and fast to read first', async () => {
  const { registry } = fresh();
  const runtime = await Runtime.open({ model: MODEL, threads: 1, adapters: true });
  try {
    const bare = runtime.dense.bytes;
    const matrices = matricesOf(runtime.model.config).slice(0, 7);
    const names = Array.from({ length: 24 }, (_, i) => `a${i}`);
    for (const [i, name] of names.entries()) {
      const factors = lowRank(matrices, () => 4, 200 + i);
      const path = writePeft(folder, name, peftConfig({ r: 4 }), peftTensors(factors));
      registry.add(name, readAdapter(path, runtime.model), runtime.model);
    }
    const adapters = new Adapters(runtime, registry, 1);
    const holder = {};
    const held = adapters.set([{ name: 'a0' }]);
    held.hold(holder);
    for (const name of names) {
      const session = {};
      const set = adapters.set([{ name }]);
      set.hold(session);
      set.leave(session);
    }
    const resident = (): string[] => adapters.list().flatMap(({ name, state }) => (state === 'resident' ? [name] : []));
    // Of one that is asked for a session is about to be opened.
    const asked = adapters.set([{ name: 'a23' }]);
    expect(resident()).toEqual(['a0', 'a23']);
    const each = adapters.list().find(({ name }) => name === 'a0')!.bytes;
    expect(runtime.dense.bytes - bare).toBe(resident().length * each);
    asked.drop();
    expect(resident()).toEqual(['a0']);
    held.leave(holder);
    expect(new Adapters(runtime, null).list()).toEqual([]);
  } finally {
    await runtime.close();
  }
});
