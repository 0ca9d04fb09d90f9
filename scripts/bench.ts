/**
 * `npm run bench -- [words]`: named trials; words filter. Prints machine, instruction set, compiler and versions with the figures.
 *   step   share of scheduler, trials, moves and log in prefill and in decode steps, on SmolLM2 at 4K (or --model NAME, --tokens N)
 *   attention   one decode query over 16K tokens of each format, 9 query and 3 KV heads of 64, one thread, layers taken in turn so that
 *               the caches do not hold them (--tokens N)
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ownProse } from '../engine/cli/start.ts';
import { seeded } from '../engine/evaluate/recall.ts';
import { Runtime } from '../engine/runtime.ts';
import { Session } from '../engine/session.ts';
import { type FormatName, openKvCache, openPool, PAGE_TOKENS } from '../native/index.ts';
import { defaultThresholds } from '../policy/index.ts';
import { openWitnessLog } from '../witness/index.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
const words = process.argv.slice(2);
const take = (name: string, otherwise: string): string => {
  const at = words.indexOf(name);
  return at < 0 ? otherwise : words.splice(at, 2)[1]!;
};
const median = (values: number[]): number => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
const share = (part: number, whole: number): string => `${((100 * part) / whole).toFixed(2)}%`;

async function step(): Promise<void> {
  const model = take('--model', 'smollm2-135m');
  const tokens = Number(take('--tokens', '4096'));
  const steps = Number(take('--steps', '384'));
  const budget = take('--kv-budget', '25%');
  const runtime = await Runtime.open({ model, cacheDir: join(root, '.cache') });
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const log = await openWitnessLog({ dir });
  const session = Session.open(runtime, {
    kvBudget: budget,
    tokensExpected: tokens + steps,
    log,
    thresholds: defaultThresholds(runtime.shape.layers),
  });
  let filler = ownProse(root);
  while (filler.length < tokens * 6) filler += `\n\n${filler}`;
  const ids = runtime.model.tokenizer.encode(filler).slice(0, tokens + steps);
  const overhead = (): number => {
    const r = session.report();
    return r.schedulerMs + r.trialMs + r.transcodeMs + r.witnessMs;
  };
  let start = performance.now();
  await session.read(ids.slice(0, tokens));
  const prefillMs = performance.now() - start;
  const read = session.report();
  const sum = read.schedulerMs + read.trialMs + read.transcodeMs + read.witnessMs;
  console.log(`\nprefill ${tokens} tokens, budget ${budget}: ${((1000 * tokens) / prefillMs).toFixed(0)} tokens/s`);
  console.log(`  dense ${share(read.denseMs, prefillMs)}, attention ${share(read.attentionMs, prefillMs)}`);
  console.log(
    `  scheduler ${share(read.schedulerMs, prefillMs)}, trials ${share(read.trialMs, prefillMs)}, moves ${share(read.transcodeMs, prefillMs)}, log ${share(read.witnessMs, prefillMs)}: together ${share(sum, prefillMs)} (goal: under 15%)`,
  );
  const total: number[] = [];
  const extra: number[] = [];
  for (let i = 0; i < steps; i++) {
    const before = overhead();
    start = performance.now();
    await session.read([ids[tokens + i]!]);
    total.push(performance.now() - start);
    extra.push(overhead() - before);
  }
  const all = total.reduce((a, b) => a + b, 0);
  const spent = extra.reduce((a, b) => a + b, 0);
  const after = session.report();
  const plain = median(total.map((t, i) => t - extra[i]!));
  console.log(
    `decode ${steps} steps from ${tokens} tokens: ${((1000 * steps) / all).toFixed(1)} steps/s, median step ${median(total).toFixed(2)} ms`,
  );
  const part = (of: 'schedulerMs' | 'trialMs' | 'transcodeMs' | 'witnessMs'): string =>
    share(after[of] - read[of], all);
  console.log(
    `  scheduler ${part('schedulerMs')}, trials ${part('trialMs')}, moves ${part('transcodeMs')}, log ${part('witnessMs')}: together ${share(spent, all)} (goal: under 1%)`,
  );
  console.log(
    `  largest overhead of one step ${Math.max(...extra).toFixed(2)} ms, +${share(Math.max(...extra), plain)} of the median step (goal: under +20%); behind the first step, which pays for the prompt's last page, ${Math.max(...extra.slice(1)).toFixed(2)} ms, +${share(Math.max(...extra.slice(1)), plain)}`,
  );
  session.close();
  await log.close();
  rmSync(dir, { recursive: true });
  await runtime.close();
}

const ATTENTION: readonly (readonly [FormatName, FormatName])[] = [
  ['f16', 'f16'],
  ['q8', 'q8'],
  ['rot4', 'rot4'],
  ['rot4', 'rot2'],
  ['rot3', 'rot2'],
  ['rot2', 'rot2'],
];

async function attention(): Promise<void> {
  const tokens = Number(take('--tokens', '16384'));
  // Together above 64 MB in every format, twice the largest cache of the machines this was run on.
  const shape = { layers: 16, queryHeads: 9, kvHeads: 3, headDim: 64 };
  const random = seeded(1);
  const rows = (count: number): Float32Array =>
    Float32Array.from({ length: count * shape.headDim }, () => random() + random() + random() - 1.5);
  const query = rows(shape.queryHeads);
  const out = new Float32Array(query.length);
  console.log(
    `\ndecode attention over ${tokens} tokens, ns per token and KV head, median of 5 rounds over ${shape.layers} layers`,
  );
  let f16 = 0;
  for (const [k, v] of ATTENTION) {
    const pool = openPool(2 ** 34);
    const cache = openKvCache({ shape, pool, windowFormat: k === 'f16' ? 'f16' : 'q8', threads: 1 });
    const page = [rows(PAGE_TOKENS * shape.kvHeads), rows(PAGE_TOKENS * shape.kvHeads)] as const;
    for (let layer = 0; layer < shape.layers; layer++) {
      for (let t = 0; t < tokens; t += PAGE_TOKENS) {
        cache.append(layer, ...page);
        const movable = t / PAGE_TOKENS - 2;
        if (movable < 0 || k === 'f16' || k === 'q8') continue;
        cache.transcode(layer, movable, 'k', k);
        cache.transcode(layer, movable, 'v', v);
      }
    }
    const rounds = Array.from({ length: 6 }, () => {
      const start = performance.now();
      for (let layer = 0; layer < shape.layers; layer++) cache.attend(layer, query, out, { observe: false });
      return performance.now() - start;
    }).slice(1);
    const ns = (median(rounds) * 1e6) / shape.layers / tokens / shape.kvHeads;
    if (k === 'f16') f16 = ns;
    console.log(`  ${`${k}:${v}`.padEnd(10)} ${ns.toFixed(2).padStart(6)}   ${(f16 / ns).toFixed(2)}x f16`);
    cache.close();
    pool.close();
  }
}

const benches: Readonly<Record<string, () => Promise<void>>> = { step, attention };
const { nativeInfo } = await import('../native/index.ts');
const info = nativeInfo();
const commit = (() => {
  try {
    return execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root }).toString().trim();
  } catch {
    return 'unknown';
  }
})();
console.log(
  `${cpus()[0]?.model}, ${cpus().length} cores, ${info.isa}, ${info.compiler}, node ${process.version}, commit ${commit}`,
);
const chosen = Object.keys(benches).filter((name) => words.length === 0 || words.includes(name));
if (chosen.length === 0)
  console.log(`no bench is called ${words.join(' ')}; there are: ${Object.keys(benches).join(' ')}`);
for (const name of chosen) await benches[name]!();
