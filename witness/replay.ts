/**
 * Decides again, from the log alone: the policy of the 'open' entry gets the recorded situations, and every decision and
 * verdict must come out as the same bytes (canonical JSON). Nothing of the engine, the model or the cache takes part.
 */
import { KvError } from '../native/index.ts';
import { createPolicy, type Decision, type Policy, type PolicySession } from '../policy/index.ts';
import { canonicalJson } from './canonical.ts';
import type { Entry } from './types.ts';

/** Shape of `createPolicy` of policy/, which is the default. */
export type PolicyFactory = (id: string, options: Readonly<Record<string, unknown>>) => Policy;

export interface ReplayReport {
  readonly session: string;
  readonly policy: string;
  readonly situations: number;
  /** Decisions compared, refused ones included. */
  readonly decisions: number;
  /** Every decision and verdict in the log is what the policy says, and none is missing between two situations. */
  readonly equal: boolean;
  /** The last plan is there to its end. False after a kill in the middle of one; that is no difference. */
  readonly complete: boolean;
  readonly firstDifference: Difference | null;
}

export interface Difference {
  /** Entry where it shows. */
  readonly seq: number;
  readonly what: 'policy' | 'situation' | 'decision' | 'verdict';
  /** Canonical JSON, or a sentence when there is nothing to print. */
  readonly logged: string;
  readonly replayed: string;
}

/**
 * `entries`: those of one session in order of seq, e.g. `readLog(dir, { session })`. Stops at the first difference.
 * Throws 'not-found' when there is no 'open' entry, 'bad-log' for entries of several sessions; and what `create` throws.
 */
export function replaySession(entries: Iterable<Entry>, create: PolicyFactory = createPolicy): ReplayReport {
  let replay: Replay | null = null;
  for (const entry of entries) {
    if (replay === null) {
      // Evidence is looked up before the session opens; what came of it stands in the context of 'open'.
      if (entry.kind === 'open') replay = new Replay(entry as Entry<'open'>, create);
      continue;
    }
    if (entry.session !== replay.session)
      throw new KvError('bad-log', `entry ${entry.seq} belongs to session ${entry.session}, not ${replay.session}`, {
        values: { seq: entry.seq },
      });
    if (entry.kind === 'situation') replay.situation(entry as Entry<'situation'>);
    if (entry.kind === 'decision') replay.decision(entry as Entry<'decision'>);
    if (replay.difference !== null) break;
  }
  if (replay === null)
    throw new KvError('not-found', 'the session has no open entry', {
      hint: 'see `audit sessions` for the sessions there are',
    });
  return replay.report();
}

class Replay {
  readonly session: string;
  difference: Difference | null = null;
  readonly #policy: PolicySession;
  readonly #name: string;
  #plan: readonly Decision[] = [];
  #index = -1;
  #order = 0;
  #situations = 0;
  #decisions = 0;

  constructor(open: Entry<'open'>, create: PolicyFactory) {
    const { policy, context } = open.body;
    this.session = open.session;
    this.#name = `${policy.id}@${policy.version}`;
    const created = create(policy.id, policy.options);
    if (created.id !== policy.id || created.version !== policy.version) {
      this.#differs(open.seq, 'policy', this.#name, `${created.id}@${created.version}`);
    }
    this.#policy = created.open(context);
  }

  situation(entry: Entry<'situation'>): void {
    const { situation } = entry.body;
    if (this.#order < this.#plan.length) {
      this.#differs(
        entry.seq,
        'decision',
        `nothing: situation ${this.#index} has ${this.#order} decisions`,
        canonicalJson(this.#plan[this.#order]),
      );
      return;
    }
    if (situation.index !== this.#index + 1) {
      this.#differs(
        entry.seq,
        'situation',
        `situation ${situation.index}`,
        `situation ${this.#index + 1} (entries were dropped, or never written)`,
      );
      return;
    }
    this.#plan = this.#policy.decide(situation);
    this.#index = situation.index;
    this.#order = 0;
    this.#situations++;
  }

  decision(entry: Entry<'decision'>): void {
    const { situation, order, decision, epsilonNow, verdict } = entry.body;
    const planned = this.#plan[this.#order];
    if (situation !== this.#index || order !== this.#order || planned === undefined) {
      const expected =
        planned === undefined ? 'no further decision' : `decision ${this.#order} of situation ${this.#index}`;
      this.#differs(entry.seq, 'decision', `decision ${order} of situation ${situation}`, expected);
      return;
    }
    this.#compare(entry.seq, 'decision', decision, planned);
    if (this.difference !== null) return;
    this.#compare(entry.seq, 'verdict', verdict, this.#policy.judge(planned, epsilonNow));
    this.#order++;
    this.#decisions++;
  }

  report(): ReplayReport {
    return {
      session: this.session,
      policy: this.#name,
      situations: this.#situations,
      decisions: this.#decisions,
      equal: this.difference === null,
      complete: this.#order === this.#plan.length,
      firstDifference: this.difference,
    };
  }

  #compare(seq: number, what: Difference['what'], logged: unknown, replayed: unknown): void {
    const [before, now] = [canonicalJson(logged), canonicalJson(replayed)];
    if (before !== now) this.#differs(seq, what, before, now);
  }

  #differs(seq: number, what: Difference['what'], logged: string, replayed: string): void {
    this.difference ??= { seq, what, logged, replayed };
  }
}
