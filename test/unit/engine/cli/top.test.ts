// `palimpsest top` beside an engine of another process: what it says of open sessions is what they say of themselves,
// and it ends when it is told to, on a terminal and elsewhere.
import { spawn } from 'node:child_process';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineSession, type LiveView, serve } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { isLocked } from '../../../../witness/index.ts';
import { ids, MODEL } from '../on-reference.ts';
import { dir, expectRefused, lastLine, palimpsest, root, widest } from './command.ts';

const state = join(dir, 'top');
let engine: Engine;
let view: LiveView;
let sessions: readonly EngineSession[];
beforeAll(async () => {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: state, kvBudget: '1.6MiB', idleSessions: 'keep' });
  view = await serve(engine, { port: 0 });
  sessions = [await engine.openSession(), await engine.openSession(), await engine.openSession()];
  for (let turn = 0; turn < 15; turn++) await sessions[turn % 3]!.read(ids(turn < 3 ? 256 : 96, turn));
  await sessions[0]!.flush();
});
afterAll(async () => {
  await view.close();
  await engine.close();
  rmSync(dir, { recursive: true, force: true });
});

type Row = Record<string, unknown>;
const looked = async (...more: string[]): Promise<Row> =>
  lastLine((await palimpsest(['top', '--state', state, '--once', '--json', ...more])).out);

describe('palimpsest top', () => {
  it('says of each open session what the session says, and of the pool what its series says', async () => {
    const found = await looked('--url', view.url);
    const rows = found['sessions'] as Row[];
    expect(new Set(rows.map(({ session }) => session))).toEqual(new Set(sessions.map(({ id }) => id)));
    for (const session of sessions) {
      const { tokens, kvBytesNow } = await session.report();
      const row = rows.find((one) => one['session'] === session.id)!;
      // The log was told when a page was full.
      expect(tokens - (row['tokens'] as number)).toBeLessThan(128);
      expect(row).toMatchObject({
        state: expect.stringMatching(/^(working|waiting)$/),
        model: expect.any(String),
      });
      expect((row['bytes'] as number) / kvBytesNow).toBeGreaterThan(0.75);
      expect(row['bits']).toBeGreaterThan(2);
      expect(row['bits']).toBeLessThan(16);
    }
    expect(rows.reduce((sum, row) => sum + (row['gaveUpBytes'] as number), 0)).toBeGreaterThan(0);
    expect(rows.some(({ price }) => (price as number) > 0)).toBe(true);
    const [pool] = found['pools'] as Row[];
    expect(pool).toMatchObject({ pool: expect.stringMatching(/^pool-/), budgetBytes: 1_677_721 });
    expect(pool!['bytes']).toBeLessThanOrEqual(1_677_721);
    expect(pool!['givenBytes']).toBe(rows.reduce((sum, row) => sum + (row['gaveUpBytes'] as number), 0));
    expect(found['engine']).toMatchObject({ running: 0, waiting: 0, budgetBytes: 1_677_721, promptTokens: 1920 });
  });

  it('is a table of the width of a terminal, of as many rows as were asked for', async () => {
    const { code, out, err } = await palimpsest(['top', '--state', state, '--once', '--limit', '2']);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toMatch(/^pool-\w{8}: .* of 1\.6 MiB \(.*%\), asked \d+ times, .* given up\nsession +state +tokens/);
    expect(out).toMatch(/\nand 1 session more\n$/);
    expect(widest(out)).toBeLessThanOrEqual(100);
    expect(out).not.toContain('\u001b');
  });

  it('looks again and again, and ends with 0 when it is told to', async () => {
    let out = '';
    const { code, signal } = await palimpsest(['top', '--state', state, '--json', '--interval', '1'], {
      with: (child) =>
        child.stdout!.on('data', (chunk) => {
          out += chunk;
          if (out.trimEnd().split('\n').length >= 2) child.kill('SIGINT');
        }),
    });
    expect({ code, signal }).toEqual({ code: 0, signal: null });
    const [first, second] = out
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Row);
    expect((second!['timeMs'] as number) - (first!['timeMs'] as number)).toBeGreaterThan(900);
    expect(second!['sessions']).toHaveLength(3);
  });

  it('has a screen of its own on a terminal, which q gives back', async () => {
    // A terminal that types q when it sees the table.
    const script = `
import os, pty, sys
seen = b''
def read(fd):
    global seen
    data = os.read(fd, 4096)
    if b'session' in seen + data and b'session' not in seen: os.write(fd, b'q')
    seen += data
    return data
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:], read)))`;
    const command = [process.execPath, join(root, 'dist/engine/cli/main.js'), 'top', '--state', state];
    const child = spawn('python3', ['-c', script, ...command], { stdio: ['ignore', 'pipe', 'inherit'] });
    let out = '';
    child.stdout.on('data', (chunk) => (out += chunk));
    const code = await new Promise((resolve) => child.on('close', resolve));
    expect(code).toBe(0);
    expect(out.startsWith('\u001b[?1049h\u001b[?25l\u001b[H\u001b[J')).toBe(true);
    expect(out.endsWith('\u001b[?25h\u001b[?1049l')).toBe(true);
    expect(out).toMatch(/pool-\w{8}: /);
  });

  it('refuses what it cannot look at', async () => {
    expectRefused(await palimpsest(['top', '--state', join(dir, 'none'), '--once']), 'not-found');
    const at = (url: string) => palimpsest(['top', '--state', state, '--once', '--url', url]);
    expectRefused(await at('nowhere'), 'bad-argument', /no URL/);
    expectRefused(await at('http://127.0.0.1:9'), 'io', /gives no metrics/);
    expectRefused(await at(`${view.url}/v1/none`), 'io', /answers 404/);
  });
});

describe('a session of a writer that is gone', () => {
  it('is not open', async () => {
    expect(isLocked(logDir(state))).toBe(true);
    for (const session of sessions) await session.close();
    expect(await looked()).toMatchObject({ sessions: [] });
    await view.close();
    await engine.close();
    expect(isLocked(logDir(state))).toBe(false);
    expect(await looked()).toMatchObject({ pools: [], sessions: [] });
  });
});
