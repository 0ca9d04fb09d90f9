// Every command that help, documents and hints of errors print is run as it stands, one after the other in one folder
// with the files that they name. Only what differs from log to log is replaced (the ids of an entry and of a session),
// words in capitals, and SmolLM2 by the reference model, which every checkout has. What a terminal shows at any width
// is asked of the functions that draw it. Nothing shorter shows that what people are told to type works; some hundred
// commands each start a process, and most load a model.

import { existsSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { progressText } from '../../../../engine/cli/progress.ts';
import { ownText } from '../../../../engine/evaluate/own-text.ts';
import { openConversation } from '../../../../engine/thread/open-chat.ts';
import { fetchedPath } from '../../../../engine/transformer/fetch.ts';
import { seeded } from '../../../random.ts';
import { isWritten, read, walk } from '../../../tidy/files.ts';
import { stretches } from '../../../tidy/source.ts';
import { openEngine } from '../on-reference.ts';
import { HubServer } from '../transformer/hub/hub-server.ts';
import { referenceModel, tinyGguf } from '../transformer/model-files.ts';
import { dir, helpOf, lastLine, palimpsest, root } from './command.ts';

const COMMANDS = [
  '',
  'run',
  'start',
  'evaluate',
  'inspect',
  'calibrate',
  'fetch',
  'doctor',
  'trace record',
  'simulate',
  ...[
    'list',
    'count',
    'sessions',
    'show',
    'explain',
    'timeline',
    'why-not',
    'similar',
    'keygen',
    'checkpoint',
    'verify',
    'prove',
    'replay',
    'query',
    'reindex',
  ].map((word) => `audit ${word}`),
  ...['show', 'export', 'import', 'merge', 'diff', 'keygen', 'sign', 'verify'].map((word) => `thresholds ${word}`),
  'verify',
];

/** Lines of a help text that can be typed. */
function examplesOf(help: string): string[] {
  const block = /(?:Examples?|Try first):\n((?: {2}.*\n?)+)/.exec(help)?.[1] ?? '';
  const lines = block.replaceAll(/ \\\n +/g, ' ').split('\n');
  return lines.map((line) => line.trim().replace(/ {3,}.*$/, '')).filter((line) => line !== '');
}

interface Example {
  readonly line: string;
  readonly args: readonly string[];
  readonly input: string;
}

function parse(line: string): Example {
  const [, input = '', command = line] = /^echo "([^"]*)" \| (.*)$/.exec(line) ?? [];
  const words = command.match(/"[^"]*"|\S+/g) ?? [];
  const [program, ...args] = words.map((word) => word.replaceAll('"', ''));
  expect(program, line).toBe('palimpsest');
  return { line, args, input };
}

/** Commands that need no argument; of any other that prose only names, help must know it. */
const COMPLETE = /^(start|doctor|audit (list|count|sessions|verify|reindex)|sessions list|thresholds show)$/;
const STANDS_FOR: Readonly<Record<string, string>> = {
  MODEL: 'reference',
  PATH: 'reference',
  FOLDER: 'reference',
  TRACE: 'novel.trace',
  'FILE…': 'novel.txt',
  ID: '17',
  SESSION: '0c42f114',
  KEY: 'my.key',
  RECEIPT: 'receipt.json',
  SELECT: '"select count(*) from decisions"',
};

/** Commands in the documents: `palimpsest audit list`, and behind it `show ID`, which belongs to the same group. */
function commandsIn(markdown: string): string[] {
  const found = markdown.matchAll(/`(?:npx )?palimpsest ([^`]+)`((?:, `[^`]+`)*)/g);
  return [...found].flatMap(([, first, more]) => {
    const group = /^(audit|sessions|thresholds) /.exec(first!)?.[0] ?? '';
    const rest = [...more!.matchAll(/`([^`]+)`/g)].map(([, words]) => group + words);
    return [first!, ...rest];
  });
}

/** Commands in the texts of a source, as far as they are certain: a value may stand behind. */
function commandsInTexts(source: string): string[] {
  const texts = [...stretches(source)].filter(({ kind }) => kind === 'text').map(({ text }) => text);
  return texts.flatMap((text) =>
    [...text.matchAll(/palimpsest ((?:(?:[a-z]+|FILE) ?)+)|`((?:audit|thresholds) [a-z]+)`/g)].map(([, a, b]) =>
      (a ?? b)!.trim(),
    ),
  );
}

function printed(): Example[] {
  const written = walk().filter(isWritten);
  const lines = written.flatMap((path) => {
    if (path.endsWith('.md')) return commandsIn(read(path));
    return /^(engine|memory|witness)\/.*\.ts$/.test(path) && path !== 'engine/cli/commands.ts'
      ? commandsInTexts(read(path))
      : [];
  });
  return [...new Set(lines)].map((line) => {
    const file = line.startsWith('thresholds') ? 'learned.json' : 'report.txt';
    const words = line.split(' ').map((word) => (word === 'FILE' ? file : (STANDS_FOR[word] ?? word)));
    const isNamed = /^[a-z]+(?:[ -][a-z]+)*$/.test(line) && !COMPLETE.test(line);
    return parse(['palimpsest', ...words, ...(isNamed ? ['--help'] : [])].join(' '));
  });
}

/** The repositories that examples name, with models that every checkout has. */
async function openHub(): Promise<HubServer> {
  const hub = await HubServer.open();
  const files = readdirSync(referenceModel).map((name) => [name, readFileSync(join(referenceModel, name))] as const);
  hub.add('HuggingFaceTB/SmolLM2-135M-Instruct', Object.fromEntries(files));
  hub.add('bartowski/SmolLM2-135M-Instruct-GGUF', { 'SmolLM2-135M-Instruct-Q8_0.gguf': tinyGguf(seeded(1)) });
  return hub;
}

beforeAll(() => {
  const text = ownText();
  writeFileSync(join(dir, 'story.txt'), text.slice(0, 6000));
  writeFileSync(join(dir, 'report.txt'), text.slice(0, 9000));
  for (const name of ['novel.txt', 'wiki.txt', 'german.txt']) writeFileSync(join(dir, name), text);
  writeFileSync(join(dir, 'question.txt'), 'And what came then?');
  writeFileSync(join(dir, 'code.py'), readFileSync(join(root, 'scripts/train-reference-model.py')));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe('help', () => {
  const examples = new Map<string, Example>();

  it('begins with the nine commands of every day, each in one line of a terminal of 80 columns', async () => {
    const lines = (await helpOf([])).split('\n');
    const first = lines.slice(lines.indexOf('Every day:') + 1);
    const names = first.slice(0, first.indexOf('')).map((line) => line.trim().split(' ')[0]);
    expect(names).toEqual(['start', 'run', 'fetch', 'doctor', 'report', 'top', 'serve', 'audit', 'sessions']);
    expect(Math.max(...first.slice(0, 9).map((line) => line.length))).toBeLessThanOrEqual(80);
  });

  it('shows an example of every command', async () => {
    for (const command of COMMANDS) {
      const lines = examplesOf(await helpOf(command.split(' ').filter(Boolean)));
      expect(lines.length, command).toBeGreaterThan(0);
      for (const line of lines) examples.set(line, parse(line));
    }
    expect(examples.size).toBeGreaterThan(25);
    const more = printed();
    expect(more.length).toBeGreaterThan(15);
    for (const example of more) examples.set(example.line, example);
  });

  it('prints nothing that fails when it is typed', async () => {
    const model = fetchedPath('smollm2-135m', join(root, '.cache'));
    if (existsSync(model)) symlinkSync(model, join(dir, 'model.gguf'));
    const first = await palimpsest([
      'run',
      '-m',
      'reference',
      '-p',
      'report.txt',
      '-n',
      '40',
      '--kv-budget',
      '50%',
      '--json',
    ]);
    const { session } = lastLine(first.out) as { session: string };
    const [decision] = JSON.parse((await palimpsest(['audit', 'list', '--limit', '1', '--json'])).out) as {
      seq: number;
    }[];
    const parked = await palimpsest(['sessions', 'park', '-m', 'reference', '-p', 'story.txt', '--json']);
    const { session: waiting } = lastLine(parked.out) as { session: string };
    const hub = await openHub();
    const env = { HOME: dir, HF_ENDPOINT: hub.url };
    const failed: string[] = [];
    for (const { line, args, input } of examples.values()) {
      // These ask for the fetched model itself, or for somebody's server, or serve until they are stopped, which has
      // tests of its own.
      const isEndless = args[0] === 'serve' || (args[0] === 'top' && !args.includes('--once'));
      if (line.includes('--chat') || isEndless || line.includes('postgres://')) continue;
      if (args[0] === 'fetch' && args[1]?.startsWith('hf:') === false) continue;
      if (line.includes('model.gguf') && !existsSync(model)) continue;
      if (args.at(-1) === '--help') {
        await helpOf(args.slice(0, -1));
        continue;
      }
      const typed = args.map((word) =>
        word === 'smollm2-135m'
          ? 'reference'
          : args[1] === 'resume' && word === args[2]
            ? waiting
            : word === '17'
              ? String(decision!.seq)
              : word === '0c42f114'
                ? session
                : word,
      );
      if (args[0] === 'start' && !args.includes('-m'))
        typed.push('-m', 'reference', '--tokens', '1600', '--kv-budget', '40%');
      if (line.includes('before.json')) {
        for (const name of ['before.json', 'after.json']) await palimpsest(['thresholds', 'export', name]);
      }
      if (line.includes('thresholds show learned.json') || line.includes('inspect learned.json'))
        await palimpsest(['thresholds', 'export', 'learned.json']);
      if (line.includes('mine.json'))
        for (const name of ['mine.json', 'theirs.json']) await palimpsest(['thresholds', 'export', name]);
      if (args[0] === 'verify')
        await palimpsest(['run', '-m', 'reference', '-p', 'story.txt', '-n', '8', '--receipt', 'receipt.json']);
      if (line.includes('thresholds verify'))
        await palimpsest(['thresholds', 'sign', 'learned.json', '--key', 'my.key']);
      const { code, err, out } = await palimpsest(typed, { input, env });
      if (code !== 0) failed.push(`${line}: ${code} ${err}`);
      for (const [, proposed] of out.matchAll(/^ +npx (palimpsest .*)$/gm)) {
        const answer = await palimpsest(parse(proposed!).args);
        if (answer.code !== 0) failed.push(`${proposed}: ${answer.code} ${answer.err}`);
      }
    }
    await hub.close();
    expect(failed).toEqual([]);
  });
});

describe('Ctrl-C', () => {
  it('in the questions of the demonstration ends it with 130 and no stack', async () => {
    let sent = false;
    const result = await palimpsest(['start', '-m', 'reference', '--tokens', '1600', '--kv-budget', '40%'], {
      with: (child) =>
        child.stdout!.on('data', (chunk) => {
          if (!sent && String(chunk).includes('(depth ')) sent = child.kill('SIGINT');
        }),
    });
    expect(sent).toBe(true);
    expect(result.code).toBe(130);
    expect(result.err).not.toMatch(/fault of ours|^\s+at /m);
  });

  it('in an evaluation prints what was measured, and says that it is not all', async () => {
    let sent = false;
    const args = [
      'evaluate',
      '-m',
      'reference',
      '--dense',
      'auto',
      '--tokens',
      '600',
      '--caches',
      'q8',
      '--json',
      '--windows',
      '40',
    ];
    const result = await palimpsest([...args, '--text', 'story.txt', 'novel.txt'], {
      with: (child) =>
        child.stderr!.on('data', (chunk) => {
          if (!sent && String(chunk).includes('story q8')) sent = child.kill('SIGINT');
        }),
    });
    expect([sent, result.code]).toEqual([true, 130]);
    expect(result.out).toMatch(/^story +q8 /m);
    expect(lastLine(result.out)).toMatchObject({ complete: false });
  });
});

describe('a terminal', () => {
  it('of any width gets progress on one line', () => {
    for (let columns = 20; columns <= 200; columns++) {
      const text = progressText('exact cache', 1234, 4000, ' 1378 tok/s 11.77 MiB', columns);
      expect(text.length, `${columns} columns: ${text}`).toBeLessThan(columns);
      expect(text).toContain('1234/4000');
    }
    expect(progressText('exact cache', 1234, 4000, ' 1378 tok/s 11.77 MiB', 80)).toMatch(
      /^exact cache +█+░+ +1234\/4000 +1378 tok\/s +11\.77 MiB$/,
    );
  });
});

describe('a conversation', () => {
  it('is planned for what its budget holds, and for the whole context where that fits', async () => {
    const engine = await openEngine(null);
    try {
      const { contextLength } = engine.info.config;
      const open = (kvBudget: string | number) => openConversation(engine, contextLength, { kvBudget });
      const wide = await open('64MiB');
      expect(wide.tokens).toBe(contextLength);
      const narrow = await open('1.25MiB');
      expect(narrow.tokens).toBeLessThan(contextLength);
      expect(narrow.tokens).toBeGreaterThan(512);
      // It holds what was said, to the last token.
      const ids = Array.from({ length: narrow.tokens - 8 }, (_, i) => 10 + ((i * 37) % 4000));
      expect((await narrow.session.generate(ids, { maxTokens: 8 }).result).tokens).toBeGreaterThan(0);
      await expect(open('10KiB')).rejects.toMatchObject({ code: 'budget-too-small' });
    } finally {
      await engine.close();
    }
  });
});
