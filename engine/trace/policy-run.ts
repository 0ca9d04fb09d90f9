/**
 * Runs one of our policies over a trace: the real policy, trials and moves on a real cache, with recorded rows and
 * queries where a model would have computed them. One step is one page, as when a prompt is read, so a run that was
 * recorded under a policy is decided here as it was then.
 */
import type { Policy, ThresholdSet } from '../../policy/index.ts';
import { Governed } from '../cache/governed.ts';
import { makeRoom, settle } from '../cache/step.ts';
import { type TermsRequest, termsOf } from '../cache/terms.ts';
import type { Trace, TracePage } from './reader.ts';
import type { SimulatedDecision } from './simulated.ts';

export interface PolicyRun {
  readonly bytes: readonly number[];
  readonly bytesPeak: number;
  /** null where the policy measures nothing. */
  readonly predictedKld: number | null;
  readonly decisions: readonly SimulatedDecision[];
}

/** What attention gave the queries of one page, [queries, H, d]. */
export type OnOutputs = (page: number, layer: number, rows: TracePage, outputs: Float32Array) => void;

/**
 * `thresholds`: of the layers of the trace. Throws 'budget-too-small' and what else a plan or a session refuses, and
 * what reading a trace throws.
 */
export function runPolicy(
  trace: Trace,
  request: TermsRequest,
  thresholds: ThresholdSet,
  sketches: readonly Float32Array[],
  onOutputs: OnOutputs,
): PolicyRun {
  const { shape, header } = trace;
  const slidingWindow = header.sampling.layers.map((layer) => header.slidingWindow[layer]!);
  const effective = termsOf(shape, { ...request, slidingWindow, tokensExpected: header.tokens }, thresholds);
  const decisions: SimulatedDecision[] = [];
  const terms = { ...effective, policy: watched(effective.policy, (made) => decisions.push(made)) };
  const cache = Governed.open({
    shape,
    terms,
    native: { slidingWindow },
    sketches: terms.policy.needsTrials ? sketches : [],
    log: null,
    opened: { model: { ...header.model, architecture: 'trace' }, requested: {}, effective: {} },
  });
  try {
    const bytes: number[] = [];
    for (let page = 0; page < trace.pages; page++) {
      for (let layer = 0; layer < shape.layers; layer++) {
        const rows = trace.page(page, layer);
        if (layer === 0) makeRoom(cache, rows.tokens);
        cache.append(layer, rows.k, rows.v, undefined);
        onOutputs(page, layer, rows, attend(cache, layer, rows));
        if (layer + 1 === shape.layers) settle(cache, rows.tokens);
      }
      bytes.push(cache.usedBytes);
    }
    const predictedKld = terms.policy.needsTrials ? cache.summary.predictedKld : null;
    return { bytes, bytesPeak: cache.peakBytes, predictedKld, decisions };
  } finally {
    cache.close();
  }
}

/**
 * Asks the recorded queries where they stood among those of the page, so that the cache keeps the ones that it would
 * have kept. → [queries, H, d]
 */
function attend(cache: Governed, layer: number, { tokens, queryRows, q, norms }: TracePage): Float32Array {
  const width = cache.shape.queryHeads * cache.shape.headDim;
  const queries = new Float32Array(tokens * width);
  const xNorms = new Float32Array(tokens);
  for (const [query, row] of queryRows.entries()) {
    queries.set(q.subarray(query * width, (query + 1) * width), row * width);
    xNorms[row] = norms[query]!;
  }
  const all = new Float32Array(tokens * width);
  cache.kv.attend(layer, queries, all, { xNorms });
  const outputs = new Float32Array(queryRows.length * width);
  for (const [query, row] of queryRows.entries())
    outputs.set(all.subarray(row * width, (row + 1) * width), query * width);
  return outputs;
}

/** The same policy, whose verdicts somebody hears. */
export function watched(policy: Policy, onVerdict: (made: SimulatedDecision) => void): Policy {
  return {
    ...policy,
    open: (context) => {
      const session = policy.open(context);
      let tokens = 0;
      return {
        decide: (situation) => {
          tokens = situation.tokens;
          return session.decide(situation);
        },
        judge: (decision, epsilonNow) => {
          const verdict = session.judge(decision, epsilonNow);
          onVerdict({ tokens, decision, epsilonNow, verdict });
          return verdict;
        },
        summary: () => session.summary(),
      };
    },
  };
}
