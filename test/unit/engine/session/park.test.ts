// Parked sessions: one that comes back holds and writes what one that was never parked does, bit for bit; whatever does
// not fit is read again, and said; what cannot be trusted is refused; files are their owner's alone and go when the
// session is erased.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eraseSession, parkedSessions } from '../../../../engine/index.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { formParked, type Parked, parseParked } from '../../../../engine/session/park/parked-file.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { readLog, replaySession } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, entriesOf, ids, MODEL, openEngine } from '../on-reference.ts';

const folder = scratchFolders();
let runtime: Runtime;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
});
afterAll(() => runtime.close());

const setupOf = (options: SessionOptions) => ({
  ...options,
  log: null,
  thresholds: defaultThresholds(runtime.shape.layers),
});
const open = (options: SessionOptions): Session => Session.open(runtime, setupOf(options));

async function read(options: SessionOptions, tokens: number): Promise<Session> {
  const session = open(options);
  if (tokens > 0) await session.read(ids(tokens));
  return session;
}

const resume = (bytes: Uint8Array, options: SessionOptions) =>
  resumeSession(runtime, setupOf(options), parseParked(bytes, 'parked'));

/** A digest of all numbers that a cache holds. */
function rowsOf({ cache, length }: Session): string {
  const hash = createHash('sha256');
  for (let layer = 0; layer < runtime.shape.layers; layer++)
    for (let page = 0; page < Math.ceil(length / 128); page++)
      for (const side of ['k', 'v'] as const) hash.update(new Uint8Array(cache.decode(layer, page, side).buffer));
  return hash.digest('hex');
}

const changed = (bytes: Uint8Array, at: number): Buffer => {
  const copy = Buffer.from(bytes);
  copy[at]! ^= 1;
  return copy;
};

describe('a resumed session', () => {
  const sessions: [string, SessionOptions][] = [
    ['8-bit', {}],
    ['exact', { exact: true }],
    ['rot4:rot2', { cacheTypes: 'rot4:rot2' }],
    ['under a budget that binds', { kvBudget: '40%', tokensExpected: 1500 }],
  ];
  const cases = sessions.flatMap(([name, options]) =>
    [0, 1, 128, 129, 700].map((tokens) => [name, tokens, options] as const),
  );
  it.each(cases)(
    '(%s, %d tokens) has the numbers of the parked one and reads on alike',
    async (_name, tokens, options) => {
      const session = await read(options, tokens);
      const bytes = parkedBytes(session);
      const { session: back, resumed } = await resume(bytes, options);
      try {
        expect(resumed).toMatchObject({ by: 'pages', why: null, tokens, from: session.id });
        expect(back.tokens).toEqual(session.tokens);
        expect(back.lastHidden).toEqual(session.lastHidden);
        expect(rowsOf(back)).toBe(rowsOf(session));
        expect(back.governed.usedBytes).toBeLessThanOrEqual(session.governed.usedBytes);
        // Fewer tokens than a page: under a budget, each decides by itself from then on.
        for (const one of [session, back]) await one.read(ids(40, 7));
        expect(back.lastHidden).toEqual(session.lastHidden);
      } finally {
        for (const one of [session, back]) one.close();
      }
    },
  );

  it('goes on under its budget, and can be parked again', async () => {
    const options = { kvBudget: '40%', tokensExpected: 1500 };
    const session = await read(options, 700);
    const first = await resume(parkedBytes(session), options);
    await first.session.read(ids(300, 7));
    const second = await resume(parkedBytes(first.session), options);
    await second.session.read(ids(400, 8));
    const { kvBytes, budgetBytes, decisions } = second.session.report();
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    expect(decisions).toBeGreaterThan(0);
    for (const one of [session, first.session, second.session]) one.close();
  });
});

describe('what does not fit', () => {
  const altered = (parked: Parked, change: object): Buffer =>
    formParked({ ...parked, head: { ...parked.head, ...change } as Parked['head'] });

  it('is read again, and the reason is told', async () => {
    const session = await read({}, 300);
    const bytes = parkedBytes(session);
    const parked = parseParked(bytes, 'parked');
    const { model, policy, shape } = parked.head;
    const shorter = { ...parked, cache: parked.cache.subarray(0, 5000) };
    const cases: [Uint8Array, RegExp][] = [
      [changed(bytes, bytes.length - 40), /checksum/],
      [altered(parked, { model: { ...model, digest: '0'.repeat(64) } }), /other weights/],
      [altered(parked, { policy: { ...policy, version: policy.version + 1 } }), /policy/],
      [altered(parked, { policy: { ...policy, machine: 'other' } }), /states of layers/],
      [altered(parked, { shape: { ...shape, kvHeads: 1 } }), /shape/],
      [formParked(shorter), /cannot be read/],
      // The name of the first page's format of keys.
      [formParked({ ...parked, cache: changed(parked.cache, 4 + 40) }), /changed or cut off/],
    ];
    for (const [file, why] of cases) {
      const { session: back, resumed } = await resume(file, {});
      expect(resumed.by).toBe('reading');
      expect(resumed.why).toMatch(why);
      expect(back.tokens).toEqual(session.tokens);
      expect(back.lastHidden).toEqual(session.lastHidden);
      back.close();
    }
    session.close();
  });

  it('is refused where the tokens cannot be trusted or mean something else', async () => {
    const session = await read({}, 200);
    const bytes = parkedBytes(session);
    session.close();
    const parked = parseParked(bytes, 'parked');
    const refusedWith = (file: Uint8Array) => codeOf(Promise.resolve().then(() => resume(file, {})));
    expect(await refusedWith(changed(bytes, 200))).toBe('checksum-mismatch');
    expect(await refusedWith(bytes.subarray(0, bytes.length - 1))).toBe('bad-file');
    expect(await refusedWith(changed(bytes, 7))).toBe('unsupported');
    expect(await refusedWith(changed(bytes, 0))).toBe('bad-file');
    const foreign = { model: { ...parked.head.model, digest: '0'.repeat(64) }, textDigest: '1'.repeat(64) };
    expect(await refusedWith(altered(parked, foreign))).toBe('model-mismatch');
    const pageBeyond = { trials: { ...parked.head.trials, waiting: [{ layer: 0, page: 9 }] } };
    expect(await refusedWith(altered(parked, pageBeyond))).toBe('bad-file');
  });

  it('is not parked at all where something would be lost', async () => {
    const session = await read({ latents: 'xq8' }, 200);
    expect(await codeOf(Promise.resolve().then(() => parkedBytes(session)))).toBe('unsupported');
    session.close();
  });
});

describe('an engine', () => {
  it('parks into its state folder, lists, resumes, and erases', async () => {
    const dir = folder();
    const engine = await openEngine(dir);
    const options = { kvBudget: '40%', tokensExpected: 1500 };
    const session = await engine.openSession(options);
    await session.read(ids(900));
    const parked = await session.park();
    expect(parked.path).toBe(join(dir, 'parked', `${session.id}.parked`));
    expect(statSync(parked.path).mode & 0o777).toBe(0o600);
    expect(statSync(parked.path).size).toBe(parked.fileBytes);
    expect(await codeOf(session.read([5]))).toBe('closed');
    expect(parkedSessions(dir)).toMatchObject([{ session: session.id, tokens: 900, trouble: null }]);

    const back = await engine.resume(session.id.slice(0, 12));
    expect(back.resumed).toMatchObject({ by: 'pages', from: session.id, tokens: 900 });
    let text = '';
    for await (const piece of back.generate(ids(200, 3), { maxTokens: 8 })) text += piece;
    expect((await back.report()).tokens).toBeGreaterThan(1100);
    await back.close();
    expect(text.length).toBeGreaterThan(0);

    writeFileSync(join(dir, 'parked', 'x.parked'), changed(readFileSync(parked.path), 100));
    expect(parkedSessions(dir).find(({ session: id }) => id === null)?.trouble).toMatch(/changed/);
    await engine.close();

    const [opened] = entriesOf(dir, back.id, 'open');
    expect(opened!.body.effective).toMatchObject({ resumedFrom: session.id, tokens: 900 });
    expect(entriesOf(dir, session.id, 'note').map(({ body }) => body['parked'])).toContain(900);
    expect(entriesOf(dir, back.id, 'note').map(({ body }) => body['resumed'])).toContain(900);
    for (const id of [session.id, back.id])
      expect(replaySession(readLog(logDir(dir), { session: id }))).toMatchObject({ equal: true, complete: true });
    expect((await eraseSession(dir, session.id)).files).toContain(join('parked', `${session.id}.parked`));
    expect(existsSync(parked.path)).toBe(false);
  });

  it('without a state folder parks where it is told', async () => {
    const engine = await openEngine(null);
    const session = await engine.openSession();
    await session.read(ids(150));
    expect(await codeOf(session.park())).toBe('bad-argument');
    const path = join(folder(), 'deeper', 'one.parked');
    await session.park(path);
    const back = await engine.resume(path, { kvBudget: '16MiB' });
    expect(back.resumed?.by).toBe('reading');
    expect(back.resumed?.why).toMatch(/policy/);
    expect(await codeOf(engine.resume(`${path}.other`))).toBe('not-found');
    await engine.close();
  });
});
