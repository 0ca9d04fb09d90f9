// One more field in the table of an entry, in one line, is found wherever fields of entries are: each place is made
// from a table with the field and from the table as it is. And what the tables promise: a field that earlier logs lack
// may be absent, and no kind of entry is without its table.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { getTableConfig, pgTable } from 'drizzle-orm/pg-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { rowSchema } from '../../../engine/serve/answers.ts';
import { followEntries, nativeInfo, spellEntry } from '../../../native/index.ts';
import { columnsSource, type Row, rowsSource } from '../../../scripts/entries/rows.ts';
import { spellingSource } from '../../../scripts/entries/spelling.ts';
import { fieldsTable } from '../../../scripts/entries/table.ts';
import { Batch } from '../../../witness/batch.ts';
import { checkOf, mayHold } from '../../../witness/body.ts';
import { canonicalJson } from '../../../witness/canonical.ts';
import { chainState } from '../../../witness/chain-state.ts';
import { filtersOf } from '../../../witness/condition.ts';
import { DECISION } from '../../../witness/entries/decision.ts';
import { bodyType, ENVELOPE, type Fields, type RowField, rowOf } from '../../../witness/entries/field.ts';
import { ENTRIES } from '../../../witness/entries/index.ts';
import { flag, nullable, optional, real, type Type, text } from '../../../witness/entries/type.ts';
import { payloadText } from '../../../witness/entry.ts';
import { formsOf } from '../../../witness/forms.ts';
import { csvText, type DecisionRow, ENTRY_KINDS, type Entry } from '../../../witness/index.ts';
import { EntryPlans } from '../../../witness/plan.ts';
import { beginRow, endRow, putNumber, putWord } from '../../../witness/plan-numbers.ts';
import { reportColumns } from '../../../witness/report/columns.ts';
import { Frontier } from '../../../witness/tree.ts';

const root = join(import.meta.dirname, '../../..');

/** The line. */
const LINE = {
  'verdict.cost': {
    ...{ type: optional(real), unit: 'nats', since: '9.8.0', row: 'verdictCost', asked: 'range', report: 'cost' },
    means: 'What the verdict cost.',
  },
} as const satisfies Fields;

/** Where fields of an entry are found, made from its table. */
function placesOf(fields: Fields): { type: Type; row: readonly RowField[] } {
  return { type: bodyType(fields), row: rowOf(ENVELOPE, fields) };
}

const before = placesOf(DECISION);
const after = placesOf({ ...DECISION, ...LINE });

/** With fields that may be absent at the beginning of an object, within it and at its end. */
const several = placesOf({
  ...DECISION,
  ...{
    aside: { type: optional(flag) },
    'verdict.cost': { type: optional(nullable(real)) },
    why: { type: optional(text) },
  },
});

const because = { threshold: 't', measured: -0.5, bound: 1, unit: '', origin: 'file', rule: 'r' };
const plainBody = {
  ...{ situation: 3, order: 0, tokens: 700, epsilonNow: null, bytesBefore: 10, bytesAfter: 9 },
  decision: {
    ...{
      layer: 1,
      page: 2,
      side: 'k',
      from: 'q8',
      to: 'rot4',
      epsilonFrom: 0,
      epsilonTo: 0.25,
      price: null,
      bytesFreed: 1,
    },
    ...{ retry: false, because },
  },
  verdict: { accepted: true, because },
};
const costing = (cost: unknown) => ({ ...plainBody, verdict: { ...plainBody.verdict, cost } });
const entry = (body: unknown) =>
  ({ seq: 5, timeMs: 6, session: 's', kind: 'decision', body }) as unknown as Entry<'decision'>;

interface Made {
  SPELLED: { decision(body: unknown): string };
  fillDecisionBody(body: unknown): void;
  decisionRow(entry: unknown): DecisionRow & { readonly verdictCost?: number | null };
  decisionColumns: Parameters<typeof pgTable>[1];
}

let folder = '';
const made: Made[] = [];

/** What the generator writes, as modules. */
beforeAll(async () => {
  mkdirSync(join(root, '.cache'), { recursive: true });
  folder = mkdtempSync(join(root, '.cache', 'entries-'));
  for (const [at, { type, row }] of [before, after, several].entries()) {
    const rows: Row[] = [{ name: 'decision', means: 'A row.', fields: row, isOfOneEntry: true }];
    const sources = {
      spelling: spellingSource({ decision: type }, { decision: type }, join(root, 'witness')),
      rows: rowsSource(rows, join(root, 'witness')),
      columns: columnsSource(rows),
    };
    const modules = Object.entries(sources).map(([name, text]) => {
      const file = join(folder, `${name}${at}.ts`);
      writeFileSync(file, text);
      return import(file) as Promise<object>;
    });
    made.push(Object.assign({}, ...(await Promise.all(modules))) as Made);
  }
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Fills in a body by the module of a table. → the fields that are absent, as bits; null: it is not what it must be */
function fill(table: number, body: unknown): number | null {
  beginRow(4096);
  for (const number of [5, 6]) putNumber(number);
  putWord('s');
  made[table]!.fillDecisionBody(body);
  return endRow();
}

describe('a field that is added in one line', () => {
  it('is parsed, and what it must not be is refused by its path', () => {
    const fault = { path: ['verdict', 'cost'], what: 'expected a number' };
    expect([plainBody, costing(0.5), costing('much')].map(checkOf(after.type))).toEqual([null, null, fault]);
    expect(checkOf(before.type)(costing('much'))).toBe(null);
  });

  it('may be masked', () => {
    expect([before, after].map(({ type }) => mayHold(type, ['verdict', 'cost']))).toEqual([false, true]);
  });

  it('is looked at by the binary', ({ skip }) => {
    const kindOf = (type: Type, body: unknown): number | null => {
      const start = { nextSeq: 0, headHash: Buffer.alloc(32), tree: new Frontier() };
      const batch = new Batch(0, 0, start);
      batch.add(0, payloadText(0, 6, 's', 'decision', canonicalJson(body)), 6);
      batch.finish();
      const out = { ends: new Uint32Array(1), kinds: new Uint8Array(1), hashes: new Uint8Array(64) };
      const state = chainState(start.headHash, start.tree);
      return followEntries(batch.bytes, state, 0, formsOf({ decision: type }), out) === 1 ? out.kinds[0]! : null;
    };
    if (kindOf(before.type, plainBody) === null) skip('there is no binary');
    expect([plainBody, costing(2), costing('much')].map((body) => kindOf(after.type, body))).toEqual([1, 1, 0]);
    expect(kindOf(before.type, costing('much'))).toBe(1);
  });

  it('is spelled as everything else', () => {
    const [without, withIt] = made;
    for (const body of [plainBody, costing(0.5), costing(-0)])
      expect(withIt!.SPELLED.decision(body)).toBe(canonicalJson(body));
    expect(without!.SPELLED.decision(costing(0.5))).toBe(canonicalJson(plainBody));
  });

  it('is a hole in the plan of the binary, and none in the plan of those that lack it', () => {
    expect([plainBody, costing('much'), costing(0.5)].map((body) => fill(1, body))).toEqual([1, null, 0]);
  });

  it('is spelled by the binary where it is there and where it is not, as are others, in every choice', ({ skip }) => {
    if (nativeInfo().binding === 'wasm') skip('WebAssembly prints no doubles');
    const plans = new EntryPlans('decision', several.type);
    const bytes = Buffer.alloc(4096);
    for (const choice of [...Array(8).keys(), ...Array(8).keys()]) {
      const { verdict } = choice & 1 ? costing(choice & 2 ? null : 0.5) : plainBody;
      const body = {
        ...plainBody,
        verdict,
        ...(choice & 2 ? { aside: true } : {}),
        ...(choice & 4 ? { why: 'so' } : {}),
      };
      const plan = plans.without(fill(2, body)!);
      expect(spellEntry(bytes, 0, plan)).toBe(true);
      const text = payloadText(5, 6, 's', 'decision', canonicalJson(body));
      expect(bytes.toString('utf8', 0, plan.numbers[0])).toBe(text);
    }
  });

  it('is in the flat row and in its declaration, and null where the entry lacks it', () => {
    const [without, withIt] = made;
    expect([plainBody, costing(0.5)].map((body) => withIt!.decisionRow(entry(body)).verdictCost)).toEqual([null, 0.5]);
    expect(without!.decisionRow(entry(costing(0.5)))).not.toHaveProperty('verdictCost');
    const declared = rowsSource([{ name: 'decision', means: 'A row.', fields: after.row, isOfOneEntry: true }]);
    expect(declared).toContain('  /** What the verdict cost. */\n  readonly verdictCost: number | null;\n');
  });

  it('is a column of CSV, and a bound of lists', () => {
    const names = after.row.map(({ name }) => name);
    const row = made[1]!.decisionRow(entry(costing(0.5))) as unknown as Readonly<Record<string, unknown>>;
    const [head, values] = csvText(names, [names.map((name) => row[name])]).split('\n');
    expect(values!.split(',')[head!.split(',').indexOf('verdictCost')]).toBe('0.5');
    expect([before, after].map(({ row: fields }) => filtersOf(fields).between.includes('verdictCost'))).toEqual([
      false,
      true,
    ]);
  });

  it('is a column of SQL', () => {
    const [old, grown] = made.map(
      ({ decisionColumns }) => getTableConfig(pgTable('decisions', decisionColumns)).columns,
    );
    expect(grown!.length).toBe(old!.length + 1);
    const column = grown!.find(({ name }) => name === 'verdict_cost')!;
    expect([column.getSQLType(), column.notNull]).toEqual(['double precision', false]);
  });

  it('is in answers over HTTP and in their OpenAPI schema', () => {
    const [old, grown] = [before, after].map(({ row }) => rowSchema<Readonly<Record<string, unknown>>>(row));
    const row = made[1]!.decisionRow(entry(costing(0.5)));
    expect(grown!.parse(row)).toEqual(row);
    expect(old!.safeParse(row).success).toBe(false);
    const { properties } = z.toJSONSchema(grown!) as unknown as { properties: Readonly<Record<string, unknown>> };
    expect(properties.verdictCost).toEqual({ type: ['number', 'null'], description: 'what the verdict cost' });
  });

  it('is a column of reports, and a line of the page about fields', () => {
    const column = reportColumns({ ...DECISION, ...LINE }).find(({ name }) => name === 'cost')!;
    expect([plainBody, costing(0.5)].map((body) => column.value(entry(body)))).toEqual([null, 0.5]);
    const { type } = after;
    expect(fieldsTable({ decision: { fields: { ...DECISION, ...LINE }, type, owner: 'session' } })).toContain(
      '| `verdict.cost` | number, or absent | nats | 9.8.0 | `verdictCost` |\n',
    );
  });
});

describe('tables of entries', () => {
  it('let be absent what earlier logs lack', () => {
    expect(() => bodyType({ cost: { type: real, since: '9.8.0' } })).toThrowError(
      expect.objectContaining({ code: 'bad-argument', message: expect.stringContaining('lack cost') }),
    );
  });

  it('are there for every kind, in the order in which the kinds are listed', () => {
    expect(Object.keys(ENTRIES)).toEqual([...ENTRY_KINDS]);
  });

  it('name no field of a row, no column and no column of a report twice', () => {
    for (const { fields } of Object.values(ENTRIES)) {
      const row = rowOf(ENVELOPE, fields);
      for (const names of [
        row.map(({ name }) => name),
        row.map(({ column }) => column),
        reportColumns(fields).map(({ name }) => name),
      ])
        expect(new Set(names).size).toBe(names.length);
    }
  });
});
