/** Draws, with block characters, the bytes of a cache while a prompt was read, compared with those of an f16 cache. */
import { bytesText, plural } from '../../native/index.ts';

export interface PicturePoint {
  readonly tokens: number;
  readonly kvBytes: number;
}

const ROWS = 8;
const WIDTH = 60;
/** The characters for cells that are filled to so many eighths. */
const LEVELS = ' ▁▂▃▄▅▆▇█';
const EIGHTHS = LEVELS.length - 1;

/**
 * Draws tokens from left to right and bytes upwards, to those of f16 at the last point. Solid cells are this cache, and
 * shaded ones are what f16 would take in addition. `points` must be in the order of their tokens. Returns '' if there
 * are too few of them.
 */
export function bytesPicture(points: readonly PicturePoint[], f16BytesPerToken: number): string {
  const last = points.at(-1);
  if (last === undefined || points.length < 2 || f16BytesPerToken <= 0) return '';
  const most = Math.max(last.tokens * f16BytesPerToken, ...points.map(({ kvBytes }) => kvBytes));
  const eighths = (bytes: number): number => Math.round((bytes / most) * ROWS * EIGHTHS);
  const columns = Array.from({ length: WIDTH }, (_, column) => {
    const tokens = ((column + 1) / WIDTH) * last.tokens;
    const point = points.find((one) => one.tokens >= tokens) ?? last;
    return { ours: eighths(point.kvBytes), f16: eighths(tokens * f16BytesPerToken) };
  });
  const labels = new Map([[ROWS - 1, bytesText(most)]]);
  const top = Math.max(0, Math.ceil(eighths(last.kvBytes) / EIGHTHS) - 1);
  labels.set(top, bytesText(last.kvBytes));
  const margin = Math.max(...[...labels.values()].map((label) => label.length)) + 1;
  const lines: string[] = [];
  for (let row = ROWS - 1; row >= 0; row--) {
    const cells = columns.map(({ ours, f16 }) => {
      const filled = Math.min(EIGHTHS, Math.max(0, ours - row * EIGHTHS));
      return filled === 0 && f16 > row * EIGHTHS + EIGHTHS / 2 ? '░' : LEVELS[filled]!;
    });
    lines.push(`${(labels.get(row) ?? '').padStart(margin)} ${cells.join('')}`.trimEnd());
  }
  const axis = plural(last.tokens, 'token');
  return [...lines, `${' '.repeat(margin)} 0${axis.padStart(WIDTH - 1)}`].join('\n');
}
