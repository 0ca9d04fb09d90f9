/**
 * Threads of the addon need no stack that a system may not give: musl gives a thread 128 KiB where it names no size,
 * macOS 512 KiB, and a page of rows takes as much. Processes of their own, into which small-stacks.c is preloaded, move
 * and try pages between all formats and latents on the background thread and the others, with rows that take the
 * longest ways: of large norms, some far from the mean.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { nativeInfo } from '../../../native/index.ts';

const root = join(import.meta.dirname, '../../..');
const { binding } = nativeInfo();
// With sanitizers frames are larger than they are in what anybody uses.
const isPlain = binding === 'built' || binding === 'prebuilt';
const hasCompiler = process.platform === 'linux' && spawnSync('gcc', ['--version']).status === 0;

const program = `
  import { encodeLatent, FORMATS, isMove, openKvCache, openPool, SERVED_FORMATS } from './native/index.ts';
  import { normals, uniform } from './test/native/dense.ts';
  const random = uniform(20261126);
  const WIDTH = 512;
  // Until the background thread has done it: who waits with finish…(true) may do it himself.
  const finish = (ended, most) => {
    const found = [];
    while (found.length < most) found.push(...ended());
    return found;
  };
  for (const headDim of JSON.parse(process.env.HEAD_DIMS)) {
    const row = 2 * headDim;
    const cache = openKvCache({ shape: { layers: 1, queryHeads: 4, kvHeads: 2, headDim }, pool: openPool(1e9), threads: 3 });
    const serves = (name) => FORMATS[name].headDims === 'any' || FORMATS[name].headDims.includes(headDim);
    const formats = SERVED_FORMATS.filter((name) => serves(name) && name !== 'q8' && isMove('q8', name));
    const tokens = 128 * (formats.length + 2) + 16;
    const rows = () => {
      const x = normals(random, tokens * row, 900);
      for (let i = 0; i < x.length; i++) x[i] = Math.floor(i / row) % 9 === 0 ? x[i] / 1000 : x[i] + 2000;
      return x;
    };
    cache.append(0, rows(), rows());
    const q = normals(random, 128 * 2 * row, 1e-4);
    cache.attend(0, q, new Float32Array(q.length));
    const candidates = formats.flatMap((format) => [{ side: 'k', format }, { side: 'v', format }]);
    cache.startTrial(0, 0, candidates);
    finish(() => cache.finishTrials(false), 1);
    cache.trial(0, 1, candidates);
    for (const [i, format] of formats.entries()) {
      cache.startMove(0, i, 'kv', format);
      finish(() => cache.finishMoves(false), 1);
      const lower = formats.findLast((name) => name !== format && isMove(format, name));
      if (lower === undefined) continue;
      cache.startMove(0, i, 'kv', lower);
      finish(() => cache.finishMoves(false), 1);
    }
    const held = formats.length;
    cache.setLatentWeights(0, { width: WIDTH, wk: normals(random, row * WIDTH, 0.1), wv: normals(random, row * WIDTH, 0.1) });
    cache.keepLatent(0, held, 'xq8', encodeLatent('xq8', normals(random, 128 * WIDTH), WIDTH, 0));
    cache.startTrial(0, held, [{ side: 'kv', format: 'xq4' }, { side: 'kv', format: 'xq3' }]);
    finish(() => cache.finishTrials(false), 1);
    cache.close();
  }
  console.log('done');`;

let folder = '';
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'palimpsest-stacks-'));
  if (!hasCompiler) return;
  const args = [
    '-shared',
    '-fPIC',
    '-O1',
    '-o',
    join(folder, 'small.so'),
    join(root, 'test/native/small-stacks.c'),
    '-ldl',
  ];
  expect(spawnSync('gcc', args, { encoding: 'utf8' })).toMatchObject({ status: 0, stderr: '' });
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** How the program ends where threads have small stacks, what it printed, and how many of them there were. */
function ends(stack: number, headDims: readonly number[], env: Readonly<Record<string, string>> = {}) {
  const { status, signal, stdout, stderr } = spawnSync(
    process.execPath,
    ['--import', 'tsx', '--input-type=module', '-e', program],
    {
      cwd: root,
      encoding: 'utf8',
      env: {
        ...process.env,
        LD_PRELOAD: join(folder, 'small.so'),
        HEAD_DIMS: JSON.stringify(headDims),
        SMALL_STACK: String(stack),
        ...env,
      },
    },
  );
  const lines = stderr.split('\n').filter((line) => line !== '');
  const others = lines.filter((line) => line !== 'a small stack');
  return { status, signal, printed: stdout.trim(), small: lines.length - others.length, said: others.join('\n') };
}

const WELL = { status: 0, signal: null, printed: 'done', said: '' };

describe.skipIf(!isPlain || !hasCompiler)('threads of the addon (needs Linux, gcc, no sanitizer)', () => {
  it.each([
    [128, 64],
    [512, 256],
  ])('name a stack of their own, so none gets the %s KiB of a system, with heads of %s', (kib, headDim) => {
    expect(ends(kib << 10, [headDim])).toEqual({ ...WELL, small: 0 });
  });

  it('work within 128 KiB even so: no kernel keeps a page on the stack', () => {
    const { small, ...rest } = ends(128 << 10, [64, 128, 256], { SMALL_STACK_OURS: '1' });
    expect(rest).toEqual(WELL);
    // Two beside the caller, and of each cache the mover.
    expect(small).toBe(5);
  });
});
