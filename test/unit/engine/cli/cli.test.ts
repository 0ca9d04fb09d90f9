// The command as a person meets it: built main.js in a process of its own, on the reference model, in a state folder of
// its own. Good input prints what was promised; bad input prints message, values and hint on stderr, exits with 2,
// shows no stack and leaves nothing behind. Exit code 1 is for our own faults and never expected. Nothing shorter shows
// exit codes and that nothing is left behind; each case starts a process, which loads a model.
import { closeSync, existsSync, mkdirSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Forecast } from '../../../../engine/cache/budget.ts';
import type { SessionsFit } from '../../../../engine/cli/machine-fit.ts';
import { sqlDir } from '../../../../engine/state/folder.ts';
import { type DecisionBody, readLog } from '../../../../witness/index.ts';
import { placeEmptySql } from '../../../empty-sql.ts';
import { isDealt } from '../../../tier.ts';
import { type RawValue, tinyGguf, tinyWords } from '../transformer/model-files.ts';
import { answered, dir, expectRefused, helpOf, lastLine, palimpsest, type Result, root, widest } from './command.ts';

const state = join(dir, 'state');
const prompt = join(dir, 'prompt.txt');

const run = (...args: string[]): string[] => [
  'run',
  '-m',
  'reference',
  '-p',
  prompt,
  '-n',
  '4',
  '--state',
  state,
  ...args,
];

let ran: Result;

beforeAll(async () => {
  const sentence =
    'It was a bright cold day, and the old man went down to the river to see what the night had left there. ';
  writeFileSync(prompt, sentence.repeat(50));
  ran = await palimpsest(run('--kv-budget', '40%', '--compare', '--json'));
  await placeEmptySql(sqlDir(state));
});

afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe('help', () => {
  it('stands at every command, 80 columns wide, with an example', async () => {
    const commands = [
      'run',
      'start',
      'evaluate',
      'serve',
      'top',
      'inspect',
      'convert',
      'fetch',
      'doctor',
      'audit list',
      'audit count',
      'audit sessions',
      'audit show',
      'audit explain',
      'audit timeline',
      'audit why-not',
      'audit similar',
      'audit verify',
      'audit replay',
      'audit query',
      'audit reindex',
      'adapters inspect',
      'adapters verify',
      ...['keygen', 'sign', 'install', 'list', 'activate', 'rollback', 'verify'].map((name) => `packs ${name}`),
      'audit packs',
      'thresholds show',
      'thresholds export',
      'thresholds import',
      'thresholds merge',
      'thresholds diff',
      'thresholds keygen',
      'thresholds sign',
      'thresholds verify',
    ];
    const { code, out, err } = await palimpsest(['audit', 'list', '--help']);
    expect({ code, out, err }).toEqual({ code: 0, out: await helpOf(['audit', 'list']), err: '' });
    for (const command of commands) {
      const help = await helpOf(command.split(' '));
      expect(help, command).toContain(`  palimpsest ${command}`);
      expect(help, command).toMatch(/Examples?:\n/);
      expect(widest(help), command).toBeLessThanOrEqual(80);
    }
  });
});

describe('run', () => {
  it('ends with one object that has every documented field', () => {
    expect(ran).toMatchObject({ code: 0, err: '' });
    const result = lastLine(ran.out);
    const fields = readFileSync(join(root, 'docs/cli.md'), 'utf8')
      .split('The object behind `--json`')[1]!
      .split('\n## ')[0]!;
    const names = fields
      .split('\n')
      .filter((line) => line.startsWith('| `'))
      .flatMap((line) => [...line.split('|')[1]!.matchAll(/`(\w+)`/g)].map(([, name]) => name!));
    expect(names.length).toBeGreaterThan(20);
    expect(Object.keys(result).sort()).toEqual([...names].sort());
    expect(result).toMatchObject({ model: 'reference', policy: 'price', asked: 0, recalled: null });
    expect(result['kvBytes']).toBeLessThanOrEqual(result['budgetBytes'] as number);
    expect(result['decisions']).toBeGreaterThan(0);
    expect(result['meanKld']).toBeGreaterThanOrEqual(0);
  });
  it('takes the same settings from environment and file, and reads a pipe', async () => {
    const file = join(dir, 'settings.toml');
    writeFileSync(
      file,
      `model = "reference"\nmax-tokens = 3\nstate = "${state}"\ncache-type-k = "rot4:rot2"\njson = true\n`,
    );
    const result = await palimpsest(['run', '--config', file], {
      env: { PALIMPSEST_PROMPT: '-', PALIMPSEST_MAX_TOKENS: '2', PALIMPSEST_COMPARE: 'false' },
      input: 'Once upon a time',
    });
    expect(result.code).toBe(0);
    expect(lastLine(result.out)).toMatchObject({ policy: 'fixed', meanKld: null });
  });
  it('prints a table no wider than 80 columns', async () => {
    const result = await palimpsest(
      run('--cache-type-k', 'rot4', '--cache-type-v', 'rot2', '--kv-cache-dtype-skip-layers', '0,2-3'),
    );
    expect(result.code).toBe(0);
    expect(result.out).toMatch(/^Log +.*, session /m);
    expect(widest(result.out.slice(result.out.indexOf('layer ')))).toBeLessThanOrEqual(80);
  });
  const REFUSED: readonly [what: string, args: string[], code: string, words: RegExp][] = [
    ['no prompt', ['run', '-m', 'reference'], 'bad-argument', /--prompt FILE/],
    ['no model', ['run', '-p', prompt], 'bad-argument', /--model PATH/],
    ['an unknown model', ['run', '-m', 'nope', '-p', prompt], 'not-found', /reference, smollm2-135m/],
    ['a missing prompt', ['run', '-m', 'reference', '-p', join(dir, 'none')], 'not-found', /ENOENT/],
    ['a text in the place of a file', ['run', '-m', 'reference', '-p', 'Hello'], 'not-found', /standard input, with -/],
    ['a folder as prompt', ['run', '-m', 'reference', '-p', dir], 'io', /EISDIR/],
    ['an endless prompt', ['run', '-m', 'reference', '-p', '/dev/zero'], 'bad-file', /64 MiB/],
    ['no budget', run('--kv-budget', 'lots'), 'bad-argument', /64MiB, 1.5GB/],
    ['a budget of nothing', run('--kv-budget', '0'), 'bad-argument', /kvBudget=0/],
    ['a budget too small', run('--kv-budget', '1KiB'), 'budget-too-small', /budgetBytes=1024[\s\S]*give at least/],
    ['a foreign cache type', run('--cache-type-k', 'q4_0'), 'unsupported', /f16, q8, .*rot4, .*rot2/s],
    ['a pair for values', run('--cache-type-v', 'rot4:rot2'), 'bad-argument', /--cache-type-k alone/],
    ['two pairs', run('--cache-type-k', 'rot4:rot2', '--cache-type-v', 'q8'), 'bad-argument', /not one pair/],
    [
      'a layer beyond the model',
      run('--cache-type-k', 'rot4:rot2', '--kv-cache-dtype-skip-layers', '0,99'),
      'bad-argument',
      /99/,
    ],
    ['a policy without its formats', run('--policy', 'fixed'), 'bad-argument', /--cache-type-k/],
    ['an unknown policy', run('--policy', 'magic'), '', /price, price-1, uniform, age/],
    ['no threads', run('--threads', '0'), '', /threads must be a whole number from 1 to 1024/],
    [
      'an instruction set from elsewhere',
      run('--isa', process.arch === 'arm64' ? 'avx2' : 'neon'),
      'unsupported',
      /scalar/,
    ],
    ['a chat with a model without template', run('--chat'), 'bad-tokenizer', /leave out --chat/],
    ['a threshold file that is none', run('--thresholds', prompt), 'bad-thresholds', /prompt\.txt/],
    ['a missing settings file', run('--config', join(dir, 'none.toml')), 'not-found', /none\.toml/],
    ['a state folder that is a file', [...run(), '--state', prompt], 'io', /prompt\.txt/],
    ['a state folder that cannot be', [...run(), '--state', '/proc/none/state'], 'io', /\/proc\/none/],
    ['an unknown flag', run('--kv-bugdet', '1'), '', /Did you mean --kv-budget/],
    ['an unknown command', ['rum'], '', /Did you mean run/],
  ];
  it.each(REFUSED.filter((_, place) => isDealt(place, 4)))('refuses %s', async (_, args, code, words) => {
    expectRefused(await palimpsest(args), code, words);
  });
  it('refuses prompts that are empty, binary or too long before a session is opened', async () => {
    const other = join(dir, 'untouched');
    const from = (input: string, ...args: string[]) =>
      palimpsest(['run', '-m', 'reference', '-p', '-', '--state', other, ...args], { input });
    const binary = join(dir, 'binary');
    writeFileSync(binary, Buffer.from([0x61, 0x62, 0xff, 0xfe]));
    expectRefused(await from(''), 'bad-argument', /the prompt is empty/);
    expectRefused(
      await palimpsest(['run', '-m', 'reference', '-p', binary, '--state', other]),
      'bad-file',
      /not UTF-8[\s\S]*byte=2/,
    );
    expect(existsSync(other)).toBe(false);
    expectRefused(
      await from('word '.repeat(6000)),
      'context-too-long',
      /prompt of [\d,]+ tokens[\s\S]*contextLength=4096[\s\S]*shorten the prompt by [\d,]+ tokens/,
    );
    expectRefused(await from('one two', '-n', '4096'), 'context-too-long', /--max-tokens 40\d\d/);
    expect([...readLog(join(other, 'log'))]).toEqual([]);
  });
  it('names the environment variable that is wrong', async () => {
    expectRefused(await palimpsest(run(), { env: { PALIMPSEST_THREADS: 'two' } }), 'bad-config', /PALIMPSEST_THREADS/);
    expectRefused(await palimpsest(run(), { env: { PALIMPSEST_JSON: 'maybe' } }), 'bad-config', /PALIMPSEST_JSON/);
    expectRefused(
      await palimpsest(run(), { env: { PALIMPSEST_KV_BUGDET: '25%' } }),
      'bad-config',
      /PALIMPSEST_KV_BUGDET[\s\S]*did you mean PALIMPSEST_KV_BUDGET\?/,
    );
    expect((await palimpsest(['doctor'], { env: { PALIMPSEST_TEST_SEED: '1' } })).code).toBe(0);
  });
});

describe('--tier-summary', () => {
  it('prints a line of JSON on stderr with each text, and is refused where no text is streamed', async () => {
    const { out, err } = await answered(run('--kv-budget', '40%', '--tier-summary', '--progress', 'none'));
    const lines = err
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line));
    expect(lines.length).toBeGreaterThan(1);
    expect(out).toContain(lines.map(({ text }) => text).join(''));
    for (const { label, tiers } of lines) {
      expect(label).toBe('writing');
      expect(tiers.rows.map(({ tier }: { tier: string }) => tier)).toContain('open');
    }
    const several = ['--tier-summary', '--completions', '2', '--temp', '1'];
    expectRefused(await palimpsest(run(...several)), 'bad-argument', /completions/);
  });
});

describe('low memory', () => {
  it.skipIf(process.platform === 'win32')(
    'is told by SIGUSR2, and taken back by the next (needs signals)',
    async () => {
      const told = join(dir, 'told');
      const { code, err } = await palimpsest([...run('--kv-budget', '55%', '-n', '600'), '--state', told], {
        with: (child) => {
          let said = '';
          child.stdout!.once('data', () => child.kill('SIGUSR2'));
          // Once more for each of the first two that it answers: low, no longer, low to the end.
          child.stderr!.on('data', (chunk) => {
            const before = said.split('memory is').length;
            said += String(chunk);
            if (said.split('memory is').length > before && before < 3) child.kill('SIGUSR2');
          });
        },
      });
      expect({ code, err }).toMatchObject({ code: 0, err: expect.stringContaining('memory is short') });
      expect(err).toContain('memory is no longer short');
      const rules = [...readLog(join(told, 'log'), { kinds: ['decision'] })].map(
        ({ body }) => (body as DecisionBody).decision.because.rule,
      );
      expect(rules).toContain('low-memory');
    },
  );
});

describe('endings', () => {
  const long = [
    'run',
    '-m',
    'reference',
    '-p',
    prompt,
    '-n',
    '2500',
    '--state',
    join(dir, 'ended'),
    '--progress',
    'jsonl',
  ];
  it('by a closed pipe are silent, and the log stays whole', async () => {
    const result = await palimpsest(long, {
      with: (child) => child.stdout!.once('data', () => child.stdout!.destroy()),
    });
    expect(result.code).toBe(0);
    expect(result.err.split('\n').filter((line) => line !== '' && !line.startsWith('{'))).toEqual([]);
    expect([...readLog(join(dir, 'ended', 'log'))].at(-1)).toMatchObject({
      kind: 'close',
      body: { reason: 'aborted' },
    });
  });
  it('by Ctrl-C or a closed terminal give 130; by a second one do not wait', async () => {
    const interrupt = (...signals: NodeJS.Signals[]) =>
      palimpsest(long, {
        with: (child) =>
          child.stdout!.once('data', () => {
            child.kill(signals[0]);
            child.stderr!.on('data', (chunk) => {
              if (String(chunk).includes('once more') && signals[1] !== undefined) child.kill(signals[1]);
            });
          }),
      });
    const once = await interrupt('SIGINT');
    expect(once).toMatchObject({ code: 130, signal: null });
    expect(once.err).toContain('stopping where the log is whole');
    expect(await interrupt('SIGHUP')).toMatchObject({ code: 130, signal: null });
    const twice = await interrupt('SIGINT', 'SIGINT');
    expect(twice.err).not.toContain('terminate called');
    expect([130, 'SIGINT']).toContain(twice.code ?? twice.signal);
    expect((await palimpsest(['audit', 'verify', '--state', join(dir, 'ended')])).code).toBe(0);
  });
  it('by a full disk behind stdout are refused', async (context) => {
    if (!existsSync('/dev/full')) context.skip('this system has no /dev/full');
    const full = openSync('/dev/full', 'w');
    const result = await palimpsest(['doctor'], { stdout: full });
    closeSync(full);
    expectRefused(result, 'io', /ENOSPC/);
  });
});

describe('what is refused with --json', () => {
  it('is a line of JSON with code, message, values and hint', async () => {
    const { code, out, err } = await palimpsest(run('--kv-budget', '0', '--json'));
    expect({ code, out }).toEqual({ code: 2, out: '' });
    expect(JSON.parse(err)).toEqual({
      error: { code: 'bad-argument', message: expect.any(String), values: { kvBudget: '0' }, hint: expect.any(String) },
    });
  });
});

describe('audit', () => {
  const audit = (...args: string[]) => palimpsest(['audit', ...args, '--state', state]);
  const told = (...args: string[]) => answered(['audit', ...args, '--state', state]);
  it('lists, shows, explains, finds, verifies, replays and indexes what a run did', async () => {
    const { session } = lastLine(ran.out) as { session: string };
    const list = await audit('list', '--session', session, '--limit', '3');
    // What tables and the demonstration print of an id is enough.
    expect((await told('list', '--session', session.slice(-8), '--limit', '3')).out).toBe(list.out);
    expect(list.code).toBe(0);
    expect(list.out).toContain(session.slice(-8));
    const [newest] = JSON.parse((await told('list', '--session', session, '--json')).out) as {
      seq: number;
      layer: number;
      side: string;
    }[];
    const narrow = JSON.parse(
      (
        await told(
          'list',
          '--layer',
          String(newest!.layer),
          '--side',
          newest!.side,
          '--since',
          '1h',
          '--step',
          '1..4000',
          '--json',
        )
      ).out,
    ) as (typeof newest)[];
    expect(narrow.some((row) => row!.seq === newest!.seq)).toBe(true);
    const explained = await audit('explain', String(newest!.seq));
    expect(explained.out).toContain(`Entry ${newest!.seq}`);
    expect(widest(explained.out)).toBeLessThanOrEqual(80);
    expect((await told('show', String(newest!.seq))).out).toContain(
      `Entry ${newest!.seq}: decision of session ${session}`,
    );
    expect(await told('similar', String(newest!.seq))).toMatchObject({ code: 0 });
    // Every listing in every form; a row is the same in each.
    for (const [command, ...more] of [
      ['list', '--limit', '3'],
      ['count', '--by', 'format'],
      ['sessions'],
      ['timeline', session],
      ['similar', String(newest!.seq)],
      ['query', 'select layer, page from decisions order by seq'],
    ]) {
      const [whole, lines, csv] = [
        await told(command!, ...more, '--json'),
        await told(command!, ...more, '--format', 'jsonl'),
        await told(command!, ...more, '--format', 'csv'),
      ];
      const rows = lines!.out
        .split('\n')
        .filter(Boolean)
        .map((line) => JSON.parse(line) as unknown);
      if (!['query', 'similar'].includes(command!)) expect(rows, command).toEqual(JSON.parse(whole!.out));
      expect(csv!.out.trim().split('\n').length, command).toBe(1 + rows.length);
    }
    // An export has every decision, and one that was asked for fewer says that there may be more.
    const [{ count: all }] = JSON.parse(
      (await audit('query', 'select count(*) from decisions', '--format', 'jsonl')).out.replace(/^/, '[').concat(']'),
    ) as [{ count: number }];
    const exported = await audit('list', '--format', 'csv');
    expect(all).toBeGreaterThan(20);
    expect([exported.out.trim().split('\n').length, exported.err]).toEqual([1 + all, '']);
    expect((await audit('list', '--format', 'csv', '--limit', '3')).err).toContain('3 rows, which is as many as');
    const none = {
      out: '[]\n',
      err: expect.stringContaining('No decision in the log matches --threshold uniform.step.'),
    };
    const withoutRows = ['list', '--threshold', 'uniform.step', '--layer', '0', '--json'];
    expect(await audit(...withoutRows, '--exit-status')).toMatchObject({ ...none, code: 3 });
    expect(await told(...withoutRows)).toMatchObject({ ...none, code: 0 });
    const { err } = await told('count', '--layer', '9000', '--of-model', 'nobody', '--side', 'kv');
    expect(err.trim().split('\n')).toEqual(
      ['--of-model nobody', '--layer 9000', '--side kv'].map((flag) => `No decision in the log matches ${flag}.`),
    );
    expect((await told('sessions', '--of-model', 'nobody')).err).toBe(
      'No session in the log matches --of-model nobody.\n',
    );
    // Each of them is there, and no decision has both: then nothing is misspelt.
    expect((await told('list', '--of-model', 'reference', '--step', '0')).err).toBe('');
    const { out } = await told(
      'list',
      '--from',
      'q8',
      '--epsilon-to',
      '1e-9..',
      '--bytes',
      '1..',
      '--of-model',
      'reference',
      '--json',
    );
    expect(new Set((JSON.parse(out) as { from: string }[]).map(({ from }) => from))).toEqual(new Set(['q8']));
    expect((await audit('verify')).out).toContain('Sound');
    expect((await audit('replay', session)).out).toContain('every byte is the same');
    expect((await audit('reindex')).out).toMatch(/SQL index: \d+ entries; vector index: [1-9]\d* experience/);
    const moves = await audit('query', 'select count(*) as moves from decisions', '--json');
    const { decisions } = lastLine(ran.out) as { decisions: number };
    expect(lastLine(moves.out)).toMatchObject({ columns: ['moves'], more: false });
    expect((lastLine(moves.out) as { rows: number[][] }).rows[0]![0]).toBeGreaterThanOrEqual(decisions);
  });
  const REFUSED: readonly [what: string, args: string[], code: string, words: RegExp][] = [
    ['an entry that is not there', ['show', '999999'], 'not-found', /999999/],
    ['an id that is none', ['explain', 'x'], 'bad-argument', /audit list/],
    ['an entry that is no decision', ['explain', '0'], 'bad-argument', /no decision/],
    ['a session that is not there', ['replay', 'none'], 'not-found', /audit sessions/],
    ['a session that is not there', ['list', '--session', 'none'], 'not-found', /audit sessions/],
    ['a time that is none', ['list', '--since', 'yesterday'], 'bad-argument', /30m, 2h/],
    ['a range that is none', ['list', '--step', 'x'], 'bad-argument', /100\.\.200/],
    ['a layer that is none', ['list', '--layer', 'x'], '', /from 0/],
    ['a reason that nobody gives', ['list', '--reason', 'defecit'], 'bad-argument', /did you mean deficit\?/],
    ['a reason that nobody gives', ['count', '--reason', 'x'], 'bad-argument', /known are price, .*put-back/s],
    ['a threshold that is none', ['list', '--threshold', 'deficit'], 'bad-argument', /known are price\.start, /],
    ['a format that is none', ['list', '--to', 'rot9'], '', /rot4/],
    [
      'a database that is away',
      ['query', 'select 1', '--database', 'postgres://nobody:hidden@127.0.0.1:1/none'],
      'database',
      /127\.0\.0\.1:1/,
    ],
    ['a database URL that is none', ['query', 'select 1', '--database', 'nonsense'], 'bad-config', /postgres:\/\//],
  ];
  it.each(REFUSED.filter((_, place) => isDealt(place, 4)))('refuses %s', async (_, args, code, words) => {
    const result = await audit(...args);
    expectRefused(result, code, words);
    expect(result.err).not.toContain('hidden');
  });
  it('refuses state folders that are missing, empty or a file, and makes none', async () => {
    const empty = join(dir, 'empty');
    mkdirSync(empty);
    for (const [command, path] of [
      ['list', join(dir, 'nowhere')],
      ['sessions', empty],
      ['verify', prompt],
      ['reindex', empty],
      ['similar', join(dir, 'nowhere')],
    ]) {
      expectRefused(
        await answered(['audit', command!, ...(command === 'similar' ? ['1'] : []), '--state', path!]),
        'not-found',
        /run something first/,
      );
    }
    expectRefused(await palimpsest(['thresholds', 'show', '--state', empty]), 'not-found', /run something first/);
    expect(existsSync(join(dir, 'nowhere'))).toBe(false);
    expect(readdirSync(empty)).toEqual([]);
  });
  it('says where a changed log is wrong', async () => {
    const other = join(dir, 'changed');
    await palimpsest([...run(), '--state', other]);
    const segment = join(other, 'log', '00000000.wal');
    const bytes = readFileSync(segment);
    bytes[bytes.length >> 1]! ^= 1;
    writeFileSync(segment, bytes);
    const verify = await palimpsest(['audit', 'verify', '--state', other]);
    expect(verify.code).toBe(2);
    expect(verify.out).not.toContain('Sound:');
    expect((await palimpsest(['inspect', join(other, 'log')])).code).toBe(2);
    expectRefused(await palimpsest(['audit', 'list', '--state', other]), 'bad-log');
    expectRefused(await palimpsest([...run(), '--state', other]), 'bad-log');
  });
  // The first run keeps the book of what was learned, so only making that again has to wait for it.
  it('works while a run writes, and so does a second run; only reindex has to wait', async () => {
    const other = join(dir, 'shared');
    let second: Promise<Result[]> | null = null;
    const first = await palimpsest(
      ['run', '-m', 'reference', '-p', prompt, '-n', '2500', '--kv-budget', '40%', '--state', other],
      {
        with: (child) =>
          child.stdout!.once('data', () => {
            second = Promise.all([
              palimpsest([...run(), '--state', other]),
              palimpsest(['audit', 'verify', '--state', other]),
              palimpsest(['audit', 'reindex', '--state', other]),
            ]).finally(() => child.kill('SIGINT'));
          }),
      },
    );
    const [run2, verify, reindex] = await second!;
    expect(run2!.code).toBe(0);
    expect(verify!.code).toBe(0);
    expectRefused(reindex!, 'locked');
    expect([0, 130]).toContain(first.code);
  });
});

describe('convert', () => {
  it('makes a file that inspect knows, and refuses what it cannot make one of', async () => {
    const file = join(dir, 'converted.gguf');
    const made = await answered(['convert', 'reference', file, '--type', 'Q8_0', '--json']);
    expect(lastLine(made.out)).toMatchObject({ path: file, types: { Q8_0: 43, F32: 13 }, remarks: [] });
    const told = lastLine((await answered(['inspect', file, '--json'])).out);
    expect(told).toMatchObject({
      kind: 'model',
      format: 'GGUF 3',
      tensors: { Q8_0: { count: 43 }, F32: { count: 13 } },
    });
    expect((await answered(['convert', 'reference', file])).out).toMatch(/56 tensors \(43 BF16, 13 F32\)/);
    expectRefused(await answered(['convert', file, join(dir, 'again.gguf')]), 'unsupported', /no folder/);
    expectRefused(await answered(['convert', 'reference', join(dir, 'no', 'folder.gguf')]), 'io', /cannot write/);
    expectRefused(await answered(['convert', 'reference', dir]), 'io', /it is a folder/);
  });
});

describe('inspect and doctor', () => {
  it.each([
    ['a model by name', 'reference', /architecture +llama/],
    ['what latents would take', 'reference', /latents +do not pay:[\s\S]*4\.172[\s\S]*5\.563[\s\S]*4\.219/],
    ['a model folder', join(root, 'models/reference'), /digest +[0-9a-f]{64}/],
    ['a state folder', state, /log\nSound[\s\S]*vector index/],
    ['a log', join(state, 'log'), /Sound: \d+ entries/],
    ['a vector index', join(state, 'memory/experiences'), /vectors\.sha256/],
  ])('say what is in %s', async (_, path, words) => {
    const plain = await palimpsest(['inspect', path]);
    expect(plain).toMatchObject({ code: 0, err: '' });
    expect(plain.out).toMatch(words);
    expect(lastLine((await answered(['inspect', path, '--json'])).out)).toHaveProperty('kind');
  });
  it('refuse what is broken, foreign or only a part', async () => {
    const gguf = join(dir, 'broken.gguf');
    writeFileSync(gguf, Buffer.concat([Buffer.from('GGUF'), Buffer.alloc(60, 0xff)]));
    expectRefused(await palimpsest(['inspect', gguf]), '', /broken\.gguf/);
    expectRefused(await answered(['inspect', prompt]), 'unsupported', /prompt\.txt/);
    expectRefused(await answered(['inspect', join(state, 'log/00000000.wal')]), 'bad-argument', /inspect the folder/);
    expectRefused(await answered(['inspect', join(dir, 'none')]), 'not-found', /nothing at/);
    expectRefused(await answered(['inspect', '/dev/null']), 'unsupported', /neither a file nor a folder/);
    expectRefused(await answered(['fetch', 'nope']), 'not-found', /smollm2-135m/);
    expectRefused(await answered(['doctor', '--state', prompt]), 'bad-argument', /is a file/);
  });
  it('say what a model is given for a conversation', async () => {
    const gguf = join(dir, 'chat.gguf');
    const template = "{% for m in messages %}{{ bos_token + m.content + eos_token }}{% endfor %}{{ 'h' if tools }}";
    const withTemplate = (metadata: Map<string, RawValue>): unknown =>
      metadata.set('tokenizer.chat_template', { type: 'string', value: template });
    writeFileSync(
      gguf,
      tinyGguf(() => 0.5, withTemplate),
    );
    const conversation = join(dir, 'conversation.json');
    writeFileSync(conversation, JSON.stringify({ messages: [{ role: 'user', content: 'hello' }] }));
    expect(await palimpsest(['inspect', gguf, '--chat', conversation])).toMatchObject({
      code: 0,
      out: `<s>hello</s>\n\n3 tokens: 0 ${tinyWords.indexOf('hello')} 1\n`,
    });
    expect(lastLine((await answered(['inspect', gguf, '--chat', conversation, '--json'])).out)).toMatchObject({
      prompt: '<s>hello</s>',
      ids: [0, tinyWords.indexOf('hello'), 1],
    });
    expectRefused(
      await answered(['inspect', 'reference', '--chat', conversation]),
      'bad-tokenizer',
      /no chat template/,
    );
    expectRefused(await answered(['inspect', gguf, '--chat', prompt]), 'bad-argument', /prompt\.txt/);
    expectRefused(await answered(['inspect', gguf, '--chat', join(dir, 'none')]), '', /none/);
  });
  it('forecast memory for a length', async () => {
    const facts = lastLine((await palimpsest(['doctor', '--tokens', '2048', '--threads', '1', '--json'])).out);
    expect(facts).toMatchObject({ threadsEffective: 1, model: 'reference', forecast: { tokens: 2048 } });
    expect(facts['experience']).toEqual({ url: null, version: null, trouble: null, keyInTheOpen: false });
  });
  it('say how many sessions of a length fit a budget, or what is free', async () => {
    const asked = ['doctor', '--tokens', '2048', '--sessions', '8'];
    const { sessions, forecast } = lastLine((await palimpsest([...asked, '--kv-budget', '16MiB', '--json'])).out) as {
      sessions: SessionsFit;
      forecast: Forecast;
    };
    expect(sessions).toMatchObject({ sessions: 8, tokens: 2048, roomBytes: 2 ** 24, budgetBytes: 2 ** 24 });
    expect(sessions.pairs.map(({ bytes }) => bytes)).toEqual([
      forecast.f16Bytes,
      ...forecast.pairs.map(({ bytes }) => bytes),
    ]);
    for (const { bytes, bytesOfAll, sessionsMost } of sessions.pairs) {
      expect(bytesOfAll).toBe(8 * bytes);
      expect(sessionsMost * bytes).toBeLessThanOrEqual(2 ** 24);
      expect((sessionsMost + 1) * bytes).toBeGreaterThan(2 ** 24);
    }
    const tight = await palimpsest([...asked, '--kv-budget', '64KiB']);
    expect(tight.out.replace(/\s+/g, ' ')).toContain('8 sessions of 2,048 tokens do not fit into a budget of 64 KiB');
    expect((await palimpsest(asked)).out.replace(/\s+/g, ' ')).toMatch(/that are free beside the weights and the work/);
  });
  // Port 1 of this machine answers nobody.
  it('say where experience is shared, and never the key', async () => {
    const env = { PALIMPSEST_QDRANT_API_KEY: 'sesame', PALIMPSEST_QDRANT_URL: 'http://127.0.0.1:1' };
    const away = await palimpsest(['doctor'], { env });
    expect([away.code, away.out]).toEqual([
      0,
      expect.stringMatching(/experience +of this state folder alone: .*not reached/),
    ]);
    expect(away.out + away.err).not.toContain('sesame');
    expectRefused(await answered(['doctor', '--qdrant-url', 'qdrant:6333']), 'bad-config', /http/);
  });
});

describe('evaluate', () => {
  it('ends with one object, and refuses texts that are too short', async () => {
    const result = await palimpsest([
      'evaluate',
      '-m',
      'reference',
      '--text',
      prompt,
      '--caches',
      'q8,rot4:rot2',
      '--tokens',
      '512',
      '--json',
    ]);
    expect(result.code).toBe(0);
    expect(lastLine(result.out)).toMatchObject({
      model: 'reference',
      rows: [{ cache: 'q8' }, { cache: 'rot4:rot2' }],
    });
    expect(result.out).toContain('from the built-in thresholds.');
    expect(readdirSync(dir)).not.toContain('.palimpsest');
    expectRefused(
      await palimpsest(['evaluate', '-m', 'reference', '--text', prompt, '--tokens', '4000']),
      'bad-argument',
      /needs 4000/,
    );
    expectRefused(
      await palimpsest(['evaluate', '-m', 'reference', '--text', prompt, '--caches', ',']),
      'bad-argument',
      /names no cache/,
    );
  });
});
