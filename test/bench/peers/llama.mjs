/**
 * llama.cpp through node-llama-cpp, as a server on standard input and output, so that its steps can be timed in turn
 * with ours. One JSON object per line. Requests: { id, op: 'load', model } · { id, op: 'open', model, type, threads,
 * depth, read, sequences, context, room } · { id, op: 'step', context, count } · { id, op: 'together', context, count }
 * · { id, op: 'close', context } · { id, op: 'prefill', model, tokens, threads } · { id, op: 'memory' }. Answers: { id,
 * … } or { id, error }; also { id, op: 'next', model, tokens, positions }.
 *
 * A context of some depth is not read token by token, which takes half an hour where the cache is quantized: a short
 * text (`read` tokens) is read, its saved state is written again with the same rows repeated, and loaded. What the rows
 * say does not change what reading them costs.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

/** Tokens that are read for real. */
const READ = 64;
/** Steps that a context leaves room for, where nothing else is asked. */
const ROOM = 128;
/** Tokens that are read at once: what llama.cpp takes by default. */
const BATCH = 512;

const folder = mkdtempSync(join(tmpdir(), 'palimpsest-peer-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

const llama = await getLlama({ gpu: false, build: 'never', logLevel: LlamaLogLevel.error });
const models = new Map();
const contexts = new Map();

/**
 * A saved sequence of n cells as one of `depth` cells, the rows of each layer repeated. Layout of version 3 of the
 * file.
 */
function deepen(saved, depth) {
  let at = 0;
  const u32 = () => saved.readUInt32LE((at += 4) - 4);
  const u64 = () => Number(saved.readBigUInt64LE((at += 8) - 8));
  const expect = (is, what) => {
    if (!is) throw new Error(`the saved state of this llama.cpp is not laid out as expected: ${what}`);
  };
  const parts = [];
  const put32 = (...numbers) => parts.push(Buffer.from(Uint32Array.from(numbers).buffer));
  const magic = u32();
  const version = u32();
  expect(version === 3, `version ${version}`);
  const tokens = Array.from({ length: u32() }, u32);
  put32(magic, version, depth, ...Array.from({ length: depth }, (_, i) => tokens[i % tokens.length]));
  const streams = u32();
  put32(streams);
  for (let stream = 0; stream < streams; stream++) {
    const cells = u32();
    // A context has a stream for each of its sequences, and others than the saved one are empty.
    if (cells === 0) {
      put32(0);
      continue;
    }
    expect(cells === tokens.length, `${cells} cells`);
    for (let i = 0; i < cells; i++) expect(u32() === i && u32() === 1 && u32() === 0, `cell ${i}`);
    put32(depth, ...Array.from({ length: depth }, (_, i) => [i, 1, 0]).flat());
    const transposed = u32();
    expect(transposed === 0, 'transposed values');
    const layers = u32();
    put32(transposed, layers);
    for (let matrix = 0; matrix < 2 * layers; matrix++) {
      put32(u32());
      const row = u64();
      const size = Buffer.alloc(8);
      size.writeBigUInt64LE(BigInt(row));
      parts.push(size);
      const rows = saved.subarray(at, (at += row * cells));
      const deep = Buffer.alloc(row * depth);
      for (let i = 0; i < depth; i += cells) rows.copy(deep, i * row, 0, Math.min(cells, depth - i) * row);
      parts.push(deep);
    }
  }
  expect(at === saved.length, `${saved.length - at} bytes more`);
  return Buffer.concat(parts);
}

/** What some work takes: processor time, and the clock. */
async function took(work) {
  const start = performance.now();
  const cpu = now(1);
  await work();
  return { cpuSeconds: now(1) - cpu, seconds: (performance.now() - start) / 1000 };
}

/** One thread: processor time; several: the clock. As everything this is compared with. */
function now(threads) {
  if (threads > 1) return performance.now() / 1000;
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

const words = (count) => Array.from({ length: count }, (_, i) => 300 + ((i * 7919) % 30000));

/** Libraries of kernels in this process: which kind of CPU they are for is in their names. Linux alone tells. */
function libraries() {
  if (process.platform !== 'linux') return [];
  return [...new Set(readFileSync('/proc/self/maps', 'utf8').match(/[^\s/]*libggml-cpu[^\s/]*/g) ?? [])];
}

async function loaded(model) {
  if (!models.has(model)) models.set(model, await llama.loadModel({ modelPath: model }));
  return models.get(model);
}

/** Contexts that prompts are read in, by model and threads. */
const readers = new Map();
async function reader(model, tokens, threads) {
  const name = `${model} ${tokens} ${threads}`;
  if (!readers.has(name)) {
    const context = await (await loaded(model)).createContext({
      contextSize: tokens + 1,
      batchSize: BATCH,
      threads: { ideal: threads, min: threads },
      flashAttention: true,
    });
    readers.set(name, context.getSequence());
  }
  return readers.get(name);
}

const operations = {
  /** → seconds of the processor, and libraries */
  async load({ model }) {
    const start = now(1);
    await loaded(model);
    return { cpuSeconds: now(1) - start, libraries: libraries() };
  },
  /** → what it takes to read the tokens */
  async prefill({ model, tokens, threads }) {
    const sequence = await reader(model, tokens, threads);
    await sequence.clearHistory();
    return took(() => sequence.evaluateWithoutGeneratingNewTokens(words(tokens)));
  },
  /** → the likeliest tokens behind some of these, each with the logarithm of its probability */
  async next({ model, tokens, positions }) {
    const context = await (await loaded(model)).createContext({ contextSize: tokens.length, batchSize: BATCH });
    const asked = { generateNext: { probabilities: true } };
    const given = tokens.map((token, at) => (positions.includes(at) ? [token, asked] : token));
    const found = await context.getSequence().controlledEvaluate(given);
    await context.dispose();
    const logs = ({ next }) => [...next.probabilities].map(([token, share]) => [token, Math.log(share)]);
    return { rows: positions.map((at) => logs(found[at])) };
  },
  memory: () => ({ residentBytes: process.memoryUsage.rss() }),
  async open({ model, type, threads, depth, read = READ, sequences = 1, context, room = ROOM }) {
    const opened = await (await loaded(model)).createContext({
      sequences,
      contextSize: Math.max(depth, read) + room,
      batchSize: BATCH,
      threads: { ideal: threads, min: threads },
      flashAttention: true,
      experimentalKvCacheKeyType: type,
      experimentalKvCacheValueType: type,
    });
    const all = Array.from({ length: sequences }, () => opened.getSequence());
    if (depth > 0) {
      const file = join(folder, 'state');
      await all[0].evaluateWithoutGeneratingNewTokens(words(read));
      await all[0].saveStateToFile(file);
      if (depth !== read) writeFileSync(file, deepen(readFileSync(file), depth));
      for (const sequence of depth === read ? all.slice(1) : all) {
        await sequence.loadStateFromFile(file, { acceptRisk: true });
      }
      rmSync(file);
    }
    const steps = all.map((sequence, i) => sequence.evaluate([301 + i], { temperature: 0, yieldEogToken: true }));
    contexts.set(context, { opened, steps, threads });
    await Promise.all(steps.map((one) => one.next()));
    return { depth: all[0].nextTokenIndex };
  },
  /** All sequences of a context step at the same time. → what that takes, and how many batches were decoded for it */
  async together({ context, count }) {
    const { opened, steps } = contexts.get(context);
    const addon = opened._ctx;
    const decode = addon.decodeBatch;
    let batches = 0;
    const counted = () => {
      batches++;
      return decode.call(addon);
    };
    Object.defineProperty(addon, 'decodeBatch', { value: counted, configurable: true });
    try {
      const time = await took(async () => {
        for (let i = 0; i < count; i++) {
          const results = await Promise.all(steps.map((one) => one.next()));
          if (results.some(({ done }) => done)) throw new Error('the context is full');
        }
      });
      return { ...time, batches };
    } finally {
      delete addon.decodeBatch;
    }
  },
  /** → seconds of each step */
  async step({ context, count }) {
    const { steps, threads } = contexts.get(context);
    const seconds = [];
    for (let i = 0; i < count; i++) {
      const start = now(threads);
      const { done } = await steps[0].next();
      if (done) throw new Error('the context is full');
      seconds.push(now(threads) - start);
    }
    return { seconds };
  },
  async close({ context }) {
    await contexts.get(context).opened.dispose();
    contexts.delete(context);
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, op, ...rest } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ id, ...(await operations[op](rest)) }));
  } catch (error) {
    console.log(JSON.stringify({ id, error: String(error?.message ?? error) }));
  }
}
process.exit(0);
