/** Asks a running engine for its metrics over HTTP. */
import { KvError } from '../../native/index.ts';
import type { TopMetrics } from '../serve/page/snapshot.ts';
import { metricsIn } from '../serve/top-metrics.ts';

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
