/**
 * `npm run bench -- [names] [flags]` measures speed, and compares it with how fast this machine reads memory. Without
 * names, it runs every bench except those that run alone.
 *   attention   one decode query over 16K and 64K tokens (with --full: 1K to 256K, and every head size)
 *   prefill     a page of queries over 4K and 16K tokens
 *   demote      sealing a page, moving it between formats and decoding it
 *   trial       measuring what one page would lose in every lower format
 *   remat       recomputing the keys and values of a page from its latent
 *   park        parking a session and putting it back, beside reading its tokens
 *   step        decode steps of whole models at 0 to 32K tokens, and what a session under a budget spends on its
 *               decisions
 *   retrieval   runs alone: looking up earlier sessions among a million, embedded and on a Qdrant server
 *   machines    runs alone: whole models on every instruction set of this processor, beside llama.cpp with the same one
 *   many        runs alone: several sequences decoded in one pass, and prompts, beside llama.cpp and ik_llama.cpp
 *   log         runs alone: appending decisions to a witness log, reading and verifying it
 *   audit       runs alone: lists, counts and comparisons over a log of a million entries, read from it and answered by
 *               its SQL tables
 *   grammar     runs alone: following a JSON schema or a grammar, token by token, over the vocabulary of SmolLM2
 *   dense       runs alone: the matrices of a model for 1 to 128 rows in one pass over the weights, of 16 and of 8 bits
 *   adapters    runs alone: the matrices of a model with low-rank adapters, of one row and of four with different ones;
 *               and having one of a thousand at hand
 *   held        runs alone: what holding adapters in 8 bits costs, in nats, in float32 otherwise; takes minutes
 *   activations runs alone: a model with activations of 16 bits and of 8, divergence and time; with --tokens N the
 *               divergence of caches within budgets
 *   lookup      runs alone: answers with prompt look-up decoding and without
 *   prefix      runs alone: the first token of a session whose text begins as that of another one
 *   begin       runs alone: what it takes to find whose pages a session can begin with, beside many others
 *   helpers     runs alone: answers beside helpers that work, crash, hang or run out of memory, and what their hints
 *               change in what sessions find and decide
 *   http        runs alone: the server for OpenAI clients beside the library, asked by 1, 4 and 16 clients at once
 *   load        runs alone: a server that 16 and then 64 clients ask for ten minutes each, and where --peer names its
 *               program a llama-server behind each
 *   crowd       runs alone: sessions on memory for half of them, beside one of 16K tokens, and 200 that wait
 *   packs       runs alone: what kernel packs cost beside native code, and what fuel costs them
 *   build       runs alone: what `npm start` takes in a fresh copy without a compiler cache, and how large the addon is
 *   memory      runs alone: the memory that the process holds during 100,000 random steps of three caches on one pool
 * Flags
 *   --peers             machines and many also measure llama.cpp, many ik_llama.cpp as well; attention and step also
 *                       measure onnxruntime-node's GroupQueryAttention and llama.cpp in the same rounds
 *   --full              measures everything instead of a selection that takes three minutes
 *   --shapes LIST       query heads/KV headsxhead size, comma-separated: 9/3x64,16/4x64
 *   --formats LIST      K:V pairs: f16,rot4:rot2
 *   --yardsticks        computes with a build that has the yardsticks as well, and then takes their names:
 *                       turbo4:turbo2
 *   --tokens LIST       tokens of history, whole pages of 128: 16384,65536
 *   --threads LIST      1,2 (default 1)
 *   --isa NAME          scalar, avx2, avx2vnni, avx512vnni, neon, neondot, neoni8mm (default: the best here; machines
 *                       and many take a list, and measure all by default)
 *   --models LIST       what machines and many measure: smollm2,llama-1b,qwen2-0.5b
 *   --sequences LIST    how many sequences many decodes together (default 1,2,4,8,16)
 *   --quick             machines measures one round and no long history, many one and its shortest, crowd less of each
 *                       part
 *   --parts LIST        what crowd measures: pool,hog,waiting
 *   --clients LIST      how many ask at once in load (default 16,64), and
 *   --minutes N         for how long (default 10)
 *   --peer PROGRAM      a llama-server, which load asks too (default none)
 *   --sessions N        sessions that retrieval looks among (default 1,000,000)
 *   --entries N         entries of the log that audit asks (default 1,000,000)
 *   --over LIST         what audit asks: log,vectors,pglite,postgres
 *   --keep DIR          audit makes log and tables there, or asks those of an earlier run: only asking then needs a
 *                       quiet machine
 *   --indexes LIST      what retrieval measures: hnsw,qdrant,rebuild
 *   --rounds N          interleaved rounds for each figure (default 11)
 *   --json FILE         writes every row to a file
 *   --table             prints Markdown tables of all rows at the end
 *   --model NAME        for step, park, activations and crowd
 *   --steps N, --kv-budget PART   for step
 */
import { writeFileSync } from 'node:fs';
import { loadavg } from 'node:os';
import { fileURLToPath } from 'node:url';
import { seeded } from '../../engine/evaluate/recall.ts';
import { KvError, nativeInfo, setIsa } from '../../native/index.ts';
import { activationQuality, activations, heldOut } from './activations.ts';
import { adapters } from './adapters.ts';
import { attention } from './attention.ts';
import { audit } from './audit.ts';
import type { Bench } from './bench.ts';
import { build } from './build.ts';
import { crowd } from './crowd.ts';
import { demote } from './demote.ts';
import { dense } from './dense.ts';
import { grammar } from './grammar.ts';
import { heldAdapters } from './held-adapters.ts';
import { helpers } from './helpers.ts';
import { http } from './http.ts';
import { load } from './load.ts';
import { log } from './log.ts';
import { lookup } from './lookup.ts';
import { machine } from './machine.ts';
import { machines } from './machines.ts';
import { many } from './many.ts';
import { typical } from './measure.ts';
import { memory } from './memory.ts';
import { packs } from './packs.ts';
import { park } from './park.ts';
import { prefill } from './prefill.ts';
import { prefix } from './prefix.ts';
import { begin } from './prefix-begin.ts';
import { remat } from './remat.ts';
import { retrieval } from './retrieval.ts';
import { type BenchFile, type BenchRow, benchFile, violations } from './rows.ts';
import { type Command, readCommand } from './settings.ts';
import { step } from './step.ts';
import { openStream, STREAM_BYTES, StreamRecord } from './stream.ts';
import { markdown } from './table.ts';
import { trial } from './trial.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

const BENCHES: Readonly<Record<string, (bench: Bench) => Promise<void>>> = {
  attention,
  prefill,
  demote,
  trial,
  remat,
  park,
  step,
};

/** Benches with a command to themselves. */
const ALONE: Readonly<Record<string, (say: (line: string) => void, command: Command) => Promise<unknown>>> = {
  memory: async (say, { json }) => memory(say, json),
  build: async (say, { json }) => build(say, { root, json }),
  machines: (say, { isas, models, quick, json, settings: { peers, rounds } }) =>
    machines(say, { isas, models, quick, peers, rounds, json }),
  many: (say, { isas, models, sequences, quick, json, settings: { tokens, threads, peers, rounds } }) =>
    many(say, { isas, models, sequences, depths: tokens, threads, peers, quick, rounds, json }),
  log: (say, { json }) => log(say, json),
  retrieval: (say, { settings, indexes, json }) => retrieval(say, { count: settings.sessions, indexes, json }),
  audit: (say, { settings, over, keep, json }) => audit(say, { entries: settings.entries, over, keep, json }),
  grammar: (say, { settings: { rounds }, json }) => grammar(say, { rounds, json }),
  dense: async (say, { settings: { rounds, threads }, isas, json }) =>
    dense(say, { rounds, threads: threads[0]!, isas, json }),
  adapters: (say, { settings: { rounds, threads }, isas, json }) =>
    adapters(say, { rounds, threads: threads[0]!, isas, json }),
  held: (say, { json }) => heldAdapters(say, { root, json }),
  activations: (say, { settings: { rounds, threads, model, tokens }, json }) => {
    const common = { texts: heldOut(root), model, threads: threads[0]!, json };
    const length = tokens?.[0];
    return length === undefined
      ? activations(say, { ...common, rounds })
      : activationQuality(say, { ...common, tokens: length });
  },
  lookup: (say, { settings: { rounds }, json }) => lookup(say, { root, rounds, json }),
  crowd: (say, { parts, quick, json, settings: { model, threads, rounds } }) =>
    crowd(say, { parts, model, threads, quick, rounds, json }),
  packs: (say, { settings: { rounds }, json }) => packs(say, { root, rounds, json }),
  helpers: (say, { settings: { rounds }, json }) => helpers(say, { root, model: 'reference', rounds, json }),
  prefix: (say, { settings: { rounds }, json }) => prefix(say, { rounds, json }),
  begin: (say, { settings: { rounds }, json }) => begin(say, { rounds, json }),
  http: (say, { settings: { rounds, threads, model }, json }) =>
    http(say, { model, threads: threads[0]!, rounds, json }),
  load: (say, { clients, minutes, peer, json, settings: { threads, model } }) =>
    load(say, { root, model, threads: threads[0]!, clients, minutes, peer, json }),
};

async function main(): Promise<void> {
  const command = readCommand(process.argv.slice(2));
  const { names: asked, settings, isas, json, table } = command;
  const alone = asked.length === 1 ? ALONE[asked[0]!] : undefined;
  if (alone !== undefined) {
    // This comes before the read stream, whose memory must not be measured.
    await alone((line) => console.log(line), command);
    return;
  }
  const names = asked.length === 0 ? Object.keys(BENCHES) : asked;
  const unknown = names.filter((name) => !Object.hasOwn(BENCHES, name));
  if (unknown.length > 0) {
    throw new KvError('bad-argument', `there is no bench called ${unknown.join(', ')}`, {
      hint: `the benches are ${Object.keys(BENCHES).join(', ')}`,
    });
  }
  if (isas !== null) setIsa(isas[0]!);
  const stream = new StreamRecord(openStream(STREAM_BYTES));
  const about = machine();
  const say = (line: string): void => console.log(line);
  say(
    `${about.cpu}, ${about.cores} cores, ${about.isa}, ${about.compiler}, node ${about.node}, commit ${about.commit}`,
  );
  say(`read stream: ${stream.handle.way}, ${stream.handle.bytes / 2 ** 20} MB, in 2 MB pages if the system has them`);
  for (const threads of new Set([1, ...settings.threads, about.cores])) {
    const gb = stream.gbPerSecond(typical(Array.from({ length: 9 }, () => stream.sample(threads))));
    say(`  ${threads} ${threads === 1 ? 'thread' : 'threads'}: ${gb.toFixed(1)} GB/s`);
  }
  const [load = 0] = loadavg();
  const wanted = Math.max(...settings.threads);
  if (load + wanted > about.cores + 0.5) {
    say(
      `  other programs keep ${load.toFixed(1)} of ${about.cores} cores busy: ratios with one thread are reliable${wanted > 1 ? ', figures with several threads are not' : ''}`,
    );
  }
  const rows: BenchRow[] = [];
  const bench: Bench = {
    settings,
    stream,
    isa: nativeInfo().isa,
    root,
    random: seeded(1),
    add: (row) => rows.push(row),
    say,
  };
  for (const name of names) await BENCHES[name]!(bench);
  const file: BenchFile = {
    machine: about,
    stream: stream.threads.map((threads) => ({
      threads,
      gbPerSecond: stream.gbPerSecond(typical(stream.samples(threads))),
      bestGbPerSecond: stream.best(threads),
    })),
    rows,
  };
  if (table) for (const line of markdown(rows)) say(line);
  if (json !== null) writeFileSync(json, `${JSON.stringify(benchFile.parse(file), null, 1)}\n`);
  const wrong = violations(file);
  for (const { row, rule, what } of wrong) {
    console.error(
      `!!! ${rule}: ${row.bench} ${row.shape} ${row.format} at ${row.tokens} tokens ${what}, so the bench or its baseline is wrong`,
    );
  }
  if (wrong.length > 0) process.exitCode = 1;
}

main().catch((error: unknown) => {
  if (!(error instanceof KvError)) throw error;
  console.error(`${error.message}${error.hint === undefined ? '' : `\n${error.hint}`}`);
  process.exitCode = 2;
});
