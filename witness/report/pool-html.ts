/** The part of the page about the memory that a session shared with others. */
import { bytesText, grouped, plural } from '../../native/index.ts';
import { shortId } from '../id.ts';
import { escaped } from './escaped.ts';
import type { CollectedPool, Gift } from './pool.ts';

/** Pairs of sessions beyond these gave least. */
const GIFTS_SHOWN = 100;

export function poolHtml({ pool, askings, policies, gifts }: CollectedPool, own: string): string {
  const name = (id: string): string => escaped(id === own ? 'this session' : shortId(id));
  const row = ({ from, to, times, bytes }: Gift): string =>
    `<tr><th scope="row">${name(from)}</th><td>${from === to ? 'itself' : name(to)}</td><td>${grouped(times)}</td><td>${bytesText(bytes)}</td></tr>`;
  const sum = (some: readonly Gift[]): string => bytesText(some.reduce((all, { bytes }) => all + bytes, 0));
  const gave = gifts.filter(({ from, to }) => from === own && to !== own);
  const got = gifts.filter(({ from, to }) => to === own && from !== own);
  const more = gifts.length - GIFTS_SHOWN;
  const told = `While this session was open, sessions of its engine asked for bytes ${plural(askings, 'time')}, and by ${escaped(policies.map((policy) => `‘${policy}’`).join(', '))} it was somebody’s turn: this session gave ${sum(gave)} to others, and others gave ${sum(got)} to it.`;
  return `<section id="pool" aria-labelledby="h-pool">
<h2 id="h-pool">Shared memory</h2>
<p class="note">${told} <code>audit replay ${escaped(pool)}</code> decides that again.</p>
<div id="pool-chart" class="plot"></div>
<h3>Who gave what to whom</h3>
<div class="scroll" id="gifts" tabindex="0" role="region" aria-label="Who gave what to whom"><table><thead><tr><th scope="col">gave</th><th scope="col">to</th><th scope="col">times</th><th scope="col">bytes</th></tr></thead><tbody>${gifts.slice(0, GIFTS_SHOWN).map(row).join('')}</tbody></table></div>
${more > 0 ? `<p class="note">And ${plural(more, 'pair')} that gave less.</p>` : ''}
</section>`;
}
