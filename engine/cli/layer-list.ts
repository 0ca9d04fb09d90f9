/** Lists of layers or pages, as flags have them. */
import { InvalidArgumentError } from 'commander';
import { layersIn } from '../options/layer-list.ts';

/** Parses a list of layers: '0,3-5' is [0, 3, 4, 5]. */
export function layerList(text: string): number[] {
  const parts = text.split(/[\s,]+/).filter((part) => part !== '');
  const layers = layersIn(parts, (part) => {
    throw new InvalidArgumentError(`'${part}' is not a layer or a range such as 0-3.`);
  });
  return [...new Set(layers)].sort((a, b) => a - b);
}
