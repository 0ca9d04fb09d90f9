// The dense half runs everywhere: on every instruction set of this machine (or in WebAssembly, with
// PALIMPSEST_BINDING=wasm), without onnxruntime-node, with logits of the reference model that agree between them. First
// in this process, then as a whole engine in processes of their own, from a copy of the built package beside which
// onnxruntime-node was never installed.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { chooseDense, openDense } from '../../../../engine/transformer/dense-choice.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import { nativeInfo, setIsa } from '../../../../native/index.ts';
import { logitsAt, plainAttention } from '../../../model/forward.ts';
import { BINDING } from '../../../native/binding.ts';
import { temporaryFolder } from './model-files.ts';

const { available, isa: best } = nativeInfo();
/** Instruction sets on which our kernels are faster than onnxruntime's. */
const isOurs = (isa: string): boolean => isa.startsWith('avx');
afterAll(() => setIsa(best));

const absent = async (): Promise<never> => {
  throw Object.assign(new Error("Cannot find package 'onnxruntime-node'"), { code: 'ERR_MODULE_NOT_FOUND' });
};
const IDS = Array.from({ length: 48 }, (_, i) => 300 + ((i * 7919) % 3000));

/** Logits after 48 tokens, through attention in float64, so that nothing but the dense half differs. */
async function logits(isa: (typeof available)[number]): Promise<Float32Array> {
  setIsa(isa);
  const model = await loadModel('reference');
  const { dense, choice } = await openDense(model, { precision: 'auto', threads: 1 }, absent);
  expect(choice.name).toBe('native');
  const attention = plainAttention(model.config);
  const [last] = await logitsAt(dense, model.config, new Rotary(model.config), attention, IDS, 16, [IDS.length - 1]);
  await dense.close();
  model.weights.close();
  return last!;
}

describe('without onnxruntime-node', () => {
  // Sums within a block are whole numbers; what follows fuses into one rounding where the hardware can, which only
  // `scalar` here cannot. Where sums differ in the last bit, an activation may round to the other neighbour, 1/32512 of
  // its block's largest away. If all of them did, in seven products a layer of six layers, it would be 2e-4 · √42.
  test.each(available)('%s gives the logits of the best instruction set, to the bit where both fuse', async (isa) => {
    const [expected, found] = [await logits(best), await logits(isa)];
    if (isa !== 'scalar') return expect(found).toEqual(expected);
    const mean = expected.reduce((a, b) => a + b, 0) / expected.length;
    const spread = Math.sqrt(expected.reduce((sum, value) => sum + (value - mean) ** 2, 0) / expected.length);
    const square = expected.reduce((sum, value, i) => sum + (value - found[i]!) ** 2, 0) / expected.length;
    expect(Math.sqrt(square) / spread).toBeLessThan(2e-4 * Math.sqrt(42));
  });

  test.each(available)('%s says that its loops are the portable ones, or made for it', async (isa) => {
    setIsa(isa);
    const { name, why } = await chooseDense('auto', absent);
    expect(name).toBe('native');
    expect(why).toContain(isOurs(isa) ? `written for ${isa}` : 'portable loops for');
  });

  test('float32 runs in loops, and says so', async () => {
    const { name, why } = await chooseDense('exact', absent);
    expect({ name, why }).toEqual({ name: 'loops', why: expect.stringContaining('onnxruntime-node') });
  });
});

test('onnxruntime-node is taken where it is faster, and for float32', async () => {
  for (const isa of available) {
    setIsa(isa);
    expect(await chooseDense('auto')).toMatchObject({ name: isOurs(isa) ? 'native' : 'onnxruntime' });
    expect(await chooseDense('exact')).toEqual({ name: 'onnxruntime', why: 'float32', isSecondBest: false });
  }
});

test('onnxruntime-node is never taken for a model with experts', async () => {
  const given = { experts: { count: 8, used: 2, shareAmongChosen: true } };
  for (const isa of available) {
    setIsa(isa);
    expect(await chooseDense('auto', undefined, given)).toMatchObject({ name: 'native', isSecondBest: false });
    expect(await chooseDense('exact', undefined, given)).toMatchObject({ name: 'loops', isSecondBest: false });
  }
});

/** The built package with its dependencies but for onnxruntime-node, as somebody has it who never installed that. */
const folder = temporaryFolder();
afterAll(() => folder.remove());
const root = join(import.meta.dirname, '..', '..', '..', '..');
const packageDir = join(folder.dir, 'package');
beforeAll(() => {
  mkdirSync(join(packageDir, 'node_modules'), { recursive: true });
  cpSync(join(root, 'dist'), join(packageDir, 'dist'), { recursive: true });
  for (const name of ['package.json', 'models', 'native', 'prebuilds', 'migrations'])
    if (existsSync(join(root, name))) symlinkSync(join(root, name), join(packageDir, name));
  for (const name of readdirSync(join(root, 'node_modules')))
    if (!/^(\.|onnxruntime)/.test(name))
      symlinkSync(join(root, 'node_modules', name), join(packageDir, 'node_modules', name));
});
const dist = join(packageDir, 'dist', 'engine');

function run(args: readonly string[]): string {
  const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return stdout;
}

describe.each(available)('a whole engine on %s without onnxruntime-node', (isa) => {
  test('answers, and its report says what it runs on', () => {
    const binding = BINDING === undefined ? {} : { binding: BINDING };
    const script = `
      const { createEngine } = await import(${JSON.stringify(pathToFileURL(join(dist, 'index.js')).href)});
      const engine = await createEngine({ model: 'reference', stateDir: null, ...${JSON.stringify({ ...binding, isa })} });
      const session = await engine.openSession({});
      const { text } = await session.generate('It was a', { maxTokens: 8, temperature: 0 }).result;
      console.log(JSON.stringify({ text, dense: (await session.report()).dense }));
      await engine.close();`;
    const { text, dense } = JSON.parse(run(['--input-type=module', '-e', script]));
    expect(text).not.toBe('');
    expect(dense).toMatch(isOurs(isa) ? /^native: written for/ : /^native: portable loops for .*onnxruntime-node/);
  });

  test('doctor says the same', () => {
    const binding = BINDING === undefined ? [] : ['--binding', BINDING];
    const facts = JSON.parse(run([join(dist, 'cli', 'main.js'), 'doctor', '--json', '--isa', isa, ...binding]));
    expect(facts).toMatchObject({ dense: 'native', isaEffective: isa });
    expect(facts.denseWhy).toMatch(isOurs(isa) ? /written for/ : /portable loops/);
  });
});

test('a whole engine answers in float32 without onnxruntime-node', () => {
  const binding = BINDING === undefined ? {} : { binding: BINDING };
  const script = `
    const { createEngine } = await import(${JSON.stringify(pathToFileURL(join(dist, 'index.js')).href)});
    const engine = await createEngine({ model: 'reference', stateDir: null, dense: 'exact', ...${JSON.stringify(binding)} });
    const session = await engine.openSession({});
    const { text } = await session.generate('It was a', { maxTokens: 4, temperature: 0 }).result;
    console.log(JSON.stringify({ text, dense: (await session.report()).dense }));
    await engine.close();`;
  const { text, dense } = JSON.parse(run(['--input-type=module', '-e', script]));
  expect(text).not.toBe('');
  expect(dense).toMatch(/^loops: float32/);
});
