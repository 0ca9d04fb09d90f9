/** Exceptions to the tidy rules, each with its reason. An exception that is no longer needed fails the test too. */

/** Library files that print, because talking to a terminal is their work. Folder names end in a slash. */
export const PRINTERS: Readonly<Record<string, string>> = {
  'engine/cli/': 'the command line',
  'witness/anchor-targets.ts': 'standard output is one of the places that checkpoints may go to',
};

/** Library files that read the environment. */
export const ENVIRONMENT_READERS: Readonly<Record<string, string>> = {
  'engine/cli/program.ts': 'the command line hands it to the settings',
  'engine/transformer/hub/settings.ts':
    'models of the Hub and of Ollama are where the variables of their own programs say',
  'engine/transformer/cache-dir.ts': 'fetched models are where the system keeps the caches of a user',
  'engine/transformer/fetch.ts': 'looks for python3 on the PATH, as starting it by its name would',
};

/** Files that mention a folder of one machine. */
export const MACHINE_PATHS: Readonly<Record<string, string>> = {
  'test/tidy/': 'looks for them',
};

/** Modules reached by name only. */
export const ENTRIES: Readonly<Record<string, string>> = {
  'engine/index.ts': 'the package',
  'engine/lab.ts': 'the door of palimpsest-lab',
  'engine/langchain/chat-model.ts': 'palimpsest/langchain',
  'lab/index.ts': 'the package palimpsest-lab',
  'lab/register.ts': 'palimpsest-lab/register, for node --import',
  'lab/evaluate/main.ts': 'npm run evaluate',
  'engine/cli/main.ts': 'the command',
  'engine/serve/page/main.ts': 'the live page, in a browser',
  'migrations/schema.ts': 'read by drizzle-kit',
  'native/yardsticks/register.ts': 'imported by what compares formats, before anything else (node --import)',
};
