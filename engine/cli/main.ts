#!/usr/bin/env node
/** The commands, their help and the exit codes: 0 for success, 1 for a fault of ours, 2 for one in the request, a file or the machine, 3 for an empty list where that was asked for, 130 if interrupted. */
import { Command, CommanderError } from 'commander';
import { columnsOf, packageVersion, wrap } from '../../native/index.ts';
import { reportFailure } from './failure.ts';
import { guardOutput } from './output.ts';
import {
  ANSWER,
  AUDIT,
  CACHE,
  type CommandText,
  DECISIONS,
  ENGINE,
  LEARNED,
  LISTING,
  SHARED,
  SPAN,
  STATE,
} from './setting-groups.ts';
import { addSettings, readSettings } from './settings.ts';

/** The text below the help of every command. */
const sources = (): string =>
  `\n${wrap('Each flag can also be set in the environment (--kv-budget: PALIMPSEST_KV_BUDGET) or in a TOML or JSON file named with --config (kv-budget = "25%").', columnsOf(process.stdout))}`;

// The modules of a command are loaded only when it runs.
const anchor = () => import('./anchor.ts');
const audit = () => import('./audit.ts');
const erasure = () => import('./erasure.ts');
const sessions = () => import('./sessions.ts');
const thresholds = () => import('./thresholds.ts');
const trace = () => import('./trace.ts');

const COMMANDS: readonly CommandText[] = [
  {
    usage: 'run',
    does: 'Read a prompt within a KV budget, stream the answer, say what the cache did.',
    examples: [
      'palimpsest run -m smollm2-135m -p report.txt --kv-budget 25% --compare',
      'echo "Once upon a time" | palimpsest run -m reference -p - -n 64',
      'palimpsest run -m smollm2-135m --chat --kv-budget 64MiB',
      'palimpsest run -m reference -p story.txt --temp 0.8 --completions 3 -n 32',
      'palimpsest run -m reference -p story.txt --cache-type-k rot4:rot2',
      'palimpsest run -m reference -p story.txt --kv-budget 60% --report report.html',
    ],
    settings: [...ENGINE, ...ANSWER, 'completions', ...CACHE, ...STATE, 'report', 'progress', 'json'],
    act: async (settings) => (await import('./run.ts')).run(settings),
  },
  {
    usage: 'start',
    does: 'Read a long document of our own at a quarter of the memory, ask it five questions, compare.',
    examples: ['palimpsest start', 'palimpsest start -m reference --tokens 2048 --kv-budget 30% --json'],
    settings: [...ENGINE, ...CACHE, 'tokens', 'seed', ...STATE, 'progress', 'json'],
    act: async (settings) => (await import('./start.ts')).start(settings),
  },
  {
    usage: 'evaluate',
    does: 'Perplexity, divergence, recall and bits of caches against the exact one. Every cache starts as the next session of the state folder would; nothing is written there.',
    examples: [
      'palimpsest evaluate -m smollm2-135m --text novel.txt code.py --tokens 4096 \\',
      '    --caches q8,rot4:rot2,price@25%,uniform@25%',
    ],
    settings: [
      ...ENGINE,
      'text',
      'caches',
      'tokens',
      'windows',
      'recall',
      'seed',
      'kvBudget',
      'policy',
      'cacheTypeK',
      'cacheTypeV',
      'state',
      'masterKey',
      ...SHARED,
      'thresholds',
      'trustedKey',
      'json',
    ],
    act: async (settings) => (await import('./evaluate.ts')).evaluateCommand(settings),
  },
  {
    usage: 'serve',
    does: 'Answer questions about the log of a state folder over HTTP while others write it: sessions, decisions, memory, quality, live events, metrics.',
    examples: ['palimpsest serve --metrics', 'palimpsest serve --metrics --host 0.0.0.0 --token-file my.token'],
    settings: ['state', 'masterKey', 'metrics', 'host', 'port', 'tokenFile', 'allowOrigin', 'config', 'json'],
    act: async (settings) => (await import('./serve.ts')).serveCommand(settings),
  },
  {
    usage: 'simulate',
    does: 'Run policies and yardsticks over recorded runs without the model: bytes, errors of attention, predicted and measured divergence.',
    examples: ['palimpsest simulate --trace novel.trace --caches price@25%,uniform@25%,h2o@25%,streaming@25%'],
    settings: [
      'trace',
      'caches',
      'kvBudget',
      'policy',
      'cacheTypeK',
      'cacheTypeV',
      'thresholds',
      'trustedKey',
      'session',
      'state',
      'masterKey',
      'config',
      'json',
    ],
    act: async (settings) => (await import('./simulate.ts')).simulate(settings),
  },
  {
    usage: 'calibrate',
    does: 'Measure what each format of keys and values does to the output in every layer, and write what sessions of this model start with. Goes on where it was stopped.',
    examples: [
      'palimpsest calibrate -m smollm2-135m --text novel.txt code.py -o learned.json',
      'palimpsest calibrate -m reference --text story.txt --tokens 1024',
      'palimpsest calibrate -m smollm2-135m --predictor --text novel.txt wiki.txt german.txt code.py',
    ],
    settings: [...ENGINE, 'text', 'tokens', 'windows', 'predictor', 'output', 'state', 'progress', 'json'],
    act: async (settings) => (await import('./calibrate.ts')).calibrateCommand(settings),
  },
  {
    usage: 'report',
    does: 'One session as a page of HTML that needs no network: memory over time, formats of all pages, decisions with reasons, errors, what the log proves.',
    examples: ['palimpsest report -o report.html', 'palimpsest report --session 0c42f114 -o report.html'],
    settings: ['session', 'output', 'against', 'trustedKey', ...AUDIT],
    act: async (settings) => (await import('./report-page.ts')).reportPage(settings),
  },
  {
    usage: 'inspect <path>',
    does: 'What a model (also one on the Hugging Face Hub, before it is fetched), threshold file, trace, log, index or state folder contains; refuses what is broken and says why.',
    examples: [
      'palimpsest inspect model.gguf',
      'palimpsest inspect reference --tokens 32768',
      'palimpsest inspect hf:HuggingFaceTB/SmolLM2-135M-Instruct',
      'palimpsest inspect .palimpsest',
      'palimpsest inspect learned.json --json',
    ],
    settings: ['cache', 'offline', 'tokens', 'masterKey', 'config', 'json'],
    act: async (settings, args) => (await import('./inspect.ts')).inspect(args[0]!, settings),
  },
  {
    usage: 'fetch <name>',
    does: 'Bring a model here, checked by its SHA-256: smollm2-135m into the cache folder, hf:ORG/REPO[@REVISION][:FILE] of the Hugging Face Hub into that of the Hub. Goes on where it was cut.',
    examples: [
      'palimpsest fetch smollm2-135m',
      'palimpsest fetch hf:HuggingFaceTB/SmolLM2-135M-Instruct',
      'palimpsest fetch hf:bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0',
    ],
    settings: ['cache', 'progress', 'config', 'json'],
    act: async (settings, args) => (await import('./fetch.ts')).fetchCommand(args[0]!, settings),
  },
  {
    usage: 'doctor',
    does: 'What is requested and what is effective: kernels, threads, formats, model, state; whether a model fits, and its cache at a length.',
    examples: ['palimpsest doctor', 'palimpsest doctor -m smollm2-135m --tokens 8192 --threads 2'],
    settings: [...ENGINE, 'tokens', 'state', 'masterKey', ...SHARED, 'json'],
    act: async (settings) => (await import('./doctor.ts')).doctor(settings),
  },
];

const AUDIT_COMMANDS: readonly CommandText[] = [
  {
    usage: 'list',
    does: 'Decisions, newest first.',
    examples: [
      'palimpsest audit list --limit 5',
      'palimpsest audit list --layer 3 --side k --since 2h',
      'palimpsest audit list --refused --step 1000..2000',
      'palimpsest audit list --to rot2 --epsilon-to 0.01.. --format jsonl',
    ],
    settings: [...DECISIONS, ...LISTING],
    act: async (settings) => (await audit()).list(settings),
  },
  {
    usage: 'count',
    does: 'How many decisions there were by layer, reason, hour, format, session or model: moves, refused ones, bytes and errors.',
    examples: ['palimpsest audit count', 'palimpsest audit count --by reason --since 1d --format csv'],
    settings: ['by', ...DECISIONS, ...LISTING],
    act: async (settings) => (await audit()).count(settings),
  },
  {
    usage: 'sessions',
    does: 'Sessions with their totals.',
    examples: ['palimpsest audit sessions', 'palimpsest audit sessions --since 7d --of-model reference'],
    settings: [...SPAN, ...LISTING],
    act: async (settings) => (await audit()).sessions(settings),
  },
  {
    usage: 'show <id>',
    does: 'One entry of the log as it was written.',
    examples: ['palimpsest audit show 17'],
    settings: AUDIT,
    act: async (settings, args) => (await audit()).show(settings, args[0]!),
  },
  {
    usage: 'explain <id>',
    does: 'A decision in sentences: what, why, what it cost, what else was considered.',
    examples: ['palimpsest audit explain 17'],
    settings: AUDIT,
    act: async (settings, args) => (await audit()).explainCommand(settings, args[0]!),
  },
  {
    usage: 'timeline <session>',
    does: 'A session from its beginning to its end: budget, plans and what became of them, changes, quality of layers, what kept originals said.',
    examples: ['palimpsest audit timeline 0c42f114'],
    settings: ['format', ...AUDIT],
    act: async (settings, args) => (await audit()).timelineCommand(settings, args[0]!),
  },
  {
    usage: 'why-not',
    does: 'Why a page was not moved to a lower format, or no further, by the situations and decisions of its session.',
    examples: ['palimpsest audit why-not --session 0c42f114 --layer 3 --page 1 --side k'],
    settings: ['session', 'layer', 'page', 'side', ...AUDIT],
    act: async (settings) => (await audit()).whyNotCommand(settings),
  },
  {
    usage: 'similar <what...>',
    does: 'Sessions whose work was like that of an entry, like a fingerprint (a JSON list), or as a few words say: kind of text, length, share of f16, model, policy.',
    examples: ['palimpsest audit similar 17 --limit 3', 'palimpsest audit similar "english novel, 50%, short"'],
    settings: [...SHARED, ...LISTING],
    act: async (settings, args) => (await audit()).similar(settings, args),
  },
  {
    usage: 'keygen <file>',
    does: 'Make a pair of Ed25519 keys for checkpoints: FILE signs, FILE.pub is for those who check.',
    examples: ['palimpsest audit keygen audit.key'],
    settings: ['config', 'json'],
    act: async (settings, args) => (await anchor()).keygen(settings, args[0]!),
  },
  {
    usage: 'checkpoint',
    does: 'Sign what the log is now. Kept where nobody can change it, this tells later whether anything was changed or cut off.',
    examples: ['palimpsest audit checkpoint --key audit.key -o anchor.txt'],
    settings: ['key', 'output', 'state', 'config', 'json'],
    act: async (settings) => (await anchor()).checkpoint(settings),
  },
  {
    usage: 'verify',
    does: 'Check every byte of the log and its hash chain, and whether it has all that was signed.',
    examples: ['palimpsest audit verify', 'palimpsest audit verify --against anchor.txt --trusted-key audit.key.pub'],
    settings: ['against', 'trustedKey', ...AUDIT],
    act: async (settings) => (await audit()).verify(settings),
  },
  {
    usage: 'prove <id>',
    does: 'Write a proof that an entry is one of those that were signed, for somebody who has neither the log nor this program.',
    examples: ['palimpsest audit prove 17 --against anchor.txt --trusted-key audit.key.pub -o proof.json'],
    settings: ['against', 'trustedKey', 'output', 'state', 'config', 'json'],
    act: async (settings, args) => (await anchor()).prove(settings, args[0]!),
  },
  {
    usage: 'replay <session>',
    does: 'Take every decision of a session again from the log alone and compare.',
    examples: ['palimpsest audit replay 0c42f114'],
    settings: AUDIT,
    act: async (settings, args) => (await audit()).replayCommand(settings, args[0]!),
  },
  {
    usage: 'query <select>',
    does: 'One SELECT over the log as tables: sessions, decisions, situations, experiences. They are brought up to the log before they are asked.',
    examples: [
      'palimpsest audit query \\',
      '    "select layer, count(*) from decisions where accepted group by layer"',
    ],
    settings: ['database', 'checkRows', ...LISTING],
    act: async (settings, args) => (await audit()).query(settings, args[0]!),
  },
  {
    usage: 'erase',
    does: 'Make what the log says of a session unreadable for ever, and remove it from tables, indexes and files of the state folder. The hash chain stays sound.',
    examples: ['palimpsest audit erase --session 0c42f114', 'palimpsest audit erase --session 0c42f114 --yes --json'],
    settings: ['session', 'yes', 'database', ...SHARED, ...AUDIT],
    act: async (settings) => (await erasure()).erase(settings),
  },
  {
    usage: 'hold',
    does: 'Keep a session from being erased and from retention, for example for a court; --release ends it.',
    examples: ['palimpsest audit hold --session 0c42f114', 'palimpsest audit hold --session 0c42f114 --release'],
    settings: ['session', 'release', ...AUDIT],
    act: async (settings) => (await erasure()).hold(settings),
  },
  {
    usage: 'retain',
    does: 'Remove the oldest segments of the log, by age, by size, or both: whole segments whose sessions ended and are not held.',
    examples: [
      'palimpsest audit retain --older-than 90d --max-size 1GB --dry-run',
      'palimpsest audit retain --max-size 500MiB',
    ],
    settings: ['olderThan', 'maxSize', 'dryRun', ...AUDIT],
    act: async (settings) => (await erasure()).retainCommand(settings),
  },
  {
    usage: 'rewrap',
    does: 'Wrap the keys of all sessions by a new master key, which is named first, the present one behind it. What broke off is finished by the same command.',
    examples: ['palimpsest audit rewrap --master-key new.key old.key'],
    settings: AUDIT,
    act: async (settings) => (await erasure()).rewrap(settings),
  },
  {
    usage: 'reindex',
    does: 'Build the SQL tables (here, or on a server that gathers the logs of many machines) and the vector index from the log again.',
    examples: ['palimpsest audit reindex', 'palimpsest audit reindex --database postgres://me@host/base'],
    settings: ['database', ...SHARED, ...AUDIT],
    act: async (settings) => (await audit()).reindex(settings),
  },
];

const SESSION_COMMANDS: readonly CommandText[] = [
  {
    usage: 'list',
    does: 'Parked sessions of a state folder, newest first, each read and verified.',
    examples: ['palimpsest sessions list', 'palimpsest sessions list --json'],
    settings: ['state', 'config', 'json'],
    act: async (settings) => (await sessions()).list(settings),
  },
  {
    usage: 'park',
    does: 'Read a prompt within a KV budget and write the session to a file: tokens and cache, for its owner alone. --tokens says how long the session is to become.',
    examples: [
      'palimpsest sessions park -m reference -p story.txt',
      'palimpsest sessions park -m smollm2-135m -p report.txt --kv-budget 25% --tokens 4096 -o report.parked',
    ],
    settings: [
      ...ENGINE,
      'prompt',
      'chat',
      'system',
      'tokens',
      ...CACHE,
      ...STATE,
      'predict',
      'output',
      'progress',
      'json',
    ],
    act: async (settings) => (await sessions()).park(settings),
  },
  {
    usage: 'resume <session>',
    does: 'Go on with a parked session, named by its file or its id: answer a prompt, or go on with the text. What does not fit is read again, and said.',
    examples: [
      'palimpsest sessions resume 0c42f114 -m reference -p question.txt -n 64',
      'palimpsest sessions resume report.parked -m smollm2-135m -n 64 --park',
    ],
    settings: [
      ...ENGINE,
      ...ANSWER.filter((name) => name !== 'compare'),
      ...STATE,
      'park',
      'predict',
      'output',
      'progress',
      'json',
    ],
    act: async (settings, args) => (await sessions()).resume(settings, args[0]!),
  },
];

const TRACE_COMMANDS: readonly CommandText[] = [
  {
    usage: 'record',
    does: 'Run a prompt with the exact cache and record what its cache held and was asked, without text or token ids.',
    examples: [
      'palimpsest trace record -m smollm2-135m -p novel.txt --tokens 2048 -o novel.trace --measure price@25%',
      'palimpsest trace record -m reference -p story.txt -o story.trace --sample layers=3 --max-bytes 16MiB',
    ],
    settings: [...ENGINE, 'prompt', 'tokens', 'output', 'sample', 'maxBytes', 'measure', 'seed', 'progress', 'json'],
    act: async (settings) => (await trace()).record(settings),
  },
];

const THRESHOLD_COMMANDS: readonly CommandText[] = [
  {
    usage: 'show [file]',
    does: 'Print a threshold file, or what this state folder learned for a model.',
    examples: ['palimpsest thresholds show', 'palimpsest thresholds show learned.json'],
    settings: LEARNED,
    act: async (settings, args) => (await thresholds()).show(settings, args[0]),
  },
  {
    usage: 'export <file>',
    does: 'Write what this state folder learned for a model.',
    examples: ['palimpsest thresholds export learned.json -m smollm2-135m'],
    settings: LEARNED,
    act: async (settings, args) => (await thresholds()).exportFile(settings, args[0]!),
  },
  {
    usage: 'import <file>',
    does: 'Check a file and use it for this model from now on.',
    examples: ['palimpsest thresholds import learned.json -m smollm2-135m'],
    settings: [...LEARNED, 'trustedKey'],
    act: async (settings, args) => (await thresholds()).importFile(settings, args[0]!),
  },
  {
    usage: 'merge <files...>',
    does: 'Join what several machines learned of one model. The evidence of a log counts once.',
    examples: ['palimpsest thresholds merge mine.json theirs.json -o ours.json'],
    settings: ['output', 'trustedKey', 'config', 'json'],
    act: async (settings, args) => (await thresholds()).merge(settings, args),
  },
  {
    usage: 'diff <a> <b>',
    does: 'What differs between two files, most important first.',
    examples: ['palimpsest thresholds diff before.json after.json'],
    settings: ['limit', 'config', 'json'],
    act: async (settings, args) => (await thresholds()).diff(settings, args[0]!, args[1]!),
  },
  {
    usage: 'keygen <file>',
    does: 'Make a pair of Ed25519 keys: FILE signs, FILE.pub is for those who trust you.',
    examples: ['palimpsest thresholds keygen my.key'],
    settings: ['config', 'json'],
    act: async (settings, args) => (await thresholds()).keygen(settings, args[0]!),
  },
  {
    usage: 'sign <file>',
    does: 'Sign a threshold file, in place unless --output names another.',
    examples: ['palimpsest thresholds sign learned.json --key my.key'],
    settings: ['key', 'output', 'config', 'json'],
    act: async (settings, args) => (await thresholds()).sign(settings, args[0]!),
  },
  {
    usage: 'verify <file>',
    does: 'Whether a signature fits its file, whose it is, and whether the log here is the one that the file tells of.',
    examples: ['palimpsest thresholds verify learned.json --trusted-key my.key.pub'],
    settings: ['trustedKey', 'state', 'config', 'json'],
    act: async (settings, args) => (await thresholds()).verify(settings, args[0]!),
  },
];

function add(parent: Command, { usage, does, examples, settings, act }: CommandText): void {
  const command = addSettings(parent.command(usage).description(does), settings);
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

function program(): Command {
  const root = new Command('palimpsest')
    .description(
      'An adaptive KV cache: old tokens in 8, 4, 3 or 2 bits, decided per layer and page while running, every move tried first and explained afterwards.',
    )
    .version(packageVersion())
    .showHelpAfterError('(add --help for the options)')
    .exitOverride()
    .configureOutput({ outputError: (message, write) => write(message.replace(/^error: /, 'palimpsest: ')) })
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
  const auditing = root
    .command('audit')
    .description('Questions to the witness log: what moved, why, what it cost, where something like it happened.');
  for (const command of AUDIT_COMMANDS) add(auditing, command);
  const learned = root.command('thresholds').description('What was learned, as a file that another machine can use.');
  for (const command of THRESHOLD_COMMANDS) add(learned, command);
  const parking = root.command('sessions').description('Sessions that wait in files, and go on later.');
  for (const command of SESSION_COMMANDS) add(parking, command);
  const tracing = root
    .command('trace')
    .description('A run as a file, over which caches are simulated without the model.');
  for (const command of TRACE_COMMANDS) add(tracing, command);
  return root;
}

guardOutput();
try {
  await program().parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
  else process.exitCode = reportFailure(error);
}
