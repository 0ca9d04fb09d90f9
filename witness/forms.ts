/**
 * The types of bodies as the numbers in which the binary reads them (native/log/forms.h), so that it can tell which
 * entries are certainly sound while it follows the chain over them. Only the others are parsed.
 */
import type { EntryForms } from '../native/index.ts';
import { canonicalJson } from './canonical.ts';
import { FORM_TYPES } from './entries/binary.ts';
import { ENTRIES } from './entries/index.ts';
import { coreOf, inOrder, mayBeNull, type Type } from './entries/type.ts';
import type { EntryKind } from './types.ts';

const TYPES: readonly string[] = FORM_TYPES;

/** Kinds in the order in which the binary counts them. */
export const FORM_KINDS = Object.keys(ENTRIES) as readonly EntryKind[];

let written: EntryForms | undefined;

/** Written once. */
export function entryForms(): EntryForms {
  written ??= formsOf(Object.fromEntries(Object.entries(ENTRIES).map(([kind, { type }]) => [kind, type])));
  return written;
}

/** The types of bodies, by the kind of their entry, as the binary reads them. */
export const formsOf = (types: Readonly<Record<string, Type>>): EntryForms => new FormsWriter().write(types);

class FormsWriter {
  /** Each type has one form, or a second one that may be null. */
  readonly #ids = new Map<string, number>();
  readonly #types = new Map<Type, number>();
  readonly #forms: number[][] = [];
  #names = '';

  write(types: Readonly<Record<string, Type>>): EntryForms {
    const kinds = Object.entries(types).map(([kind, type]) => [...this.#word(kind), this.#form(type), 0]);
    const numbers = Float64Array.from([this.#forms.length, kinds.length, ...kinds.flat(), ...this.#forms.flat()]);
    return { numbers, names: Buffer.from(this.#names, 'latin1') };
  }

  #word(text: string): [number, number] {
    const at = this.#names.indexOf(text);
    if (at >= 0) return [at, text.length];
    this.#names += text;
    return [this.#names.length - text.length, text.length];
  }

  #field(name: string, type: Type): number[] {
    const key = `${canonicalJson(name)}:`;
    return [...this.#word(key), this.#form(type), type.is === 'optional' ? 1 : 0];
  }

  /** Number of the form of a type. */
  #form(type: Type): number {
    const core = coreOf(type);
    let known = this.#types.get(core);
    if (known === undefined) {
      known = this.#types.size;
      this.#types.set(core, known);
    }
    const isNullable = mayBeNull(type);
    const name = `${known} ${isNullable}`;
    const found = this.#ids.get(name);
    if (found !== undefined) return found;
    const id = this.#forms.length;
    this.#ids.set(name, id);
    const numbers: number[] = [TYPES.indexOf(core.is), isNullable ? 1 : 0];
    this.#forms.push(numbers);
    if (core.is === 'object') {
      // In the order of the alphabet, in which the fields stand.
      const fields = inOrder(core.fields);
      numbers.push(fields.length, ...fields.flatMap(([key, field]) => this.#field(key, field)));
    } else if (core.is === 'record') numbers.push(this.#form(core.name), this.#form(core.inside));
    else if (core.is === 'list') numbers.push(this.#form(core.inside), core.min, core.max);
    else if (core.is === 'integer') numbers.push(core.min, core.max);
    else if (core.is === 'text') numbers.push(core.max);
    else if (core.is === 'one')
      numbers.push(core.of.length, ...core.of.flatMap((value) => this.#word(canonicalJson(value))));
    return id;
  }
}
