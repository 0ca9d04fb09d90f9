/** Gives an answer its receipt: claims what is so, has the log say it, and waits until that is on disk. */
import { given, KvError } from '../../native/index.ts';
import {
  divergenceSaid,
  heldIn,
  RECEIPT_BYTES_MAX,
  type ReceiptClaims,
  type ReceiptRequest,
  receiptFor,
  requestDigest,
  shortDigest,
  textDigest,
  tokensDigest,
  type WitnessLog,
} from '../../witness/index.ts';
import { ESTRANGED } from '../cache/descent.ts';
import { formsBySide } from '../cache/forms.ts';
import type { Governed } from '../cache/governed.ts';
import { GENERATE_OPTIONS } from '../options/table.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { SAMPLING_DEFAULTS, SAMPLING_OPTIONS } from '../transformer/sampling/options.ts';
import type { AnswerOptions, OpenCalls } from './answer.ts';
import type { AnswerReceipt, Generated } from './types.ts';

/** What a receipt has beside its claims, at most: where the log says them. */
const PLACE_BYTES = 256;

/** What a receipt is made of. */
interface Receipted {
  readonly runtime: Runtime;
  readonly governed: Governed;
  readonly tokens: readonly number[];
}

/** Options on which the tokens of an answer depend, and its text. */
const TOLD = [...Object.keys(SAMPLING_OPTIONS), 'maxTokens', 'stop', 'grammar', 'controls', 'calls'] as const;

export class Receipts {
  readonly #of: Receipted;
  readonly #log: WitnessLog;
  readonly #options: AnswerOptions;
  #request: ReceiptRequest = { tokens: [], steps: [], options: {} };

  private constructor(of: Receipted, log: WitnessLog, options: AnswerOptions) {
    this.#of = of;
    this.#log = log;
    this.#options = options;
  }

  /** Null where none was asked for. Throws 'unsupported' where nothing would prove one. */
  static asked(of: Receipted, options: AnswerOptions): Receipts | null {
    if (options.receipt !== true) return null;
    const { log } = of.governed;
    if (log === null)
      throw new KvError('unsupported', 'a receipt is proved by a log, and this session writes none', {
        values: { param: 'receipt' },
        hint: 'give the engine a stateDir, and leave out witness: false and exact: true',
      });
    return new Receipts(of, log, options);
  }

  /** All is read that the answer is given to. */
  begin(): void {
    const { tokens, governed } = this.#of;
    this.#request = { tokens: [...tokens], steps: governed.descent.steps.runs, options: plainOptions(this.#options) };
  }

  /** The answer has been written. Throws 'log-unwritable'. */
  async give(generated: Generated): Promise<AnswerReceipt> {
    const { governed } = this.#of;
    const request = this.#request;
    const claims = this.#claims(generated, request);
    const last = governed.mover.write('note', { receipt: claims, tokens: claims.cache.tokens });
    const first = governed.openSeq;
    await this.#log.flush();
    if (last === null || first < 0)
      throw new KvError('log-unwritable', 'the log did not take what the receipt rests on', {
        values: { session: governed.id },
      });
    return { receipt: receiptFor(this.#log.dir, governed.id, claims, { first, last }), request };
  }

  #claims(generated: Generated, request: ReceiptRequest): ReceiptClaims {
    const { text, tokens: count, finish } = generated;
    const { runtime, governed, tokens } = this.#of;
    const { isa, threads } = governed.machine;
    const { template } = this.#options;
    const claims: ReceiptClaims = {
      version: 1,
      model: shortDigest(runtime.model.digest),
      template: template === undefined ? null : textDigest(template),
      request: { tokens: request.tokens.length, digest: requestDigest(request) },
      answer: {
        tokens: count,
        digest: tokensDigest(tokens.slice(request.tokens.length)),
        text: textDigest(text),
        finish,
      },
      sampler: numbersOf(request.options),
      machine: { isa, threads },
      cache: heldBy(governed),
      kld: divergenceSaid(governed.terms.policy.id, governed.summary),
      bound: this.#bound,
    };
    const isLong = Buffer.byteLength(JSON.stringify(claims)) > RECEIPT_BYTES_MAX - PLACE_BYTES;
    return isLong ? { ...claims, sampler: given({ seed: claims.sampler['seed'] }) } : claims;
  }

  /** Why the answer cannot be run again; null: it can. */
  get #bound(): keyof typeof BOUND | null {
    const { descent, latents, originals } = this.#of.governed;
    if (descent.estranged !== null) return descent.estranged;
    if (latents !== null) return 'latents';
    return originals === null ? null : 'originals';
  }
}

/** Each in words, behind 'the session '. */
export const BOUND = {
  ...ESTRANGED,
  latents: 'keeps latents, whose making the log does not tell',
  originals: 'brings pages back from originals, which only it had',
} as const;

function heldBy(governed: Governed): ReceiptClaims['cache'] {
  const { shape, terms, length } = governed;
  const forms = Array.from({ length: shape.layers }, (_, layer) => formsBySide(governed.table(layer)));
  return heldIn({ shape, context: terms.context }, length, (layer, page, side) => forms[layer]![side][page]!);
}

/** Options as JSON has them: what is infinite is a text. */
function plainOptions(options: AnswerOptions): ReceiptRequest['options'] {
  const { logitBias, ...all } = options;
  const bias =
    logitBias === undefined
      ? undefined
      : Object.fromEntries(
          Object.entries(logitBias).map(([id, value]) => [id, Number.isFinite(value) ? value : String(value)]),
        );
  const told = TOLD.map((name) => [name, (all as Readonly<Record<string, unknown>>)[name]]);
  const { maxTokens, seed } = GENERATE_OPTIONS;
  return given({
    ...Object.fromEntries(told),
    seed: all.seed ?? seed.default,
    maxTokens: all.maxTokens ?? maxTokens.default,
    logitBias: bias,
  });
}

/** The same options for an answer. openCalls: opens what it follows where it calls tools. */
export function answerOptions(
  { options }: ReceiptRequest,
  openCalls: OpenCalls,
  signal: AbortSignal | undefined,
): AnswerOptions {
  const { logitBias, ...all } = options as Readonly<Record<string, unknown>> & {
    readonly logitBias?: Readonly<Record<string, number | string>>;
  };
  const bias =
    logitBias === undefined
      ? {}
      : { logitBias: Object.fromEntries(Object.entries(logitBias).map(([id, value]) => [id, Number(value)])) };
  const answer = { ...all, ...bias } as AnswerOptions;
  const { calls } = answer;
  return calls === undefined ? answer : { ...answer, following: () => openCalls(calls, signal) };
}

/** What differs from what it would be anyway, and the seed. */
function numbersOf(options: ReceiptRequest['options']): ReceiptClaims['sampler'] {
  const usual: Readonly<Record<string, unknown>> = SAMPLING_DEFAULTS;
  const told = Object.entries(options).filter(
    (one): one is [string, number] => typeof one[1] === 'number' && (one[0] === 'seed' || one[1] !== usual[one[0]]),
  );
  return Object.fromEntries(told);
}
