// What a body may say, field by field: bodies that a session wrote, with one field after the other taken out or
// replaced by a text that is too long.
import { expect, it } from 'vitest';
import { checkBody, checkOf, checkWritten, faultIn, mayHold } from '../../../witness/body.ts';
import { anything, nullable, object, optional, plain, real, record, text } from '../../../witness/entries/type.ts';
import { ENTRY_KINDS, openWitnessLog, readLog } from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';
import type { Loose } from './forged.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();

/** The fields whose content is up to whoever wrote them. */
const FREE = ['note', 'open.requested', 'open.effective', 'open.policy.options'];

/** The path of every field, whatever it holds; of lists the first item. */
function* paths(value: unknown, path: readonly string[]): Generator<readonly string[]> {
  if (typeof value !== 'object' || value === null || FREE.includes(path.join('.'))) return;
  for (const key of Object.keys(value).slice(0, Array.isArray(value) ? 1 : undefined)) {
    yield [...path, key];
    yield* paths((value as Record<string, unknown>)[key], [...path, key]);
  }
}

it('is refused without a field that its kind needs, and with one that makes no sense', async () => {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  recordSession(log, 'a');
  log.append('a', 'change', {
    cause: 'restore',
    changes: [{ layer: 0, page: 1, side: 'k', from: 'rot4', to: 'q8' }],
    bytesBefore: 1,
    bytesAfter: 2,
    tokens: 3,
  });
  log.append('', 'recovered', { droppedBytes: 10, segment: '00000000.wal' });
  log.append('', 'retention', { firstSegment: 1, firstSeq: 2, segments: 1, bytes: 100 });
  for (const kind of ['erase', 'hold', 'release'] as const) log.append('a', kind, { by: 'a test' });
  log.append('', 'note', { note: 'x' });
  log.append('', 'pack', {
    ...{
      name: 'example',
      version: '1.0.0',
      digest: 'd',
      envelope: 'e',
      from: 'staged',
      event: 'verify',
      to: 'verified',
    },
    ...{ keyIds: ['k'], trustVersion: 1, generation: 2, because: '', numbers: { bytes: 1 } },
  });
  await log.close();
  const bodies = new Map([...readLog(dir)].map(({ kind, body }) => [kind, body]));
  expect([...bodies.keys()].sort()).toEqual([...ENTRY_KINDS].sort());
  for (const [kind, body] of bodies) {
    for (const [, ...path] of paths(body, [kind])) {
      for (const wrong of [undefined, 'x'.repeat(5000)]) {
        const forged = structuredClone(body) as unknown as Loose;
        let target = forged;
        for (const key of path.slice(0, -1)) target = target[key] as Loose;
        target[path.at(-1)!] = wrong;
        expect(() => checkBody(kind, forged)).toThrowError(
          expect.objectContaining({ code: 'bad-log', values: { kind, path: path.join('.') } }),
        );
        expect(() => checkWritten(kind, forged)).toThrowError(
          expect.objectContaining({ code: 'bad-value', values: { kind, path: path.join('.') } }),
        );
      }
    }
  }
});

it('is refused as a whole where it is no object, by those who read and those who write', () => {
  for (const wrong of [null, [], 'text']) {
    const fault = { message: expect.stringMatching(/an object$/), values: { kind: 'close', path: '' } };
    expect(() => checkBody('close', wrong)).toThrowError(expect.objectContaining({ code: 'bad-log', ...fault }));
    expect(() => checkWritten('close', wrong)).toThrowError(expect.objectContaining({ code: 'bad-value', ...fault }));
  }
  for (const any of [undefined, 0, 'text', {}]) expect(checkOf(anything)(any)).toBeNull();
  for (const absent of [undefined, 0]) expect(checkOf(optional(real))(absent)).toBeNull();
  for (const none of [null, 0]) expect(checkOf(nullable(real))(none)).toBeNull();
  expect(() => checkWritten('note', { any: ['thing'] })).not.toThrow();
});

it('may hold what its type has under a name, and nothing elsewhere', () => {
  const list = { is: 'list', inside: real, min: 0, max: 9 } as const;
  expect(mayHold(list, ['*'])).toBe(true);
  expect(mayHold(list, ['0'])).toBe(false);
  expect(mayHold(record(text, real), ['any'])).toBe(true);
  expect(mayHold(optional(nullable(object({ inside: real }))), ['inside'])).toBe(true);
  expect(mayHold(object({ inside: real }), ['outside'])).toBe(false);
  expect(mayHold(object({ inside: plain }), ['*', 'deeper', 'still'])).toBe(true);
  expect(mayHold(real, ['inside'])).toBe(false);
});

it('is told what is wrong with a value, and where in it', () => {
  const type = object({ first: object({ count: real }) });
  expect(faultIn(type, { first: { count: 1 } })).toBeNull();
  expect(faultIn(type, { first: { count: 'one' } })).toBe('first: count: expected a number');
});
