/** What `npm test` does behind the build: the checks, and the tests of a tier with what they cost. */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import { costTable, measure, stagesOf } from './cost.mjs';
import { at, explain, node, root, Stop, say, stage } from './processes.mjs';

const TSC = 'node_modules/typescript/bin/tsc';

export const BIOME = 'node_modules/@biomejs/biome/bin/biome';
const CHECKS = [
  ['Types', 'The lines above say where the types do not match.', [[TSC, '--noEmit', '-p', 'tsconfig.json']]],
  [
    'Lint',
    '`npx biome lint --write` repairs some of these; repair the others by hand.',
    [
      [BIOME, 'lint', '--error-on-warnings', '.'],
      ['node_modules/oxlint/bin/oxlint', '--type-aware', '--deny-warnings', '.'],
    ],
  ],
  ['Format', '`npm run format` repairs it.', [[BIOME, 'check', '--linter-enabled=false', '--reporter=summary', '.']]],
];

/** Runs every check and returns how many failed. Each one that fails has printed why. */
export async function check() {
  let failed = 0;
  for (const [title, hint, commands] of CHECKS) {
    try {
      await stage(title, hint, async () => {
        const results = await Promise.all(commands.map((command) => node(command, { quiet: true })));
        return {
          code: Math.max(...results.map((r) => r.code)),
          output: results
            .filter((r) => r.code !== 0)
            .map((r) => r.output)
            .join('\n'),
        };
      });
    } catch (error) {
      explain(error);
      failed++;
    }
  }
  return failed;
}

/** How many of the longest files are named at the end. */
const LONGEST = 20;
/** From so many CPU seconds on, a file says in its head what nothing shorter would prove. */
const LONG_SECONDS = 60;
const SAYS_WHY = 'Nothing shorter';

/**
 * The number of commits, by which turns and seeds are chosen (test/tier.ts); in a clone that lacks the older ones some
 * number of the newest instead, and 0 where git does not answer.
 */
function commitNumber() {
  const git = (...args) => spawnSync('git', args, { cwd: root, encoding: 'utf8' }).stdout?.trim() ?? '';
  const isShallow = git('rev-parse', '--is-shallow-repository') === 'true';
  const number = isShallow
    ? Number.parseInt(git('rev-parse', 'HEAD').slice(0, 6), 16)
    : git('rev-list', '--count', 'HEAD');
  return String(number || 0);
}

/** What tests are told of their tier. */
function settings(tier) {
  if (!['home', 'merge', 'night'].includes(tier))
    throw new Stop(`PALIMPSEST_TEST_TIER is home, merge or night, not '${tier}'`);
  if (tier === 'home') return { PALIMPSEST_TEST_TIER: tier };
  const commit = process.env.PALIMPSEST_TEST_COMMIT ?? commitNumber();
  say(
    `Tier '${tier}'; PALIMPSEST_TEST_TIER=${tier} PALIMPSEST_TEST_COMMIT=${commit} npm test runs the same volumes with the same seeds\n`,
  );
  return { PALIMPSEST_TEST_TIER: tier, PALIMPSEST_TEST_COMMIT: commit };
}

/**
 * The runs of vitest that make up a tier. Where others merge, tests of the log's files are run with coverage, which
 * must be whole, and left out of the other run.
 */
const runsOf = (tier, args) =>
  tier === 'home' || args.length > 0
    ? [{ title: 'tests', args, env: { PALIMPSEST_TEST_DIST: '1' } }]
    : [
        { title: 'tests that take every branch', args: ['--config', 'test/mutation/coverage.config.ts', '--coverage'] },
        { title: 'tests', args: [], env: { PALIMPSEST_TEST_COVERED: '1', PALIMPSEST_TEST_DIST: '1' } },
      ];

/** One run of vitest. → { passed, failed, skipped, files } */
async function vitest({ args, env }) {
  const summary = at('.cache', `summary.${process.pid}.json`);
  const { code } = await node(['node_modules/vitest/vitest.mjs', 'run', ...args], {
    env: { ...env, PALIMPSEST_TEST_SUMMARY: summary },
  });
  let told = { passed: 0, failed: 1, skipped: 0, files: [] };
  try {
    told = { files: [], ...JSON.parse(fs.readFileSync(summary, 'utf8')) };
  } catch {
    // It crashed.
  }
  fs.rmSync(summary, { force: true });
  // Vitest may have failed for a reason other than a test. That must not look like success.
  if (code !== 0 && told.failed === 0) told.failed = 1;
  return told;
}

/** Prints what the stages and the longest files cost, and keeps it in .cache/cost.json. */
function report(tier, stages, files) {
  const longest = files.toSorted((a, b) => b.seconds - a.seconds).slice(0, LONGEST);
  const [{ model }] = os.cpus();
  const machine = { model, cores: os.cpus().length, node: process.version };
  fs.writeFileSync(at('.cache/cost.json'), `${JSON.stringify({ tier, machine, stages, files }, null, 1)}\n`);
  if (tier === 'home') return;
  const lines = [...costTable('stage', stages), '', ...costTable(`the ${LONGEST} longest test files`, longest)];
  const silent = files
    .filter(({ cpuSeconds }) => (cpuSeconds ?? 0) > LONG_SECONDS)
    .filter(({ title }) => !fs.readFileSync(at(title), 'utf8').split('import ')[0].includes(SAYS_WHY));
  if (silent.length > 0)
    lines.push(
      '',
      `${silent.map(({ title }) => title).join(', ')}: the head does not say what nothing shorter would prove`,
    );
  process.stdout.write(`${lines.join('\n')}\nAll of it is in .cache/cost.json\n`);
}

/** Builds, checks and tests. Each check counts as one test, so that the closing line covers them too. */
export async function runTests({ args, tier, build }) {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  // Stages before us are told of where .ci/run called.
  const stages = process.env.PALIMPSEST_TEST_STAGES === undefined ? [] : stagesOf(process.env.PALIMPSEST_TEST_STAGES);
  const files = [];
  const staged = async (title, work) => {
    const done = measure(title);
    const result = await work();
    stages.push(done());
    return result;
  };
  try {
    const env = settings(tier);
    await staged('build', build);
    const failed = await staged('types, lint, format', check);
    counts.failed += failed;
    counts.passed += CHECKS.length - failed;
    for (const run of runsOf(tier, args)) {
      const told = await staged(run.title, () => vitest({ ...run, env: { ...env, ...run.env } }));
      for (const key of Object.keys(counts)) counts[key] += told[key];
      files.push(...told.files);
    }
    report(tier, stages, files);
  } catch (error) {
    explain(error);
    counts.failed++;
  }
  process.stdout.write(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped\n`);
  return { code: counts.failed === 0 ? 0 : 1 };
}
