/** One answer as it is written: which token comes next, what of its text may be shown, and when it ends. */

import { KvError } from '../../native/index.ts';
import type { GenerateOptions, ToolChoice } from '../options/types.ts';
import { type Following, without } from '../transformer/grammar/constraint.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { type GeneratedToken, logprobsOf } from '../transformer/sampling/logprobs.ts';
import { Sampler } from '../transformer/sampling/sampler.ts';
import type { ChatTool, LoadedModel } from '../transformer/types.ts';
import { checkGenerate } from './prompt.ts';
import { StopText } from './stop.ts';
import type { Generated } from './types.ts';

/** Which calls of tools an answer follows. Its template says how they are written. */
export interface AskedCalls {
  readonly choice: ToolChoice;
  /** True if there is one call, not several. */
  readonly once: boolean;
  readonly tools: readonly ChatTool[];
  readonly template: string;
}

/** Opens what an answer follows for its calls; null: nothing. Throws what Grammars.open throws. */
export type OpenCalls = (asked: AskedCalls, signal?: AbortSignal) => Promise<Following | null>;

export interface AnswerOptions extends GenerateOptions {
  /** The chat template that the prompt went through. */
  readonly template?: string;
  /** Control tokens that are part of the text. */
  readonly controls?: readonly string[];
  /** Opens what the answer follows, in place of `grammar`; null: nothing. Throws what Grammars.open throws. */
  readonly following?: () => Promise<Following | null>;
  /** What that was made of, for a receipt: its calls. */
  readonly calls?: AskedCalls;
  /** Hears of each token that is written, where `logprobs` asks how likely it was. */
  readonly onToken?: (token: GeneratedToken) => void;
}

/** What answers with: a runtime. */
type Answering = Pick<Runtime, 'model' | 'grammars'>;

export class Answer {
  readonly maxTokens: number;
  #finish: Generated['finish'] | null = null;
  #count = 0;
  readonly #model: LoadedModel;
  readonly #sampler: Sampler;
  readonly #ends: ReadonlySet<number>;
  readonly #stream: ReturnType<LoadedModel['tokenizer']['stream']>;
  readonly #stop: StopText;
  readonly #top: number | null;
  readonly #onToken: AnswerOptions['onToken'];
  readonly #ids: Int32Array;
  readonly #logprobs: GeneratedToken[] = [];
  #constraint: Following | null = null;
  #text = '';

  private constructor(model: LoadedModel, options: AnswerOptions) {
    const { maxTokens, stops } = checkGenerate(options);
    const { tokenizer, config } = model;
    this.maxTokens = maxTokens;
    this.#model = model;
    this.#sampler = new Sampler(options, { size: config.vocabSize, tokenizer });
    this.#ends = new Set([...config.eosIds, ...tokenizer.eosIds]);
    this.#stream = tokenizer.stream(options.controls === undefined ? {} : { controls: options.controls });
    this.#stop = new StopText(stops);
    this.#top = options.logprobs ?? null;
    this.#onToken = options.onToken;
    this.#ids = new Int32Array(this.#top === null ? 0 : config.vocabSize);
  }

  /** Its owner closes it. Throws 'bad-argument' for options out of range, and what Grammars.open throws. */
  static async open({ model, grammars }: Answering, options: AnswerOptions): Promise<Answer> {
    const answer = new Answer(model, options);
    const { grammar, signal } = options;
    answer.#constraint = await (options.following?.() ??
      grammars.open(grammar, signal).catch((error: unknown) => {
        throw ofGrammar(error, grammar);
      }));
    if (answer.#constraint?.isOver === true) answer.#finish = 'stop';
    return answer;
  }

  /** Refuses what opening it would refuse. → the most tokens that it would have */
  static async check(answering: Answering, options: AnswerOptions): Promise<number> {
    const answer = await Answer.open(answering, options);
    answer.close();
    return answer.maxTokens;
  }

  /** Why it ended; null: it goes on. */
  get finish(): Generated['finish'] | null {
    return this.#finish;
  }

  /** Tokens that belong to it. */
  get count(): number {
    return this.#count;
  }

  /** Whoever asked for it wants no more. */
  abort(): void {
    this.#finish = 'aborted';
  }

  /**
   * logits [V] behind all tokens so far → the next token, which is to be read and then pushed; null: the text ends
   * here. Throws as Sampler.next.
   */
  async next(logits: Float32Array, history: readonly number[]): Promise<number | null> {
    let mask = this.#constraint?.mask ?? null;
    let id = this.#sampler.next(logits, history, mask);
    while ((await this.#constraint?.refuses(id)) === true) {
      mask = without(mask, id, this.#model.config.vocabSize);
      id = this.#sampler.next(logits, history, mask);
    }
    if (this.#ends.has(id)) {
      this.#finish = 'stop';
      return null;
    }
    if (this.#top !== null) this.#logprobs.push(logprobsOf(logits, id, this.#top, this.#ids, this.#model.tokenizer));
    return id;
  }

  /** The token is written, which nothing takes back. → text that may be shown now. Throws as Constraint.accept. */
  async push(id: number): Promise<string> {
    const token = this.#logprobs[this.#count++];
    await this.#constraint?.accept(id);
    if (token !== undefined) this.#onToken?.(token);
    const piece = this.#stop.push(this.#stream.push(id));
    this.#text += piece;
    if (this.#stop.hit || this.#constraint?.isOver === true) this.#finish = 'stop';
    else if (this.#count === this.maxTokens) this.#finish = 'length';
    return piece;
  }

  /** → text that was held back and is part of the answer after all */
  end(): string {
    const rest = this.#stop.hit ? '' : this.#stop.push(this.#stream.end()) + this.#stop.end();
    this.#text += rest;
    return rest;
  }

  /** What it is now that it has ended. */
  async generated(): Promise<
    Pick<Generated, 'text' | 'tokens' | 'finish' | 'stoppedBy' | 'grammarComplete' | 'logprobs'>
  > {
    return {
      text: this.#text,
      tokens: this.#count,
      finish: this.#finish ?? 'aborted',
      stoppedBy: this.#stop.by,
      grammarComplete: await this.#isComplete(),
      // One more may have been drawn, which was not written.
      logprobs: this.#top === null ? null : this.#logprobs.slice(0, this.#count),
    };
  }

  async #isComplete(): Promise<boolean | null> {
    const isComplete = this.#constraint?.isComplete ?? null;
    return isComplete === true ? this.#constraint!.fulfils(this.#text) : isComplete;
  }

  /** Nothing is written any more. */
  close(): void {
    this.#constraint?.close();
  }
}

/** The same error, which says of which option it is. */
function ofGrammar(error: unknown, grammar: AnswerOptions['grammar']): unknown {
  if (!(error instanceof KvError) || !['bad-argument', 'unsupported'].includes(error.code)) return error;
  const { code, message, values, hint, cause } = error;
  return new KvError(code, message, { values: { grammar: Object.keys(grammar ?? {})[0], ...values }, hint, cause });
}
