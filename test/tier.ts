/**
 * How much of what could go on for hours is run. There are three tiers, told by PALIMPSEST_TEST_TIER:
 *   home    `npm test`             a tenth of every volume, and a share of cases that are alike, always the same
 *   merge   `.ci/run`              a tenth of every volume, and all of those whose turn it is; also simulations, other
 *   builds, servers, packages and commands by the hundred (MERGE_FILES)
 *   night   `npm run test:night`   all of every volume
 * The turn is the number of commits modulo ten, so ten commits in a row run all of the night; seeds move on with the
 * commits as well. PALIMPSEST_TEST_COMMIT is that number (scripts/bootstrap.mjs counts). Given by hand, it repeats what
 * a merge ran.
 */
const TIERS = ['home', 'merge', 'night'] as const;
export type Tier = (typeof TIERS)[number];

const asked = process.env['PALIMPSEST_TEST_TIER'] ?? 'home';
if (!TIERS.includes(asked as Tier))
  throw new Error(`PALIMPSEST_TEST_TIER is one of ${TIERS.join(', ')}, not '${asked}'`);
export const TIER = asked as Tier;

/**
 * Builds on which everything takes minutes (sanitizers, WebAssembly, an emulator) run a part of what runs on the usual
 * one.
 */
export const IS_SHORT = process.env['PALIMPSEST_TEST_SHORT'] === '1';

/** Rounds of a random test: a quarter on a build that is slow. */
export const rounds = (full: number): number => (IS_SHORT ? Math.ceil(full / 4) : full);

const COMMIT = Number(process.env['PALIMPSEST_TEST_COMMIT'] ?? 0);
const TURNS = 10;

const isNth = (place: number, every: number): boolean => (place + COMMIT) % every === 0;

/**
 * One of `every` cases that are alike, another one with the next commit, so that as many commits run all. A night runs
 * all, and home a third of what a merge does.
 */
export const isDealt = (place: number, every: number): boolean =>
  TIER === 'night' || isNth(place, TIER === 'home' ? 3 * every : every);

/** One of `every` cases that are alike at home, where every other tier runs all. */
export const isForHome = (place: number, every: number): boolean => TIER !== 'home' || place % every === 0;

/** One of `every` cases that are alike, at home and on a slow build; a merge runs all on every other one. */
export const isShare = (place: number, every: number): boolean =>
  TIER === 'night' || (TIER === 'merge' && !IS_SHORT) || isNth(place, every);

/**
 * One of several groups of test files that take minutes on a slow build, and what these files are told of the commit:
 * of as many commits as there are groups each runs one, and the next time that it is a file's turn its own shares have
 * moved on by one. A night runs all.
 */
export function filesInTurn(groups: readonly (readonly string[])[]): {
  files: readonly string[];
  env: Readonly<Record<string, string>>;
} {
  return {
    files: groups.filter((_, place) => isDealt(-place, groups.length)).flat(),
    env: { PALIMPSEST_TEST_COMMIT: String(Math.floor(COMMIT / groups.length)) },
  };
}

interface Volume {
  /** What a night runs, and a merge when it is its turn. */
  readonly full: number;
  /** What a night runs where that is more than a merge has time for. */
  readonly night?: number;
  /** The last digit of the numbers of commits that run all of it, so dealt that every turn takes about as long. */
  readonly turn: number;
  /** The least that meets everything it is to meet, where a tenth is less. */
  readonly least?: number;
}

/** Every volume, one line each. A unit stands in its name. */
export const VOLUMES = {
  'log seeds': { full: 1600, turn: 0 },
  'log kills': { full: 1000, turn: 1 },
  'engine kills': { full: 100, turn: 3, night: 500 },
  'log tampers': { full: 10_000, turn: 2 },
  'cache steps': { full: 50_000, turn: 3 },
  'memory steps': { full: 100_000, turn: 4 },
  'pool steps': { full: 10_000, turn: 5, least: 3000 },
  'adapter sessions': { full: 500, turn: 4, least: 30 },
  'adapter steps': { full: 4000, turn: 1, least: 300 },
  passes: { full: 1000, turn: 2 },
  'index steps': { full: 2000, turn: 9, least: 800 },
  'prompt edits': { full: 10_000, turn: 5, least: 200 },
  'prefix lives': { full: 2000, turn: 0, night: 10_000 },
  'market steps': { full: 1_000_000, turn: 7 },
  'adopt steps': { full: 20_000, turn: 8, least: 2000 },
  'move steps': { full: 8000, turn: 6, least: 4000 },
  'misuse rounds': { full: 8000, turn: 6 },
  schemas: { full: 1000, turn: 7 },
  receipts: { full: 100, turn: 1, night: 1000, least: 25 },
  'parser seconds': { full: 60, turn: 8 },
  'kernel seconds': { full: 60, turn: 9 },
  'many caches seconds': { full: 30, turn: 2, least: 8 },
  'canary runs': { full: 4, turn: 8 },
  'tool calls': { full: 50, turn: 7, least: 15 },
} as const satisfies Record<string, Volume>;

/** What only a night does, and a merge when it is its turn. */
export const NIGHTLY = {
  'avx2vnni under sanitizers': 0,
  'avx512vnni under sanitizers': 7,
  'codecs on an emulated ARM': 5,
  'WebAssembly built twice': 9,
} as const satisfies Record<string, number>;

/**
 * Test files that others run when they merge, and nobody at home: simulations, fuzzing, a model of real size, examples
 * and yardsticks; other builds, servers, browsers, packages, other runtimes, and commands by the hundred; what tries
 * benches and the scripts of this repository; processes that are ended at any time, and canaries in whole engines.
 */
export const MERGE_FILES: readonly string[] = [
  'test/everywhere/**',
  'test/examples/**',
  'test/fuzz/**',
  'test/lab/yardstick*.test.ts',
  'test/model/chat.test.ts',
  'test/model/faults.test.ts',
  'test/model/logits.test.ts',
  'test/model/quality.test.ts',
  'test/package/install.test.ts',
  ...['interrupt', 'log', 'memory', 'pages', 'policy-million'].map((name) => `test/simulation/${name}.test.ts`),
  'test/smoke/**',
  'test/soak/**',
  'test/suite/qdrant.test.ts',
  'test/unit/engine/cache/canaries-on-disk.test.ts',
  'test/unit/engine/calibrate-long.test.ts',
  'test/unit/engine/cli/cli-*.test.ts',
  'test/unit/engine/events/*.test.ts',
  ...['page-browser', 'python-client'].map((name) => `test/unit/engine/openai/${name}.test.ts`),
  ...['pack', 'pack-forks', 'pack-parked', 'receipt-lineage', 'receipt-parked', 'receipt-tools'].map(
    (name) => `test/unit/engine/session/${name}.test.ts`,
  ),
  'test/unit/engine/sidecar/embedder.test.ts',
  'test/unit/engine/sidecar/h*.test.ts',
  'test/unit/engine/session/reuse.test.ts',
  'test/unit/engine/state/erase-servers.test.ts',
  'test/unit/engine/thread/exit.test.ts',
  'test/unit/engine/thread/runtime.test.ts',
  ...['bench', 'bootstrap', 'build-bench', 'fetch-texts'].map((name) => `test/unit/scripts/${name}.test.ts`),
  'test/unit/witness/report-browser.test.ts',
];

/**
 * Test files that only a night runs, and a merge when it is their turn: they ask about numbers in docs/lab, read fifty
 * texts, or take a build of their own.
 */
export const NIGHTLY_FILES: readonly (readonly [file: string, turn: number])[] = [
  ['test/lab/kvarn.test.ts', 0],
  ['test/lab/oscar.test.ts', 9],
  ['test/lab/kvquant.test.ts', 1],
  ['test/lab/xquant.test.ts', 2],
  ['test/package/lab.test.ts', 3],
  ['test/lab/modifiers.test.ts', 3],
  ['test/lab/published.test.ts', 4],
  ['test/lab/transform.test.ts', 5],
  ['test/lab/refresh.test.ts', 6],
  ['test/model/learned.test.ts', 7],
  ['test/lab/harm.test.ts', 2],
  ['test/lab/machine.test.ts', 6],
  ['test/lab/faults.test.ts', 5],
  ['test/lab/frontier.test.ts', 8],
  ['test/everywhere/formats.test.ts', 9],
];

/** Test files that take a minute or more, the longest first: they begin before all others. */
export const MINUTES = [
  ...['addresses', 'races', 'arm64', 'machines', 'long', 'formats'].map((name) => `test/everywhere/${name}.test.ts`),
  ...[
    'cli/cli-examples',
    'cli/cli',
    'session/idle',
    'state/erase',
    'trace/record',
    'cache/canaries-on-disk',
    'session/receipt',
  ].map((name) => `test/unit/engine/${name}.test.ts`),
  ...['suite/store', 'soak/kills', 'examples/readme', 'model/learned', 'package/install', 'package/lab'].map(
    (name) => `test/${name}.test.ts`,
  ),
  ...['codecs', 'trial', 'numbers', 'allocations'].map((name) => `test/unit/native/${name}.test.ts`),
];

/** True if it is the turn of what has this one. */
export const isTurn = (turn: number): boolean =>
  TIER === 'night' ||
  (TIER === 'merge' && process.env['PALIMPSEST_TEST_COMMIT'] !== undefined && COMMIT % TURNS === turn);

/** How much of a volume runs here. */
export function volume(name: keyof typeof VOLUMES): number {
  const { full, night = full, turn, least = 1 }: Volume = VOLUMES[name];
  const isWhole = IS_SHORT ? TIER === 'night' : isTurn(turn);
  const most = TIER === 'night' ? night : full;
  return Math.max(least, rounds(isWhole ? most : Math.ceil(full / TURNS)));
}

/** True if what only nights run is run here. */
export const isNightFor = (name: keyof typeof NIGHTLY): boolean => isTurn(NIGHTLY[name]);

/**
 * A seed that moves on with the commits, so that merges find in a year what one seed never would. `first` is that of
 * `npm test`. What moving seeds have found: docs/lab/tests.md.
 */
export const seedFrom = (first: number): number => first + COMMIT;
