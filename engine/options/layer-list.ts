/** Lists of layers, as flags and policy files have them: ['0', '3-5']. */

/** As many as numbers of four digits can name. */
const LAYERS_MAX = 10_000;

/**
 * Layers in the order and as often as they are named, by number. `refuse` is told the first part that is neither a
 * number of at most four digits nor a range of two, or with which there would be more than numbers can name.
 */
export function layersIn(parts: readonly string[], refuse: (part: string) => never): number[] {
  const layers: number[] = [];
  for (const part of parts) {
    const [, first, last = first] = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part) ?? [];
    const [from, to] = [Number(first), Number(last)];
    if (!(from <= to && layers.length + to - from < LAYERS_MAX)) return refuse(part);
    for (let layer = from; layer <= to; layer++) layers.push(layer);
  }
  return layers;
}
