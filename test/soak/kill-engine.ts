/**
 * Kills of an engine of sixteen sessions in memory for a few of them, the others parked in files, and of one whose
 * sessions have their pages in a kernel pack and are parked by their caller: every text that was said is what the
 * session says alone, every acknowledged entry is in the log, and every session whose file is there comes back by its
 * pages, at the end of a turn, and goes on as it would have; of every other one it is said that it is not there.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  parkedSessions,
  type SessionOptions,
  type SessionReport,
} from '../../engine/index.ts';
import { testPack } from '../../engine/packs/contract.ts';
import { instrumentModule } from '../../engine/packs/instrument.ts';
import { PackKeeper } from '../../engine/packs/lifecycle.ts';
import type { CodecManifest } from '../../engine/packs/manifest.ts';
import { logDir } from '../../engine/state/folder.ts';
import { KvError } from '../../native/index.ts';
import { openWitnessLog, readLog, verifyLog } from '../../witness/index.ts';
import { seeded } from '../random.ts';
import { NOW_MS, packOf, signTrust, trustWith } from '../unit/engine/packs/signed.ts';
import type { Kill, Life } from './kills.ts';

const WRITER = join(import.meta.dirname, 'engine-writer.mjs');
const TURNS = 10;
/** As many tokens are read in one piece, whoever else is at work, so that bits are those of a run alone. */
const PROMPT_TOKENS = 16;
const ANSWER = { maxTokens: 24, temperature: 1 } as const;
const STARTING_MS_MAX = 1500;
const WORKING_MS_MAX = 3000;
const LINES_MAX = 2500;
/** Of those that come back so many talk on after each kill. */
const GO_ON = 3;

const COMMON = { model: 'reference', threads: 1 } as const;

/** What is killed. */
interface Kind {
  readonly sessions: number;
  /** What each of its sessions is. */
  readonly asked: SessionOptions;
  readonly kvBudget: number;
  /** By how many turns a caller parks a session, 0 to 1. */
  readonly parks: number;
  /** Puts into a new state folder what its sessions ask for. */
  readonly prepare: (stateDir: string) => Promise<void>;
  /** What is wrong with one that came back; null: nothing. */
  readonly check: (report: SessionReport) => string | null;
}

/** Room for three of them: a session takes some 0.9 MB at its end. */
const WAITING: Kind = {
  ...{ sessions: 16, asked: { policy: 'none' }, kvBudget: 3_000_000, parks: 0.15 },
  prepare: async () => undefined,
  check: () => null,
};

/** Those with fewer tokens have no page that is old enough. */
const PACKED_TOKENS = 340;

/** Room for all, so that only their callers park them. */
const PACKED: Kind = {
  ...{ sessions: 4, asked: { pack: 'block6', cacheTypes: 'trellis2' }, kvBudget: 2 ** 26, parks: 0.5 },
  prepare: installPack,
  check({ tokens, layers }) {
    const pages = layers.reduce((sum, { kPages }) => sum + (kPages['freed'] ?? 0), 0);
    return tokens < PACKED_TOKENS || pages > 0 ? null : `${tokens} tokens, and no page in the pack`;
  },
};

async function installPack(stateDir: string): Promise<void> {
  const folder = join(import.meta.dirname, '..', '..', 'packs', 'block6');
  const manifest = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')) as CodecManifest;
  const log = await openWitnessLog({ dir: logDir(stateDir), clock: () => NOW_MS });
  const keeper = await PackKeeper.open({ stateDir, log, clock: () => NOW_MS });
  const allow = [{ name: manifest.name, versions: { from: '1.0.0', below: '2.0.0' } }];
  await keeper.installTrust(signTrust(trustWith({ allow })), 'trust');
  const pack = packOf({ manifest, module: readFileSync(join(folder, 'block6.wasm')) });
  await keeper.install(pack, { instrument: instrumentModule, test: testPack });
  await keeper.activate(manifest.name);
  keeper.close();
  await log.close();
}

/** What a session says. */
interface Script {
  readonly name: number;
  readonly prompts: readonly (readonly number[])[];
  /** By turn: what it answers when nobody else is there. */
  readonly texts: readonly string[];
  /** By the number of turns that it has had: the tokens that it holds. */
  readonly tokens: readonly number[];
}

const known = new Map<Kind, Promise<readonly Script[]>>();

/** All scripts, as each session says them alone: made once, since they are the same for every life. */
function scriptsAlone(kind: Kind): Promise<readonly Script[]> {
  const scripts = known.get(kind) ?? makeScripts(kind);
  known.set(kind, scripts);
  return scripts;
}

async function makeScripts({ sessions, asked, prepare }: Kind): Promise<Script[]> {
  const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
  await prepare(stateDir);
  const engine = await createEngine({ ...COMMON, stateDir, prefixCaching: false });
  const scripts: Script[] = [];
  for (let name = 0; name < sessions; name++) {
    const next = seeded(1000 + name);
    const prompts = Array.from({ length: TURNS }, () =>
      Array.from({ length: PROMPT_TOKENS }, () => 300 + Math.floor(1500 * next())),
    );
    const session = await engine.openSession(asked);
    const [texts, tokens]: [string[], number[]] = [[], [0]];
    for (const [seed, prompt] of prompts.entries()) {
      texts.push(await session.generate(prompt, { ...ANSWER, seed }).text());
      tokens.push((await session.report()).tokens);
    }
    await session.close();
    scripts.push({ name, prompts, texts, tokens });
  }
  await engine.close();
  rmSync(stateDir, { recursive: true, force: true });
  return scripts;
}

/** Where sessions go on: the id of a parked one, and the turns that it has had; null: a new one. */
type Places = readonly { readonly from: string | null; readonly turn: number }[];

interface Line {
  readonly open?: true;
  readonly name?: number;
  readonly session?: string;
  readonly turn?: number;
  readonly text?: string;
  readonly isRead?: boolean;
  readonly acknowledged?: number;
  readonly parked?: string;
  readonly refused?: string;
  readonly failed?: string;
}

/** Starts the engine and kills it, some time after it began or opened, or when it has said so many lines. */
function workAndKill(file: string, next: () => number): Promise<{ afterMs: number; lines: Line[]; problem: string }> {
  const way = next();
  const afterMs = next() * (way < 0.15 ? STARTING_MS_MAX : WORKING_MS_MAX);
  const afterLines = way < 0.4 ? Number.POSITIVE_INFINITY : 1 + Math.floor(next() * LINES_MAX);
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [WRITER, file], { stdio: ['ignore', 'pipe', 'pipe'] });
    const kill = (): void => void child.kill('SIGKILL');
    let [said, problem, count] = ['', '', 0];
    if (way < 0.15) setTimeout(kill, afterMs);
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      if (said === '' && way >= 0.15 && way < 0.4) setTimeout(kill, afterMs);
      said += text;
      count += text.split('\n').length - 1;
      if (count >= afterLines) kill();
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => (problem += text));
    child.on('error', reject);
    child.on('close', (_, signal) => {
      // A line that was cut by the kill was not said.
      const lines = said.split('\n').slice(0, -1);
      const ended = signal === 'SIGKILL' ? '' : 'it ended by itself';
      resolve({ afterMs, lines: lines.map((line) => JSON.parse(line) as Line), problem: `${problem}${ended}` });
    });
  });
}

/** What the lines tell of sessions. */
interface Told {
  /** By the ids of sessions: whose they are. */
  readonly names: ReadonlyMap<string, number>;
  /** Ids of sessions that were parked by their caller. */
  readonly parked: ReadonlySet<string>;
  /** Ids of those whose answer found no room to go on: what was written of it stays, also where they are parked. */
  readonly refused: ReadonlySet<string>;
  /** Ids of those whose tokens were read again, which may go on otherwise. */
  readonly read: ReadonlySet<string>;
  /** Texts that are not how a session goes on that is alone. */
  readonly otherTexts: number;
}

function toldBy(scripts: readonly Script[], lines: readonly Line[]): Told {
  const names = new Map<string, number>();
  const [parked, refused, read] = [new Set<string>(), new Set<string>(), new Set<string>()];
  const now = new Map<number, { readonly id: string; readonly said: string }>();
  let otherTexts = 0;
  for (const { name, session, turn, text, isRead = false, parked: id, refused: why } of lines) {
    if (id !== undefined) parked.add(id);
    if (name === undefined) continue;
    const { texts } = scripts[name]!;
    if (session !== undefined) {
      names.set(session, name);
      now.set(name, { id: session, said: texts.slice(0, turn).join('') });
    }
    const { id: current, said } = now.get(name)!;
    if (isRead) read.add(current);
    if (why !== undefined) refused.add(current);
    if (text === undefined || read.has(current)) continue;
    now.set(name, { id: current, said: said + text });
    const all = texts.slice(0, turn! + 1).join('');
    if (!all.startsWith(said + text)) otherTexts++;
  }
  return { names, parked, refused, read, otherTexts };
}

/** What became of sessions: how many files are missing, what else is not as it was, and where each goes on. */
interface Found {
  readonly lost: number;
  readonly wrong: readonly string[];
  readonly places: Places;
}

/** Resumes all sessions of a state folder, by the names that they had; some talk on. */
async function resumeAll(
  engine: Engine,
  scripts: readonly Script[],
  { names, parked, refused, read }: Told,
  { check, stateDir }: Pick<Kind, 'check'> & { readonly stateDir: string },
): Promise<Found> {
  const places = scripts.map((): Places[number] => ({ from: null, turn: 0 }));
  const files = parkedSessions(stateDir);
  const there = new Set(files.flatMap(({ session }) => session ?? []));
  const wrong = files.flatMap(({ path, trouble }) => (trouble === null ? [] : [`${path}: ${trouble}`]));
  let talks = 0;
  for (const [id, name] of names) {
    const { tokens, prompts, texts } = scripts[name]!;
    try {
      const session = await engine.resume(id);
      const { by, why, tokens: held } = session.resumed!;
      const turn = tokens.indexOf(held);
      if (by === 'pages' && turn < 0 && refused.has(id)) continue;
      if (by !== 'pages' || turn < 0) {
        wrong.push(`${id} came back with ${held} tokens, by ${by}: ${why}`);
        continue;
      }
      const trouble = check(await session.report());
      if (trouble !== null) wrong.push(`${id}: ${trouble}`);
      if (read.has(id)) continue;
      if (turn > places[name]!.turn || places[name]!.from === null) places[name] = { from: id, turn };
      if (turn === TURNS || talks++ >= GO_ON) continue;
      const text = await session.generate(prompts[turn]!, { ...ANSWER, seed: turn }).text();
      if (text !== texts[turn]) wrong.push(`${id} (${name}) went on otherwise after turn ${turn}: ${text}`);
    } catch (error) {
      // That there is no such session is said, and true.
      if (!(error instanceof KvError) || error.code !== 'not-found' || there.has(id)) wrong.push(`${id}: ${error}`);
    }
  }
  // Whoever said that a session was parked was told so when its file was on disk.
  return { lost: [...parked].filter((id) => !there.has(id)).length, wrong, places };
}

async function* lifeOf(kind: Kind, next: () => number, kills: number): AsyncGenerator<Kill, void, undefined> {
  const root = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
  const stateDir = join(root, 'state');
  const file = join(root, 'work.json');
  const { asked, kvBudget, parks } = kind;
  const scripts = await scriptsAlone(kind);
  await kind.prepare(stateDir);
  const options: EngineOptions = { ...COMMON, stateDir, kvBudget, idleSessions: 'disk', prefixCaching: false };
  let places: Places = scripts.map(() => ({ from: null, turn: 0 }));
  let acknowledged = 0;
  try {
    for (let kill = 0; kill < kills; kill++) {
      const sessions = scripts.map(({ name, prompts }, at) => ({ name, prompts, ...places[at]! }));
      const work = { options, asked, parks, seed: Math.floor(2 ** 31 * next()), turns: TURNS, sessions };
      writeFileSync(file, JSON.stringify(work));
      const { afterMs, lines, problem } = await workAndKill(file, next);
      const failures = [...lines.flatMap(({ failed }) => failed ?? []), ...(problem === '' ? [] : [problem])];
      acknowledged = Math.max(acknowledged, ...lines.map((line) => 1 + (line.acknowledged ?? -1)));
      const started = performance.now();
      const before = acknowledged === 0 ? { problem: null, entries: 0 } : verifyLog(logDir(stateDir));
      const engine = await createEngine({ ...options, kvBudget: '1GiB' });
      const told = toldBy(scripts, lines);
      const names = new Map(told.names);
      for (const [at, { from }] of places.entries()) if (from !== null) names.set(from, at);
      const found = await resumeAll(engine, scripts, { ...told, names }, { ...kind, stateDir });
      await engine.close();
      places = found.places;
      // Kills are counted; what was wrong is for whoever looks for it.
      for (const what of [...failures, ...found.wrong]) console.error(what);
      const whole = [...readLog(logDir(stateDir))];
      yield {
        afterMs,
        acknowledged,
        lost: Math.max(0, acknowledged - before.entries) + found.lost + told.otherTexts,
        failed: failures.length,
        unhealed:
          found.wrong.length + (before.problem === null ? 0 : 1) + whole.filter(({ seq }, i) => seq !== i).length,
        healedMs: performance.now() - started,
      };
    }
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

/** Sixteen sessions, most of which wait in files. */
export const engineLife: Life = (next, kills) => lifeOf(WAITING, next, kills);

/** Four sessions with pages in a kernel pack. */
export const packLife: Life = (next, kills) => lifeOf(PACKED, next, kills);
