/**
 * Messages and tools as a caller gives them, checked, and as chat templates know them: `tool_calls` with a `function`
 * each, `tool_call_id`, tools as `{ type: 'function', function: { name, description, parameters } }`, as Hugging Face's
 * templates have it.
 */
import { KvError, show } from '../../native/index.ts';
import type { ChatMessage, ChatTool } from './types.ts';

const MESSAGES_MAX = 10_000;
const TOOLS_MAX = 1000;
/** Objects and lists in one another: schemas have ten or so. */
const DEPTH_MAX = 64;
const ROLES: readonly string[] = ['system', 'user', 'assistant', 'tool'];
/** Texts that no token of a template can begin, end or lie in: names, words, numbers. */
const HARMLESS = /^[\p{L}\p{N}_ .,-]*$/u;
/** Templates that find their tools in the system message, as text. */
const TOOLS_IN_MESSAGE = /message(\.tools\b|\[['"]tools['"]\])/;

type Mark = (content: string) => string;

/** Throws 'bad-argument' for what is no list of messages. */
export function checkMessages(messages: readonly ChatMessage[]): void {
  const sound = Array.isArray(messages) && messages.length <= MESSAGES_MAX;
  const odd = sound ? messages.find((message) => !isMessage(message)) : null;
  if (odd === undefined) return;
  throw new KvError('bad-argument', 'a chat is a list of messages { role, content }', {
    values: { roles: ROLES, messagesMax: MESSAGES_MAX, role: show(odd?.role).slice(0, 40) },
    hint: 'an assistant may have toolCalls: [{ id, name, arguments }], a tool has toolCallId and name',
  });
}

/** Throws 'bad-argument' for what is no list of tools. */
export function checkTools(tools: readonly ChatTool[]): void {
  const sound = Array.isArray(tools) && tools.length <= TOOLS_MAX;
  const odd = sound ? tools.find((tool) => !isTool(tool)) : null;
  if (odd === undefined) return;
  throw new KvError('bad-argument', 'tools are a list of { name, description, parameters }', {
    values: { toolsMax: TOOLS_MAX, name: show(odd?.name).slice(0, 80) },
    hint: 'parameters are a JSON schema: plain data',
  });
}

function isMessage(message: ChatMessage): boolean {
  if (typeof message !== 'object' || message === null) return false;
  const { role, content, toolCalls = [], toolCallId = '', name = '' } = message;
  if (!ROLES.includes(role) || typeof content !== 'string') return false;
  if (typeof toolCallId !== 'string' || typeof name !== 'string' || !Array.isArray(toolCalls)) return false;
  if (toolCalls.length > 0 && role !== 'assistant') return false;
  return toolCalls.every(
    (call) => typeof call?.id === 'string' && typeof call.name === 'string' && isPlainObject(call.arguments),
  );
}

function isTool(tool: ChatTool): boolean {
  if (typeof tool !== 'object' || tool === null) return false;
  const { name, description = '', parameters = {}, strict = true } = tool;
  if (typeof name !== 'string' || name === '' || typeof strict !== 'boolean') return false;
  return typeof description === 'string' && isPlainObject(parameters);
}

const isPlainObject = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && isPlain(value, 0);

/** True if a value is what JSON can say. */
function isPlain(value: unknown, depth: number): boolean {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return true;
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value !== 'object' || depth === DEPTH_MAX) return false;
  return Object.values(value).every((one) => one === undefined || isPlain(one, depth + 1));
}

/** Tools for a template; their texts are marked. */
export function templateTools(tools: readonly ChatTool[], mark: Mark): readonly unknown[] {
  return tools.map(({ name, description, parameters }) => ({
    type: 'function',
    function: markAll(
      {
        name,
        ...(description === undefined ? {} : { description }),
        parameters: parameters ?? { type: 'object', properties: {} },
      },
      mark,
    ),
  }));
}

/** Messages for a template; their texts are marked. */
export function templateMessages(
  messages: readonly ChatMessage[],
  template: string,
  tools: readonly unknown[] | undefined,
  mark: Mark,
): readonly unknown[] {
  const shown = messages.map((message) => templateMessage(message, mark));
  if (tools === undefined || !TOOLS_IN_MESSAGE.test(template)) return shown;
  const inSystem = { tools: JSON.stringify(tools) };
  const [first, ...rest] = shown;
  return messages[0]?.role === 'system'
    ? [{ ...first, ...inSystem }, ...rest]
    : [{ role: 'system', content: '', ...inSystem }, ...shown];
}

function templateMessage(message: ChatMessage, mark: Mark): Readonly<Record<string, unknown>> {
  const { role, content, toolCalls = [], toolCallId, name } = message;
  return {
    role,
    content: mark(content),
    ...(toolCalls.length === 0
      ? {}
      : {
          tool_calls: toolCalls.map((call) => ({
            id: markUnlessHarmless(call.id, mark),
            type: 'function',
            function: markAll({ name: call.name, arguments: call.arguments }, mark),
          })),
        }),
    ...(toolCallId === undefined ? {} : { tool_call_id: markUnlessHarmless(toolCallId, mark) }),
    ...(name === undefined ? {} : { name: markUnlessHarmless(name, mark) }),
  };
}

/** Templates compare words of a schema, such as `object`, so those that can do no harm stay as they are. */
const markUnlessHarmless = (text: string, mark: Mark): string => (HARMLESS.test(text) ? text : mark(text));

/** Marks all texts of plain data, names of fields included. */
function markAll(value: unknown, mark: Mark): unknown {
  if (typeof value === 'string') return markUnlessHarmless(value, mark);
  if (Array.isArray(value)) return value.map((one) => markAll(one, mark));
  if (typeof value !== 'object' || value === null) return value;
  const fields = Object.entries(value).filter(([, one]) => one !== undefined);
  return Object.fromEntries(fields.map(([name, one]) => [markUnlessHarmless(name, mark), markAll(one, mark)]));
}
