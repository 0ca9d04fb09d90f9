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
import type { ChatMessage } from './types.ts';

/** The longest published templates have about 30,000 characters. */
export const TEMPLATE_CHARACTERS_MAX = 1 << 17;
const RENDER_MS_MAX = 500;
const RANGE_MAX = 10_000;
const MESSAGES_MAX = 10_000;
/** Characters that a template may add to the contents. */
const RENDERED_CHARACTERS_MAX = 1 << 22;
const PRIVATE_USE = { first: 0xe000, last: 0xf8ff } as const;
const ROLES: readonly string[] = ['system', 'user', 'assistant'];

export interface ChatRendering {
  readonly text: string;
  /** Remove it from the text after cutting at added tokens. */
  readonly mark: string;
}

export interface ChatRequest {
  readonly template: string;
  readonly messages: readonly ChatMessage[];
  readonly addGenerationPrompt: boolean;
  /** bos_token and the like. */
  readonly variables: Readonly<Record<string, string>>;
  readonly guarded: AddedTokenFinder;
}

class TemplateRefusal extends Error {}

/** Throws KvError 'bad-tokenizer' if the template is broken or does not end, 'bad-argument' if it refuses the messages. */
export function renderChat({
  template,
  messages,
  addGenerationPrompt,
  variables,
  guarded,
}: ChatRequest): ChatRendering {
  checkTemplate(template);
  const mark = unusedCharacter([
    template,
    ...Object.values(variables),
    ...guarded.texts,
    ...messages.map((message) => message.content),
  ]);
  const marked = messages.map(({ role, content }) => ({ role, content: markContent(content, guarded, mark) }));
  const values = { ...variables, messages: marked, add_generation_prompt: addGenerationPrompt };
  const text = runBounded(() => render(template, values));
  const contents = messages.reduce((sum, message) => sum + message.content.length, 0);
  if (text.length > RENDERED_CHARACTERS_MAX + 4 * contents) {
    throw badTemplate(`the chat template turned ${contents} characters into ${text.length}`, {
      characters: text.length,
    });
  }
  return { text, mark };
}

export function checkTemplate(template: string): void {
  if (template.length <= TEMPLATE_CHARACTERS_MAX) return;
  throw badTemplate(`the chat template has ${template.length} characters`, {
    characters: template.length,
    charactersMax: TEMPLATE_CHARACTERS_MAX,
  });
}

export function checkMessages(messages: readonly ChatMessage[]): void {
  const sound = Array.isArray(messages) && messages.length <= MESSAGES_MAX;
  const odd = sound
    ? messages.find((message) => !ROLES.includes(message?.role) || typeof message.content !== 'string')
    : null;
  if (odd === undefined) return;
  throw new KvError('bad-argument', 'a chat is a list of messages { role, content }', {
    values: { roles: ROLES, messagesMax: MESSAGES_MAX, role: odd?.role },
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

function unusedCharacter(texts: readonly string[]): string {
  const used = new Set<string>();
  for (const text of texts) for (const [letter] of text.matchAll(/[\ue000-\uf8ff]/g)) used.add(letter);
  for (let code: number = PRIVATE_USE.first; code <= PRIVATE_USE.last; code++) {
    const letter = String.fromCharCode(code);
    if (!used.has(letter)) return letter;
  }
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
