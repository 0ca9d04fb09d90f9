/**
 * What can only be known when somebody asks: the bytes of open caches by tier and format, and how far the log is
 * anchored.
 */
import { isLatent } from '../../policy/index.ts';
import type { WitnessLog } from '../../witness/index.ts';
import { IDLE_PLACES, type KvLabels, type Meter, tierOf } from '../metrics/meter.ts';
import { formsBySide, latentOf } from './forms.ts';
import type { Governed } from './governed.ts';

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
  const add: Add = (tier, dtype, more) => {
    const key = `${tier} ${dtype}`;
    if (more > 0) bytes.set(key, { tier, dtype, bytes: (bytes.get(key)?.bytes ?? 0) + more });
  };
  let used = 0;
  let budget = 0;
  const seen: Governed[] = [];
  for (const cache of caches) {
    const isFamilySeen = seen.some((other) => other.kin.has(cache.kin));
    countCache(cache, Math.max(0, ...seen.map((other) => cache.kin.sharedWith(other.kin))), add);
    if (!isFamilySeen) add('kept', cache.terms.context.windowFormat, cache.canaryBytes);
    if (!isFamilySeen && cache.budgetBytes !== null) {
      used += cache.usedBytes;
      budget += cache.budgetBytes;
    }
    seen.push(cache);
  }
  kvBytes.clear();
  for (const { tier, dtype, bytes: sum } of bytes.values()) kvBytes.set({ tier, dtype }, sum);
  usage.clear();
  if (budget > 0) usage.set({}, used / budget);
  sessions.set({}, caches.length);
  parked.clear();
  for (const place of IDLE_PLACES) parked.set({ place }, caches.filter(({ away }) => away?.place === place).length);
}

type Add = (tier: KvLabels['tier'], dtype: KvLabels['dtype'], bytes: number) => void;

/** Pages before `from` are those of a cache that was counted already. */
function countCache(cache: Governed, from: number, add: Add): void {
  const { kv, shape, terms, latents, away } = cache;
  if (away !== null) {
    add('parked', 'predicted', away.heldBytes);
    return;
  }
  const { pageBytes, openFormat = 'f16' } = terms.context;
  const { openBytes, sinkBytes } = kv.memory();
  add('open', openFormat, openBytes);
  add('sinks', 'f16', sinkBytes);
  for (let layer = 0; layer < shape.layers; layer++) {
    const table = kv.table(layer);
    const { k, v } = formsBySide(table);
    for (let page = from; page < table.pages; page++) {
      const latent = latentOf(table, page);
      if (latent?.isHeld === true)
        add('latent', latent.name, latents?.bytesOf(latent.name) ?? pageBytes[latent.name] ?? 0);
      else for (const form of [k[page]!, v[page]!]) if (!isLatent(form)) add(tierOf(form), form, pageBytes[form]);
      if (latent?.isHeld === false)
        add('kept', latent.name, latents?.bytesOf(latent.name) ?? pageBytes[latent.name] ?? 0);
    }
  }
}
