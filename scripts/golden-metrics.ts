/**
 * Writes the golden text of /metrics: every metric with fixed numbers, as a scraper gets it. Names and labels are what
 * dashboards and alerts rest on.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Meter } from '../engine/metrics/meter.ts';
import type { Because, Decision } from '../policy/index.ts';

const because = (rule: string): Because => ({
  threshold: 'price.slack',
  measured: 1,
  bound: 2,
  unit: 'KLD/byte',
  origin: 'default',
  rule,
});
const move = (from: Decision['from'], to: Decision['to'], rule: string): Decision => ({
  layer: 0,
  page: 0,
  side: 'k',
  from,
  to,
  epsilonFrom: 0,
  epsilonTo: 0.01,
  price: 1e-9,
  bytesFreed: 4096,
  retry: false,
  because: because(rule),
});

/** The text of a meter that was told a little of everything. */
export function goldenMetrics(): string {
  const meter = new Meter();
  meter.kvBytes.set({ tier: 'open', dtype: 'q8' }, 69_632);
  meter.kvBytes.set({ tier: 'sinks', dtype: 'f16' }, 6144);
  meter.kvBytes.set({ tier: 'warm', dtype: 'rot4' }, 1_048_576);
  meter.kvBytes.set({ tier: 'latent', dtype: 'xq4' }, 73_856);
  meter.kvBytes.set({ tier: 'parked', dtype: 'predicted' }, 203_251);
  meter.usage.set({}, 0.75);
  meter.sessions.set({}, 2);
  meter.parked.set({ place: 'memory' }, 1);
  meter.parked.set({ place: 'disk' }, 0);
  meter.ended.add({ end: 'done' });
  const made = { accepted: true, because: because('fresh-trial') };
  meter.decision(move('q8', 'rot4', 'price'), made);
  meter.decision(move('q8', 'rot4', 'price'), made);
  meter.decision(move('q8', 'rot3', 'price'), { accepted: false, because: because('trial-again') });
  meter.decision(move('rot3', 'q8', 'put-back'), made);
  meter.decision(move('q8', 'xq4', 'deficit'), made);
  meter.decision(move('q8', 'rot4', 'a rule of a policy of one’s own'), made);
  meter.dropped.add({}, 3);
  for (const seconds of [4e-6, 5e-6, 6e-6, 0.02]) meter.appendSeconds.observe(seconds);
  meter.unanchored.set({}, 17);
  meter.fallbacks.add({ reason: 'byte-budget' });
  meter.layerChanged({ source: 'error', state: 'warm/watched/elevated/headroom' });
  meter.layerChanged({ source: 'agreement', state: 'warm/healthy/elevated/headroom/trusted' });
  meter.kld.observe(0.003);
  meter.firstTokenSeconds.observe(1.5);
  for (let token = 0; token < 8; token++) meter.betweenTokensSeconds.observe(0.012 + 0.004 * token);
  meter.helpers.set({ state: 'running' }, 1);
  meter.helpers.set({ state: 'restarting' }, 1);
  meter.helperFailures.add({ helper: 'places' }, 2);
  meter.promptTokens.add({}, 1000);
  meter.generatedTokens.add({}, 9);
  return meter.text();
}

export const GOLDEN_FILE = join(import.meta.dirname, '../test/golden/metrics.txt');

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) writeFileSync(GOLDEN_FILE, goldenMetrics());
