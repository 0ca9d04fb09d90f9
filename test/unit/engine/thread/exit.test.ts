// A program that leaves in the middle of the model's work must leave with its own exit code. The thread is inside
// native code most of that time, and ending it there aborted four of ten such processes. Processes of their own, ended
// after different times.
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, it } from 'vitest';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const root = join(import.meta.dirname, '..', '..', '..', '..');
const library = pathToFileURL(join(root, 'dist', 'engine', 'index.js')).href;

interface Left {
  readonly code: number | null;
  readonly signal: string | null;
  readonly err: string;
}

/** Runs `work` with an engine that reads 2,900 tokens; → exit code, signal and what was said on stderr. */
function leave(work: string): Promise<Left> {
  const script = `
    import { createEngine } from ${JSON.stringify(library)};
    const opening = createEngine({ model: 'reference', stateDir: null, threads: 2 });
    const read = async () => {
      const engine = await opening;
      const session = await engine.openSession({ kvBudget: '30%', tokensExpected: 3000 });
      const ids = Array.from({ length: 2900 }, (_, i) => 300 + ((i * 7919) % 3000));
      session.generate(ids, { maxTokens: 5 }).result.catch(() => {});
      return engine;
    };
    ${work}`;
  return run(script);
}

function run(script: string, binary = process.execPath): Promise<Left> {
  const path = join(folder(), 'leave.mjs');
  writeFileSync(path, script);
  const child = spawn(binary, [path], { timeout: 600_000, killSignal: 'SIGKILL' });
  let err = '';
  child.stderr.on('data', (chunk) => (err += chunk));
  return new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal, err })));
}

const LEFT = { code: 7, signal: null, err: '' };

describe('a process that exits', () => {
  it('by having nothing left to do is not kept by an engine that nobody closed, which closes itself', async () => {
    const state = JSON.stringify(folder());
    const { code, err } = await leave(`
      (await opening).close();
      const engine = await createEngine({ model: 'reference', stateDir: ${state}, threads: 1 });
      const session = await engine.openSession();
      await session.generate('Once upon a time', { maxTokens: 4 }).result;
      process.exitCode = 7;`);
    expect({ code, err }).toEqual({ code: 7, err: '' });
    expect([...readLog(logDir(JSON.parse(state)), { kinds: ['close'] })]).toHaveLength(1);
  });

  it.each([20, 90, 170, 260, 350, 450])('while a prompt has been read for %i ms ends as it says', async (ms) => {
    expect(await leave(`await read(); setTimeout(() => process.exit(7), ${ms});`)).toEqual(LEFT);
  });

  it.each([150, 300])('%i ms after a model began to load ends as it says', async (ms) => {
    expect(await leave(`opening.catch(() => {}); setTimeout(() => process.exit(7), ${ms});`)).toEqual(LEFT);
  });

  it('by an error that nobody catches ends with that error', async () => {
    const { code, signal, err } = await leave(
      `await read(); setTimeout(() => { throw new Error('of the caller'); }, 200);`,
    );
    expect({ code, signal }).toEqual({ code: 1, signal: null });
    expect(err).toContain('of the caller');
  });
});

it.each([40, 130, 220])('an engine terminated after %i ms of reading is gone, and its process goes on', async (ms) => {
  const after = `setTimeout(async () => { await engine.terminate(); setTimeout(() => process.exit(7), 50); }, ${ms});`;
  expect(await leave(`const engine = await read(); ${after}`)).toEqual(LEFT);
});

interface Platform {
  readonly name: string;
  readonly binary: string | null;
}
const { RUNTIMES, binaryOf } = (await import(join(root, 'scripts/smoke-runtimes.mjs'))) as {
  RUNTIMES: readonly { readonly name: string }[];
  binaryOf: (runtime: { readonly name: string }) => string | null;
};
const platforms: Platform[] = [
  { name: 'this Node', binary: process.execPath },
  ...RUNTIMES.filter(({ name }) => name !== 'Deno').map((runtime) => ({
    name: runtime.name,
    binary: binaryOf(runtime),
  })),
];

// onnxruntime has threads of its own, which the float32 half of a model computes on.
describe.each(platforms)('with onnxruntime loaded, on $name, a process', ({ name, binary }) => {
  const script = (end: string): string => `
    import { createEngine } from ${JSON.stringify(library)};
    const engine = await createEngine({ model: 'reference', stateDir: null, threads: 2, dense: 'exact' });
    const session = await engine.openSession({ tokensExpected: 1000 });
    const { dense } = await session.report();
    if (!dense.startsWith('onnxruntime')) throw new Error(dense);
    const write = (maxTokens) => session.generate('Once upon a time', { maxTokens, temperature: 1, seed: 1 }).result;
    await write(4);
    process.exitCode = 7;
    ${end}`;
  const writing = 'write(500).catch(() => {});';
  const ends: [string, string, Pick<Left, 'code' | 'signal'>][] = [
    ['that has nothing left to do', '', { code: 7, signal: null }],
    ['that exits while it writes', `${writing} setTimeout(() => process.exit(8), 60);`, { code: 8, signal: null }],
    [
      'that is told to end while it writes',
      `${writing} setTimeout(() => process.kill(process.pid, 'SIGTERM'), 60);`,
      { code: null, signal: 'SIGTERM' },
    ],
  ];

  it.for(ends)('%s leaves as it says', async ([, end, left], { skip }) => {
    if (binary === null) skip(`${name} was not fetched: node scripts/smoke-runtimes.mjs`);
    else expect(await run(script(end), binary)).toEqual({ ...left, err: '' });
  });
});
