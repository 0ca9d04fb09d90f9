/** Logs that verify and say nonsense: entries of any content with right lengths, checksums and hashes. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Batch } from '../../../witness/batch.ts';
import { canonicalJson } from '../../../witness/canonical.ts';
import { FORMAT_VERSION, NO_KEY, type SegmentHeader } from '../../../witness/segment.ts';
import { Frontier } from '../../../witness/tree.ts';

export type Loose = Record<string, unknown>;

/**
 * Writes a log of one segment. Entries are spelled canonically in the order of an envelope; their seq is their place
 * where they have one.
 */
export function forgeLog(dir: string, entries: readonly Loose[]): void {
  const previousHash = new Uint8Array(32);
  const header: SegmentHeader = {
    ...{ version: FORMAT_VERSION, logId: 'f'.repeat(32), number: 0, firstSeq: 0, previousHash, beganMs: 0 },
    ...{ keyId: NO_KEY, firstSegment: 0, leaves: 0, peaks: [] },
  };
  const batch = new Batch(0, 0, { nextSeq: 0, headHash: previousHash, tree: new Frontier() }, header);
  for (const [seq, entry] of entries.entries()) {
    const fields = ['seq', 'timeMs', 'session', 'kind', 'body'].filter((key) => key in entry);
    const text = fields.map((key) => `"${key}":${canonicalJson(key === 'seq' ? seq : entry[key])}`);
    batch.add(seq, `{${text.join()}}`);
  }
  batch.finish();
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, '00000000.wal'), batch.bytes);
}

const NONSENSE: readonly unknown[] = [
  null,
  -1,
  1.5,
  1e308,
  2 ** 53,
  2 ** 31,
  '',
  'x'.repeat(10_000),
  '\u001b[2J\u001b]0;title\u0007',
  '__proto__',
  'rot4',
  'q8',
  true,
  [],
  {},
  [[]],
  { k: [], v: [] },
];

/** A copy in which one thing is changed: a field removed, replaced or added, an entry dropped, doubled or moved. */
export function mutate(entries: readonly Loose[], random: () => number): Loose[] {
  const whole = (n: number): number => Math.floor(random() * n);
  const copy = structuredClone(entries) as Loose[];
  const at = whole(copy.length);
  const kind = whole(12);
  if (kind === 0) copy.splice(at, 1);
  else if (kind === 1) copy.splice(at, 0, structuredClone(copy[at]!));
  else if (kind === 2) copy.push(copy.splice(at, 1)[0]!);
  else {
    // Descends to some depth, then changes one field of what it found.
    let target: Loose = copy[at]!;
    for (let depth = whole(6); depth > 0; depth--) {
      const inner = Object.values(target).filter((value) => typeof value === 'object' && value !== null);
      if (inner.length === 0) break;
      target = inner[whole(inner.length)] as Loose;
    }
    const keys = Object.keys(target);
    const key = keys[whole(keys.length)] ?? 'more';
    const nonsense = structuredClone(NONSENSE[whole(NONSENSE.length)]);
    if (kind === 3 && !Array.isArray(target)) delete target[key];
    else if (kind === 4 && !Array.isArray(target)) target[String(nonsense).slice(0, 20)] = nonsense;
    else target[key] = nonsense;
  }
  return copy;
}
