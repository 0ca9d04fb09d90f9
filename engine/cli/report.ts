/** The report of a session as a person reads it, 80 columns wide. */
import { FORMAT_NAMES, PAGE_TOKENS } from '../../native/index.ts';
import type { Divergence, LayerReport, SessionReport } from '../types.ts';
import { bytes, percent, small, table } from './text.ts';

/** Width of a count of pages: a context of 128K tokens has 1,024 of them. */
const COUNT_CHARS = 4;

/** One row per layer: pages per format and side, effective bits, moves tried / accepted / refused, worst ε. */
export function layerTable(report: SessionReport): string {
  const pages = report.layers.reduce((sum, { kPages }) => sum + Object.values(kPages).reduce((a, b) => a + b, 0), 0);
  if (pages === 0)
    return `No page left the window: it takes more than ${PAGE_TOKENS} tokens, and these were ${report.tokens}.`;
  const used = FORMAT_NAMES.filter((name) =>
    report.layers.some(({ kPages, vPages }) => (kPages[name] ?? 0) + (vPages[name] ?? 0) > 0),
  );
  const cells = (counts: LayerReport['kPages']): string =>
    used.map((name) => String(counts[name] || '·').padStart(COUNT_CHARS)).join('');
  const head = used.map((name) => name.replace('rot', 'r').replace('f16', '16').padStart(COUNT_CHARS)).join('');
  const rows = report.layers.map((layer) => [
    String(layer.layer),
    cells(layer.kPages),
    cells(layer.vPages),
    layer.effectiveBits.toFixed(2),
    String(layer.movesTried),
    String(layer.movesAccepted),
    String(layer.movesRefused),
    small(layer.epsilonMax),
  ]);
  return table(
    ['layer', `K${head.slice(1)}`, `V${head.slice(1)}`, 'bits', 'tried', 'moved', 'refused', 'worst ε'],
    rows,
    [],
  );
}

export function memoryLine(report: SessionReport): string {
  const share = report.kvBytesF16 === 0 ? 0 : report.kvBytes / report.kvBytesF16;
  const budget = report.budgetBytes === null ? '' : `, budget ${bytes(report.budgetBytes)}`;
  return `KV cache   ${bytes(report.kvBytes)} at its peak, ${percent(share)} of f16 (${bytes(report.kvBytesF16)})${budget}\n           ${report.effectiveBits.toFixed(2)} bits per number, window, sinks and metadata included;\n           scratch for trials ${bytes(report.scratchBytes)}`;
}

export function divergenceLine(divergence: Divergence): string {
  return `Divergence mean KLD ${divergence.meanKld.toPrecision(3)}, 99% ${divergence.kld99.toPrecision(3)}, same most likely token ${percent(divergence.sameTop)}\n           over ${divergence.tokens} tokens; perplexity ${divergence.perplexity.toFixed(2)} (exact ${divergence.perplexityExact.toFixed(2)})`;
}
