/**
 * What an engine counts about itself. The names are those that operators of inference servers know; labels are from
 * closed sets, so that nothing of a prompt, a path, a model or a session can ever be in them. What belongs to one
 * session or layer is in the log.
 */
import { FORMAT_NAMES, FORMATS, LATENT_NAMES, TIERS } from '../../native/index.ts';
import {
  type Decision,
  isLatent,
  type LayerChange,
  type PageForm,
  RUNG_IDS,
  regionIn,
  type Verdict,
} from '../../policy/index.ts';
import { type TellEvent, untold } from '../events/event.ts';
import { OwnTime } from './own-time.ts';
import { type Labels, Registry } from './registry.ts';

export const PREFIX = 'palimpsest_';

/**
 * Rules by which the policies of this package plan and refuse moves; a policy of a caller's own has rules that nobody
 * knows: 'other'.
 */
export const REASONS = [
  'price',
  'deficit',
  'kld-gives-way',
  'low-memory',
  'quality-gives-way',
  'put-back',
  'age',
  'uniform',
  'tier-hot',
  'tier-warm',
  'tier-cold',
  'streaming-pages',
  'h2o-pages',
  'snapkv-pages',
  'pyramidkv-pages',
  'scissorhands-pages',
  'fixed',
  'table',
  'trial-again',
  'other',
] as const;
type Reason = (typeof REASONS)[number];

const DECISION_LABELS = { action: ['demote', 'promote', 'latent', 'evict', 'refuse'], reason: REASONS } as const;
/**
 * The tiers of the formats, what is not a sealed page, and what is kept beside pages: originals, which are measured
 * again, and latents, from which keys and values can be made again; and sessions that wait parked in memory, their
 * pages predicted.
 */
const kvLabels = () =>
  ({
    tier: ['open', 'sinks', ...TIERS, 'latent', 'kept', 'parked'],
    dtype: [...FORMAT_NAMES, ...LATENT_NAMES, 'predicted'],
  }) as const;
export type KvLabels = Labels<ReturnType<typeof kvLabels>>;

export const FALLBACKS = ['kernels', 'dense', 'activations', 'byte-budget', 'kld-budget', 'shared'] as const;
export type Fallback = (typeof FALLBACKS)[number];

/** States that layers come to, by region; what they begin with is none of them. */
const LAYER_STATES = {
  quality: ['healthy', 'watched', 'degraded', 'recovering'],
  trust: ['trusted', 'watched'],
} as const;
const LAYER_LABELS = {
  region: ['quality', 'trust'],
  state: [...new Set([...LAYER_STATES.quality, ...LAYER_STATES.trust])],
} as const;

/** Where sessions that wait are parked. */
export const IDLE_PLACES = ['memory', 'disk', 'reread'] as const;

/** Auxiliary models, and how they are: 'restarting' are those that failed and have not answered since. */
export const HELPERS = ['kinds', 'places'] as const;
export const HELPER_STATES = ['stopped', 'running', 'restarting', 'broken'] as const;

/** Reasons for which a session ends. */
const ENDS = ['done', 'aborted', 'error'] as const;

const APPEND_BOUNDS = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1, 1, 10];
const FIRST_BOUNDS = [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320];
const BETWEEN_BOUNDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2.5];
const ROW_BOUNDS = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const KLD_BOUNDS = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1];

const reasonOf = (rule: string): Reason => ((REASONS as readonly string[]).includes(rule) ? (rule as Reason) : 'other');

function actionOf({ from, to }: Decision): 'demote' | 'promote' | 'latent' | 'evict' {
  if (to === 'freed') return 'evict';
  if (isLatent(to)) return 'latent';
  return !isLatent(from) && FORMATS[to].rank < FORMATS[from].rank ? 'promote' : 'demote';
}

/** The tier of a sealed page side in this form. */
export const tierOf = (form: PageForm): KvLabels['tier'] => (isLatent(form) ? 'latent' : FORMATS[form].tier);

/**
 * The metrics of one engine, or of the sessions that a log tells of, and who is told of its events. Counting is a few
 * additions; nothing is computed before the text is asked for.
 */
export class Meter {
  readonly #registry = new Registry(PREFIX);
  readonly kvBytes = this.#registry.gauge(
    'kv_bytes',
    'Bytes of attention keys and values that sessions hold now. Pages that forks share count once.',
    kvLabels(),
  );
  readonly usage = this.#registry.gauge(
    'kv_cache_usage_ratio',
    'Bytes of keys and values of the sessions that have a budget, as a share of their budgets.',
    {},
  );
  readonly budget = this.#registry.gauge(
    'kv_budget_bytes',
    'Most bytes of keys and values that all sessions may hold together.',
    {},
  );
  readonly roomWaits = this.#registry.counter(
    'room_waits_total',
    'Times that a call waited until others left it room for its keys and values.',
    {},
  );
  readonly roomRefusals = this.#registry.counter(
    'room_refusals_total',
    'Calls that were refused, or ended, because the others left no room for their keys and values.',
    {},
  );
  readonly roomShortages = this.#registry.counter(
    'room_shortages_total',
    'Calls that began though there was no room to their end as everything was: pages go lower, or sessions are parked.',
    {},
  );
  readonly foundBytes = this.#registry.counter(
    'pool_found_bytes_total',
    'Bytes that were found for sessions where memory was short, by the rung of the ladder that had them.',
    { rung: RUNG_IDS },
  );
  readonly reclaimedBytes = this.#registry.counter(
    'pool_reclaimed_bytes_total',
    'Bytes that sessions which wait left when they were parked because others needed them.',
    {},
  );
  readonly refaultedBytes = this.#registry.counter(
    'pool_refaulted_bytes_total',
    'Those of them whose session was used again within 256 steps.',
    {},
  );
  readonly refaultRatio = this.#registry.gauge(
    'pool_refault_ratio',
    'Refaulted bytes over reclaimed ones, of the newest 256 steps that are complete.',
    {},
  );
  readonly #poolSeconds = this.#registry.counter(
    'pool_deciding_seconds_total',
    'Time in which it was decided who may begin, whose pages go lower and who is parked, without doing it.',
    {},
  );
  /** Time in which the pool decides. */
  readonly poolDeciding = new OwnTime((seconds) => this.#poolSeconds.add({}, seconds));
  readonly concurrencyLimit = this.#registry.gauge(
    'concurrency_limit',
    'Calls that are let work at once because of that ratio; +Inf: as many as there is room for.',
    {},
  );
  readonly sessions = this.#registry.gauge('sessions_open', 'Sessions that are open now.', {});
  readonly parked = this.#registry.gauge(
    'sessions_parked',
    'Open sessions that wait parked, because memory was short.',
    { place: IDLE_PLACES },
  );
  readonly fetchedAhead = this.#registry.counter(
    'sessions_fetched_ahead_total',
    'Parked sessions whose pages were back before their call began, which waited in line.',
    {},
  );
  readonly ended = this.#registry.counter('sessions_ended_total', 'Sessions that ended, by how.', { end: ENDS });
  readonly #decisions = this.#registry.counter(
    'decisions_total',
    'Planned moves of page sides: what was done, and the rule that planned it, or refused it after its trial.',
    DECISION_LABELS,
  );
  readonly dropped = this.#registry.counter(
    'decisions_dropped_total',
    'Decisions that were made and are not in the log, whatever the cause.',
    {},
  );
  readonly appendSeconds = this.#registry.histogram(
    'log_append_seconds',
    'Time that adding one entry to the log took of the thread that makes tokens.',
    APPEND_BOUNDS,
  );
  readonly unanchored = this.#registry.gauge(
    'log_unanchored_records',
    'Entries behind the last checkpoint that was delivered outside the log.',
    {},
  );
  readonly mismatches = this.#registry.counter(
    'effective_dtype_mismatch_total',
    'Moves after which a page side was not in the format that was decided. Always 0, or there is a fault.',
    {},
  );
  readonly fallbacks = this.#registry.counter(
    'fallback_total',
    'Times that something else was used than what was asked for or would have been better.',
    { reason: FALLBACKS },
  );
  readonly kld = this.#registry.histogram(
    'quality_kld',
    'Mean divergence from the exact cache, in nats, of each session that ended and had measured it.',
    KLD_BOUNDS,
  );
  readonly brokenDivergence = this.#registry.counter(
    'stated_divergence_broken_total',
    'Times that the divergence expected of the moves of a session came to exceed what was stated for it.',
    {},
  );
  readonly growingCaches = this.#registry.counter(
    'growth_without_end_total',
    'Sessions whose cache was found to grow without end: at its pace it reaches the limit before the context ends.',
    {},
  );
  readonly #layerChanges = this.#registry.counter(
    'layer_changes_total',
    'Times that a layer of a session came to a state: of its quality (measured errors beside those promised), or of its trust (trials beside what earlier sessions told).',
    LAYER_LABELS,
  );
  readonly firstTokenSeconds = this.#registry.histogram(
    'time_to_first_token_seconds',
    'Time from a prompt to the first token after it.',
    FIRST_BOUNDS,
  );
  readonly betweenTokensSeconds = this.#registry.histogram(
    'inter_token_latency_seconds',
    'Time from one generated token to the next.',
    BETWEEN_BOUNDS,
  );
  readonly passTokens = this.#registry.histogram(
    'iteration_tokens_total',
    'Tokens of each pass over the weights, of all sessions that were in it.',
    ROW_BOUNDS,
  );
  readonly passSeconds = this.#registry.histogram(
    'scheduler_pass_seconds',
    'Time of each pass over the weights, with the decisions that followed it.',
    BETWEEN_BOUNDS,
  );
  readonly running = this.#registry.gauge('num_requests_running', 'Calls that read or write now.', {});
  readonly waiting = this.#registry.gauge(
    'num_requests_waiting',
    'Calls that wait: for room for their keys and values, or until fewer are at work.',
    {},
  );
  readonly promptTokens = this.#registry.counter('prompt_tokens_total', 'Tokens of prompts that were read.', {});
  readonly prefixQueries = this.#registry.counter(
    'prefix_cache_queries_total',
    'Tokens that sessions began with and that pages of others were asked for.',
    {},
  );
  readonly prefixHits = this.#registry.counter(
    'prefix_cache_hits_total',
    'Tokens that sessions began with and need not read, since others held their pages.',
    {},
  );
  readonly prefixBytes = this.#registry.gauge(
    'prefix_cache_bytes',
    'Bytes of pages of sessions that were closed, which stay for those that begin alike until their memory is needed.',
    {},
  );
  readonly helpers = this.#registry.gauge(
    'helpers',
    'Auxiliary models by how they are: not started, running, failed and to be started again, or left alone for good.',
    { state: HELPER_STATES },
  );
  readonly helperFailures = this.#registry.counter(
    'helper_failures_total',
    'Times that an auxiliary model failed, so that its process was ended.',
    { helper: HELPERS },
  );
  readonly generatedTokens = this.#registry.counter('generation_tokens_total', 'Tokens that were generated.', {});

  /** Tells what is no number. */
  readonly tell: TellEvent;

  /** `fallbacks`: those that this meter can see. They are counted from 0, so that the first is seen as a rise. */
  constructor(fallbacks: readonly Fallback[] = FALLBACKS, tell: TellEvent = untold) {
    this.tell = tell;
    for (const one of [
      ...[this.dropped, this.mismatches, this.roomWaits, this.roomRefusals, this.roomShortages],
      ...[this.brokenDivergence, this.growingCaches],
      ...[this.promptTokens, this.generatedTokens, this.prefixQueries, this.prefixHits],
      ...[this.reclaimedBytes, this.refaultedBytes, this.fetchedAhead],
    ])
      one.add({}, 0);
    this.#poolSeconds.add({}, 0);
    for (const rung of RUNG_IDS) this.foundBytes.add({ rung }, 0);
    for (const reason of fallbacks) this.fallbacks.add({ reason }, 0);
    for (const region of LAYER_LABELS.region)
      for (const state of LAYER_STATES[region]) this.#layerChanges.add({ region, state }, 0);
  }

  /** Counts a planned move, made or refused. */
  decision(decision: Decision, verdict: Verdict): void {
    const { accepted } = verdict;
    this.#decisions.add({
      action: accepted ? actionOf(decision) : 'refuse',
      reason: reasonOf((accepted ? decision : verdict).because.rule),
    });
  }

  /** Counts that a layer's quality or trust is in another state. What no machine of ours is in is left out. */
  layerChanged({ source, state }: Pick<LayerChange, 'source' | 'state'>): void {
    const region = source === 'agreement' ? 'trust' : 'quality';
    const reached = LAYER_LABELS.state.find((one) => one === regionIn(state, region));
    if (reached !== undefined) this.#layerChanges.add({ region, state: reached });
  }

  /** The text for Prometheus, of the families with these names (without their prefix) or of all. */
  text(names?: readonly string[]): string {
    return this.#registry.text(names === undefined ? undefined : new Set(names.map((name) => PREFIX + name)));
  }
}
