/**
 * Simulates caches over a recorded run: what each would have cost in bytes, and what it would have done to the
 * attention of later queries.
 */
import { KvError, PAGE_TOKENS } from '../../native/index.ts';
import type { ThresholdSet } from '../../policy/index.ts';
import { f16CacheBytes } from '../cache/budget.ts';
import type { CacheSpec } from '../evaluate/evaluate.ts';
import { findYardstick } from '../evaluate/methods.ts';
import { parseBudget } from '../options/parse-budget.ts';
import { predictKld } from './divergence.ts';
import { Errors, laterPage } from './later.ts';
import type { Logged } from './logged.ts';
import { runPolicy } from './policy-run.ts';
import type { Trace } from './reader.ts';
import type { Simulated } from './simulated.ts';
import { runYardsticks, type YardstickRequest } from './yardstick-run.ts';

/** A trace with what every simulation over it needs: the outputs of the exact cache for later queries. */
export class Simulator {
  readonly trace: Trace;
  readonly #thresholds: ThresholdSet;
  readonly #measured: readonly Logged[];
  readonly #sketches: readonly Float32Array[];
  /** The first page whose queries are judged. */
  readonly #later: number;
  /** [later pages][layers] of [queries, H, d]. */
  readonly #exact: readonly Float32Array[][];

  /**
   * `thresholds`: of the whole model; `logged`: what sessions measured, besides what the trace has. Throws
   * 'bad-argument' for a run that is too short, and what reading a trace throws.
   */
  constructor(trace: Trace, thresholds: ThresholdSet, logged: readonly Logged[] = []) {
    this.#measured = [...logged, ...trace.measured];
    this.trace = trace;
    this.#thresholds = thresholds;
    this.#later = laterPage(trace);
    this.#sketches = trace.header.sampling.layers.map((_, layer) => trace.sketch(layer));
    const exact: Float32Array[][] = Array.from({ length: trace.pages - this.#later }, () => []);
    runPolicy(trace, { exact: true }, this.#sampled, [], (page, layer, _, outputs) => {
      if (page >= this.#later) exact[page - this.#later]![layer] = outputs;
    });
    this.#exact = exact;
  }

  /**
   * Runs caches in the order in which they come, yardsticks after policies. Throws what a session would throw,
   * 'unsupported' for an unknown policy.
   */
  *run(specs: readonly CacheSpec[]): Generator<Simulated> {
    const requests = specs.map((spec) => ({ spec, request: this.#yardstick(spec) }));
    for (const { spec, request } of requests) if (request === null) yield this.policy(spec);
    const asked = requests.flatMap(({ spec, request }) => (request === null ? [] : [{ spec, request }]));
    if (asked.length === 0) return;
    const start = performance.now();
    const later = this.#later * PAGE_TOKENS;
    const runs = runYardsticks(
      this.trace,
      asked.map(({ request }) => request),
      this.#sketches,
      later,
    );
    // What all of them share is counted in equal parts.
    const own = runs.reduce((sum, { ms }) => sum + ms, 0);
    const sharedMs = (performance.now() - start - own) / runs.length;
    for (const [at, run] of runs.entries()) {
      yield this.#report(asked[at]!.spec.name, run.errors, {
        bytes: run.bytes,
        bytesPeak: Math.max(...run.stepBytes),
        predictedKld: null,
        decisions: [],
        droppedMass: run.droppedMass / run.judged,
        seconds: (run.ms + sharedMs) / 1000,
      });
    }
  }

  /** The yardstick that a cache names; null for a policy. Throws 'bad-argument' when it has no budget in bytes. */
  #yardstick({ name, options }: CacheSpec): YardstickRequest | null {
    const yardstick = typeof options.policy === 'string' ? findYardstick(options.policy) : null;
    if (yardstick === null) return null;
    if (options.kvBudget === undefined)
      throw new KvError('bad-argument', `'${name}' needs a budget in bytes`, {
        values: { given: name },
        hint: `as in ${yardstick.id}@25%`,
      });
    const { shape, header } = this.trace;
    const f16Bytes = f16CacheBytes(shape, header.tokens);
    const budgetTokens = Math.floor((parseBudget(options.kvBudget, f16Bytes) * header.tokens) / f16Bytes);
    const laterTokens = yardstick.when === 'prompt' ? header.tokens - this.#later * PAGE_TOKENS : 0;
    if (budgetTokens <= laterTokens)
      throw new KvError('budget-too-small', `'${name}' has room for ${budgetTokens} tokens`, {
        values: { given: name, budgetTokens, laterTokens },
        hint: `${yardstick.id} chooses once and keeps all ${laterTokens} tokens that follow`,
      });
    return { yardstick, budgetTokens };
  }

  /** Runs one of our policies. Throws what its session would throw. */
  policy({ name, options }: CacheSpec): Simulated {
    const start = performance.now();
    const errors = new Errors(this.#sketches);
    const run = runPolicy(this.trace, options, this.#sampled, this.#sketches, (page, layer, rows, outputs) => {
      if (page < this.#later) return;
      const exact = this.#exact[page - this.#later]![layer]!;
      const width = outputs.length / rows.queryRows.length;
      for (const [query, norm] of rows.norms.entries()) {
        const at = query * width;
        errors.add(layer, exact.subarray(at, at + width), outputs.subarray(at, at + width), norm);
      }
    });
    return this.#report(name, errors, { ...run, droppedMass: 0, seconds: (performance.now() - start) / 1000 });
  }

  #report(
    cache: string,
    errors: Errors,
    run: Pick<Simulated, 'bytes' | 'bytesPeak' | 'predictedKld' | 'decisions' | 'droppedMass' | 'seconds'>,
  ): Simulated {
    const { header, shape } = this.trace;
    const { squares, mean } = errors;
    return {
      cache,
      ...run,
      bytesF16: f16CacheBytes(shape, header.tokens),
      epsilon: mean,
      squares,
      errorKld: predictKld(squares, header.sampling.layers, header.shape.layers, this.#thresholds),
      meanKld: this.#measured.find((one) => one.cache === cache)?.meanKld ?? null,
    };
  }

  /** The thresholds of the layers that were sampled. */
  get #sampled(): ThresholdSet {
    const { gains, law, ...rest } = this.#thresholds;
    const { layers } = this.trace.header.sampling;
    const of = <T>(list: readonly T[]): T[] => (list.length === 0 ? [] : layers.map((layer) => list[layer]!));
    const both = <T>({ k, v }: { readonly k: readonly T[]; readonly v: readonly T[] }): { k: T[]; v: T[] } => ({
      k: of(k),
      v: of(v),
    });
    const coefficients = law && { ...law, coefficient: both(law.coefficient), epsilon: both(law.epsilon) };
    return { ...rest, gains: both(gains), ...(coefficients && { law: coefficients }) };
  }
}
