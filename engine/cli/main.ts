#!/usr/bin/env node
/** The command line: names, help and exit codes. 0 done, 1 a fault of ours, 2 a fault in the request or in the world, 130 interrupted. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command, CommanderError } from 'commander';
import { KvError } from '../../native/index.ts';
import { packageRoot } from './package.ts';
import { addSettings, readSettings, type SettingName } from './settings.ts';
import type { Settings } from './options.ts';

const ENGINE: readonly SettingName[] = ['model', 'threads', 'isa', 'dense', 'cache', 'config'];
const STATE: readonly SettingName[] = ['state', 'onLogFailure'];
const CACHE: readonly SettingName[] = ['kvBudget', 'kldBudget', 'policy', 'cacheTypeK', 'cacheTypeV', 'skipLayers', 'thresholds'];

function program(): Command {
  const { version } = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { version: string };
  const root = new Command('palimpsest')
    .description('An adaptive KV cache: old tokens in 8, 4, 3 or 2 bits, decided per layer and page while running,\nevery move tried first and explained afterwards.')
    .version(version)
    .showHelpAfterError('(add --help for the options)')
    .exitOverride()
    .addHelpText(
      'after',
      `
Every flag is also an environment variable (--kv-budget: PALIMPSEST_KV_BUDGET) and a key of --config FILE (kv-budget).

Try first:
  palimpsest start                                        the demonstration behind npm start
  palimpsest run -m reference -p README.md --kv-budget 25%
  palimpsest audit list --limit 5
  palimpsest doctor --tokens 32768`,
    );
  const command = (parent: Command, name: string, description: string, names: readonly SettingName[], act: (settings: Settings, args: string[]) => Promise<void>): Command => {
    const made = addSettings(parent.command(name).description(description), names);
    return made.action(async (...parameters: unknown[]) => {
      const self = parameters.at(-1) as Command;
      await act(readSettings(self), self.processedArgs.flat().filter((value): value is string => typeof value === 'string'));
    });
  };

  command(root, 'run', 'Read a prompt within a KV budget, stream the answer, say what the cache did.', [...ENGINE, 'prompt', 'maxTokens', ...CACHE, 'chat', 'system', 'temperature', 'topP', 'seed', 'stop', 'compare', ...STATE, 'progress', 'json'], async (settings) =>
    (await import('./run.ts')).run(settings),
  ).addHelpText('after', '\nExamples:\n  palimpsest run -m smollm2-135m -p report.txt --kv-budget 25% --compare\n  echo "Once upon a time" | palimpsest run -m reference -p - -n 64\n  palimpsest run -m smollm2-135m --chat --kv-budget 64MiB');
  command(root, 'start', 'Read a long document of our own at a quarter of the memory, ask it five questions, compare.', [...ENGINE, ...CACHE, 'tokens', 'seed', ...STATE, 'progress', 'json'], async (settings) => (await import('./start.ts')).start(settings));
  command(root, 'evaluate', 'Perplexity, divergence, recall and bits of caches against the exact one.', [...ENGINE, 'text', 'caches', 'tokens', 'windows', 'recall', 'seed', 'kvBudget', 'policy', 'cacheTypeK', 'cacheTypeV', 'json'], async (settings) =>
    (await import('./evaluate.ts')).evaluateCommand(settings),
  ).addHelpText('after', '\nExample:\n  palimpsest evaluate -m smollm2-135m --text novel.txt code.py --tokens 4096 --caches q8,rot4:rot2,price@25%,uniform@25%');
  command(root, 'inspect <path>', 'What a model file, threshold file, log or index contains; refuses what is broken and says why.', ['cache', 'json'], async (settings, args) => (await import('./inspect.ts')).inspect(args[0]!, settings));
  command(root, 'fetch <name>', 'Bring a model into the cache folder (smollm2-135m), checked by its SHA-256.', ['cache'], async (settings, args) => (await import('./fetch.ts')).fetchCommand(args[0]!, settings));
  command(root, 'doctor', 'What is requested and what is effective: kernels, threads, formats, model, state; memory for a length.', [...ENGINE, 'tokens', 'state', 'json'], async (settings) => (await import('./doctor.ts')).doctor(settings));

  const audit = root.command('audit').description('Questions to the witness log: what moved, why, what it cost, where something like it happened.');
  const ask = (name: string, description: string, act: (settings: Settings, args: string[], command: Command) => Promise<void>): Command => {
    const made = addSettings(audit.command(name).description(description), ['state', 'database', 'config', 'json']);
    return made.action(async (...parameters: unknown[]) => {
      const self = parameters.at(-1) as Command;
      await act(readSettings(self), self.processedArgs.flat().filter((value): value is string => typeof value === 'string'), self);
    });
  };
  ask('list', 'Decisions, newest first.', async (settings, _, self) => (await import('./audit.ts')).list(settings, self.opts()))
    .option('--session <id>', 'only this session')
    .option('--layer <n>', 'only this layer')
    .option('--side <k|v>', 'only keys or values')
    .option('--reason <rule>', 'only this rule or threshold, e.g. deficit, price')
    .option('--since <time>', 'ISO time, or 90s, 15m, 2h, 3d ago')
    .option('--until <time>', 'the same')
    .option('--step <from-to>', 'only at these token counts')
    .option('--refused', 'only refused trials')
    .option('--limit <n>', 'how many', '20');
  ask('sessions', 'Sessions with their totals.', async (settings) => (await import('./audit.ts')).sessions(settings));
  ask('show <id>', 'One entry of the log as it was written.', async (settings, args) => (await import('./audit.ts')).show(settings, args[0]!));
  ask('explain <id>', 'A decision in sentences: what, why, what it cost, what else was considered.', async (settings, args) => (await import('./audit.ts')).explainCommand(settings, args[0]!));
  ask('similar <id>', 'Sessions whose work was like that of this entry.', async (settings, args, self) => (await import('./audit.ts')).similar(settings, args[0]!, self.opts())).option('--limit <n>', 'how many', '5');
  ask('verify', 'Check every byte of the log and its hash chain.', async (settings) => (await import('./audit.ts')).verify(settings));
  ask('replay <session>', 'Take every decision of a session again from the log alone and compare.', async (settings, args) => (await import('./audit.ts')).replay(settings, args[0]!));
  ask('reindex', 'Rebuild the SQL index and the vector index from the log.', async (settings) => (await import('./audit.ts')).reindex(settings));

  const thresholds = root.command('thresholds').description('What was learned, as a file that another machine can use.');
  const learned = (name: string, description: string, act: (settings: Settings, args: string[]) => Promise<void>): Command => command(thresholds, name, description, ['model', 'cache', 'state', 'config', 'json'], act);
  learned('show [file]', 'Print a threshold file, or what this state folder would start a session with.', async (settings, args) => (await import('./thresholds.ts')).show(settings, args[0]));
  learned('export <file>', 'Write what this state folder learned for a model.', async (settings, args) => (await import('./thresholds.ts')).exportFile(settings, args[0]!));
  learned('import <file>', 'Check a file and use it for this model from now on.', async (settings, args) => (await import('./thresholds.ts')).importFile(settings, args[0]!));
  learned('diff <a> <b>', 'What differs between two files.', async (settings, args) => (await import('./thresholds.ts')).diff(settings, args[0]!, args[1]!));
  return root;
}

try {
  await program().parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
  else if (error instanceof KvError) {
    const values = Object.entries(error.values).map(([key, value]) => `${key}=${String(value)}`);
    process.stderr.write(`palimpsest: ${error.message} [${error.code}]\n`);
    if (values.length > 0) process.stderr.write(`  ${values.join(' ')}\n`);
    if (error.hint !== undefined) process.stderr.write(`  ${error.hint}\n`);
    process.exitCode = 2;
  } else {
    process.stderr.write(`palimpsest: a fault of ours, please report it\n${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
    process.exitCode = 1;
  }
}
