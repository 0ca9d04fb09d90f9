/** Settings of Stryker for the file, or the lines of one, that PALIMPSEST_MUTATE names; `main.mjs` sets it. */
const file = process.env.PALIMPSEST_MUTATE;
export default {
  mutate: [file],
  testRunner: 'vitest',
  plugins: [new URL('node_modules/@stryker-mutator/vitest-runner/dist/src/index.js', import.meta.url).pathname],
  vitest: { configFile: 'test/mutation/vitest.config.ts', related: false },
  coverageAnalysis: 'perTest',
  concurrency: 1,
  // It would read tsconfig.json with a compiler that this project does not have.
  tsconfigFile: 'none.json',
  tempDirName: '.cache/mutation',
  ignorePatterns: [
    '.cache',
    'dist',
    'docs',
    'models',
    'prebuilds',
    'coverage',
    'test/mutation/node_modules',
    'test/bench',
  ],
  reporters: ['clear-text', 'json'],
  clearTextReporter: { allowColor: false, logTests: false, reportTests: false },
  jsonReporter: { fileName: `.cache/mutation-reports/${file.replaceAll(/[/:]/g, '-')}.json` },
  thresholds: { high: 100, low: 90, break: null },
  warnings: { unknownOptions: false },
};
