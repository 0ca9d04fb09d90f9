/**
 * Writes what follows from the fields of entries (witness/entries/) and must be as fast as code that is written by
 * hand, or be read by people:
 *   witness/entries/spelling.gen.ts   functions that spell what is written while a model decodes
 *   witness/entries/rows.gen.ts       flat rows: their declarations, and what makes them of entries
 *   migrations/columns.gen.ts         the columns of these rows in SQL
 *   witness/entries/fields.gen.md     a table of all fields
 *   native/log/entries.gen.h          how the binary counts types and steps of plans
 * With `--check` it writes nothing, and fails when a file has something else.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FORM_TYPES, SPELL_STEPS } from '../witness/entries/binary.ts';
import { DECISION_ROW, ENTRIES, SESSION_ROW, SITUATION_ROW } from '../witness/entries/index.ts';
import { headerSource } from './entries/header.ts';
import { columnsSource, type Row, rowsSource } from './entries/rows.ts';
import { spellingSource } from './entries/spelling.ts';
import { fieldsTable } from './entries/table.ts';

const ROWS: readonly Row[] = [
  {
    name: 'decision',
    means:
      'One decision entry, flat: what a list shows and what the SQL index stores. `seq` is the id that a person types.',
    fields: DECISION_ROW,
    isOfOneEntry: true,
  },
  {
    name: 'situation',
    means: 'The numbers of one situation entry, flat: what the SQL index stores.',
    fields: SITUATION_ROW,
    isOfOneEntry: true,
  },
  {
    name: 'session',
    means: "One session, from its 'open' entry and, when it ended, its 'close' entry.",
    fields: SESSION_ROW,
    isOfOneEntry: false,
  },
];

const { decision, situation } = ENTRIES;
const outputs: Readonly<Record<string, string>> = {
  'witness/entries/spelling.gen.ts': spellingSource(
    { decision: decision.type, situation: situation.type },
    { decision: decision.type },
  ),
  'witness/entries/rows.gen.ts': rowsSource(ROWS),
  'migrations/columns.gen.ts': columnsSource(ROWS),
  'witness/entries/fields.gen.md': fieldsTable(ENTRIES),
  'native/log/entries.gen.h': headerSource({
    Form: { type: 'FormType', names: FORM_TYPES },
    Spell: { type: 'SpellStep', names: SPELL_STEPS },
  }),
};

for (const [name, text] of Object.entries(outputs)) {
  const path = join(import.meta.dirname, '..', name);
  if (existsSync(path) && readFileSync(path, 'utf8') === text) continue;
  if (process.argv.includes('--check')) {
    console.error(`${name} is stale: run npm run generate`);
    process.exitCode = 1;
  } else writeFileSync(path, text);
}
