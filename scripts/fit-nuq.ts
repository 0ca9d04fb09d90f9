/**
 * `node --import tsx scripts/fit-nuq.ts [--models LIST] [--tokens N]` fits the levels of nuq4, nuq3 and nuq2
 * (native/yardsticks/nuq/ says what is fitted) to keys and values of the reference model, or of several models
 * that count alike, and prints them for nuq.ts and nuq.h. Texts are those of calibration-windows.json,
 * which `npm run fetch:texts` brings; no text that is scored is among them.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Session } from '../engine/session/session.ts';
import { Runtime } from '../engine/transformer/runtime/runtime.ts';
import { textOf } from '../lab/evaluate/texts.ts';
import { PAGE_TOKENS, SIDES } from '../native/index.ts';
import { normalized } from '../native/yardsticks/nuq/nuq.ts';
import { defaultThresholds } from '../policy/index.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
/** Bins of the histogram that is fitted: steps of 1/8 from −127 to 127. */
const BINS = 127 * 16 + 1;
const middle = (bin: number): number => bin / 8 - 127;
const ROUNDS = 500;

const { values } = parseArgs({
  options: { models: { type: 'string', default: 'reference' }, tokens: { type: 'string', default: '384' } },
});
const TOKENS = Number(values.tokens);

const texts = (
  JSON.parse(readFileSync(join(root, 'scripts', 'calibration-windows.json'), 'utf8')) as {
    windows: { kind: string; file: string; from: number; characters: number }[];
  }
).windows.filter(({ kind }, at, all) => all.findIndex((one) => one.kind === kind) === at);

/** How often each normalized number occurs in the pages of one model. */
async function histogram(model: string): Promise<Float64Array> {
  const counts = new Float64Array(BINS);
  const runtime = await Runtime.open({ model, dense: 'auto', threads: 1 });
  const { layers, kvHeads, headDim } = runtime.shape;
  for (const { kind, file, from, characters } of texts) {
    const text = textOf(file);
    const ids = runtime.model.tokenizer.encode(text.slice(from, from + characters)).slice(0, TOKENS);
    const thresholds = defaultThresholds(layers);
    const session = Session.open(runtime, { policy: 'none', log: null, thresholds, tokensExpected: ids.length });
    await session.read(ids);
    // The first page has the sinks.
    for (let page = 1; page < Math.floor(ids.length / PAGE_TOKENS); page++) {
      for (let layer = 0; layer < layers; layer++) {
        for (const side of SIDES) {
          const rows = session.cache.decode(layer, page, side);
          for (let head = 0; head < kvHeads; head++) {
            const own = Float32Array.from(
              { length: PAGE_TOKENS * headDim },
              (_, i) => rows[(Math.floor(i / headDim) * kvHeads + head) * headDim + (i % headDim)]!,
            );
            for (const y of normalized(own, headDim, 0, side)) counts[Math.round((y + 127) * 8)]! += 1;
          }
        }
      }
    }
    session.close();
    console.error(`${model}: ${kind}`);
  }
  const total = counts.reduce((sum, count) => sum + count, 0);
  return counts.map((count) => count / total);
}

/** Centres of `count` clusters of a histogram, ascending, rounded to whole numbers; and the mean squared error. */
function kMeans(counts: Float64Array, count: number): { levels: number[]; error: number } {
  // Begins with equal shares of the numbers.
  const share = (i: number): number => {
    let sum = 0;
    return counts.findIndex((one) => (sum += one) >= (i + 0.5) / count);
  };
  let levels = Array.from({ length: count }, (_, i) => middle(share(i)));
  for (let round = 0; round < ROUNDS; round++) {
    const [mass, sum] = [new Float64Array(count), new Float64Array(count)];
    for (let bin = 0, at = 0; bin < BINS; bin++) {
      while (at + 1 < count && middle(bin) > (levels[at]! + levels[at + 1]!) / 2) at++;
      mass[at]! += counts[bin]!;
      sum[at]! += counts[bin]! * middle(bin);
    }
    levels = levels.map((level, at) => (mass[at]! > 0 ? sum[at]! / mass[at]! : level));
  }
  levels = levels.map((level) => Math.round(level) + 0);
  const error = counts.reduce(
    (sum, one, bin) => sum + one * Math.min(...levels.map((level) => (level - middle(bin)) ** 2)),
    0,
  );
  return { levels, error };
}

const models = values.models.split(',');
const parts: Float64Array[] = [];
for (const model of models) parts.push(await histogram(model));
const counts = parts[0]!.map((_, bin) => parts.reduce((sum, part) => sum + part[bin]!, 0) / parts.length);
const variance = counts.reduce((sum, one, bin) => sum + one * middle(bin) ** 2, 0);
for (const bits of [4, 3, 2]) {
  const { levels, error } = kMeans(counts, 2 ** bits);
  console.log(`nuq${bits}: [${levels.join(', ')}], squared error ${(error / variance).toFixed(4)} of the variance`);
}
