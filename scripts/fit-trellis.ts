/**
 * `node --import tsx scripts/fit-trellis.ts [--sequences LIST] [--restarts N] [--tries N] [--seed N]` fits the tables
 * of levels of each sequence of codes of the trellis formats (native/formats/trellis/) to a standard normal, or for
 * low2 and low1 to what the first sequence leaves of one, and writes scripts/trellis-levels.json where they err less
 * than those that are there (then `npm run generate`). A start has quantiles of normals in an order that is drawn.
 * Rounds of Lloyd's algorithm follow: rows are coded, and the entries become those with the least squared error for the
 * windows that were chosen. The best start is climbed from: two entries change places, or one moves, and what errs less
 * stays.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { gaussians, uniforms } from '../lab/methods/words.ts';
import { levelsOf, type Sequence, TrellisSearch, WINDOW_BITS, windowIndex } from '../native/formats/trellis/trellis.ts';
import { TRELLIS_DIVISOR } from '../native/reference/tables.gen.ts';

const STEPS = 128;
/** Rows that are tested, drawn apart from those that are fitted. */
const TESTED = 400;
const FILE = join(import.meta.dirname, 'trellis-levels.json');

const { values } = parseArgs({
  options: {
    sequences: { type: 'string', default: 'high,low2,low1,single' },
    restarts: { type: 'string', default: '60' },
    tries: { type: 'string', default: '1000' },
    seed: { type: 'string', default: '1' },
  },
});

type Tables = readonly (readonly number[])[];

const steps = (x: number): number => Math.round(4096 * Math.min(4, Math.max(-4, x)));

class Fit {
  readonly #sequence: Sequence;
  /** What a sequence is given of normals. */
  readonly #left: (rows: Float32Array) => Float32Array;
  readonly #test: Float32Array;
  /** The deviation of the numbers. */
  readonly #size: number;
  #seed: number;

  constructor(sequence: Sequence, high: Tables, seed: number) {
    this.#sequence = sequence;
    this.#seed = seed;
    this.#left = (rows) => (sequence.startsWith('low') ? leftBy('high', high, rows) : rows);
    this.#test = this.#left(gaussians(TESTED * STEPS, 99));
    this.#size = Math.sqrt(this.#test.reduce((sum, x) => sum + x * x, 0) / this.#test.length);
  }

  rows(count: number, seed: number): Float32Array {
    return this.#left(gaussians(count * STEPS, seed));
  }

  /** The mean squared error of rows with these tables. */
  error(tables: Tables, rows: Float32Array = this.#test): number {
    return leftBy(this.#sequence, tables, rows).reduce((sum, x) => sum + x * x, 0) / rows.length;
  }

  start(): Tables {
    const draw = uniforms(this.#seed++);
    const share = 0.7 + 0.2 * draw();
    const deviations = WINDOW_BITS[this.#sequence] === 4 ? [1] : [share, Math.sqrt(1 - share * share)];
    return deviations.map((deviation) => shuffled(quantiles(this.#size * deviation), draw));
  }

  /** Rounds of coding and of least squares. */
  settle(given: Tables, rounds: number, rows: number): Tables {
    const tables = given.map((table) => [...table]);
    const windows = 2 ** WINDOW_BITS[this.#sequence];
    for (let round = 0; round < rounds; round++) {
      const counts = new Float64Array(windows);
      const sums = new Float64Array(windows);
      eachCoded(this.#sequence, tables, this.rows(rows, this.#seed++), (x, _, window) => {
        counts[window]!++;
        sums[window]! += x * TRELLIS_DIVISOR;
      });
      for (let sweep = 0; sweep < 6; sweep++)
        for (const at of tables.keys()) tables[at] = this.#entries(at, tables, counts, sums);
    }
    return tables.map((table) => table.map(Math.round));
  }

  /** The entries of one table that err least where the others stay. */
  #entries(table: number, tables: Tables, counts: Float64Array, sums: Float64Array): number[] {
    const [over, under] = [new Float64Array(16), new Float64Array(16)];
    for (const [window, count] of counts.entries()) {
      const index = windowIndex(this.#sequence, window);
      const others = index.reduce((sum, entry, at) => (at === table ? sum : sum + tables[at]![entry]!), 0);
      over[index[table]!]! += sums[window]! - count * others;
      under[index[table]!]! += count;
    }
    return tables[table]!.map((entry, i) => (under[i]! > 0 ? over[i]! / under[i]! : entry));
  }
}

function eachCoded(
  sequence: Sequence,
  tables: Tables,
  rows: Float32Array,
  each: (x: number, level: number, window: number, at: number) => void,
): void {
  const levels = levelsOf(sequence, tables);
  const search = new TrellisSearch(sequence, levels);
  for (let first = 0; first < rows.length; first += STEPS) {
    const row = rows.subarray(first, first + STEPS);
    for (const [step, window] of search.windows(Int16Array.from(row, steps)).entries())
      each(row[step]!, levels[window]!, window, first + step);
  }
}

/** What a sequence leaves of rows. */
function leftBy(sequence: Sequence, tables: Tables, rows: Float32Array): Float32Array {
  const left = new Float32Array(rows.length);
  eachCoded(sequence, tables, rows, (x, level, _, at) => (left[at] = x - level / TRELLIS_DIVISOR));
  return left;
}

function quantiles(deviation: number): number[] {
  const sorted = gaussians(16 * 64, 5).sort();
  return Array.from({ length: 16 }, (_, i) => {
    const own = sorted.subarray(64 * i, 64 * i + 64);
    return Math.round((own.reduce((sum, x) => sum + x, 0) / 64) * deviation * TRELLIS_DIVISOR);
  });
}

function shuffled(entries: number[], draw: () => number): number[] {
  for (let at = entries.length - 1; at > 0; at--) swap(entries, at, Math.floor(draw() * (at + 1)));
  return entries;
}

function swap(entries: number[], one: number, other: number): void {
  [entries[one], entries[other]] = [entries[other]!, entries[one]!];
}

/** Tables like these, but for one change. */
function neighbour(tables: Tables, draw: () => number): Tables {
  const next = tables.map((table) => [...table]);
  const table = next[Math.floor(draw() * next.length)]!;
  const place = (): number => Math.floor(draw() * 16);
  if (draw() < 2 / 3) swap(table, place(), place());
  else table[place()]! += Math.round((draw() - 0.5) * TRELLIS_DIVISOR * 0.6);
  return next;
}

const written = JSON.parse(readFileSync(FILE, 'utf8')) as Record<string, Tables>;
for (const [at, sequence] of (values.sequences.split(',') as Sequence[]).entries()) {
  const fit = new Fit(sequence, written['high']!, 1000 * Number(values.seed) + at);
  const draw = uniforms(Number(values.seed));
  let best = written[sequence]!;
  let least = fit.error(best);
  const offer = (tables: Tables): void => {
    const error = fit.error(tables);
    if (error < least) [best, least] = [tables, error];
  };
  const said = `${sequence}: ${least.toFixed(5)} before`;
  for (let start = 0; start < Number(values.restarts); start++) offer(fit.settle(fit.start(), 15, 120));
  for (let tried = 0; tried < Number(values.tries); tried++) offer(fit.settle(neighbour(best, draw), 2, 60));
  const fresh = fit.error(best, fit.rows(3000, 7));
  console.log(`${said}, ${least.toFixed(5)} now; ${fresh.toFixed(5)} of rows that chose nothing`);
  written[sequence] = best;
}
const lines = Object.entries(written).map(
  ([sequence, tables]) => `  "${sequence}": [\n${tables.map((table) => `    [${table.join(', ')}]`).join(',\n')}\n  ]`,
);
writeFileSync(FILE, `{\n${lines.join(',\n')}\n}\n`);
