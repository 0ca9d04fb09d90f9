/**
 * `npm run bench -- build`: what a build takes, in a fresh copy of the checkout and without a compiler cache, and how
 * large the addon becomes. The seconds are those of the clock and of the processor, with everything that a command
 * starts. The demonstration reads the reference model, so nothing is downloaded but the packages.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { KvError } from '../../native/index.ts';

export interface BuildRow {
  readonly what: string;
  readonly cpuSeconds: number;
  readonly seconds: number;
  /** Bytes of code of the addon that it makes; null for what makes none. */
  readonly textBytes: number | null;
}

interface Step {
  readonly what: string;
  readonly command: string;
  /** What it prints when it has come far enough; without, it runs to its end. */
  readonly until?: string;
  readonly makesAddon?: boolean;
}

/** What is measured, in this order: each goes on from what those before it left. */
const STEPS: readonly Step[] = [
  { what: 'start: packages', command: 'node scripts/bootstrap.mjs install' },
  { what: 'start: native', command: 'node scripts/build-native.mjs', makesAddon: true },
  { what: 'start: TypeScript', command: 'node scripts/bootstrap.mjs build' },
  {
    what: 'start: demonstration',
    command: 'node scripts/bootstrap.mjs start -m reference',
    // The picture is drawn when the document was read and the first answer begins.
    until: 'KV cache while reading',
  },
  { what: 'addon with every set', command: 'node scripts/build-native.mjs --all --force', makesAddon: true },
];

/**
 * bash tells what a command and all that it started took, in seconds. A program whose reader has gone ends with its
 * next line.
 */
const TIMED = 'TIMEFORMAT="%R %U %S"; time { "$@" >/dev/null; }';
const TIMED_UNTIL = 'TIMEFORMAT="%R %U %S"; time { "$@" 2>/dev/null | grep -q -m 1 "$UNTIL"; }';

/** Throws 'missing-dependency' when a command fails or does not print `until`, with the end of what it said. */
export function timed(
  command: string,
  cwd: string,
  until?: string,
): { readonly cpuSeconds: number; readonly seconds: number } {
  const script = until === undefined ? TIMED : TIMED_UNTIL;
  const ran = spawnSync('bash', ['-c', script, 'bash', ...command.split(' ')], {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, CCACHE_DISABLE: '1', UNTIL: until },
    maxBuffer: 2 ** 28,
  });
  const [, seconds, user, system] = /([\d.]+) ([\d.]+) ([\d.]+)\s*$/.exec(ran.stderr ?? '') ?? [];
  if (ran.status !== 0 || system === undefined) {
    throw new KvError('missing-dependency', `${command} failed: ${(ran.stderr ?? String(ran.error)).slice(-400)}`, {
      hint: 'a build needs bash, python3, make and g++, and packages a registry of npm',
    });
  }
  return { cpuSeconds: Number(user) + Number(system), seconds: Number(seconds) };
}

/**
 * The bytes of sections of an ELF file that hold code or constants, as `size` counts them for `text`; null for a file
 * of another kind.
 */
export function textBytes(file: string): number | null {
  const bytes = readFileSync(file);
  if (bytes.toString('latin1', 0, 5) !== '\x7fELF\x02') return null;
  const [ALLOCATED, WRITABLE] = [2n, 1n];
  const [at, size, count] = [Number(bytes.readBigUInt64LE(40)), bytes.readUInt16LE(58), bytes.readUInt16LE(60)];
  let sum = 0;
  for (let i = 0; i < count; i++) {
    const flags = bytes.readBigUInt64LE(at + i * size + 8);
    if ((flags & ALLOCATED) !== 0n && (flags & WRITABLE) === 0n)
      sum += Number(bytes.readBigUInt64LE(at + i * size + 32));
  }
  return sum;
}

/** Copies the files of the checkout that git knows or would take in, and nothing that was built. */
function freshCopy(root: string, folder: string): void {
  const listed = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], { cwd: root });
  for (const file of new Set(listed.toString('utf8').split('\0'))) {
    if (file === '' || !existsSync(join(root, file))) continue;
    mkdirSync(dirname(join(folder, file)), { recursive: true });
    copyFileSync(join(root, file), join(folder, file));
  }
}

/**
 * Measures, tells each row as it is known, and writes all to the file `json`. The row `start` is the sum of what begins
 * with that word.
 */
export function build(say: (line: string) => void, { root, json }: { root: string; json: string | null }): BuildRow[] {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-build-'));
  const rows: BuildRow[] = [];
  const tell = (row: BuildRow): void => {
    rows.push(row);
    const text = row.textBytes === null ? '' : `, ${(row.textBytes / 1e6).toFixed(2)} MB of text`;
    say(`${row.what}: ${row.cpuSeconds.toFixed(1)} CPU s, ${row.seconds.toFixed(1)} s${text}`);
  };
  try {
    freshCopy(root, folder);
    say(`a fresh copy in ${folder}, ${availableParallelism()} cores, no compiler cache`);
    for (const { what, command, until, makesAddon = false } of STEPS) {
      const times = timed(command, folder, until);
      tell({
        what,
        ...times,
        textBytes: makesAddon ? textBytes(join(folder, 'native/build/Release/palimpsest.node')) : null,
      });
    }
    const start = rows.filter(({ what }) => what.startsWith('start: '));
    const sum = (of: 'cpuSeconds' | 'seconds'): number => start.reduce((total, row) => total + row[of], 0);
    tell({ what: 'start', cpuSeconds: sum('cpuSeconds'), seconds: sum('seconds'), textBytes: null });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  if (json !== null) writeFileSync(json, `${JSON.stringify({ rows }, null, 1)}\n`);
  return rows;
}
