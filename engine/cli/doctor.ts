/** `palimpsest doctor` shows which settings were requested, which are in effect, and what a context length would cost. */
import { existsSync, statSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { resolve } from 'node:path';
import {
  type BindingName,
  bytesText,
  columnsOf,
  FORMAT_NAMES,
  heldBytesMost,
  type Isa,
  jsonText,
  KvError,
  nativeInfo,
  percent,
  printable,
  setIsa,
  table,
  useBinding,
} from '../../native/index.ts';
import { forecast } from '../budget.ts';
import { chooseDense } from '../model/dense-choice.ts';
import { loadModel } from '../model/load.ts';
import { defaultThreads } from '../runtime.ts';
import { flag, number, type Settings, text } from './options.ts';

export async function doctor(settings: Settings): Promise<void> {
  const binding = text(settings, 'binding') as BindingName | undefined;
  if (binding !== undefined) useBinding(binding);
  const isa = text(settings, 'isa') as Isa | undefined;
  if (isa !== undefined) setIsa(isa);
  const native = nativeInfo();
  const name = text(settings, 'model') ?? 'reference';
  const state = resolve(text(settings, 'state') ?? '.palimpsest');
  if (existsSync(state) && !statSync(state).isDirectory())
    throw new KvError('bad-argument', `the state folder ${state} is a file`, {
      values: { state },
      hint: 'name another with --state',
    });
  const model = await loadModel(name, { cacheDir: text(settings, 'cache') ?? '.cache' });
  try {
    const { layers, queryHeads, kvHeads, headDim, contextLength } = model.config;
    const tokens = number(settings, 'tokens') ?? contextLength;
    const cost = forecast({ layers, queryHeads, kvHeads, headDim }, tokens);
    const precision = (text(settings, 'dense') as 'auto' | 'exact' | undefined) ?? 'auto';
    const dense = await chooseDense(precision);
    const facts = {
      node: process.version,
      cpu: cpus()[0]?.model ?? 'unknown',
      cores: cpus().length,
      memoryBytes: totalmem(),
      isaRequested: isa ?? 'best',
      isaEffective: native.isa,
      isaAvailable: native.available,
      bindingRequested: binding ?? 'best',
      bindingEffective: native.binding,
      bindingFile: native.file,
      bindingPassedOver: native.passedOver,
      compiler: native.compiler,
      threadsRequested: number(settings, 'threads') ?? null,
      threadsEffective: number(settings, 'threads') ?? defaultThreads(),
      formats: FORMAT_NAMES,
      dense: dense.name,
      denseWhy: dense.why,
      model: model.name,
      modelPath: model.path,
      modelSummary: model.summary,
      stateDir: state,
      stateExists: existsSync(state),
      forecast: cost,
    };
    if (flag(settings, 'json')) {
      process.stdout.write(`${jsonText(facts)}\n`);
      return;
    }
    const rows: [string, string][] = [
      ['node', facts.node],
      ['processor', `${facts.cpu}, ${facts.cores} cores, ${bytesText(facts.memoryBytes)}`],
      ['kernels', `${facts.isaEffective} (asked for: ${facts.isaRequested}), ${facts.compiler}`],
      ['', `this machine runs ${facts.isaAvailable.join(' ')}`],
      ['binding', `${facts.bindingEffective} (asked for: ${facts.bindingRequested})`],
      ...(facts.bindingPassedOver === null ? [] : [['', facts.bindingPassedOver] as [string, string]]),
      ['threads', `${facts.threadsEffective} (asked for: ${facts.threadsRequested ?? 'all cores it may use'})`],
      ['dense half', `${facts.dense}: ${facts.denseWhy}`],
      ['formats', facts.formats.join(' ')],
      [
        'model',
        `${facts.model}: ${layers} layers, ${queryHeads}/${kvHeads} heads of ${headDim}, context ${contextLength}`,
      ],
      ['state', `${state}${facts.stateExists ? '' : ' (not there yet)'}`],
    ];
    process.stdout.write(`${rows.map(([key, value]) => `${key.padEnd(11)} ${printable(value)}`).join('\n')}\n\n`);
    process.stdout.write(
      `KV memory for ${tokens} tokens (f16: ${bytesText(cost.f16Bytes)}; window and sinks: ${bytesText(cost.fixedBytes)})\n`,
    );
    process.stdout.write(
      `${table(
        [
          { title: 'K:V', align: 'left', value: ({ pair }) => pair },
          { title: 'bytes', value: (pair) => bytesText(pair.bytes) },
          { title: 'held at most', value: (pair) => bytesText(heldBytesMost(pair.bytes)) },
          { title: 'of f16', value: (pair) => percent(pair.bytes / Math.max(1, cost.f16Bytes)) },
          { title: 'bits', value: (pair) => pair.effectiveBits.toFixed(2) },
        ],
        cost.pairs,
        columnsOf(process.stdout),
      )}\n`,
    );
  } finally {
    model.weights.close();
  }
}
