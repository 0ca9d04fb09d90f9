// Flags, environment and file: each setting can come from any of the three, the nearer one wins, and nonsense is
// refused by name.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, describe, expect, it } from 'vitest';
import { layerList } from '../../../../engine/cli/layer-list.ts';
import type { Setting } from '../../../../engine/cli/setting.ts';
import {
  addSettings,
  environmentName,
  keyName,
  readSettings,
  SETTINGS,
  type SettingName,
} from '../../../../engine/cli/settings.ts';
import { KvError } from '../../../../native/index.ts';

const names = Object.keys(SETTINGS) as SettingName[];
/** Those that one command can have: `--chat` of inspect takes a file. */
const together = names.filter((name) => name !== 'messages');
const dir = mkdtempSync(join(tmpdir(), 'palimpsest-settings-'));

function parse(args: string[], of: readonly SettingName[] = together): Partial<Record<SettingName, unknown>> {
  let seen: Partial<Record<SettingName, unknown>> = {};
  const root = new Command().exitOverride();
  root.configureOutput({ writeErr: () => {} });
  const command = addSettings(root.command('x'), of);
  command.action((...parameters: unknown[]) => {
    seen = readSettings(parameters.at(-1) as Command, process.env);
  });
  root.parse(['node', 'palimpsest', 'x', ...args]);
  return seen;
}

afterEach(() => {
  for (const name of names) delete process.env[environmentName(name)];
});

describe('settings', () => {
  it('have one environment variable each, named after the flag', () => {
    expect(environmentName('kvBudget')).toBe('PALIMPSEST_KV_BUDGET');
    expect(environmentName('skipLayers')).toBe('PALIMPSEST_KV_CACHE_DTYPE_SKIP_LAYERS');
    expect(new Set(names.map(environmentName)).size).toBe(names.length);
  });
  it('come from the file, the environment above it, the flag above both', () => {
    const file = join(dir, 'a.toml');
    writeFileSync(
      file,
      'kv-budget = "10%"\nmax-tokens = 7\ncompare = true\nstop = ["a", "b"]\nkv-cache-dtype-skip-layers = [0, 2]\n',
    );
    expect(parse(['--config', file])).toMatchObject({
      kvBudget: '10%',
      maxTokens: 7,
      compare: true,
      stop: ['a', 'b'],
      skipLayers: [0, 2],
    });
    process.env['PALIMPSEST_KV_BUDGET'] = '20%';
    expect(parse(['--config', file])['kvBudget']).toBe('20%');
    expect(parse(['--config', file, '--kv-budget', '30%'])['kvBudget']).toBe('30%');
  });
  it('may be JSON as well', () => {
    const file = join(dir, 'a.json');
    writeFileSync(file, '{"policy": "uniform", "seed": 3}');
    expect(parse(['--config', file])).toMatchObject({ policy: 'uniform', seed: 3 });
  });
  it('come, every one of them, to the same value from flag, environment, TOML and JSON', () => {
    const values: Partial<Record<SettingName, string>> = {
      activations: 'auto',
      kvBudget: '25%',
      cacheTypeK: 'rot4',
      cacheTypeV: 'rot2',
      skipLayers: '0,2-3',
      tierHot: '256,q8',
      tierWarm: '4 pages',
      tierCold: 'trellis3:trellis1',
      tierImportance: '0.25',
      tierDecay: '0.25',
      tierAnchors: '0,4-5',
      topP: '0.5',
      typicalP: '0.5',
      minP: '0.5',
      logitBias: '15043+1',
      side: 'k',
      sample: 'layers=2',
      maxBytes: '1MiB',
      maxSize: '1GB',
      originalsBytes: '64MiB',
      allowOrigin: 'https://dashboard.example',
    };
    for (const name of names.filter((other) => other !== 'config')) {
      const setting: Setting = SETTINGS[name];
      const alone = (args: string[]): unknown => parse(args, [name, 'config'])[name];
      const key = keyName(name);
      const isSwitch = !setting.flags.includes('<');
      const numeric = setting.parse !== undefined && values[name] === undefined;
      const number = name === 'tokens' ? '512' : name === 'windowTokens' ? '64' : '2';
      const value = values[name] ?? setting.choices?.[1] ?? (numeric ? number : 'some text');
      const expected = alone(isSwitch ? [`--${key}`] : [`--${key}`, value]);
      expect(expected, key).toBeDefined();
      process.env[environmentName(name)] = isSwitch ? 'true' : value;
      expect(alone([]), `${key} from the environment`).toEqual(expected);
      delete process.env[environmentName(name)];
      const literal = isSwitch ? 'true' : numeric ? value : JSON.stringify(value);
      const files = { 'one.toml': `${key} = ${literal}`, 'one.json': `{"${key}": ${literal}}` };
      for (const [file, content] of Object.entries(files)) {
        writeFileSync(join(dir, file), content);
        expect(alone(['--config', join(dir, file)]), `${key} from ${file}`).toEqual(expected);
      }
    }
  });
  it('can be switched off in the environment; an empty variable is none', () => {
    process.env['PALIMPSEST_JSON'] = '0';
    process.env['PALIMPSEST_MAX_TOKENS'] = '';
    expect(parse([])).toMatchObject({ json: false, maxTokens: 128 });
    process.env['PALIMPSEST_JSON'] = 'perhaps';
    expect(() => parse([])).toThrow(/PALIMPSEST_JSON/);
  });
  it('take several texts from a JSON array in the environment', () => {
    process.env['PALIMPSEST_STOP'] = '["a", "b c"]';
    expect(parse([])['stop']).toEqual(['a', 'b c']);
    process.env['PALIMPSEST_STOP'] = 'one';
    expect(parse([])['stop']).toEqual(['one']);
  });
  it.each([
    ['unknown key', 'kv-budgets = "1%"'],
    ['wrong type', 'compare = 1'],
    ['out of range', 'max-tokens = -1'],
    ['not a choice', 'dense = "fast"'],
    ['not TOML', '= ='],
  ])('refuse a file with an %s', (_, content) => {
    const file = join(dir, 'bad.toml');
    writeFileSync(file, content);
    expect(() => parse(['--config', file])).toThrow(KvError);
  });
  it('refuse a missing file', () => {
    expect(() => parse(['--config', join(dir, 'none.toml')])).toThrow(KvError);
  });
  it.each(['x', '1.5', '-3', '', '1e99'])('refuse --max-tokens %j', (value) => {
    expect(() => parse(['--max-tokens', value])).toThrow();
  });
  it('read layer lists with ranges', () => {
    expect(layerList('3, 0-2 1')).toEqual([0, 1, 2, 3]);
    expect(() => layerList('2-1')).toThrow();
    expect(() => layerList('a')).toThrow();
  });
});
