/**
 * Chat templates are programs that come with a model file. They run in an interpreter that reaches nothing outside it,
 * for a bounded time, with a bounded `range`, and without a clock, so the same messages give the same prompt every day.
 *
 * Words of a message must not become control tokens. So each content is marked with a private-use character that occurs
 * in no text, token or template: before its first and after its last visible character (where `trim` leaves it alone),
 * and inside every guarded token it spells. The rendered text is then cut at added tokens, none of which can begin, end
 * or lie in a content, and the marks are removed from the text in between. Control tokens thus come from the template
 * alone, while words still merge across the seam between template and content as in training.
 */
import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja';
import { KvError, show } from '../../native/index.ts';
import type { AddedTokenFinder } from './added-tokens.ts';
import { within } from './bounded.ts';
import { templateMessages, templateTools } from './chat-messages.ts';
import type { ChatMessage, ChatTool } from './types.ts';

/** The longest published templates have about 30,000 characters. */
export const TEMPLATE_CHARACTERS_MAX = 1 << 17;
const RENDER_MS_MAX = 500;
const RANGE_MAX = 10_000;
/** Characters that a template may add to the contents. */
const RENDERED_CHARACTERS_MAX = 1 << 22;
const PRIVATE_USE = { first: 0xe000, last: 0xf8ff } as const;

/** A text that the template wrote, or the index of a message that stands there as it was written. */
export type ChatSection = string | number;

export interface ChatRendering {
  readonly sections: readonly ChatSection[];
  /** Remove it from texts after cutting them at added tokens. */
  readonly mark: string;
}

export interface ChatRequest {
  readonly template: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly addGenerationPrompt: boolean;
  /** bos_token and the like. */
  readonly variables: Readonly<Record<string, string>>;
  readonly guarded: AddedTokenFinder;
}

class TemplateRefusal extends Error {}

/**
 * Throws KvError 'bad-tokenizer' if the template is broken or does not end, 'bad-argument' if it refuses the messages.
 */
export function renderChat(request: ChatRequest): ChatRendering {
  checkTemplate(request.template);
  const [mark] = unusedCharacters(request, 1);
  return { sections: [rendered(request, mark!)], mark: mark! };
}

/**
 * The same, but messages that `isWritten` stand where the template writes them as their index. A template may do
 * anything with a message: trim it, cut out thoughts, write calls its own way. So it renders the conversation twice, as
 * it is and with a character in place of each of these messages, and the two are walked side by side: up to the first
 * place where they say different things, what is between two characters is literally the same.
 */
export function renderWritten(
  request: ChatRequest,
  isWritten: (index: number) => boolean,
  saysTheSame: (rendered: string, message: ChatMessage) => boolean,
): ChatRendering {
  checkTemplate(request.template);
  const { messages, guarded } = request;
  const [mark, slot] = unusedCharacters(request, 2) as [string, string];
  const text = rendered(request, mark);
  const indices = messages.flatMap((message, index) =>
    message.role === 'assistant' && isWritten(index) ? [index] : [],
  );
  const literals = literalsAround(request, indices, mark, slot);
  if (literals?.length !== indices.length + 1 || !text.startsWith(literals[0]!)) return { sections: [text], mark };
  const sections: ChatSection[] = [];
  let [from, at] = [0, literals[0]!.length];
  for (const [order, index] of indices.entries()) {
    const message = messages[index]!;
    const after = literals[order + 1]!;
    const says = (end: number): boolean => saysTheSame(text.slice(at, end).replaceAll(mark, ''), message);
    const content = message.toolCalls === undefined ? markContent(message.content, guarded, mark) : null;
    const end = endOf(text, at, after, content, says);
    if (end === null) break;
    sections.push(text.slice(from, at), index);
    from = end;
    at = end + after.length;
  }
  return { sections: [...sections, text.slice(from)], mark };
}

/** What the template writes around these messages; null where it refuses to write anything but their text. */
function literalsAround(
  request: ChatRequest,
  indices: readonly number[],
  mark: string,
  slot: string,
): readonly string[] | null {
  const messages = request.messages.map(
    (message, index): ChatMessage => (indices.includes(index) ? { role: message.role, content: slot } : message),
  );
  try {
    const text = rendered({ ...request, messages }, mark);
    return text.replaceAll(`${mark}${slot}${mark}`, slot).split(slot);
  } catch (error) {
    if (error instanceof KvError) return null;
    throw error;
  }
}

/** Places at which the end of a message with calls is looked for. */
const ENDS_MAX = 32;

/**
 * Where the message that begins at `at` ends, `after` being what follows it; null: it does not say there what it says.
 * content: null where it has calls.
 */
function endOf(
  text: string,
  at: number,
  after: string,
  content: string | null,
  says: (end: number) => boolean,
): number | null {
  if (content !== null) {
    const isThere = (one: string): boolean => text.startsWith(one, at) && text.startsWith(after, at + one.length);
    const found = [content, content.trim()].find(isThere);
    return found === undefined ? null : at + found.length;
  }
  if (after === '') return says(text.length) ? text.length : null;
  let end = text.indexOf(after, at);
  for (let tries = 0; end >= 0 && tries < ENDS_MAX; tries++) {
    if (says(end)) return end;
    end = text.indexOf(after, end + 1);
  }
  return null;
}

function rendered(
  { template, messages, tools, addGenerationPrompt, variables, guarded }: ChatRequest,
  mark: string,
): string {
  const marked = (content: string): string => markContent(content, guarded, mark);
  const shownTools = tools.length === 0 ? undefined : templateTools(tools, marked);
  const values = {
    ...variables,
    messages: templateMessages(messages, template, shownTools, marked),
    add_generation_prompt: addGenerationPrompt,
    ...(shownTools === undefined ? {} : { tools: shownTools }),
  };
  const text = runBounded(() => render(template, values));
  const contents = JSON.stringify([messages, tools]).length;
  if (text.length > RENDERED_CHARACTERS_MAX + 4 * contents) {
    throw badTemplate(`the chat template turned ${contents} characters into ${text.length}`, {
      characters: text.length,
    });
  }
  return text;
}

export function checkTemplate(template: string): void {
  if (template.length <= TEMPLATE_CHARACTERS_MAX) return;
  throw badTemplate(`the chat template has ${template.length} characters`, {
    characters: template.length,
    charactersMax: TEMPLATE_CHARACTERS_MAX,
  });
}

function markContent(content: string, guarded: AddedTokenFinder, mark: string): string {
  const visible = content.trim();
  if (visible === '') return content;
  let inner = '';
  let from = 0;
  for (let at = 0; at < visible.length; at++) {
    if ((guarded.at(visible, at)?.text.length ?? 0) < 2) continue;
    inner += visible.slice(from, at + 1) + mark;
    from = at + 1;
  }
  inner += visible.slice(from);
  const start = content.indexOf(visible);
  return content.slice(0, start) + mark + inner + mark + content.slice(start + visible.length);
}

/** Private-use characters that nothing of a request has. */
function unusedCharacters({ template, messages, tools, variables, guarded }: ChatRequest, count: number): string[] {
  const used = new Set<string>();
  const texts = [template, ...Object.values(variables), ...guarded.texts, JSON.stringify([messages, tools])];
  for (const text of texts) for (const [letter] of text.matchAll(/[\ue000-\uf8ff]/g)) used.add(letter);
  const free: string[] = [];
  for (let code: number = PRIVATE_USE.first; code <= PRIVATE_USE.last && free.length < count; code++) {
    const letter = String.fromCharCode(code);
    if (!used.has(letter)) free.push(letter);
  }
  if (free.length === count) return free;
  throw new KvError('bad-argument', 'the messages use every private-use character, so none is left to mark them with');
}

function render(template: string, values: Readonly<Record<string, unknown>>): string {
  const environment = new Environment();
  for (const [name, value] of Object.entries({ ...GLOBALS, ...values })) environment.set(name, value);
  const program = parse(tokenize(template, { lstrip_blocks: true, trim_blocks: true }));
  const result: unknown = new Interpreter(environment).run(program).value;
  return show(result);
}

const GLOBALS: Readonly<Record<string, unknown>> = {
  true: true,
  True: true,
  false: false,
  False: false,
  none: null,
  None: null,
  raise_exception: (message: unknown) => {
    throw new TemplateRefusal(show(message));
  },
  range: boundedRange,
};

function boundedRange(first: number, last?: number, step = 1): number[] {
  const [from, to] = last == null ? [0, first] : [first, last];
  const count = Math.max(0, Math.ceil((to - from) / step));
  if (!(count <= RANGE_MAX) || step === 0) throw new Error(`range of ${count} numbers`);
  return Array.from({ length: count }, (_, i) => from + i * step);
}

function runBounded(work: () => string): string {
  try {
    const ended = within(RENDER_MS_MAX, work);
    if (ended === null) throw badTemplate(`the model's chat template did not end within ${RENDER_MS_MAX} ms`, {});
    return ended.value;
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    if (cause instanceof TemplateRefusal) {
      throw new KvError(
        'bad-argument',
        `the model's chat template refuses these messages: ${cause.message.slice(0, 300)}`,
        { cause },
      );
    }
    throw badTemplate(`the model's chat template failed: ${show((cause as Error)?.message).slice(0, 300)}`, {}, cause);
  }
}

function badTemplate(what: string, values: Record<string, unknown>, cause?: unknown): KvError {
  return new KvError('bad-tokenizer', what, { values, cause });
}
