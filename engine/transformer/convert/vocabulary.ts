/**
 * tokenizer.json → the vocabulary of a GGUF file, which tokenizer-gguf.ts reads. A vocabulary that cuts or merges text
 * in a way that GGUF has no name for is refused, naming what does.
 */
import { asRecord, KvError, show } from '../../../native/index.ts';
import { type GgufEntry, text, u32 } from '../gguf-entries.ts';
import { nameByPatterns } from '../pre-tokenizers.ts';
import { exactPreTokenizer } from '../tokenizer-hf.ts';
import { flatSteps, type Step } from '../tokenizer-steps.ts';
import type { LoadedModel, Tokenizer } from '../types.ts';

/** tokenizer.ggml.token_type */
const TYPE = { normal: 1, unknown: 2, control: 3, added: 4, unused: 5, byte: 6 } as const;
const BYTE = /^<0x[0-9A-F]{2}>$/;
const SPACE = '\u2581';

interface Written {
  readonly keys: ReadonlyMap<string, GgufEntry>;
  /** What a person should know of what the file does not say. */
  readonly remarks: readonly string[];
}

/** json: what tokenizer.json says, which has been read as a tokenizer before. */
export function vocabularyKeys(
  json: unknown,
  { config, tokenizer }: Pick<LoadedModel, 'config' | 'tokenizer'>,
): Written {
  const whole = asRecord(json) ?? {};
  const model = asRecord(whole['model']) ?? {};
  const vocab = Object.entries((asRecord(model['vocab']) ?? {}) as Record<string, number>);
  const steps = flatSteps(whole['normalizer'], 'normalizers');
  const isByteLevel = flatSteps(whole['decoder'], 'decoders').some(({ type }) => type === 'ByteLevel');
  const words = Array.from({ length: config.vocabSize }, (_, id) => `[PAD${id}]`);
  const types = new Array<number>(config.vocabSize).fill(TYPE.unused);
  for (const [word, id] of vocab) {
    words[id] = word;
    types[id] = !isByteLevel && BYTE.test(word) ? TYPE.byte : TYPE.normal;
  }
  const remarks: string[] = [];
  for (const entry of Array.isArray(whole['added_tokens']) ? whole['added_tokens'] : []) {
    const { id, content, special, lstrip, rstrip } = asRecord(entry) ?? {};
    if (typeof id !== 'number' || typeof content !== 'string' || id >= config.vocabSize) continue;
    words[id] = content;
    types[id] = content === model['unk_token'] ? TYPE.unknown : special === true ? TYPE.control : TYPE.added;
    if (lstrip === true || rstrip === true)
      remarks.push(`the token ${content} no longer swallows the white space beside it, which GGUF cannot say`);
  }
  const kind = isByteLevel
    ? byteLevel(whole, model, steps, remarks)
    : sentencePieces(whole, model, steps, new Map(vocab), words, types);
  const keys = new Map<string, GgufEntry>([
    ...kind,
    ['tokens', { type: 'texts', value: words }],
    ['token_type', { type: 'i32s', value: types }],
    ...endKeys(tokenizer),
  ]);
  const unknown = words.findIndex((word, id) => word === model['unk_token'] && types[id] !== TYPE.unused);
  if (unknown >= 0) keys.set('unknown_token_id', u32(unknown));
  const all = [...keys].map(([key, entry]): [string, GgufEntry] => [`tokenizer.ggml.${key}`, entry]);
  return { keys: new Map([...all, ...templates(tokenizer)]), remarks };
}

/** Where a text begins and ends. A file has three names for ends. */
function endKeys({ bosId, eosIds, addBos }: Tokenizer): [string, GgufEntry][] {
  const keys: [string, GgufEntry][] = [['add_bos_token', { type: 'bool', value: addBos }]];
  if (bosId !== null) keys.push(['bos_token_id', u32(bosId)]);
  for (const [i, name] of ['eos', 'eot', 'eom'].entries()) {
    const id = eosIds[i];
    if (id !== undefined) keys.push([`${name}_token_id`, u32(id)]);
  }
  return keys;
}

function templates(tokenizer: Tokenizer): [string, GgufEntry][] {
  const { chatTemplate } = tokenizer;
  const withTools = tokenizer.templateFor([{ name: 'any' }]);
  return [
    ...(chatTemplate === null ? [] : [['tokenizer.chat_template', text(chatTemplate)] as [string, GgufEntry]]),
    ...(withTools === null || withTools === chatTemplate
      ? []
      : [['tokenizer.chat_template.tool_use', text(withTools)] as [string, GgufEntry]]),
  ];
}

type Json = Readonly<Record<string, unknown>>;

function byteLevel(whole: Json, model: Json, steps: readonly Step[], remarks: string[]): [string, GgufEntry][] {
  for (const step of steps) {
    if (step['type'] !== 'NFC') throw refused('normalizer', step);
    remarks.push('text is no longer brought into the normal form NFC first, which GGUF cannot say');
  }
  const patterns: string[] = [];
  for (const step of exactPreTokenizer(whole['pre_tokenizer'])) {
    const pattern = asRecord(step['pattern'])?.['Regex'];
    const isSplit = step['type'] === 'Split' && step['behavior'] === 'Isolated' && step['invert'] !== true;
    if (isSplit && typeof pattern === 'string') patterns.push(pattern);
    else if (step['type'] !== 'ByteLevel' || step['add_prefix_space'] === true) throw refused('pre_tokenizer', step);
  }
  const pre = nameByPatterns(patterns, model['ignore_merges'] === true);
  if (pre === null) throw refused('pre_tokenizer', patterns);
  return [
    ['model', text('gpt2')],
    ['pre', text(pre)],
    ['merges', { type: 'texts', value: mergesOf(model).map(([left, right]) => `${left} ${right}`) }],
  ];
}

const mergesOf = (model: Json): (readonly [string, string])[] =>
  (model['merges'] as (string | [string, string])[]).map((merge) => {
    if (typeof merge !== 'string') return merge;
    const cut = merge.indexOf(' ', 1);
    return [merge.slice(0, cut), merge.slice(cut + 1)];
  });

/** A file has a score for each word instead of merges: the later a word is made, the lower. */
function sentencePieces(
  whole: Json,
  model: Json,
  steps: readonly Step[],
  ids: ReadonlyMap<string, number>,
  words: readonly string[],
  types: readonly number[],
): [string, GgufEntry][] {
  let spacePrefix = false;
  for (const step of [...steps, ...flatSteps(whole['pre_tokenizer'], 'pretokenizers')]) {
    const isPrepend = step['type'] === 'Prepend' && step['prepend'] === SPACE;
    const isReplace =
      step['type'] === 'Replace' && asRecord(step['pattern'])?.['String'] === ' ' && step['content'] === SPACE;
    const isWhole = step['type'] === 'Metaspace' && step['split'] === false;
    if (!isPrepend && !isReplace && !isWhole) throw refused('normalizer or pre_tokenizer', step);
    if (isPrepend || (isWhole && step['prepend_scheme'] !== 'never')) spacePrefix = true;
  }
  const merges = mergesOf(model);
  const ranks = new Map<string, number>();
  for (const [left, right] of merges) if (!ranks.has(left + right)) ranks.set(left + right, ranks.size);
  checkMerges(merges, ranks, ids);
  const scores = words.map((word, id) => (types[id] === TYPE.normal ? -(ranks.get(word) ?? ranks.size) : 0));
  return [
    ['model', text('llama')],
    ['scores', { type: 'f32s', value: scores }],
    ['add_space_prefix', { type: 'bool', value: spacePrefix }],
  ];
}

/**
 * Scores of words say as much as merges only if the merges of each word follow one another, and there is one for each
 * two words that it is made of.
 */
function checkMerges(
  merges: readonly (readonly [string, string])[],
  ranks: ReadonlyMap<string, number>,
  ids: ReadonlyMap<string, number>,
): void {
  const counts = new Map<string, number>();
  let [last, rank] = ['', -1];
  for (const [left, right] of merges) {
    const word = left + right;
    if (word !== last && ranks.get(word)! < rank) throw refused('model.merges, which come back to a word,', word);
    [last, rank] = [word, ranks.get(word)!];
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  for (const [word] of ids) {
    const letters = [...word];
    let cuts = 0;
    for (let at = 1; at < letters.length; at++)
      if (ids.has(letters.slice(0, at).join('')) && ids.has(letters.slice(at).join(''))) cuts++;
    if (cuts > (counts.get(word) ?? 0) && !BYTE.test(word))
      throw refused('model.merges, of which some are missing for a word,', word);
  }
}

function refused(what: string, value: unknown): KvError {
  const shown = (JSON.stringify(value) ?? show(value)).slice(0, 200);
  return new KvError('unsupported', `tokenizer.json: GGUF has no name for ${what} ${shown}`, {
    values: { key: what, value },
  });
}
