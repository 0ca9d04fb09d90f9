/**
 * The arrows that sides of pages take in one cache: each is asked of the machine of forms before it is made, and
 * counted. A decision that comes here was asked already (asked.ts); of what the engine does by itself this is the one
 * place where it is asked.
 */
import { assert } from '../native/index.ts';
import {
  FORM_ARROWS,
  FORM_EVENTS,
  FORM_STATES,
  type FormArrow,
  type FormEventType,
  type FormState,
  kindOf,
  nextForm,
} from './form-machine.ts';
import type { PageForm } from './types.ts';

const nameOf = ({ from, event, to }: FormArrow): string => `form: ${from} → ${to} (${event})`;

const placeOf = ({ from, event, to }: FormArrow): number =>
  (FORM_STATES.indexOf(from) * FORM_EVENTS.length + FORM_EVENTS.indexOf(event)) * FORM_STATES.length +
  FORM_STATES.indexOf(to);

export class FormArrows {
  readonly #counts = new Float64Array(FORM_STATES.length * FORM_EVENTS.length * FORM_STATES.length);

  /** How often each arrow was taken: 'form: from → to (event)' and the number, in the order of the machine. */
  get counts(): ReadonlyMap<string, number> {
    return new Map(FORM_ARROWS.map((arrow) => [nameOf(arrow), this.#counts[placeOf(arrow)]!]));
  }

  /** True if a side may go that way. */
  may(from: FormState, event: FormEventType, to: PageForm): boolean {
    return nextForm(from, event, kindOf(to)) !== null;
  }

  /** A side goes that way; `form` is what it will be in. A way that is none is a fault of the program. */
  take(from: FormState, event: FormEventType, form: PageForm): void {
    const to = nextForm(from, event, kindOf(form));
    if (to === null) assert(false, `no arrow leads a side of a page from '${from}' by '${event}' to ${form}`);
    this.#counts[placeOf({ from, event, to })]!++;
  }
}
