/**
 * A policy file: the one of the guide governs a cache and a command, what is wrong is refused with its place, and what
 * is given beside it goes first. The log needs no file.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { inspectPath } from '../../../../engine/cli/inspect.ts';
import { openCache } from '../../../../engine/index.ts';
import { readPolicyFile } from '../../../../engine/options/policy-file.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog, replay } from '../../../../witness/index.ts';
import { mulberry32 } from '../../../random.ts';
import { refusal, refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids, openEngine } from '../on-reference.ts';

const folder = scratchFolders();
const GUIDE = readFileSync(new URL('../../../../docs/guide.md', import.meta.url), 'utf8');
const EXAMPLE = /^ {4}policyVersion = 1\n(?:(?: {4}.*)?\n)*/m.exec(GUIDE)![0].replaceAll(/^ {4}/gm, '');
const SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 64 };

function file(content: string, name = 'policy.toml'): string {
  const path = join(folder(), name);
  writeFileSync(path, content);
  return path;
}

/** A cache that is governed so, and reads so many pages. */
async function govern(
  { layers = SHAPE.layers, ...options }: Readonly<Record<string, unknown>> & { layers?: number },
  pages: number,
) {
  const cache = await openCache({ ...SHAPE, layers, tokensExpected: pages * 128, ...options });
  const random = mulberry32(1);
  const rows = (heads: number) => Float32Array.from({ length: 128 * heads * 64 }, () => random() - 0.5);
  for (let page = 0; page < pages; page++)
    for (let layer = 0; layer < layers; layer++) {
      cache.append(layer, rows(1), rows(1));
      cache.attention(layer, rows(2));
    }
  await cache.close();
}

/** What the first entry of a session says of how it is governed. */
interface Opened {
  readonly context: {
    readonly skipLayers: number[];
    readonly windowTokens?: number;
    readonly thresholds: { readonly thresholds: Record<string, unknown> };
  };
  readonly policy: { readonly id: string; readonly options: Record<string, unknown> };
}

/** The first entry of the only session of a state folder, and whether deciding again gives the same. */
function told(stateDir: string) {
  const [open] = readLog(logDir(stateDir), { kinds: ['open'] });
  const { context, policy } = open!.body as unknown as Opened;
  return { context, policy, report: replay(logDir(stateDir), open!.session) };
}

describe('a policy file', () => {
  test('the one of the guide governs a cache, and its log is replayed without it', async () => {
    const stateDir = folder();
    await govern({ layers: 6, stateDir, policyFile: file(EXAMPLE) }, 16);
    const { context, policy, report } = told(stateDir);
    expect(policy).toMatchObject({ id: 'tiers', options: { anchors: [1], warm: { size: '20%' }, decay: 0.5 } });
    expect(context).toMatchObject({ skipLayers: [0], windowTokens: 64 });
    expect(context.thresholds.thresholds['canary.every']).toMatchObject({ value: 256, origin: 'option' });
    expect(report).toMatchObject({ equal: true, complete: true, policy: 'tiers@1' });
    expect(report.decisions).toBeGreaterThan(0);
  });

  test('what is given beside it goes first', async () => {
    const stateDir = folder();
    await govern(
      { stateDir, policyFile: file(EXAMPLE), windowTokens: 128, skipLayers: [], tiers: { hot: { size: 0 } } },
      16,
    );
    const { context, policy } = told(stateDir);
    expect(policy.options).toMatchObject({ hot: { size: 0 }, anchors: [] });
    expect(context).toMatchObject({ skipLayers: [] });
    expect(context.windowTokens ?? 128).toBe(128);
  });

  test('formats of every layer are policy table, in TOML as in JSON', async () => {
    const layers = [
      { layers: '0', types: 'trellis4:trellis2' },
      { layers: 1, types: 'rot3' },
    ];
    const toml =
      'policyVersion = 1\n[[layers]]\nlayers = "0"\ntypes = "trellis4:trellis2"\n[[layers]]\nlayers = 1\ntypes = "rot3"\n';
    const json = file(JSON.stringify({ policyVersion: 1, layers }), 'policy.json');
    expect(readPolicyFile(json)).toEqual(readPolicyFile(file(toml)));
    const stateDir = folder();
    await govern({ stateDir, policyFile: json }, 5);
    const pairs = [
      { k: 'trellis4', v: 'trellis2' },
      { k: 'rot3', v: 'rot3' },
    ];
    expect(told(stateDir).policy).toMatchObject({ id: 'table', options: { layers: pairs } });
    const three = file(JSON.stringify({ policyVersion: 1, layers: [...layers, { layers: 2, types: 'q8' }] }), 'p.json');
    expect(await refused(openCache({ ...SHAPE, policyFile: three }))).toMatchObject({ code: 'bad-config' });
  });

  test('inspect shows what it says', async () => {
    const { plain, json } = await inspectPath(file(EXAMPLE), '');
    expect(plain).toMatch(/^policy\n/);
    expect(plain).toMatch(/tiers\.warm\.types\s+trellis4:trellis3/);
    expect(json).toMatchObject({ kind: 'policy', kvBudget: '30%' });
  });

  test.each([
    ['', /policyVersion/],
    ['policyVersion = 2', /policyVersion/],
    ['policyVersion = 1\nkvBugdet = 1', /has no field 'kvBugdet'/],
    ['policyVersion = 1\npolicy = "best"', /policy: is no policy/],
    ['policyVersion = 1\npolicy = "table"', /policy: is no policy/],
    ['policyVersion = 1\n[window]\nsize = 3', /window has no field 'size'/],
    ['policyVersion = 1\n[window]\nwindowTokens = 3', /window.windowTokens: windowTokens must be 128 or 64/],
    ['policyVersion = 1\nwindow = 3', /window: must be a table/],
    ['policyVersion = 1\n[triggers]\nkldBudget = -1', /triggers.kldBudget/],
    ['policyVersion = 1\ncacheTypes = "rot9"', /cacheTypes: unknown cache type 'rot9'/],
    ['policyVersion = 1\n[tiers]\nhto = 1', /tiers: tiers has no field 'hto'/],
    ['policyVersion = 1\n[tiers.cold]\ntypes = "trellis1"', /tiers: .*is not served/],
    ['policyVersion = 1\n[triggers]\nkvBudget = "lots"', /triggers.kvBudget: 'lots' is not a KV budget/],
    ['policyVersion = 1\n[thresholds]\n"canary.every" = "8"', /thresholds.canary.every: canary.every is 8, not within/],
    ['policyVersion = 1\n[thresholds]\n"canary.every" = 1', /thresholds.canary.every: canary.every is 1, not within/],
    ['policyVersion = 1\n[thresholds]\n"canary.evry" = 8', /there is no threshold 'canary.evry'/],
    ['policyVersion = 1\nlayers = 3', /layers: must be a list/],
    ['policyVersion = 1\n[[layers]]\nlayers = "3-1"\ntypes = "q8"', /layers\[0\].layers: must be layers/],
    ['policyVersion = 1\n[[layers]]\nlayers = ""\ntypes = "q8"', /layers\[0\].layers: must be layers/],
    ['policyVersion = 1\n[[layers]]\nlayers = "0 1"\ntypes = "q8"', /layers\[0\].layers: must be layers/],
    ['policyVersion = 1\n[[layers]]\nlayers = "0,"\ntypes = "q8"', /layers\[0\].layers: must be layers/],
    ['policyVersion = 1\n[[layers]]\nlayers = "0-4096"\ntypes = "q8"', /layers\[0\].layers: must be layers/],
    [`policyVersion = 1\n[[layers]]\nlayers = "${'0-4095,'.repeat(3)}"\ntypes = "q8"`, /layers\[0\].layers: must be/],
    ['policyVersion = 1\n[[layers]]\nlayers = "1"\ntypes = "q8"', /layers: layer 0 has no formats/],
    ['policyVersion = 1\n[[layers]]\nlayers = "0, 0"\ntypes = "q8"', /layer 0 has formats already/],
    ['policyVersion = 1\n[[layers]]\nlayers = "0"\ntypes = "no"', /layers\[0\].types: unknown cache type/],
    ['policyVersion = 1\n[[layers]]\nlayers = "0"\nkeys = "q8"', /layers\[0\] has no field 'keys'/],
    ['policyVersion = 1\ncacheTypes = "q8"\n[[layers]]\nlayers = "0"\ntypes = "q8"', /do not go together/],
    ['policyVersion = ', /is not TOML/],
  ])('%j is refused with its place', (content, message) => {
    const path = file(content);
    const error = refusal(() => readPolicyFile(path));
    expect(error).toMatchObject({ code: 'bad-config', message: expect.stringMatching(message) });
    expect(error.message).toContain('policy.toml');
    expect(error.hint).toBeTruthy();
  });

  test('single values that are given to a cache are refused where no threshold may be so', async () => {
    const open = (thresholdValues: unknown) => refused(openCache({ ...SHAPE, thresholdValues } as never));
    expect(await open({ 'canary.evry': 8 })).toMatchObject({
      code: 'bad-thresholds',
      hint: 'did you mean canary.every?',
    });
    expect(await open({ 'canary.every': 1 })).toMatchObject({ code: 'bad-thresholds', values: { min: 8 } });
    expect(await open({ 'canary.every': '8' })).toMatchObject({ code: 'bad-argument' });
    expect(await open([8])).toMatchObject({ code: 'bad-argument' });
  });

  test('a session that was parked goes on as the file said, without it', async () => {
    const state = folder();
    const engine = await openEngine(state);
    try {
      const policyFile = file(EXAMPLE);
      const session = await engine.openSession({ policyFile, tokensExpected: 1024 });
      await session.read(ids(20));
      await session.park();
      await session.close();
      rmSync(policyFile);
      await (await engine.resume(session.id)).close();
    } finally {
      await engine.close();
    }
    const entries = [...readLog(logDir(state), { kinds: ['open'] })];
    const [first, second, ...others] = entries.map(({ body }) => body as unknown as Opened);
    expect(others).toEqual([]);
    expect(second!.policy).toEqual(first!.policy);
    expect(second!.context).toEqual(first!.context);
    expect(second!.context.thresholds.thresholds['canary.every']).toMatchObject({ value: 256, origin: 'option' });
  });
});
