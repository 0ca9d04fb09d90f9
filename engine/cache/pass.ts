/**
 * One pass over the weights of a model for the steps of any number of caches: their rows stand one behind the other in
 * the dense half, and each meets the pages of its own cache. A row gets the same bits in any company. Whatever befalls
 * one of them is its own: the others go on.
 */
import { Batch, type Beside, given, PAGE_TOKENS, TRIAL_QUERIES } from '../../native/index.ts';
import { adaptedRows } from '../transformer/adapted-dense.ts';
import type { LayerInput } from '../transformer/types.ts';
import type { CheckedInputs } from './latents.ts';
import { makeRoom, settle } from './step.ts';
import type { Stepper } from './stepper.ts';

/** The native cache keeps one query in this many tokens for trials. */
const TRIAL_STRIDE = PAGE_TOKENS / TRIAL_QUERIES;

/** Tokens (at most tokensAtOnce of the cache) that one cache reads in a pass. */
export interface Step {
  readonly stepper: Stepper;
  readonly tokenIds: Int32Array;
}

/** A step that went well has no error. */
export type Outcome = { readonly error: unknown } | null;

/** A step in a pass: which rows are its own, and how it fares. */
class Part {
  readonly step: Step;
  readonly tokens: number;
  /** Of its first token in the cache. */
  readonly position: number;
  /** Of its first token among the rows of the pass. */
  row = 0;
  outcome: Outcome = null;
  /** Milliseconds that nobody else had a part in. */
  ownMs = 0;

  constructor(step: Step) {
    this.step = step;
    this.tokens = step.tokenIds.length;
    this.position = step.stepper.governed.length;
  }

  /** Does a piece of work of this step alone; what it throws ends the step and no other. → milliseconds */
  does(work: () => void): number {
    const start = performance.now();
    try {
      work();
    } catch (error) {
      this.outcome = { error };
    }
    const ms = performance.now() - start;
    this.ownMs += ms;
    return ms;
  }

  /** Its own of the rows of a pass of `all` tokens. */
  of(rows: Float32Array, all: number): Float32Array {
    const width = rows.length / all;
    return rows.subarray(this.row * width, (this.row + this.tokens) * width);
  }
}

/**
 * Runs the tokens of all steps through all layers; the caches must be of one model, and none may be there twice. Room
 * for a step is made before anything is appended to its cache, and moves follow when all layers have its tokens.
 * → what became of each
 */
export async function runPass(steps: readonly Step[]): Promise<Outcome[]> {
  const parts = steps.map((step) => new Part(step));
  for (const part of parts)
    part.does(() => {
      part.step.stepper.begins?.();
      makeRoom(part.step.stepper.governed, part.tokens);
    });
  const begun = parts.filter(isSound);
  const sharedMs = begun.length === 0 ? 0 : await carry(begun);
  for (const part of begun.filter(isSound)) {
    const { governed } = part.step.stepper;
    part.does(() => settle(governed, part.tokens));
    // What the others' own work took is not its cache's doing, and no move of its pages would make that shorter.
    if (isSound(part) && part.tokens === 1) governed.pacing.latency.add(sharedMs + part.ownMs);
  }
  return parts.map(({ outcome }) => outcome);
}

/** A pass of one step, which throws what befell it. */
export async function runStep(stepper: Stepper, tokenIds: Int32Array): Promise<void> {
  const [outcome] = await runPass([{ stepper, tokenIds }]);
  if (outcome != null) throw outcome.error;
}

const isSound = ({ outcome }: Part): boolean => outcome === null;

/** Takes the rows of these steps through all layers. → milliseconds in the dense half, which they share */
async function carry(parts: readonly Part[]): Promise<number> {
  const { runtime } = parts[0]!.step.stepper;
  const { dense, model } = runtime;
  const { layers, queryHeads, headDim } = model.config;
  let rows = 0;
  for (const part of parts) {
    part.row = rows;
    rows += part.tokens;
  }
  let sharedMs = 0;
  const shared = async <T>(work: () => Promise<T>): Promise<T> => {
    const start = performance.now();
    const result = await work();
    const ms = performance.now() - start;
    sharedMs += ms;
    for (const { step, tokens } of parts) step.stepper.times.denseMs += (ms * tokens) / rows;
    return result;
  };
  try {
    const attention = new Float32Array(rows * queryHeads * headDim);
    const caches = new Caches(parts);
    const adapted = parts.flatMap((part) => adaptedRows(part.step.stepper.adapters ?? [], part));
    let input = await shared(() => dense.first(dense.embed(idsOf(parts, rows)), rows, adapted));
    for (let layer = 0; ; layer++) {
      caches.attend(layer, input, attention);
      // Rows of a step that has failed are carried on unless all have; nobody reads them.
      if (!parts.some(isSound)) return sharedMs;
      const { x } = input;
      if (layer + 1 === layers) {
        const hidden = await shared(() => dense.last(attention, x, rows, adapted));
        for (const part of parts.filter(isSound))
          part.does(() => part.step.stepper.holds(part.step.tokenIds, part.of(hidden, rows)));
        return sharedMs;
      }
      input = await shared(() => dense.next(layer, attention, x, rows, adapted));
    }
  } catch (error) {
    for (const part of parts) part.outcome ??= { error };
    return sharedMs;
  }
}

function idsOf(parts: readonly Part[], rows: number): Int32Array {
  if (parts.length === 1) return parts[0]!.step.tokenIds;
  const ids = new Int32Array(rows);
  for (const { step, row } of parts) ids.set(step.tokenIds, row);
  return ids;
}

/** What a cache is about to get in a layer. */
interface Ready {
  readonly inputs: CheckedInputs | undefined;
  readonly xNorms: Float32Array;
}

/** The caches of a pass: in one native call for all while all go well, else in one for each. */
class Caches {
  readonly #parts: readonly Part[];
  #batch: Batch | null = null;

  constructor(parts: readonly Part[]) {
    this.#parts = parts;
    const { pool } = parts[0]!.step.stepper.governed;
    if (parts.length === 1 || parts.some(({ step }) => step.stepper.governed.pool !== pool)) return;
    this.#batch = new Batch();
    try {
      this.#batch.begin(parts.map(({ step, tokens }) => ({ cache: step.stepper.governed.kv, tokens })));
    } catch {
      // One that was closed meanwhile says so itself.
      this.#batch = null;
    }
  }

  /** Gives a layer of each cache its rows, and puts what they see there into theirs of `attention`. */
  attend(layer: number, input: LayerInput, attention: Float32Array): void {
    const ready = this.#parts.map((part) => (isSound(part) ? readied(part, layer, input) : null));
    if (!this.#parts.every(isSound)) this.#batch = null;
    if (this.#batch !== null && this.#together(this.#batch, layer, { ready, input, attention })) return;
    for (const [at, part] of this.#parts.entries()) if (isSound(part)) alone(part, layer, input, attention, ready[at]!);
  }

  /** → false: one of them cannot append, none has, and each is to do it alone. */
  #together(
    batch: Batch,
    layer: number,
    {
      ready,
      input,
      attention,
    }: { readonly ready: readonly (Ready | null)[]; readonly input: LayerInput; readonly attention: Float32Array },
  ): boolean {
    const caches = this.#parts.map(({ step }) => step.stepper.governed);
    const bytes = caches.map((cache) => cache.bytesBefore());
    if (!this.#went(() => batch.append(layer, input.k, input.v))) return false;
    for (const [at, part] of this.#parts.entries()) {
      const told = { tokens: part.tokens, inputs: ready[at]!.inputs, bytes: bytes[at]! };
      part.does(() => caches[at]!.appended(layer, told));
    }
    const xNorms = new Float32Array(input.tokens);
    for (const [at, { row }] of this.#parts.entries()) xNorms.set(ready[at]!.xNorms, row);
    const beside = besideOf(this.#parts, layer, input);
    // Where it is refused nothing was counted or kept; whoever it is that cannot says so alone.
    if (!this.#went(() => batch.attend(layer, input.q, attention, { xNorms, ...given({ beside }) })))
      for (const [at, part] of this.#parts.entries())
        if (isSound(part)) looks(part, layer, input, attention, ready[at]!);
    return true;
  }

  /** Makes a call for all, whose time they share. → false: one of them was refused, and each goes on alone. */
  #went(call: () => void): boolean {
    const start = performance.now();
    try {
      call();
      return true;
    } catch {
      this.#batch = null;
      return false;
    } finally {
      this.#took(performance.now() - start);
    }
  }

  /** Each has a part of the time by its rows and by what they see. */
  #took(ms: number): void {
    const seen = this.#parts.map(({ tokens, position }) => tokens * (position + tokens));
    const all = seen.reduce((sum, one) => sum + one, 0);
    for (const [at, part] of this.#parts.entries()) {
      const own = (ms * seen[at]!) / all;
      part.ownMs += own;
      part.step.stepper.times.attentionMs += own;
    }
  }
}

/** Makes the rows of one cache what a layer of it takes, in place. */
function readied(part: Part, layer: number, input: LayerInput): Ready {
  const { step, tokens, position } = part;
  const { governed, rotary, times } = step.stepper;
  let ready: Ready = { inputs: undefined, xNorms: NO_NORMS };
  times.attentionMs += part.does(() => {
    const of = (rows: Float32Array): Float32Array => part.of(rows, input.tokens);
    const [q, k, v, x] = [of(input.q), of(input.k), of(input.v), of(input.x)];
    rotary.apply(layer, q, k, tokens, position);
    step.stepper.sees?.({ layer, position, tokens, q, k, v, x });
    ready = { inputs: governed.inputs(layer, x, tokens), xNorms: rowNorms(x, tokens, position) };
  });
  return ready;
}

const NO_NORMS = new Float32Array(0);

/** What pages in the packs of any of them add to attention, for the rows of all; undefined where there are none. */
function besideOf(parts: readonly Part[], layer: number, input: LayerInput): Beside | undefined {
  if (parts.every(({ step }) => (step.stepper.governed.packs?.count ?? 0) === 0)) return undefined;
  const { queryHeads } = parts[0]!.step.stepper.governed.shape;
  const lse = new Float32Array(input.tokens * queryHeads).fill(Number.NEGATIVE_INFINITY);
  const out = new Float32Array(input.q.length);
  const changes = (): number => parts.reduce((sum, { step }) => sum + (step.stepper.governed.packs?.changes ?? 0), 0);
  // Where a pack fails in one of them, pages that it shares with others are pages of ours for these too.
  for (let before = Number.NaN; before !== changes(); ) {
    before = changes();
    for (const part of parts)
      part.does(() => {
        const of = (rows: Float32Array): Float32Array => part.of(rows, input.tokens);
        const [ownLse, ownOut] = [of(lse), of(out)];
        const { packs } = part.step.stepper.governed;
        if (packs?.beside(layer, of(input.q), part.position, ownLse, ownOut) === true) return;
        ownLse.fill(Number.NEGATIVE_INFINITY);
        ownOut.fill(0);
      });
  }
  return { lse, out };
}

/** One cache by itself. */
function alone(part: Part, layer: number, input: LayerInput, attention: Float32Array, ready: Ready): void {
  const { governed, times } = part.step.stepper;
  times.attentionMs += part.does(() =>
    governed.append(layer, part.of(input.k, input.tokens), part.of(input.v, input.tokens), ready.inputs),
  );
  if (isSound(part)) looks(part, layer, input, attention, ready);
}

function looks(part: Part, layer: number, input: LayerInput, attention: Float32Array, { xNorms }: Ready): void {
  const { governed, times } = part.step.stepper;
  times.attentionMs += part.does(() =>
    governed.attend(layer, part.of(input.q, input.tokens), part.of(attention, input.tokens), xNorms),
  );
}

/** ‖x‖ of the rows whose query the cache will keep for trials; 0 for the others, which nobody reads. [T] */
function rowNorms(x: Float32Array, tokens: number, position: number): Float32Array {
  const norms = new Float32Array(tokens);
  for (let t = 0; t < tokens; t++) {
    if ((position + t) % TRIAL_STRIDE !== TRIAL_STRIDE - 1) continue;
    norms[t] = rowNorm(x, t, x.length / tokens);
  }
  return norms;
}

/** ‖row t‖ of x [T, width]. */
export function rowNorm(x: Float32Array, t: number, width: number): number {
  let sum = 0;
  for (let i = t * width; i < (t + 1) * width; i++) sum += x[i]! * x[i]!;
  return Math.sqrt(sum);
}
