/** Tokens that are read once as they are, and then again by a probe that was opened for them. */
import type { Governed } from '../cache/governed.ts';
import { Probe } from './probe.ts';
import type { Reader } from './reader.ts';

/** True if pages of a cache can be probed, and its policy has a use for what that finds. */
export function canProbe({ terms: { policy, context, exact }, latents }: Governed): boolean {
  return policy.probes === true && !exact && latents === null && context.latents === undefined;
}

/**
 * Reads tokens, which is what `step` does, and asks a probe of them, which begins at these layers. There must be room
 * for the tokens already, so that the probe sees the pages that they see.
 */
export async function readProbed<T>(
  reader: Reader,
  layers: readonly number[],
  step: () => Promise<void>,
  ask: (probe: Probe) => Promise<T>,
): Promise<T> {
  const { governed, runtime, rotary } = reader;
  const start = performance.now();
  const probe = Probe.open(runtime, governed, rotary, layers);
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
