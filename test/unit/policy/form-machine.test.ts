/**
 * Walks the machine of a page side: what can be reached, what the table that is made of it says, and that no policy,
 * of this room or of one's own, makes a move that is no arrow of it.
 */
import { expect, test } from 'vitest';
import { transition } from 'xstate';
import { getAdjacencyMap } from 'xstate/graph';
import { FORMAT_NAMES, isFormatName, isMove } from '../../../native/index.ts';
import {
  createPolicy,
  type Decision,
  FORM_ARROWS,
  FORM_EVENTS,
  FORM_KINDS,
  FORM_STATES,
  FORMS,
  FormArrows,
  type FormEvent,
  type FormState,
  formMachine,
  kindOf,
  nextForm,
  openPolicy,
  type PageForm,
  type Policy,
  type PolicySession,
  policies,
  refusalOf,
  type Situation,
  unsafeRule,
} from '../../../policy/index.ts';
import { contextOf } from '../../suite/policy-simulation.ts';

const EVENTS: readonly FormEvent[] = FORM_EVENTS.flatMap((type) =>
  FORM_KINDS.flatMap((to) => [false, true].map((stays) => ({ type, to, stays }))),
);

test('every state can be reached, none is a dead end, and the arrows are those of the definition', () => {
  const map = getAdjacencyMap(formMachine, { events: [...EVENTS] });
  const reached = Object.values(map).map(({ state }) => state.value as FormState);
  expect(reached.sort()).toEqual([...FORM_STATES].sort());
  const taken = new Set<string>();
  for (const { state, transitions } of Object.values(map))
    for (const { event, state: next } of Object.values(
      transitions as Record<string, { event: FormEvent; state: typeof state }>,
    ))
      if (state.can(event)) taken.add(`${state.value} ${event.type} ${next.value}`);
  expect([...taken].sort()).toEqual(FORM_ARROWS.map(({ from, event, to }) => `${from} ${event} ${to}`).sort());
  for (const of of FORM_STATES)
    expect(
      FORM_ARROWS.some(({ from, to }) => from === of && to !== of),
      of,
    ).toBe(true);
});

test('the table says what the machine does, for every state and event', () => {
  for (const value of FORM_STATES) {
    const state = formMachine.resolveState({ value });
    for (const event of EVENTS) {
      const [next] = transition(formMachine, state, event);
      const expected = state.can(event) ? next.value : null;
      const told = `${value} ${event.type} ${event.to}`;
      if (event.stays !== true) expect(nextForm(value, event.type, event.to), told).toBe(expected);
      expect(refusalOf(value, event.type, event.to, event.stays) === null, told).toBe(expected !== null);
    }
  }
});

test('what is lost stays lost: finer forms come from something that was kept, and latents from nothing coded', () => {
  const finer = ['putBack', 'materialize', 'promote', 'return', 'leave', 'takeBack', 'giveBack'];
  const depth: readonly FormState[] = ['tried', 'coded', 'archived'];
  for (const { from, event, to } of FORM_ARROWS) {
    if (depth.indexOf(to) < depth.indexOf(from) && depth.includes(to)) expect(finer).toContain(event);
    if (to === 'latent') expect(['window', 'tried', 'latent'], event).toContain(from);
  }
  for (const state of ['window', 'promoted', 'freed'] as const)
    for (const event of ['demote', 'rematerialize', 'putBack', 'promote', 'free'] as const)
      for (const kind of FORM_KINDS) expect(nextForm(state, event, kind), `${state} ${event}`).toBeNull();
});

test('a format leads down to those that can be made of it, and to no others', () => {
  for (const from of FORMAT_NAMES)
    for (const to of FORMAT_NAMES)
      if (from !== to && isMove(from, to))
        expect(nextForm(kindOf(from), 'demote', kindOf(to)), `${from} ${to}`).not.toBeNull();
});

test('a way that is none is a fault where it is taken, and the others are counted', () => {
  const arrows = new FormArrows();
  arrows.take('tried', 'demote', 'rot4');
  arrows.take('coded', 'demote', 'rot4');
  expect(() => arrows.take('archived', 'demote', 'rot4')).toThrow(/no arrow leads a side of a page from 'archived'/);
  expect(arrows.may('window', 'demote', 'rot4')).toBe(false);
  expect([...arrows.counts].filter(([, count]) => count > 0)).toEqual([
    ['form: tried → coded (demote)', 1],
    ['form: coded → coded (demote)', 1],
  ]);
  expect(arrows.counts.size).toBe(FORM_ARROWS.length);
});

const because = { threshold: 'mine', measured: 0, bound: 1, unit: '1', origin: 'option', rule: 'mine' } as const;
/** Finds everything good. */
const careless: Policy = {
  id: 'careless',
  version: 1,
  needsTrials: false,
  open: () => ({
    decide: () => [],
    judge: () => ({ accepted: true, because }),
    summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
  }),
};

const situation = (change: Partial<Situation>): Situation => ({
  ...{ index: 0, tokens: 8 * 128, bytes: 0, sealBytes: 0, budgetBytes: null, kldBudget: null },
  ...{ tokensExpected: null, movesMax: 9, urgent: false, lowMemory: false, stepLatencyMsP95: 0 },
  ...{ stepLatencyBudgetMs: null, trials: [], outcomes: [], ...change },
});

/** A session that was told that a page is in a form, and the number of that page. */
function told(
  policy: Policy,
  form: PageForm | 'window' | 'freed',
): { readonly session: PolicySession; readonly page: number } {
  const session = openPolicy(policy, contextOf({ layers: 1 }));
  const page = form === 'window' ? 7 : 2;
  const of = { layer: 0, page, from: 'q8' } as const;
  const both = (['k', 'v'] as const).map((side) => ({ ...of, side, to: form as PageForm }));
  const changes =
    form === 'window' ? [] : form === 'freed' || isFormatName(form) ? both : [{ ...of, side: 'kv' as const, to: form }];
  try {
    session.decide(situation({ changes }));
  } catch {
    // A policy that needs reports first has been told all the same.
  }
  return { session, page };
}

// Every form with every other one, on either side and on both: what the machine has no arrow for is refused under the
// rule that it names, by whatever policy it is planned.
test.each([...Object.keys(policies).filter((id) => !['table', 'fixed', 'tiers'].includes(id)), 'careless'])(
  'no session of %s makes a move that is no arrow',
  (id) => {
    const policy = id === 'careless' ? careless : createPolicy(id);
    let refused = 0;
    for (const form of ['window', 'freed', ...FORMS] as const) {
      const from = form === 'window' || form === 'freed' ? 'q8' : form;
      const state: FormState = form === 'window' || form === 'freed' ? form : kindOf(form);
      const { session, page } = told(policy, form);
      for (const to of FORMS) {
        const side = isFormatName(to) && isFormatName(from) ? 'k' : 'kv';
        const event =
          to === from
            ? 'rewrite'
            : FORMS.indexOf(to) < FORMS.indexOf(from)
              ? 'refine'
              : isFormatName(to)
                ? 'demote'
                : 'rematerialize';
        const rule = refusalOf(state, event, kindOf(to));
        if (rule === null) continue;
        const move: Decision = {
          ...{ layer: 0, page, side, from, to, epsilonFrom: null, epsilonTo: null, price: null },
          ...{ bytesFreed: 0, retry: false, because },
        };
        const verdict = session.judge(move, null);
        expect(verdict.accepted, `${form} to ${to}`).toBe(false);
        expect(verdict.because.rule, `${form} to ${to}`).toBe(unsafeRule(rule));
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(500);
  },
);
