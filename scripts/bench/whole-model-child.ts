/**
 * Answers the requests of `machines` for our own engine, in a process of its own for every instruction set and model,
 * as test/bench/peers/llama.mjs does for llama.cpp: { id, op: 'load', model, isa } · { id, op: 'prefill', tokens } · {
 * id, op: 'decodeFrom', depth, room } · { id, op: 'decode', steps } · { id, op: 'memory' }.
 */
import { createInterface } from 'node:readline';
import type { Isa } from '../../native/index.ts';
import { WholeModel } from './whole-model.ts';

interface Request {
  readonly id: number;
  readonly op: string;
  readonly model: string;
  readonly isa: Isa;
  readonly tokens: number;
  readonly depth: number;
  readonly room: number;
  readonly steps: number;
}

const loaded: { model?: WholeModel } = {};

async function answer({ op, ...given }: Request): Promise<object> {
  if (op === 'load') {
    const model = await WholeModel.open(given.model, given.isa);
    loaded.model = model;
    return { cpuSeconds: model.loadCpuSeconds, weightTypes: model.weightTypes };
  }
  const { model } = loaded;
  if (model === undefined) throw new Error('load comes first');
  if (op === 'prefill') return { seconds: await model.prefill(given.tokens) };
  if (op === 'decode') return { seconds: await model.decode(given.steps) };
  if (op === 'memory') return { residentBytes: model.residentBytes() };
  model.decodeFrom(given.depth, given.room);
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
