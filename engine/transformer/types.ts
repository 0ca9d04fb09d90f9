/** What a model is to the engine: a configuration, tensors by name, a tokenizer, and a dense half that runs. */

import type { DenseSlot, Experts } from '../../native/index.ts';
import type { Slices } from './slices.ts';

/** How rotary frequencies are stretched beyond the context that the model was trained with. */
export type RopeScaling =
  | { readonly kind: 'none' }
  | { readonly kind: 'linear'; readonly factor: number }
  | { readonly kind: 'ntk'; readonly factor: number; readonly originalContext: number }
  | {
      readonly kind: 'llama3';
      readonly factor: number;
      readonly lowFreqFactor: number;
      readonly highFreqFactor: number;
      readonly originalContext: number;
    }
  | {
      readonly kind: 'yarn';
      readonly factor: number;
      readonly originalContext: number;
      readonly betaFast: number;
      readonly betaSlow: number;
      /** Factor on cos and sin; null: 0.1·ln(factor) + 1. */
      readonly attentionFactor: number | null;
    }
  | {
      readonly kind: 'longrope';
      /** By what each pair's frequency is divided, in texts up to the original context and in longer ones. */
      readonly shortFactors: readonly number[];
      readonly longFactors: readonly number[];
      readonly originalContext: number;
      /** Factor on cos and sin. */
      readonly attentionFactor: number;
    };

/** Shape and hyperparameters of a model, whatever its file calls them. */
export interface ModelConfig {
  /** Which family it belongs to: the name of one in families/. */
  readonly architecture: string;
  /** Transformer layers. */
  readonly layers: number;
  /** Width m of the residual stream. */
  readonly hiddenSize: number;
  /** Width f of the feed-forward half, or of one expert. */
  readonly intermediateSize: number;
  /** Query heads of a layer. */
  readonly queryHeads: number;
  /** Key and value heads of a layer. */
  readonly kvHeads: number;
  /** Channels of a head. */
  readonly headDim: number;
  /** Tokens of the vocabulary. */
  readonly vocabSize: number;
  /** Longest text that the model was trained for, in tokens. */
  readonly contextLength: number;
  /** Added under the square root in norms. */
  readonly normEpsilon: number;
  /** True if attention and the feed-forward half read the residual stream through a norm. */
  readonly preNorms: boolean;
  /** True if what each of them answers goes through a norm of its own before it is added to the stream. */
  readonly postNorms: boolean;
  /** True if the norms of the residual stream take the mean out first; else they are RMS norms. */
  readonly layerNorms: boolean;
  /** True if those norms have biases. */
  readonly normBias: boolean;
  /** True if the feed-forward half reads the stream that enters the layer, and not what attention made of it. */
  readonly parallel: boolean;
  /** True if both halves of a layer read one norm. */
  readonly oneNorm: boolean;
  /** True if the feed-forward half has a gate; else the activation is applied to `up`. */
  readonly gated: boolean;
  /**
   * What is applied to the gate of the feed-forward half: the second is the approximation of the third with a
   * hyperbolic tangent.
   */
  readonly activation: 'silu' | 'gelu-tanh' | 'gelu';
  /** The experts of every layer, instead of one feed-forward half; null: there are none. */
  readonly experts: Experts | null;
  /** Base of the rotary frequencies. */
  readonly ropeTheta: number;
  /** How those frequencies are stretched. */
  readonly ropeScaling: RopeScaling;
  /** Channels of each head that are rotated (headDim unless partial rotary). */
  readonly rotaryDim: number;
  /**
   * Pairs (2i, 2i+1) instead of (i, i + rotaryDim/2). GGUF llama checkpoints permute q and k for it; the loader says
   * what its tensors need.
   */
  readonly ropeInterleaved: boolean;
  /** Which rotary embedding each layer has: the one above, the one of `localRopeTheta`, or none. */
  readonly layerRope: readonly ('main' | 'local' | 'none')[];
  /** Base of the rotary frequencies of 'local' layers, which are never stretched; null: there are no such layers. */
  readonly localRopeTheta: number | null;
  /** How many tokens each layer looks back; null: all. */
  readonly slidingWindow: readonly (number | null)[];
  /** True if the projections to queries, keys and values have biases. */
  readonly qkvBias: boolean;
  /** True if the output projection of attention has a bias. */
  readonly outputBias: boolean;
  /** True if the feed-forward half has biases. */
  readonly mlpBias: boolean;
  /**
   * How queries and keys are normalised before they are rotated: not at all, each head by itself, or all heads
   * together.
   */
  readonly qkNorm: 'none' | 'head' | 'width';
  /** Factor on queries, beside the 1/√headDim of attention. */
  readonly queryScale: number;
  /** Factor on the rows of the embedding, where they enter the first layer. */
  readonly embeddingScale: number;
  /** Factor on the logits. The loader has multiplied the gains of the final norm by it, so nobody else applies it. */
  readonly logitScale: number;
  /**
   * Scores of attention lose a slope times the distance (ALiBi), a slope for each query head: the largest exponent of
   * two that a slope is one over, as files say it; null: they do not.
   */
  readonly alibiMax: number | null;
  /** Scores s of attention become scoreCap · tanh(s / scoreCap); null: they stay as they are. */
  readonly scoreCap: number | null;
  /** Logits likewise, in what the dense half answers, so nobody else applies it. */
  readonly logitCap: number | null;
  /** True if the output matrix is the embedding itself. */
  readonly tiedEmbeddings: boolean;
  /** Token that every text begins with; null: none. */
  readonly bosId: number | null;
  /** Tokens that end an answer. */
  readonly eosIds: readonly number[];
}

/**
 * Tensor names the engine asks for, whatever the file calls them (l = layer):
 *   embed [vocab, m] · head [vocab, m] (absent when tied) · norm [m]
 *   l.attnNorm [m] · l.q [H·d, m] · l.k [n·d, m] · l.v [n·d, m] · l.o [m, H·d] · l.q.bias … l.o.bias · l.attnPost [m]
 *   l.qNorm [d] · l.kNorm [d], or [H·d] and [n·d] where all heads are normalised together
 *   l.mlpNorm [m] · l.gate [f, m] · l.up [f, m] · l.down [m, f] (+ .bias) · l.mlpPost [m]
 * and where norms have biases, attnNorm.bias, mlpNorm.bias, norm.bias [m]
 * and where there are E experts, instead of these three, l.router [E, m] · l.gate.e [f, m] · l.up.e [f, m] · l.down.e
 * [m, f] of each expert e. Rows are output features, as in PyTorch.
 */
export interface Tensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** Type in the file: 'F32' | 'F16' | 'BF16' | 'Q8_0' | 'Q4_1' … */
  readonly storedType: string;
  /** Decodes the whole tensor, or rows [from, to) of its first axis, to float32. */
  readFloat32(fromRow?: number, toRow?: number): Float32Array;
  /**
   * Fills `target` with the bytes of whole rows as they are stored, from row `fromRow` on. Absent where the tensor is
   * no part of a file.
   */
  readStored?(fromRow: number, target: Uint8Array): void;
  /** Says that these bytes are not read again soon, so that memory need not hold them twice. */
  giveBack?(): void;
}

export interface WeightSource {
  has(name: string): boolean;
  /** Throws KvError 'bad-model' if it is missing or does not have the shape that the configuration says. */
  tensor(name: string): Tensor;
  close(): void;
}

/** A function that the model may ask for, described to it by the chat template. */
export interface ChatTool {
  /** How the model calls it. */
  readonly name: string;
  /** What it does, for the model. */
  readonly description?: string;
  /** Its arguments, as a JSON schema of an object. */
  readonly parameters?: Readonly<Record<string, unknown>>;
  /** The same as JSON; templates write numbers as they stand there (2.0). Default: as JavaScript has them (2). */
  readonly parametersText?: string;
  /**
   * False: where toolChoice asks for calls that fulfil their schemas and this one cannot be followed, its arguments may
   * be any object. Default: true, which refuses it by name.
   */
  readonly strict?: boolean;
}

/** A function that the model asks for. */
export interface ToolCall {
  /** Which call it is: the model's own id, or nine letters and digits that no other call of the chat has. */
  readonly id: string;
  /** The name of the tool; without toolChoice nobody has checked that there is one of this name. */
  readonly name: string;
  /** The arguments as the model gave them: without toolChoice nobody has checked them against the schema. */
  readonly arguments: Readonly<Record<string, unknown>>;
  /**
   * The same as JSON, where `arguments` cannot say all of it: JavaScript has one number for 2 and 2.0. Templates write
   * numbers as they stand there. Default: as JavaScript has them (2).
   */
  readonly argumentsText?: string;
}

/** One message of a conversation, for the chat template of the model. */
export interface ChatMessage {
  /** Who says it; `tool`: what a tool gave back. */
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  /** What is said. */
  readonly content: string;
  /** The tools that an assistant asks for. */
  readonly toolCalls?: readonly ToolCall[];
  /** The id of the call that a tool answers. */
  readonly toolCallId?: string;
  /** The name of a tool. */
  readonly name?: string;
}

export interface EncodeOptions {
  /** Recognise special tokens written in the text; default false. */
  readonly special?: boolean;
  /** Refuse a longer text as soon as it is certain to be one; default: no bound. */
  readonly tokensMax?: number;
}

export interface DecodeOptions {
  /** Write control tokens out; default false. */
  readonly special?: boolean;
  /** The ids continue a text, so that a space that they begin with is kept; default false. */
  readonly continues?: boolean;
}

/** How a conversation becomes a prompt. */
export interface RenderOptions {
  /** End with the prompt for the assistant; default true. */
  readonly addGenerationPrompt?: boolean;
  /** End behind the text of the last message, so that the answer goes on with it; default false. */
  readonly continueFinalMessage?: boolean;
  /** What the template is told of the time; default: now. */
  readonly date?: Date;
  /** Given to the template as `tools`. */
  readonly tools?: readonly ChatTool[] | undefined;
  /** Instead of the model's own. */
  readonly template?: string | undefined;
}

export interface ChatRenderOptions extends RenderOptions, Pick<EncodeOptions, 'tokensMax'> {
  /**
   * By message, the ids that it was written in. They stand for it where the template says what the message says;
   * elsewhere its text is read as any other.
   */
  readonly written?: readonly (readonly number[] | null)[];
  /** True if a rendered text says what this message with its calls does. Default: never. */
  readonly saysTheSame?: (rendered: string, message: ChatMessage) => boolean;
}

export interface StreamOptions {
  /** Control tokens that are written out; default: none. */
  readonly controls?: readonly string[];
}

/** Those that come with a model. */
export interface ChatTemplates {
  readonly plain: string | null;
  /** The one for conversations with tools, where a model has two. */
  readonly tools: string | null;
}

export interface Tokenizer {
  readonly vocabSize: number;
  readonly bosId: number | null;
  readonly eosIds: readonly number[];
  /** Adds no special tokens. Throws 'context-too-long' beyond `tokensMax`. */
  encode(text: string, options?: EncodeOptions): number[];
  /** The same, with rests; what is refused at once is thrown at once. */
  encoding(text: string, options?: EncodeOptions): Slices<number[]>;
  /** Exact inverse for text that came from encode. */
  decode(ids: readonly number[], options?: DecodeOptions): string;
  /** What a token adds to a text that it continues; control tokens add nothing. */
  bytes(id: number): Uint8Array;
  /** Incremental decoding that never splits a UTF-8 character. */
  stream(options?: StreamOptions): { push(id: number): string; end(): string };
  readonly chatTemplate: string | null;
  /** The one that renders a conversation with these tools: a model may have another for them. */
  templateFor(tools: readonly ChatTool[]): string | null;
  /** Token ids of a rendered chat. Throws 'bad-tokenizer' without a template. */
  chat(messages: readonly ChatMessage[], options?: ChatRenderOptions): number[];
  /** The same, rendered at once and made ids with rests. */
  chatting(messages: readonly ChatMessage[], options?: ChatRenderOptions): Slices<number[]>;
  /** The text of a rendered chat; throws what `chat` throws. */
  prompt(messages: readonly ChatMessage[], options?: ChatRenderOptions): string;
  /** True if a plain prompt starts with BOS. */
  readonly addBos: boolean;
}

export interface LoadedModel {
  readonly name: string;
  readonly path: string;
  /**
   * SHA-256 over names, shapes and bytes of all weights (hex), computed once per load from the digests of the files.
   */
  readonly digest: string;
  readonly fileBytes: number;
  readonly config: ModelConfig;
  readonly weights: WeightSource;
  readonly tokenizer: Tokenizer;
  /** For display: parameters, stored types, tokenizer kind. */
  readonly summary: Readonly<Record<string, unknown>>;
  /** What a person should know of its files: what they do not say, and what of them is left out. */
  readonly remarks: readonly string[];
}

/** How far a model is on its way into memory. */
export interface LoadProgress {
  /** 'download': bytes from a server; 'verify': bytes read for a digest; 'load': layers made ready. */
  readonly stage: 'download' | 'verify' | 'load';
  /** The file that is under way, without folders; null while layers are made ready. */
  readonly file: string | null;
  /** Bytes or layers that are done: of all files of a download, of the one file whose digest is taken. */
  readonly done: number;
  /** How many there are in all. */
  readonly total: number;
}

/** Input of attention, called once per layer and step by the driver of the dense half. */
export interface LayerInput {
  readonly layer: number;
  readonly tokens: number;
  /** Before RoPE, [T, H, d] / [T, n, d]; owned by the callee until it returns. */
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
  /** The residual stream that enters the layer, before its norm, [T, m]. */
  readonly x: Float32Array;
}

/**
 * What an adapter adds to what a matrix W answers to a row x: b·(a·x) + gains ⊙ (W·x). a: [rank, inputs], b: [outputs,
 * rank], gains: [outputs], or left out for none.
 */
export interface AdapterMatrix {
  readonly layer: number;
  readonly slot: DenseSlot;
  readonly rank: number;
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly gains?: Float32Array | undefined;
}

/** An adapter that a dense half holds, by its number there, and the factor on what it adds. */
export interface ScaledAdapter {
  readonly adapter: number;
  readonly scale: number;
  /** The first token of a text whose row it adds to; left out: it adds to all. */
  readonly since?: number;
}

/** Rows of a call to which an adapter adds. Where several add to the same rows, they do so in the order of a list. */
export interface AdaptedRows extends Omit<ScaledAdapter, 'since'> {
  readonly from: number;
  readonly rows: number;
}

/**
 * The dense half of a transformer: everything but attention and RoPE. Kept small, so that other backends can implement
 * it. Returned buffers may be reused by the next call of the same method.
 */
export interface DenseBackend {
  readonly name: string;
  /** How many weights are held in which type: e.g. { q8: 210, f32: 61 }. */
  readonly weightTypes: Readonly<Record<string, number>>;
  readonly bytes: number;
  /** True if a row gets the same bits alone as among others. */
  readonly isRowwise: boolean;
  /** Rows of the embedding table, [T, m]. */
  embed(tokenIds: Int32Array): Float32Array;
  /** Norm and q, k, v projection of layer 0 (bias and QK-norm included). `adapted`: what adapters add; default none. */
  first(x: Float32Array, tokens: number, adapted?: readonly AdaptedRows[]): Promise<LayerInput>;
  /**
   * Output projection, residual, MLP of `layer`, and norm and projections of layer + 1. attention: [T, H·d], x: the
   * residual that entered `layer`.
   */
  next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    adapted?: readonly AdaptedRows[],
  ): Promise<LayerInput>;
  /** The same after the last layer: the residual stream, [T, m]. */
  last(
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    adapted?: readonly AdaptedRows[],
  ): Promise<Float32Array>;
  /** Holds an adapter until it is dropped. Absent where nothing can be added between two matrices. → its number */
  addAdapter?(matrices: Iterable<AdapterMatrix>): number;
  dropAdapter?(adapter: number): void;
  /** What addAdapter of these takes. */
  adapterBytes?(matrices: readonly AdapterMatrix[]): number;
  /** Final norm, output matrix and cap of logits for some rows: [rows, vocab], in `out` where a backend can. */
  logits(x: Float32Array, rows: number, out?: Float32Array): Promise<Float32Array>;
  /** W_o of a layer times a sketch from the left: S [32, m] → [32, H·d]. */
  outputSketch(layer: number, sketch: Float32Array): Float32Array;
  /**
   * What activations are rounded to before a matrix, or the matrices of all experts in a slot: two planes, 16 bits, or
   * one, 8 bits. The output matrix is the slot 'q' of the layer behind the last. Absent where there is no such choice.
   */
  setPlanes?(layer: number, slot: DenseSlot, planes: 1 | 2): void;
  close(): Promise<void>;
}

export interface DenseOptions {
  /** 'auto': quantized weights as they are in the file, others in 8 bits; 'exact': float32 everywhere. */
  readonly precision: 'auto' | 'exact';
  readonly threads: number;
  /** Whether adapters will be added, for which there is no place in graphs. Default false. */
  readonly adapters?: boolean;
  /** Called before each piece of native work, while none is under way. */
  readonly safePoint?: () => void;
  /** Told how many of how many layers are ready. */
  readonly onLayer?: (done: number, total: number) => void;
}
