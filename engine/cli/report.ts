/** The report of a session, for people to read. */
import { brief, bytesText, PAGE_TOKENS, percent, plural, table } from '../../native/index.ts';
import { FORMS } from '../../policy/index.ts';
import { activationText, growthText } from '../../witness/index.ts';
import type { LayerReport, SessionReport, StatedReport } from '../cache/types.ts';
import type { OriginalsReport } from '../originals/types.ts';
import type { Divergence } from '../session/types.ts';

/** The width of a number of pages. A context of 128K tokens has 1,024 pages. */
const COUNT_CHARS = 4;

/**
 * A table with a row for each layer: its pages in each format and side, effective bits, moves tried, accepted and
 * refused, and the worst ε.
 */
export function layerTable(report: SessionReport, columns?: number): string {
  const pages = report.layers.reduce((sum, { kPages }) => sum + Object.values(kPages).reduce((a, b) => a + b, 0), 0);
  if (pages === 0)
    return `No page left the window: it takes more than ${PAGE_TOKENS} tokens, and these were ${report.tokens}.`;
  const used = FORMS.filter((name) =>
    report.layers.some(({ kPages, vPages }) => (kPages[name] ?? 0) + (vPages[name] ?? 0) > 0),
  );
  const titles = used.map((name) => name.replace('rot', 'r').replace('f16', '16'));
  // Two columns never touch, however long a name is.
  const widths = titles.map((title) => Math.max(COUNT_CHARS, title.length + 1));
  const cells = (counts: LayerReport['kPages']): string =>
    used.map((name, i) => String(counts[name] || '·').padStart(widths[i]!)).join('');
  const head = titles.map((title, i) => title.padStart(widths[i]!)).join('');
  return table(
    [
      { title: 'layer', value: (row) => String(row.layer) },
      { title: `K${head.slice(1)}`, value: (row) => cells(row.kPages) },
      { title: `V${head.slice(1)}`, value: (row) => cells(row.vPages) },
      { title: 'bits', value: (row) => row.effectiveBits.toFixed(2) },
      { title: 'tried', value: (row) => String(row.movesTried) },
      { title: 'moved', value: (row) => String(row.movesAccepted) },
      { title: 'refused', value: (row) => String(row.movesRefused) },
      { title: 'worst ε', value: (row) => brief(row.epsilonMax, 2) },
    ],
    report.layers,
    columns,
  );
}

function originalsText({ place, sides, bytes, sidesLeftOut, lost }: OriginalsReport): string {
  if (lost !== null) return `lost while it read (${lost}): the cache went on without them`;
  const where = place === 'disk' ? 'on disk' : 'in memory, outside of the budget';
  const leftOut = sidesLeftOut === 0 ? '' : `; ${sidesLeftOut} more had no room there`;
  return `${plural(sides, 'page side')} as they were before they moved, ${bytesText(bytes)} ${where}${leftOut}`;
}

/** A row of a report. `fields` prints them. */
export type ReportRow = readonly [name: string, value: string];

export function memoryRows(report: SessionReport): ReportRow[] {
  const share = report.kvBytesF16 === 0 ? 0 : report.kvBytes / report.kvBytesF16;
  const budget = report.budgetBytes === null ? '' : `, budget ${bytesText(report.budgetBytes)}`;
  const rows: ReportRow[] = [
    [
      'KV cache',
      `${bytesText(report.kvBytes)} at its peak, ${percent(share)} of f16 (${bytesText(report.kvBytesF16)})${budget}; ${report.effectiveBits.toFixed(2)} bits per number, window, sinks and metadata included; ${bytesText(report.reservedPeakBytes)} of memory held for it at its peak; scratch for trials ${bytesText(report.scratchBytes)}`,
    ],
  ];
  if (report.originals !== null) rows.push(['Originals', originalsText(report.originals)]);
  const { sides, mendedSides } = report.damage;
  if (sides > 0)
    rows.push(['Damage', `codes of ${plural(sides, 'page side')} in memory; ${mendedSides} made again of originals`]);
  if (report.gaveWay !== null)
    rows.push([
      'Gave way',
      report.gaveWay === 'kld'
        ? 'the divergence budget: the byte budget could not be kept beside it'
        : 'the byte budget: the divergence budget could not be kept beside it',
    ]);
  if (report.stated !== null) rows.push(['Stated', statedText(report.stated)]);
  const growth = growthText(report.growth);
  if (growth !== null) rows.push(['Growth', growth]);
  if (report.activations !== null) rows.push(['Activations', activationText(report.activations)]);
  if (report.shared !== null && report.shared.trouble !== null)
    rows.push(['Qdrant', `away, so only sessions of this machine were asked: ${report.shared.trouble}`]);
  if (report.policy === 'none' && report.layers.some(({ kPages }) => (kPages.q8 ?? 0) > 0))
    rows.push(['Policy', 'none: without a budget sealed pages stay 8-bit; --kv-budget 25% lets them go lower']);
  return rows;
}

function statedText({
  budgetNats,
  expectedNats,
  measuredTokens,
  worstNats,
  timesBroken,
  isBroken,
}: StatedReport): string {
  const stated = `divergence of ${nats(budgetNats)}`;
  const known =
    measuredTokens === 0 ? 'as predicted' : `as predicted and measured on ${plural(measuredTokens, 'token')}`;
  if (isBroken) return `${stated}, which is broken: ${nats(expectedNats)} are expected, ${known}`;
  const before = timesBroken === 0 ? '' : `; it was broken before, by up to ${nats(worstNats)}`;
  return `${stated}, of which ${nats(expectedNats)} are expected to be spent, ${known}${before}`;
}

const nats = (value: number): string => `${value.toPrecision(3)} nats`;

export const divergenceRow = (divergence: Divergence): ReportRow => [
  'Divergence',
  `mean KLD ${divergence.meanKld.toPrecision(3)}, 99% ${divergence.kld99.toPrecision(3)}, same most likely token ${percent(divergence.sameTop)} over ${plural(divergence.tokens, 'token')}; perplexity ${divergence.perplexity.toFixed(2)} (exact ${divergence.perplexityExact.toFixed(2)})`,
];
