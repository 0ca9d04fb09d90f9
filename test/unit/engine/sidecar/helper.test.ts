// Tries a helper with real processes: they are killed, stopped and made to ask for more memory than they may have, and
// whoever asks gets no hint and goes on. A graph of one node takes as much memory as its input says.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { getPriority, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterEach, describe, expect, test } from 'vitest';
import { checkHelpers } from '../../../../engine/sidecar/check.ts';
import type { SentTensor } from '../../../../engine/sidecar/frames.ts';
import { Helper, type HelperOptions } from '../../../../engine/sidecar/helper.ts';
import { commandOf, findOrt, findWardens } from '../../../../engine/sidecar/helper-process.ts';
import { writeOnnxModel } from '../../../../engine/transformer/onnx-writer.ts';
import { refused } from '../../../refusal.ts';

const FILL = writeOnnxModel({
  name: 'fill',
  nodes: [
    { op: 'ConstantOfShape', inputs: ['n'], outputs: ['zeros'] },
    { op: 'Size', inputs: ['zeros'], outputs: ['size'] },
  ],
  initializers: [],
  inputs: [{ name: 'n', type: 'int64', shape: [1] }],
  outputs: [{ name: 'size', type: 'int64', shape: [] }],
});
const wardens = findWardens();
const NONE = { prlimit: null, setpriv: null, nice: null, chrt: null };
/** No test waits for this long; it is for machines that are slow. */
const PATIENT = { startMs: 120_000, deadlineMs: 120_000 };

const open: Helper[] = [];
afterEach(async () => {
  for (const helper of open.splice(0)) await helper.close();
});

function helperOf({ limits, ...rest }: HelperOptions = {}): Helper {
  const helper = new Helper('fill', FILL, { restMs: 0, ...rest, limits: { ...PATIENT, ...limits } });
  open.push(helper);
  return helper;
}

const asked = (n: number): SentTensor[] => [
  { name: 'n', type: 'int64', dims: [1], data: new Uint8Array(BigInt64Array.of(BigInt(n)).buffer) },
];

/** What it says that the size of n zeros is; null: nothing. */
async function sizeOf(helper: Helper, n: number, limits = {}): Promise<number | null> {
  const answer = await helper.ask(asked(n), limits);
  return answer === null ? null : Number(new BigInt64Array(answer[0]!.data.buffer as ArrayBuffer)[0]);
}

const isThere = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

async function gone(pid: number): Promise<void> {
  while (isThere(pid)) await new Promise((resolve) => setTimeout(resolve, 20));
}

describe('a helper that works', () => {
  test('answers in the order of its questions, and ends with close', async () => {
    const helper = helperOf();
    expect(helper.status).toMatchObject({ state: 'idle', starts: 0, trouble: null });
    expect(await Promise.all([3, 70_000, 5].map((n) => sizeOf(helper, n)))).toEqual([3, 70_000, 5]);
    expect(helper.status).toMatchObject({ state: 'running', starts: 1, answers: 3, failures: 0 });
    const pid = helper.pid!;
    await helper.close();
    expect(isThere(pid)).toBe(false);
    expect((await refused(helper.ask(asked(1)))).code).toBe('closed');
  });

  test.skipIf(process.platform !== 'linux')(
    'has no environment, no folder and the limits it was given (needs /proc)',
    async () => {
      const helper = helperOf({ limits: { dataBytes: 2 ** 29, cpuSeconds: 77 } });
      expect(await sizeOf(helper, 1)).toBe(1);
      const of = (name: string): string => join('/proc', String(helper.pid), name);
      expect(readFileSync(of('environ'), 'utf8')).toBe('');
      // Fields 19 and 41 of proc(5): nice and policy, of which 3 is SCHED_BATCH.
      const stat = readFileSync(of('stat'), 'utf8')
        .replace(/^.*\) /, '')
        .split(' ');
      if (wardens.nice !== null) expect(Number(stat[19 - 3])).toBe(Math.min(19, getPriority() + 10));
      if (wardens.chrt !== null) expect(stat[41 - 3]).toBe('3');
      expect(readlinkSync(of('cwd'))).toMatch(/palimpsest-helper-\w+ \(deleted\)$/);
      if (wardens.prlimit !== null) {
        const limits = readFileSync(of('limits'), 'utf8');
        expect(limits).toMatch(/Max data size\s+536870912\s/);
        expect(limits).toMatch(/Max cpu time\s+77\s/);
      }
    },
  );
});

describe('a helper that fails', () => {
  test('killed: one hint is missing, and the next question starts it again', async () => {
    const helper = helperOf();
    expect(await sizeOf(helper, 2)).toBe(2);
    const pid = helper.pid!;
    process.kill(pid, 'SIGSEGV');
    await gone(pid);
    expect(await sizeOf(helper, 2)).toBeNull();
    expect(helper.status).toMatchObject({ failures: 1, trouble: 'ended SIGSEGV' });
    expect(await sizeOf(helper, 2)).toBe(2);
    expect(helper.status).toMatchObject({ starts: 2, failures: 0 });
  });

  test('stopped: the question ends at its deadline, and so does the process', async () => {
    const helper = helperOf();
    expect(await sizeOf(helper, 2)).toBe(2);
    const pid = helper.pid!;
    process.kill(pid, 'SIGSTOP');
    expect(await Promise.all([2, 3].map((n) => sizeOf(helper, n, { deadlineMs: 50 })))).toEqual([null, null]);
    expect(isThere(pid)).toBe(false);
    expect(helper.status).toMatchObject({ failures: 1, trouble: 'gave no answer within 50 ms' });
    expect(await sizeOf(helper, 2)).toBe(2);
  });

  test.skipIf(wardens.prlimit === null)('out of memory: only itself is (needs prlimit)', async () => {
    const helper = helperOf({ limits: { dataBytes: 400 * 2 ** 20 } });
    expect(await sizeOf(helper, 10_000_000)).toBe(10_000_000);
    expect(await sizeOf(helper, 300_000_000)).toBeNull();
    expect(helper.status.trouble).not.toBeNull();
    expect(await sizeOf(helper, 2)).toBe(2);
  });

  test.skipIf(process.platform === 'win32')('where nothing limits memory, it is watched (needs ps)', async () => {
    const helper = helperOf({ limits: { dataBytes: 1 }, wardens: NONE });
    const hint = sizeOf(helper, 2);
    process.kill(helper.pid!, 'SIGSTOP');
    expect(await hint).toBeNull();
    expect(helper.status.trouble).toMatch(/^held \d+ bytes, 1 being allowed$/);
  });

  test('a question that its model does not take is a failure', async () => {
    const helper = helperOf();
    expect(await helper.ask([{ ...asked(1)[0]!, name: 'm' }])).toBeNull();
    expect(helper.status.trouble).toContain("'n'");
  });

  test('three times in a row: it is left alone', async () => {
    const helper = helperOf();
    for (let failure = 0; failure < 3; failure++) {
      const hint = sizeOf(helper, 2);
      process.kill(helper.pid!, 'SIGKILL');
      expect(await hint).toBeNull();
    }
    expect(helper.status).toMatchObject({ state: 'broken', starts: 3 });
    expect(await sizeOf(helper, 2)).toBeNull();
    expect(helper.status).toMatchObject({ starts: 3, failures: 3 });
    expect(helper.pid).toBeNull();
  });

  test('it rests after a failure', async () => {
    const helper = helperOf({ restMs: 1e9 });
    const hint = sizeOf(helper, 2);
    process.kill(helper.pid!, 'SIGKILL');
    expect(await hint).toBeNull();
    expect(await sizeOf(helper, 2)).toBeNull();
    expect(helper.status).toMatchObject({ state: 'resting', starts: 1, failures: 1 });
  });
});

test('the check that `doctor` makes finds out whether they run, and why not', async () => {
  expect(await checkHelpers()).toEqual({ trouble: null, wardens });
});

test('a helper ends with its engine, even one that is stopped where the system can tell it', async () => {
  const root = new URL('../../../../', import.meta.url);
  const program = `
    import { writeFileSync } from 'node:fs';
    const { Helper } = await import('${new URL('engine/sidecar/helper.ts', root).href}');
    const helper = new Helper('fill', Buffer.from('${Buffer.from(FILL).toString('base64')}', 'base64'), { limits: ${JSON.stringify(PATIENT)} });
    const n = new Uint8Array(BigInt64Array.of(1n).buffer);
    const answer = await helper.ask([{ name: 'n', type: 'int64', dims: [1], data: n }]);
    console.log(answer === null ? helper.status.trouble : helper.pid);
    setInterval(() => {}, 1000);
  `;
  const parent = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program], {
    cwd: fileURLToPath(root),
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const pid = await new Promise<number>((resolve) => parent.stdout.once('data', (line) => resolve(Number(line))));
  expect(isThere(pid)).toBe(true);
  if (wardens.setpriv !== null) process.kill(pid, 'SIGSTOP');
  parent.kill('SIGKILL');
  await gone(pid);
}, 60_000);

test('its permissions are for its own code alone: nothing else is read, written or started', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'permissions-'));
  try {
    const file = join(folder, 'child.mjs');
    writeFileSync(
      file,
      `import { readFileSync, writeFileSync } from 'node:fs';
      import { spawnSync } from 'node:child_process';
      import { createRequire } from 'node:module';
      const of = (work) => { try { work(); return 'done'; } catch (error) { return error.code; } };
      console.log(JSON.stringify([
        of(() => createRequire(import.meta.url)(process.argv[2])),
        of(() => readFileSync(${JSON.stringify(fileURLToPath(import.meta.url))})),
        of(() => writeFileSync(${JSON.stringify(join(folder, 'written'))}, 'x')),
        of(() => spawnSync('true')),
      ]));`,
    );
    const [command, ...args] = commandOf(
      { dataBytes: 2 ** 29, cpuSeconds: 60 },
      wardens,
      { url: pathToFileURL(file), loader: null },
      findOrt()!,
    );
    const child = spawn(command!, args, { cwd: folder, env: {}, stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    for await (const chunk of child.stdout) output += String(chunk);
    expect(JSON.parse(output)).toEqual(['done', 'ERR_ACCESS_DENIED', 'ERR_ACCESS_DENIED', 'ERR_ACCESS_DENIED']);
    expect(existsSync(join(folder, 'written'))).toBe(false);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
