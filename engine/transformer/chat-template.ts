/**
 * Chat templates are programs that come with a model file. `template/` runs them, as Python would, in bounded steps and
 * memory, and with nothing around them that they could reach.
 *
 * Words of a message must not become control tokens. So each letter of a rendered prompt knows whether it was given or
 * is the template's own, and a control token is one if all of its letters are the template's. Words still merge across
 * the seam between template and content as in training, and tokens that steer nothing are found anywhere.
 */
import { KvError } from '../../native/index.ts';
import { templateMessages, templateTools } from './chat-messages.ts';
import { TemplateFault, TemplateRefusal } from './template/fault.ts';
import { trimmed, trimmedEnd } from './template/space.ts';
import { renderTemplate } from './template/template.ts';
import { Text } from './template/text.ts';
import type { Value } from './template/values.ts';
import type { ChatMessage, ChatTemplates, ChatTool } from './types.ts';

/** The longest published templates have about 30,000 characters. */
export const TEMPLATE_CHARACTERS_MAX = 1 << 17;
/** Characters that a template may add to the contents. */
const RENDERED_CHARACTERS_MAX = 1 << 22;
const PRIVATE_USE = { first: 0xe000, last: 0xf8ff } as const;

/** What the template wrote, or the index of a message that stands there as it was written. */
export type ChatSection = Text | number;

export interface ChatRequest {
  readonly template: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly addGenerationPrompt: boolean;
  /** Ends behind the text of the last message, which the answer then goes on with, as transformers has it. */
  readonly continueFinalMessage: boolean;
  /** bos_token and the like. */
  readonly variables: Readonly<Record<string, string>>;
  /** What `strftime_now` tells. */
  readonly date: Date;
}

/**
 * Throws KvError 'bad-tokenizer' if the template is broken or does not end, 'bad-argument' if it refuses the messages.
 */
export function renderChat(request: ChatRequest): Text {
  checkTemplate(request.template);
  return rendered(request);
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
): readonly ChatSection[] {
  checkTemplate(request.template);
  const { messages } = request;
  const text = rendered(request);
  const indices = messages.flatMap((message, index) =>
    message.role === 'assistant' && isWritten(index) ? [index] : [],
  );
  const literals = literalsAround(request, indices);
  if (literals?.length !== indices.length + 1 || !text.value.startsWith(literals[0]!)) return [text];
  const sections: ChatSection[] = [];
  let [from, at] = [0, literals[0]!.length];
  for (const [order, index] of indices.entries()) {
    const message = messages[index]!;
    const after = literals[order + 1]!;
    const says = (end: number): boolean => saysTheSame(text.value.slice(at, end), message);
    const content = message.toolCalls === undefined ? message.content : null;
    const end = endOf(text.value, at, after, content, says);
    if (end === null) break;
    sections.push(text.slice(from, at), index);
    from = end;
    at = end + after.length;
  }
  return [...sections, text.slice(from)];
}

/** What the template writes around these messages; null where it refuses to write anything but their text. */
function literalsAround(request: ChatRequest, indices: readonly number[]): readonly string[] | null {
  const slot = unusedCharacter(request);
  if (slot === null) return null;
  const messages = request.messages.map(
    (message, index): ChatMessage => (indices.includes(index) ? { role: message.role, content: slot } : message),
  );
  try {
    return rendered({ ...request, messages }).value.split(slot);
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
    const found = [content, trimmed(content), content.trim()].find(isThere);
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

function rendered(request: ChatRequest): Text {
  const { template, tools, addGenerationPrompt, continueFinalMessage, variables, date } = request;
  const mark = continueFinalMessage ? markOf(request) : null;
  const messages = mark === null ? request.messages : markedLast(request.messages, mark);
  const given = JSON.stringify([messages, tools]).length;
  const text = refusing(() => {
    const values = new Map<string, Value>([
      ...Object.entries(variables).map(([name, one]) => [name, Text.own(one)] as const),
      ['messages', templateMessages(messages, template, tools)],
      ['tools', tools.length === 0 ? null : templateTools(tools)],
      ['documents', null],
      ['add_generation_prompt', addGenerationPrompt && !continueFinalMessage],
    ]);
    return renderTemplate(template, values, { date, letters: given });
  });
  if (text.value.length > RENDERED_CHARACTERS_MAX + 4 * given) {
    throw badTemplate(`the chat template turned ${given} characters into ${text.value.length}`, {
      characters: text.value.length,
    });
  }
  return mark === null ? text : untilMark(text, mark, request.messages.at(-1)!);
}

/** A letter that nothing of a request has, and a space, which a template that trims texts does not keep. */
function markOf(request: ChatRequest): string {
  const letter = unusedCharacter(request);
  if (letter !== null && request.messages.length > 0) return `${letter} `;
  throw new KvError('bad-argument', 'there is no message that could be continued', {
    values: { messages: request.messages.length },
    hint: 'give a conversation whose last message is the beginning of an answer',
  });
}

function markedLast(messages: readonly ChatMessage[], mark: string): readonly ChatMessage[] {
  const last = messages.at(-1)!;
  return [...messages.slice(0, -1), { ...last, content: last.content + mark }];
}

/** Up to the mark behind the last message's text; without white space at its end where the template leaves that out. */
function untilMark(text: Text, mark: string, last: ChatMessage): Text {
  const at = text.value.lastIndexOf(mark[0]!);
  if (at < 0 || !text.value.includes(trimmed(last.content)))
    throw new KvError('bad-argument', "the model's chat template does not write the text of the last message", {
      values: { role: last.role },
      hint: 'only a message whose text stands in the prompt can be continued',
    });
  return text.slice(0, text.value.startsWith(mark, at) ? at : trimmedEnd(text.value.slice(0, at)).length);
}

export function checkTemplates({ plain, tools }: ChatTemplates): void {
  for (const template of [plain, tools]) if (template !== null) checkTemplate(template);
}

export function checkTemplate(template: string): void {
  if (template.length <= TEMPLATE_CHARACTERS_MAX) return;
  throw badTemplate(`the chat template has ${template.length} characters`, {
    characters: template.length,
    charactersMax: TEMPLATE_CHARACTERS_MAX,
  });
}

/** A private-use character that nothing of a request has; null: it has all of them. */
function unusedCharacter({ template, messages, tools, variables }: ChatRequest): string | null {
  const used = new Set<string>();
  const texts = [template, ...Object.values(variables), JSON.stringify([messages, tools])];
  for (const text of texts) for (const [letter] of text.matchAll(/[\ue000-\uf8ff]/g)) used.add(letter);
  for (let code: number = PRIVATE_USE.first; code <= PRIVATE_USE.last; code++) {
    const letter = String.fromCharCode(code);
    if (!used.has(letter)) return letter;
  }
  return null;
}

/** Runs a template, whose faults become refusals. */
function refusing<T>(work: () => T): T {
  try {
    return work();
  } catch (cause) {
    if (cause instanceof TemplateRefusal) {
      const what = cause.message.slice(0, 300);
      throw new KvError('bad-argument', `the model's chat template refuses these messages: ${what}`, { cause });
    }
    if (cause instanceof TemplateFault)
      throw badTemplate(`the model's chat template failed: ${cause.message.slice(0, 300)}`, {}, cause);
    throw cause;
  }
}

function badTemplate(what: string, values: Record<string, unknown>, cause?: unknown): KvError {
  return new KvError('bad-tokenizer', what, { values, cause });
}
