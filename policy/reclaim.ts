/**
 * Where bytes are found when memory that sessions share is short: the rungs in their order, as data. Whoever needs
 * bytes takes them of one rung after the other, and of none while one above it has any.
 */

/** What becomes of sessions that wait: `idleSessions` of an engine. */
export type WaitingPlace = 'reread' | 'keep' | 'memory' | 'disk';

/**
 * Who is asked: those that nobody reads by now; then those that the policy of the pool names, whoever needs bytes among
 * them; then, where that one has given what it can, all.
 */
export const RECLAIM_STAGES = ['waiting', 'named', 'all'] as const;
export type ReclaimStage = (typeof RECLAIM_STAGES)[number];

export interface ReclaimRung {
  readonly id: string;
  readonly stage: ReclaimStage;
  /** With which of them it is there. */
  readonly places: readonly WaitingPlace[];
  /** Where its bytes come from, in words. */
  readonly finds: string;
  /** What that costs, in words. */
  readonly costs: string;
}

const ALL: readonly WaitingPlace[] = ['reread', 'keep', 'memory', 'disk'];
const PARKED: readonly WaitingPlace[] = ['memory', 'disk'];

/**
 * Before they are parked, sessions that wait give up what they have beyond so many bits of a number in the pages behind
 * their window, window formats included. Simulated (docs/lab/policy.md): two thirds of the time that parking takes, for
 * about what four bits cost; without a bound they end in two bits.
 */
export const WAITING_BITS = 4.3;

/** From the first that is asked to the last; behind it a step waits or is refused. */
export const RECLAIM_LADDER = [
  {
    id: 'kept',
    stage: 'waiting',
    places: ALL,
    finds:
      'pages that are kept of sessions that were closed go, and adapters that no session has, those first that were idle for long and are fast to have again',
    costs: 'whoever begins with the same text, or has the same adapter, reads it',
  },
  {
    id: 'originals',
    stage: 'waiting',
    places: PARKED,
    finds: 'originals that sessions which wait keep for measuring go',
    costs: 'less is known of their errors; parking would take them as well',
  },
  {
    id: 'demote-waiting',
    stage: 'waiting',
    places: PARKED,
    finds: `pages of sessions that wait and have no budget of their own go lower, to ${WAITING_BITS} bits of a number in the mean of those behind the window`,
    costs: 'about what four bits cost',
  },
  {
    id: 'park',
    stage: 'waiting',
    places: PARKED,
    finds: 'sessions that wait are parked, but for those that are used all the time',
    costs: 'the time to write and read them; predicted ones lose a little',
  },
  {
    id: 'demote',
    stage: 'named',
    places: ALL,
    finds: 'pages go lower of sessions that the policy of the pool names, an eighth of what is needed at a time',
    costs: 'divergence, where it is predicted to be least within each',
  },
  {
    id: 'demote-all',
    stage: 'all',
    places: ALL,
    finds: 'pages go lower of all other sessions, down to the lowest formats that they allow',
    costs: 'divergence',
  },
  {
    id: 'let-go',
    stage: 'all',
    places: ['reread', 'memory', 'disk'],
    finds:
      'sessions that wait let their pages go, to be read again; where sessions are parked, those are that are used all the time',
    costs: 'the time to read their tokens again, or to write and read their pages',
  },
] as const satisfies readonly ReclaimRung[];

export type RungId = (typeof RECLAIM_LADDER)[number]['id'];

/** The ids of all rungs, in their order. */
export const RUNG_IDS: readonly RungId[] = RECLAIM_LADDER.map(({ id }) => id);

/** The rungs that there are, down to the last one of a stage. */
export function rungsOf(place: WaitingPlace, stage: ReclaimStage = 'all'): readonly RungId[] {
  const last = RECLAIM_STAGES.indexOf(stage);
  return RECLAIM_LADDER.filter(
    (rung) => (rung.places as readonly WaitingPlace[]).includes(place) && RECLAIM_STAGES.indexOf(rung.stage) <= last,
  ).map(({ id }) => id);
}

/** What a rung finds, in words; null: there is none of this name. */
export const rungText = (id: string): string | null => RECLAIM_LADDER.find((rung) => rung.id === id)?.finds ?? null;
