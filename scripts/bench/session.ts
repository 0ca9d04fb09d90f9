/** A session under a budget: what scheduler, trials, moves and log take of a prompt and of the steps behind it. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ownProse } from '../../engine/cli/start.ts';
import { Runtime } from '../../engine/runtime.ts';
import { Session } from '../../engine/session.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { openWitnessLog } from '../../witness/index.ts';
import type { Bench } from './bench.ts';
import { median } from './measure.ts';

const share = (part: number, whole: number): string => `${((100 * part) / whole).toFixed(2)}%`;

export async function session({ settings, root, say }: Bench): Promise<void> {
  const { model, steps, kvBudget: budget } = settings;
  const runtime = await Runtime.open({ model, cacheDir: join(root, '.cache') });
  const longest = Math.max(0, ...(settings.tokens ?? [])) || 4096;
  const tokens = Math.min(longest, runtime.model.config.contextLength - steps);
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const log = await openWitnessLog({ dir });
  const opened = Session.open(runtime, {
    kvBudget: budget,
    tokensExpected: tokens + steps,
    log,
    thresholds: defaultThresholds(runtime.shape.layers),
  });
  let filler = ownProse(root);
  while (filler.length < tokens * 6) filler += `\n\n${filler}`;
  const ids = runtime.model.tokenizer.encode(filler).slice(0, tokens + steps);
  const overhead = (): number => {
    const r = opened.report();
    return r.schedulerMs + r.trialMs + r.transcodeMs + r.witnessMs;
  };
  let start = performance.now();
  // Tokens follow: what the prompt's last page takes is counted with the prompt.
  await opened.read(ids.slice(0, tokens), { tokensFollow: true });
  const prefillMs = performance.now() - start;
  const read = opened.report();
  const sum = read.schedulerMs + read.trialMs + read.transcodeMs + read.witnessMs;
  say(`\nprefill ${tokens} tokens, budget ${budget}: ${((1000 * tokens) / prefillMs).toFixed(0)} tokens/s`);
  say(`  dense ${share(read.denseMs, prefillMs)}, attention ${share(read.attentionMs, prefillMs)}`);
  say(
    `  scheduler ${share(read.schedulerMs, prefillMs)}, trials ${share(read.trialMs, prefillMs)}, moves ${share(read.transcodeMs, prefillMs)}, log ${share(read.witnessMs, prefillMs)}: together ${share(sum, prefillMs)} (goal: under 15%)`,
  );
  const total: number[] = [];
  const extra: number[] = [];
  for (let i = 0; i < steps; i++) {
    const before = overhead();
    start = performance.now();
    await opened.read([ids[tokens + i]!]);
    total.push(performance.now() - start);
    extra.push(overhead() - before);
  }
  const all = total.reduce((a, b) => a + b, 0);
  const spent = extra.reduce((a, b) => a + b, 0);
  const after = opened.report();
  const plain = median(total.map((t, i) => t - extra[i]!));
  say(
    `decode ${steps} steps from ${tokens} tokens: ${((1000 * steps) / all).toFixed(1)} steps/s, median step ${median(total).toFixed(2)} ms`,
  );
  const part = (of: 'schedulerMs' | 'trialMs' | 'transcodeMs' | 'witnessMs'): string =>
    share(after[of] - read[of], all);
  say(
    `  scheduler ${part('schedulerMs')}, trials ${part('trialMs')}, moves ${part('transcodeMs')}, log ${part('witnessMs')}: together ${share(spent, all)} (goal: under 1%)`,
  );
  say(
    `  largest overhead of one step ${Math.max(...extra).toFixed(2)} ms, +${share(Math.max(...extra), plain)} of the median step (goal: under +20%)`,
  );
  opened.close();
  await log.close();
  rmSync(dir, { recursive: true });
  await runtime.close();
}
