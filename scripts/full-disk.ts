/**
 * `npm run sim -- full-disk`: the log on a real file system that is full (a small tmpfs; needs the right to mount one).
 * First every mode with entries as fast as they come: made = logged + dropped, or the command fails. Then decode steps
 * of the reference model in mode drop, in turns: with their own entries on a roomy file system, with ten times as many
 * made but not given to the log, with as many in the log there, and with as many on a full one. What happens to their
 * p99 is printed, and is no check. Each step is also taken by the processor time of the process, which other programs
 * on the machine do not lengthen.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ownText } from '../engine/evaluate/own-text.ts';
import { Session } from '../engine/session/session.ts';
import { Runtime } from '../engine/transformer/runtime/runtime.ts';
import { KvError } from '../native/index.ts';
import { defaultThresholds } from '../policy/index.ts';
import {
  type EntryBodies,
  type FailureMode,
  openWitnessLog,
  readLog,
  verifyLog,
  type WitnessLog,
} from '../witness/index.ts';

const ENTRIES = 20_000;
const PROMPT_TOKENS = 900;
const PASSES = 7;
const STEPS = 3000;
/** A step of the reference model within 25% of f16 makes two entries as a rule; ten times that. */
const LOAD = 20;

const root = mkdtempSync(join(tmpdir(), 'palimpsest-full-'));
const mounted: string[] = [];

function mount(name: string, bytes: number): string {
  const dir = join(root, name);
  mkdirSync(dir);
  const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${bytes}`, 'tmpfs', dir], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new KvError('unsupported', `a tmpfs cannot be mounted here: ${stderr.trim()}`);
  mounted.push(dir);
  return dir;
}

/** Entries as fast as they come, until as many were made or the log refused. */
async function account(mode: FailureMode): Promise<void> {
  const dir = join(mount(mode, 1 << 20), 'log');
  const log = await openWitnessLog({ dir, mode, blockMsMax: 500, bufferBytesMax: 1 << 16 });
  let [made, refused] = [0, 0];
  for (; made < ENTRIES && refused === 0; made++) {
    try {
      log.append('s', 'note', { n: made, pad: 'x'.repeat(200) });
    } catch (error) {
      if (!(error instanceof KvError) || error.code !== 'log-unwritable') throw error;
      refused++;
    }
    if (made % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  await log.close().catch(() => undefined);
  const logged = [...readLog(dir, { session: 's' })].length;
  const { droppedCount } = log;
  // The entry in whose middle the log gave up was made and dropped; one that is refused at once was not made.
  const isExact = logged + droppedCount === made || logged + droppedCount === made - refused;
  console.log(`${mode}: ${made} made, ${logged} logged, ${droppedCount} dropped${isExact ? '' : ': NOT EQUAL'}`);
  if (!isExact || !verifyLog(dir).ok) process.exitCode = 1;
}

type Measure = 'wall' | 'processor' | 'added';

interface Side {
  readonly name: string;
  /** Entries that are added to those of each step. */
  readonly load: number;
  /** True if they go to the log, or are made and forgotten: what making them costs is no cost of the log. */
  readonly isLogged: boolean;
  readonly log: WitnessLog;
  /** Milliseconds of every step of a pass, ascending; of 'added' the mean of what its added entries took. */
  readonly passes: Readonly<Record<Measure, number[][]>>;
}

async function openSide(name: string, load: number, room: number, isLogged = true): Promise<Side> {
  const dir = mount(name, 512 << 20);
  const log = await openWitnessLog({ dir: join(dir, 'log'), mode: 'drop', encrypt: true });
  await log.flush();
  const { bavail, bsize } = statfsSync(dir);
  if (room > 0) writeFileSync(join(dir, 'ballast'), Buffer.alloc(bavail * bsize - room));
  return { name, load, isLogged, log, passes: { wall: [], processor: [], added: [] } };
}

/** The last entry that was added: what is not even kept might not be made. */
let made: EntryBodies['note'] = {};

/** A session of one side, with what is added to the entries of its steps. */
async function pass({ load, isLogged, log, passes }: Side, runtime: Runtime, ids: readonly number[]): Promise<void> {
  const thresholds = defaultThresholds(runtime.shape.layers);
  const session = Session.open(runtime, { kvBudget: '25%', tokensExpected: PROMPT_TOKENS + STEPS, log, thresholds });
  await session.read(ids.slice(0, PROMPT_TOKENS), { tokensFollow: true });
  const [wall, processor]: [number[], number[]] = [[], []];
  let addedMs = 0;
  for (const token of ids.slice(PROMPT_TOKENS, PROMPT_TOKENS + STEPS)) {
    const [start, before] = [performance.now(), process.cpuUsage()];
    await session.read([token]);
    const added = performance.now();
    for (let n = 0; n < load; n++) {
      made = { n, pad: 'x'.repeat(100) };
      if (isLogged) log.append('load', 'note', made);
    }
    const end = performance.now();
    addedMs += end - added;
    wall.push(end - start);
    const { user, system } = process.cpuUsage(before);
    processor.push((user + system) / 1000);
    // A caller who shows tokens gives the thread a turn as well.
    await new Promise((resolve) => setImmediate(resolve));
  }
  session.close();
  passes.added.push([addedMs / STEPS]);
  passes.wall.push(wall.sort((a, b) => a - b));
  passes.processor.push(processor.sort((a, b) => a - b));
  await log.flush();
}

const at = (sorted: readonly number[], share: number): number => sorted[Math.floor(sorted.length * share)]!;
const middle = (numbers: readonly number[]): number =>
  at(
    [...numbers].sort((a, b) => a - b),
    0.5,
  );

async function compare(): Promise<void> {
  const runtime = await Runtime.open({ model: 'reference', threads: 1 });
  const ids = runtime.model.tokenizer.encode(ownText(40_000));
  const sides = [
    await openSide('own', 0, 0),
    await openSide('unlogged', LOAD, 0, false),
    await openSide('roomy', LOAD, 0),
    await openSide('full', LOAD, 1 << 18),
  ] as const;
  for (let n = 0; n < PASSES; n++)
    // Each is first as often as the others.
    for (let k = 0; k < sides.length; k++) await pass(sides[(n + k) % sides.length]!, runtime, ids);
  for (const { name, load, isLogged, log, passes } of sides) {
    // The first pass fills the disk.
    const told = (['wall', 'processor'] as const).map((measure) => {
      const all = passes[measure].slice(1).flat();
      all.sort((a, b) => a - b);
      return `${measure} p50 ${at(all, 0.5).toFixed(3)} ms, p99 ${at(all, 0.99).toFixed(3)} ms`;
    });
    console.log(
      `${name}: ${told.join('; ')}; added entries ${(1000 * middle(passes.added.slice(1).flat())).toFixed(1)} µs of a step; of ${isLogged ? load * STEPS * PASSES : 0} and its own ${log.droppedCount} were dropped`,
    );
    await log.close();
  }
  await runtime.close();
  const full = sides[3];
  for (const other of sides.slice(0, 3))
    for (const measure of ['wall', 'processor'] as const) {
      const moved = (share: number): string => {
        const ratios = full.passes[measure].map((times, n) => at(times, share) / at(other.passes[measure][n]!, share));
        return `${(100 * (middle(ratios.slice(1)) - 1)).toFixed(1)}%`;
      };
      console.log(
        `full against ${other.name}, ${measure}: p50 ${moved(0.5)}, p99 ${moved(0.99)} (medians of ${PASSES - 1} passes)`,
      );
    }
}

try {
  for (const mode of ['block', 'halt', 'drop'] as const) await account(mode);
  await compare();
} finally {
  for (const dir of mounted) execFileSync('umount', [dir]);
  rmSync(root, { recursive: true, force: true });
}
