/** Source text of the header that tells the binary how types and steps of plans are counted. */

/** number-or-null → NumberOrNull. */
const camel = (name: string): string =>
  name
    .split('-')
    .map((word) => word[0]!.toUpperCase() + word.slice(1))
    .join('');

/**
 * The header, with an enumeration for each of the lists: `Form: ['list']` is kFormList, behind the last one kForms is
 * how many there are.
 */
export function headerSource(
  lists: Readonly<Record<string, { readonly type: string; readonly names: readonly string[] }>>,
): string {
  const enums = Object.entries(lists).map(([prefix, { type, names }]) => {
    const values = [...names.map((name) => `k${prefix}${camel(name)}`), `k${type}s`];
    return `enum ${type} { ${values.map((value, at) => `${value} = ${at}`).join(', ')} };`;
  });
  return `// Written by scripts/generate-entries.ts. Change witness/entries/binary.ts, not this file.
#pragma once

namespace palimpsest {

${enums.join('\n')}

}  // namespace palimpsest
`;
}
