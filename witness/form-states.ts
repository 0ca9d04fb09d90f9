/**
 * What sides of pages are in, by the states of their machine, as the entries of one session tell it: where each is now,
 * and which arrows were taken, how often and when first.
 */
import { movablePages, SIDES } from '../native/index.ts';
import { FORM_STATES, type FormState, kindOf } from '../policy/index.ts';
import { formsTold, type ToldSide } from './told-forms.ts';
import type { Entry, OpenBody } from './types.ts';

/** An arrow that sides took. */
export interface TakenArrow {
  readonly from: FormState;
  readonly to: FormState;
  readonly sides: number;
  /** Tokens that the cache had then. */
  readonly firstAt: number;
  readonly lastAt: number;
}

interface Counted {
  sides: number;
  readonly firstAt: number;
  lastAt: number;
}

export class FormStates {
  readonly #windowTokens: number | undefined;
  /** State of each side that has left the window, by layer, page and side. */
  readonly #states = new Map<string, FormState>();
  readonly #arrows = new Map<string, Counted>();
  #tokens = 0;

  constructor({ context }: Pick<OpenBody, 'context'>) {
    this.#windowTokens = context.windowTokens;
  }

  add(entry: Entry): void {
    const { tokens, sides } = formsTold(entry);
    if (tokens !== undefined) this.#at(tokens);
    for (const side of sides) this.#go(side);
  }

  /** How many sides of each layer are in each state that some are in, layers from 0 on. */
  get byLayer(): readonly (readonly [layer: number, counts: Readonly<Partial<Record<FormState, number>>>])[] {
    const layers = new Map<number, Partial<Record<FormState, number>>>();
    for (const [key, state] of this.#states) {
      const layer = Number(key.slice(0, key.indexOf('/')));
      const counts = layers.get(layer) ?? {};
      counts[state] = (counts[state] ?? 0) + 1;
      layers.set(layer, counts);
    }
    return [...layers].sort(([a], [b]) => a - b);
  }

  /** The arrows that were taken, in the order of states. */
  get arrows(): readonly TakenArrow[] {
    const place = (state: FormState): number => FORM_STATES.indexOf(state);
    return [...this.#arrows]
      .map(([name, counted]) => {
        const [from, to] = name.split(' ') as [FormState, FormState];
        return { from, to, ...counted };
      })
      .sort((a, b) => place(a.from) - place(b.from) || place(a.to) - place(b.to));
  }

  /** Pages that are in the window at this length, or gone, are told anew when they leave it. */
  #at(tokens: number): void {
    const isLess = tokens < this.#tokens;
    this.#tokens = tokens;
    if (!isLess) return;
    const first = movablePages(tokens, this.#windowTokens);
    for (const [key, state] of this.#states) {
      if (Number(key.split('/')[1]) < first) continue;
      this.#states.delete(key);
      this.#count(state, 'window');
    }
  }

  #go({ layer, page, side, to, isPromoted }: ToldSide): void {
    const key = `${layer}/${page}/${SIDES.indexOf(side)}`;
    const state = isPromoted === true ? 'promoted' : to === 'freed' ? 'freed' : kindOf(to);
    this.#count(this.#states.get(key) ?? 'window', state);
    this.#states.set(key, state);
  }

  #count(from: FormState, to: FormState): void {
    const name = `${from} ${to}`;
    const known = this.#arrows.get(name);
    if (known === undefined) this.#arrows.set(name, { sides: 1, firstAt: this.#tokens, lastAt: this.#tokens });
    else {
      known.sides++;
      known.lastAt = this.#tokens;
    }
  }
}
