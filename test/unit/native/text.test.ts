// What is printed: text of a foreign file cannot steer a terminal, tables and prose follow the width there is, and a
// pipe gets every character. Widths from 20 to 240 columns are tried with rows whose every value is known.
import { describe, expect, it } from 'vitest';
import {
  brief,
  bytesText,
  type Column,
  columnsOf,
  fields,
  jsonText,
  legend,
  plural,
  printable,
  table,
  unitBehind,
  wrap,
} from '../../../native/index.ts';

const widest = (text: string): number => Math.max(...text.split('\n').map((line) => [...line].length));
const HOSTILE = 'a\u001b[2J\u009b31m\u202egnp\nb\u2028\ud800';

describe('what came from a file', () => {
  it('is shown with every control, turn and line break spelled out', () => {
    expect(printable(HOSTILE)).toBe(String.raw`a\x1b[2J\x9b31m\u{202e}gnp\x0ab\u{2028}\u{d800}`);
    expect(printable('Qwen3 – 千问 ε²→é 😀')).toBe('Qwen3 – 千问 ε²→é 😀');
  });
  it('stands harmless in tables, fields and JSON, and JSON reads back the same', () => {
    const shown = [
      table([{ title: 'x', value: (text: string) => text }], [HOSTILE]),
      fields([[HOSTILE, HOSTILE]]),
      jsonText({ [HOSTILE]: HOSTILE, far: '\u{e0001}' }),
    ];
    for (const text of shown) expect(text.replaceAll('\n', '')).not.toMatch(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u);
    expect(JSON.parse(shown[2]!)).toEqual({ [HOSTILE]: HOSTILE, far: '\u{e0001}' });
  });
});

describe('width', () => {
  it('is that of the terminal, and without bound in a pipe', () => {
    expect(columnsOf({ isTTY: true, columns: 123 })).toBe(123);
    expect(columnsOf({ isTTY: true })).toBe(80);
    expect(columnsOf({ columns: 123 })).toBe(Number.POSITIVE_INFINITY);
  });
  it('bounds prose, but leaves words whole', () => {
    const text = `${'word '.repeat(60)}${'x'.repeat(64)}`;
    for (const columns of [20, 60, 80, 100]) {
      const lines = wrap(text, columns, '  ').split('\n');
      expect(widest(lines.slice(0, -1).join('\n'))).toBeLessThanOrEqual(columns);
      expect(lines.at(-1)).toMatch(/^ {2}.*x{64}$/);
      expect(lines.join(' ').replace(/\s+/g, ' ')).toBe(text);
    }
    expect(widest(wrap(text, 240))).toBeLessThanOrEqual(100);
    expect(widest(wrap(text))).toBeLessThanOrEqual(80);
  });
  it('sets names and long values side by side', () => {
    const rows = [
      ['a', 'one'],
      ['long', 'two three four five'],
    ] as const;
    expect(fields(rows, 26)).toBe('a     one\nlong  two three four five');
    const many = fields([['long', 'two three four five six seven']], 30);
    expect(many).toBe('long  two three four five six\n      seven');
  });
});

interface Row {
  readonly name: string;
  readonly note: string;
  readonly count: number;
}
const columns: readonly Column<Row>[] = [
  { title: 'name', align: 'left', least: 6, value: ({ name }) => name, means: 'of the thing' },
  { title: 'note', align: 'left', least: 6, optional: true, value: ({ note }) => note },
  { title: 'count', value: ({ count }) => String(count), means: 'how many' },
];
const rows: readonly Row[] = [
  { name: 'abcdefghij', note: 'a note of 24 characters.', count: 5 },
  { name: 'k', note: '', count: 12345 },
];

describe('a table', () => {
  it('in a pipe is as wide as its content', () => {
    expect(table(columns, rows)).toBe(
      [
        'name        note                      count',
        '──────────  ────────────────────────  ─────',
        'abcdefghij  a note of 24 characters.      5',
        'k                                     12345',
      ].join('\n'),
    );
  });
  it('on a terminal is set closer, then cut, then left without a column, and never wider', () => {
    for (let width = 20; width <= 60; width++) expect(widest(table(columns, rows, width))).toBeLessThanOrEqual(width);
    expect(table(columns, rows, 30).split('\n')[2]).toBe('abcdefghij a note of 24…     5');
    expect(table(columns, rows, 18).split('\n')).toEqual([
      'name        count',
      '──────────  ─────',
      'abcdefghij      5',
      'k           12345',
    ]);
    expect(table(columns, [], 30).split('\n')).toHaveLength(2);
  });
  it('has a legend for what its titles do not say', () => {
    expect(legend(columns)).toBe('name: of the thing; count: how many');
  });
});

it('numbers are as long as a person needs', () => {
  expect([0, 12, 123456, 1234567, 0.012345, 123456.7, 1.2345e-7, -2.5, null].map((x) => brief(x))).toEqual([
    '0',
    '12',
    '123,456',
    '1.23e6',
    '0.01235',
    '123,457',
    '1.23e-7',
    '-2.5',
    '–',
  ]);
  expect([123.4, 12.34, 1.23e-8].map((x) => brief(x, 2))).toEqual(['123', '12', '1.2e-8']);
  expect([0, 1, 1023, 1536, -2048, 1.5 * 2 ** 20, 3 * 2 ** 30].map(bytesText)).toEqual([
    '0 bytes',
    '1 byte',
    '1023 bytes',
    '1.5 KiB',
    '-2 KiB',
    '1.5 MiB',
    '3 GiB',
  ]);
});

it('one of a thing is singular, also where its name is that of a unit', () => {
  expect([0, 1, 2, 1234].map((count) => plural(count, 'entry', 'entries'))).toEqual([
    '0 entries',
    '1 entry',
    '2 entries',
    '1,234 entries',
  ]);
  expect(['places', 'standard deviations', 'KLD', 'share'].map((unit) => unitBehind(1, unit))).toEqual([
    'place',
    'standard deviation',
    'KLD',
    'share',
  ]);
  expect(['places', 'KLD'].flatMap((unit) => [0, 2, 1.5].map((value) => unitBehind(value, unit)))).toEqual([
    ...['places', 'places', 'places'],
    ...['KLD', 'KLD', 'KLD'],
  ]);
});
