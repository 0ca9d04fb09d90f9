// Files that a person hands to the command line, each with one seeded change: bytes flipped, cut, repeated, or JSON and
// TOML values exchanged for nonsense. The functions behind `inspect` and `--config` must end in a KvError or in a
// finite result that can be printed. Most changes must be noticed: a reader that refuses nothing fails as well.

import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterAll, describe, expect, it } from 'vitest';
import { inspectPath } from '../../engine/cli/inspect.ts';
import { addSettings, keyName, readSettings, SETTINGS, type SettingName } from '../../engine/cli/settings.ts';
import { formatThresholdFile, mergeThresholdFiles, openHnswIndex } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { openWitnessLog } from '../../witness/index.ts';
import { seeded } from '../random.ts';
import { from } from '../unit/memory/threshold-data.ts';

const SEED = Number(process.env['SEED'] ?? 20_261);
const MUTATIONS = 100;
const dir = mkdtempSync(join(tmpdir(), 'palimpsest-cli-files-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

type Random = () => number;
const below = (random: Random, n: number): number => Math.floor(random() * n);
const pick = <T>(random: Random, items: readonly T[]): T => items[below(random, items.length)]!;

/** One change of bytes; never the same bytes again. */
function mutateBytes(bytes: Buffer, random: Random): Buffer {
  const at = below(random, bytes.length);
  const length = 1 + below(random, 64);
  const changed = [
    () => {
      const copy = Buffer.from(bytes);
      copy[at]! ^= 1 << below(random, 8);
      return copy;
    },
    () => bytes.subarray(0, at),
    () => Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + length)]),
    () => Buffer.concat([bytes.subarray(0, at + length), bytes.subarray(at)]),
    () =>
      Buffer.concat([
        bytes.subarray(0, at),
        Buffer.from(Array.from({ length }, () => below(random, 256))),
        bytes.subarray(at + length),
      ]),
    () => Buffer.concat([bytes.subarray(0, at), Buffer.alloc(length, 0xff), bytes.subarray(at)]),
    () => Buffer.concat([bytes, Buffer.alloc(length)]),
  ];
  const result = pick(random, changed)();
  return result.equals(bytes) ? Buffer.concat([bytes, Buffer.from([0])]) : result;
}

const NONSENSE: readonly unknown[] = [
  null,
  true,
  -1,
  0,
  1e308,
  2 ** 53,
  0.5,
  '',
  'x',
  '\u0000\u001b[2J',
  '__proto__',
  [],
  [null],
  {},
  { toString: 1 },
  'a'.repeat(10_000),
];

/** One value, anywhere in the tree, exchanged, dropped or added to. */
function mutateJson(text: string, random: Random): Buffer {
  const tree = JSON.parse(text) as Record<string, unknown>;
  let node = tree;
  for (;;) {
    const keys = Object.keys(node);
    const key = keys.length === 0 ? 'x' : pick(random, keys);
    const inner = node[key];
    if (typeof inner === 'object' && inner !== null && random() < 0.8) {
      node = inner as Record<string, unknown>;
      continue;
    }
    const choice = below(random, 4);
    if (choice === 0 && keys.length > 0) delete node[key];
    else if (choice === 1) node[pick(random, ['extra', '__proto__', 'constructor'])] = pick(random, NONSENSE);
    else node[key] = pick(random, NONSENSE);
    return Buffer.from(JSON.stringify(tree));
  }
}

/**
 * → 'refused' or 'read'; anything else than a KvError or a printable result fails the test with the mutation's number.
 */
async function outcome(what: string, work: () => Promise<unknown>): Promise<'refused' | 'read'> {
  try {
    const value = await work();
    const printed = JSON.stringify(value);
    expect(printed.length, what).toBeLessThan(1_000_000);
    return 'read';
  } catch (error) {
    if (!(error instanceof KvError))
      throw new Error(`${what}, seed ${SEED}: ${String((error as Error).stack)}`, { cause: error });
    return 'refused';
  }
}

const listing = (path: string): string[] => readdirSync(path).sort();

async function inspected(path: string): Promise<unknown> {
  const { ok, json } = await inspectPath(path, dir);
  if (!ok) throw new KvError('bad-log', 'reported as not sound');
  return json;
}

describe(`files with one change each (seed ${SEED})`, () => {
  it('threshold files', async () => {
    const random = seeded(SEED);
    const good = formatThresholdFile(mergeThresholdFiles([from('one', 9), from('two', 9, 2)]));
    const path = join(dir, 'thresholds.json');
    writeFileSync(path, good);
    expect(await outcome('unchanged', () => inspected(path))).toBe('read');
    let refused = 0;
    for (let n = 0; n < MUTATIONS; n++) {
      writeFileSync(path, random() < 0.5 ? mutateBytes(Buffer.from(good), random) : mutateJson(good, random));
      if ((await outcome(`threshold file ${n}`, () => inspected(path))) === 'refused') refused++;
    }
    // A digit of a value changed into another is a good file again; most changes are not of that kind.
    expect(refused).toBeGreaterThan(MUTATIONS / 2);
  });

  it('logs', async () => {
    const random = seeded(SEED + 1);
    const source = join(dir, 'log');
    const log = await openWitnessLog({ dir: source });
    for (let n = 0; n < 40; n++) log.append('s', 'note', { n, text: 'abc '.repeat(below(random, 30)) });
    await log.close();
    const [name] = listing(source).filter((file) => file.endsWith('.wal'));
    const good = readFileSync(join(source, name!));
    expect(await outcome('unchanged', () => inspected(source))).toBe('read');
    const path = join(dir, 'log-changed');
    mkdirSync(path);
    let refused = 0;
    for (let n = 0; n < MUTATIONS; n++) {
      writeFileSync(join(path, name!), mutateBytes(good, random));
      if ((await outcome(`log ${n}`, () => inspected(path))) === 'refused') refused++;
      expect(listing(path), `log ${n}`).toEqual([name]);
    }
    // What is read is what a crash could have left: an end torn off.
    expect(refused).toBeGreaterThan(MUTATIONS / 2);
  });

  it('vector indexes', async () => {
    const random = seeded(SEED + 2);
    const source = join(dir, 'index');
    const index = await openHnswIndex<{ n: number }>({ dir: source, dim: 4 });
    for (let n = 0; n < 20; n++)
      await index.add([{ id: { log: 'a', seq: n }, vector: Array.from({ length: 4 }, random), payload: { n } }]);
    await index.save();
    await index.close();
    expect(await outcome('unchanged', () => inspected(source))).toBe('read');
    const names = listing(source);
    const path = join(dir, 'index-changed');
    let refused = 0;
    for (let n = 0; n < MUTATIONS; n++) {
      rmSync(path, { recursive: true, force: true });
      cpSync(source, path, { recursive: true });
      const name = pick(random, names);
      const good = readFileSync(join(path, name));
      if (random() < 0.1) rmSync(join(path, name));
      else
        writeFileSync(
          join(path, name),
          name === 'manifest.json' && random() < 0.7 ? mutateJson(good.toString(), random) : mutateBytes(good, random),
        );
      if ((await outcome(`index ${n}, ${name}`, () => inspected(path))) === 'refused') refused++;
    }
    expect(refused).toBeGreaterThan(MUTATIONS / 2);
  });

  it('settings files, TOML and JSON', async () => {
    const random = seeded(SEED + 3);
    // `--chat` of inspect takes a file: no command has both.
    const names = (Object.keys(SETTINGS) as SettingName[]).filter((name) => name !== 'config' && name !== 'messages');
    const good: Record<string, unknown> = {
      'kv-budget': '25%',
      'max-tokens': 7,
      compare: true,
      stop: ['a', 'b'],
      'kv-cache-dtype-skip-layers': '0,2-3',
      'cache-type-k': 'rot4',
      policy: 'uniform',
      seed: 3,
      'top-p': 0.5,
      state: 'x',
    };
    const toml = Object.entries(good)
      .map(([key, value]) => `${key} = ${JSON.stringify(value)}\n`)
      .join('');
    const read = async (path: string): Promise<unknown> => {
      const command = addSettings(new Command('x').exitOverride(), [...names, 'config']);
      let seen: unknown = null;
      command.action(() => {
        seen = readSettings(command, {});
      });
      command.parse(['--config', path], { from: 'user' });
      return seen;
    };
    let refused = 0;
    for (let n = 0; n < MUTATIONS; n++) {
      const path = join(dir, n % 2 === 0 ? 'settings.json' : 'settings.toml');
      if (n < 2) {
        writeFileSync(path, n === 0 ? JSON.stringify(good) : toml);
        expect(await read(path)).toMatchObject({
          kvBudget: '25%',
          maxTokens: 7,
          skipLayers: [0, 2, 3],
          stop: ['a', 'b'],
        });
      }
      const json =
        random() < 0.5
          ? mutateJson(JSON.stringify(good), random)
          : mutateBytes(Buffer.from(JSON.stringify(good)), random);
      writeFileSync(path, n % 2 === 0 ? json : mutateBytes(Buffer.from(toml), random));
      if ((await outcome(`settings ${n}`, () => read(path))) === 'refused') refused++;
    }
    expect(refused).toBeGreaterThan(MUTATIONS / 4);
    expect(Object.prototype).not.toHaveProperty('extra');
  });

  it('every setting refuses nonsense of every type by name, or makes something of it', async () => {
    const path = join(dir, 'one.json');
    for (const name of Object.keys(SETTINGS) as SettingName[]) {
      if (name === 'config') continue;
      for (const value of NONSENSE) {
        writeFileSync(path, JSON.stringify({ [keyName(name)]: value }));
        const command = addSettings(new Command('x').exitOverride(), [name, 'config']);
        command.action(() => void readSettings(command, {}));
        try {
          command.parse(['--config', path], { from: 'user' });
        } catch (error) {
          expect(error, `${name} = ${JSON.stringify(value)}`).toBeInstanceOf(KvError);
        }
      }
    }
  });
});
