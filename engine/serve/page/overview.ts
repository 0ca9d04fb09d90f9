/** What the server does now, in figures: sessions, queue, rate, memory by tier, and what a byte of it costs. */
import { byId, el } from '../../../witness/report/page/dom.ts';
import { bytesText, grouped } from '../../../witness/report/page/words.ts';
import { drawCharts, totalsOf } from './charts.ts';
import type { Snapshot } from './snapshot.ts';
import { TIERS } from './tiers.ts';
import { priceText, rateText } from './words.ts';

type Figure = readonly [name: string, value: string, more: string];

/** Draws what stands above the sessions. → shows a snapshot */
export function drawOverview(): (told: Snapshot) => void {
  const addToCharts = drawCharts();
  return (told) => {
    const { tokensPerSecond, bytes, budgetBytes } = totalsOf(told);
    addToCharts(told.timeMs, tokensPerSecond, bytes, budgetBytes);
    byId('figures').replaceChildren(
      ...figuresOf(told).map(([name, value, more]) =>
        el('div', {}, el('dt', {}, name), el('dd', {}, value, el('small', {}, more))),
      ),
    );
    drawTiers(told.engine?.tiers ?? {}, budgetBytes);
  };
}

function figuresOf(told: Snapshot): Figure[] {
  const { engine, pools, sessions } = told;
  const { tokensPerSecond, bytes, budgetBytes } = totalsOf(told);
  const states = ['working', 'waiting', 'parked'].flatMap((state) => {
    const count = sessions.filter((one) => one.state === state).length;
    return count === 0 ? [] : [`${count} ${state}`];
  });
  const share = budgetBytes === null ? '' : `of ${bytesText(budgetBytes)}, ${Math.round((100 * bytes) / budgetBytes)}%`;
  const prices = pools.flatMap(({ price }) => price ?? []);
  const price = prices.length === 0 ? null : Math.max(...prices);
  const given = pools.reduce((sum, pool) => sum + pool.givenBytes, 0);
  return [
    ['Sessions', grouped(sessions.length), states.length === 0 ? 'none is open' : states.join(', ')],
    ...(engine === null ? [] : [['Queue', grouped(engine.waiting), `waiting; ${engine.running} at work`] as const]),
    ['Tokens per second', rateText(tokensPerSecond), 'read and written'],
    ['Memory', bytes === 0 ? '0' : bytesText(bytes), share],
    ...(told.seesAll
      ? [
          [
            'Price of a MiB',
            price === null ? '–' : priceText(price),
            price === null ? 'nobody was asked to give any' : `nats; ${bytesText(given)} given up`,
          ] as const,
        ]
      : []),
  ];
}

function drawTiers(tiers: Readonly<Record<string, number>>, budgetBytes: number | null): void {
  const sized = TIERS.map((tier) => ({ ...tier, bytes: tier.of.reduce((sum, name) => sum + (tiers[name] ?? 0), 0) }));
  const there = sized.filter(({ bytes }) => bytes > 0);
  const all = Math.max(
    budgetBytes ?? 0,
    there.reduce((sum, { bytes }) => sum + bytes, 0),
  );
  const bar = byId('tier-bar');
  bar.parentElement!.hidden = there.length === 0;
  bar.setAttribute('aria-label', there.map(({ name, bytes }) => `${name} ${bytesText(bytes)}`).join(', '));
  bar.replaceChildren(
    ...there.map(({ name, bytes, means }) => {
      const part = el('span', { class: `tier ${name}`, title: `${name}: ${means}` });
      part.style.width = `${(100 * bytes) / all}%`;
      return part;
    }),
  );
  byId('tier-legend').replaceChildren(
    ...there.map(({ name, bytes, means }) =>
      el('li', { title: means }, el('span', { class: `swatch ${name}` }), name, el('b', {}, bytesText(bytes))),
    ),
  );
}
