/**
 * The life of a kernel pack on one machine: what it is in, and what may follow. Whoever installs, activates or takes
 * back a pack asks it, and every arrow that is taken is an entry of the log. It is data, read into a table once, as the
 * machine of a page side is (form-machine.ts); what decides whether an arrow may be taken is beside it, in the engine.
 *
 *   staged        its bytes are here, and nothing of them is believed    verify: signatures and trust hold
 *   verified      who vouches for it is known                            instrument: its fuel is counted
 *   instrumented  it cannot run for ever                                 test: its contract was tried and kept
 *   tested        ready, and not used                                    tryOut: sessions that ask for it use it
 *   canary        writes pages of sessions that ask for it               activate, replace
 *   active        writes pages of sessions that begin                    replace: another one is active
 *   draining      reads pages that it wrote, writes none                 restore: active again; drain: none is left
 *   retired       nothing of it is left but its file                     restore
 *   rejected      refused before it wrote a page
 *   quarantined   distrusted after it wrote pages, which nobody reads
 */
import { setup } from 'xstate';
import { assert } from '../native/index.ts';

export const PACK_STATES = [
  'staged',
  'verified',
  'instrumented',
  'tested',
  'canary',
  'active',
  'draining',
  'retired',
  'rejected',
  'quarantined',
] as const;
/** What a pack is in. */
export type PackState = (typeof PACK_STATES)[number];

export const PACK_EVENTS = [
  'verify',
  'instrument',
  'test',
  'tryOut',
  'activate',
  // Another version of the same name takes its place, or the one before does.
  'replace',
  // It takes its place again.
  'restore',
  // The last page that it wrote is gone.
  'drain',
  // It broke its contract, or whoever vouched for it does so no more.
  'distrust',
] as const;
export type PackEvent = (typeof PACK_EVENTS)[number];

export const packMachine = setup({
  types: { events: {} as { readonly type: PackEvent } },
}).createMachine({
  id: 'pack',
  initial: 'staged',
  states: {
    staged: { on: { verify: 'verified', distrust: 'rejected' } },
    verified: { on: { instrument: 'instrumented', distrust: 'rejected' } },
    instrumented: { on: { test: 'tested', distrust: 'rejected' } },
    tested: { on: { tryOut: 'canary', distrust: 'rejected' } },
    canary: { on: { activate: 'active', replace: 'draining', distrust: 'quarantined' } },
    active: { on: { replace: 'draining', distrust: 'quarantined' } },
    draining: { on: { restore: 'active', drain: 'retired', distrust: 'quarantined' } },
    retired: { on: { restore: 'active', distrust: 'quarantined' } },
    rejected: {},
    quarantined: {},
  },
});

/** An arrow of the machine. */
export interface PackArrow {
  readonly from: PackState;
  readonly event: PackEvent;
  readonly to: PackState;
}

const STATES = packMachine.config.states as unknown as Readonly<
  Record<PackState, { readonly on?: Readonly<Partial<Record<PackEvent, PackState>>> }>
>;

/** All arrows, in the order of the definition. */
export const PACK_ARROWS: readonly PackArrow[] = PACK_STATES.flatMap((from) =>
  Object.entries(STATES[from].on ?? {}).map(([event, to]) => ({ from, event: event as PackEvent, to })),
);

/** The state that an event leads to; null: no arrow does. */
export function nextPackState(from: PackState, event: PackEvent): PackState | null {
  assert(Object.hasOwn(STATES, from), `no pack is '${from}'`);
  return STATES[from].on?.[event] ?? null;
}

/** True where pages that a pack wrote are read by it. */
export const readsPages = (state: PackState): boolean => ['canary', 'active', 'draining'].includes(state);

/** True where new pages are written by a pack: those of sessions that ask for it, or of all that begin. */
export const writesPages = (state: PackState): boolean => state === 'canary' || state === 'active';
