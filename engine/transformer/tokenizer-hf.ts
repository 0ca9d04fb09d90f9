/**
 * tokenizer.json and tokenizer_config.json of a Hugging Face folder. BPE is supported, byte-level or with U+2581 for
 * spaces and byte fallback, as the supported architectures use it. The package does the merging; added tokens and
 * decoding are ours.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { asRecord, KvError, readJson, readRegular, show } from '../../native/index.ts';
import { type AddedToken, isTurnMarker } from './added-tokens.ts';
import { checkTemplates, TEMPLATE_CHARACTERS_MAX } from './chat-template.ts';
import { ADDED_TOKENS_MAX, MERGES_MAX, TOKENIZER_BYTES_MAX, TOKENIZER_CONFIG_BYTES_MAX } from './limits.ts';
import { type PieceStyle, Pieces, pieceBytes } from './pieces.ts';
import { GPT2_PATTERN } from './pre-tokenizers.ts';
import { VocabularyTokenizer } from './tokenizer.ts';
import { createBpe } from './tokenizer-bpe.ts';
import { flatSteps, type Step } from './tokenizer-steps.ts';
import type { ChatTemplates, ModelConfig } from './types.ts';

type Json = Readonly<Record<string, unknown>>;
type TokenIds = Pick<ModelConfig, 'vocabSize' | 'bosId' | 'eosIds'>;

/** Throws KvError 'not-found', 'bad-tokenizer' (broken), 'unsupported' (of another kind). */
export function readHfTokenizer(dir: string, config: TokenIds): VocabularyTokenizer {
  const path = join(dir, 'tokenizer.json');
  if (!existsSync(path)) {
    const other = existsSync(join(dir, 'tokenizer.model'));
    throw new KvError(other ? 'unsupported' : 'not-found', `${dir} has no tokenizer.json`, {
      values: { dir },
      hint: other
        ? 'convert tokenizer.model, or use the model as GGUF, which carries its vocabulary'
        : 'put the tokenizer beside the weights',
    });
  }
  const settingsPath = join(dir, 'tokenizer_config.json');
  const settings = existsSync(settingsPath)
    ? record(readJson(settingsPath, { code: 'bad-tokenizer', bytesMax: TOKENIZER_CONFIG_BYTES_MAX }), settingsPath)
    : {};
  const json = readJson(path, { code: 'bad-tokenizer', bytesMax: TOKENIZER_BYTES_MAX, anyKey: true });
  return hfTokenizer(json, settings, config, readTemplates(dir, settings));
}

/**
 * chat_template.jinja and additional_chat_templates/tool_use.jinja, or else the key in tokenizer_config.json: a text,
 * or a list of which 'default' and 'tool_use' are taken.
 */
function readTemplates(dir: string, settings: Json): ChatTemplates {
  const read = (...path: string[]): string | null => {
    const file = join(dir, ...path);
    if (!existsSync(file)) return null;
    return readRegular(file, { bytesMax: 4 * TEMPLATE_CHARACTERS_MAX, code: 'bad-tokenizer' }).toString('utf8');
  };
  const file = read('chat_template.jinja');
  const { plain, tools } = file === null ? templatesIn(settings.chat_template ?? null) : { plain: file, tools: null };
  return { plain, tools: read('additional_chat_templates', 'tool_use.jinja') ?? tools };
}

function templatesIn(given: unknown): ChatTemplates {
  if (!Array.isArray(given)) {
    if (given !== null && typeof given !== 'string') throw bad('chat_template is neither a text nor a list');
    return { plain: given, tools: null };
  }
  const entries = given.map((entry) => record(entry, 'an entry of chat_template'));
  const named = (name: string): string | null => {
    const template = entries.find((entry) => entry.name === name)?.template;
    return typeof template === 'string' ? template : null;
  };
  return { plain: named('default'), tools: named('tool_use') };
}

/** json: a parsed tokenizer.json; settings: a parsed tokenizer_config.json. */
export function hfTokenizer(
  json: unknown,
  settings: Json,
  config: TokenIds,
  chatTemplates: ChatTemplates = { plain: null, tools: null },
): VocabularyTokenizer {
  const tokenizer = record(json, 'tokenizer.json');
  const model = record(tokenizer.model, 'model');
  const kind = model.type ?? 'BPE';
  if (kind !== 'BPE') throw unsupported('model.type', kind);
  if (typeof model.dropout === 'number' && model.dropout > 0) throw unsupported('model.dropout', model.dropout);
  checkTemplates(chatTemplates);
  const { vocabSize, bosId } = config;
  const words = readVocabulary(model.vocab, vocabSize);
  checkMerges(model.merges);
  const decoding = readDecoder(tokenizer.decoder ?? null);
  const eosIds = endIds(config.eosIds, settings, words, tokenizer.added_tokens);
  const added = readAdded(tokenizer.added_tokens ?? [], { vocabSize, bosId, eosIds, chatTemplates });
  const pieces = new Pieces(vocabSize);
  for (const [word, id] of words) pieces.set(id, pieceBytes(word, decoding.style));
  for (const token of added) pieces.set(token.id, pieceBytes(token.text, 'plain'));
  const normalizers = flatSteps(tokenizer.normalizer, 'normalizers');
  const bpe = createBpe(
    {
      normalizers,
      preTokenizers: exactPreTokenizer(tokenizer.pre_tokenizer),
      model: { ...model, type: 'BPE' },
    },
    new Set(added.filter((token) => token.guarded).map((token) => token.id)),
  );
  return new VocabularyTokenizer({
    kind: decoding.style === 'byte-level' ? 'byte-level BPE' : 'BPE with byte fallback',
    vocabSize,
    pieces,
    added,
    encodeText: bpe.encodeText,
    ...normalForm(normalizers),
    verbatim:
      decoding.style === 'byte-level' &&
      normalizers.length === 0 &&
      !added.some((token) => token.trimLeft || token.trimRight),
    spacePrefix: decoding.spacePrefix,
    bosId,
    eosIds,
    addBos:
      bosId !== null &&
      addsBos(tokenizer.post_processor ?? null, settings, added.find((token) => token.id === bosId)?.text),
    chatTemplates,
  });
}

/** Word → id. Object.entries keeps words like '__proto__' ordinary words. */
function readVocabulary(vocab: unknown, vocabSize: number): [string, number][] {
  const words = Object.entries(record(vocab, 'model.vocab')) as [string, number][];
  const seen = new Uint8Array(vocabSize);
  for (const [word, id] of words) {
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize || seen[id] === 1) {
      throw bad(
        `the word ${JSON.stringify(word).slice(0, 80)} has the id ${show(id).slice(0, 40)}, which is taken or outside the model's ${vocabSize}`,
        { word, id, vocabSize },
      );
    }
    seen[id] = 1;
  }
  return words;
}

function checkMerges(merges: unknown): void {
  const isPair = (merge: unknown): boolean =>
    typeof merge === 'string'
      ? merge.indexOf(' ') > 0
      : Array.isArray(merge) && merge.length === 2 && merge.every((part) => typeof part === 'string');
  if (!Array.isArray(merges)) throw bad('model.merges is not a list');
  if (merges.length > MERGES_MAX) throw bad(`${merges.length} merges`, { mergesMax: MERGES_MAX });
  const index = merges.findIndex((merge) => !isPair(merge) || typeof merge !== typeof merges[0]);
  if (index !== -1) throw bad(`merge ${index} is not a pair of words`, { index });
}

interface AddedRules extends TokenIds {
  readonly chatTemplates: ChatTemplates;
}

/** Tokens beyond the model's embedding are ignored, since the model could not read them. */
function readAdded(entries: unknown, { vocabSize, bosId, eosIds, chatTemplates }: AddedRules): AddedToken[] {
  if (!Array.isArray(entries)) throw bad('added_tokens is not a list');
  if (entries.length > ADDED_TOKENS_MAX)
    throw bad(`${entries.length} added tokens`, { addedTokensMax: ADDED_TOKENS_MAX });
  const added: AddedToken[] = [];
  const texts = new Set<string>();
  for (const entry of entries) {
    const {
      id,
      content,
      special,
      lstrip,
      rstrip,
      normalized,
      single_word: singleWord,
    } = record(entry, 'an added token');
    if (
      typeof id !== 'number' ||
      !Number.isInteger(id) ||
      id < 0 ||
      typeof content !== 'string' ||
      content === '' ||
      texts.has(content)
    ) {
      throw bad('an added token needs an id and a text of its own', { id, content });
    }
    if (singleWord === true) throw unsupported('added_tokens.single_word', content);
    texts.add(content);
    if (id >= vocabSize) continue;
    const control = special === true;
    const guarded = control || id === bosId || eosIds.includes(id) || isTurnMarker(content, chatTemplates);
    const trims = { trimLeft: lstrip === true, trimRight: rstrip === true };
    added.push({
      id,
      text: content,
      control,
      guarded,
      ...trims,
      normalized: typeof normalized === 'boolean' ? normalized : !control,
    });
  }
  return added;
}

function endIds(
  configured: readonly number[],
  settings: Json,
  words: readonly [string, number][],
  added: unknown,
): number[] {
  const text = typeof settings.eos_token === 'string' ? settings.eos_token : asRecord(settings.eos_token)?.content;
  const entry = Array.isArray(added) ? added.map(asRecord).find((token) => token?.content === text) : undefined;
  const id = typeof text === 'string' ? (entry?.id ?? words.find(([word]) => word === text)?.[1]) : undefined;
  return [...new Set([...configured, ...(typeof id === 'number' ? [id] : [])])];
}

/** True if tokenizer_config.json says so or, if it says nothing, if the post-processor puts BOS in front. */
function addsBos(postProcessor: unknown, settings: Json, bosText: string | undefined): boolean {
  if (typeof settings.add_bos_token === 'boolean') return settings.add_bos_token;
  const steps = asRecord(postProcessor)?.processors;
  return (Array.isArray(steps) ? steps : [postProcessor]).some((step) => {
    const template = asRecord(step);
    const first =
      template?.type === 'TemplateProcessing' && Array.isArray(template.single)
        ? asRecord(template.single[0])
        : undefined;
    return bosText !== undefined && asRecord(first?.SpecialToken)?.id === bosText;
  });
}

const NORMAL_FORMS: readonly unknown[] = ['NFC', 'NFD', 'NFKC', 'NFKD'];

/** The normal form that these steps bring a text into, where they do nothing else. */
function normalForm(steps: readonly Step[]): { normalForm?: (text: string) => string } {
  if (steps.length === 0 || !steps.every(({ type }) => NORMAL_FORMS.includes(type))) return {};
  return { normalForm: (text) => steps.reduce((form, { type }) => form.normalize(type as string), text) };
}

interface Decoding {
  readonly style: PieceStyle;
  readonly spacePrefix: boolean;
}

/** Reads a decoder as a style of pieces, which can be streamed; decoders that are not such a style are refused. */
function readDecoder(decoder: unknown): Decoding {
  const steps = flatSteps(decoder, 'decoders');
  const types = steps.map((step) => step.type);
  if (types.length === 1 && types[0] === 'ByteLevel') return { style: 'byte-level', spacePrefix: false };
  let [spaces, spacePrefix] = [false, false];
  for (const step of steps) {
    switch (step.type) {
      case 'Replace':
        if (asRecord(step.pattern)?.String !== '\u2581' || step.content !== ' ') throw unsupported('decoder', step);
        spaces = true;
        break;
      case 'Metaspace':
        if ((step.replacement ?? '\u2581') !== '\u2581') throw unsupported('decoder', step);
        spaces = true;
        spacePrefix = step.prepend_scheme !== 'never' && step.add_prefix_space !== false;
        break;
      case 'Strip':
        if (step.content !== ' ' || step.start !== 1 || (step.stop ?? 0) !== 0) throw unsupported('decoder', step);
        spacePrefix = true;
        break;
      case 'ByteFallback':
      case 'Fuse':
        break;
      default:
        throw unsupported('decoder', step.type ?? null);
    }
  }
  if (!spaces) throw unsupported('decoder', decoder);
  return { style: 'metaspace', spacePrefix };
}

/**
 * The package cuts words and digits with JavaScript's classes (white space includes U+FEFF but not U+0085; digits are
 * ASCII), while its Split translates patterns faithfully. So Split does both cuts, and ByteLevel only turns bytes into
 * letters.
 */
export function exactPreTokenizer(preTokenizer: unknown): Step[] {
  return flatSteps(preTokenizer, 'pretokenizers').flatMap((step): Step[] => {
    if (step.type === 'Digits') return [splitStep(step.individual_digits === true ? '\\p{N}' : '\\p{N}+')];
    if (step.type !== 'ByteLevel' || step.use_regex === false || step.add_prefix_space === true) return [step];
    return [splitStep(GPT2_PATTERN), { ...step, use_regex: false }];
  });
}

export function splitStep(pattern: string): Step {
  return { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false };
}

function record(value: unknown, what: string): Json {
  const found = asRecord(value);
  if (found === undefined) throw bad(`${what} is not an object`);
  return found;
}

function bad(what: string, values: Record<string, unknown> = {}): KvError {
  return new KvError('bad-tokenizer', `tokenizer: ${what}`, { values });
}

function unsupported(key: string, value: unknown): KvError {
  return new KvError(
    'unsupported',
    `tokenizer.json: ${key} ${(JSON.stringify(value) ?? '').slice(0, 120)} is not served`,
    { values: { key, value } },
  );
}
