/**
 * Makes the models of the helpers, models/helpers/kinds.onnx and places.onnx, and says how well they do on works that
 * they have not seen, as onnxruntime computes them:
 *
 *     node --import tsx scripts/train-helpers.ts [--dry]
 *
 * The same texts make the same files. --dry writes none.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as ort from 'onnxruntime-node';
import { seeded } from '../engine/evaluate/recall.ts';
import { PLACE_DIM, TEXT_KINDS } from '../engine/sidecar/hint.ts';
import { bagOf, onnxOf, type Trained } from './helpers/ngrams.ts';
import { type Work, works } from './helpers/texts.ts';
import { type Example, meanOf, train } from './helpers/train.ts';

const SEED = 20261128;
/** Windows of each kind to train on, and of each work to try. */
const [TRAINED, TRIED] = [360, 6] as const;
/** Bytes of a window: what 128 to 1,024 tokens hold. */
const [LEAST, MOST] = [512, 4096] as const;
const EPOCHS = 12;
const RATE = 0.1;
const KIND_DIM = 8;

interface Window {
  readonly work: Work;
  readonly text: Uint8Array;
}

const root = fileURLToPath(new URL('..', import.meta.url));
const next = seeded(SEED);
const say = (line: string): void => console.log(line);

function windowsOf(work: Work, count: number): Window[] {
  const bytes = Buffer.from(work.text);
  return Array.from({ length: count }, () => {
    const size = Math.min(bytes.length, Math.floor(LEAST + next() * (MOST - LEAST)));
    const from = Math.floor(next() * (bytes.length - size));
    return { work, text: bytes.subarray(from, from + size) };
  });
}

async function answers(model: Uint8Array, windows: readonly Window[]): Promise<Float32Array[]> {
  const session = await ort.InferenceSession.create(model, { intraOpNumThreads: 1, logSeverityLevel: 3 });
  const found: Float32Array[] = [];
  for (const { text } of windows) {
    const { answer } = await session.run({ text: new ort.Tensor('uint8', Uint8Array.from(text), [text.length]) });
    found.push(Float32Array.from(answer!.data as Float32Array));
  }
  await session.release();
  return found;
}

/** Share of windows whose nearest other one is of the same work, and of the same kind. */
function nearest(windows: readonly Window[], places: readonly Float32Array[]): { work: number; kind: number } {
  const same = { work: 0, kind: 0 };
  for (const [i, place] of places.entries()) {
    let best = -1;
    let least = Number.POSITIVE_INFINITY;
    for (const [j, other] of places.entries()) {
      const distance = i === j ? Number.POSITIVE_INFINITY : place.reduce((sum, x, d) => sum + (x - other[d]!) ** 2, 0);
      if (distance < least) [least, best] = [distance, j];
    }
    if (windows[best]!.work.name === windows[i]!.work.name) same.work++;
    if (windows[best]!.work.kind === windows[i]!.work.kind) same.kind++;
  }
  return { work: same.work / windows.length, kind: same.kind / windows.length };
}

/** What tells works apart, as a place: the mean of rows, from the middle of all texts. */
function placesOf(trained: Trained, examples: readonly Example[]): Trained {
  const { dim, table } = trained;
  const out = new Float32Array(dim * dim);
  const bias = new Float32Array(dim);
  const means = examples.map(({ bag }) => meanOf(bag, table, dim));
  for (let d = 0; d < dim; d++) {
    const middle = means.reduce((sum, mean) => sum + mean[d]!, 0) / means.length;
    const spread = Math.sqrt(means.reduce((sum, mean) => sum + (mean[d]! - middle) ** 2, 0) / means.length);
    out[d * dim + d] = 1 / spread;
    bias[d] = -middle / spread;
  }
  return { dim, table, out, bias };
}

const all = works(root, next);
const seen = all.filter(({ isHeldOut }) => !isHeldOut);
const windows = TEXT_KINDS.flatMap((kind) => {
  const ofKind = seen.filter((work) => work.kind === kind);
  return ofKind.flatMap((work) => windowsOf(work, Math.ceil(TRAINED / ofKind.length)));
});
const tried = all.filter(({ isHeldOut }) => isHeldOut).flatMap((work) => windowsOf(work, TRIED));
const bags = windows.map(({ text }) => bagOf(text));
const training = { epochs: EPOCHS, rate: RATE, next };
say(
  `${windows.length} windows of ${seen.length} works to train on, ${tried.length} of ${all.length - seen.length} others to try`,
);

const byKind = windows.map(({ work }, i) => ({ bag: bags[i]!, label: TEXT_KINDS.indexOf(work.kind) }));
const kinds = onnxOf('kinds', train(byKind, { ...training, dim: KIND_DIM, labels: TEXT_KINDS.length }), 'Softmax');
const told = (await answers(kinds, tried)).map((shares) => TEXT_KINDS[shares.indexOf(Math.max(...shares))]!);
for (const kind of TEXT_KINDS) {
  const own = tried.flatMap(({ work }, i) => (work.kind === kind ? [told[i]!] : []));
  const wrong = own.filter((one) => one !== kind);
  say(
    `${kind.padEnd(10)} ${own.length - wrong.length} of ${own.length}${wrong.length === 0 ? '' : `, else ${[...new Set(wrong)].join(', ')}`}`,
  );
}
const right = tried.filter(({ work }, i) => work.kind === told[i]).length;
say(`kinds.onnx  ${kinds.length} bytes, right of held-out windows: ${(right / tried.length).toFixed(4)}`);

const byWork = windows.map(({ work }, i) => ({ bag: bags[i]!, label: seen.indexOf(work) }));
const trained = train(byWork, { ...training, dim: PLACE_DIM, labels: seen.length });
const places = onnxOf('places', placesOf(trained, byWork), 'LpNormalization');
const near = nearest(tried, await answers(places, tried));
say(
  `places.onnx ${places.length} bytes, nearest other held-out window is of the same work: ${near.work.toFixed(4)}, kind: ${near.kind.toFixed(4)}`,
);
if (!process.argv.includes('--dry'))
  for (const [name, model] of Object.entries({ kinds, places }))
    writeFileSync(join(root, 'models', 'helpers', `${name}.onnx`), model);
