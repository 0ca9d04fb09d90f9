/** Tries the contract of a module before it is used, in a thread of its own, which is ended when it is late. */
import { randomInt } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import { KvError, startThread, ThreadClient } from '../../native/index.ts';
import type { ContractCalls } from './contract-worker.ts';
import type { PackManifest } from './manifest.ts';
import { type ContractReport, PACK_FAULTS } from './types.ts';

/** Fuel bounds what a module does, so only a host that has no time to give is this late. */
const DEADLINE_MS = 30_000;
const SEEDS = 4;
const HEAP_MB = 256;

/**
 * Tries what a manifest promises. Seeds are drawn anew each time, so that a module cannot have been made for them; each
 * problem says its own. Throws nothing for a module that breaks its contract: the report says it.
 */
export async function testPack(
  instrumented: Uint8Array,
  manifest: PackManifest,
  options: { readonly seeds?: readonly number[]; readonly deadlineMs?: number } = {},
): Promise<ContractReport> {
  const { seeds = Array.from({ length: SEEDS }, () => randomInt(2 ** 32)), deadlineMs = DEADLINE_MS } = options;
  const worker = startThread(new URL('./contract-worker.ts', import.meta.url), undefined, {
    maxOldGenerationSizeMb: HEAP_MB,
  });
  const client = new ThreadClient<ContractCalls>(worker, {
    thread: 'the thread of a contract',
    ended: () => new KvError('closed', 'the thread in which a contract was tried has ended'),
  });
  const isDone = new AbortController();
  const tooLate = setTimeout(deadlineMs, null, { signal: isDone.signal }).catch(() => null);
  try {
    const report = await Promise.race([client.call('test', { instrumented, manifest, seeds }), tooLate]);
    return report ?? late(deadlineMs);
  } finally {
    isDone.abort();
    client.end(new KvError('aborted', 'the contract was not tried to its end'));
    await worker.terminate();
  }
}

const late = (deadlineMs: number): ContractReport => ({
  kept: false,
  calls: 0,
  problems: [{ check: 'deadline', message: PACK_FAULTS.deadline, values: { deadlineMs } }],
  fuelPerToken: 0,
  error: 0,
});
