/**
 * What a log says up to now: its sessions with their memory and quality, and the counts that can be told from it alone.
 * Fed entry by entry.
 */

import { KvError } from '../../native/index.ts';
import { type LayerChange, predictedBy } from '../../policy/index.ts';
import {
  type DecisionRow,
  decisionRow,
  type Entry,
  type SessionRow,
  SessionTotals,
  type Unopened,
  unopenedError,
} from '../../witness/index.ts';
import { type Fallback, Meter } from '../metrics/meter.ts';
import type { MemoryRow, Page, QualityRow, SessionDetail, Sessions } from './answers.ts';

/**
 * Metrics that the log of a folder tells. Others are known only to the process that runs the engine, and are left out.
 */
const KNOWN = [
  'decisions_total',
  'sessions_ended_total',
  'fallback_total',
  'stated_divergence_broken_total',
  'layer_changes_total',
  'quality_kld',
] as const;
const FALLBACKS: readonly Fallback[] = ['byte-budget', 'kld-budget', 'shared'];

/** Memory and quality of a session without what its row says. */
interface Told {
  lastMs: number;
  memory: Pick<MemoryRow, 'budgetBytes' | 'canaryBytes' | 'stepLatencyMsP95' | 'effectiveBits' | 'formats'> & {
    kvBytes: number;
    kvBytesPeak: number | null;
  };
  predictedKld: number | null;
  gaveWay: QualityRow['gaveWay'];
  statedDivergence: QualityRow['statedDivergence'];
  missingEntries: number;
  readonly layers: Map<number, QualityRow['layers'][number]>;
  probes: number;
  worst: QualityRow['canaries']['worst'];
}

type Note = Entry<'note'>['body'];

/** A position in the list of sessions. */
const cursorOf = ({ openedMs, seq }: SessionRow): string => `${openedMs}-${seq}`;

export class LogView {
  readonly #meter = new Meter(FALLBACKS);
  readonly #totals = new SessionTotals();
  readonly #told = new Map<string, Told>();
  readonly #unopened = new Map<string, Unopened>();

  /** Takes the next entry. → the decision that it is, flat; null for entries of other kinds. */
  add(entry: Entry): DecisionRow | null {
    this.#totals.add(entry);
    if (entry.kind === 'open') this.#told.set(entry.session, nothingTold());
    if (entry.kind === 'erase') this.unopened(entry.session, 'erased');
    if (entry.kind === 'note') this.#note(entry as Entry<'note'>);
    const told = this.#told.get(entry.session);
    if (told !== undefined) {
      told.lastMs = entry.timeMs;
      if (entry.kind === 'situation') situate(told, entry as Entry<'situation'>);
      if (entry.kind === 'close') this.#close(told, entry as Entry<'close'>);
    }
    if (entry.kind !== 'decision') return null;
    const { decision, verdict } = (entry as Entry<'decision'>).body;
    this.#meter.decision(decision, verdict);
    return decisionRow(entry as Entry<'decision'>);
  }

  /** An entry of this session cannot be opened: what was told of it before is forgotten. */
  unopened(session: string, why: Unopened): void {
    this.#unopened.set(session, why);
    this.#told.delete(session);
    this.#totals.forget(session);
  }

  /** The metrics that the log tells, as text for Prometheus. */
  metrics(): string {
    return this.#meter.text(KNOWN);
  }

  /** Sessions, newest first. Throws 'bad-argument' for a cursor that is none. */
  sessions(limit: number, cursor?: string): Sessions {
    const erased = [...this.#unopened.values()].filter((why) => why === 'erased').length;
    const unopened = { erased, missing: this.#unopened.size - erased };
    return { ...this.#rows(limit, cursor), unopened };
  }

  #rows(limit: number, cursor: string | undefined): Page<SessionRow> {
    const rows = this.#totals.rows();
    let from = 0;
    if (cursor !== undefined) {
      const [, openedMs, seq] = /^(\d{1,16})-(\d{1,16})$/.exec(cursor) ?? [];
      if (seq === undefined) throw new KvError('bad-argument', `'${cursor}' is not a cursor of this list`);
      const isBehind = (row: SessionRow): boolean =>
        row.openedMs < Number(openedMs) || (row.openedMs === Number(openedMs) && row.seq < Number(seq));
      from = rows.findIndex(isBehind);
      if (from < 0) from = rows.length;
    }
    const page = rows.slice(from, from + limit);
    return { rows: page, next: from + limit < rows.length ? cursorOf(page.at(-1)!) : null };
  }

  memory(limit: number, cursor?: string): Page<MemoryRow> {
    return this.#page(limit, cursor, (row) => this.#memoryOf(row));
  }

  quality(limit: number, cursor?: string): Page<QualityRow> {
    return this.#page(limit, cursor, (row) => this.#qualityOf(row));
  }

  /** All about one session. Throws 'not-found', 'sealed'. */
  session(id: string): SessionDetail {
    const why = this.#unopened.get(id);
    if (why !== undefined) throw unopenedError(id, why);
    const session = this.#totals.rows().find((row) => row.session === id);
    if (session === undefined)
      throw new KvError('not-found', 'the log has no such session', { hint: '/v1/sessions lists them' });
    return { session, memory: this.#memoryOf(session), quality: this.#qualityOf(session) };
  }

  #page<Row>(limit: number, cursor: string | undefined, rowOf: (row: SessionRow) => Row): Page<Row> {
    const { rows, next } = this.#rows(limit, cursor);
    return { rows: rows.map(rowOf), next };
  }

  #memoryOf({ session, end, tokens, kvBytesF16 }: SessionRow): MemoryRow {
    const { lastMs, memory } = this.#told.get(session)!;
    return { session, end, lastMs, tokens, kvBytesF16, ...memory };
  }

  #qualityOf({ session, end, policy, meanKld, decisions, refused }: SessionRow): QualityRow {
    const told = this.#told.get(session)!;
    const { lastMs, predictedKld, gaveWay, statedDivergence, missingEntries, layers, probes, worst } = told;
    return {
      session,
      end,
      lastMs,
      meanKld,
      predictedKld: predictedKld === null ? null : predictedBy(policy, predictedKld),
      decisions,
      refused,
      gaveWay,
      statedDivergence,
      missingEntries,
      layers: [...layers.values()].sort((a, b) => a.layer - b.layer),
      canaries: { probes, worst },
    };
  }

  #close(told: Told, { body }: Entry<'close'>): void {
    const { kvBytes, effectiveBits, formats, predictedKld, meanKld, reason } = body;
    Object.assign(told.memory, { kvBytesPeak: kvBytes, effectiveBits, formats: formats ?? null });
    told.predictedKld = predictedKld;
    this.#meter.ended.add({ end: reason });
    if (meanKld !== null) this.#meter.kld.observe(meanKld);
  }

  #note({ session, seq, body }: Entry<'note'>): void {
    const { gaveWay, statedDivergence, layerChanges, trustChanges, what, trouble, note, sessions } = body as Note & {
      readonly layerChanges?: readonly Omit<QualityRow['layers'][number], 'seq'>[];
      readonly trustChanges?: readonly LayerChange[];
    };
    if (what === 'qdrant' && typeof trouble === 'string') this.#meter.fallbacks.add({ reason: 'shared' });
    if (note === 'dropped')
      for (const [id, missing] of Object.entries((sessions ?? {}) as Readonly<Record<string, unknown>>)) {
        const told = this.#told.get(id);
        if (told !== undefined && typeof missing === 'number') told.missingEntries += missing;
      }
    const told = this.#told.get(session);
    if (told === undefined) return;
    if (gaveWay === 'bytes' || gaveWay === 'kld') {
      told.gaveWay = gaveWay;
      this.#meter.fallbacks.add({ reason: gaveWay === 'kld' ? 'kld-budget' : 'byte-budget' });
    }
    if (statedDivergence === 'broken' || statedDivergence === 'kept') told.statedDivergence = statedDivergence;
    if (statedDivergence === 'broken') this.#meter.brokenDivergence.add({});
    if (body.growth !== undefined) this.#meter.growingCaches.add({});
    for (const change of [...(layerChanges ?? []), ...(trustChanges ?? [])]) this.#meter.layerChanged(change);
    for (const change of layerChanges ?? []) told.layers.set(change.layer, { ...change, seq });
  }
}

const nothingTold = (): Told => ({
  lastMs: 0,
  memory: {
    kvBytes: 0,
    kvBytesPeak: null,
    budgetBytes: null,
    canaryBytes: 0,
    stepLatencyMsP95: 0,
    effectiveBits: null,
    formats: null,
  },
  predictedKld: null,
  gaveWay: null,
  statedDivergence: null,
  missingEntries: 0,
  layers: new Map(),
  probes: 0,
  worst: null,
});

function situate(told: Told, { seq, body }: Entry<'situation'>): void {
  const { bytes, budgetBytes, canaryBytes = 0, stepLatencyMsP95, canaries = [] } = body.situation;
  // A policy is told of both without what is kept for measuring.
  const kvBytes = bytes + canaryBytes;
  const budget = budgetBytes === null ? null : budgetBytes + canaryBytes;
  Object.assign(told.memory, { kvBytes, budgetBytes: budget, canaryBytes, stepLatencyMsP95 });
  // A log may say that nothing was promised.
  const excess = ({ epsilonNow, epsilonPromised }: { epsilonNow: number; epsilonPromised: number }): number =>
    epsilonPromised > 0 ? epsilonNow / epsilonPromised : epsilonNow > 0 ? Number.POSITIVE_INFINITY : 0;
  for (const { layer, page, side, to, epsilonPromised, epsilonNow } of canaries) {
    told.probes++;
    const canary = { layer, page, side, to, epsilonPromised, epsilonNow, seq };
    if (told.worst === null || excess(canary) > excess(told.worst)) told.worst = canary;
  }
}
