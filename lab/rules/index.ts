/** Rules by which others keep or drop single tokens, by their names. */

import type { Yardstick } from 'palimpsest/lab';
import { codedHitters } from './coded.ts';
import { h2o } from './h2o.ts';
import { scissorhands } from './scissorhands.ts';
import { pyramidkv, snapkv } from './snapkv.ts';
import { streaming } from './streaming.ts';
import { ageTiers, anchors } from './tiers.ts';

export { pyramidCapacity } from './snapkv.ts';

export const yardsticks: ReadonlyMap<string, Yardstick> = new Map(
  [ageTiers, anchors, codedHitters, h2o, streaming, snapkv, pyramidkv, scissorhands].map((one) => [one.id, one]),
);
