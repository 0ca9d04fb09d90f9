/**
 * Where tokens stand, told to queries and keys: each layer's own rotary embedding, or none, and the factor on queries.
 */
import { KvError } from '../../native/index.ts';
import { RopeTable } from './rope.ts';
import type { ModelConfig } from './types.ts';

/** Plans of a model that are kept for sessions to come; models whose frequencies depend on no length have one. */
const KEPT_PLANS = 4;
const kept = new WeakMap<ModelConfig, readonly Rotary[]>();

/** Shared by all sessions of a model that are planned alike. */
export class Rotary {
  /** The embedding of 'main' layers. */
  readonly main: RopeTable;
  /** What all have in common whose keys can stand beside each other, of one model. */
  readonly plan: string;
  readonly #local: RopeTable | null;
  readonly #config: ModelConfig;

  /** contextTokens: positions to plan for, as in ropeFrequencies. */
  constructor(config: ModelConfig, contextTokens: number = config.contextLength) {
    this.#config = config;
    this.main = new RopeTable(config, contextTokens);
    this.plan = this.main.plan;
    const { localRopeTheta: ropeTheta } = config;
    this.#local =
      ropeTheta === null ? null : new RopeTable({ ...config, ropeTheta, ropeScaling: { kind: 'none' } }, contextTokens);
  }

  /** Of a session that is planned for so many tokens; undefined: for the whole context. */
  static planned(config: ModelConfig, tokensExpected: number | undefined): Rotary {
    const made = new Rotary(config, Math.min(tokensExpected ?? Number.POSITIVE_INFINITY, config.contextLength));
    const known = kept.get(config) ?? [];
    const same = known.find(({ plan }) => plan === made.plan);
    if (same !== undefined) return same;
    kept.set(config, [made, ...known].slice(0, KEPT_PLANS));
    return made;
  }

  /**
   * Makes of q [tokens, H, d] and k [tokens, n, d], the first of which is at position `start`, what attention takes; in
   * place.
   */
  apply(layer: number, q: Float32Array, k: Float32Array, tokens: number, start: number): void {
    const { layerRope, queryHeads, kvHeads, queryScale } = this.#config;
    if (queryScale !== 1) for (let i = 0; i < q.length; i++) q[i]! *= queryScale;
    const kind = layerRope[layer];
    if (kind === 'none') return;
    const table = kind === 'local' ? this.#local! : this.main;
    table.apply(q, tokens, queryHeads, start);
    table.apply(k, tokens, kvHeads, start);
  }
}

/** Throws 'unsupported' unless all layers rotate keys alike, which `what` relies on. */
export function checkUniformRope(
  { layerRope, architecture }: Pick<ModelConfig, 'layerRope' | 'architecture'>,
  what: string,
): void {
  const layer = layerRope.findIndex((kind) => kind !== 'main');
  if (layer < 0) return;
  throw new KvError(
    'unsupported',
    `${what} needs one rotary embedding in all layers, and layer ${layer} of this ${architecture} model has ${layerRope[layer] === 'none' ? 'none' : 'another'}`,
    { values: { architecture, layer } },
  );
}
