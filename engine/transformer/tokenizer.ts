/** Text ↔ token ids: what all kinds of tokenizer share. How plain text becomes ids is up to each kind. */
import { KvError } from '../../native/index.ts';
import { type AddedToken, AddedTokenFinder, type Section } from './added-tokens.ts';
import { checkMessages } from './chat-messages.ts';
import { type ChatRequest, type ChatSection, renderChat, renderWritten } from './chat-template.ts';
import type { Pieces } from './pieces.ts';
import { atOnce, type Slices } from './slices.ts';
import type { Text } from './template/text.ts';
import type {
  ChatMessage,
  ChatRenderOptions,
  ChatTemplates,
  ChatTool,
  DecodeOptions,
  EncodeOptions,
  StreamOptions,
  Tokenizer,
} from './types.ts';

export interface TokenizerParts {
  /** For display: 'byte-level BPE', 'SentencePiece BPE'. */
  readonly kind: string;
  /** Rows of the model's embedding. */
  readonly vocabSize: number;
  readonly pieces: Pieces;
  readonly added: readonly AddedToken[];
  /**
   * Ids of a text without added tokens; it may stop once it has more than `tokensMax`. section: its place between added
   * tokens, from 0.
   */
  encodeText(text: string, section: number, tokensMax: number): Slices<number[]>;
  /** What encodeText does to a text first, where that is a normal form of Unicode. */
  readonly normalForm?: (text: string) => string;
  /** True if each token is bytes of the text as they stand: nothing is normalized, put in front, swallowed, unknown. */
  readonly verbatim?: boolean;
  /** True if encodeText puts a space before its text, which decoding must remove again. */
  readonly spacePrefix: boolean;
  readonly bosId: number | null;
  readonly eosIds: readonly number[];
  readonly addBos: boolean;
  readonly chatTemplates: ChatTemplates;
  /** What a person should know of it. */
  readonly remarks?: readonly string[];
}

const SPACE = 0x20;
/** Characters of a token that need no further look: most texts have more tokens than this makes of them. */
const SHORT_TOKEN = 4;

export class VocabularyTokenizer implements Tokenizer {
  readonly #parts: TokenizerParts;
  readonly #all: AddedTokenFinder;
  readonly #harmless: AddedTokenFinder;
  /** Those that are found in normalized text; null: there are none. */
  readonly #normalized: AddedTokenFinder | null;
  readonly #addedById: ReadonlyMap<number, AddedToken>;

  constructor(parts: TokenizerParts) {
    this.#parts = parts;
    const normalized = normalizedOf(parts);
    const asWritten = parts.added.filter((token) => !normalized.includes(token));
    this.#all = new AddedTokenFinder(asWritten);
    this.#harmless = new AddedTokenFinder(asWritten.filter((token) => !token.guarded));
    const formed = normalized.map((token) => ({ ...token, text: parts.normalForm!(token.text) }));
    this.#normalized = formed.length === 0 ? null : new AddedTokenFinder(formed);
    this.#addedById = new Map(parts.added.map((token) => [token.id, token]));
  }

  get kind(): string {
    return this.#parts.kind;
  }

  get remarks(): readonly string[] {
    return this.#parts.remarks ?? [];
  }

  get vocabSize(): number {
    return this.#parts.vocabSize;
  }

  get bosId(): number | null {
    return this.#parts.bosId;
  }

  get eosIds(): readonly number[] {
    return this.#parts.eosIds;
  }

  get addBos(): boolean {
    return this.#parts.addBos;
  }

  get chatTemplate(): string | null {
    return this.#parts.chatTemplates.plain;
  }

  templateFor(tools: readonly ChatTool[]): string | null {
    const { plain, tools: withTools } = this.#parts.chatTemplates;
    return tools.length > 0 && withTools !== null ? withTools : plain;
  }

  encode(text: string, options: EncodeOptions = {}): number[] {
    return atOnce(this.encoding(text, options));
  }

  encoding(text: string, options: EncodeOptions = {}): Slices<number[]> {
    const { special = false, tokensMax = Number.POSITIVE_INFINITY } = options;
    this.#checkLength(text, tokensMax);
    return this.#encodeSections((special ? this.#all : this.#harmless).split(text), text.length, tokensMax, 0);
  }

  /** firstPlace: 0 where the text begins one, 1 where something is before it. */
  *#encodeSections(
    sections: readonly Section[],
    characters: number,
    tokensMax: number,
    firstPlace: number,
  ): Slices<number[]> {
    const ids: number[] = [];
    for (const [index, section] of sections.entries()) {
      const place = firstPlace + index;
      if (section.token !== null) {
        ids.push(section.token.id);
        continue;
      }
      // Pushed one by one, since spreading a long document would overflow the stack.
      for (const id of yield* this.#encodeText(section.text, place, tokensMax - ids.length)) ids.push(id);
      if (ids.length > tokensMax) throw tooLong(characters, tokensMax);
    }
    return ids;
  }

  /** Words that were added in a normal form are found in that form of the text. */
  *#encodeText(text: string, place: number, tokensMax: number): Slices<number[]> {
    if (this.#normalized === null) return yield* this.#parts.encodeText(text, place, tokensMax);
    const ids: number[] = [];
    for (const [index, section] of this.#normalized.split(this.#parts.normalForm!(text)).entries()) {
      if (section.token !== null) ids.push(section.token.id);
      else for (const id of yield* this.#parts.encodeText(section.text, place + index, tokensMax)) ids.push(id);
    }
    return ids;
  }

  /**
   * No token has more characters than the longest has bytes, so a text that is far too long can be refused before any
   * work. Where a text is made of few letters, it is the longest of those tokens that begin with one of its bytes.
   */
  #checkLength(text: string, tokensMax: number): void {
    const { pieces, verbatim } = this.#parts;
    const characters = text.length;
    if (characters <= SHORT_TOKEN * tokensMax) return;
    const longest = verbatim === true ? pieces.longestIn(text) : pieces.longest;
    if (characters > tokensMax * longest) throw tooLong(characters, tokensMax);
  }

  /** Leaves out control tokens unless `special`; ids of the model without a word decode to nothing. */
  decode(ids: readonly number[], options: DecodeOptions = {}): string {
    const parts: Uint8Array[] = [];
    let bytes = 0;
    let afterAdded = options.continues !== true;
    for (const id of ids) {
      const piece = this.#piece(id, options.special === true, afterAdded);
      afterAdded = this.#addedById.has(id);
      parts.push(piece);
      bytes += piece.length;
    }
    const joined = new Uint8Array(bytes);
    let at = 0;
    for (const part of parts) {
      joined.set(part, at);
      at += part.length;
    }
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(joined);
  }

  /** Decodes ids that continue a text, so a leading space is kept. Bytes are held back until they form a character. */
  stream({ controls = [] }: StreamOptions = {}): { push(id: number): string; end(): string } {
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    const isShown = (id: number): boolean => controls.includes(this.#addedById.get(id)?.text ?? '');
    return {
      push: (id) => decoder.decode(this.#piece(id, isShown(id), false), { stream: true }),
      end: () => decoder.decode(),
    };
  }

  bytes(id: number): Uint8Array {
    return this.#piece(id, false, false);
  }

  #piece(id: number, special: boolean, trim: boolean): Uint8Array {
    if (!Number.isInteger(id) || id < 0)
      throw new KvError('bad-argument', `${id} is not a token id`, { values: { id } });
    if (!special && this.#addedById.get(id)?.control === true) return new Uint8Array(0);
    const piece = this.#parts.pieces.get(id);
    return trim && this.#parts.spacePrefix && piece[0] === SPACE && !this.#addedById.has(id)
      ? piece.subarray(1)
      : piece;
  }

  chat(messages: readonly ChatMessage[], options: ChatRenderOptions = {}): number[] {
    return atOnce(this.chatting(messages, options));
  }

  chatting(messages: readonly ChatMessage[], options: ChatRenderOptions = {}): Slices<number[]> {
    const { tokensMax = Number.POSITIVE_INFINITY, written = [], saysTheSame = () => false } = options;
    const request = this.#request(messages, options);
    this.#checkLength(messages.map(({ content }) => content).join(''), tokensMax);
    const sections = written.some((ids) => ids != null)
      ? renderWritten(request, (index) => written[index] != null, saysTheSame)
      : [renderChat(request)];
    return this.#encodeChat(sections, written, tokensMax);
  }

  prompt(messages: readonly ChatMessage[], options: ChatRenderOptions = {}): string {
    return renderChat(this.#request(messages, options)).value;
  }

  #request(messages: readonly ChatMessage[], options: ChatRenderOptions): ChatRequest {
    const { bosId, eosIds } = this.#parts;
    const { tools = [], addGenerationPrompt = true, continueFinalMessage = false, date = new Date() } = options;
    const template = options.template ?? this.templateFor(tools);
    if (template === null) {
      throw new KvError('bad-tokenizer', 'the model has no chat template', { hint: 'give a text instead of messages' });
    }
    checkMessages(messages);
    const text = (id: number | null | undefined): string => (id == null ? '' : (this.#addedById.get(id)?.text ?? ''));
    const variables = { bos_token: text(bosId), eos_token: text(eosIds[0]) };
    return { template, messages, tools, addGenerationPrompt, continueFinalMessage, variables, date };
  }

  *#encodeChat(
    sections: readonly ChatSection[],
    written: readonly (readonly number[] | null)[],
    tokensMax: number,
  ): Slices<number[]> {
    const all: number[] = [];
    for (const section of sections) {
      const ids =
        typeof section === 'number'
          ? written[section]!
          : yield* this.#encodeRendered(section, tokensMax - all.length, all.length === 0 ? 0 : 1);
      for (const id of ids) all.push(id);
      if (all.length > tokensMax) throw tooLong(lettersOf(sections), tokensMax);
    }
    return all;
  }

  /** A token that steers the model is found where all of its letters are the template's own. */
  #encodeRendered(text: Text, tokensMax: number, firstPlace: number): Slices<number[]> {
    this.#checkLength(text.value, tokensMax);
    const sections = this.#all.split(
      text.value,
      (token, from) => !token.guarded || text.isOwn(from, from + token.text.length),
    );
    return this.#encodeSections(sections, text.value.length, tokensMax, firstPlace);
  }
}

/** Added tokens that are found in normalized text and nowhere else, where a mark behind a letter may be part of it. */
const normalizedOf = ({ added, normalForm }: TokenizerParts): readonly AddedToken[] =>
  normalForm === undefined ? [] : added.filter((token) => token.normalized === true && !token.guarded);

const lettersOf = (sections: readonly ChatSection[]): number =>
  sections.reduce<number>((sum, section) => sum + (typeof section === 'number' ? 0 : section.value.length), 0);

function tooLong(characters: number, tokensMax: number): KvError {
  return new KvError(
    'context-too-long',
    `a text of ${characters} characters has more than the ${tokensMax} tokens that fit`,
    {
      values: { characters, tokensMax },
      hint: 'shorten it',
    },
  );
}
