/**
 * Entries of a session with as many decisions as wanted, as a log would give them: 30 layers whose pages go down a
 * ladder one after the other.
 */

import { machineDigest } from '../../../policy/index.ts';
import type { Entry, EntryBodies, EntryKind } from '../../../witness/index.ts';
import { mulberry32 } from '../../random.ts';
import { contextOf } from '../../suite/policy-simulation.ts';

const LAYERS = 30;
const LADDER = ['q8', 'rot4', 'rot3', 'rot2'] as const;
/** Decisions of one situation. */
const AT_ONCE = 180;

export function* longSession(decisions: number, model = 'long-model'): Generator<Entry> {
  const context = contextOf({ layers: LAYERS });
  const chance = mulberry32(12);
  let seq = 0;
  let timeMs = Date.UTC(2026, 0, 31);
  const entry = <K extends EntryKind>(kind: K, body: EntryBodies[K]): Entry => ({
    seq: seq++,
    timeMs: timeMs++,
    session: '01a20506-3b02-7000-b24f-425c81a47fb2',
    kind,
    body,
  });
  yield entry('open', {
    model: { name: model, digest: 'd'.repeat(64), architecture: 'llama' },
    shape: { layers: LAYERS, queryHeads: 9, kvHeads: 3, headDim: 64 },
    policy: { id: 'price', version: 3, options: {}, machine: machineDigest() },
    context,
    requested: { kvBudget: '25%' },
    effective: { budgetBytes: 10 ** 9 },
  });
  let bytes = 0;
  let made = 0;
  let refused = 0;
  for (let index = 0; made < decisions; index++) {
    const tokens = 128 * (index + 2);
    bytes += 2 * LAYERS * context.pageBytes.q8;
    const trials = Array.from({ length: 2 * LAYERS }, (_, i) => ({
      layer: i >> 1,
      page: index,
      side: i % 2 === 0 ? ('k' as const) : ('v' as const),
      from: 'q8' as const,
      epsilon: { rot4: 1e-4 * (1 + chance()), rot3: 2e-4 * (1 + chance()), rot2: 4e-4 * (1 + chance()) },
    }));
    const canaries = index % 4 !== 3 ? {} : { canaries: [canaryOf(index, chance())] };
    yield entry('situation', {
      situation: {
        index,
        tokens,
        bytes,
        sealBytes: 2 * LAYERS * context.pageBytes.q8,
        budgetBytes: 10 ** 9,
        kldBudget: null,
        tokensExpected: null,
        movesMax: 256,
        urgent: false,
        lowMemory: false,
        stepLatencyMsP95: 5 + chance(),
        stepLatencyBudgetMs: null,
        trials,
        outcomes: [],
        ...canaries,
      },
    });
    if (index === 3) {
      const state = 'archive/degraded/elevated/tight';
      const change = {
        layer: 3,
        state,
        threshold: 'quality.degraded',
        measured: 2.5,
        bound: 2,
        source: 'error' as const,
      };
      yield entry('note', { layerChanges: [change], tokens });
      yield entry('note', { gaveWay: 'kld', tokens, budgetBytes: 1, kldBudget: 0.1 });
    }
    for (let order = 0; order < AT_ONCE && made < decisions; order++) {
      const step = Math.floor(order / (2 * LAYERS));
      const page = index - step;
      if (page < 0) continue;
      made++;
      const [from, to] = [LADDER[step]!, LADDER[step + 1]!];
      const accepted = chance() < 0.98;
      const [measured, bound] = [1e-10 * chance(), 1e-10];
      const because = { threshold: 'price.slack', measured, bound, unit: 'KLD/byte', origin: 'default' as const };
      const bytesFreed = context.pageBytes[from] - context.pageBytes[to];
      const bytesBefore = bytes;
      if (accepted) bytes -= bytesFreed;
      else refused++;
      yield entry('decision', {
        situation: index,
        order,
        decision: {
          layer: (order >> 1) % LAYERS,
          page,
          side: order % 2 === 0 ? 'k' : 'v',
          from,
          to,
          epsilonFrom: 1e-4 * chance(),
          epsilonTo: 2e-4 * (1 + chance()),
          price: measured,
          bytesFreed,
          retry: false,
          because: { ...because, threshold: 'pressure.critical', unit: 'share', rule: 'deficit' },
        },
        epsilonNow: null,
        verdict: { accepted, because: { ...because, rule: accepted ? 'fresh-trial' : 'trial-again' } },
        bytesBefore,
        bytesAfter: bytes,
        tokens,
      });
    }
  }
  yield entry('close', {
    tokens: 128 * (Math.ceil(decisions / AT_ONCE) + 2),
    kvBytes: bytes,
    kvBytesF16: 4 * bytes,
    effectiveBits: 4,
    decisions,
    refused,
    priceThreshold: 1e-10,
    predictedKld: 0.01,
    meanKld: null,
    fingerprint: [],
    gains: context.thresholds.gains,
    c: 4,
    reason: 'done',
  });
}

const canaryOf = (index: number, share: number) => ({
  layer: index % LAYERS,
  page: Math.max(0, index - 2),
  side: 'k' as const,
  from: 'q8' as const,
  to: 'rot4' as const,
  epsilonPromised: 2e-4,
  epsilonNow: 4e-4 * share,
  age: 256,
});
