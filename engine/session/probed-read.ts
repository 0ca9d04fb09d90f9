/** Tokens that are read once as they are, and then again by a probe that was opened for them. */
import { KvError } from '../../native/index.ts';
import type { Governed } from '../cache/governed.ts';
import { Probe } from './probe.ts';
import type { Reader } from './reader.ts';

/** True if pages of a cache can be probed, and its policy has a use for what that finds. */
export function canProbe({ terms: { policy, context, exact }, latents, packs }: Governed): boolean {
  return policy.probes === true && !exact && latents === null && packs === null && context.latents === undefined;
}

/** Tokens that are read for a probe. */
export interface ProbedRead {
  /** Where the probe begins. */
  readonly layers: readonly number[];
  /** Reads the tokens. */
  readonly step: () => Promise<void>;
  /** Whoever reads is done with them when it aborts, also while the probe runs. */
  readonly signal: AbortSignal | undefined;
}

/**
 * Reads tokens and asks a probe of them. There must be room for the tokens already, so that the probe sees the pages
 * that they see. Throws 'aborted' between two steps of the probe; the tokens have been read by then.
 */
export async function readProbed<T>(
  reader: Reader,
  { layers, step, signal }: ProbedRead,
  ask: (probe: Probe) => Promise<T>,
): Promise<T> {
  const { governed } = reader;
  const start = performance.now();
  const turn = signal === undefined ? undefined : () => unlessUnwanted(signal);
  const probe = Probe.open(reader, governed, layers, turn);
  reader.keepFor(probe);
  try {
    governed.tally.trialsTook(performance.now() - start);
    await step();
    const again = performance.now();
    const found = await ask(probe);
    governed.tally.trialsTook(performance.now() - again);
    return found;
  } finally {
    reader.keepFor(null);
    probe.close();
  }
}

/** Gives whoever aborts a turn, and hears him. */
async function unlessUnwanted(signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
  if (signal.aborted) throw new KvError('aborted', 'aborted while the prompt was measured');
}
