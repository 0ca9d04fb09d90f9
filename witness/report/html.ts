/** The page around the facts: what a reader needs without a script, and the places that the script fills. */

import { createHash } from 'node:crypto';
import { brief, bytesText, grouped, percent, plural, timeText } from '../../native/index.ts';
import { predictedBy } from '../../policy/index.ts';
import { activationText } from '../activation-text.ts';
import { anchorText, lacksText } from '../audit.ts';
import type { ReplayReport } from '../replay.ts';
import type { VerifyReport } from '../types.ts';
import { type Collected, f16Bytes } from './collect.ts';
import { escaped } from './escaped.ts';
import type { CollectedPool } from './pool.ts';
import { poolHtml } from './pool-html.ts';
import { STYLE } from './style.ts';

/** What was found out about the log that the session stands in. */
export interface Checked {
  readonly verified: VerifyReport;
  /** null: the policy is not known here, so that nothing can be decided again. */
  readonly replayed: ReplayReport | null;
  /** The memory that the session shared; left out: nobody asked for bytes while it was open. */
  readonly pool?: CollectedPool | null;
}

/** JSON that cannot end the element that it stands in. */
const embedded = (value: unknown): string =>
  JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );

const digest = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** The whole page. Its policy allows one script and one style sheet, both in it, and nothing from anywhere else. */
export function reportHtml(collected: Collected, checked: Checked, script: string): string {
  const { open } = collected;
  const { pool = null } = checked;
  const data = { ...collected.data, pool: pool?.data ?? null };
  const title = `${escaped(open.body.model.name)}, session ${escaped(data.session.slice(-8))}`;
  const policy = `default-src 'none'; script-src ${digest(script)}; style-src ${digest(STYLE)}; base-uri 'none'; form-action 'none'`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>${title}: palimpsest report</title>
<style>${STYLE}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
${headHtml(collected, checked)}
<main id="main">
${SECTIONS}
${pool === null ? '' : poolHtml(pool, data.session)}
${recordHtml(collected, checked)}
</main>
<script type="application/json" id="data">${embedded(data)}</script>
<script type="module">${script}</script>
</body>
</html>
`;
}

/** Bytes, tokens and the like of the whole session: of its end, or of what was seen last. */
function totalsOf({ open, close, data, bytesPeak }: Collected) {
  const { tokens } = data;
  const kvBytes = close?.body.kvBytes ?? bytesPeak;
  const kvBytesF16 = close?.body.kvBytesF16 ?? f16Bytes(open.body, tokens);
  const share = kvBytesF16 === 0 ? 0 : kvBytes / kvBytesF16;
  return { tokens, kvBytes, kvBytesF16, share, bits: close?.body.effectiveBits ?? 16 * share };
}

function durationText(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Two or three sentences that somebody understands who does not know the program. */
function summaryOf(collected: Collected, checked: Checked): string {
  const { open, close, data, budgetBytes, refused } = collected;
  const { tokens, kvBytes, kvBytesF16, share } = totalsOf(collected);
  const kept = share >= 1 ? 'no less than' : `${percent(share)} of`;
  const budget = budgetBytes === null ? '' : `, within a budget of ${bytesText(budgetBytes)}`;
  const first = `The KV cache of ${open.body.model.name} held ${plural(tokens, 'token')} in at most ${bytesText(kvBytes)}: ${kept} the ${bytesText(kvBytesF16)} that they take in 16 bits${budget}.`;
  const moves =
    data.decisionCount === 0
      ? 'No page was moved to another format.'
      : `Policy ‘${open.body.policy.id}’ planned ${plural(data.decisionCount, 'move')} of pages to other formats and made ${refused === 0 ? 'all of them' : `all but ${grouped(refused)} of them`}.`;
  return [
    first,
    moves,
    divergenceText(close?.body.meanKld ?? null, predictedIn(collected)),
    stateText(collected, checked),
  ]
    .filter((text) => text !== '')
    .join(' ');
}

/** A small number without an exponent, which not everybody reads. */
const plain = (value: number): string =>
  Math.abs(value) < 1e-6 ? brief(value, 2) : value.toFixed(Math.max(2, 1 - Math.floor(Math.log10(Math.abs(value)))));

/** What the policy predicted by the end of a session; null: nothing, or there is no end yet. */
const predictedIn = ({ open, close }: Collected): number | null =>
  close === null ? null : predictedBy(open.body.policy.id, close.body.predictedKld);

function divergenceText(measured: number | null, predicted: number | null): string {
  if (measured !== null)
    return `Compared with the exact cache, its answers diverged by ${plain(measured)} nats per token on average.`;
  return predicted === null || predicted === 0
    ? ''
    : `The policy expects answers to diverge by ${plain(predicted)} nats per token; this was not measured.`;
}

function stateText({ close }: Collected, { verified }: Checked): string {
  if (!verified.ok)
    return 'The log is not sound, so this page proves nothing: it shows what can be read, and the record at its end says what is wrong.';
  if (close === null) return 'The session has not ended, or was killed.';
  if (close.body.reason === 'error') return 'The session ended with an error.';
  return close.body.reason === 'aborted' ? 'The session was interrupted.' : '';
}

const figure = (name: string, value: string, more: string): string =>
  `<div><dt>${escaped(name)}</dt><dd>${escaped(value)}<small>${escaped(more)}</small></dd></div>`;

const partsOf = ({ pool }: Checked): readonly (readonly [id: string, name: string])[] => [
  ...([
    ['memory', 'Memory'],
    ['tiers', 'Tier map'],
    ['decisions', 'Decisions'],
    ['errors', 'Errors'],
  ] as const),
  ['latency', 'Latency'],
  ...(pool == null ? [] : ([['pool', 'Shared memory']] as const)),
  ['record', 'The record'],
];

function headHtml(collected: Collected, checked: Checked): string {
  const { open, close, data, budgetBytes, kldBudget, lastMs, refused } = collected;
  const { tokens, kvBytes, kvBytesF16, share, bits } = totalsOf(collected);
  const { policy } = open.body;
  const predicted = predictedIn(collected);
  const shares = checked.verified.ok ? logText(checked) : 'not sound.';
  const ended = close === null ? 'not ended' : close.body.reason;
  const budget =
    budgetBytes === null ? (kldBudget === null ? 'none' : `${brief(kldBudget, 3)} nats`) : bytesText(budgetBytes);
  const budgetMore =
    budgetBytes === null
      ? kldBudget === null
        ? 'pages stay in the window format'
        : 'of divergence'
      : `${percent(budgetBytes / Math.max(1, kvBytesF16))} of f16 at the end${kldBudget === null ? '' : `; ${brief(kldBudget, 3)} nats`}`;
  const figures = [
    figure('KV cache at its peak', bytesText(kvBytes), `${percent(share)} of ${bytesText(kvBytesF16)} in f16`),
    figure('Bits per number', bits.toFixed(2), 'window, sinks and metadata included'),
    figure('Budget', budget, budgetMore),
    figure(
      'Divergence, measured',
      close?.body.meanKld == null ? '–' : plain(close.body.meanKld),
      close?.body.meanKld == null ? 'no comparison was run' : 'nats, mean over compared tokens',
    ),
    figure(
      'Divergence, predicted',
      predicted === null ? '–' : plain(predicted),
      close !== null && predicted === null ? 'the policy predicts nothing' : 'nats, by the law of the policy',
    ),
    figure(
      'Tokens',
      grouped(tokens),
      `${plural(open.body.shape.layers, 'layer')}, ${plural(open.body.shape.kvHeads, 'KV head')} of ${open.body.shape.headDim}`,
    ),
    figure(
      'Decisions',
      grouped(data.decisionCount),
      `${grouped(refused)} refused; policy ${policy.id}, version ${policy.version}`,
    ),
    figure('Time', durationText(lastMs - open.timeMs), `from ${timeText(open.timeMs)}; ${ended}`),
  ];
  return `<header>
<p class="kicker">palimpsest report, session ${escaped(data.session)}</p>
<h1>${escaped(open.body.model.name)}</h1>
<p class="summary">${escaped(summaryOf(collected, checked))}</p>
<dl class="figures">
${figures.join('\n')}
</dl>
<p class="note${checked.verified.ok ? '' : ' bad'}">Log: ${escaped(shares)} <a href="#record">The record</a> says what this proves.</p>
<nav aria-label="Parts of the report"><ul>${partsOf(checked)
    .map(([id, name]) => `<li><a href="#${id}">${name}</a></li>`)
    .join('')}</ul></nav>
<noscript><p class="bad">The charts, the map and the list of decisions need the script that is part of this file.</p></noscript>
</header>`;
}

function logText({ verified, replayed }: Checked): string {
  const signed = verified.anchor === undefined ? '' : ' It has all that was signed.';
  const sound = `sound, ${plural(verified.entries, 'entry', 'entries')} chained.${signed}`;
  if (replayed === null) return `${sound} The policy is not built in, so its decisions were not taken again.`;
  if (!replayed.equal) return `${sound} Taken again from the log, decisions differ.`;
  return `${sound} Taken again from the log, all ${grouped(replayed.decisions)} decisions come out the same, byte for byte.`;
}

const SECTIONS = `<p id="live" class="hidden-text" aria-live="polite"></p>
<section id="memory" aria-labelledby="h-memory">
<h2 id="h-memory">Memory</h2>
<p class="note">Bytes of keys and values, originals that are kept to check on them included, as the cache grows.</p>
<div id="memory-chart" class="plot"></div>
</section>
<section id="tiers" aria-labelledby="h-tiers">
<h2 id="h-tiers">Tier map</h2>
<p class="note">Layers downwards, positions to the right, a cell for each page of tokens. The more ink, the more bits; the number in a cell says how many.</p>
<ul id="legend" class="legend"></ul>
<div class="maps">
<figure><h3>Keys</h3><div id="map-k"></div></figure>
<figure><h3>Values</h3><div id="map-v"></div></figure>
</div>
<p id="cell" class="cell">Point at a cell, or walk over the map with the arrow keys.</p>
<div class="scrub" role="group" aria-label="Moment of the run">
<button type="button" id="play">Play</button>
<input type="range" id="scrubber" min="0" max="0" value="0" aria-label="Moment of the run">
<output id="moment" for="scrubber"></output>
</div>
<details id="map-table"><summary>As a table</summary></details>
<div id="printed-maps" class="printed print-only"></div>
</section>
<section id="decisions" aria-labelledby="h-decisions">
<h2 id="h-decisions">Decisions</h2>
<p class="note screen">One row for each move that was planned. Enter or a click explains it.</p>
<form id="filters">
<label>Layer <select id="ask-layer"><option value="">all</option></select></label>
<label>Page <input id="ask-page" type="number" min="0" placeholder="all" inputmode="numeric"></label>
<label>Side <select id="ask-side"><option value="">all</option></select></label>
<label>Format <select id="ask-form"><option value="">all</option></select></label>
<label>Reason <select id="ask-reason"><option value="">all</option></select></label>
<label>Verdict <select id="ask-outcome"><option value="">all</option><option value="1">made</option><option value="0">refused</option></select></label>
<button type="reset">Show all</button>
</form>
<p id="count" class="note screen" aria-live="polite"></p>
<div class="browse">
<div id="list" role="grid" tabindex="0" aria-label="Decisions" aria-colcount="8"></div>
<div id="detail" role="region" aria-label="Explanation of the chosen decision"></div>
</div>
<div id="printed-decisions"></div>
</section>
<section id="errors" aria-labelledby="h-errors">
<h2 id="h-errors">Errors</h2>
<p id="no-errors" hidden>No move of this session rests on a trial, so there is no error to compare with a bound.</p>
<div id="errors-drawn">
<h3>Against the bound, by layer</h3>
<p class="note">What each move was predicted to cost, as a share of the bound that it was judged by: from the least to the most of the moves that were made, a tick at the median, a cross for each that was refused.</p>
<div id="error-chart" class="plot"></div>
</div>
<h3>Against originals that were kept</h3>
<p id="no-canaries" class="note" hidden>Nothing that was kept of originals was measured again in this session.</p>
<div id="canaries-drawn">
<p class="note">The error of demoted pages for the queries of that moment, over the error that was promised when they were moved. Circles are keys, squares values. <span id="canary-sum"></span></p>
<div id="canary-chart" class="plot"></div>
</div>
<h3>Quality of layers, and what else happened</h3>
<p id="no-happenings" class="note" hidden>Every layer stayed healthy, and no budget gave way.</p>
<div class="scroll" id="happenings" tabindex="0" role="region" aria-label="Quality of layers over time"><table class="words"><thead><tr><th scope="col">tokens</th><th scope="col">layer</th><th scope="col">quality</th><th scope="col">why</th></tr></thead><tbody></tbody></table></div>
</section>
<section id="latency" aria-labelledby="h-latency">
<h2 id="h-latency">Latency</h2>
<p id="no-latency" class="note" hidden>The log of this session has no step latencies: they are recorded where at least twenty single tokens were generated before something was decided.</p>
<div id="latency-drawn"><p id="latency-sum" class="note"></p><div id="latency-chart" class="plot"></div></div>
</section>`;

function recordHtml({ open, entries }: Collected, { verified, replayed }: Checked): string {
  const { activations } = open.body;
  const { problem, logId, headHash, segments } = verified;
  const facts: [string, string][] = [
    ['Log', logId ?? 'not begun'],
    [
      'State',
      problem === null
        ? `sound: ${plural(verified.entries, 'entry', 'entries')} in ${plural(segments, 'segment')}`
        : `NOT SOUND after ${plural(verified.entries, 'sound entry', 'sound entries')}: ${problem.what}`,
    ],
    ['Head', headHash],
    ['Replay', replayText(replayed)],
    [
      'This session',
      `${plural(entries, 'entry', 'entries')}, the first is ${grouped(open.seq)}${replayed?.missing ? `; the log lacks ${lacksText(replayed)}` : ''}`,
    ],
    ['Checkpoints', anchorText(verified.anchor)],
    ['Model', `${open.body.model.architecture}, digest ${open.body.model.digest}`],
    ['Activations', activations === undefined ? '16 bits or more in all matrices' : activationText(activations)],
    ['Requested', listed(open.body.requested)],
    ['Effective', listed(open.body.effective)],
  ];
  return `<section id="record" aria-labelledby="h-record">
<h2 id="h-record">The record</h2>
<p class="note">This page was made from the log alone. That the log is sound means that no entry was changed, added or taken out between others. Whether its end was cut off, or all of it was written anew, only checkpoints that are kept elsewhere can tell.</p>
<dl class="facts">
${facts.map(([name, value]) => `<dt>${escaped(name)}</dt><dd>${escaped(value)}</dd>`).join('\n')}
</dl>
</section>`;
}

/** Settings as 'name value', those that were not given left out. */
function listed(settings: Readonly<Record<string, unknown>>): string {
  const given = Object.entries(settings).filter(([, value]) => value !== null && value !== undefined);
  const told = given.map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`);
  return told.length === 0 ? 'nothing' : told.join(', ');
}

function replayText(replayed: ReplayReport | null): string {
  if (replayed === null) return 'not done: the policy is not built in, or the log is not sound';
  const { situations, decisions, equal, firstDifference } = replayed;
  const scope = `${plural(decisions, 'decision')} on ${plural(situations, 'situation')}`;
  if (equal) return `${scope}: every byte is the same`;
  return `${scope}, then entry ${grouped(firstDifference?.seq ?? 0)} differs (${firstDifference?.what ?? ''})`;
}
