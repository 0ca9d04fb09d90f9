/**
 * Decides again, from the log alone: the policy of the 'open' entry gets the recorded situations, and every decision
 * and verdict must come out as the same bytes (canonical JSON). Nothing of the engine, the model or the cache takes
 * part.
 */
import { KvError, plural } from '../native/index.ts';
import {
  createPolicy,
  type Decision,
  type FormChange,
  foresee,
  isKnownMachine,
  isToPack,
  machineDigest,
  type Outcome,
  openPolicy,
  type Policy,
  type PolicySession,
  type PolicySummary,
  proposeAgain,
  type Situation,
} from '../policy/index.ts';
import { canonicalJson } from './canonical.ts';
import { replayAskings } from './pool-replay.ts';
import { isPool } from './pool-series.ts';
import { findSession, readLog } from './read.ts';
import { differenceAtEnd, NOT_REPLAYED } from './replay-close.ts';
import type { Difference, ReplayReport } from './replay-report.ts';
import { entryId } from './series.ts';
import { LEFT_OUT_BY_RULE } from './trouble.ts';
import { type Entry, NO_SESSION, type SenselessEntry } from './types.ts';

export type { Difference, ReplayReport } from './replay-report.ts';

/** A policy by the id and the options that stand in the log: for policies of one's own. */
export type PolicyFactory = (id: string, options: Readonly<Record<string, unknown>>, version: number) => Policy;

/**
 * Entries of a session that the log says it lacks: because the disk refused them (mode drop), or a rule left them out.
 * Throws what `readLog` throws.
 */
export const missingEntries = (dir: string, session: string): number => lacking(dir, session).missing;

type Lacking = Required<Pick<ReplayReport, 'missing' | 'leftOut'>>;

/** The same, and how many of them a rule left out. */
const lacking = (dir: string, session: string): Lacking =>
  missingBySession(dir).get(session) ?? { missing: 0, leftOut: 0 };

/** The same of all sessions that lack any. */
export function missingBySession(dir: string): ReadonlyMap<string, Lacking> {
  const found = new Map<string, Lacking>();
  for (const { body } of readLog(dir, { session: NO_SESSION, kinds: ['note'] })) {
    const { note, sessions, error } = body as {
      readonly note?: unknown;
      readonly error?: unknown;
      readonly sessions?: Readonly<Record<string, unknown>>;
    };
    if (note !== 'dropped') continue;
    for (const [session, count] of Object.entries(sessions ?? {})) {
      if (typeof count !== 'number' || count <= 0) continue;
      const { missing, leftOut } = found.get(session) ?? { missing: 0, leftOut: 0 };
      const byRule = error === LEFT_OUT_BY_RULE ? count : 0;
      found.set(session, { missing: missing + count, leftOut: leftOut + byRule });
    }
  }
  return found;
}

/**
 * Decides a session of the log in `dir` again, from its entries alone, and compares every decision and verdict; of a
 * pool, each time that sessions were asked for bytes. session: its id, or the beginning or the end of it. `create`
 * makes policies of one's own by their id and options; the built-in ones are known. Throws 'not-found', 'bad-argument'
 * (several sessions begin so), 'bad-log', 'unsupported' (an unknown policy).
 */
export function replay(dir: string, session: string, create: PolicyFactory = createPolicy): ReplayReport {
  const id = findSession(dir, session);
  const nonsense: SenselessEntry[] = [];
  const entries = readLog(dir, { session: id, onSenseless: (entry) => nonsense.push(entry) });
  try {
    const again = isPool(id) ? (all: Iterable<Entry>) => replayAskings(id, all) : replaySession;
    return { ...untilNonsense(entries, nonsense, (all) => again(all, create)), ...lacking(dir, id) };
  } catch (error) {
    throw error instanceof KvError && error.code === 'unsupported' ? withLacking(dir, id, error) : error;
  }
}

/** What cannot be decided again without the policy, where it is one of the caller's own; else the error as it is. */
function withLacking(dir: string, session: string, error: KvError): KvError {
  const open = [...readLog(dir, { session, kinds: ['open'] })][0] as Entry<'open'> | undefined;
  const module = open?.body.policy.module;
  if (open === undefined || module === undefined) return error;
  const { id, version } = open.body.policy;
  let decisions = 0;
  for (const _ of readLog(dir, { session, kinds: ['decision'] })) decisions++;
  return new KvError(
    'unsupported',
    `session ${session} was decided by policy '${id}' ${version} of a module that is not here, so none of its ${plural(decisions, 'decision')} can be made again`,
    {
      values: { session, policy: id, version, decisions, sha256: module.sha256, export: module.export },
      hint: 'audit replay --policy-module FILE with the file of that SHA-256; replay(dir, session, create) in a program',
      cause: error,
    },
  );
}

/** Ends at the first entry that makes no sense: what it said cannot be decided again. */
function untilNonsense(
  entries: Iterable<Entry>,
  nonsense: readonly SenselessEntry[],
  again: (entries: Iterable<Entry>) => ReplayReport,
): ReplayReport {
  const before = function* (): Generator<Entry> {
    for (const entry of entries) {
      if (nonsense.length > 0) return;
      yield entry;
    }
  };
  const first = (): SenselessEntry | undefined => nonsense[0];
  try {
    const report = again(before());
    const found = first();
    if (found === undefined || report.firstDifference !== null) return report;
    const difference = {
      seq: found.seq,
      what: 'entry',
      logged: found.what,
      replayed: 'an entry that makes sense',
    } as const;
    return { ...report, equal: false, firstDifference: difference };
  } catch (error) {
    const found = first();
    if (found === undefined || !(error instanceof KvError) || error.code !== 'not-found') throw error;
    throw new KvError('bad-log', `entry ${entryId(found.seq)}: ${found.what}`, {
      values: { seq: found.seq, session: found.session },
      hint: 'a session that does not tell how it began cannot be decided again; other sessions can',
    });
  }
}

/**
 * `entries`: those of one session in order of seq, e.g. `readLog(dir, { session })`. Stops at the first difference.
 * Throws 'not-found' when there is no 'open' entry, 'bad-log' for entries of several sessions; and what `create`
 * throws.
 */
export function replaySession(entries: Iterable<Entry>, create: PolicyFactory = createPolicy): ReplayReport {
  let replay: Replay | null = null;
  for (const entry of entries) {
    if (replay === null) {
      // Evidence is looked up before the session opens, and its result stands in the context of 'open'.
      if (entry.kind === 'open') replay = deciding(entry, () => new Replay(entry as Entry<'open'>, create));
      continue;
    }
    if (entry.session !== replay.session)
      throw new KvError('bad-log', `entry ${entry.seq} belongs to session ${entry.session}, not ${replay.session}`, {
        values: { seq: entry.seq },
      });
    const here = replay;
    deciding(entry, () => here.take(entry));
    if (replay.difference !== null) break;
  }
  if (replay === null)
    throw new KvError('not-found', 'the session has no open entry', {
      hint: 'see `audit sessions` for the sessions there are',
    });
  return replay.report();
}

/** The same of entries that need not be all of the session, and what the policy says of itself behind them. */
export function replayTo(
  entries: readonly Entry[],
  create: PolicyFactory = createPolicy,
): { readonly report: ReplayReport; readonly summary: PolicySummary } {
  const [open, ...rest] = entries as readonly [Entry<'open'>, ...Entry[]];
  const replay = deciding(open, () => new Replay(open, create));
  for (const entry of rest) {
    if (replay.difference !== null) break;
    deciding(entry, () => replay.take(entry));
  }
  return { report: replay.report(), summary: replay.summary };
}

/** When a policy fails on a state that no engine could have recorded, the log is at fault, not the program. */
export function deciding<T>({ seq }: Entry, work: () => T): T {
  try {
    return work();
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    throw new KvError('bad-log', `the policy cannot decide on what entry ${seq} says: ${(cause as Error).message}`, {
      values: { seq },
      cause,
    });
  }
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
  #refused = 0;
  #bytesMax = 0;
  #hasEnded = false;
  readonly #open: Entry<'open'>['body'];
  readonly #bytesOf: Readonly<Record<string, number>>;
  /** Bytes that a move may start from: of a side, with a latent beside it or without, and of a page with one. */
  readonly #sources: readonly number[];
  /** Bytes of a page in the codec of a pack. */
  readonly #packBytes: number;
  /** Bytes after the last decision, tokens of the last situation. */
  #bytes = 0;
  #tokens = 0;
  #lastMs: number;
  /** Outcomes of decisions that no situation has reported yet. */
  #untold: Outcome[] = [];
  /** What others changed and no situation has told yet. */
  #changes: FormChange[] = [];

  constructor(open: Entry<'open'>, create: PolicyFactory) {
    const { policy, context } = open.body;
    this.session = open.session;
    this.#open = open.body;
    this.#name = `${policy.id}@${policy.version}`;
    const created = create(policy.id, policy.options, policy.version);
    if (created.id !== policy.id || created.version !== policy.version) {
      this.#differs(open.seq, 'policy', this.#name, `${created.id}@${created.version}`);
    }
    if (!isKnownMachine(policy.machine))
      this.#differs(open.seq, 'policy', `machine ${policy.machine}`, `machine ${machineDigest()}`);
    const { foresight, proposal } = open.body;
    if (foresight !== undefined)
      this.#compare(open.seq, 'policy', foresight, foresee(foresight.seen, context.thresholds));
    if (proposal !== undefined) this.#compare(open.seq, 'policy', proposal, proposeAgain(proposal));
    this.#policy = openPolicy(created, context);
    const { pageBytes, windowFormat, latents } = context;
    this.#bytesOf = pageBytes;
    const sizes = Object.values(pageBytes);
    const beside = latents === undefined ? 0 : (pageBytes[latents.kept] ?? 0);
    const more = beside === 0 ? [] : [...sizes.map((bytes) => bytes + beside), 2 * pageBytes[windowFormat] + beside];
    this.#sources = [...sizes, ...more];
    this.#packBytes = context.pack?.pageBytes ?? 0;
    this.#lastMs = open.timeMs;
  }

  /** Goes on with the next entry of the session. */
  take(entry: Entry): void {
    // Times come from a clock and cannot be decided again, but a writer never lets them fall.
    if (entry.timeMs < this.#lastMs)
      this.#differs(entry.seq, 'time', `${entry.timeMs} ms`, `${this.#lastMs} ms or later, as the entry before it`);
    this.#lastMs = entry.timeMs;
    if (entry.kind === 'situation') this.#situation(entry as Entry<'situation'>);
    if (entry.kind === 'decision') this.#decision(entry as Entry<'decision'>);
    if (entry.kind === 'change') this.#change(entry as Entry<'change'>);
    if (entry.kind === 'close') this.#close(entry as Entry<'close'>);
  }

  #change({ seq, body }: Entry<'change'>): void {
    if (body.cause === 'degraded') this.#wanted(seq, body.changes);
    this.#changes.push(...body.changes);
    this.#sawBytes(body.bytesBefore, body.bytesAfter);
  }

  /** What came back from originals is what the policy wanted then, in its order; not all of it need have come. */
  #wanted(seq: number, changes: readonly FormChange[]): void {
    const wanted = (this.#policy.wanted?.() ?? []).map((side) => canonicalJson(side));
    let at = 0;
    for (const change of changes) {
      at = wanted.indexOf(canonicalJson(change), at) + 1;
      if (at === 0) {
        this.#differs(seq, 'entry', canonicalJson(change), 'nothing: the policy does not want it back, or not then');
        return;
      }
    }
  }

  #sawBytes(...bytes: readonly number[]): void {
    this.#bytesMax = Math.max(this.#bytesMax, ...bytes);
  }

  #close({ seq, body }: Entry<'close'>): void {
    this.#hasEnded = true;
    const [open, decisions, refused, bytesMax] = [this.#open, this.#decisions, this.#refused, this.#bytesMax];
    const found = differenceAtEnd(body, { open, summary: this.#policy.summary(), decisions, refused, bytesMax });
    if (found !== null) this.#differs(seq, 'end', found.logged, found.replayed);
  }

  #situation(entry: Entry<'situation'>): void {
    const { situation } = entry.body;
    if (this.#order < this.#plan.length) {
      this.#differs(
        entry.seq,
        'decision',
        `nothing: situation ${this.#index} has ${plural(this.#order, 'decision')}`,
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
    for (const outcome of situation.outcomes)
      this.#compare(entry.seq, 'situation', outcome, this.#untold.shift() ?? null);
    for (const change of situation.changes ?? [])
      this.#compare(entry.seq, 'situation', change, this.#changes.shift() ?? null);
    if (this.difference !== null) return;
    this.#bytes = situation.bytes;
    this.#sawBytes(situation.bytes);
    this.#tokens = situation.tokens;
    this.#plan = this.#decide(situation);
    this.#index = situation.index;
    this.#order = 0;
    this.#situations++;
  }

  /**
   * A policy that finds no way to keep the budget decides nothing: the session was refused its next page, and went on
   * or not.
   */
  #decide(situation: Situation): readonly Decision[] {
    try {
      return this.#policy.decide(situation);
    } catch (error) {
      if (error instanceof KvError && error.code === 'budget-too-small') return [];
      throw error;
    }
  }

  #decision(entry: Entry<'decision'>): void {
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
    this.#account(entry);
    this.#order++;
    this.#decisions++;
    if (!entry.body.verdict.accepted) this.#refused++;
  }

  /**
   * Bytes follow from each other: nothing but moves changes them within a plan, a refused move changes nothing, and one
   * that was made frees the difference of two page sizes and what a latent took that went with it, both sides of a page
   * that is let go, or nothing where a fork still holds the page.
   */
  #account({ seq, body }: Entry<'decision'>): void {
    const { decision, epsilonNow, verdict, bytesBefore, bytesAfter, tokens } = body;
    const { layer, page, side, from, to } = decision;
    const bytesFreed = bytesBefore - bytesAfter;
    const frees = (bytes: number): boolean => bytes - (this.#bytesOf[to] ?? 0) === bytesFreed;
    // Of a page that went to a pack its codes stay, or of one that has left since what they became.
    const stays = isToPack(decision) ? [this.#packBytes, ...this.#sources.map((one) => 2 * one)] : [0];
    const freesBoth = (one: number, two: number): boolean => stays.includes(one + two - bytesFreed);
    const isOfPage = to === 'freed' && this.#sources.some((one) => this.#sources.some((two) => freesBoth(one, two)));
    const isPossible = bytesFreed === 0 || (verdict.accepted && (isOfPage || this.#sources.some(frees)));
    if (bytesBefore !== this.#bytes) this.#differs(seq, 'bytes', `${bytesBefore} before`, `${this.#bytes} before`);
    if (!isPossible)
      this.#differs(seq, 'bytes', `${bytesFreed} freed`, verdict.accepted ? `${decision.bytesFreed} freed` : '0 freed');
    if (tokens !== this.#tokens) this.#differs(seq, 'decision', `${tokens} tokens`, `${this.#tokens} tokens`);
    this.#bytes = bytesAfter;
    this.#untold.push({ layer, page, side, from, to, accepted: verdict.accepted, epsilonNow, bytesFreed });
  }

  get summary(): PolicySummary {
    return this.#policy.summary();
  }

  report(): ReplayReport {
    const { module } = this.#open.policy;
    return {
      session: this.session,
      policy: this.#name,
      ...(module === undefined ? {} : { policyModule: module.sha256 }),
      situations: this.#situations,
      decisions: this.#decisions,
      equal: this.difference === null,
      complete: this.#order === this.#plan.length,
      firstDifference: this.difference,
      ...(this.#hasEnded ? { notChecked: NOT_REPLAYED } : {}),
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
