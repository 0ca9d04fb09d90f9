/**
 * What can only be known when somebody asks: the bytes of open caches by tier and format, and how far the log is
 * anchored.
 */
import type { WitnessLog } from '../../witness/index.ts';
import { IDLE_PLACES, type KvLabels, type Meter } from '../metrics/meter.ts';
import type { Governed } from './governed.ts';
import type { Kin } from './kin.ts';
import { tierRows } from './tier-summary.ts';

/** The text of all metrics of an engine with these caches open. */
export function metricsText(meter: Meter, caches: readonly Governed[], log: WitnessLog | null): string {
  measure(meter, caches);
  // Only a writer that anchors its log by itself knows it; for others it is left out.
  const unanchoredEntries = log?.unanchoredEntries ?? null;
  meter.unanchored.clear();
  if (unanchoredEntries !== null) meter.unanchored.set({}, unanchoredEntries);
  return meter.text();
}

function measure({ kvBytes, usage, sessions, parked }: Meter, caches: readonly Governed[]): void {
  const bytes = new Map<string, KvLabels & { bytes: number }>();
  const add = (tier: KvLabels['tier'], dtype: KvLabels['dtype'], more: number): void => {
    const key = `${tier} ${dtype}`;
    if (more > 0) bytes.set(key, { tier, dtype, bytes: (bytes.get(key)?.bytes ?? 0) + more });
  };
  let used = 0;
  let budget = 0;
  const seen = new Set<Kin>();
  const families = new Set<object>();
  for (const cache of caches) {
    const isFamilySeen = families.has(cache.kin.family);
    const from = cache.kin.sharedWithin(seen)?.pages ?? 0;
    for (const { tier, format, bytes: more } of tierRows(cache, from)) add(tier, format, more);
    if (!isFamilySeen) add('kept', cache.terms.context.windowFormat, cache.canaryBytes);
    if (!isFamilySeen && cache.budgetBytes !== null) {
      used += cache.usedBytes;
      budget += cache.budgetBytes;
    }
    seen.add(cache.kin);
    families.add(cache.kin.family);
  }
  kvBytes.clear();
  for (const { tier, dtype, bytes: sum } of bytes.values()) kvBytes.set({ tier, dtype }, sum);
  usage.clear();
  if (budget > 0) usage.set({}, used / budget);
  sessions.set({}, caches.length);
  parked.clear();
  for (const place of IDLE_PLACES) parked.set({ place }, caches.filter(({ away }) => away?.place === place).length);
}
