/**
 * Kills what holds data, again and again at random moments of its work, and counts what is missing afterwards. Ten
 * kills in a row hit one server or folder, a life; the next life begins with nothing, so that a life is what is
 * repeated from a seed.
 */

import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { seeded } from '../random.ts';
import { engineLife, packLife } from './kill-engine.ts';
import { logLife } from './kill-log.ts';
import { postgresLife } from './kill-postgres.ts';
import { processLife } from './kill-process.ts';
import { qdrantLife } from './kill-qdrant.ts';

export interface Kill {
  /** Work that went on before it was killed. */
  readonly afterMs: number;
  /** Points, rows or entries of this life that were acknowledged before. */
  readonly acknowledged: number;
  /** How many of these were not there after the restart. */
  readonly lost: number;
  /** Sessions that failed because of it. */
  readonly failed: number;
  /** What an index had not made up for, against the log, after it was opened again. */
  readonly unhealed: number;
  /** From the restart until the index had everything. */
  readonly healedMs: number;
  /** Entries of the log that was opened again, where that is what is timed. */
  readonly entries?: number;
}

/** Works and kills `kills` times with the chance of `next`, from nothing. */
export type Life = (next: () => number, kills: number) => AsyncGenerator<Kill, void, undefined>;

export const LIVES: Readonly<Record<string, Life>> = {
  qdrant: qdrantLife,
  postgres: postgresLife,
  process: processLife,
  engine: engineLife,
  pack: packLife,
  log: logLife,
};

export interface Row extends Kill {
  readonly victim: string;
  readonly seed: number;
  readonly life: number;
  /** Commit that was killed; lives of an earlier one are not repeated. */
  readonly version: string;
}

/** The commit, and whether files differ from it. */
function versionHere(): string {
  const { stdout } = spawnSync('git', ['describe', '--always', '--dirty', '--abbrev=10'], {
    cwd: import.meta.dirname,
    encoding: 'utf8',
  });
  return stdout?.trim() || 'unknown';
}

const KILLS_PER_LIFE = 10;

export interface Soak {
  readonly victims: readonly string[];
  readonly count: number;
  readonly seed: number;
  /** Lives that stand in it are not repeated; null: nothing is kept. */
  readonly file: string | null;
  readonly onLife?: (rows: readonly Row[]) => void;
}

/**
 * Lives of a victim that are led at the same time: those of the log have nothing in common, and wait most of their
 * time; those of engines have one process each.
 */
const AT_A_TIME: Readonly<Record<string, number>> = { log: 6, engine: 2, pack: 2 };

/** → `count` kills of each victim, those included that stand in the file. */
export async function soakKills({ victims, count, seed, file, onLife }: Soak): Promise<Row[]> {
  const kept: Row[] = file !== null && existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Row[]) : [];
  const all: Row[] = [];
  const version = versionHere();
  for (const victim of victims) {
    let nextLife = 0;
    const lead = async (): Promise<void> => {
      for (let life = nextLife++; life * KILLS_PER_LIFE < count; life = nextLife++) {
        const kills = Math.min(KILLS_PER_LIFE, count - life * KILLS_PER_LIFE);
        const known = kept.filter((row) => row.victim === victim && row.seed === seed && row.life === life);
        if (known.length >= kills) {
          all.push(...known.slice(0, kills));
          continue;
        }
        const rows: Row[] = [];
        const next = seeded(seed + 7919 * life + victim.length);
        for await (const kill of LIVES[victim]!(next, kills)) rows.push({ version, victim, seed, life, ...kill });
        all.push(...rows);
        kept.push(...rows);
        if (file !== null) {
          writeFileSync(`${file}.new`, `[\n${kept.map((row) => JSON.stringify(row)).join(',\n')}\n]\n`);
          renameSync(`${file}.new`, file);
        }
        onLife?.(rows);
      }
    };
    await Promise.all(Array.from({ length: AT_A_TIME[victim] ?? 1 }, lead));
  }
  return all;
}

const sum = (rows: readonly Row[], of: 'lost' | 'failed' | 'unhealed'): number =>
  rows.reduce((total, row) => total + row[of], 0);

/** True if nothing was lost, nothing failed, and everything healed. */
export const isWhole = (rows: readonly Row[]): boolean =>
  sum(rows, 'lost') + sum(rows, 'failed') + sum(rows, 'unhealed') === 0;

/**
 * The longest that opening a log took, for each 100,000 of its entries; shorter ones than 20,000 tell nothing. null:
 * none was opened.
 */
export function recoveryMs(rows: readonly Row[]): number | null {
  const slow = rows.flatMap(({ healedMs, entries = 0 }) => (entries < 20_000 ? [] : [(healedMs / entries) * 100_000]));
  return slow.length === 0 ? null : Math.max(...slow);
}

/** A Markdown table with a line for each victim, and one that says how many kills each version had. */
export function killTable(rows: readonly Row[]): string[] {
  const lines = [...new Set(rows.map(({ victim }) => victim))].map((victim) => {
    const own = rows.filter((row) => row.victim === victim);
    const healedMs = own.map((row) => row.healedMs).sort((a, b) => a - b);
    // What a life has acknowledged grows from kill to kill.
    const acknowledged = own.reduce(
      (total, row, i) => total + (own[i + 1]?.life === row.life ? 0 : row.acknowledged),
      0,
    );
    const cells = [
      ...[victim, own.length, acknowledged, sum(own, 'lost'), sum(own, 'failed'), sum(own, 'unhealed')],
      ...[healedMs[healedMs.length >> 1]!, healedMs.at(-1)!].map((ms) => `${(ms / 1000).toFixed(1)} s`),
    ];
    return `| ${cells.join(' | ')} |`;
  });
  return [
    '| killed | kills | acknowledged | lost | sessions failed | not healed | healed after (median) | at most |',
    '|---|---|---|---|---|---|---|---|',
    ...lines,
    '',
    [...new Set(rows.map(({ version }) => version))]
      .map((version) => `${version}: ${rows.filter((row) => row.version === version).length} kills`)
      .join(', '),
  ];
}
