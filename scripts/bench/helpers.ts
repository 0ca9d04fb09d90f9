/**
 * `npm run bench -- helpers` measures helpers twice. What they cost: the time from one token to the next of an answer,
 * alone, beside helpers that are asked all the while, and beside helpers that are killed, stopped or out of memory,
 * in turns. What they bring: sessions over texts of known kinds that the helpers have not seen, each of which looks the
 * others up with and without what helpers said, which neighbours it finds, how well they tell what an error costs in
 * its text, and how many of its decisions differ. What decides must decide: where nothing differs, that is printed.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beginningOf } from '../../engine/cache/content.ts';
import { fingerprintOf } from '../../engine/cache/fingerprint.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import { leave, setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { SessionSetup } from '../../engine/session/setup.ts';
import { HELPER_LIMITS } from '../../engine/sidecar/helper.ts';
import { TEXT_KINDS, TextHelpers, type TextKind } from '../../engine/sidecar/hint.ts';
import { logDir, openState, type State } from '../../engine/state/folder.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { type Fingerprint, openThresholdBook, type TextHint, type ThresholdBook } from '../../memory/index.ts';
import { readLog } from '../../witness/index.ts';
import { works } from '../helpers/texts.ts';
import { now } from './measure.ts';
import { columns, fixed, percent } from './table.ts';

const SEED = 20261128;
/** Tokens of an answer in which gaps are measured, and after how many of them helpers are asked. */
const [ANSWER_TOKENS, ASKED_EVERY] = [768, 32] as const;
/** Windows of each kind, of works as different as there are, and tokens that a session reads of each. */
const [WINDOWS, PROMPT_TOKENS] = [4, 1152] as const;
const LETTERS = 12_000;
const NEIGHBOURS = WINDOWS - 1;
/** A divergence budget: what an error costs in a text is measured and decides most under one. */
const KLD_BUDGET = 0.02;

/** What is done to helpers before each question. */
const FAULTS = {
  none: null,
  'asked and well': () => undefined,
  killed: (pids: readonly number[]) => signal(pids, 'SIGKILL'),
  stopped: (pids: readonly number[]) => signal(pids, 'SIGSTOP'),
  'out of memory': () => undefined,
} as const;
type Fault = keyof typeof FAULTS;

/** Less than Node and onnxruntime take to start. */
const TOO_LITTLE_BYTES = 48 * 2 ** 20;

interface CostRow {
  readonly helpers: Fault;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Processor time of this process instead of the clock: without what other programs take, helpers among them. */
  readonly p99CpuMs: number;
  readonly hints: number;
  readonly missing: number;
  readonly starts: number;
}

function signal(pids: readonly number[], name: NodeJS.Signals): void {
  for (const pid of pids)
    try {
      process.kill(pid, name);
    } catch {
      // It has ended by itself meanwhile.
    }
}

const at = (sorted: readonly number[], share: number): number => sorted[Math.floor(share * (sorted.length - 1))]!;
const median = (values: readonly number[]): number =>
  at(
    [...values].sort((a, b) => a - b),
    0.5,
  );

async function gapsOf(runtime: Runtime, fault: Fault, text: Uint8Array): Promise<CostRow> {
  const harm = FAULTS[fault];
  const limits = fault === 'out of memory' ? { dataBytes: TOO_LITTLE_BYTES } : HELPER_LIMITS;
  const helpers = harm === null ? null : new TextHelpers({ limits });
  if (fault !== 'out of memory') await helpers?.hintOf(text);
  const session = Session.open(runtime, await setupOf(runtime, { tokensExpected: ANSWER_TOKENS + 16 }, null));
  const gaps: number[] = [];
  const cpuGaps: number[] = [];
  const asked: Promise<TextHint | null>[] = [];
  let last = Number.NaN;
  let lastCpu = now(1);
  const options = { maxTokens: ANSWER_TOKENS, temperature: 1, seed: 1, ignoreEos: true };
  for await (const _ of session.generate(runtime.model.tokenizer.encode('Once upon a time'), options)) {
    const [time, cpu] = [performance.now(), now(1)];
    if (!Number.isNaN(last)) {
      gaps.push(time - last);
      cpuGaps.push(1000 * (cpu - lastCpu));
    }
    [last, lastCpu] = [time, cpu];
    if (helpers === null || gaps.length % ASKED_EVERY !== 0) continue;
    harm!(helpers.pids);
    asked.push(helpers.hintOf(text));
  }
  session.close();
  const hints = await Promise.all(asked);
  const starts = helpers === null ? 0 : helpers.status.reduce((sum, one) => sum + one.starts, 0);
  await helpers?.close();
  for (const some of [gaps, cpuGaps]) some.sort((a, b) => a - b);
  const given = hints.filter((hint) => hint !== null).length;
  return {
    helpers: fault,
    p50Ms: at(gaps, 0.5),
    p99Ms: at(gaps, 0.99),
    p99CpuMs: at(cpuGaps, 0.99),
    hints: given,
    missing: hints.length - given,
    starts,
  };
}

async function cost(say: (line: string) => void, runtime: Runtime, rounds: number): Promise<CostRow[]> {
  const text = Buffer.from('What is asked again and again is answered again and again. '.repeat(60));
  const faults = Object.keys(FAULTS) as Fault[];
  const all: CostRow[] = [];
  for (let round = 0; round < rounds; round++) for (const fault of faults) all.push(await gapsOf(runtime, fault, text));
  const rows = faults.map((fault): CostRow => {
    const own = all.filter(({ helpers }) => helpers === fault);
    const of = (value: (row: CostRow) => number): number => median(own.map(value));
    return {
      helpers: fault,
      p50Ms: of((row) => row.p50Ms),
      p99Ms: of((row) => row.p99Ms),
      p99CpuMs: of((row) => row.p99CpuMs),
      hints: of((row) => row.hints),
      missing: of((row) => row.missing),
      starts: of((row) => row.starts),
    };
  });
  const [{ p99Ms: alone }] = rows as [CostRow, ...CostRow[]];
  const lines = rows.map((row) => [
    row.helpers,
    fixed(row.p50Ms, 2),
    fixed(row.p99Ms, 2),
    row.helpers === 'none' ? null : percent(row.p99Ms / alone - 1),
    fixed(row.p99CpuMs, 2),
    row.hints,
    row.missing,
    row.starts,
  ]);
  say(
    `gaps between ${ANSWER_TOKENS} tokens of an answer, median of ${rounds} rounds in turns, a question every ${ASKED_EVERY} tokens`,
  );
  for (const line of columns(
    ['helpers', 'p50 ms', 'p99 ms', 'p99 changes', 'p99 CPU ms', 'hints', 'missing', 'starts'],
    lines,
  ))
    say(line);
  const worst = Math.max(...rows.slice(1).map((row) => row.p99Ms / alone - 1));
  say(`${worst < 0.1 ? 'met   ' : 'MISSED'} p99 changes by less than 10% whatever helpers do`);
  return rows;
}

/** A session as the others are to find it. */
interface Known {
  readonly id: string;
  readonly kind: TextKind;
  readonly work: string;
  readonly tokens: readonly number[];
  readonly fingerprint: Fingerprint;
  readonly hint: TextHint | null;
  /** What it measured of its text; null: nothing. */
  readonly text: number | null;
}

interface GainRow {
  readonly by: string;
  readonly sameKind: number;
  readonly nearestSameKind: number;
  /** Of estimates of the text factor; null: no session measured its own. */
  readonly logError: number | null;
  readonly sessionsThatDiffer: number;
  readonly decisions: number;
  readonly decisionsThatDiffer: number;
}

/** What helpers have not seen, some windows of each kind. */
function textsOf(root: string): { kind: TextKind; work: string; text: string }[] {
  const next = seeded(SEED);
  const unseen = works(root, next).filter(({ isHeldOut }) => isHeldOut);
  return TEXT_KINDS.flatMap((kind) => {
    const own = unseen.filter((work) => work.kind === kind);
    return Array.from({ length: WINDOWS }, (_, i) => {
      const { name: work, text } = own[i % own.length]!;
      const from = Math.floor(next() * Math.max(0, text.length - LETTERS));
      return { kind, work, text: text.slice(from, from + LETTERS) };
    });
  });
}

class Gain {
  readonly #runtime: Runtime;
  readonly #state: State;
  readonly #helpers = new TextHelpers();

  constructor(runtime: Runtime, state: State) {
    this.#runtime = runtime;
    this.#state = state;
  }

  /** Runs a session over a text. → its id, fingerprint and hint when it had read */
  async run(
    tokens: readonly number[],
    book: ThresholdBook | null,
    hintOf: SessionSetup['hintOf'],
  ): Promise<Omit<Known, 'kind' | 'work' | 'text'>> {
    const { log, prefixKey } = this.#state;
    const options = { tokensExpected: PROMPT_TOKENS + 16, kldBudget: KLD_BUDGET };
    const setup = await setupOf(this.#runtime, options, { log, book, ...(book === null ? {} : { prefixKey }) });
    const session = Session.open(this.#runtime, { ...setup, ...(hintOf === undefined ? {} : { hintOf }) });
    await session.read(tokens);
    const { governed } = session;
    const found = { id: governed.id, tokens, fingerprint: fingerprintOf(governed), hint: governed.hint };
    await leave(governed, null, 'done');
    session.close();
    await log.flush();
    return found;
  }

  /** Every text once, each by itself. */
  async known(texts: ReturnType<typeof textsOf>): Promise<Known[]> {
    const { tokenizer } = this.#runtime.model;
    const all: Known[] = [];
    for (const { kind, work, text } of texts) {
      const tokens = tokenizer.encode(text).slice(0, PROMPT_TOKENS);
      const hint = await this.#helpers.hintOf(beginningOf(tokenizer, tokens));
      const ran = await this.run(tokens, null, async () => hint);
      const [close] = [...readLog(logDir(this.#state.dir), { session: ran.id, kinds: ['close'] })];
      const { text: measured } = close!.body as { text?: { value: number } };
      all.push({ ...ran, kind, work, text: measured?.value ?? null });
    }
    await this.#helpers.close();
    return all;
  }

  /** A book of all of these sessions but one. */
  bookWithout(known: readonly Known[], one: Known): Promise<ThresholdBook> {
    const ids = new Set(known.map(({ id }) => id).filter((id) => id !== one.id));
    const entries = () =>
      [...readLog(logDir(this.#state.dir), { kinds: ['open', 'close'] })].filter(({ session }) => ids.has(session));
    return openThresholdBook({ dir: null, logId: 'bench', entries });
  }

  decisionsOf(session: string): string[] {
    const entries = readLog(logDir(this.#state.dir), { session, kinds: ['decision'] });
    return Array.from(entries, ({ body }) =>
      JSON.stringify([(body as { tokens: number }).tokens, (body as { decision: unknown }).decision]),
    );
  }
}

/** What `with` holds of a hint: all of it, its kind, its place, nothing. */
const PARTS: Readonly<Record<string, (hint: TextHint) => TextHint | null>> = {
  'fingerprint alone': () => null,
  'and the kind': (hint) => ({ ...hint, place: [] }),
  'and the place': (hint) => ({ ...hint, share: 0 }),
  'and both': (hint) => hint,
};

export async function gain(say: (line: string) => void, runtime: Runtime, root: string): Promise<GainRow[]> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const state = await openState(dir, { mode: 'block' });
  try {
    const all = new Gain(runtime, state);
    const known = await all.known(textsOf(root));
    const right = known.filter(({ hint, kind }) => hint?.kind === kind).length;
    say('');
    say(
      `${known.length} sessions of ${PROMPT_TOKENS} tokens with a divergence budget of ${KLD_BUDGET}; helpers told the kind of ${right} rightly`,
    );
    const before = new Map<string, string[]>();
    const rows: GainRow[] = [];
    for (const [by, part] of Object.entries(PARTS))
      rows.push(
        await rowOf(all, known, {
          by,
          part,
          runs: by === 'fingerprint alone' || by === 'and both',
          before,
          family: runtime.model.config.architecture,
          digest: runtime.model.digest,
          layers: runtime.shape.layers,
        }),
      );
    const lines = rows.map((row) => [
      row.by,
      percent(row.nearestSameKind),
      percent(row.sameKind),
      fixed(row.logError, 3),
      row.decisions === 0 ? null : row.sessionsThatDiffer,
      row.decisions === 0 ? null : `${row.decisionsThatDiffer} of ${row.decisions}`,
    ]);
    const titles = [
      'found by',
      'nearest is of the kind',
      `of ${NEIGHBOURS} nearest`,
      'error of ln text factor',
      'sessions that differ',
      'decisions that differ',
    ];
    for (const line of columns(titles, lines)) say(line);
    const [alone, , , both] = rows as [GainRow, GainRow, GainRow, GainRow];
    if (both.decisionsThatDiffer === 0) say('what helpers say changes no decision');
    say(verdictOf(alone.logError, both.logError));
    return rows;
  } finally {
    await state.close();
    rmSync(dir, { recursive: true, force: true });
  }
}

function verdictOf(alone: number | null, both: number | null): string {
  if (alone === null || both === null)
    return 'no session measured what an error costs in its text, so hints change nothing';
  const change = percent(both / alone - 1);
  return both < alone
    ? `what helpers say makes estimates of the text factor better: their error changes by ${change}`
    : `what helpers say makes no estimate better: their error changes by ${change}`;
}

interface Asked {
  readonly by: string;
  readonly part: (hint: TextHint) => TextHint | null;
  /** Whether sessions run again with what is found, for their decisions. */
  readonly runs: boolean;
  /** Decisions of each session by its fingerprint alone; filled by the first row. */
  readonly before: Map<string, string[]>;
  readonly family: string;
  readonly digest: string;
  readonly layers: number;
}

async function rowOf(
  all: Gain,
  known: readonly Known[],
  { by, part, runs, before, family, digest, layers }: Asked,
): Promise<GainRow> {
  const kindOf = new Map(known.map(({ id, kind }) => [id, kind]));
  let [sameKind, nearestSameKind, squares, measured, sessions, decisions, differ] = [0, 0, 0, 0, 0, 0, 0];
  for (const one of known) {
    const book = await all.bookWithout(known, one);
    const hint = one.hint === null ? null : part(one.hint);
    const { thresholds, neighbours } = await book.lookup({
      modelDigest: digest,
      family,
      layers,
      fingerprint: one.fingerprint,
      hint: hint ?? undefined,
    });
    const kinds = neighbours.map(({ session }) => kindOf.get(session));
    if (kinds[0] === one.kind) nearestSameKind++;
    sameKind += kinds.slice(0, NEIGHBOURS).filter((kind) => kind === one.kind).length / NEIGHBOURS;
    const estimate = thresholds.law?.text.value;
    if (one.text !== null && estimate !== undefined) {
      squares += Math.log(estimate / one.text) ** 2;
      measured++;
    }
    if (!runs) {
      await book.close();
      continue;
    }
    const { id } = await all.run(one.tokens, book, hint === null ? undefined : async () => hint);
    const made = all.decisionsOf(id);
    const earlier = before.get(one.id);
    if (earlier === undefined) before.set(one.id, made);
    else {
      const unlike = Math.max(made.length, earlier.length) - made.filter((one) => earlier.includes(one)).length;
      differ += unlike;
      if (unlike > 0) sessions++;
    }
    decisions += made.length;
    await book.close();
  }
  const share = (count: number): number => count / known.length;
  return {
    by,
    sameKind: share(sameKind),
    nearestSameKind: share(nearestSameKind),
    logError: measured === 0 ? null : Math.sqrt(squares / measured),
    sessionsThatDiffer: sessions,
    decisions,
    decisionsThatDiffer: differ,
  };
}

export async function helpers(
  say: (line: string) => void,
  { root, model, rounds, json }: { root: string; model: string; rounds: number; json: string | null },
): Promise<void> {
  const runtime = await Runtime.open({ model, threads: 1 });
  try {
    const costRows = await cost(say, runtime, rounds);
    const gainRows = await gain(say, runtime, root);
    if (json !== null) writeFileSync(json, `${JSON.stringify({ model, cost: costRows, gain: gainRows }, null, 1)}\n`);
  } finally {
    await runtime.close();
  }
}
