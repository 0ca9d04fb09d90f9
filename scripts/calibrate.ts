/**
 * `npm run calibrate -- [kinds] [flags]` measures the windows of calibration-windows.json, of all kinds or of those
 * named, and writes the law that comes with the package. What is measured already is not measured again.
 *   --model NAME      SmolLM2 by default
 *   --measured FILE   measurements, scripts/calibration-smollm2-135m.json by default
 *   --output FILE     the threshold file, models/laws/smollm2-135m.json by default
 *   --fit             measures nothing: fits what is there
 *   --without KINDS   leaves windows of these kinds, separated by commas, out of the fit
 *   --activations     measures only what activations of 8 bits cost, and puts it into --output, which is there
 *   --long            measures only how divergence grows beyond 2,048 tokens, and puts it into --output, which is there
 *    (a new fit has none of it, so this comes behind one)
 *   --tokens N        length of the windows, 2048 by default; with --long 4096
 *   --predictor       fits what parked pages are predicted by instead, to other texts of the same file, and writes it
 *    to --output,
 *                     models/predictors/smollm2-135m.predictor by default
 *   --threads N
 * The texts are those of `npm run fetch:texts`.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { measureActivations, type Rounded } from '../engine/calibrate/activations.ts';
import { calibrate, LATER_TOKENS, windowsOf } from '../engine/calibrate/calibrate.ts';
import { activationCostsOf, lawOf, thresholdsOf } from '../engine/calibrate/fit.ts';
import { measureLong, withGrowth } from '../engine/calibrate/long.ts';
import { type Measured, type MeasuredWindow, readMeasured } from '../engine/calibrate/measured.ts';
import { sensitivities, sensitivityPlot } from '../engine/calibrate/sensitivity.ts';
import { sensitivityTable } from '../engine/cli/calibrate.ts';
import { fitPredictor } from '../engine/session/park/fit.ts';
import { formPredictor } from '../engine/session/park/predictor.ts';
import { productsOf } from '../engine/transformer/activations.ts';
import { defaultCacheDir } from '../engine/transformer/cache-dir.ts';
import { Runtime } from '../engine/transformer/runtime/runtime.ts';
import { textOf } from '../lab/evaluate/texts.ts';
import { readThresholdFile, toThresholdFile, toThresholdSet, writeThresholdFile } from '../memory/index.ts';
import { assert, given, replaceFile } from '../native/index.ts';
import { chooseActivations, type Law, thresholdOf } from '../policy/index.ts';
import { activationText } from '../witness/index.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
const LAW = join(root, 'models', 'laws', 'smollm2-135m.json');

interface Window {
  readonly kind: string;
  readonly file: string;
  readonly from: number;
  readonly characters: number;
}

interface Windows {
  readonly windows: readonly Window[];
  /** `count` windows of `tokens` tokens each, the first characters of which are `step` apart. */
  readonly predictor: {
    readonly tokens: number;
    readonly texts: readonly (Omit<Window, 'kind'> & { readonly count: number; readonly step: number })[];
  };
}

const { values, positionals: kinds } = parseArgs({
  allowPositionals: true,
  options: {
    model: { type: 'string', default: 'smollm2-135m' },
    measured: { type: 'string', default: join(root, 'scripts', 'calibration-smollm2-135m.json') },
    output: { type: 'string' },
    predictor: { type: 'boolean', default: false },
    activations: { type: 'boolean', default: false },
    long: { type: 'boolean', default: false },
    fit: { type: 'boolean', default: false },
    without: { type: 'string', default: '' },
    tokens: { type: 'string' },
    threads: { type: 'string' },
  },
});

const TOKENS = Number(values.tokens ?? 2048);

const list = JSON.parse(readFileSync(join(root, 'scripts', 'calibration-windows.json'), 'utf8')) as Windows;

const windowOf = ({ kind, file, from, characters }: Window): { name: string; content: string } => ({
  name: kind,
  content: textOf(file).slice(from, from + characters),
});

/** Fits what parked pages are predicted by. */
async function predict(runtime: Runtime, path: string): Promise<void> {
  const { tokens, texts } = list.predictor;
  const windows = texts.flatMap(({ file, from, characters, count, step }) => {
    const content = textOf(file);
    return Array.from({ length: count }, (_, window) => {
      const first = from + window * step;
      const ids = runtime.model.tokenizer.encode(content.slice(first, first + characters));
      assert(ids.length >= tokens, `${file} has ${ids.length} tokens from ${first} on`);
      return ids.slice(0, tokens);
    });
  });
  replaceFile(path, formPredictor(await fitPredictor(runtime, windows)));
  console.log(`${path}: fitted to ${windows.length} windows of ${tokens} tokens`);
}

/** The windows of the kinds that are named, or of all. */
const named = (): { name: string; content: string }[] =>
  list.windows.filter(({ kind }) => kinds.length === 0 || kinds.includes(kind)).map(windowOf);

/** Measures what activations of 8 bits cost, and puts it into a threshold file. */
async function measureRounding(runtime: Runtime, path: string): Promise<void> {
  const { model, shape } = runtime;
  const windows: Rounded[] = [];
  for (const window of windowsOf(runtime, { texts: named(), tokens: TOKENS, windows: 1 })) {
    const found: Rounded = {};
    await measureActivations(runtime, { tokens: window.tokens.slice(0, LATER_TOKENS) }, found, () => {});
    windows.push(found);
    const choice = chooseActivations(
      activationCostsOf({ settings: shape, windows: [found] })!,
      productsOf(model.config),
    );
    console.log(`${window.text}: ${activationText(choice)}; together ${JSON.stringify(found.activations?.together)}`);
    const activations = activationCostsOf({ settings: shape, windows })!;
    writeThresholdFile(path, { ...readThresholdFile(path), activations });
    console.log(`${path}: ${activationText(chooseActivations(activations, productsOf(model.config)))}`);
  }
}

/** Measures how divergence grows with the length, and puts it into a threshold file. */
async function measureGrowth(runtime: Runtime, path: string): Promise<void> {
  const { model, shape } = runtime;
  const file = readThresholdFile(path);
  const set = toThresholdSet(file);
  const measured: Pick<Measured, 'long'> = {};
  await measureLong(runtime, measured, set, {
    texts: named(),
    tokens: values.tokens === undefined ? undefined : TOKENS,
    signal: new AbortController().signal,
    onMeasured: () => {
      const { text, kld, predicted } = measured.long!.at(-1)!;
      console.log(`${text}: ${kld.toPrecision(3)} nats, ${predicted.toPrecision(3)} predicted`);
    },
  });
  const grown = withGrowth(set, measured.long ?? []);
  const { thresholds } = toThresholdFile(grown, { modelDigest: model.digest, shape }, null);
  writeThresholdFile(path, { ...file, thresholds });
  console.log(`${path}: the power ${thresholdOf(grown, 'divergence.length').value}`);
}

async function measure(runtime: Runtime): Promise<void> {
  const start = performance.now();
  await calibrate(runtime, {
    texts: named(),
    tokens: TOKENS,
    windows: 1,
    path: values.measured,
    onProgress: ({ text }, done, total) => {
      if (done % 10 === 0)
        console.log(`${text}: ${done} of ${total} probes, ${((performance.now() - start) / 1000).toFixed(0)} s`);
    },
  });
}

/**
 * Σ over layers and formats of what the law predicts of a window by the trials of its own queries, over what was
 * measured.
 */
function ratioOf(law: Law, window: MeasuredWindow): number {
  let predicted = 0;
  let found = 0;
  for (const side of ['k', 'v'] as const) {
    for (const { energy, kld } of Object.values(window[side].probed)) {
      for (const [layer, nats] of kld.entries()) {
        predicted += (energy[layer] ?? 0) * law.coefficient[side][layer]!.value;
        found += nats ?? 0;
      }
    }
  }
  return predicted / found;
}

/** Measures what is not measured yet, and fits the law to it. */
async function fitLaw(runtime: Runtime): Promise<void> {
  if (!values.fit) await measure(runtime);
  const all = readMeasured(values.measured);
  const without = values.without.split(',');
  const measured = { ...all, windows: all.windows.filter(({ text }) => !without.includes(text)) };
  const law = lawOf(measured);
  const { model, shape } = runtime;
  const tokens = measured.windows.length * (measured.settings.history + measured.settings.later);
  writeThresholdFile(
    values.output ?? LAW,
    toThresholdFile(thresholdsOf(law), { modelDigest: model.digest, shape }, null, {
      sessions: measured.windows.length,
      tokens,
      ...given({ activations: activationCostsOf(measured) ?? undefined }),
    }),
  );
  const rows = sensitivities(measured, law);
  console.log(`${sensitivityTable(measured, rows)}\n\n${sensitivityPlot(measured.settings.formats, rows)}\n`);
  console.log(
    JSON.stringify({
      kinds: measured.windows.map(({ text }) => text),
      text: law.text,
      offset: law.offset,
      fade: law.fade,
    }),
  );
  for (const window of measured.windows) {
    const others = measured.windows.filter(({ text }) => text !== window.text);
    if (others.length === 0) continue;
    const ratio = ratioOf(lawOf({ ...measured, windows: others }), window);
    console.log(`${window.text}: the law of the other kinds predicts ${ratio.toFixed(2)} of the divergence measured`);
  }
}

const runtime = await Runtime.open({
  model: values.model,
  threads: values.threads === undefined ? undefined : Number(values.threads),
  cacheDir: defaultCacheDir(),
});
if (values.predictor)
  await predict(runtime, values.output ?? join(root, 'models', 'predictors', 'smollm2-135m.predictor'));
else if (values.activations) await measureRounding(runtime, values.output ?? LAW);
else if (values.long) await measureGrowth(runtime, values.output ?? LAW);
else await fitLaw(runtime);
await runtime.close();
