#!/usr/bin/env node
/**
 * Every npm script runs through this file. It makes sure that the packages are installed and that the native addon and
 * dist/ are built, and then runs the command. It uses nothing but Node, because it runs before any package is
 * installed.
 *
 *   node scripts/bootstrap.mjs COMMAND [arguments are passed on]
 *
 * Whether something must be done is decided by content, never by file times: npm's own record of what it installed is
 * compared with the lockfile, and dist/ holds a hash of its sources. When everything is up to date, nothing is printed
 * and nothing is started. Progress is written to stderr, so that stdout belongs to the command.
 */
import crypto from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { at, endWithChildren, explain, node, npm, onPath, root, Stop, say, stage } from './processes.mjs';
import { BIOME, check, runTests } from './tests.mjs';

const TSC = 'node_modules/typescript/bin/tsc';
/** Modules for browsers: they have settings of their own. The second page uses some of the first. */
const PAGES = [
  ['witness/report/page', 'witness/report/page'],
  ['engine/serve/page', ''],
];
/** Files of pages that are served as they are written. */
const AS_WRITTEN = /\.(html|css|svg)$/;
const NODE_OLDEST = [20, 19];
const ROOMS = ['native', 'policy', 'memory', 'witness', 'engine', 'migrations'];
/**
 * Packages that are compiled while they are installed, so `npm ci --ignore-scripts` leaves them unfinished. They use
 * Node-API, so one build works with every version of Node.
 */
const COMPILED_PACKAGES = [['hnswlib-node', 'node_modules/hnswlib-node/build/Release/addon.node']];
/** How long to wait for an install or build that another process is running. */
const LOCK_PATIENCE_MS = 15 * 60_000;

// ---- What the machine must have

/** Returns null, or a sentence that says what is wrong with this version of Node. */
export function nodeProblem(version) {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const fine = major > NODE_OLDEST[0] || (major === NODE_OLDEST[0] && minor >= NODE_OLDEST[1]);
  return fine
    ? null
    : `palimpsest needs Node ${NODE_OLDEST.join('.')} or newer; this is Node ${version}. Node 20, 22 and 24 are tested.`;
}

/** The programs that are needed for compiling and that this machine lacks, each with how to install it. */
export function missingTools() {
  if (process.platform === 'win32') return [];
  const missing = [];
  if (!process.env.CXX && !onPath(['g++', 'c++', 'clang++']))
    missing.push('g++ (a C++20 compiler: gcc 12 or newer; Debian: apt-get install g++)');
  if (!onPath(['make', 'gmake'])) missing.push('make (Debian: apt-get install make)');
  if (!onPath(['python3', 'python'])) missing.push('python3 (node-gyp runs on it; Debian: apt-get install python3)');
  return missing;
}

function requireTools() {
  const missing = missingTools();
  if (missing.length > 0)
    throw new Stop(
      `Compiling the native parts needs programs that are not on the PATH:\n  ${missing.join('\n  ')}\nInstall them and run the same command again.`,
    );
}

/** If Node's headers are installed beside the Node that runs us, node-gyp need not download them. */
function headerEnv() {
  const prefix = path.join(path.dirname(process.execPath), '..');
  const known =
    process.env.npm_config_nodedir !== undefined || !fs.existsSync(path.join(prefix, 'include/node/node_api.h'));
  return known ? {} : { npm_config_nodedir: prefix };
}

// ---- Packages

/**
 * Says whether the packages that npm has installed are those of the lockfile. npm's record of them is
 * node_modules/.package-lock.json, which every install writes last. Packages for other platforms may be absent.
 */
export function installedMatches(lock, installed) {
  const wanted = lock?.packages ?? {};
  const found = installed?.packages ?? {};
  for (const [name, entry] of Object.entries(wanted)) {
    if (name === '') continue;
    const have = found[name];
    if (have === undefined && !(entry.optional || entry.extraneous || (entry.peer && entry.devOptional))) return false;
    if (have !== undefined && (have.version !== entry.version || have.integrity !== entry.integrity)) return false;
  }
  return Object.keys(found).every((name) => wanted[name] !== undefined);
}

function readJson(file) {
  try {
    return JSON.parse(fs.readFileSync(at(file), 'utf8'));
  } catch {
    return null;
  }
}

async function packages() {
  if (!installedMatches(readJson('package-lock.json'), readJson('node_modules/.package-lock.json'))) {
    requireTools();
    await stage(
      'Installing packages (npm ci, about half a minute)',
      'npm could not install the packages of package-lock.json: it did not reach its registry, or a package did not compile. The lines above say which; `npm ci` shows all of its output.',
      () =>
        npm(['ci', '--include=dev', '--no-audit', '--no-fund', '--loglevel=error'], { quiet: true, env: headerEnv() }),
    );
  }
  for (const [name, file] of COMPILED_PACKAGES) {
    if (fs.existsSync(at(file))) continue;
    requireTools();
    await stage(
      `Compiling ${name}`,
      `${name} could not be compiled; \`npm rebuild ${name}\` shows all of its output.`,
      () => npm(['rebuild', name, '--ignore-scripts=false', '--loglevel=error'], { quiet: true, env: headerEnv() }),
    );
    if (!fs.existsSync(at(file)))
      throw new Stop(
        `${name} was not compiled: npm did not run its install script. \`npm rebuild ${name} --foreground-scripts\` shows why.`,
      );
  }
}

// ---- Native addon and dist/

async function nativeAddon(flags) {
  const { code } = await node(['scripts/build-native.mjs', ...flags], { aside: true });
  if (code === 0) return;
  requireTools();
  throw new Stop('The native addon did not compile. `npm run build:native -- --verbose` shows all of its output.');
}

function sourceFiles(dir) {
  if (!fs.existsSync(at(dir))) return [];
  const files = [];
  for (const entry of fs.readdirSync(at(dir), { withFileTypes: true })) {
    if (entry.isDirectory() && entry.name !== 'build' && entry.name !== 'node_modules')
      files.push(...sourceFiles(`${dir}/${entry.name}`));
    else if (/\.ts$|^tsconfig\.json$/.test(entry.name) || AS_WRITTEN.test(entry.name))
      files.push(`${dir}/${entry.name}`);
  }
  return files;
}

/** A hash that changes when a source, the compiler's settings or the compiler's version changes. */
function sourceHash() {
  const hash = crypto.createHash('sha256');
  hash.update(String(readJson('node_modules/typescript/package.json')?.version));
  for (const file of [
    'tsconfig.json',
    'tsconfig.build.json',
    'scripts/roll-up-types.mjs',
    ...ROOMS.flatMap(sourceFiles).sort((a, b) => (a < b ? -1 : 1)),
  ]) {
    hash.update(`\0${file}\0`).update(fs.readFileSync(at(file)));
  }
  return hash.digest('hex');
}

function copyWritten(page) {
  if (!fs.existsSync(at(page))) return;
  for (const name of fs.readdirSync(at(page)))
    if (AS_WRITTEN.test(name)) fs.cpSync(at(`${page}/${name}`), at(`dist.new/${page}/${name}`));
}

/**
 * Builds into a folder beside dist/ and then renames it, so that a running program never finds old and new files mixed.
 */
async function dist() {
  const hash = sourceHash();
  const stamp = at('dist/.sources');
  if (fs.existsSync(stamp) && fs.readFileSync(stamp, 'utf8') === hash) return;
  const fresh = at('dist.new');
  fs.rmSync(fresh, { recursive: true, force: true });
  await stage(
    'Compiling TypeScript',
    'The sources do not compile, or a public signature names a type that is not exported. `npx tsc --noEmit` lists the errors of the compiler.',
    async () => {
      let done = await node([TSC, '-p', 'tsconfig.build.json', '--outDir', 'dist.new'], { quiet: true });
      for (const [page, out] of PAGES) {
        if (done.code === 0)
          done = await node([TSC, '-p', page, '--outDir', path.join('dist.new', out)], { quiet: true });
        copyWritten(page);
      }
      return done.code === 0 ? node(['scripts/roll-up-types.mjs', 'dist.new'], { quiet: true }) : done;
    },
  );
  fs.writeFileSync(path.join(fresh, '.sources'), hash);
  const main = path.join(fresh, 'engine/cli/main.js');
  if (fs.existsSync(main)) fs.chmodSync(main, 0o755);
  const old = at('dist.old');
  fs.rmSync(old, { recursive: true, force: true });
  if (fs.existsSync(at('dist'))) fs.renameSync(at('dist'), old);
  fs.renameSync(fresh, at('dist'));
  fs.rmSync(old, { recursive: true, force: true });
}

// ---- One at a time

const lockPath = at('.cache/bootstrap.lock');

function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/**
 * Takes the lock and returns null, or returns its holder. The file is written under another name and then linked, so
 * that nobody reads half of it.
 */
function tryLock() {
  const mine = `${lockPath}.${process.pid}`;
  fs.writeFileSync(mine, JSON.stringify({ pid: process.pid, host: os.hostname() }));
  try {
    fs.linkSync(mine, lockPath);
    return null;
  } catch (error) {
    if (error.code !== 'EEXIST') throw error;
    return readLock() ?? { pid: 0, host: '' };
  } finally {
    fs.rmSync(mine, { force: true });
  }
}

function readLock() {
  try {
    return JSON.parse(fs.readFileSync(lockPath, 'utf8'));
  } catch {
    return null;
  }
}

/**
 * Removes the lock of a process that no longer runs. Only one process at a time may do this, or it might remove a new
 * lock.
 */
function breakLock() {
  const turn = `${lockPath}.break`;
  try {
    fs.closeSync(fs.openSync(turn, 'wx'));
  } catch {
    // This takes microseconds, so a file that has been there for ten seconds was left by a process that died.
    if (fs.existsSync(turn) && Date.now() - fs.statSync(turn).mtimeMs > 10_000) fs.rmSync(turn, { force: true });
    return;
  }
  const holder = readLock();
  if (holder !== null && holder.host === os.hostname() && !alive(holder.pid)) fs.rmSync(lockPath, { force: true });
  fs.rmSync(turn, { force: true });
}

async function locked(work) {
  fs.mkdirSync(at('.cache'), { recursive: true });
  const start = Date.now();
  let told = false;
  for (let holder = tryLock(); holder !== null; holder = tryLock()) {
    if (holder.host === os.hostname() && !alive(holder.pid)) breakLock();
    const waitedMs = Date.now() - start;
    if (waitedMs > 1000 && !told)
      say(`Waiting for another build of this checkout (process ${holder.pid} on ${holder.host}) …\n`);
    told ||= waitedMs > 1000;
    if (waitedMs > LOCK_PATIENCE_MS) {
      throw new Stop(
        `Process ${holder.pid} on ${holder.host} has held ${path.relative(root, lockPath)} for a long time. If no build runs there, delete that file.`,
      );
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const release = () => {
    if (readLock()?.pid === process.pid) fs.rmSync(lockPath, { force: true });
  };
  process.on('exit', release);
  try {
    return await work();
  } finally {
    release();
    process.off('exit', release);
  }
}

const install = () => locked(packages);

/** `flags` say what of the addon is built beside what everybody needs (scripts/build-native.mjs). */
const buildWith =
  (...flags) =>
  () =>
    locked(async () => {
      await packages();
      await nativeAddon(flags);
      await dist();
    });

const build = buildWith();
const buildForTests = buildWith('--tests');
/** What compares formats has those as well that the product leaves out (native/yardsticks/). */
const buildWithYardsticks = buildWith('--tests', '--yardsticks');
const YARDSTICKS = ['--import', './native/yardsticks/register.ts'];
const isWithYardsticks = (args) => args.includes('--yardsticks');

async function packTools() {
  const { code } = await node(['scripts/prebuild.mjs', '--tools'], { aside: true });
  if (code !== 0)
    throw new Stop(
      'There are binaries for several kinds of machine, and each needs its compiler; the lines above name the missing ones.',
    );
  await build();
}

// ---- Commands

const cli =
  (...words) =>
  (args) =>
    node([at('dist/engine/cli/main.js'), ...words, ...args]);

const script = (file) => (args) => node([file, ...args]);

const program =
  (file, ...flags) =>
  (args) =>
    node(['--import', 'tsx', ...flags, file, ...args]);

const nothing = async () => ({ code: 0 });

/** Runs everything that a tier of tests holds (test/tier.ts). Only what others merge needs every instruction set. */
const test = (args, tier = process.env.PALIMPSEST_TEST_TIER ?? 'home') =>
  runTests({ args, tier, build: tier === 'home' ? buildForTests : buildWith('--tests', '--all') });

/** For each command, what must be done first and what it then runs. */
const COMMANDS = {
  install: [install, nothing],
  build: [build, nothing],
  check: [build, async () => ({ code: (await check()) === 0 ? 0 : 1 })],
  // These build by themselves, because they must print their closing line even when the build fails.
  test: [nothing, (args) => test(args)],
  'test:night': [nothing, (args) => test(args, 'night')],
  start: [build, cli('start')],
  'build:all': [buildWith('--tests', '--all'), nothing],
  pack: [build, script('scripts/prebuild.mjs')],
  // `npm pack` runs this first and stops if it fails, so no package lacks a binary. It looks for the compilers before
  // it compiles anything.
  prepack: [packTools, script('scripts/prebuild.mjs')],
  fetch: [build, cli('fetch')],
  'fetch-texts': [install, program('scripts/fetch-texts.ts')],
  palimpsest: [build, cli()],
  bench: [
    (args) => (isWithYardsticks(args) ? buildWithYardsticks() : buildForTests()),
    (args) => program('scripts/bench/main.ts', ...(isWithYardsticks(args) ? YARDSTICKS : []))(args),
  ],
  evaluate: [buildWith('--yardsticks'), program('lab/evaluate/main.ts', ...YARDSTICKS)],
  calibrate: [build, program('scripts/calibrate.ts')],
  compare: [build, program('scripts/compare/main.ts')],
  sim: [build, program('scripts/sim.ts')],
  soak: [build, program('test/soak/main.ts')],
  fuzz: [buildForTests, program('test/fuzz/main.ts')],
  // The build compiles the generated files, so generating them must not wait for a build.
  generate: [install, script('scripts/generate.mjs')],
  golden: [buildForTests, script('scripts/golden.mjs')],
  format: [
    install,
    (args) => node([BIOME, 'check', '--linter-enabled=false', '--write', ...(args.length > 0 ? args : ['.'])]),
  ],
};

async function main([command = '', ...args]) {
  const problem = nodeProblem(process.versions.node);
  if (problem !== null) throw new Stop(problem);
  const action = Object.hasOwn(COMMANDS, command) ? COMMANDS[command] : null;
  if (action === null)
    throw new Stop(`usage: node scripts/bootstrap.mjs ${Object.keys(COMMANDS).join('|')} [arguments]`);
  // Models that a checkout fetches stay in it.
  process.env.PALIMPSEST_CACHE ||= at('.cache');
  const [prepare, act] = action;
  await prepare(args);
  return (await act(args)).code;
}

if (process.argv[1] !== undefined && fs.realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  endWithChildren();
  main(process.argv.slice(2)).then(
    (code) => {
      process.exitCode = code;
    },
    (error) => {
      explain(error);
      process.exitCode = 1;
    },
  );
}
