/** Source text of flat rows: their declarations, functions that make them of entries, and columns of the SQL schema. */
import type { RowField } from '../../witness/entries/field.ts';
import { type Alias, coreOf, mayBeNull, type Type } from '../../witness/entries/type.ts';
import { Locals } from './locals.ts';

const WRITTEN = '// Written by scripts/generate-entries.ts from witness/entries/. Change these, not this file.';
const COLUMN_MOST = 2 ** 31 - 1;

/** What the text of a TypeScript type needs to be imported. */
function aliasOf(type: Type): Alias | null {
  const core = coreOf(type);
  return core.is === 'one' ? core.alias : null;
}

function typeText(type: Type): string {
  const core = coreOf(type);
  const orNull = mayBeNull(type) ? ' | null' : '';
  const alias = aliasOf(core);
  if (alias !== null) return `${alias[1]}${orNull}`;
  switch (core.is) {
    case 'integer':
    case 'real':
      return `number${orNull}`;
    case 'flag':
      return `boolean${orNull}`;
    case 'text':
      return `string${orNull}`;
    case 'one':
      return core.of.map((value) => (typeof value === 'string' ? `'${value}'` : String(value))).join(' | ') + orNull;
    default:
      throw new Error(`a row has no room for a ${core.is}`);
  }
}

/** The declaration of a row. Fields without a sentence about them have none here either. */
function declaration(name: string, means: string, row: readonly RowField[]): string {
  const fields = row.map((field) => {
    const comment = field.means === undefined ? '' : `  /** ${field.means} */\n`;
    return `${comment}  readonly ${field.name}: ${typeText(field.type)};`;
  });
  return `/** ${means} */\nexport interface ${name} {\n${fields.join('\n')}\n}\n`;
}

/** The function that makes the row of an entry of a kind. */
function maker(name: string, body: string, result: string, row: readonly RowField[]): string {
  const locals = new Locals();
  const values = row.map(({ name: field, path, source }) => {
    const there = locals.shorter(path);
    const value = source.is === 'list' ? `${there}.length` : source.is === 'optional' ? `${there} ?? null` : there;
    return field === value ? `    ${field},` : `    ${field}: ${value},`;
  });
  return `/** An entry of this kind as its row. */
export function ${name}({ seq, timeMs, session, body }: Envelope & { readonly body: ${body} }): ${result} {
${locals.lines.map((line) => `  ${line}\n`).join('')}  return {
${values.join('\n')}
  };
}
`;
}

/** What the generator knows of a row: how it is called, and of which entries it is made, if of one alone. */
export interface Row {
  /** `decision`: of DecisionRow, decisionRow and decisionColumns. */
  readonly name: string;
  readonly means: string;
  readonly fields: readonly RowField[];
  readonly isOfOneEntry: boolean;
}

const capital = (name: string): string => name[0]!.toUpperCase() + name.slice(1);

/** The module with the rows and what makes them. `from`: folder of the modules that it imports. */
export function rowsSource(rows: readonly Row[], from = '..'): string {
  const made = rows.filter(({ isOfOneEntry }) => isOfOneEntry);
  const rooms = (['native', 'policy'] as const).flatMap((room) => {
    const aliases = rows.flatMap(({ fields }) => fields.map(({ type }) => aliasOf(type)));
    const names = [...new Set(aliases.filter((alias) => alias?.[0] === room).map((alias) => alias![1]))].sort();
    return names.length === 0 ? [] : [`import type { ${names.join(', ')} } from '${from}/../${room}/index.ts';`];
  });
  return `${WRITTEN}
${rooms.join('\n')}
import type { ${made.map(({ name }) => `${capital(name)}Body`).join(', ')} } from '${from}/entries/index.ts';

interface Envelope {
  readonly seq: number;
  readonly timeMs: number;
  readonly session: string;
}

${rows.map(({ name, means, fields }) => declaration(`${capital(name)}Row`, means, fields)).join('\n')}
${made.map(({ name, fields }) => maker(`${name}Row`, `${capital(name)}Body`, `${capital(name)}Row`, fields)).join('\n')}`;
}

function columnText({ column, type }: RowField): string {
  const core = coreOf(type);
  const notNull = mayBeNull(type) ? '' : '.notNull()';
  switch (core.is) {
    case 'integer':
      return `${core.min >= -COLUMN_MOST && core.max <= COLUMN_MOST ? 'integer' : 'whole'}('${column}')${notNull}`;
    case 'real':
      return `doublePrecision('${column}')${notNull}`;
    case 'flag':
      return `boolean('${column}')${notNull}`;
    case 'text':
    case 'one':
      return `text('${column}')${notNull}`;
    default:
      throw new Error(`a table has no column for a ${core.is}`);
  }
}

/** The module with the columns of the SQL tables of these rows. */
export function columnsSource(rows: readonly Row[]): string {
  const tables = rows.map(({ name, fields }) => {
    const columns = fields.map((field) => `  ${field.name}: ${columnText(field)},`);
    return `/** Columns of ${capital(name)}Row. */\nexport const ${name}Columns = {\n${columns.join('\n')}\n};\n`;
  });
  return `${WRITTEN}
import { bigint, boolean, doublePrecision, integer, text } from 'drizzle-orm/pg-core';

const whole = (name: string) => bigint(name, { mode: 'number' });

${tables.join('\n')}`;
}
