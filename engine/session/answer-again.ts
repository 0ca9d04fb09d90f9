/**
 * Runs the answer of a receipt again: the same tokens are read into a new cache, the moves of its log are made at the
 * tokens at which they were made, and the answer is drawn anew. Nothing is decided again here, so it does not matter
 * what was learned, what others needed, or how long a step took.
 */
import { FORMATS, isPageFull, KvError, pageOf } from '../../native/index.ts';
import { type FormChange, isLatent, type Policy } from '../../policy/index.ts';
import {
  type Beginning,
  beginningIn,
  type Entry,
  type Line,
  lineageOf,
  type NoteBody,
  noReceipt,
  type Receipt,
  type ReceiptRequest,
  readSeries,
  seriesOf,
  textDigest,
  tokensDigest,
} from '../../witness/index.ts';
import { type Activated, Activation } from '../adapters/activation.ts';
import type { AdapterSet, Adapters } from '../adapters/adapters.ts';
import { Governed } from '../cache/governed.ts';
import { ownPages } from '../cache/own-pages.ts';
import { runStep } from '../cache/pass.ts';
import type { Stepper } from '../cache/stepper.ts';
import { attentionTerms } from '../transformer/attention.ts';
import { nameInLog } from '../transformer/load.ts';
import { Rotary } from '../transformer/rotary.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { ScaledAdapter } from '../transformer/types.ts';
import { Answer, type OpenCalls } from './answer.ts';
import { answerOptions, BOUND } from './receipt.ts';

/** An answer that was run again, and is what it was. */
export interface AnsweredAgain {
  /** Its text. */
  readonly text: string;
  /** How many it has; all are those of the receipt. */
  readonly tokens: number;
  /** Moves of the log that were made again. */
  readonly moves: number;
}

/** What is run again: receipt and request have been verified. */
export interface Again {
  readonly receipt: Receipt;
  readonly request: ReceiptRequest;
  /** Folder of the log. */
  readonly log: string;
}

/** Does work of so many tokens while nobody else uses the model. */
type Alone = (tokens: number, work: () => Promise<void>) => Promise<void>;

/** How it is run. */
export interface AgainOptions {
  readonly signal?: AbortSignal;
  /** Left out: nobody else uses the model. */
  readonly alone?: Alone;
  /** Those of the engine; left out: it has none. */
  readonly adapters?: Adapters;
  /** Opens what answers follow that call tools; left out: these cannot be run again. */
  readonly openCalls?: OpenCalls;
}

/** A move that was made, at how many tokens. */
interface Made extends FormChange {
  readonly tokens: number;
  /** True: another session made it, when it had read what this one has not. */
  readonly isOthers: boolean;
}

/**
 * What another session held becomes what a session has begun with, or its own pages came back from where they were
 * parked.
 */
type Begun = Pick<Beginning, 'tokens' | 'forkedTokens'> & { readonly isParked?: boolean };

/** Decides nothing: the moves of the log are made instead. */
const PLAYED: Policy = {
  id: 'none',
  version: 1,
  needsTrials: false,
  open: () => ({
    decide: () => [],
    judge: ({ because }) => ({ accepted: false, because }),
    summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
  }),
};

/**
 * Throws 'bad-signature' where other tokens or another text come out, 'model-mismatch', and 'unsupported' where the
 * answer cannot be run again: for what its session did, or because this machine computes otherwise.
 */
export async function answerAgain(
  runtime: Runtime,
  again: Again,
  { signal, alone = (_, work) => work(), adapters, openCalls = noCalls }: AgainOptions = {},
): Promise<AnsweredAgain> {
  const { receipt, request, log } = again;
  const part = { session: receipt.session, from: receipt.log.first.seq, to: receipt.log.last.seq };
  const entries = [...readSeries(log, seriesOf(receipt.log.first.seq), part)];
  const open = entries[0] as Entry<'open'>;
  checkAlike(runtime, receipt, open);
  const { lines, lacking } = lineageOf(log, entries);
  for (const { entry } of lines) if (entry.kind === 'open') checkMachine(runtime, entry as Entry<'open'>);
  if (lacking !== null)
    throw new KvError('unsupported', 'the answer cannot be run again: its session began with pages of another one', {
      values: { session: receipt.session, lacking },
      hint: 'the log no longer has all entries of that one',
    });
  const player = new Player(runtime, open, eventsIn(lines), {
    ...{ alone, set: setOf(open, adapters), activated: activatedIn(entries) },
  });
  try {
    for (const ids of stepsOf(request)) await player.step(ids, signal);
    const { ids, text, finish } = await answered(
      player,
      await Answer.open(runtime, answerOptions(request, openCalls, signal)),
      signal,
    );
    const isSame =
      ids.length === receipt.answer.tokens &&
      tokensDigest(ids) === receipt.answer.digest &&
      textDigest(text) === receipt.answer.text &&
      (finish === receipt.answer.finish || receipt.answer.finish === 'aborted');
    if (!isSame)
      throw noReceipt(`the answer was run again, and its ${ids.length} tokens are others than those of the receipt`, {
        tokens: ids.length,
        expected: receipt.answer.tokens,
      });
    return { text, tokens: ids.length, moves: player.made };
  } finally {
    player.close();
  }
}

/** Writes as many tokens as the receipt says at most. */
async function answered(player: Player, answer: Answer, signal?: AbortSignal) {
  const ids: number[] = [];
  let text = '';
  try {
    while (answer.finish === null) {
      const id = await answer.next(await player.logits(), player.tokens);
      if (id === null) break;
      await player.step([id], signal);
      ids.push(id);
      text += await answer.push(id);
    }
    text += answer.end();
    return { ids, text, finish: answer.finish };
  } finally {
    answer.close();
  }
}

const noCalls: OpenCalls = async () => {
  throw new KvError('unsupported', 'the answer cannot be run again: it calls tools, and nothing here follows calls');
};

/** Throws where this model or session cannot give the same bits. */
function checkAlike({ model }: Runtime, { bound }: Receipt, { body }: Entry<'open'>): void {
  const said = bound === null ? null : (BOUND[bound as keyof typeof BOUND] ?? bound);
  if (said !== null)
    throw new KvError('unsupported', `the answer cannot be run again: its session ${said}`, {
      values: { bound },
      hint: 'its log is proved all the same: leave out the model',
    });
  if (model.digest !== body.model.digest)
    throw new KvError('model-mismatch', 'the receipt is of another model', {
      values: { expected: body.model.digest, found: model.digest },
    });
}

/** Throws where what computes here may give other bits than what computed a session, or one that it goes on from. */
function checkMachine({ native, dense, activations }: Runtime, { body }: Entry<'open'>): void {
  const { effective, machine } = body;
  const differs = (what: string, there: unknown, here: unknown): KvError =>
    new KvError('unsupported', `the answer cannot be run again here: ${what} was ${there}, and here it is ${here}`, {
      values: { what, there, here },
      hint: 'other kernels may differ in the last bits of a number, and then in a token; the log is proved all the same',
    });
  if (machine?.isa !== native.isa) throw differs('the instruction set', machine?.isa, native.isa);
  if (machine?.binding !== native.binding) throw differs('the binding', machine?.binding, native.binding);
  if (effective['dense'] !== dense.name) throw differs('the backend of matrices', effective['dense'], dense.name);
  const [there, hereToo] = [body.activations, activations ?? undefined].map((one) =>
    one === undefined ? '16 bits' : JSON.stringify(one.eightBit),
  );
  if (there !== hereToo) throw differs('the rounding of activations', there, hereToo);
}

/** What added to its rows. Throws 'not-found' for an adapter that the engine has not. */
function setOf({ body }: Entry<'open'>, adapters: Adapters | undefined): AdapterSet | null {
  const { adapters: applied = [] } = body;
  if (applied.length === 0) return null;
  if (adapters !== undefined) return adapters.again(applied);
  throw new KvError('unsupported', 'the answer cannot be run again: adapters added to it, and there are none here', {
    values: { digests: applied.map(({ digest }) => digest) },
  });
}

/** What adapters tokens have activated, the latest last. */
const activatedIn = (entries: readonly Entry[]): readonly Activated[] =>
  entries.flatMap(({ kind, body }) => (kind === 'note' ? ((body as NoteBody).activated ?? []) : []));

/** What became of the pages of a session. Throws 'unsupported' for what cannot be made again. */
function eventsIn(lines: readonly Line[]): (Made | Begun)[] {
  // Of what was let go, nothing is there.
  const first = lines.findLastIndex(({ entry }) => wokenIn(entry) === 'reading');
  return lines.slice(first + 1).flatMap(({ entry, tokens: most }): (Made | Begun)[] => {
    if (wokenIn(entry) === 'pages')
      return [{ tokens: Math.min((entry.body as NoteBody).tokens ?? 0, most), isParked: true }];
    const { tokens, changes } = changesIn(entry);
    const isOthers = tokens > most || entry.kind !== 'decision';
    // What was done when the other one had read on is done before this one does.
    const made = { tokens: Math.min(tokens, most), isOthers };
    const moves = changes.filter(({ page }) => page < pageOf(most)).map((change) => ({ ...change, ...made }));
    const begun = beginningIn(entry);
    if (begun === null) return moves;
    const { forkedTokens, parkedAt } = begun;
    return [{ tokens: Math.min(begun.tokens, most), forkedTokens, isParked: parkedAt !== undefined }, ...moves];
  });
}

/** How a session that was parked while it waited came back; null: an entry of something else. */
function wokenIn({ kind, body }: Entry): unknown {
  const { idle, by } = (kind === 'note' ? body : {}) as Readonly<Record<string, unknown>>;
  return idle === 'woken' ? by : null;
}

/** What an entry says of pages that were changed, when a cache had so many tokens. */
function changesIn({ kind, body, seq }: Entry): { readonly tokens: number; readonly changes: readonly FormChange[] } {
  if (kind === 'decision') {
    const { decision, verdict, tokens } = body as Entry<'decision'>['body'];
    return { tokens, changes: verdict.accepted ? [decision] : [] };
  }
  if (kind === 'note') {
    const { movedSince = [], tokens = 0 } = body as Entry<'note'>['body'] as NoteBody;
    return { tokens, changes: movedSince };
  }
  if (kind !== 'change') return { tokens: 0, changes: [] };
  const { cause, changes, tokens } = body as Entry<'change'>['body'];
  // What a window has left behind goes by itself.
  if (cause === 'sliding-window') return { tokens, changes: [] };
  if (cause === 'shared') return { tokens, changes };
  throw new KvError('unsupported', `the answer cannot be run again: entry ${seq} has a change by '${cause}'`, {
    values: { seq, cause },
  });
}

/** The tokens of a request as they were read. */
function* stepsOf({ tokens, steps }: ReceiptRequest): Generator<readonly number[]> {
  let at = 0;
  for (const [length, times] of steps)
    for (let i = 0; i < times && at < tokens.length; i++, at += length) yield tokens.slice(at, at + length);
  if (at !== tokens.length) throw noReceipt('its steps have other tokens than it');
}

/** A cache that makes the moves of a log. */
class Player implements Stepper {
  readonly runtime: Runtime;
  readonly governed: Governed;
  readonly rotary: Rotary;
  readonly adapters: readonly ScaledAdapter[];
  readonly times = { denseMs: 0, attentionMs: 0 };
  readonly tokens: number[] = [];
  readonly #events: readonly (Made | Begun)[];
  readonly #alone: Alone;
  readonly #set: AdapterSet | null;
  #next = 0;
  #made = 0;
  #last = new Float32Array(0);

  constructor(
    runtime: Runtime,
    { body }: Entry<'open'>,
    events: readonly (Made | Begun)[],
    { alone, set, activated }: { alone: Alone; set: AdapterSet | null; activated: readonly Activated[] },
  ) {
    const { model, shape } = runtime;
    const { context, requested } = body;
    this.runtime = runtime;
    this.#events = events;
    this.#alone = alone;
    this.#set = set;
    this.adapters = Activation.none(set).as(activated).scaled;
    set?.hold(this);
    this.rotary = Rotary.planned(model.config, (requested['tokensExpected'] as number | null) ?? undefined);
    this.governed = Governed.open({
      shape,
      terms: {
        ...{ policy: PLAYED, policyOptions: {}, context, exact: false, thresholdValues: {}, lowest: [] },
        ...{ budgetBytes: null, kldBudget: null, tokensExpected: null, stepLatencyBudgetMs: null },
      },
      native: { threads: runtime.cacheThreads, ...attentionTerms(model.config) },
      sketches: [],
      log: null,
      opened: {
        model: { name: nameInLog(model), digest: model.digest, architecture: model.config.architecture },
        requested: {},
        effective: {},
      },
    });
  }

  /** Moves that were made so far. */
  get made(): number {
    return this.#made;
  }

  logits(): Promise<Float32Array> {
    return this.runtime.dense.logits(this.#last, 1);
  }

  holds(tokenIds: Int32Array, hidden: Float32Array): void {
    for (const id of tokenIds) this.tokens.push(id);
    const width = hidden.length / tokenIds.length;
    this.#last = hidden.slice((tokenIds.length - 1) * width, tokenIds.length * width);
  }

  /** Reads tokens in one step, when the moves have been made that were made before them. */
  async step(ids: readonly number[], signal?: AbortSignal): Promise<void> {
    if (signal?.aborted === true) throw new KvError('aborted', 'aborted while the answer was run again');
    await this.#alone(ids.length, () => {
      this.#follow(this.tokens.length);
      return runStep(this, Int32Array.from(ids));
    });
  }

  /** Does what was done when the cache held so many tokens. */
  #follow(tokens: number): void {
    for (
      let next = this.#events[this.#next];
      next !== undefined && next.tokens <= tokens;
      next = this.#events[++this.#next]
    ) {
      if (!('to' in next)) this.#begin(next);
      else if (next.tokens < tokens) throw notAgain(next, 'tokens were taken back');
      else this.#move(next);
    }
  }

  #move(move: Made): void {
    const { kv } = this.governed;
    const { layer, page, side, from, to } = move;
    this.#made++;
    if (to === 'freed') kv.evictPage(layer, page);
    else if (side === 'kv' || isLatent(to) || isLatent(from)) throw notAgain(move, 'it is of a latent');
    else if (FORMATS[to].rank < FORMATS[from].rank) throw notAgain(move, 'it was put back from an original');
    else if (move.isOthers && side === 'k' && FORMATS[to].steered !== undefined)
      throw notAgain(move, 'another session chose its codes by what it had read');
    else {
      this.#seal();
      if (kv.format(layer, page, side) !== from) throw notAgain(move, 'the page is in another format');
      kv.transcode(layer, page, side, to);
    }
  }

  /** Seals a last page that is full, for moves of a session with which this one began and which had sealed it. */
  #seal(): void {
    const { kv, shape } = this.governed;
    const tokens = this.tokens.length;
    if (!isPageFull(tokens) || kv.table(0).pages === pageOf(tokens)) return;
    const row = new Float32Array(shape.kvHeads * shape.headDim);
    for (let layer = 0; layer < shape.layers; layer++) kv.append(layer, row, row);
    kv.truncate(tokens);
  }

  /** The cache becomes one that holds the same without having read it: no queries are kept of its tokens. */
  #begin({ tokens, forkedTokens, isParked = false }: Begun): void {
    const { governed } = this;
    const { kv } = governed;
    if (tokens === 0) return;
    if (forkedTokens !== undefined) {
      const fork = kv.fork();
      ownPages(fork, kv, pageOf(forkedTokens));
      kv.become(() => fork);
      return;
    }
    if (!isParked) this.#seal();
    const empty = governed.emptied();
    ownPages(empty, kv, 0);
    kv.become(() => empty);
  }

  close(): void {
    this.governed.close();
    this.#set?.leave(this);
  }
}

const notAgain = ({ layer, page, side, from, to }: Made, why: string): KvError =>
  new KvError(
    'unsupported',
    `the answer cannot be run again: the move of layer ${layer}, page ${page}${side}, from ${from} to ${to}: ${why}`,
    { values: { layer, page, side, from, to } },
  );
