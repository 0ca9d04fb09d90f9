/** The vocabulary that a GGUF file carries: byte-level BPE ('gpt2') or SentencePiece BPE ('llama'). */
import { KvError, plural, show } from '../../native/index.ts';
import { type AddedToken, isTurnMarker } from './added-tokens.ts';
import { checkTemplates } from './chat-template.ts';
import type { GgufValue } from './gguf.ts';
import { type PieceStyle, Pieces, pieceBytes } from './pieces.ts';
import { nameByMerges, preTokenizer } from './pre-tokenizers.ts';
import type { Slices } from './slices.ts';
import { VocabularyTokenizer } from './tokenizer.ts';
import { createBpe } from './tokenizer-bpe.ts';
import { splitStep } from './tokenizer-hf.ts';
import { encodeScored } from './tokenizer-spm.ts';

type Metadata = ReadonlyMap<string, GgufValue>;

/** tokenizer.ggml.token_type; 0, which some writers give, says nothing. */
const TYPE = { normal: 1, unknown: 2, control: 3, added: 4, unused: 5, byte: 6 } as const;
/** Words that end a turn or a text; many files declare only one of those that their model uses. */
const END_WORDS: readonly string[] = [
  '</s>',
  '<|endoftext|>',
  '<|end_of_text|>',
  '<|im_end|>',
  '<|eot_id|>',
  '<|eom_id|>',
  '<|end|>',
  '<end_of_turn>',
];

/**
 * vocabSize: rows of the model's embedding, at least as many as words. Throws KvError 'bad-tokenizer' or 'unsupported'.
 */
export function ggufTokenizer(metadata: Metadata, vocabSize: number): VocabularyTokenizer {
  const { words, types, scores, remarks } = readWords(metadata, vocabSize);
  const chatTemplates = {
    plain: readTemplate(metadata, 'tokenizer.chat_template'),
    tools: readTemplate(metadata, 'tokenizer.chat_template.tool_use'),
  };
  checkTemplates(chatTemplates);
  const bosId = tokenId(metadata, 'bos', words.length);
  const declared = ['eos', 'eot', 'eom']
    .map((name) => tokenId(metadata, name, words.length))
    .filter((id) => id !== null);
  const byName = END_WORDS.map((word) => words.indexOf(word)).filter((id) => id !== -1 && types[id] === TYPE.control);
  const eosIds = [...new Set([...declared, ...byName])];
  const isEnd = new Set([...eosIds, ...(bosId === null ? [] : [bosId])]);
  const added: AddedToken[] = [];
  for (const [id, text] of words.entries()) {
    const control = types[id] === TYPE.control || types[id] === TYPE.unknown;
    if (text === '' || !(control || types[id] === TYPE.added || (isEnd.has(id) && types[id] !== TYPE.byte))) continue;
    added.push({
      id,
      text,
      control: control || isEnd.has(id),
      guarded: control || isEnd.has(id) || isTurnMarker(text, chatTemplates),
    });
  }
  const isAdded = new Set(added.map((token) => token.id));
  const model = metadata.get('tokenizer.ggml.model');
  const given: Given = { metadata, words, types, scores, isAdded };
  const kind = model === 'gpt2' ? byteLevel(given) : model === 'llama' ? scored(given) : null;
  if (kind === null)
    throw new KvError('unsupported', `the tokenizer model '${show(model).slice(0, 80)}' is not served`, {
      values: { model, served: ['gpt2', 'llama'] },
    });
  const pieces = new Pieces(vocabSize);
  for (const [id, word] of words.entries()) {
    if (types[id] !== TYPE.unused) pieces.set(id, pieceBytes(word, isAdded.has(id) ? 'plain' : kind.style));
  }
  const addBos = flag(metadata, 'add_bos_token') ?? kind.addBos;
  return new VocabularyTokenizer({
    kind: kind.name,
    vocabSize,
    pieces,
    added,
    encodeText: kind.encodeText,
    verbatim: kind.style === 'byte-level',
    spacePrefix: kind.spacePrefix,
    bosId,
    eosIds,
    addBos: addBos && bosId !== null,
    chatTemplates,
    remarks: [...remarks, ...kind.remarks],
  });
}

function readTemplate(metadata: Metadata, key: string): string | null {
  const template = metadata.get(key) ?? null;
  if (template !== null && typeof template !== 'string') throw bad(`${key} is not a text`);
  return template;
}

interface Given {
  readonly metadata: Metadata;
  readonly words: readonly string[];
  readonly types: ArrayLike<number>;
  readonly scores: ArrayLike<number> | null;
  readonly isAdded: ReadonlySet<number>;
}

interface Kind {
  readonly name: string;
  readonly style: PieceStyle;
  readonly spacePrefix: boolean;
  /** Used if the file does not say. */
  readonly addBos: boolean;
  /** What the file should have said. */
  readonly remarks: readonly string[];
  encodeText(text: string, section: number, tokensMax: number): Slices<number[]>;
}

/** Words that text may become; of two with the same spelling the first counts. */
function ordinary({ words, types, isAdded }: Given): Map<string, number> {
  const ids = new Map<string, number>();
  for (const [id, word] of words.entries()) {
    if (word !== '' && types[id] === TYPE.normal && !isAdded.has(id) && !ids.has(word)) ids.set(word, id);
  }
  return ids;
}

function byteLevel(given: Given): Kind {
  const merges = given.metadata.get('tokenizer.ggml.merges');
  if (!isTexts(merges)) throw bad('tokenizer.ggml.merges is missing');
  // A merge is two words around a space; the space letter itself is never written as a space.
  const pairs = merges.map((merge, index) => {
    const cut = merge.indexOf(' ', 1);
    if (cut < 1 || cut === merge.length - 1) throw bad(`merge ${index} is not a pair of words`, { index });
    return [merge.slice(0, cut), merge.slice(cut + 1)];
  });
  const { pre, remarks } = preOf(given.metadata, merges);
  const { patterns, ignoreMerges, addBos } = preTokenizer(pre);
  const vocab: Record<string, number> = Object.create(null);
  for (const [word, id] of ordinary(given)) vocab[word] = id;
  const byteStep = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
  const bpe = createBpe(
    {
      normalizers: [],
      preTokenizers: [...patterns.map(splitStep), byteStep],
      model: { type: 'BPE', vocab, merges: pairs, ignore_merges: ignoreMerges === true },
    },
    given.isAdded,
  );
  return {
    name: `byte-level BPE (${pre})`,
    style: 'byte-level',
    spacePrefix: false,
    addBos: addBos === true,
    remarks,
    encodeText: bpe.encodeText,
  };
}

/** Files of others often say 'default', or nothing, where the vocabulary is one that has a name. */
function preOf(metadata: Metadata, merges: readonly string[]): { pre: string; remarks: string[] } {
  const said = metadata.get('tokenizer.ggml.pre') ?? null;
  if (said !== null && said !== 'default') return { pre: show(said), remarks: [] };
  const says = said === null ? 'does not name its pre-tokenizer (tokenizer.ggml.pre)' : "says 'default'";
  const known = nameByMerges(merges);
  if (known !== null)
    return { pre: known, remarks: [`the file ${says}; by its merges it is '${known}', which cuts its text`] };
  if (said !== null) return { pre: 'default', remarks: [] };
  const remark = `the file ${says}, and nobody knows its merges: text is cut as 'default' says, which may be other tokens than the model was trained on; take a file that was converted after May 2024, or the model's folder`;
  return { pre: 'default', remarks: [remark] };
}

function scored(given: Given): Kind {
  const { metadata, words, types, scores } = given;
  if (scores === null) throw bad('tokenizer.ggml.scores is missing');
  const byteIds = new Int32Array(256).fill(-1);
  for (const [id, word] of words.entries()) {
    const byte = types[id] === TYPE.byte ? /^<0x([0-9A-Fa-f]{2})>$/.exec(word) : null;
    if (byte !== null) byteIds[Number.parseInt(byte[1]!, 16)] = id;
  }
  const spacePrefix = flag(metadata, 'add_space_prefix') ?? true;
  const unknownId = tokenId(metadata, 'unknown', words.length) ?? 0;
  const scoredWords = { idOf: ordinary(given), scoreOf: (id: number) => scores[id]!, byteIds, unknownId, spacePrefix };
  return {
    name: 'SentencePiece BPE',
    style: 'metaspace',
    spacePrefix,
    addBos: true,
    remarks: [],
    encodeText: (text) => encodeScored(text, scoredWords),
  };
}

interface Words {
  readonly words: readonly string[];
  readonly types: ArrayLike<number>;
  readonly scores: ArrayLike<number> | null;
  readonly remarks: readonly string[];
}

/** Words that the embedding has no row for, which files with pictures have, are left out if they are no text. */
function readWords(metadata: Metadata, vocabSize: number): Words {
  const words = metadata.get('tokenizer.ggml.tokens');
  if (!isTexts(words) || words.length === 0) throw bad('tokenizer.ggml.tokens is missing');
  const types =
    numbers(metadata, 'token_type', words.length, (type) => Number.isInteger(type) && type >= 0 && type <= TYPE.byte) ??
    new Uint8Array(words.length).fill(TYPE.normal);
  const scores = numbers(metadata, 'scores', words.length, (score) => !Number.isNaN(score));
  const beyond = words.slice(vocabSize);
  if (beyond.length === 0) return { words, types, scores, remarks: [] };
  if (beyond.some((_, at) => types[vocabSize + at] === TYPE.normal || types[vocabSize + at] === TYPE.byte))
    throw bad(`${words.length} words for an embedding of ${vocabSize}`, { words: words.length, vocabSize });
  const remark = `${plural(beyond.length, 'token')} without a row of the embedding are left out (${beyond[0]} …)`;
  return { words: words.slice(0, vocabSize), types, scores, remarks: [remark] };
}

/** A list of numbers of any type, one for each word; null where there is none. */
function numbers(
  metadata: Metadata,
  name: string,
  wordCount: number,
  isSound: (value: number) => boolean,
): ArrayLike<number> | null {
  const key = `tokenizer.ggml.${name}`;
  const values = metadata.get(key) ?? null;
  if (values === null) return null;
  if (!isNumbers(values)) throw bad(`${key} is no list of numbers`, { key });
  if (values.length !== wordCount)
    throw bad(`${key} has ${values.length} values for ${wordCount} words`, { key, length: values.length, wordCount });
  const at = values.findIndex((value) => !isSound(value));
  if (at !== -1) throw bad(`${key} is ${values[at]} for word ${at}`, { key, at, value: values[at] });
  return values;
}

function flag(metadata: Metadata, name: string): boolean | null {
  const value = metadata.get(`tokenizer.ggml.${name}`) ?? null;
  if (value !== null && typeof value !== 'boolean')
    throw bad(`tokenizer.ggml.${name} is ${show(value).slice(0, 40)}, neither true nor false`);
  return value;
}

function tokenId(metadata: Metadata, name: string, wordCount: number): number | null {
  const id = metadata.get(`tokenizer.ggml.${name}_token_id`) ?? null;
  if (id === null) return null;
  if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id >= wordCount)
    throw bad(`tokenizer.ggml.${name}_token_id is ${show(id).slice(0, 40)}`, { id, words: wordCount });
  return id;
}

const isTexts = (value: GgufValue | undefined): value is readonly string[] => Array.isArray(value);
const isNumbers = (
  value: GgufValue | undefined,
): value is Exclude<GgufValue, readonly string[] | string | number | boolean> => ArrayBuffer.isView(value);

function bad(what: string, values: Record<string, unknown> = {}): KvError {
  return new KvError('bad-tokenizer', what, { values });
}
