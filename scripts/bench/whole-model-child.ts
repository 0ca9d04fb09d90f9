/**
 * Answers the requests of `machines` and `many` for our own engine, in a process of its own for every instruction set
 * and model, as test/bench/peers/llama.mjs does for llama.cpp: { id, op: 'load', model, isa, threads } · { id, op:
 * 'prefill', tokens } · { id, op: 'decodeFrom', sequences, depth, room } · { id, op: 'decode', steps } · { id, op:
 * 'bits', sequences, depth, steps } · { id, op: 'memory' }.
 */
import { createInterface } from 'node:readline';
import type { Isa } from '../../native/index.ts';
import { WholeModel } from './whole-model.ts';

interface Request {
  readonly id: number;
  readonly op: string;
  readonly model: string;
  readonly isa: Isa;
  readonly threads: number;
  readonly tokens: number;
  readonly sequences: number;
  readonly depth: number;
  readonly room: number;
  readonly steps: number;
}

const loaded: { model?: WholeModel } = {};

async function answer({ op, ...given }: Request): Promise<object> {
  if (op === 'load') {
    const model = await WholeModel.open(given.model, given.isa, given.threads);
    loaded.model = model;
    return { cpuSeconds: model.loadCpuSeconds, weightTypes: model.weightTypes };
  }
  const { model } = loaded;
  if (model === undefined) throw new Error('load comes first');
  if (op === 'prefill') return model.prefill(given.tokens);
  if (op === 'decode') return model.decode(given.steps);
  if (op === 'memory') return { residentBytes: model.residentBytes() };
  const { sequences, depth, steps, room } = given;
  if (op === 'bits') return { areEqual: await model.areBitsEqual(sequences, depth, steps) };
  model.decodeFrom(sequences, depth, room);
  return {};
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line) as Request;
  try {
    console.log(JSON.stringify({ id: request.id, ...(await answer(request)) }));
  } catch (error) {
    console.log(JSON.stringify({ id: request.id, error: (error as Error).message }));
  }
}
await loaded.model?.close();
