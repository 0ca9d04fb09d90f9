// What an engine counts about itself: the text against a golden file and a strict reader of the format, and the numbers
// of real sessions against what their reports, their log and their cache say.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createEngine, openCache } from '../../../../engine/index.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Registry } from '../../../../engine/metrics/registry.ts';
import { writeKeyPair } from '../../../../memory/index.ts';
import { GOLDEN_FILE, goldenMetrics } from '../../../../scripts/golden-metrics.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL, openEngine, written } from '../on-reference.ts';
import { type MetricFamily, parseExposition } from './exposition.ts';

const folder = scratchFolders();

const familyOf = (text: string, name: string): MetricFamily | undefined =>
  parseExposition(text).find((family) => family.name === `palimpsest_${name}`);
const sumOf = (text: string, name: string): number =>
  (familyOf(text, name)?.samples ?? []).reduce((sum, { value }) => sum + value, 0);
const countOf = (text: string, name: string): number =>
  familyOf(text, name)?.samples.find((sample) => sample.name.endsWith('_count'))?.value ?? 0;

describe('the text', () => {
  test('is what it was: names and labels do not change under dashboards', () => {
    expect(goldenMetrics()).toBe(readFileSync(GOLDEN_FILE, 'utf8'));
  });

  test('is read by a strict reader, with the names that were promised', () => {
    const families = parseExposition(goldenMetrics());
    const named = Object.fromEntries(families.map(({ name, type }) => [name.replace('palimpsest_', ''), type]));
    expect(named).toMatchObject({
      kv_bytes: 'gauge',
      kv_cache_usage_ratio: 'gauge',
      decisions_total: 'counter',
      decisions_dropped_total: 'counter',
      log_append_seconds: 'histogram',
      log_unanchored_records: 'gauge',
      effective_dtype_mismatch_total: 'counter',
      fallback_total: 'counter',
      layer_changes_total: 'counter',
      quality_kld: 'histogram',
      time_to_first_token_seconds: 'histogram',
      inter_token_latency_seconds: 'histogram',
      prompt_tokens_total: 'counter',
      generation_tokens_total: 'counter',
    });
    const labels = new Set(families.flatMap(({ samples }) => samples.flatMap((sample) => Object.keys(sample.labels))));
    expect([...labels].sort()).toEqual([
      'action',
      'dtype',
      'end',
      'helper',
      'le',
      'place',
      'reason',
      'region',
      'rung',
      'state',
      'tier',
    ]);
  });

  test('escapes help, prints every kind of number, and leaves out what has no value', () => {
    const registry = new Registry('x_');
    const gauge = registry.gauge('odd', 'a \\ and a\nline', { of: ['a', 'b', 'c'] });
    registry.gauge('unknown', 'never set', {});
    gauge.set({ of: 'a' }, Number.POSITIVE_INFINITY);
    gauge.set({ of: 'b' }, Number.NaN);
    gauge.set({ of: 'c' }, 1e-9);
    expect(registry.text()).toBe(
      '# HELP x_odd a \\\\ and a\\nline\n# TYPE x_odd gauge\nx_odd{of="a"} +Inf\nx_odd{of="b"} NaN\nx_odd{of="c"} 1e-9\n',
    );
    expect(parseExposition(registry.text())[0]!.samples.map(({ value }) => value)).toEqual([
      Number.POSITIVE_INFINITY,
      Number.NaN,
      1e-9,
    ]);
    gauge.clear();
    expect(registry.text()).toBe('');
  });

  test('takes no label from outside its closed set', () => {
    const counter = new Registry('x_').counter('some_total', 'help', { reason: ['known'] });
    expect(() => counter.add({ reason: 'a prompt of somebody' as 'known' })).toThrow(/no reason/);
  });

  test.each([
    ['a value with a comma', 'x_total 1,5\n'],
    ['a sample without a type', '# HELP x_total h\nx_total 1\n'],
    ['a label without quotes', '# HELP x_total h\n# TYPE x_total counter\nx_total{a=b} 1\n'],
    ['a family in two pieces', '# HELP x h\n# TYPE x gauge\nx 1\n# HELP x h\n# TYPE x gauge\nx 2\n'],
    ['no line feed at the end', '# HELP x h\n# TYPE x gauge\nx 1'],
    ['a sample twice', '# HELP x h\n# TYPE x gauge\nx 1\nx 2\n'],
    [
      'buckets that fall',
      '# HELP x h\n# TYPE x histogram\nx_bucket{le="1"} 2\nx_bucket{le="+Inf"} 1\nx_sum 1\nx_count 1\n',
    ],
  ])('the reader of these tests refuses %s', (_, text) => {
    expect(() => parseExposition(text)).toThrow();
  });

  test('a measurement on a bound is in the bucket of that bound', () => {
    const registry = new Registry('');
    const histogram = registry.histogram('h', 'help', [1, 2]);
    for (const value of [1, 1.5, 2, 3]) histogram.observe(value);
    expect(registry.text()).toContain(
      'h_bucket{le="1"} 1\nh_bucket{le="2"} 3\nh_bucket{le="+Inf"} 4\nh_sum 7.5\nh_count 4',
    );
  });
});

describe('an engine', () => {
  test('counts what its sessions did: bytes as in the cache, decisions as in the log, tokens as generated', async () => {
    const state = join(folder(), 'state');
    await using engine = await openEngine(state);
    const before = await engine.metrics();
    expect(familyOf(before, 'kv_bytes')).toBeUndefined();
    expect(familyOf(before, 'kv_cache_usage_ratio')).toBeUndefined();
    expect(sumOf(before, 'decisions_dropped_total')).toBe(0);

    const session = await written(engine, { kvBudget: '25%', compareTokens: 8 });
    await session.flush();
    const text = await engine.metrics();
    const usage = await session.memoryUsage();
    const decisions = entriesOf(state, session.id, 'decision');
    const { canaryBytes = 0, budgetBytes } = entriesOf(state, session.id, 'situation').at(-1)!.body.situation;
    const kept = familyOf(text, 'kv_bytes')!.samples.filter(({ labels }) => labels['tier'] === 'kept');
    const keptBytes = kept.reduce((sum, { value }) => sum + value, 0);
    // The moves that followed the last situation may have kept more.
    expect(keptBytes).toBeGreaterThanOrEqual(canaryBytes);
    expect(keptBytes).toBeLessThanOrEqual(0.0025 * (budgetBytes! + canaryBytes));
    expect(keptBytes).toBeGreaterThan(0);
    expect(decisions.length).toBeGreaterThan(20);
    expect(sumOf(text, 'decisions_total')).toBe(decisions.length);
    const refused = familyOf(text, 'decisions_total')!.samples.filter(({ labels }) => labels['action'] === 'refuse');
    expect(refused.reduce((sum, { value }) => sum + value, 0)).toBe(
      decisions.filter(({ body }) => !body.verdict.accepted).length,
    );
    // Every rule of the default policy is known by name.
    expect(text).not.toContain('reason="other"');
    expect(sumOf(text, 'kv_bytes')).toBe(usage.totalBytes);
    expect(sumOf(text, 'kv_cache_usage_ratio')).toBeGreaterThan(0.5);
    expect(sumOf(text, 'kv_cache_usage_ratio')).toBeLessThanOrEqual(1);
    expect(sumOf(text, 'effective_dtype_mismatch_total')).toBe(0);
    expect([sumOf(text, 'prompt_tokens_total'), sumOf(text, 'generation_tokens_total')]).toEqual([1400, 40]);
    // What is read without an answer is read too.
    await session.read('And then');
    const read = (await session.report()).tokens - 1440;
    expect(read).toBeGreaterThan(0);
    expect(sumOf(await engine.metrics(), 'prompt_tokens_total')).toBe(1400 + read);
    expect([countOf(text, 'time_to_first_token_seconds'), countOf(text, 'inter_token_latency_seconds')]).toEqual([
      1, 39,
    ]);
    const own = ['situation', 'decision', 'change', 'note'] as const;
    const logged = own.reduce((sum, kind) => sum + entriesOf(state, session.id, kind).length, 0);
    expect(countOf(await engine.metrics(), 'log_append_seconds')).toBeGreaterThanOrEqual(logged);
    expect(countOf(text, 'quality_kld')).toBe(0);

    await session.compare();
    await session.close();
    const after = await engine.metrics();
    expect(countOf(after, 'quality_kld')).toBe(1);
    expect(after).toContain('palimpsest_sessions_ended_total{end="done"} 1');
    expect(sumOf(after, 'sessions_open')).toBe(0);
    expect(familyOf(after, 'kv_bytes')).toBeUndefined();
  });

  test('tells how many entries no checkpoint stands for, where it anchors its log, and says nothing of it elsewhere', async () => {
    const dir = folder();
    writeKeyPair(join(dir, 'key'));
    const anchor = { key: join(dir, 'key'), to: [join(dir, 'checkpoints')] };
    await using engine = await createEngine({ model: MODEL, threads: 1, stateDir: join(dir, 'state'), anchor });
    await using _ = await engine.openSession({ kvBudget: '50%', tokensExpected: 600 });
    const family = familyOf(await engine.metrics(), 'log_unanchored_records');
    expect(family!.samples[0]!.value).toBeGreaterThanOrEqual(0);
    await using bare = await openEngine(join(dir, 'bare'));
    expect(familyOf(await bare.metrics(), 'log_unanchored_records')).toBeUndefined();
  });

  test('counts pages that forks share once', async () => {
    await using engine = await openEngine(null);
    const session = await written(engine, {}, ids(700));
    const alone = sumOf(await engine.metrics(), 'kv_bytes');
    const fork = await session.fork();
    const both = sumOf(await engine.metrics(), 'kv_bytes');
    const { totalBytes, openBytes, sinkBytes } = await fork.memoryUsage();
    expect(both - alone).toBeLessThanOrEqual(openBytes + sinkBytes);
    await fork.generate(ids(300, 9), { maxTokens: 1 }).result;
    const grown = await fork.memoryUsage();
    expect(sumOf(await engine.metrics(), 'kv_bytes')).toBe(both + grown.totalBytes - totalBytes);
  });

  test('knows every rule of the policies of this package', async () => {
    await using engine = await openEngine(null);
    for (const [policy, options] of Object.entries({
      uniform: { kvBudget: '30%' },
      age: { kvBudget: '40%' },
      'price-1': { kvBudget: '30%' },
      fixed: { cacheTypes: 'rot4:rot2' },
      price: { kldBudget: 0.01 },
    })) {
      const session = await written(engine, { policy, ...options }, ids(900));
      await session.close();
    }
    const text = await engine.metrics();
    const reasons = new Set(familyOf(text, 'decisions_total')!.samples.map(({ labels }) => labels['reason']));
    expect([...reasons]).toEqual(expect.arrayContaining(['age', 'fixed', 'price', 'uniform']));
    expect(reasons).not.toContain('other');
  });
});

test('a cache of a caller’s own has its metrics too', async () => {
  const shape = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64 };
  await using cache = await openCache(shape);
  const rows = Float32Array.from({ length: 300 * 64 }, (_, i) => Math.sin(i * 12.9898) * 2);
  cache.append(0, rows, rows);
  cache.attention(0, rows);
  expect(sumOf(cache.metrics(), 'kv_bytes')).toBe(cache.memoryUsage().totalBytes);
});

test('a session in a thread of its own shares no meter with another engine', () => {
  const [one, other] = [new Meter(), new Meter()];
  one.promptTokens.add({}, 5);
  expect(sumOf(other.text(), 'prompt_tokens_total')).toBe(0);
});
