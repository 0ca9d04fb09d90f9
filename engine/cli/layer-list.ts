/** Lists of layers or pages, as flags have them. */
import { InvalidArgumentError } from 'commander';

/** Parses a list of layers: '0,3-5' is [0, 3, 4, 5]. */
export function layerList(text: string): number[] {
  const layers = new Set<number>();
  for (const part of text.split(/[\s,]+/).filter((piece) => piece !== '')) {
    const match = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part);
    const from = Number(match?.[1]);
    const to = Number(match?.[2] ?? match?.[1]);
    if (match === null || to < from) throw new InvalidArgumentError(`'${part}' is not a layer or a range such as 0-3.`);
    for (let layer = from; layer <= to; layer++) layers.add(layer);
  }
  return [...layers].sort((a, b) => a - b);
}
