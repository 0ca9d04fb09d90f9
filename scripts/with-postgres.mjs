/**
 * Runs a command with a temporary PostgreSQL server beside it: `node scripts/with-postgres.mjs npm test`. The command
 * finds the server through PALIMPSEST_TEST_POSTGRES_URL. The server listens on 127.0.0.1 only, keeps its data in a
 * temporary folder, and is stopped and deleted at the end. If PostgreSQL cannot be started, the command runs without
 * it.
 */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const USER = 'palimpsest';
const [command, ...args] = process.argv.slice(2);
if (command === undefined) {
  console.error('usage: node scripts/with-postgres.mjs COMMAND [ARGUMENTS]');
  process.exit(2);
}

const isRoot = process.getuid?.() === 0;

/** The folder with initdb and pg_ctl of the newest PostgreSQL from version 15 on, or null if there is none. */
function findPrograms() {
  const base = '/usr/lib/postgresql';
  const versions = existsSync(base)
    ? readdirSync(base)
        .map(Number)
        .filter((v) => v >= 15)
    : [];
  for (const version of versions.sort((a, b) => b - a)) {
    const folder = join(base, String(version), 'bin');
    if (existsSync(join(folder, 'initdb')) && existsSync(join(folder, 'pg_ctl'))) return folder;
  }
  const onPath = spawnSync('pg_config', ['--bindir'], { encoding: 'utf8' });
  const folder = onPath.status === 0 ? onPath.stdout.trim() : '';
  return folder !== '' && existsSync(join(folder, 'initdb')) ? folder : null;
}

function install() {
  const options = { stdio: 'ignore', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }, timeout: 300_000 };
  spawnSync('apt-get', ['update'], options);
  spawnSync('apt-get', ['install', '-y', '--no-install-recommends', 'postgresql'], options);
}

/** PostgreSQL refuses to run as root, so root runs its programs as the user that its package has created. */
function run(program, parameters) {
  const quoted = [program, ...parameters].map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(' ');
  const [file, words] = isRoot ? ['su', ['postgres', '-s', '/bin/sh', '-c', quoted]] : [program, parameters];
  execFileSync(file, words, { stdio: ['ignore', 'ignore', 'pipe'], cwd: '/', timeout: 120_000 });
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

async function start() {
  let programs = findPrograms();
  if (programs === null && isRoot && existsSync('/usr/bin/apt-get')) {
    install();
    programs = findPrograms();
  }
  if (programs === null) throw new Error('initdb and pg_ctl of PostgreSQL 15 or later were not found');
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-postgres-'));
  try {
    if (isRoot) execFileSync('chown', ['postgres', folder]);
    chmodSync(folder, 0o700);
    const data = join(folder, 'data');
    const port = await freePort();
    run(join(programs, 'initdb'), ['-D', data, '-A', 'trust', '-U', USER, '-E', 'UTF8', '--no-locale', '--no-sync']);
    const settings = `-p ${port} -k ${folder} -c listen_addresses=127.0.0.1 -c fsync=off`;
    run(join(programs, 'pg_ctl'), ['-D', data, '-w', '-t', '60', '-l', join(folder, 'log'), '-o', settings, 'start']);
    const stop = () => {
      try {
        run(join(programs, 'pg_ctl'), ['-D', data, '-m', 'immediate', '-w', 'stop']);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    };
    return { url: `postgres://${USER}@127.0.0.1:${port}/postgres`, stop };
  } catch (error) {
    rmSync(folder, { recursive: true, force: true });
    throw error;
  }
}

let server = null;
try {
  server = await start();
} catch (error) {
  const reason =
    String(error?.stderr ?? '')
      .trim()
      .split('\n')[0] || error.message;
  console.error(`with-postgres: the command runs without PostgreSQL: ${reason}`);
}
const environment = { ...process.env };
delete environment.PALIMPSEST_TEST_POSTGRES_URL;
if (server !== null) environment.PALIMPSEST_TEST_POSTGRES_URL = server.url;

const child = spawn(command, args, { stdio: 'inherit', env: environment });
// A signal is passed on to the child. The server is stopped when the child has ended.
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal));
const code = await new Promise((resolve) => {
  child.on('error', (error) => {
    console.error(`with-postgres: ${error.message}`);
    resolve(127);
  });
  child.on('exit', (status, signal) => resolve(status ?? (signal === null ? 1 : 130)));
});
server?.stop();
process.exit(code);
