// Policies of one's own in sessions of an engine: named by a module, which the model's thread imports. The example of
// the package governs a session, its log says which file it was, and replay decides the same again with it and says
// what it lacks without it. What cannot be loaded, or is no policy of one's own, is one refusal.
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Engine, openCache, type PolicyModule, replay } from '../../../../engine/index.ts';
import { readPolicyFile } from '../../../../engine/options/policy-file.ts';
import { loadPolicyModule } from '../../../../engine/options/policy-module.ts';
import { parkedHead } from '../../../../engine/session/park/parked-head.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { refusal, refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { answered, expectRefused, palimpsest } from '../cli/command.ts';
import { codeOf, entriesOf, ids, openEngine, PROMPT_TOKENS, written } from '../on-reference.ts';

const EXAMPLE = join(import.meta.dirname, '..', '..', '..', '..', 'examples', 'keep-first-pages.mjs');
const OPTIONS = { keep: 2, to: { k: 'rot4', v: 'rot3' } };
const folder = scratchFolders();
let engine: Engine;
let state = '';

beforeAll(async () => {
  state = join(folder(), 'state');
  engine = await openEngine(state);
});
afterAll(() => engine.close());

/** A module of one's own with this source. */
function moduleOf(source: string): string {
  const path = join(folder(), 'policy.mjs');
  writeFileSync(path, source);
  return path;
}

const POLICY = (id: string): string =>
  `{ id: '${id}', version: 3, needsTrials: false, open: () => ({ decide: () => [], judge: ({ because }) => ({ accepted: true, because }), summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }) }) }`;

describe('a session whose policy is a module', () => {
  it('is governed by it, its fork too; the log has its options and its digest, and replay needs the file', async () => {
    const policy: PolicyModule = { module: EXAMPLE, options: OPTIONS };
    const session = await written(engine, { policy });
    const fork = await session.fork();
    const { layers, policy: id } = await session.report();
    expect([id, (await fork.report()).policy]).toEqual(['keep-first-pages', 'keep-first-pages']);
    const pages = Math.floor((PROMPT_TOKENS + 40) / 128);
    // The newest page is in the window.
    for (const { kPages, vPages } of layers)
      expect([kPages, vPages]).toEqual([
        { q8: 3, rot4: pages - 3 },
        { q8: 3, rot3: pages - 3 },
      ]);
    expect(await codeOf(session.park())).toBe('unsupported');
    await fork.close();
    await session.close();
    const sha256 = createHash('sha256').update(readFileSync(EXAMPLE)).digest('hex');
    const [open] = entriesOf(state, session.id, 'open');
    expect(open!.body.policy).toMatchObject({ version: 1, options: OPTIONS, module: { sha256, export: 'default' } });
    const { make } = await loadPolicyModule({ module: pathToFileURL(EXAMPLE).href });
    const again = replay(logDir(state), session.id, (_, options) => make(options));
    const decisions = layers.length * 2 * (pages - 3);
    expect(again).toMatchObject({ equal: true, complete: true, decisions, policyModule: sha256 });
    const error = refusal(() => replay(logDir(state), session.id));
    expect(error).toMatchObject({ code: 'unsupported', values: { decisions, sha256 } });
    const args = ['audit', 'replay', session.id, '--state', state];
    expectRefused(await palimpsest(args), 'unsupported', /--policy-module/);
    expect((await answered([...args, '--policy-module', EXAMPLE])).out).not.toContain('is not the file that decided');
    const copy = moduleOf(`${readFileSync(EXAMPLE, 'utf8')}// changed`);
    expect((await answered([...args, '--policy-module', copy])).out).toContain('is not the file that decided');
  });

  it('is opened from the command line and from a policy file, by openCache as well', async () => {
    const dir = folder();
    writeFileSync(join(dir, 'mine.mjs'), readFileSync(EXAMPLE));
    const file = join(dir, 'policy.toml');
    writeFileSync(file, 'policyVersion = 1\n[policyModule]\nmodule = "./mine.mjs"\noptions = { keep = 0 }\n');
    expect(readPolicyFile(file)).toEqual({ policy: { module: join(dir, 'mine.mjs'), options: { keep: 0 } } });
    const session = await written(engine, { policyFile: file });
    expect((await session.report()).policy).toBe('keep-first-pages');
    await session.close();
    const cache = await openCache({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64, policyFile: file });
    expect(cache.report().policy).toBe('keep-first-pages');
    await cache.close();
    const prompt = join(dir, 'prompt.txt');
    writeFileSync(prompt, 'Once upon a time there was a little girl. '.repeat(40));
    const run = ['run', '-m', 'reference', '-p', prompt, '-n', '2', '--state', join(dir, 'state'), '--json'];
    const { out } = await answered([...run, '--policy-module', EXAMPLE, '--policy-options', '{"keep":0}']);
    expect(out).toContain('"keep-first-pages"');
    const both = await palimpsest([...run, '--policy-module', EXAMPLE, '--policy', 'price']);
    expectRefused(both, 'bad-argument', /leave out --policy/);
    expectRefused(await palimpsest([...run, '--policy-options', '{}']), 'bad-argument', /--policy-module/);
  });

  it('of a package is found from the working folder', async () => {
    const dir = join(folder(), 'node_modules', 'my-policy');
    mkdirSync(dir, { recursive: true });
    writeFileSync(join(dir, 'package.json'), '{"name":"my-policy","type":"module","exports":"./main.js"}');
    writeFileSync(join(dir, 'main.js'), `export const mine = ${POLICY('mine')};`);
    const before = process.cwd();
    process.chdir(join(dir, '..', '..'));
    try {
      const { make } = await loadPolicyModule({ module: 'my-policy', export: 'mine' });
      expect(make({})).toMatchObject({ id: 'mine', version: 3 });
    } finally {
      process.chdir(before);
    }
  });

  it('that was changed is loaded anew: what is logged is what decided', async () => {
    const path = moduleOf(`export default ${POLICY('first')};`);
    expect((await loadPolicyModule({ module: path })).make({}).id).toBe('first');
    writeFileSync(path, `export default ${POLICY('second')};`);
    expect((await loadPolicyModule({ module: path })).make({}).id).toBe('second');
  });
});

describe('what cannot be used is refused', () => {
  it.each([
    ['a file that is not there', { module: './nowhere.mjs' }, 'not-found', /no file and no package/],
    ['no text', { module: 7 }, 'bad-argument', /two texts and plain data/],
    ['a field that does not exist', { module: EXAMPLE, exports: 'default' }, 'bad-argument', /no field/],
    ['options that are no data', { module: EXAMPLE, options: [1] }, 'bad-argument', /plain data/],
    ['an export that is not there', { module: EXAMPLE, export: 'mine' }, 'bad-argument', /'mine' is no policy/],
    ['options that its function refuses', { module: EXAMPLE, options: { keep: -1 } }, 'bad-argument', /is -1/],
    ['a source that does not parse', 'export default {', 'bad-argument', /does not load/],
    ['a source that throws', 'throw new Error("out of order")', 'bad-argument', /out of order/],
    ['a source that throws no error', 'throw null', 'bad-argument', /null was thrown, which is no error/],
    ['a source that throws an object', 'throw { a: 1 }', 'bad-argument', /of type object was thrown/],
    ['a name that is empty', { module: '' }, 'bad-argument', /no name/],
    ['what is no policy', 'export default { id: "mine" }', 'bad-argument', /no policy/],
    ['a function that makes none', 'export default () => 7', 'bad-argument', /gives no policy/],
    ['an id of ours', `export default ${POLICY('price')}`, 'bad-argument', /policy of this package/],
  ] as const)('%s', async (_, given, code, says) => {
    const policy = typeof given === 'string' ? { module: moduleOf(given) } : given;
    const error = await refused(engine.openSession({ policy: policy as unknown as PolicyModule }));
    expect([error.code, error.message]).toEqual([code, expect.stringMatching(says)]);
    expect(`${error.message} ${Object.values(error.values).join(' ')}`).not.toContain('[object Object]');
    expect(error.hint).toBeTruthy();
  });

  it('a module that waits for something that never comes', async () => {
    const module = moduleOf(`await new Promise(() => {}); export default ${POLICY('mine')};`);
    const error = await refused(loadPolicyModule({ module }, 50), module);
    expect(error).toMatchObject({ code: 'bad-argument', message: expect.stringMatching(/within 50 ms/) });
    expect(error.hint).toBeTruthy();
  });

  it.each([
    ['waits for ever', ['run'], 'await new Promise(() => {});'],
    ['computes for ever', ['run'], 'for (;;);'],
    ['computes for ever', ['sessions', 'park'], 'for (;;);'],
    ['computes for ever', ['start', '--tokens', '300'], 'for (;;);'],
  ])('a module that %s is ended by one signal, in %j', async (_, words, source) => {
    const dir = folder();
    const prompt = join(dir, 'prompt.txt');
    writeFileSync(prompt, 'Once upon a time there was a little girl.');
    const begun = "import { writeSync } from 'node:fs'; writeSync(2, 'the module begins\\n');";
    const module = moduleOf(`${begun} ${source} export default ${POLICY('mine')};`);
    const more = words[0] === 'start' ? [] : ['-p', prompt];
    const args = [...words, '-m', 'reference', ...more, '--state', join(dir, 'state'), '--policy-module', module];
    const signal = words[0] === 'run' ? 'SIGTERM' : 'SIGINT';
    let isSent = false;
    const { code, err } = await palimpsest(args, {
      with: (child) =>
        child.stderr!.on('data', (said) => {
          if (!isSent && String(said).includes('the module begins')) isSent = child.kill(signal);
        }),
    });
    expect([code, isSent]).toEqual([130, true]);
    expect(err).not.toContain('fault of ours');
  });

  it.each([
    ["open: () => { throw new Error('no') }", /its open threw: no/],
    ['open: () => null', /its open gives no session: there is no decide/],
    ["...SOUND, decide: () => { throw new TypeError('no') }", /its decide threw: no/],
    ['...SOUND, decide: () => 7', /its decide gives no answer, a list/],
  ])('that fails while it decides (%s) is told as a fault of its own', async (source, message) => {
    const sound =
      'const SOUND = { decide: () => [], judge: ({ because }) => ({ accepted: true, because }), summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }) };';
    const open = source.startsWith('open') ? source : `open: () => ({ ${source} })`;
    const module = moduleOf(`${sound} export default { id: 'mine', version: 1, needsTrials: false, ${open} };`);
    const work = async (): Promise<void> => {
      const session = await engine.openSession({ policy: { module }, kvBudget: '40%', tokensExpected: 600 });
      await session.read(ids(600));
      await session.report();
    };
    const error = await refused(work(), source);
    expect(error).toMatchObject({ code: 'bad-argument', message: expect.stringMatching(message) });
  });

  it('whose summary is none, or that is of a class, is held to the same', async () => {
    const source = 'decide: () => [], judge: () => ({ accepted: 1 }), summary: () => ({ layerKld: [] })';
    const module = moduleOf(`export default () => new (class {
      #id = 'mine'; version = 1; needsTrials = false;
      get id() { return 'mine'; }
      open() { return Object.freeze({ ${source} }); }
    })();`);
    const policy = (await loadPolicyModule({ module })).make({});
    expect([policy.id, policy.version]).toEqual(['mine', 1]);
    const session = policy.open({} as never);
    expect(session.decide({} as never)).toEqual([]);
    expect(refusal(() => session.judge({} as never, null)).message).toMatch(/its judge gives no answer/);
    expect(refusal(() => session.summary()).message).toMatch(/its summary gives no answer/);
  });

  it('whose function gives a promise that is broken is refused, and ends nothing', async () => {
    const module = moduleOf("export default () => Promise.reject(new Error('no'));");
    const error = await refused(engine.openSession({ policy: { module }, kvBudget: '40%' }), 'a promise');
    expect(error).toMatchObject({ code: 'bad-argument', message: expect.stringContaining('gives no policy') });
  });

  it('options for a policy that is no function, and a policy itself, which cannot be sent to the thread', async () => {
    const module = moduleOf(`export default ${POLICY('mine')}`);
    expect(await codeOf(engine.openSession({ policy: { module, options: { a: 1 } } }))).toBe('bad-argument');
    const itself = { id: 'mine', version: 1, needsTrials: false, open: () => null } as unknown as PolicyModule;
    expect(await codeOf(engine.openSession({ policy: itself }))).toBe('bad-argument');
    const file = join(folder(), 'policy.json');
    for (const [said, says] of [
      [{ policyModule: { module }, policy: 'price' }, /do not go together/],
      [{ policyModule: { name: 'x' } }, /policyModule/],
      [{ policyModule: 7 }, /must be a table/],
    ] as const) {
      writeFileSync(file, JSON.stringify({ policyVersion: 1, ...said }));
      const error = refusal(() => readPolicyFile(file));
      expect([error.code, error.message]).toEqual(['bad-config', expect.stringMatching(says)]);
    }
  });

  it('a parked file that names one: what a file says is no reason to run it', async () => {
    const session = await engine.openSession();
    await session.read([5, 6, 7]);
    const { path } = await session.park();
    const { readParked } = await import('../../../../engine/session/park/folder.ts');
    const { head } = readParked(path);
    expect(parkedHead(JSON.parse(JSON.stringify(head)), 'a file').session).toBe(head.session);
    const forged = { ...head, options: { policy: { module: EXAMPLE } } };
    expect(refusal(() => parkedHead(JSON.parse(JSON.stringify(forged)), 'a file')).code).toBe('bad-file');
  });
});
