/**
 * The machine of one side of a page: what it is in, and which way leads from there to where. Whoever changes a page
 * asks it: policies' moves before they are carried out (unsafe.ts, asked.ts), the steps of a ladder (ladder.ts), and
 * what the engine does by itself (form-arrows.ts). As with the machine of a layer, numbers are compared elsewhere: a
 * decision names the threshold that it went by (`Because`), and the guard here asks only what the side is to become.
 * Used as a table that is made of the definition once.
 *
 *   window     newer tokens are too few; nothing moves      leave → what it is in: tried, or lower after a way back
 *   tried      in a format of the exact tier                demote → lower, rematerialize → latent
 *   coded      in a rung above the archive tier             demote → lower, putBack → its kept original
 *   archived   from the first rung of the archive tier on   the same
 *   latent     held as the inputs of its layer              rematerialize → a lower one, materialize → keys and values
 *   promoted   better than policies know, for an answer     return → what it was
 *   freed      nothing is left: let go by a policy, or behind the sliding window; takeBack → window, with its tokens
 */
import { setup } from 'xstate';
import { assert, FORMAT_NAMES, FORMATS, isFormatName } from '../native/index.ts';
import type { PageForm } from './types.ts';

export const FORM_STATES = ['window', 'tried', 'coded', 'archived', 'latent', 'promoted', 'freed'] as const;
/** What a side of a page is in. */
export type FormState = (typeof FORM_STATES)[number];

/** What a form is of a page that has left the window and is neither promoted nor freed. */
export const FORM_KINDS = ['tried', 'coded', 'archived', 'latent'] as const;
export type FormKind = (typeof FORM_KINDS)[number];

export const FORM_EVENTS = [
  // The page leaves the window, and is in the format that it was sealed in, or in what it was before tokens were taken
  // back.
  'leave',
  // To a lower format of its own, as a policy decides.
  'demote',
  // The original that was kept when it moved takes its place.
  'putBack',
  // Its latent takes the place of keys and values, which are made again whenever they are read…
  'rematerialize',
  // …and are there again, or are made of it once more while it is kept beside them, or of their originals…
  'materialize',
  // …and go back to what they were then, for room.
  'giveBack',
  // For an answer, made of an original outside of the budget, and back.
  'promote',
  'return',
  'free',
  // Tokens are taken back, and too few newer ones are left, or none of its own.
  'takeBack',
  // No way leads there: to a finer form that there is no source for, and to the form that it has.
  'refine',
  'rewrite',
] as const;
export type FormEventType = (typeof FORM_EVENTS)[number];

export interface FormEvent {
  readonly type: FormEventType;
  /** What the side is to be in. */
  readonly to: FormKind;
  /** Keys and values have to stay for now: the guard of latents (latent-guard.ts) found a bound that says so. */
  readonly stays?: boolean;
}

/** Rules under which a way that is none is refused. */
export type FormRefusal =
  | 'freed'
  | 'promotion'
  | 're-encode'
  | 'window'
  | 'latent-of-codes'
  | 'held'
  | 'promoted'
  | 'stays';

const into = <K extends FormKind>(...kinds: readonly K[]) =>
  kinds.map((kind) => ({ guard: { type: 'becomes' as const, params: { kind } }, target: kind }));
/** Into its latent, once keys and values need not stay. */
const givenUp = () => [
  { guard: { type: 'givesUp' as const, params: { kind: 'latent' as const } }, target: 'latent' as const },
];
/** The rule under which a state refuses what is no arrow of it. */
const refuses = (rule: FormRefusal) => ({ refuses: rule });

export const formMachine = setup({
  types: { events: {} as FormEvent, meta: {} as { refuses: FormRefusal } },
  guards: {
    becomes: ({ event }, { kind }: { kind: FormKind }) => event.to === kind,
    givesUp: ({ event }, { kind }: { kind: FormKind }) => event.to === kind && event.stays !== true,
  },
}).createMachine({
  id: 'form',
  initial: 'window',
  states: {
    window: {
      meta: refuses('window'),
      on: {
        leave: into('tried', 'coded', 'archived', 'latent'),
        materialize: 'window',
        giveBack: 'window',
      },
    },
    tried: {
      meta: refuses('latent-of-codes'),
      on: {
        // From f16 to q8 it stays as good as it was when it was tried.
        demote: into('tried', 'coded', 'archived'),
        rematerialize: givenUp(),
        materialize: into('tried'),
        giveBack: into('tried', 'coded', 'archived'),
        free: 'freed',
        takeBack: 'window',
      },
    },
    coded: {
      meta: refuses('latent-of-codes'),
      on: {
        demote: into('coded', 'archived'),
        putBack: into('tried'),
        materialize: into('tried', 'coded'),
        giveBack: into('coded', 'archived'),
        free: 'freed',
        takeBack: 'window',
      },
    },
    archived: {
      meta: refuses('latent-of-codes'),
      on: {
        demote: into('archived'),
        putBack: into('tried'),
        materialize: into('tried', 'coded', 'archived'),
        giveBack: into('archived'),
        promote: 'promoted',
        free: 'freed',
        takeBack: 'window',
      },
    },
    latent: {
      meta: refuses('held'),
      on: {
        rematerialize: into('latent'),
        materialize: into('tried', 'coded', 'archived'),
        free: 'freed',
        takeBack: 'window',
      },
    },
    promoted: {
      meta: refuses('promoted'),
      // What comes back comes in four bits, which is what coded sides have.
      on: { return: into('archived'), takeBack: 'window' },
    },
    freed: { meta: refuses('freed'), on: { takeBack: 'window' } },
  },
});

/** An arrow of the machine. */
export interface FormArrow {
  readonly from: FormState;
  readonly event: FormEventType;
  readonly to: FormState;
}

/**
 * An arrow, and the kind that its guard asks for; none: whatever the side is to be in. `waits`: its guard asks as well
 * whether keys and values may go.
 */
interface Declared extends FormArrow {
  readonly kind?: FormKind;
  readonly waits?: boolean;
}

interface Target {
  readonly guard: { readonly type: 'becomes' | 'givesUp'; readonly params: { readonly kind: FormKind } };
  readonly target: FormState;
}

interface Definition {
  readonly meta: { readonly refuses: FormRefusal };
  readonly on: Readonly<Partial<Record<FormEventType, FormState | readonly Target[]>>>;
}

const STATES = formMachine.config.states as unknown as Readonly<Record<FormState, Definition>>;

const DECLARED: readonly Declared[] = FORM_STATES.flatMap((from) =>
  Object.entries(STATES[from].on).flatMap(([type, targets]): Declared[] => {
    const event = type as FormEventType;
    if (typeof targets === 'string') return [{ from, event, to: targets }];
    return targets.map(({ target, guard: { type: asked, params } }) => ({
      ...{ from, event, to: target, kind: params.kind, waits: asked === 'givesUp' },
    }));
  }),
);

/** All arrows, in the order of the definition. */
export const FORM_ARROWS: readonly FormArrow[] = DECLARED.map(({ from, event, to }) => ({ from, event, to }));

const FIRST_ARCHIVED = FORMAT_NAMES.findIndex((name) => FORMATS[name].tier === 'archive');

/** By form. Where tiers overlap, as those of yardsticks do, the order of formats counts: it only leads down. */
const KINDS: ReadonlyMap<PageForm, FormKind> = new Map(
  FORMAT_NAMES.map((name, rank) => [
    name,
    FORMATS[name].tier === 'exact' ? 'tried' : rank < FIRST_ARCHIVED ? 'coded' : 'archived',
  ]),
);

export const kindOf = (form: PageForm): FormKind => (isFormatName(form) ? KINDS.get(form)! : 'latent');

/**
 * The state that each event leads to, [state][event][kind]: its index, or −1. Made of the definition when it is first
 * asked; a test compares it with what XState makes of it.
 */
let table: Int8Array | undefined;

function compiled(): Int8Array {
  const all = new Int8Array(FORM_STATES.length * FORM_EVENTS.length * FORM_KINDS.length).fill(-1);
  for (const { from, event, to, kind } of DECLARED)
    for (const one of FORM_KINDS)
      if (kind === undefined || kind === one) all[placeOf(from, event, one)] = FORM_STATES.indexOf(to);
  return all;
}

const placeOf = (state: FormState, event: FormEventType, to: FormKind): number =>
  (FORM_STATES.indexOf(state) * FORM_EVENTS.length + FORM_EVENTS.indexOf(event)) * FORM_KINDS.length +
  FORM_KINDS.indexOf(to);

/** The state that an event leads to; null: no arrow does. */
export function nextForm(state: FormState, event: FormEventType, to: FormKind): FormState | null {
  table ??= compiled();
  return FORM_STATES[table[placeOf(state, event, to)]!] ?? null;
}

const WAITING = DECLARED.filter(({ waits }) => waits === true);

/** The rule under which an event is refused in a state; `stays`: keys and values have to, for now. */
export function refusalOf(state: FormState, event: FormEventType, to: FormKind, stays = false): FormRefusal | null {
  if (nextForm(state, event, to) !== null) {
    const waits = stays && WAITING.some((arrow) => arrow.from === state && arrow.event === event && arrow.kind === to);
    return waits ? 'stays' : null;
  }
  if (state === 'freed') return 'freed';
  if (event === 'refine') return 'promotion';
  if (event === 'rewrite') return 're-encode';
  assert(Object.hasOwn(STATES, state), `no side of a page is '${state}'`);
  return STATES[state].meta.refuses;
}
