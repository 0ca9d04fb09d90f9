/** Threshold files to try things with: two layers, seeded numbers. */

import type { Learned, ThresholdFile } from '../../../memory/index.ts';
import type { ActivationCosts, Course, Estimate, Law } from '../../../policy/index.ts';

export const estimate = (value: number, sd = 0.25, samples = 3): Estimate => ({ value, sd, samples });

export const law = (scale = 1): Law => ({
  coefficient: {
    k: [estimate(0.5 * scale), estimate(3 * scale)],
    v: [estimate(0.25 * scale), estimate(1 * scale, 1, 0)],
  },
  text: estimate(1, 0.7),
  offset: estimate(0.8),
  fade: estimate(0.85, 0.05),
  epsilon: {
    k: [{ rot4: estimate(0.01), rot2: estimate(0.1) }, {}],
    v: [{ rot4: estimate(0.02) }, { rot3: estimate(0.03) }],
  },
});

export const course = (scale = 1, sessions = 3): Course => ({
  persistence: {
    k: [estimate(1.5 * scale, 0.4, sessions), estimate(0.5 * scale, 0.3, sessions)],
    v: [estimate(scale, 0.5, sessions), estimate(1, 0.5, 0)],
  },
  left: [estimate(0.6, 0.2, sessions), estimate(0.3 * scale, 0.25, sessions)],
  noise: { found: 0.5, page: 0.25, chance: 0.7 },
});

/** What activations of 8 bits cost, of so many windows. */
export const activations = (scale = 1, windows = 3): ActivationCosts => {
  const list = (nats: number): Estimate[] => [estimate(nats * scale, 0.25, windows), estimate(2 * nats, 0.25, windows)];
  const [q, k, v, o] = [list(2e-6), list(3e-6), list(8e-6), list(1e-6)];
  const [gate, up, down] = [list(4e-6), list(5e-6), list(6e-6)];
  return {
    matrices: { q, k, v, o, gate, up, down },
    output: estimate(9e-4 * scale, 0.25, windows),
    together: estimate(1.1, 0.1, windows),
  };
};

export const learned: Learned = {
  createdBy: 'palimpsest 0.1.0',
  evidence: {
    sessions: 3,
    tokens: 12_000,
    logs: [{ logId: 'abc', from: 0, to: 17, headHash: 'a'.repeat(64) }],
  },
  thresholds: {
    'price.start': {
      value: 1.25e-9,
      unit: 'KLD/byte',
      sd: 0.2,
      samples: 3,
      source: 'final thresholds of 3 sessions',
      evidence: [4, 9, 17],
    },
    'pressure.enter': { value: 0.97, unit: 'share', sd: null, samples: 0, source: 'chosen by hand', evidence: [] },
  },
  gains: { k: [1, 1.5], v: [0.75, 1] },
  c: 3.7,
  law: law(),
};

export const example: ThresholdFile = {
  model: { digest: 'sha256:00ff', shape: { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 } },
  ...learned,
  parts: [],
  signature: null,
};

/** The example as if another log had taught it: so many sessions of it, errors so much dearer. */
export const from = (logId: string, to: number, scale = 1, sessions = 3): ThresholdFile => ({
  ...example,
  law: law(scale),
  evidence: { sessions, tokens: 1000 * sessions, logs: [{ logId, from: 0, to, headHash: null }] },
});

/** The same JSON with the fields of every object in reverse. */
export function backwards(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(backwards);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([key, inner]) => [key, backwards(inner)]),
  );
}
