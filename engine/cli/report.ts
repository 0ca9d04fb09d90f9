/** The report of a session as a person reads it, 80 columns wide. */
import { FORMAT_NAMES } from '../../native/index.ts';
import type { Divergence, SessionReport } from '../types.ts';
import { bytes, percent, small, table } from './text.ts';

const formats = (counts: Readonly<Record<string, number>>): string =>
  FORMAT_NAMES.filter((name) => (counts[name] ?? 0) > 0)
    .map((name) => `${name.replace('rot', 'r')}×${counts[name]}`)
    .join(' ');

/** One row per layer: pages per format and side, effective bits, moves tried / accepted / refused, worst ε. */
export function layerTable(report: SessionReport): string {
  const rows = report.layers.map((layer) => [
    String(layer.layer),
    formats(layer.kPages),
    formats(layer.vPages),
    layer.effectiveBits.toFixed(2),
    String(layer.movesTried),
    String(layer.movesAccepted),
    String(layer.movesRefused),
    small(layer.epsilonMax),
  ]);
  return table(['layer', 'K pages', 'V pages', 'bits', 'tried', 'moved', 'refused', 'worst ε'], rows, [1, 2]);
}

export function memoryLine(report: SessionReport): string {
  const share = report.kvBytesF16 === 0 ? 0 : report.kvBytes / report.kvBytesF16;
  const budget = report.budgetBytes === null ? '' : `, budget ${bytes(report.budgetBytes)}`;
  return `KV cache   ${bytes(report.kvBytes)} at its peak, ${percent(share)} of f16 (${bytes(report.kvBytesF16)})${budget}\n           ${report.effectiveBits.toFixed(2)} bits per number, window, sinks and metadata included;\n           scratch for trials ${bytes(report.scratchBytes)}`;
}

export function divergenceLine(divergence: Divergence): string {
  return `Divergence mean KLD ${divergence.meanKld.toPrecision(3)}, 99% ${divergence.kld99.toPrecision(3)}, same most likely token ${percent(divergence.sameTop)}\n           over ${divergence.tokens} tokens; perplexity ${divergence.perplexity.toFixed(2)} (exact ${divergence.perplexityExact.toFixed(2)})`;
}
