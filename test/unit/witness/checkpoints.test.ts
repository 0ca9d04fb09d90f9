// Checkpoints without a log: which texts are one, how a file of them is read whatever a crash left in it, and what a
// series says against them, entry by entry. The trees here are computed by this file alone.
import { generateKeyPairSync } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { type CheckpointBody, signCheckpoint } from '../../../witness/checkpoint.ts';
import { appendCheckpoints, parseCheckpoint, readCheckpoints, verifierOf } from '../../../witness/index.ts';
import { signNote } from '../../../witness/note.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-checkpoints-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
const { privateKey } = generateKeyPairSync('ed25519');
const keys = [verifierOf(privateKey)];
const body: CheckpointBody = {
  logId: '0123456789abcdef0123456789abcdef',
  series: 7,
  size: 1234,
  rootHash: 'ab'.repeat(32),
  headHash: 'cd'.repeat(32),
  timeMs: Date.UTC(2026, 0, 31, 13, 5, 2, 7),
};
const text = [
  'palimpsest/0123456789abcdef0123456789abcdef/7',
  '1234',
  `${Buffer.alloc(32, 0xab).toString('base64')}`,
  `head ${Buffer.alloc(32, 0xcd).toString('base64')}`,
  'time 2026-01-31T13:05:02.007Z',
  '',
].join('\n');
const refused = (place: string, part: string) =>
  expect.objectContaining({
    code: 'bad-signature',
    message: expect.stringMatching(new RegExp(`the checkpoint at ${place} .*${part}`)),
    hint: expect.stringContaining('--trusted-key'),
    values: { place: expect.stringMatching(new RegExp(`^${place}$`)) },
  });

describe('a checkpoint', () => {
  it('has the lines that the page says, and reads as what was signed', () => {
    const note = signCheckpoint(body, privateKey);
    expect(note).toBe(signNote(text, privateKey));
    expect(parseCheckpoint(note, keys, 'here')).toEqual({ ...body, note, place: 'here' });
  });

  it('may be of an empty series, of a full one, and of the last there can be', () => {
    for (const changed of [{ size: 0 }, { size: 2 ** 32 }, { series: 9999 }, { series: 0 }, { timeMs: 0 }]) {
      const note = signCheckpoint({ ...body, ...changed }, privateKey);
      expect(parseCheckpoint(note, keys, 'here')).toMatchObject(changed);
    }
  });

  // All of these are signed rightly: only what they say is no checkpoint.
  it.each<[string, (good: string) => string]>([
    ['more in front', (good) => `x${good}`],
    ['a line in front', (good) => `\n${good}`],
    ['a line behind', (good) => `${good}more\n`],
    ['another origin', (good) => good.replace('palimpsest/', 'palimpsests/')],
    ['a log id that is too short', (good) => good.replace('/0123', '/123')],
    ['a log id in capitals', (good) => good.replace('/0123456789abcdef', '/0123456789ABCDEF')],
    ['no series', (good) => good.replace('/7', '/')],
    ['a series with a zero in front', (good) => good.replace('/7', '/07')],
    ['a series of five digits', (good) => good.replace('/7', '/10000')],
    ['a negative size', (good) => good.replace('\n1234', '\n-1234')],
    ['a size with a zero in front', (good) => good.replace('\n1234', '\n01234')],
    ['more entries than a series holds', (good) => good.replace('\n1234', `\n${2 ** 32 + 1}`)],
    ['a size of eleven digits', (good) => good.replace('\n1234', '\n12345678901')],
    ['a root that is too short', (good) => good.replace('q6ur', '')],
    ['a root with bits that mean nothing', (good) => good.replace('s=\nhead', 't=\nhead')],
    ['a head without its word', (good) => good.replace('head ', '')],
    ['no head', (good) => good.replace(/head .*\n/, '')],
    ['a time that is no day', (good) => good.replace('01-31', '02-31')],
    ['a time that is no time', (good) => good.replace('01-31', '13-31')],
    ['a time without milliseconds', (good) => good.replace('.007', '')],
    ['a time of another zone', (good) => good.replace('007Z', '007+01:00')],
  ])('is none with %s', (_what, change) => {
    const changed = change(text);
    expect(changed).not.toBe(text);
    const note = signNote(changed, privateKey);
    expect(() => parseCheckpoint(note, keys, 'here')).toThrowError(refused('here', 'is not a checkpoint of a witness'));
  });

  it('is none where the text is no note, and worth nothing where nobody who is trusted signed it', () => {
    const note = signCheckpoint(body, privateKey);
    expect(() => parseCheckpoint(text, keys, 'here')).toThrowError(refused('here', 'is not a checkpoint'));
    expect(() => parseCheckpoint(note, [], 'here')).toThrowError(refused('here', 'signed by none of the trusted keys'));
    expect(() => parseCheckpoint(note.replace('\n1234', '\n1235'), keys, 'here')).toThrowError(
      refused('here', 'signed by none of the trusted keys'),
    );
  });
});

describe('a file of checkpoints', () => {
  const other = generateKeyPairSync('ed25519').privateKey;
  const note = (size: number): string => signCheckpoint({ ...body, size }, privateKey);
  let count = 0;
  const file = (content: string): string => {
    const path = join(dir, `anchor-${count++}.txt`);
    writeFileSync(path, content);
    return path;
  };
  /** [size, line at which it begins] */
  const found = (content: string): [number, number][] =>
    readCheckpoints(file(content), keys).map(({ size, place }) => [size, Number(/:(\d+)$/.exec(place)![1])]);

  it('gives every one with the line at which it begins', () => {
    expect(found('')).toEqual([]);
    expect(found(note(1))).toEqual([[1, 1]]);
    expect(found(note(1) + note(2) + note(3))).toEqual([
      [1, 1],
      [2, 8],
      [3, 15],
    ]);
    expect(found(`\n\n${note(1)}\n\n\n${note(2)}\n`)).toEqual([
      [1, 3],
      [2, 13],
    ]);
  });

  it('takes several signatures below one checkpoint as one', () => {
    const [good] = note(5).split('\n').slice(-2) as [string];
    const second = signNote(text.replace('1234', '5'), other).split('\n').at(-2)!;
    expect(good.startsWith('— ')).toBe(true);
    expect(found(`${note(5)}${second}\n${note(6)}`)).toEqual([
      [5, 1],
      [6, 9],
    ]);
  });

  // It was signed, so it counts: an empty line behind it says that somebody joined files by hand, or that only its last
  // byte is missing.
  it('passes over no checkpoint that lacks nothing but the end of its last line', () => {
    const cut = note(1).slice(0, -1);
    expect(found(cut)).toEqual([[1, 1]]);
    expect(found(`${cut}\n\n${note(2)}`)).toEqual([
      [1, 1],
      [2, 9],
    ]);
    expect(found(`${note(1)}\n`)).toEqual([[1, 1]]);
  });

  // A writer that died, was started again, and died again, in the middle of a line or at its end.
  it('passes over beginnings that were cut off, however many, and takes what follows them', () => {
    const whole = note(2);
    for (const length of [
      1,
      11,
      40,
      text.length - 1,
      text.length,
      text.length + 1,
      text.length + 3,
      whole.length - 2,
    ]) {
      const cut = note(9).slice(0, length);
      expect(found(note(1) + cut), `cut at ${length}`).toEqual([[1, 1]]);
      const sizes = (content: string): number[] => found(content).map(([size]) => size);
      expect(sizes(`${note(1)}${cut}\n\n${whole}`), `cut at ${length}`).toEqual([1, 2]);
      expect(sizes(`${note(1)}${cut}\n\n${cut}\n\n${whole}${cut}`), `cut at ${length}`).toEqual([1, 2]);
    }
  });

  it('takes what follows directly behind a line at which another was cut off', () => {
    const lines = note(9).split('\n');
    for (const kept of [1, 2, 4, 5])
      expect(found(`${lines.slice(0, kept).join('\n')}\n${note(2)}`), `${kept} lines`).toEqual([[2, kept + 1]]);
  });

  it('gets an empty line before the next checkpoint where it does not end with a whole one', () => {
    const path = file(note(1) + note(9).slice(0, 60));
    appendCheckpoints(path, [note(2)]);
    expect(readCheckpoints(path, keys).map(({ size }) => size)).toEqual([1, 2]);
    expect(readFileSync(path, 'utf8')).toBe(`${note(1)}${note(9).slice(0, 60)}\n\n${note(2)}`);
  });

  it('is a file, and of a size that checkpoints can have', () => {
    const large = file('');
    truncateSync(large, 256 * 1024 * 1024 + 1);
    for (const path of [dir, large])
      expect(() => readCheckpoints(path, keys)).toThrowError(expect.objectContaining({ code: 'bad-signature' }));
  });

  it('is refused at the first line of what is something else, also behind a sound one', () => {
    for (const [content, line] of [
      ['hello\n', 1],
      ['\n\nhello\n', 3],
      [`${note(1)}hello\n`, 8],
      [`${note(1)}hello\n${note(2)}`, 8],
      [`${note(1)}\nhello`, 9],
      [`${note(1)}x${note(2)}`, 8],
    ] as const)
      expect(() => readCheckpoints(file(content), keys), content).toThrowError(
        refused(`.*\\.txt:${line}`, 'is not a checkpoint of a witness log'),
      );
  });

  it('is refused where one of its checkpoints is signed by somebody else, wherever it stands', () => {
    const strange = signCheckpoint(body, other);
    for (const [content, line] of [
      [strange + note(1), 1],
      [note(1) + strange, 8],
    ] as const)
      expect(() => readCheckpoints(file(content), keys)).toThrowError(
        refused(`.*\\.txt:${line}`, 'signed by none of the trusted keys'),
      );
  });
});
