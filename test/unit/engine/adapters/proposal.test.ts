// What earlier sessions used is proposed for texts like theirs, on the reference model: the adapter of a kind of text,
// none where the model answered by itself or little is known; the log says why and decides it again; a session or a
// request takes what is proposed where it asks for that; and what is expected to be used stays in memory.
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Adapters } from '../../../../engine/adapters/adapters.ts';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { AdapterRegistry } from '../../../../engine/adapters/registry.ts';
import { createEngine, type Engine, serve } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { explain, readLog, replay, timeline, timelineText } from '../../../../witness/index.ts';
import { entriesOf, MODEL } from '../on-reference.ts';
import { temporaryFolder } from '../transformer/model-files.ts';
import { lowRank, matricesOf, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const folder = temporaryFolder();
const STATE = join(folder.dir, 'state');
const digests: Record<string, string> = {};
let engine: Engine;

/** Texts of a kind, each of them another one. */
const TEXTS: Readonly<Record<'code' | 'german' | 'story', (n: number) => string>> = {
  code: (n) =>
    Array.from({ length: 20 }, (_, i) => `if (x[${i * n + 7}] >= 0x${(i * n).toString(16)}) { y += ${i}; }`).join('\n'),
  german: (n) =>
    Array.from(
      { length: 8 },
      (_, i) => `Über ${i + n} Äcker führte größere Mühsal täglich höher, während schöne Blüten früh verblühten.`,
    ).join(' '),
  story: (n) =>
    Array.from({ length: 20 }, (_, i) => `Then they walked to the old house by the sea, ${n + i} steps away.`).join(
      ' ',
    ),
};

beforeAll(async () => {
  const model = await loadModel(MODEL);
  const registry = new AdapterRegistry(STATE);
  for (const [i, name] of ['python', 'deutsch'].entries()) {
    const factors = lowRank(matricesOf(model.config), () => 4, 70 + i, 0.4);
    const path = writePeft(folder, name, peftConfig({ r: 4 }), peftTensors(factors));
    digests[name] = registry.add(name, readAdapter(path, model), model).digest;
  }
  model.weights.close();
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: STATE });
});
afterAll(async () => {
  await engine?.close();
  folder.remove();
});

/** The timeline of a session, however its lines are broken. */
const told = (id: string): string => timelineText(id, timeline(logDir(STATE), id)).replace(/\s+/g, ' ');

type SessionOptions = NonNullable<Parameters<Engine['openSession']>[0]>;

/** A session that reads a text. → its id */
async function read(text: string, options: SessionOptions = {}, end: 'done' | 'error' = 'done'): Promise<string> {
  const session = await engine.openSession({ tokensExpected: 1500, ...options });
  await session.generate(text, { maxTokens: 2, temperature: 0 }).result;
  await session.close(end);
  return session.id;
}

test('nothing is proposed before anything is known, nor for a text too short to say what it is', async () => {
  const nothing = await engine.adapters.propose(TEXTS.code(1));
  expect(nothing).toMatchObject({ adapters: [], placed: [], missing: [], seen: [], bits: null });
  expect(nothing.because).toMatchObject({ rule: 'proposal-evidence', measured: 0, bound: 1.25 });
  const short = await engine.adapters.propose('Only a few words.');
  expect(short.because).toMatchObject({ rule: 'proposal-text', bound: 256, unit: 'tokens' });
});

test('what sessions with such texts used is proposed, with the scale, where it is, and who says so', async () => {
  for (const n of [2, 3]) {
    await read(TEXTS.code(n), { adapters: [{ name: 'python', scale: 0.5 }] });
    await read(TEXTS.german(n), { adapters: [{ name: 'deutsch' }] });
    await read(TEXTS.story(n));
  }
  // One that failed speaks for nothing.
  await read(TEXTS.story(9), { adapters: [{ name: 'python' }] }, 'error');
  const code = await engine.adapters.propose(TEXTS.code(4));
  const python = { digest: digests['python'], scale: 0.5 };
  expect(code.placed).toEqual([{ name: 'python', ...python, placement: 'idle' }]);
  expect(code.adapters).toEqual([python]);
  expect(code.because).toMatchObject({ rule: 'proposal-alike', threshold: 'proposal.share' });
  expect(code.weight).toBeGreaterThan(1.25);
  expect(code.bits).toBeGreaterThan(0);
  const nearest = code.seen.slice(0, 2);
  for (const one of nearest) expect(one).toMatchObject({ adapters: [python], reason: 'done' });
  const german = await engine.adapters.propose(TEXTS.german(4));
  expect(german.placed).toMatchObject([{ name: 'deutsch', scale: 1 }]);
  const story = await engine.adapters.propose(TEXTS.story(4));
  expect(story).toMatchObject({ adapters: [], placed: [], because: { rule: 'proposal-plain' } });
});

test('a session takes what is proposed where it asks for it; the log says why, and decides it again', async () => {
  const text = TEXTS.code(5);
  const id = await read(text, { adapters: { proposedFor: text }, kvBudget: '40%', tokensExpected: 620 });
  const [open] = entriesOf(STATE, id, 'open');
  expect(open!.body.adapters).toEqual([{ digest: digests['python'], scale: 0.5 }]);
  expect(open!.body.proposal!.seen.length).toBeGreaterThan(1);
  expect(JSON.stringify(open!.body)).not.toContain('python');
  const words = told(id);
  expect(words).toContain(`Proposed were adapters: ${digests['python']!.slice(0, 12)} × 0.5`);
  expect(words).toContain("rule 'proposal-alike'");
  const [move] = entriesOf(STATE, id, 'decision');
  const why = explain(logDir(STATE), move!.seq).sentences.find(({ title }) => title === 'adapters');
  expect(why!.text).toContain("ended 'done'");
  expect(replay(logDir(STATE), id)).toMatchObject({ equal: true, missing: 0 });
  // Others have none unless they ask.
  const plain = await read(text);
  expect(entriesOf(STATE, plain, 'open')[0]!.body).not.toHaveProperty('proposal');
  expect(entriesOf(STATE, plain, 'open')[0]!.body).not.toHaveProperty('adapters');
});

test('what is proposed and not here is named, and a session begins without it', async () => {
  const registry = new AdapterRegistry(STATE);
  const { config } = engine.info;
  const kept = registry.read(registry.find('python')!, { config });
  registry.remove('python');
  const text = TEXTS.code(6);
  const proposed = await engine.adapters.propose(text);
  expect(proposed).toMatchObject({ placed: [], missing: [digests['python']], adapters: [{ scale: 0.5 }] });
  const id = await read(text, { adapters: { proposedFor: text } });
  expect(entriesOf(STATE, id, 'open')[0]!.body).not.toHaveProperty('adapters');
  expect(told(id)).toContain('The session began without');
  registry.add('python', kept, { config });
});

test('requests over HTTP ask for what is proposed, and go on in the conversation that has it', async () => {
  const view = await serve(engine, { port: 0, answers: {} });
  try {
    const messages = [{ role: 'user', content: TEXTS.german(7) }];
    const ask = async (more: object): Promise<{ status: number; usage?: unknown }> => {
      const response = await fetch(`${view.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: engine.info.name, messages, max_tokens: 4, temperature: 0, ...more }),
      });
      return { status: response.status, ...((await response.json()) as object) };
    };
    expect((await ask({ adapters: 'proposed' })).status).toBe(200);
    const again = (await ask({ adapters: 'proposed' })) as {
      usage: { prompt_tokens_details: { cached_tokens: number } };
    };
    expect(again.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(128);
    expect((await ask({ adapters: 'german' })).status).toBe(400);
    const completion = await fetch(`${view.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: engine.info.name, prompt: TEXTS.german(8), max_tokens: 4, adapters: 'proposed' }),
    });
    expect(completion.status).toBe(200);
  } finally {
    await view.close();
  }
  const proposals = [...readLog(logDir(STATE), { kinds: ['open'] })]
    .map(({ body }) => body as { adapters?: unknown; proposal?: unknown })
    .filter(({ proposal }) => proposal !== undefined)
    .slice(-2);
  for (const { adapters } of proposals) expect(adapters).toEqual([{ digest: digests['deutsch'], scale: 1 }]);
});

test('of two idle adapters the one that is expected to be used stays, though it has waited longer', async () => {
  const runtime = await Runtime.open({ model: MODEL, threads: 1, adapters: true });
  try {
    const adapters = new Adapters(runtime, new AdapterRegistry(STATE));
    const use = (name: string): void => {
      const session = {};
      const set = adapters.set([{ name }]);
      set.hold(session);
      set.leave(session);
    };
    use('python');
    use('deutsch');
    for (let i = 0; i < 40; i++) adapters.expects(new Map([[digests['python']!, 1]]));
    const likely = (): (number | undefined)[] =>
      ['python', 'deutsch'].map((name) => adapters.droppable.find(({ id }) => id === digests[name])!.likelyUse);
    const [python, deutsch] = likely();
    expect(python).toBeGreaterThan(0.99);
    expect(python).toBeLessThan(1);
    expect(deutsch).toBeUndefined();
    for (let i = 0; i < 80; i++) adapters.expects(new Map());
    expect(likely()).toEqual([undefined, undefined]);
    for (const { drop } of adapters.droppable) drop();
  } finally {
    await runtime.close();
  }
});
