/** Columns of a report that follow from the fields of entries: those whose field names one. */
import { PARTS } from '../../native/index.ts';
import { FORMS } from '../../policy/index.ts';
import { ENVELOPE, type Field, type Fields } from '../entries/field.ts';
import { coreOf, type Type } from '../entries/type.ts';
import type { Entry } from '../types.ts';

/** A column, and what an entry has in it. */
interface ReportColumn {
  readonly name: string;
  value(entry: Entry): number | null;
}

/** A value as a number: of a side, a format or a latent its place among all. */
function numberOf(type: Type): (value: unknown) => number | null {
  const core = coreOf(type);
  if (core.is === 'flag') return (value) => (value === true ? 1 : 0);
  if (core.is !== 'one') return (value) => (value as number | null | undefined) ?? null;
  const places: readonly unknown[] =
    core.alias?.[1] === 'PageForm' ? FORMS : core.alias?.[1] === 'Part' ? PARTS : core.of;
  return (value) => places.indexOf(value);
}

function columnOf(path: readonly string[], { type, report = '' }: Field): ReportColumn {
  const toNumber = numberOf(type);
  return {
    name: report,
    value: (entry) => {
      let value: unknown = entry;
      for (const name of path) value = (value as Readonly<Record<string, unknown>>)[name];
      return toNumber(value);
    },
  };
}

/** The columns of entries with these fields, in order; what stands around the body comes first. */
export function reportColumns(fields: Fields): ReportColumn[] {
  const all = [
    ...Object.entries(ENVELOPE),
    ...Object.entries(fields).map(([path, field]) => [`body.${path}`, field] as const),
  ];
  return all.flatMap(([path, field]) => (field.report === undefined ? [] : [columnOf(path.split('.'), field)]));
}
