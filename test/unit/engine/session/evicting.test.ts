/**
 * Sessions whose policies let whole pages go: they read and answer within a budget that no formats could keep, go on in
 * forks and from files, come back from what was aborted or taken back, and say which pages are gone.
 */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { parseParked } from '../../../../engine/session/park/parked-file.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { isFreed } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { familyTokens, hfFiles, readFamily } from '../../../model/family-files.ts';
import { refused } from '../../../refusal.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const models = temporaryFolder();
afterAll(() => models.remove());
const text = familyTokens(1500);

describe.each(['llama', 'mistral'])('a session of %s', (name) => {
  let runtime: Runtime;
  beforeAll(async () => {
    for (const [file, content] of Object.entries(hfFiles(readFamily(name)))) models.write(`${name}/${file}`, content);
    runtime = await Runtime.open({ model: join(models.dir, name), threads: 1 });
  });
  afterAll(() => runtime.close());
  const setup = (policy: string): Parameters<typeof Session.open>[1] => {
    const options: SessionOptions = { policy, kvBudget: '20%', tokensExpected: 1500 };
    return { ...options, log: null, thresholds: defaultThresholds(runtime.shape.layers) };
  };
  const freedIn = ({ cache, governed }: Session): number =>
    Array.from({ length: governed.shape.layers }, (_, layer) => {
      const table = cache.table(layer);
      return Array.from({ length: table.pages }, (_page, page) => isFreed(table, page)).filter(Boolean).length;
    }).reduce((sum, one) => sum + one, 0);

  async function greedy(session: Session, maxTokens: number, prompt: readonly number[]): Promise<number[]> {
    const before = session.length;
    for await (const _ of session.generate(prompt, { maxTokens, temperature: 0 }));
    return session.tokens.slice(before + prompt.length);
  }
  const within = (session: Session): void =>
    expect(session.cache.usedBytes).toBeLessThanOrEqual(session.governed.terms.budgetBytes!);

  it.each(['streaming-pages', 'h2o-pages', 'pyramidkv-pages'])('goes on under %s', async (policy) => {
    const session = Session.open(runtime, setup(policy));
    await session.read(text.slice(0, 1000));
    within(session);
    const gone = freedIn(session);
    expect(gone).toBeGreaterThan(3);
    const shown = session.report().layers.reduce((sum, { vPages }) => sum + (vPages['freed'] ?? 0), 0);
    expect(shown).toBe(gone);
    const bytes = parkedBytes(session);
    const { session: back, resumed } = await resumeSession(runtime, setup(policy), parseParked(bytes, 'parked'));
    expect(resumed.by).toBe('pages');
    expect(freedIn(back)).toBe(gone);
    const question = text.slice(1000, 1030);
    const answer = await greedy(session, 30, question);
    expect(await greedy(back, 30, question)).toEqual(answer);
    const fork = session.fork();
    expect(await greedy(fork, 30, question)).toHaveLength(30);
    fork.close();
    back.close();
    const stop = new AbortController();
    const reading = session.read(text.slice(1030, 1450), {
      signal: stop.signal,
      onProgress: ({ tokens }) => {
        if (tokens >= 128) stop.abort();
      },
    });
    expect((await refused(reading)).code).toBe('aborted');
    expect(session.length).toBe(1060);
    await session.follow([...session.tokens.slice(0, 900), ...text.slice(1100, 1400)]);
    within(session);
    expect(await greedy(session, 10, question)).toHaveLength(10);
    within(session);
    session.close();
  });
});
