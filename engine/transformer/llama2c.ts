/**
 * Checkpoints of the llama2.c project, version 0, for small test models: seven i32 (width, hidden width, layers, query
 * heads, key heads, ± vocabulary, context), then float32 tensors in a fixed order. A negative vocabulary announces an
 * output matrix of its own. The vocabulary is a file beside it: tok512.bin for 512 words, or tokenizer.bin.
 * Rotary pairs are (2i, 2i + 1), theta 10000, epsilon 1e-5.
 */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { KvError, show } from '../../native/index.ts';
import { FileBytes } from './bytes.ts';
import { checkConfig, plainFeatures } from './config.ts';
import { ELEMENT_TYPES } from './dequant.ts';
import { Pieces, pieceBytes } from './pieces.ts';
import { type Checkpoint, elementCount, StoredTensor } from './stored-tensor.ts';
import { VocabularyTokenizer } from './tokenizer.ts';
import { encodeScored } from './tokenizer-spm.ts';
import type { ModelConfig } from './types.ts';

const HEADER_BYTES = 28;
const [BOS, EOS, FIRST_BYTE, FIRST_WORD] = [1, 2, 3, 259];

/** Throws KvError 'bad-file' if sizes do not add up to the file's, 'bad-model' if they are out of range. */
export function openLlama2c(path: string): { checkpoint: Checkpoint; config: ModelConfig } {
  const file = FileBytes.open(path);
  try {
    const view = new DataView(file.read(0, HEADER_BYTES).buffer);
    const [width, hidden, layers, queryHeads, kvHeads, vocab, context] = Array.from({ length: 7 }, (_, i) =>
      view.getInt32(4 * i, true),
    ) as [number, number, number, number, number, number, number];
    const headDim = width / queryHeads;
    const config = checkHeader(path, () =>
      checkConfig(
        {
        ...plainFeatures(layers), architecture: 'llama', layers, hiddenSize: width, intermediateSize: hidden, queryHeads, kvHeads, headDim,
        vocabSize: Math.abs(vocab), contextLength: context, normEpsilon: 1e-5, ropeTheta: 10000, ropeScaling: { kind: 'none' },
        rotaryDim: headDim, ropeInterleaved: true, tiedEmbeddings: vocab > 0, bosId: BOS, eosIds: [BOS, EOS],
      }, // biome-ignore format: a table
        path,
      ),
    );
    return { checkpoint: { tensors: placeTensors(file, config), files: [file], close: () => file.close() }, config };
  } catch (error) {
    file.close();
    throw error;
  }
}

/** Another kind of .bin file also has seven numbers here; listing what is wrong with each would help nobody. */
function checkHeader(path: string, check: () => ModelConfig): ModelConfig {
  try {
    return check();
  } catch (cause) {
    if (!(cause instanceof KvError)) throw cause;
    const problems = cause.values['problems'];
    const first = Array.isArray(problems) ? show(problems[0]) : cause.message;
    throw new KvError('bad-model', `${path} is not a llama2.c model: its first bytes are not the sizes of one`, {
      values: { path, first },
      hint: 'a .bin file is read as a llama2.c checkpoint; of a vector index inspect the folder',
      cause,
    });
  }
}

function placeTensors(file: FileBytes, config: ModelConfig): Map<string, StoredTensor> {
  const {
    layers,
    hiddenSize: m,
    intermediateSize: f,
    queryHeads,
    kvHeads,
    headDim: d,
    vocabSize,
    contextLength,
  } = config;
  const tensors = new Map<string, StoredTensor>();
  let offset = HEADER_BYTES;
  const place = (name: string, shape: readonly number[]): void => {
    tensors.set(name, new StoredTensor(name, shape, ELEMENT_TYPES.get('F32')!, file, offset));
    offset += 4 * elementCount(shape, name);
  };
  const perLayer = (part: string, shape: readonly number[]): void => {
    for (let layer = 0; layer < layers; layer++) place(`${layer}.${part}`, shape);
  };
  place('embed', [vocabSize, m]);
  perLayer('attnNorm', [m]);
  perLayer('q', [queryHeads * d, m]);
  perLayer('k', [kvHeads * d, m]);
  perLayer('v', [kvHeads * d, m]);
  perLayer('o', [m, queryHeads * d]);
  perLayer('mlpNorm', [m]);
  perLayer('gate', [f, m]);
  perLayer('down', [m, f]);
  perLayer('up', [f, m]);
  place('norm', [m]);
  offset += 4 * contextLength * d; // tables of cos and sin, which we compute
  if (!config.tiedEmbeddings) place('head', [vocabSize, m]);
  if (offset !== file.size) {
    throw new KvError('bad-file', `${file.path} has ${file.size} bytes, its header needs ${offset}`, {
      values: { path: file.path, bytes: file.size, needed: offset },
    });
  }
  return tensors;
}

/** The vocabulary beside a checkpoint: i32 length of the longest word, then per word f32 score, i32 length, bytes. */
export function readLlama2cTokenizer(checkpointPath: string, { vocabSize }: ModelConfig): VocabularyTokenizer {
  const dir = dirname(checkpointPath);
  const path = [`tok${vocabSize}.bin`, 'tokenizer.bin'].map((name) => join(dir, name)).find(existsSync);
  if (path === undefined)
    throw new KvError('not-found', `no tok${vocabSize}.bin or tokenizer.bin beside ${checkpointPath}`, {
      values: { dir },
    });
  const file = FileBytes.open(path);
  try {
    const pieces = new Pieces(vocabSize);
    const idOf = new Map<string, number>();
    const scores = new Float32Array(vocabSize);
    for (let id = 0, at = 4; id < vocabSize; id++) {
      const head = new DataView(file.read(at, 8).buffer);
      const length = head.getInt32(4, true);
      const word = new TextDecoder().decode(file.read(at + 8, length)).replaceAll(' ', '\u2581');
      scores[id] = head.getFloat32(0, true);
      at += 8 + length;
      pieces.set(
        id,
        id < FIRST_BYTE
          ? new Uint8Array(0)
          : id < FIRST_WORD
            ? Uint8Array.of(id - FIRST_BYTE)
            : pieceBytes(word, 'metaspace'),
      );
      if (id >= FIRST_WORD && !idOf.has(word)) idOf.set(word, id);
    }
    const byteIds = Int32Array.from({ length: 256 }, (_, byte) => byte + FIRST_BYTE);
    const words = { idOf, scoreOf: (id: number) => scores[id]!, byteIds, unknownId: 0, spacePrefix: true };
    const controls = ['<unk>', '<s>', '</s>'].map((text, id) => ({ id, text, control: true, guarded: true }));
    return new VocabularyTokenizer({
      kind: 'SentencePiece BPE', vocabSize, pieces, added: controls, encodeText: (text) => encodeScored(text, words),
      spacePrefix: true, bosId: BOS, eosIds: [BOS, EOS], addBos: true, chatTemplates: { plain: null, tools: null },
    }); // biome-ignore format: a table
  } finally {
    file.close();
  }
}
