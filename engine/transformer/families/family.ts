/**
 * What a family of models is: the names it has in files, and how its layers differ from Llama's. A file of this folder
 * describes one.
 */

import type { GgufEntry } from '../gguf-entries.ts';
import type { GgufKeys } from '../gguf-keys.ts';
import type { HfConfig, RopeKeys } from '../hf-keys.ts';
import type { ModelConfig } from '../types.ts';

/**
 * Name of a layer's tensor in a file → the part that it is (types.ts), or several parts whose rows follow one another
 * (names.ts). A `*` between two dots stands for the number of an expert.
 */
export type PartNames = Readonly<Record<string, string>>;

/** What a class of `transformers` assumes for keys that a config.json leaves out, where it is not what Llama's does. */
export interface HfDefaults {
  readonly ropeTheta?: number;
  readonly normEpsilon?: number;
  readonly tiedEmbeddings?: boolean;
  readonly headDim?: number;
  readonly activation?: string;
}

export interface Family {
  /** What reports and logs call it. */
  readonly name: string;
  /** What it is called in documents. */
  readonly title: string;
  /** Its `model_type` in config.json. */
  readonly modelTypes: readonly string[];
  /** Its `general.architecture` in GGUF files; empty: there, its models are files of another family. */
  readonly architectures: readonly string[];
  readonly defaults?: HfDefaults;
  /** True if GGUF files hold q and k with rows permuted for rotary pairs (2i, 2i + 1). */
  readonly ggufInterleaved?: boolean;
  /** The activation of its GGUF files, which do not say it. */
  readonly ggufActivation?: ModelConfig['activation'];
  /** The epsilon of norms in GGUF files that do not say it. */
  readonly ggufNormEpsilon?: number;
  /** Keys of its GGUF files that are refused in those of other families (config-gguf.ts). */
  readonly ggufReads?: readonly string[];
  /** Names of tensors that other families do not have, or that stand for another part there. */
  readonly hfParts?: PartNames;
  readonly ggufParts?: PartNames;
  /** The same of files of which the names follow from the configuration. */
  ggufPartsOf?(config: ModelConfig): PartNames;
  /** Names of tensors that belong to no layer. */
  readonly hfTop?: PartNames;
  /** What the names of a Hugging Face checkpoint may begin with, instead of `model.`. */
  readonly hfPrefix?: RegExp;
  /** Tensors of a Hugging Face checkpoint that text does not need. */
  readonly hfIgnored?: RegExp;
  /** What a Hugging Face checkpoint leaves out of the gains of its norms. */
  readonly hfGainOffset?: number;
  /** The keys of the text model, of a config.json that holds those of others as well. */
  hfText?(given: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>>;
  /** The rope keys of 'main' layers, where they are not under the usual name. */
  hfRope?(given: HfConfig): RopeKeys | null;
  /**
   * What differs from `base`, which is read from the keys that all families share. Throws 'unsupported' and
   * 'bad-model', naming the key.
   */
  hf(given: HfConfig, base: ModelConfig): Partial<ModelConfig>;
  gguf(keys: GgufKeys, base: ModelConfig, hasTensor: (name: string) => boolean): Partial<ModelConfig>;
  /** What its GGUF files say beside the keys that all families have, for `gguf` to read. */
  ggufKeys?(config: ModelConfig): Readonly<Record<string, GgufEntry>>;
}
