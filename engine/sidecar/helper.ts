/**
 * A helper: one auxiliary model in a process of its own, asked for hints. A hint that is not there is no fault: whoever
 * asks gets null and goes on. A process that fails is ended and started again by a later question, after a rest that
 * doubles; after three failures in a row it is left alone for good.
 */
import { KvError } from '../../native/index.ts';
import type { SentTensor } from './frames.ts';
import { findWardens, type HelperLimits, HelperProcess, type Wardens } from './helper-process.ts';
import { type OnnxFacts, scanOnnx } from './onnx-scan.ts';

/** A process of Node with onnxruntime has 50 MB of its own data; the models that come with the package add two. */
export const HELPER_LIMITS: HelperLimits = {
  dataBytes: 512 * 2 ** 20,
  cpuSeconds: 120,
  startMs: 30_000,
  deadlineMs: 1000,
};
/** Failures in a row after which a helper is not started any more. */
const FAILURES_MAX = 3;
const REST_MS = 1000;

/** How a helper is. */
export interface HelperStatus {
  readonly name: string;
  /** 'broken': it failed three times in a row and is not asked any more. */
  readonly state: 'idle' | 'running' | 'resting' | 'broken';
  readonly starts: number;
  /** Answers that it gave. */
  readonly answers: number;
  /** Failures in a row. */
  readonly failures: number;
  /** How long it rested, or rests, after the last of them. */
  readonly restMs: number;
  /** What went wrong last; null: nothing has. */
  readonly trouble: string | null;
}

/** What a helper is started with, beside its model. */
export interface HelperOptions {
  readonly limits?: Partial<HelperLimits>;
  /** Default: those of the system. */
  readonly wardens?: Wardens;
  /** Milliseconds of the first rest; every further one is twice as long. Default 1000. */
  readonly restMs?: number;
  /** Hears when it is in another state, or failed once more. */
  readonly onChange?: (status: HelperStatus) => void;
}

export class Helper {
  readonly name: string;
  /** What its model is. */
  readonly facts: OnnxFacts;
  readonly #model: Uint8Array;
  readonly #limits: HelperLimits;
  readonly #wardens: Wardens;
  readonly #restMs: number;
  readonly #onChange: (status: HelperStatus) => void;
  #process: HelperProcess | null = null;
  #starts = 0;
  #answers = 0;
  #failures = 0;
  #restsUntilMs = 0;
  #trouble: string | null = null;
  #isClosed = false;

  /** Nothing is started before the first question. Throws 'bad-model' for a file that scanOnnx refuses. */
  constructor(
    name: string,
    model: Uint8Array,
    { limits, wardens, restMs = REST_MS, onChange = () => {} }: HelperOptions = {},
  ) {
    this.name = name;
    this.facts = scanOnnx(name, model);
    this.#model = model;
    this.#limits = { ...HELPER_LIMITS, ...limits };
    this.#wardens = wardens ?? findWardens();
    this.#restMs = restMs;
    this.#onChange = onChange;
  }

  get status(): HelperStatus {
    const { name } = this;
    const common = { name, starts: this.#starts, answers: this.#answers, failures: this.#failures };
    return { ...common, restMs: this.#rest, state: this.#state, trouble: this.#trouble };
  }

  get #state(): HelperStatus['state'] {
    if (this.#failures >= FAILURES_MAX) return 'broken';
    if (this.#process !== null) return 'running';
    return performance.now() < this.#restsUntilMs ? 'resting' : 'idle';
  }

  get #rest(): number {
    return this.#failures === 0 ? 0 : this.#restMs * 2 ** (this.#failures - 1);
  }

  /** Of its process; null: none runs. */
  get pid(): number | null {
    return this.#process?.pid ?? null;
  }

  /** → what the model makes of these tensors; null: it cannot say. Throws 'closed', and nothing else. */
  async ask(
    tensors: readonly SentTensor[],
    { deadlineMs = this.#limits.deadlineMs } = {},
  ): Promise<readonly SentTensor[] | null> {
    if (this.#isClosed) throw new KvError('closed', `the helper ${this.name} was closed`);
    if (this.#state === 'broken' || this.#state === 'resting') return null;
    let asked: HelperProcess | null = null;
    try {
      asked = this.#process ?? this.#start();
      await asked.ready;
      const answer = await asked.ask(tensors, deadlineMs);
      this.#answers++;
      const isBack = this.#failures > 0;
      this.#failures = 0;
      if (isBack) this.#onChange(this.status);
      return answer;
    } catch (error) {
      await this.#failed(asked, error as Error);
      return null;
    }
  }

  /** Ends its process and waits until it is gone. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const process = this.#process;
    this.#process = null;
    await process?.end();
  }

  #start(): HelperProcess {
    this.#starts++;
    this.#process = new HelperProcess(this.#model, this.#limits, this.#wardens);
    this.#onChange(this.status);
    return this.#process;
  }

  /** Questions that wait for the same process fail together, which is one failure. */
  async #failed(asked: HelperProcess | null, { message }: Error): Promise<void> {
    if (this.#isClosed || asked !== this.#process) return;
    this.#process = null;
    this.#trouble = message;
    this.#failures++;
    this.#restsUntilMs = performance.now() + this.#rest;
    this.#onChange(this.status);
    await asked?.end();
  }
}
