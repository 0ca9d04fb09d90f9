/**
 * How large the parts of a model may be. Each bound is a small multiple of what published models have, so that a file which
 * was made to cost time or memory is refused before any work is done on it.
 */

const MIB = 2 ** 20;

/** All weights in one file. The largest dense model published has 405 thousand million numbers: 1.6 TB in float32. */
export const WEIGHT_BYTES_MAX = 2 ** 42;
/** Tensors of a checkpoint. 126 layers of nine tensors are published; a configuration may ask for 1,024 layers of up to 14. */
export const TENSORS_MAX = 16_384;
/** Names, shapes and places of so many tensors, 500 bytes each. */
export const TENSOR_INDEX_BYTES_MAX = 8 * MIB;
/** config.json, generation_config.json: published ones have less than 100 KB, most 1 KB. */
export const CONFIG_BYTES_MAX = MIB;
/** tokenizer_config.json repeats the added tokens, of which some vocabularies have 6,400: 1.2 MB. */
export const TOKENIZER_CONFIG_BYTES_MAX = 4 * MIB;
/** tokenizer.json of a vocabulary of 262,144 words has 33 MB, indented. */
export const TOKENIZER_BYTES_MAX = 48 * MIB;
/** Words of a vocabulary; 262,144 are published. */
export const VOCABULARY_MAX = 2 ** 19;
/** Merges of a vocabulary; 515,000 are published. */
export const MERGES_MAX = 2 ** 20;
/** Added tokens; 6,400 are published. */
export const ADDED_TOKENS_MAX = 2 ** 16;
/** Metadata of a GGUF file with its descriptions of tensors: 15 MB with a vocabulary of 262,144. */
export const GGUF_HEADER_BYTES_MAX = 64 * MIB;
/** Metadata entries of a GGUF file; published ones have about 50. */
export const GGUF_ENTRIES_MAX = 4096;
/** A text among them: a chat template of 30,000 characters is the longest. */
export const GGUF_STRING_BYTES_MAX = MIB;
