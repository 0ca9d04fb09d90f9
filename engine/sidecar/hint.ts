/**
 * What helpers say of a text, and the two models of ours that say it: one tells its kind, one where it lies among texts
 * by eight numbers. Both read at most the first bytes of it, as n-grams. Made by scripts/train-helpers.ts.
 */
import { join } from 'node:path';
import { packageRoot, readRegular } from '../../native/index.ts';
import { type Embedder, type Placed, readEmbedder } from './embedder.ts';
import type { SentTensor } from './frames.ts';
import { Helper, type HelperOptions, type HelperStatus } from './helper.ts';
import { findOrt, withoutOrt } from './helper-process.ts';
import { ONNX_LIMITS } from './onnx-scan.ts';

/** Kinds of text that are told apart, in the order of the model's answer. */
export const TEXT_KINDS = ['prose', 'dialogue', 'reference', 'code', 'tables', 'german'] as const;
export type TextKind = (typeof TEXT_KINDS)[number];
/** The two models, by what they tell. */
export const TEXT_HELPERS = ['kinds', 'places'] as const;
export type TextHelperName = (typeof TEXT_HELPERS)[number];
/** Numbers of a place among texts. */
export const PLACE_DIM = 8;
/** Bytes of a text that are looked at. */
export const HINT_BYTES_MAX = 8192;

/** What is said of a text. Numbers are in sixteenths: enough to tell kinds apart, little to tell texts apart. */
export interface Hint {
  readonly kind: TextKind;
  /** How sure that is, 0 to 1. */
  readonly share: number;
  /** Where it lies, each number −1 to 1. */
  readonly place: readonly number[];
  /** Digest of the embedder that said so, where it is not the one of the package. */
  readonly by?: string;
}

/** What helpers are opened with. */
export interface TextHelperOptions extends HelperOptions {
  /** ONNX file that says places in place of the one of the package. */
  readonly embedder?: string | undefined;
}

const coarse = (x: number): number => Math.round(16 * x) / 16;
const floats = (tensor: SentTensor | undefined): Float32Array | null =>
  tensor?.type === 'float32' ? new Float32Array(tensor.data.buffer as ArrayBuffer) : null;

/** The text as bytes, for the models that come with the package. */
const bytesOf = (text: Uint8Array): readonly SentTensor[] => [
  { name: 'text', type: 'uint8', dims: [text.byteLength], data: text },
];

/** Both helpers, each in a process of its own. */
export class TextHelpers {
  readonly #kinds: Helper;
  readonly #places: Helper;
  /** null: places are said by the model of the package. */
  readonly #embedder: Embedder | null;

  /**
   * Throws 'missing-dependency' without onnxruntime-node, 'not-found', 'io' or 'bad-model' where the files of the
   * models, which come with the package, are not there or not right; for an embedder as readEmbedder does.
   */
  constructor({ embedder, ...options }: TextHelperOptions = {}) {
    if (findOrt() === null) throw withoutOrt();
    const open = (name: TextHelperName): Helper => {
      const path = join(packageRoot(), 'models', 'helpers', `${name}.onnx`);
      return new Helper(name, readRegular(path, { bytesMax: ONNX_LIMITS.bytesMax, code: 'bad-model' }), options);
    };
    this.#embedder = embedder === undefined ? null : readEmbedder(embedder, options);
    this.#kinds = open('kinds');
    this.#places = this.#embedder?.helper ?? open('places');
  }

  /** Asks an embedder of a user once, so that one of no use is refused when it is opened. Throws 'bad-model'. */
  async check(): Promise<void> {
    await this.#embedder?.check();
  }

  get status(): readonly HelperStatus[] {
    return [this.#kinds.status, this.#places.status];
  }

  /** Of the processes that run. */
  get pids(): readonly number[] {
    return [this.#kinds.pid, this.#places.pid].filter((pid) => pid !== null);
  }

  /** → what is said of a text; null where a helper says nothing, whatever the reason. Throws 'closed'. */
  async hintOf(text: Uint8Array, options: { readonly deadlineMs?: number } = {}): Promise<Hint | null> {
    if (text.byteLength === 0) return null;
    const data = text.slice(0, HINT_BYTES_MAX);
    // One after the other, so that at most one core is taken from those who decode meanwhile.
    const said = await this.#kinds.ask(bytesOf(data), options);
    const placed = said === null ? null : await this.#place(data, options);
    const kinds = floats(said?.[0]);
    if (kinds?.length !== TEXT_KINDS.length || placed === null) return null;
    const share = Math.max(...kinds);
    const kind = TEXT_KINDS[kinds.indexOf(share)];
    return kind === undefined ? null : { kind, share: coarse(share), ...placed };
  }

  async #place(text: Uint8Array, options: { readonly deadlineMs?: number }): Promise<Placed | null> {
    if (this.#embedder !== null) return this.#embedder.placeOf(text, options);
    const place = floats((await this.#places.ask(bytesOf(text), options))?.[0]);
    return place?.length === PLACE_DIM && place.every(Number.isFinite) ? { place: [...place].map(coarse) } : null;
  }

  async close(): Promise<void> {
    await Promise.all([this.#kinds.close(), this.#places.close()]);
  }
}
