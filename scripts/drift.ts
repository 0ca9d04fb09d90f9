/**
 * `npm run sim -- drift`: what the evidence of a session notices on SmolLM2, and what it takes for noise. Sessions of
 * one topic show false alarms; a document that changes its topic, a threshold file with gains of one layer 100 times
 * too small, and trials of one layer that say a twentieth of the truth from some token on show what is caught, and
 * after how many tokens. Prints tables in Markdown and the arrows taken. The texts are those of
 * `npm run fetch:texts`.
 */
import { Session } from '../engine/session/session.ts';
import { Runtime } from '../engine/transformer/runtime/runtime.ts';
import { textOf } from '../lab/evaluate/texts.ts';
import {
  Arrows,
  createPolicy,
  defaultThresholds,
  type LayerChange,
  type Policy,
  type Situation,
  type ThresholdSet,
} from '../policy/index.ts';

const TOKENS = 4096;
const PLANTED_AT = 1536;
const PLANTED_LAYER = 12;
const TEXTS: Readonly<Record<string, readonly [file: string, from: number]>> = {
  'wiki 1': ['wikitext-2/test.txt', 300_000],
  'wiki 2': ['wikitext-2/test.txt', 900_000],
  'novel 1': ['english-novels/heldout/Doyle_Hound_1902.txt', 200_000],
  'novel 2': ['english-novels/heldout/Woolf_Lighthouse_1927.txt', 250_000],
  'german 1': ['german-novels/kafka_schloss.txt', 300_000],
  'german 2': ['german-novels/keller_heinrich.txt', 600_000],
  'code 1': ['python-code/configparser.py', 0],
  'code 2': ['python-code/dataclasses.py', 0],
};

interface Noticed extends LayerChange {
  readonly tokens: number;
}

const runtime = await Runtime.open({ model: 'smollm2-135m', threads: 1 });
const { layers } = runtime.shape;
const arrows = new Arrows();
const idsOf = (name: string): number[] => {
  const [file, from] = TEXTS[name]!;
  const text = textOf(file);
  return [...runtime.model.tokenizer.encode(text.slice(from, from + 60_000))].slice(0, TOKENS);
};

/** Reads a document at 25% of f16. `plant` changes what the policy is told. → what it noticed */
async function run(
  ids: readonly number[],
  thresholds: ThresholdSet,
  plant?: (situation: Situation) => Situation,
): Promise<Noticed[]> {
  const noticed: Noticed[] = [];
  const price = createPolicy('price');
  arrows.begin();
  const policy: Policy = {
    ...price,
    open: (context) => {
      const session = price.open(context);
      return {
        decide: (situation) => {
          const decisions = session.decide(plant?.(situation) ?? situation);
          for (const change of session.takeChanges?.() ?? []) noticed.push({ ...change, tokens: situation.tokens });
          arrows.see(session.summary().layerStates);
          return decisions;
        },
        judge: session.judge.bind(session),
        summary: session.summary.bind(session),
        haste: (layer) => session.haste?.(layer) ?? 1,
      };
    },
  };
  const session = Session.open(runtime, { policy, log: null, thresholds, tokensExpected: ids.length, kvBudget: '25%' });
  await session.read([...ids]);
  session.close();
  return noticed;
}

const risen = (noticed: readonly Noticed[], source?: LayerChange['source']): Noticed[] =>
  noticed.filter(
    (it) =>
      /watched|degraded/.test(it.state.split('/')[1]!) &&
      it.measured >= it.bound &&
      (source === undefined || it.source === source),
  );
const defaults = defaultThresholds(layers);

console.log(
  `\n| one topic | tokens | layers watched or degraded by their errors | changes of topic noticed |\n|---|---|---|---|`,
);
for (const name of Object.keys(TEXTS)) {
  const ids = idsOf(name);
  const noticed = await run(ids, defaults);
  const topics = new Set(risen(noticed, 'topic').map(({ tokens }) => tokens));
  console.log(
    `| ${name} | ${ids.length} | ${
      risen(noticed, 'error')
        .map(({ layer, tokens, state }) => `${layer} at ${tokens} (${state.split('/')[1]})`)
        .join(', ') || '–'
    } | ${[...topics].join(', ') || '–'} |`,
  );
}

console.log(`\n| planted | at token | caught after | by |\n|---|---|---|---|`);
const row = (what: string, at: number, noticed: readonly Noticed[]): void => {
  const first = noticed.find(({ tokens }) => tokens > at);
  console.log(
    `| ${what} | ${at} | ${first === undefined ? 'not caught' : `${first.tokens - at} tokens`} | ${first === undefined ? '–' : `${first.source}, ${noticed.filter(({ tokens }) => tokens === first.tokens).length} layers`} |`,
  );
};
for (const [a, b, c] of [
  ['novel 1', 'code 1', 'german 1'],
  ['wiki 1', 'german 2', 'code 2'],
  ['german 1', 'wiki 2', 'novel 2'],
  ['code 1', 'novel 2', 'wiki 1'],
] as const) {
  const noticed = risen(
    await run([...idsOf(a).slice(0, 1024), ...idsOf(b).slice(0, 1024), ...idsOf(c).slice(0, 1024)], defaults),
  );
  row(
    `${a} → ${b} (→ ${c})`,
    1024,
    noticed.filter(({ tokens }) => tokens <= 2048),
  );
  row(`(${a} →) ${b} → ${c}`, 2048, noticed);
}
const small = (gains: readonly number[]): number[] =>
  gains.map((gain, layer) => (layer === PLANTED_LAYER ? gain / 100 : gain));
const file = { ...defaults, gains: { k: small(defaults.gains.k), v: small(defaults.gains.v) } };
row(`gains of layer ${PLANTED_LAYER} 100 times too small`, -1, risen(await run(idsOf('wiki 1'), file), 'gain'));
for (const name of ['wiki 1', 'novel 1', 'german 1', 'code 1']) {
  const plant = (situation: Situation): Situation => ({
    ...situation,
    trials: situation.trials.map((report) =>
      report.layer !== PLANTED_LAYER || situation.tokens < PLANTED_AT
        ? report
        : {
            ...report,
            epsilon: Object.fromEntries(
              Object.entries(report.epsilon).map(([format, epsilon]) => [format, epsilon / 20]),
            ),
          },
    ),
  });
  const noticed = risen(await run(idsOf(name), defaults, plant), 'error').filter(
    ({ layer }) => layer === PLANTED_LAYER,
  );
  row(`trials of layer ${PLANTED_LAYER} say a twentieth (${name})`, PLANTED_AT, noticed);
}
await runtime.close();

console.log('\n| arrow | taken |\n|---|---|');
for (const [arrow, count] of arrows.counts) console.log(`| ${arrow} | ${count} |`);
