/** What a page costs in each layer, side and format, as numbers and as a picture of characters. */
import { SIDES, type Side } from '../../native/index.ts';
import type { Estimate, Law } from '../../policy/index.ts';
import type { CalibrationSettings, Measured } from './measured.ts';

export interface SideSensitivity {
  /** Nats per ε² of the present queries. */
  readonly coefficient: Estimate;
  /** Mean divergence of one page by format, in nats; a format that was not measured is absent. */
  readonly perPage: Readonly<Record<string, number>>;
}

export interface Sensitivity {
  readonly layer: number;
  readonly k: SideSensitivity;
  readonly v: SideSensitivity;
}

/**
 * The sensitivity of every layer, [layers]. All movable pages were changed together, so a page's share is their mean.
 */
export function sensitivities({ settings, windows }: Measured, law: Law): Sensitivity[] {
  const of = (side: Side, layer: number): SideSensitivity => {
    const perPage: Record<string, number> = {};
    for (const format of settings.formats[side]) {
      const found = windows.flatMap((window) => {
        const kld = window[side].probed[format]?.kld[layer];
        return typeof kld === 'number' ? [kld / window.pages] : [];
      });
      if (found.length > 0) perPage[format] = found.reduce((sum, one) => sum + one, 0) / found.length;
    }
    return { coefficient: law.coefficient[side][layer]!, perPage };
  };
  return Array.from({ length: settings.layers }, (_, layer) => ({ layer, k: of('k', layer), v: of('v', layer) }));
}

const WIDTH = 32;

/**
 * One line per layer, keys to the left and values to the right. Divergence grows from left to right on a logarithmic
 * scale that both sides share; a mark is the last digit of its format: 3 for rot3. Where two fall together, the lower
 * format is seen.
 */
export function sensitivityPlot(formats: CalibrationSettings['formats'], rows: readonly Sensitivity[]): string {
  const all = rows
    .flatMap((row) => SIDES.flatMap((side) => Object.values(row[side].perPage)))
    .filter((nats) => nats > 0);
  if (all.length === 0) return '';
  const decadeLow = Math.floor(Math.log10(Math.min(...all)));
  const decades = Math.max(1, Math.ceil(Math.log10(Math.max(...all))) - decadeLow);
  const columnOf = (nats: number): number =>
    Math.min(WIDTH - 1, Math.max(0, Math.floor(((Math.log10(nats) - decadeLow) / decades) * WIDTH)));
  const lines = rows.map((row) => {
    const cells = SIDES.map((side) => {
      const line = new Array<string>(WIDTH).fill('·');
      for (const format of formats[side]) {
        const nats = row[side].perPage[format];
        if (nats !== undefined && nats > 0) line[columnOf(nats)] = format.at(-1)!;
      }
      return line.join('');
    });
    return `${String(row.layer).padStart(5)} ${cells.join('  ')}`;
  });
  const scale = `1e${decadeLow}`.padEnd(WIDTH - 4) + `1e${decadeLow + decades}`.padStart(4);
  const title = `layer ${'keys, nats of a page'.padEnd(WIDTH)}  values, nats of a page`;
  return [title, ...lines, `      ${scale}  ${scale}`].join('\n');
}
