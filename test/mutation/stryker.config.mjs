const file = process.env.PALIMPSEST_MUTATE;
export default {
  mutate: [file],
  testRunner: 'vitest',
  plugins: [new URL('node_modules/@stryker-mutator/vitest-runner/dist/src/index.js', import.meta.url).pathname],
  vitest: { configFile: 'test/mutation/vitest.config.ts', related: false },
  coverageAnalysis: 'perTest',
  concurrency: 1,
  tsconfigFile: 'none.json',
  tempDirName: '.cache/mutation',
  ignorePatterns: ['.cache', 'dist', 'docs', 'models', 'prebuilds', 'coverage', 'test/mutation/node_modules', 'test/bench'],
  allowEmpty: false,
  reporters: ['clear-text', 'json'],
  clearTextReporter: { allowColor: false, logTests: false, reportTests: false },
  jsonReporter: { fileName: `.cache/mutation-reports/${file.replaceAll('/', '-')}.json` },
  thresholds: { high: 100, low: 90, break: null },
  warnings: { unknownOptions: false },
};
