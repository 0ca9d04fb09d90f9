/**
 * Source text of functions that spell bodies field by field: what of an entry is known beforehand is text in them, so
 * nothing is sorted and no type is asked.
 */
import { coreOf, inOrder, mayBeNull, type Type } from '../../witness/entries/type.ts';
import { Locals } from './locals.ts';

/**
 * Names that records may have, by what their TypeScript type is called. Which formats there are, a build knows best.
 */
const NAMES: Readonly<Record<string, string>> = { PageForm: 'FORM_NAMES' };

/** Functions that spell, by what they spell: two types of the same fields share one. */
class Functions {
  readonly #named = new Map<string, string>();
  readonly texts: string[] = [];

  /** An expression that spells `value`, of a TypeScript type that is called `typed`. */
  spell(type: Type, value: string, typed: string, name: string): string {
    if (mayBeNull(type)) {
      const core = coreOf(type);
      if (isNumber(core)) return `\${nullable(${value})}`;
      return `\${${value} === null ? 'null' : \`${this.spell(core, value, `NonNullable<${typed}>`, name)}\`}`;
    }
    switch (type.is) {
      case 'integer':
      case 'real':
        return `\${number(${value})}`;
      case 'flag':
        return `\${${value}}`;
      case 'text':
        return `\${text(${value})}`;
      case 'one':
        return type.of.every((one) => typeof one === 'string') ? `"\${${value}}"` : `\${json(${value})}`;
      case 'list':
        return isNumber(type.inside)
          ? `\${list(${value}, number)}`
          : `\${list(${value}, ${this.#lambda(type.inside, `${typed}[number]`, name)})}`;
      case 'record': {
        const names = type.name.is === 'one' ? NAMES[type.name.alias?.[1] ?? ''] : undefined;
        return names === undefined || !isNumber(type.inside)
          ? `\${json(${value})}`
          : `\${record(${value}, ${names}, number)}`;
      }
      case 'object':
        return `\${${this.object(type, typed, name)}(${value})}`;
      default:
        return `\${json(${value})}`;
    }
  }

  #lambda(type: Type, typed: string, name: string): string {
    if (type.is === 'object') return this.object(type, typed, name);
    return `(it) => \`${this.spell(type, 'it', typed, name)}\``;
  }

  /** Name of the function that spells objects of this type. */
  object(type: Type & { readonly is: 'object' }, typed: string, wanted: string): string {
    const key = JSON.stringify(type);
    const known = this.#named.get(key);
    if (known !== undefined) return known;
    const taken = new Set(this.#named.values());
    const plain = `spell${capital(wanted)}`;
    let name = plain;
    for (let number = 2; taken.has(name); number++) name = `${plain}${number}`;
    this.#named.set(key, name);
    const fields = inOrder(type.fields);
    const first = fields.findIndex(([, field]) => field.is !== 'optional');
    if (first < 0) throw new Error(`${name} has nothing but fields that may be absent`);
    const lines = fields.map(([field, inside], at) => {
      const value = `it.${field}`;
      const isOptional = inside.is === 'optional';
      const typedField = `${isOptional ? 'NonNullable<' : ''}${typed}['${field}']${isOptional ? '>' : ''}`;
      const spelled = `"${field}":${this.spell(isOptional ? inside.inside : inside, value, typedField, field)}`;
      const [begin, end] = [at === 0 ? '{' : '', at === fields.length - 1 ? '}' : ''];
      // Before the first that must be there its comma stands behind it.
      const text = at < first ? `${spelled},` : at === first ? spelled : `,${spelled}`;
      if (!isOptional) return `\`${begin}${text}${end}\``;
      return `(${value} === undefined ? '${begin}${end}' : \`${begin}${text}${end}\`)`;
    });
    this.texts.push(`function ${name}(it: ${typed}): string {
  return (
    ${lines.join(' +\n    ')}
  );
}`);
    return name;
  }
}

const isNumber = ({ is }: Type): boolean => is === 'integer' || is === 'real';

/** As many as the bits of a number say. */
const ABSENT_MAX = 31;

/**
 * Calls that put what a plan has room for into a row of numbers, in the order of its holes. `places`: counts the fields
 * that may be absent. Throws for what no plan can say.
 */
function puts(type: Type, path: string, locals: Locals, places: { next: number }): string[] {
  const core = coreOf(type);
  if (core.is === 'object') {
    if (type.is === 'optional') throw new Error(`the plan of an entry has no step for ${path}, which may be absent`);
    return inOrder(core.fields).flatMap(([name, field]) => puts(field, `${path}.${name}`, locals, places));
  }
  const value = locals.shorter(path);
  if (type.is === 'optional') {
    const place = places.next++;
    if (place === ABSENT_MAX) throw new Error(`more than ${ABSENT_MAX} fields of a planned entry may be absent`);
    const [put] = puts(type.inside, path, locals, places);
    return [`if (${value} === undefined) putAbsent(${place});`, `else ${put}`];
  }
  if (core.is === 'flag') return [`putFlag(${value});`];
  if (core.is === 'text' || core.is === 'one') return [`putWord(${value});`];
  if (isNumber(core)) return [`${mayBeNull(type) ? 'putNullable' : 'putNumber'}(${value});`];
  throw new Error(`the plan of an entry has no step for ${path}, a ${core.is}`);
}

const capital = (name: string): string => name[0]!.toUpperCase() + name.slice(1);

/**
 * The module that spells bodies of these kinds, and fills in the plans of those that have one. `from`: folder of the
 * modules that it imports.
 */
export function spellingSource(
  spelled: Readonly<Record<string, Type>>,
  planned: Readonly<Record<string, Type>>,
  from = '..',
): string {
  const functions = new Functions();
  const bodies = Object.entries(spelled).map(([kind, type]) => {
    if (type.is !== 'object') throw new Error(`the body of ${kind} is no object`);
    const name = functions.object(type, `${capital(kind)}Body`, `${kind}Body`);
    return `  ${kind}: ${name},`;
  });
  const fills = Object.entries(planned).map(([kind, type]) => {
    const locals = new Locals();
    const calls = puts(type, 'body', locals, { next: 0 });
    return `/** Puts the body of such an entry into the numbers of its plan. */
export function fill${capital(kind)}Body(body: ${capital(kind)}Body): void {
  ${[...locals.lines, ...calls].join('\n  ')}
}
`;
  });
  const used = [...new Set(fills.join('').match(/\bput[A-Z]\w+/g))].sort();
  const types = [...new Set([...Object.keys(spelled), ...Object.keys(planned)])].map((kind) => `${capital(kind)}Body`);
  return `// Written by scripts/generate-entries.ts from witness/entries/. Change these, not this file.
import { FORMS } from '${from}/../policy/index.ts';
import { canonicalJson as json, canonicalNumber as number, canonicalText as text } from '${from}/canonical.ts';
import { ${used.join(', ')} } from '${from}/plan-numbers.ts';
import type { ${types.sort().join(', ')} } from '${from}/entries/index.ts';

const FORM_NAMES = [...FORMS].sort();

const nullable = (value: number | null): string => (value === null ? 'null' : number(value));

function list<T>(items: readonly T[], spell: (item: T) => string): string {
  let text = '[';
  for (let i = 0; i < items.length; i++) text += i === 0 ? spell(items[i]!) : \`,\${spell(items[i]!)}\`;
  return \`\${text}]\`;
}

function record<K extends string, T>(table: Readonly<Partial<Record<K, T>>>, names: readonly K[], spell: (value: T) => string): string {
  let text = '{';
  for (const name of names) {
    const value = table[name];
    if (value !== undefined) text += \`\${text === '{' ? '' : ','}"\${name}":\${spell(value)}\`;
  }
  return \`\${text}}\`;
}

${functions.texts.join('\n\n')}

/** Canonical texts of bodies, by the kind of their entry. */
export const SPELLED = {
${bodies.join('\n')}
};

${fills.join('\n')}`;
}
