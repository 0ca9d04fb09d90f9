// A thread starts from source and from the built package alike, also where the process was started with flags that mean
// its main program: a line of code as a module (--input-type), a hook (--import). Each is a process of its own, because
// those flags are.
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { startThread } from '../../../native/thread.ts';

const root = join(import.meta.dirname, '../../..');
const built = join(root, 'dist/native/thread.js');
const folder = mkdtempSync(join(tmpdir(), 'palimpsest-thread-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const answer = `import { parentPort, workerData } from 'node:worker_threads';\nparentPort.postMessage(workerData + 1);\n`;
writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
for (const name of ['answer.ts', 'answer.js', 'hook.mjs'])
  writeFileSync(join(folder, name), name === 'hook.mjs' ? '' : answer);

/** What a thread answers that a program started with `flags` has started by the module `from`. */
function answerOf(from: string, flags: readonly string[]): unknown {
  const program = `
    const { startThread } = await import(${JSON.stringify(pathToFileURL(from).href)});
    const thread = startThread(new URL(${JSON.stringify(pathToFileURL(join(folder, 'answer.ts')).href)}), 41);
    thread.on('message', (x) => console.log(x));
    thread.on('error', (error) => console.log(error.code ?? error.message));`;
  const { stdout, stderr } = spawnSync(process.execPath, [...flags, '-e', program], { cwd: root, encoding: 'utf8' });
  return stdout.trim() === '' ? stderr : stdout.trim();
}

const hook = pathToFileURL(join(folder, 'hook.mjs')).href;
test.skipIf(!existsSync(built)).each([
  ['a line of code', ['--input-type=module']],
  ['a line of code, with a hook', ['--input-type=module', '--import', hook]],
])('from the built package, in %s (needs npm run build)', (_, flags) => {
  expect(answerOf(built, flags)).toBe('42');
});

test('from source, in a line of code', () => {
  expect(answerOf(join(root, 'native/thread.ts'), ['--import', 'tsx', '--input-type=module'])).toBe('42');
});

test('its new objects have little room, so that it does not grow under load and stay so', async () => {
  const thread = startThread(pathToFileURL(join(folder, 'answer.js')), 41, { maxOldGenerationSizeMb: 64 });
  const answered = once(thread, 'message');
  expect(thread.resourceLimits).toMatchObject({ maxYoungGenerationSizeMb: 6, maxOldGenerationSizeMb: 64 });
  expect(await answered).toEqual([42]);
  await thread.terminate();
});
