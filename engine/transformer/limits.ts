/**
 * How large the parts of a model may be. Each bound is a small multiple of what published models have, so that a file
 * made to waste time or memory is refused before any work is done on it.
 */
import { whole } from '../../native/index.ts';

const MIB = 2 ** 20;

/** How many threads a dense half may be asked for; kernels and caches take as many of them as they can use. */
export const DENSE_THREADS = whole(1, 1024);

/** Zeros of a GGUF file that belong to no tensor: padding takes kilobytes, and a hole costs its maker nothing. */
export const GAP_BYTES_MAX = 2 ** 24;

/** All weights in one file. The largest published dense model has 405 billion weights: 1.6 TB in float32. */
export const WEIGHT_BYTES_MAX = 2 ** 42;
/**
 * Tensors of a checkpoint. Published ones have up to 126 layers of nine, or with experts, of which each has three, up
 * to 94 layers of 393: 37,000.
 */
export const TENSORS_MAX = 2 ** 16;
/** Names, shapes and positions of that many tensors, at 500 bytes each. */
export const TENSOR_INDEX_BYTES_MAX = 32 * MIB;
/** config.json, generation_config.json: published ones have less than 100 KB, most 1 KB. */
export const CONFIG_BYTES_MAX = MIB;
/** tokenizer_config.json repeats the added tokens, of which some vocabularies have 6,400: 1.2 MB. */
export const TOKENIZER_CONFIG_BYTES_MAX = 4 * MIB;
/** tokenizer.json: an indented one with a vocabulary of 262,144 words has 33 MB. */
export const TOKENIZER_BYTES_MAX = 48 * MIB;
/** Words of a vocabulary; published ones have up to 262,144. */
export const VOCABULARY_MAX = 2 ** 19;
/** Merges of a vocabulary; published ones have up to 515,000. */
export const MERGES_MAX = 2 ** 20;
/** Added tokens; published vocabularies have up to 6,400. */
export const ADDED_TOKENS_MAX = 2 ** 16;
/** Metadata and tensor descriptions of a GGUF file: 15 MB with a vocabulary of 262,144 words. */
export const GGUF_HEADER_BYTES_MAX = 64 * MIB;
/** Metadata entries of a GGUF file; published ones have about 50. */
export const GGUF_ENTRIES_MAX = 4096;
/** One text among them. The longest published one is a chat template of 30,000 characters. */
export const GGUF_STRING_BYTES_MAX = MIB;
