/**
 * The checks of bodies as the numbers in which the binary reads them (native/log/forms.h), so that it can tell which entries are certainly sound
 * while it follows the chain over them. Only the others are parsed.
 */
import { assert, type EntryForms } from '../native/index.ts';
import { BODIES, type Check } from './body.ts';
import { canonicalJson } from './canonical.ts';
import type { EntryKind } from './types.ts';

/** As FormType in native/log/forms.h. */
const TYPES = ['anything', 'plain', 'object', 'record', 'list', 'integer', 'real', 'flag', 'text', 'one'] as const;

/** Kinds in the order in which the binary counts them. */
export const FORM_KINDS = Object.keys(BODIES) as readonly EntryKind[];

let written: EntryForms | undefined;

/** Written once. */
export function entryForms(): EntryForms {
  written ??= new FormsWriter().write();
  return written;
}

class FormsWriter {
  /** Each check has one form, or a second one that may be null. */
  readonly #ids = new Map<string, number>();
  readonly #checks = new Map<Check, number>();
  readonly #forms: number[][] = [];
  #names = '';

  write(): EntryForms {
    const kinds = FORM_KINDS.map((kind) => [...this.#word(kind), this.#form(BODIES[kind]), 0]);
    const numbers = Float64Array.from([this.#forms.length, kinds.length, ...kinds.flat(), ...this.#forms.flat()]);
    return { numbers, names: Buffer.from(this.#names, 'latin1') };
  }

  #word(text: string): [number, number] {
    const at = this.#names.indexOf(text);
    if (at >= 0) return [at, text.length];
    this.#names += text;
    return [this.#names.length - text.length, text.length];
  }

  #field(name: string, check: Check): number[] {
    const key = `${canonicalJson(name)}:`;
    return [...this.#word(key), this.#form(check), check(undefined) === null ? 1 : 0];
  }

  /** Number of the form of a check; one that is met inside itself is known by then. */
  #form(check: Check, mayBeNull = false): number {
    const { form } = check;
    assert(form !== undefined, `a check has no form: ${check(undefined)?.what}`);
    if (form.is === 'optional' || form.is === 'nullable')
      return this.#form(form.inside, mayBeNull || form.is === 'nullable');
    let known = this.#checks.get(check);
    if (known === undefined) {
      known = this.#checks.size;
      this.#checks.set(check, known);
    }
    const name = `${known} ${mayBeNull}`;
    const found = this.#ids.get(name);
    if (found !== undefined) return found;
    const id = this.#forms.length;
    this.#ids.set(name, id);
    const numbers: number[] = [TYPES.indexOf(form.is), mayBeNull ? 1 : 0];
    this.#forms.push(numbers);
    if (form.is === 'object') {
      // In the order of the alphabet, in which the fields stand.
      const fields = [...form.fields].sort(([a], [b]) => (a < b ? -1 : 1));
      numbers.push(fields.length, ...fields.flatMap(([key, field]) => this.#field(key, field)));
    } else if (form.is === 'record') numbers.push(this.#form(form.name), this.#form(form.inside));
    else if (form.is === 'list') numbers.push(this.#form(form.inside), form.min, form.max);
    else if (form.is === 'integer') numbers.push(form.min, form.max);
    else if (form.is === 'text') numbers.push(form.max);
    else if (form.is === 'one')
      numbers.push(form.of.length, ...form.of.flatMap((value) => this.#word(canonicalJson(value))));
    return id;
  }
}
