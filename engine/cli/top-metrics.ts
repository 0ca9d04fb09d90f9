/** What only a running engine knows, from the metrics that it shows over HTTP: calls at work or waiting, passes. */
import { KvError } from '../../native/index.ts';

export interface TopMetrics {
  /** Calls that read or write now, and calls that wait for room. */
  readonly running: number;
  readonly waiting: number;
  /** Open sessions that are parked. */
  readonly parked: number;
  readonly bytes: number;
  readonly budgetBytes: number | null;
  /** Since the engine began: tokens of prompts, tokens that were written, passes over the weights and their tokens. */
  readonly promptTokens: number;
  readonly generatedTokens: number;
  readonly passes: number;
  readonly passTokens: number;
}

/** An engine on this machine answers within milliseconds. */
const PATIENCE_MS = 5000;
/** The text of an engine has some 20 KB. */
const BYTES_MAX = 4 << 20;

/** Throws 'bad-argument' for what is no such URL, 'io' where nobody answers or the answer is none. */
export async function readMetrics(url: string, token: string | undefined): Promise<TopMetrics> {
  const from = metricsUrl(url);
  const failed = (why: string, cause?: unknown): KvError =>
    new KvError('io', `${from.href} gives no metrics: ${why}`, {
      values: { url: from.href },
      hint: 'palimpsest serve --metrics, or serve(engine), shows them',
      cause,
    });
  let text: string;
  try {
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const answer = await fetch(from, { headers, signal: AbortSignal.timeout(PATIENCE_MS), redirect: 'error' });
    if (!answer.ok) throw failed(`it answers ${answer.status}`);
    text = await answer.text();
  } catch (cause) {
    throw cause instanceof KvError ? cause : failed((cause as Error).message, cause);
  }
  if (text.length > BYTES_MAX) throw failed('its answer is too long');
  return metricsIn(text);
}

function metricsUrl(typed: string): URL {
  const url = URL.canParse(typed) ? new URL(typed) : null;
  if (url === null || !['http:', 'https:'].includes(url.protocol))
    throw new KvError('bad-argument', `${typed} is no URL of http or https`, { values: { url: typed } });
  if (url.pathname === '/') url.pathname = '/metrics';
  return url;
}

const SAMPLE = /^palimpsest_(\w+)(?:\{[^}]*\})? (\S+)$/gm;

/** Families that a log alone cannot tell are missing where nobody runs an engine: they count as 0. */
function metricsIn(text: string): TopMetrics {
  const sums = new Map<string, number>();
  for (const [, name, value] of text.matchAll(SAMPLE)) sums.set(name!, (sums.get(name!) ?? 0) + Number(value));
  const sum = (name: string): number => sums.get(name) ?? 0;
  return {
    running: sum('num_requests_running'),
    waiting: sum('num_requests_waiting'),
    parked: sum('sessions_parked'),
    bytes: sum('kv_bytes'),
    budgetBytes: sums.get('kv_budget_bytes') ?? null,
    promptTokens: sum('prompt_tokens_total'),
    generatedTokens: sum('generation_tokens_total'),
    passes: sum('iteration_tokens_total_count'),
    passTokens: sum('iteration_tokens_total_sum'),
  };
}
