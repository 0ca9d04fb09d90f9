/** The program on the command line: its commands with their flags and their help. */
import { Command } from 'commander';
import { columnsOf, packageVersion, wrap } from '../../native/index.ts';
import {
  ADAPTER_COMMANDS,
  AUDIT_COMMANDS,
  COMMANDS,
  PACK_COMMANDS,
  SESSION_COMMANDS,
  THRESHOLD_COMMANDS,
  TRACE_COMMANDS,
} from './commands.ts';
import type { CommandText } from './setting-groups.ts';
import { addSettings, readSettings } from './settings.ts';

/** The text below the help of every command. */
const sources = (): string =>
  `\n${wrap('Each flag can also be set in the environment (--kv-budget: PALIMPSEST_KV_BUDGET) or in a TOML or JSON file named with --config (kv-budget = "25%").', columnsOf(process.stdout))}`;

function add(
  parent: Command,
  { usage, does, brief = does, topic, examples, settings, defaults, repeats, act }: CommandText,
): void {
  if (topic !== undefined) parent.commandsGroup(topic);
  const command = addSettings(parent.command(usage).description(does).summary(brief), settings, defaults, repeats);
  command.addHelpText(
    'after',
    () =>
      `${sources()}\n\n${examples.length === 1 ? 'Example' : 'Examples'}:\n${examples.map((line) => `  ${line}`).join('\n')}`,
  );
  command.action(async (...parameters: unknown[]) => {
    const self = parameters.at(-1) as Command;
    const settings = readSettings(self, process.env);
    if (settings.masterKey !== undefined) (await import('./options.ts')).applyMasterKeys(settings);
    await act(
      settings,
      self.processedArgs.flat().filter((value): value is string => typeof value === 'string'),
    );
  });
}

/** A command as a list has it: that it takes options goes without saying. */
const termOf = (command: Command): string =>
  `${command.name()} ${command.usage()}`.replace(/ \[options\]| \[command\]/g, '');

/** Commands of a kind, below one name. `topic`: under which heading the first screen has it. */
const GROUPS = [
  {
    name: 'audit',
    topic: 'Every day:',
    does: 'Questions to the witness log: what moved, why, what it cost, where something like it happened.',
    brief: 'What moved and why: list, explain, verify …',
    commands: AUDIT_COMMANDS,
  },
  {
    name: 'sessions',
    topic: 'Every day:',
    does: 'Sessions that wait in files, and go on later.',
    brief: 'Sessions that wait in files: park, resume, list.',
    commands: SESSION_COMMANDS,
  },
  {
    name: 'trace',
    topic: 'Measure:',
    does: 'A run as a file, over which caches are simulated without the model.',
    brief: 'Runs as files, for simulate.',
    commands: TRACE_COMMANDS,
  },
  {
    name: 'adapters',
    topic: 'Files:',
    does: 'LoRA adapters, which sessions name with --lora.',
    brief: 'LoRA adapters: add, list, remove, inspect, verify.',
    commands: ADAPTER_COMMANDS,
  },
  {
    name: 'packs',
    topic: 'Files:',
    does: 'Kernel packs: signed WebAssembly modules, which nothing loads before a trust file was installed and a pack activated.',
    brief: 'Kernel packs: sign, install, activate, rollback …',
    commands: PACK_COMMANDS,
  },
  {
    name: 'thresholds',
    topic: 'Files:',
    does: 'What was learned, as a file that another machine can use.',
    brief: 'What was learned, as files for other machines.',
    commands: THRESHOLD_COMMANDS,
  },
] as const;

/**
 * A program that was not run yet. It throws a `CommanderError` where it would end the process. `write`: where help
 * goes.
 */
export function program(write = (text: string): unknown => process.stdout.write(text)): Command {
  const root = new Command('palimpsest')
    .description(
      'An adaptive KV cache: old tokens in 8, 4, 3 or 2 bits, decided per layer and page while running, every move tried first and explained afterwards.',
    )
    .version(packageVersion())
    .showHelpAfterError('(add --help for the options)')
    .exitOverride()
    .configureHelp({ subcommandTerm: termOf })
    .configureOutput({
      writeOut: write,
      outputError: (message, write) => write(message.replace(/^error: /, 'palimpsest: ')),
    })
    .addHelpText(
      'after',
      () => `${sources()}

Try first:
  palimpsest start                         the demonstration behind npm start
  echo "Once upon a time" | palimpsest run -m reference -p - -n 900 --kv-budget 1.5MiB
  palimpsest audit list --limit 5
  palimpsest doctor --tokens 32768

Exit code: 0 done, 2 refused (the reason is on stderr), 130 interrupted; with --exit-status 3 for an audit list without rows.`,
    );
  for (const command of COMMANDS) add(root, command);
  for (const group of GROUPS) {
    const parent = root.command(group.name).description(group.does).summary(group.brief).helpGroup(group.topic);
    for (const command of group.commands) add(parent, command);
  }
  return root;
}
