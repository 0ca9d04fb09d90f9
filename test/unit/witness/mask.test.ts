// Rules leave out or mask what must not be written, before it is written: what they mean is read back from logs, what
// they cannot be applied to is left out and counted, and a rule that could never apply is refused when the log is
// opened.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { type Entry, type LogRule, openWitnessLog, readLog, replay, verifyLog } from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';
import { recordSession, tinyPolicy } from './session.ts';

const folder = scratchFolders();

async function loggedWith(
  rules: readonly LogRule[],
): Promise<{ dir: string; entries: Entry[]; dropped: number; missing: number }> {
  const dir = folder();
  const log = await openWitnessLog({ dir, rules });
  recordSession(log, 's');
  const [dropped, missing] = [log.droppedCount, log.missingOf('s')];
  await log.close();
  expect(verifyLog(dir)).toMatchObject({ ok: true });
  return { dir, entries: [...readLog(dir)], dropped, missing };
}

const body = (entries: Entry[], kind: Entry['kind']): Record<string, unknown> =>
  entries.find((entry) => entry.kind === kind)!.body as Record<string, unknown>;

it('a field is masked by something of its type, and is nowhere in the file', async () => {
  const { dir, entries, dropped } = await loggedWith([
    { action: 'mask', path: 'model.name' },
    { action: 'mask', path: 'fingerprint', kinds: ['close'] },
    { action: 'mask', path: 'neighbours.*.session' },
    { action: 'mask', path: 'requested' },
  ]);
  expect(body(entries, 'open')).toMatchObject({ model: { name: '***', architecture: 'llama' }, requested: {} });
  expect(body(entries, 'close')).toMatchObject({ fingerprint: [] });
  expect(body(entries, 'evidence')).toMatchObject({ fingerprint: [1, 2], neighbours: [{ session: '***', seq: 3 }] });
  expect(dropped).toBe(0);
  const bytes = readFileSync(join(dir, '00000000.wal'));
  expect(['tiny-model', 'older'].filter((word) => bytes.includes(word))).toEqual([]);
  expect(replay(dir, 's', () => tinyPolicy())).toMatchObject({ equal: true, missing: 0 });
});

it('a field or a kind is left out', async () => {
  const { entries, dropped, missing, dir } = await loggedWith([
    { action: 'drop', path: 'neighbours.*' },
    { action: 'drop', kinds: ['close'] },
  ]);
  expect(body(entries, 'evidence')).toMatchObject({ neighbours: [] });
  expect(entries.map(({ kind }) => kind)).not.toContain('close');
  expect([dropped, missing]).toEqual([1, 1]);
  expect(body(entries, 'note')).toMatchObject({ note: 'dropped', entries: 1, sessions: { s: 1 }, error: 'RULE' });
  expect(replay(dir, 's', () => tinyPolicy())).toMatchObject({ missing: 1 });
});

it('an entry that a rule would make senseless is left out and counted, never written as it was', async () => {
  const { entries, dropped } = await loggedWith([
    { action: 'drop', path: 'decision.because', kinds: ['decision'] },
    { action: 'mask', path: 'situation.trials.*.from' },
  ]);
  const kinds = entries.map(({ kind }) => kind);
  expect([kinds.includes('decision'), kinds.includes('situation')]).toEqual([false, false]);
  // Made were evidence, open, 5 situations, 20 decisions and close; the log adds one note of what is missing.
  expect(dropped + entries.length - 1).toBe(28);
});

it('made = logged + dropped, whatever the rules', async () => {
  for (const rules of [
    [],
    [{ action: 'drop', kinds: ['situation'] }],
    [{ action: 'mask', path: 'tokens' }],
  ] as LogRule[][]) {
    const { entries, dropped } = await loggedWith(rules);
    expect(entries.filter(({ session }) => session === 's').length + dropped).toBe(28);
  }
});

it('rules that could never apply, or to what the log says of itself, are refused when it is opened', async () => {
  const wrong: unknown[] = [
    { action: 'hide', path: 'model.name' },
    { action: 'mask' },
    { action: 'drop' },
    { action: 'mask', path: '' },
    { action: 'mask', path: 'model..name' },
    { action: 'mask', path: 'model.nmae' },
    { action: 'mask', path: 'model.name', kinds: ['close'] },
    { action: 'mask', path: 'model.name', kinds: [] },
    { action: 'drop', kinds: ['recovered'] },
    { action: 'drop', kinds: ['nothing'] },
    { action: 'mask', path: 'model.name', more: 1 },
    { action: 'mask', path: Array.from({ length: 17 }, () => 'a').join('.') },
    null,
    'model.name',
  ];
  for (const rule of wrong)
    await expect(
      openWitnessLog({ dir: folder(), rules: [rule as LogRule] }),
      JSON.stringify(rule),
    ).rejects.toMatchObject({
      code: 'bad-argument',
    });
  await expect(openWitnessLog({ dir: folder(), rules: {} as never })).rejects.toMatchObject({ code: 'bad-argument' });
});
