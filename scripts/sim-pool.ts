/**
 * `npm run sim -- pool`: thousands of sessions on one budget, without a model (scripts/market/). Flags:
 *   --model smollm2-135m,8b   shapes of caches
 *   --budget 2GiB,64GiB       budgets, one for each model or one for all
 *   --policies even,price     policies of the pool
 *   --idle disk               what becomes of sessions that wait: disk, reread or keep
 *   --parking lru             who is parked first: lru, returning, size or clairvoyant
 *   --kind chats              of the synthetic trace: chats, mixed or faithful
 *   --arrivals 2              conversations that come in a second
 *   --steps 100000            steps
 *   --seed 1                  of the synthetic trace
 *   --trace FILE              a recorded one instead (scripts/market/traces.ts says what its lines are)
 *   --save FILE               writes the synthetic trace as such a file
 *   --json FILE               every row as a line of JSON
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { parseBytes } from '../engine/options/parse-budget.ts';
import { bytesText, type CacheShape, type Column, grouped, table } from '../native/index.ts';
import { PARKING_POLICIES, POOL_POLICIES } from '../policy/index.ts';
import { Ladder } from './market/pages.ts';
import { COMPARED, type Simulated, type SimulatedRow, Simulation } from './market/simulation.ts';
import { type Conversation, recordedTrace, syntheticTrace, TRACE_KINDS } from './market/traces.ts';

interface Model {
  readonly shape: CacheShape;
  readonly contextTokens: number;
  readonly budget: string;
  /** Tokens that a machine for it reads and writes in a second, and conversations that come to it: chosen. */
  readonly readsPerSecond: number;
  readonly writesPerSecond: number;
  readonly arrivalsPerSecond: number;
}

/** SmolLM2-135M on a few cores, and Llama 3 8B on a server. */
const MODELS: Readonly<Record<string, Model>> = {
  'smollm2-135m': {
    shape: { layers: 30, queryHeads: 9, kvHeads: 3, headDim: 64 },
    ...{ contextTokens: 8192, budget: '2GiB', readsPerSecond: 2000, writesPerSecond: 1000, arrivalsPerSecond: 0.4 },
  },
  '8b': {
    shape: { layers: 32, queryHeads: 32, kvHeads: 8, headDim: 128 },
    ...{ contextTokens: 32_768, budget: '64GiB', readsPerSecond: 8000, writesPerSecond: 2500, arrivalsPerSecond: 1.2 },
  },
};
const IDLE = ['disk', 'reread', 'keep'] as const;
const LIFE_MS = 30 * 60_000;

export type Row = SimulatedRow & { readonly model: string; readonly seed: number | null; readonly cpuSeconds: number };

const { values } = parseArgs({
  options: {
    model: { type: 'string', default: 'smollm2-135m,8b' },
    policies: { type: 'string', default: POOL_POLICIES.map(({ id }) => id).join(',') },
    idle: { type: 'string', default: 'disk' },
    parking: { type: 'string', default: 'lru' },
    kind: { type: 'string', default: 'chats' },
    steps: { type: 'string', default: '100000' },
    seed: { type: 'string', default: '1' },
    ...{ budget: { type: 'string' }, arrivals: { type: 'string' }, trace: { type: 'string' } },
    ...{ save: { type: 'string' }, json: { type: 'string' } },
  },
});

function refuse(what: string): never {
  console.error(what);
  process.exit(2);
}

const oneOf = <T>(name: string, known: readonly T[], typed: unknown, idOf: (one: T) => unknown): T =>
  known.find((one) => idOf(one) === typed) ?? refuse(`--${name} is one of ${known.map(idOf).join(', ')}`);

function wholeOf(name: string, text: string, least: number): number {
  const value = Number(text);
  return Number.isInteger(value) && value >= least ? value : refuse(`--${name} is a whole number from ${least} on`);
}

const names = values.model.split(',');
const models = names.map((name) => oneOf('model', Object.entries(MODELS), name, ([id]) => id));
const policies = values.policies.split(',').map((id) => oneOf('policies', POOL_POLICIES, id, (one) => one.id));
const parkings = values.parking
  .split(',')
  .map((id) => oneOf('parking', [...PARKING_POLICIES, ...COMPARED], id, (one) => one.id));
const kind = oneOf('kind', TRACE_KINDS, values.kind, (id) => id);
const idles = values.idle.split(',').map((id) => oneOf('idle', IDLE, id, (one) => one));
const stepsMax = wholeOf('steps', values.steps, 1);
const seed = wholeOf('seed', values.seed, 0);
const budgets = values.budget?.split(',');
const arrivals = values.arrivals === undefined ? undefined : Number(values.arrivals);
if (arrivals !== undefined && !(arrivals > 0)) refuse('--arrivals is a number above 0');
const recorded = values.trace === undefined ? null : recordedTrace(values.trace);

function traceOf({ contextTokens, arrivalsPerSecond }: Model): Iterable<Conversation> {
  if (recorded !== null) return recorded;
  const conversations = Number.POSITIVE_INFINITY;
  return syntheticTrace({ kind, seed, conversations, contextTokens, arrivalsPerSecond: arrivals ?? arrivalsPerSecond });
}

function* saved(trace: Iterable<Conversation>, lines: string[]): Generator<Conversation> {
  for (const one of trace) {
    lines.push(`${JSON.stringify(one)}\n`);
    yield one;
  }
}

const COLUMNS: readonly Column<Row>[] = [
  { title: 'model', align: 'left', value: ({ model }) => model },
  { title: 'budget', value: ({ budgetBytes }) => bytesText(budgetBytes) },
  { title: 'policy', align: 'left', value: ({ policy }) => policy },
  { title: 'idle', align: 'left', value: ({ idle }) => idle },
  { title: 'sessions', value: ({ sessions }) => grouped(sessions) },
  { title: 'open', value: ({ openMost }) => grouped(openMost) },
  { title: 'bits', value: ({ meanBits }) => meanBits.toFixed(2) },
  { title: 'worst', value: ({ worstBits }) => worstBits.toFixed(2) },
  { title: 'cost', value: ({ meanDivergence }) => meanDivergence.toFixed(3) },
  { title: 'worst', value: ({ worstDivergence }) => worstDivergence.toFixed(2) },
  { title: 'parking', align: 'left', value: ({ parking }) => parking },
  { title: 'parked', value: ({ parked }) => grouped(parked) },
  { title: 'back', value: ({ cameBack }) => grouped(cameBack) },
  { title: 'refaulted', value: ({ refaultedBytes }) => bytesText(refaultedBytes) },
  { title: 'not lru', value: ({ otherChoices }) => grouped(otherChoices) },
  { title: 'waited', value: ({ waited }) => grouped(waited) },
  { title: 'refused', value: ({ refused }) => grouped(refused) },
  { title: 's lost', value: ({ secondsLost }) => secondsLost.toFixed(0) },
  { title: 'over', value: ({ overBudget }) => grouped(overBudget) },
];

const rows: Row[] = [];
for (const [at, [name, model]] of models.entries()) {
  const budgetBytes = parseBytes((budgets?.length === 1 ? budgets[0] : budgets?.[at]) ?? model.budget, 'budget');
  const { shape, readsPerSecond, writesPerSecond } = model;
  for (const idle of idles)
    for (const [policy, parking] of policies.flatMap((one) => parkings.map((by) => [one, by] as const))) {
      const told: Simulated = {
        ...{ ladder: new Ladder(shape), budgetBytes, policy, parking, idle, readsPerSecond, writesPerSecond },
        ...{ lifeMs: LIFE_MS, stepsMax },
      };
      const lines: string[] = [];
      const trace = values.save === undefined ? traceOf(model) : saved(traceOf(model), lines);
      const startMs = process.cpuUsage().user;
      const row = new Simulation(told, trace).run();
      const cpuSeconds = (process.cpuUsage().user - startMs) / 1e6;
      if (values.save !== undefined) writeFileSync(values.save, lines.join(''));
      rows.push({ model: name, ...row, seed: recorded === null ? seed : null, cpuSeconds });
      console.error(`${name} ${idle} ${policy.id} ${parking.id}: ${cpuSeconds.toFixed(1)} s`);
    }
}
if (values.json !== undefined) writeFileSync(values.json, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
console.log(table(COLUMNS, rows));
if (rows.some(({ overBudget }) => overBudget > 0)) process.exitCode = 1;
