// A recorded session is decided again from the log alone (T24): equal to the last byte when nothing was changed, and
// the first difference is named when the policy, a decision, a verdict or the sequence is another.
import { describe, expect, it } from 'vitest';
import { KvError } from '../../../native/index.ts';
import { createPolicy, defaultThresholds, type Policy } from '../../../policy/index.ts';
import {
  type Entry,
  explain,
  explanationText,
  openWitnessLog,
  readLog,
  replay,
  replaySession,
  replayText,
  verifyLog,
} from '../../../witness/index.ts';
import { NOT_REPLAYED } from '../../../witness/replay-close.ts';
import { scratchFolders } from './folder.ts';
import { recordSession, tinyPolicy } from './session.ts';

const folder = scratchFolders();
/** Places of what is asked for in a value, by the names that lead there. */
function pathsIn(value: unknown, isSought: (value: unknown) => boolean): string[][] {
  if (isSought(value)) return [[]];
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([name, inside]) => pathsIn(inside, isSought).map((path) => [name, ...path]));
}

function add(value: unknown, [name, ...rest]: readonly string[], amount: number): void {
  const holder = value as Record<string, unknown>;
  if (rest.length > 0) add(holder[name!], rest, amount);
  else holder[name!] = (holder[name!] as number) + amount;
}

const create = (id: string): Policy => tinyPolicy(id) as Policy;

async function recorded(situations = 5): Promise<Entry[]> {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  recordSession(log, 'a', { situations });
  await log.close();
  return [...readLog(dir, { session: 'a' })];
}

describe('replay', () => {
  it('of a folder takes the beginning of an id, and a policy of one’s own', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    recordSession(log, 'session-one', { situations: 2 });
    recordSession(log, 'session-two', { situations: 3 });
    await log.close();
    expect(replay(dir, 'session-tw', create)).toMatchObject({
      session: 'session-two',
      situations: 3,
      equal: true,
      missing: 0,
    });
    expect(() => replay(dir, 'session-one')).toThrow(/unknown policy/);
    expect(() => replay(dir, 'session-', create)).toThrow(KvError);
    expect(() => replay(dir, 'other', create)).toThrow(KvError);
  });

  it('gives the same bytes', async () => {
    const report = replaySession(await recorded(), create);
    expect(report).toEqual({
      session: 'a',
      policy: 'tiny@1',
      situations: 5,
      decisions: 20,
      equal: true,
      complete: true,
      firstDifference: null,
      notChecked: ['meanKld', 'fingerprint', 'reason'],
    });
    expect(replayText(report)).toBe(
      'Replayed 20 decisions on 5 situations of session a (tiny@1): every byte is the same. Of its end nothing here says meanKld, fingerprint, reason.',
    );
  });

  // As an operator who lies would do it: a log of its own, sealed by its own keys, with one number of the end changed.
  it('notices each number of the entry that ends a session, or says that it is not checked', async () => {
    const honest = (await recorded()).at(-1) as Entry<'close'>;
    const body: Entry<'close'>['body'] = { ...honest.body, formats: { k: { rot4: 0.5, q8: 0.5 }, v: { q8: 1 } } };
    const numbers = pathsIn(body, (value) => typeof value === 'number');
    expect(numbers.length).toBeGreaterThan(15);
    const unnoticed: string[] = [];
    for (const path of [[], ...numbers]) {
      const lie = structuredClone(body);
      if (path.length > 0) add(lie, path, 1);
      const dir = folder();
      const log = await openWitnessLog({ dir, encrypt: true });
      recordSession(log, 'a', { close: false });
      log.append('a', 'close', lie);
      await log.close();
      expect(verifyLog(dir)).toMatchObject({ ok: true });
      const report = replay(dir, 'a', create);
      if (report.equal) unnoticed.push(path.join('.'));
      else expect(report.firstDifference).toMatchObject({ what: 'end' });
    }
    const [none, ...others] = unnoticed;
    expect(none).toBe('');
    const isTold = (path: string): boolean => NOT_REPLAYED.some((name) => path.split('.')[0] === name);
    expect(others.filter((path) => !isTold(path))).toEqual([]);
  });

  it('notices bytes, and shares of formats, that cannot be', async () => {
    const entries = await recorded();
    const end = entries.at(-1) as Entry<'close'>;
    const withEnd = (change: Partial<Entry<'close'>['body']>): unknown =>
      replaySession([...entries.slice(0, -1), { ...end, body: { ...end.body, ...change } }], create).firstDifference;
    const kvBytes = 1000;
    const effectiveBits = (16 * kvBytes) / end.body.kvBytesF16;
    expect(withEnd({ kvBytes, effectiveBits })).toMatchObject({ logged: 'kvBytes 1000', replayed: 'kvBytes 300000' });
    expect(withEnd({ formats: { k: { rot4: 0.5 }, v: {} } })).toMatchObject({ what: 'end' });
    expect(withEnd({ formats: { k: { rot4: 2, q8: -1 }, v: {} } })).toMatchObject({ what: 'end' });
    expect(withEnd({ formats: { k: {}, v: {} } })).toBe(null);
    expect(withEnd({ tokens: 0, kvBytesF16: 0, effectiveBits: 0 })).toBe(null);
    expect(withEnd({ text: { value: 1, sd: 1, samples: 1 } })).toMatchObject({ what: 'end' });
  });

  // A killed session ends in the middle of a plan; what is there is equal, and the report says that it is not the end.
  it('knows a session that was cut off', async () => {
    const entries = (await recorded()).slice(0, -3);
    expect(replaySession(entries, create)).toMatchObject({ decisions: 18, equal: true, complete: false });
  });

  it.each([
    [
      'a changed bound',
      (entry: Entry<'decision'>) => ({ ...entry.body, decision: { ...entry.body.decision, price: 1 } }),
      'decision',
    ],
    [
      'a changed verdict',
      (entry: Entry<'decision'>) => ({
        ...entry.body,
        verdict: { ...entry.body.verdict, accepted: !entry.body.verdict.accepted },
      }),
      'verdict',
    ],
    ['another order', (entry: Entry<'decision'>) => ({ ...entry.body, order: 7 }), 'decision'],
    // Nothing noticed these before: they are no part of what a policy decides.
    [
      'bytes before that no entry led to',
      (entry: Entry<'decision'>) => ({ ...entry.body, bytesBefore: entry.body.bytesBefore + 1 }),
      'bytes',
    ],
    [
      'bytes freed that no page has',
      (entry: Entry<'decision'>) => ({ ...entry.body, bytesAfter: entry.body.bytesAfter - 1 }),
      'bytes',
    ],
    [
      'tokens of another situation',
      (entry: Entry<'decision'>) => ({ ...entry.body, tokens: entry.body.tokens + 1 }),
      'decision',
    ],
  ] as const)('finds %s', async (_name, change, what) => {
    const entries = await recorded();
    const index = entries.findIndex((entry) => entry.kind === 'decision' && entry.seq > 10);
    const entry = entries[index] as Entry<'decision'>;
    entries[index] = { ...entry, body: change(entry) };
    const report = replaySession(entries, create);
    expect(report).toMatchObject({ equal: false, firstDifference: { seq: entry.seq, what } });
    expect(replayText(report)).toContain(`entry ${entry.seq} differs (${what})`);
  });

  it('finds times that fall, outcomes that were none, and bytes that a refused move frees', async () => {
    const entries = await recorded();
    const changed = (seq: number, change: (entry: Entry) => Entry): Entry[] =>
      entries.map((entry) => (entry.seq === seq ? change(entry) : entry));
    const [, , situation] = entries.filter(({ kind }) => kind === 'situation') as Entry<'situation'>[];
    expect(
      replaySession(
        changed(situation!.seq, (entry) => ({ ...entry, timeMs: 1 })),
        create,
      ).firstDifference,
    ).toMatchObject({ seq: situation!.seq, what: 'time' });
    const [outcome, ...rest] = situation!.body.situation.outcomes;
    const told = { ...situation!.body.situation, outcomes: [{ ...outcome!, bytesFreed: 7 }, ...rest] };
    expect(
      replaySession(
        changed(situation!.seq, (entry) => ({ ...entry, body: { situation: told } })),
        create,
      ).firstDifference,
    ).toMatchObject({ seq: situation!.seq, what: 'situation' });
    const refused = (entries as Entry<'decision'>[]).find(
      ({ kind, body }) => kind === 'decision' && !body.verdict.accepted,
    );
    const body = { ...refused!.body, bytesAfter: refused!.body.bytesAfter - 12416 };
    expect(
      replaySession(
        changed(refused!.seq, (entry) => ({ ...entry, body })),
        create,
      ).firstDifference,
    ).toMatchObject({
      seq: refused!.seq,
      what: 'bytes',
    });
  });

  // Entries lost in mode drop: a hole is a difference, at the entry where it shows.
  it('finds missing decisions and missing situations', async () => {
    const entries = await recorded();
    const without = (seq: number): Entry[] => entries.filter((entry) => entry.seq !== seq);
    const second = entries.filter((entry) => entry.kind === 'situation')[1] as Entry;
    expect(replaySession(without(second.seq - 1), create).firstDifference).toMatchObject({
      seq: second.seq,
      what: 'decision',
    });
    const third = entries.filter((entry) => entry.kind === 'situation')[2] as Entry;
    const hole = entries.filter((entry) => entry.seq < second.seq || entry.seq >= third.seq);
    expect(replaySession(hole, create).firstDifference).toMatchObject({ seq: third.seq, what: 'situation' });
  });

  // Another version of the policy is no proof of anything, so it is said before anything is compared.
  it('refuses to compare with another policy', async () => {
    const entries = await recorded();
    expect(replaySession(entries, (id) => tinyPolicy(id, 2) as Policy).firstDifference).toMatchObject({
      what: 'policy',
      logged: 'tiny@1',
      replayed: 'tiny@2',
    });
    const sloppy = (id: string): Policy => {
      const policy = create(id);
      const open: Policy['open'] = (context) => {
        const session = policy.open(context);
        return { ...session, decide: (situation) => session.decide(situation).slice(1) };
      };
      return { ...policy, open };
    };
    expect(replaySession(entries, sloppy)).toMatchObject({ equal: false });
    expect(() => replaySession([], create)).toThrowError(expect.objectContaining({ code: 'not-found' }));
  });

  // Every policy there is, under a budget that makes it move pages: what it decided once it decides again, from the
  // log's bytes.
  it.each([
    ['price', {}],
    ['uniform', {}],
    ['age', {}],
    ['tiers', { hot: { size: 128 }, warm: { size: 128 } }],
    ['fixed', { k: 'rot4', v: 'rot2' }],
  ] as const)('gives the same bytes for policy %s', async (id, policyOptions) => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const seqs = recordSession(log, 'a', {
      situations: 8,
      bytes: 2_000_000,
      policy: createPolicy(id, policyOptions),
      policyOptions,
      thresholds: defaultThresholds(2),
    });
    await log.close();
    expect(seqs.length).toBeGreaterThan(3);
    expect(replaySession(readLog(dir, { session: 'a' }))).toMatchObject({
      decisions: seqs.length,
      situations: 8,
      equal: true,
      complete: true,
    });
    for (const seq of seqs)
      expect(
        explanationText(explain(dir, seq))
          .split('\n')
          .every((line) => line.length <= 80),
      ).toBe(true);
  });
});
