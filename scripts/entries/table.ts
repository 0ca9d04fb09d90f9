/** All fields of all kinds of entries as a page: for whoever reads a log with a program of their own. */
import type { Kind } from '../../witness/entries/index.ts';
import type { Type } from '../../witness/entries/type.ts';

const SEEN: Readonly<Record<Kind['owner'], string>> = {
  session: 'whoever has the key of its session, where it has one',
  'done to a session': 'everybody who can read the folder',
  log: 'everybody who can read the folder',
};

function typeText(type: Type): string {
  switch (type.is) {
    case 'integer':
      return type.min === 0 ? 'whole' : type.min < 0 ? 'whole, or less than 0' : `${type.min} … ${type.max}`;
    case 'real':
      return 'number';
    case 'flag':
      return 'true or false';
    case 'one':
      return type.expected.startsWith('one of') ? type.of.map((value) => `\`${value}\``).join(', ') : type.expected;
    case 'record':
      return `a field for each name: ${typeText(type.inside)}`;
    case 'nullable':
      return `${typeText(type.inside)}, or null`;
    case 'optional':
      return `${typeText(type.inside)}, or absent`;
    case 'object':
      return 'object';
    case 'list':
      return type.inside.is === 'object' ? 'list' : `list: ${typeText(type.inside)}`;
    default:
      return type.is === 'plain' ? 'any object' : type.is;
  }
}

/** The fields inside a type, with their paths from `path` on. */
function inside(type: Type, path: string): [string, Type][] {
  if (type.is === 'nullable' || type.is === 'optional') return inside(type.inside, path);
  if (type.is === 'list') return inside(type.inside, `${path}[]`);
  if (type.is === 'record') return inside(type.inside, `${path}.*`);
  if (type.is !== 'object') return [];
  return type.fields.flatMap(([name, field]) => [
    [`${path}.${name}`, field] as [string, Type],
    ...inside(field, `${path}.${name}`),
  ]);
}

/** A page with a table for each kind. */
export function fieldsTable(kinds: Readonly<Record<string, Kind>>): string {
  const tables = Object.entries(kinds).map(([kind, { fields, owner }]) => {
    const rows = Object.entries(fields).flatMap(([path, { type, unit = '', since = '', row = '' }]) => [
      `| \`${path}\` | ${typeText(type)} | ${unit} | ${since} | ${row === '' ? '' : `\`${row}\``} |`,
      ...inside(type, path).map(([deeper, field]) => `| \`${deeper}\` | ${typeText(field)} | | | |`),
    ]);
    return `## ${kind}

Its body can be read by ${SEEN[owner]}.

| field | holds | unit, where its name does not say it | since | in flat rows |
|---|---|---|---|---|
${rows.join('\n')}
`;
  });
  return `<!-- Written by scripts/generate-entries.ts from the modules of this folder. Change these, not this file. -->
# Fields of the entries of a log

${tables.join('\n')}`;
}
