/**
 * Messages and tools as a caller gives them, checked, and as chat templates know them: `tool_calls` with a `function`
 * each, `tool_call_id`, tools as `{ type: 'function', function: { name, description, parameters } }`, as Hugging Face's
 * templates have it.
 */
import { isDeepStrictEqual } from 'node:util';
import { given, jsonOf, KvError, show } from '../../native/index.ts';
import { givenValue } from './template/given.ts';
import { compact, JSON_DEPTH_MAX, spelledValue } from './template/spelled.ts';
import { readsVariable } from './template/statements.ts';
import { Text } from './template/text.ts';
import { Dict, type Value } from './template/values.ts';
import type { ChatMessage, ChatTool } from './types.ts';

const MESSAGES_MAX = 10_000;
const TOOLS_MAX = 1000;
const ROLES: readonly string[] = ['system', 'user', 'assistant', 'tool'];
/** Templates that find their tools in the system message, as text, unless they read the variable as well. */
const TOOLS_IN_MESSAGE = /message(\.tools\b|\[['"]tools['"]\])/;

const shownRole = (message: ChatMessage | null): string | undefined =>
  message?.role === undefined ? undefined : show(message.role).slice(0, 40);

/** Throws 'bad-argument' for what is no list of messages. */
export function checkMessages(messages: readonly ChatMessage[]): void {
  const sound = Array.isArray(messages) && messages.length <= MESSAGES_MAX;
  const index = sound ? messages.findIndex((message) => !isMessage(message)) : null;
  const odd = index === null ? null : messages[index];
  if (odd === undefined) {
    for (const { toolCalls = [] } of messages)
      for (const call of toolCalls) checkSpelling('argumentsText', call.name, call.arguments, call.argumentsText);
    return;
  }
  throw new KvError('bad-argument', 'a chat is a list of messages { role, content }', {
    values: {
      roles: ROLES,
      messagesMax: MESSAGES_MAX,
      ...given({ role: shownRole(odd), param: index === null ? undefined : `messages[${index}]` }),
    },
    hint: 'an assistant may have toolCalls: [{ id, name, arguments }], a tool has toolCallId and name',
  });
}

/** Throws 'bad-argument' for what is no list of tools. */
export function checkTools(tools: readonly ChatTool[]): void {
  const sound = Array.isArray(tools) && tools.length <= TOOLS_MAX;
  const index = sound ? tools.findIndex((tool) => !isTool(tool)) : null;
  const odd = index === null ? null : tools[index];
  if (odd === undefined) {
    for (const { name, parameters, parametersText } of tools)
      checkSpelling('parametersText', name, parameters, parametersText);
    return;
  }
  throw new KvError('bad-argument', 'tools are a list of { name, description, parameters }', {
    values: {
      toolsMax: TOOLS_MAX,
      name: show(odd?.name).slice(0, 80),
      param: index === null ? 'tools' : `tools[${index}]`,
    },
    hint: 'parameters are a JSON schema: plain data',
  });
}

/** Throws 'bad-argument' for a text that says something else than the data that it spells. */
function checkSpelling(field: string, name: string, data: unknown, text: unknown): void {
  if (text === undefined) return;
  const said = (one: unknown): unknown => JSON.parse(JSON.stringify(one ?? null));
  if (typeof text === 'string' && spelledValue(text) !== undefined && isDeepStrictEqual(said(jsonOf(text)), said(data)))
    return;
  const of = field.slice(0, -'Text'.length);
  throw new KvError('bad-argument', `the ${field} of ${name.slice(0, 80)} is no JSON of its ${of}`, {
    values: { [field]: show(text).slice(0, 200), name: name.slice(0, 80) },
    hint: `leave out ${field} where ${of} change`,
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
  if (typeof value !== 'object' || depth === JSON_DEPTH_MAX) return false;
  return Object.values(value).every((one) => one === undefined || isPlain(one, depth + 1));
}

/** Data as it was written, where that is told. */
const spelled = (data: unknown, text: string | undefined): Value =>
  text === undefined ? givenValue(data) : spelledValue(text)!;

const toolFields = ({ name, description, parameters, parametersText }: ChatTool): Dict =>
  new Dict([
    [Text.given('name'), Text.given(name)],
    ...(description === undefined ? [] : [[Text.given('description'), Text.given(description)] as const]),
    [Text.given('parameters'), spelled(parameters ?? { type: 'object', properties: {} }, parametersText)],
  ]);

/** A dict with names of the template's own. */
const fields = (values: Readonly<Record<string, Value>>): Dict =>
  new Dict(Object.entries(values).map(([name, value]) => [Text.own(name), value] as const));

/** Tools for a template. */
export const templateTools = (tools: readonly ChatTool[]): Value =>
  tools.map((tool) => fields({ type: Text.own('function'), function: toolFields(tool) }));

/** Messages for a template. */
export function templateMessages(
  messages: readonly ChatMessage[],
  template: string,
  tools: readonly ChatTool[],
): Value {
  const inSystem: Readonly<Record<string, Value>> =
    tools.length === 0 || !TOOLS_IN_MESSAGE.test(template) || readsVariable(template, 'tools')
      ? {}
      : { tools: Text.given(compact(templateTools(tools))) };
  const isFirst = (index: number): boolean => index === 0 && messages[0]!.role === 'system';
  const shown = messages.map((message, index) => templateMessage(message, isFirst(index) ? inSystem : {}));
  if (messages[0]?.role === 'system' || Object.keys(inSystem).length === 0) return shown;
  return [fields({ role: Text.own('system'), content: Text.empty, ...inSystem }), ...shown];
}

function templateMessage(message: ChatMessage, more: Readonly<Record<string, Value>>): Dict {
  const { role, content, toolCalls = [], toolCallId, name } = message;
  const calls = toolCalls.map((call) =>
    fields({
      id: Text.given(call.id),
      type: Text.own('function'),
      function: new Dict([
        [Text.given('name'), Text.given(call.name)],
        [Text.given('arguments'), spelled(call.arguments, call.argumentsText)],
      ]),
    }),
  );
  return fields({
    role: Text.own(role),
    content: Text.given(content),
    ...(toolCalls.length === 0 ? {} : { tool_calls: calls }),
    ...(toolCallId === undefined ? {} : { tool_call_id: Text.given(toolCallId) }),
    ...(name === undefined ? {} : { name: Text.given(name) }),
    ...more,
  });
}
