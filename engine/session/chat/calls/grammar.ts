/**
 * The grammar of calls: each tool by its name, with arguments that fulfil its schema, in the syntax of the model's
 * family.
 */
import { asRecord, KvError } from '../../../../native/index.ts';
import { markCharacter } from '../../../transformer/grammar/grammars.ts';
import { literal } from '../../../transformer/grammar/notation.ts';
import { type JsonSchema, Repetitions } from '../../../transformer/grammar/options.ts';
import { Rules } from '../../../transformer/grammar/rules.ts';
import { schemaExpression } from '../../../transformer/grammar/schema.ts';
import type { ChatTool } from '../../../transformer/types.ts';
import type { CallFormat, Spelling } from './call.ts';

/**
 * Whatever fulfils it is a call, or several, that the format reads. marks: those that are tokens, in the order of their
 * markCharacter. Throws 'bad-argument' and 'unsupported'.
 */
export function callGrammar(
  format: CallFormat,
  tools: readonly ChatTool[],
  { marks, ...how }: Omit<Spelling, 'mark'> & { readonly marks: readonly string[] },
): string {
  const mark = (text: string): string =>
    marks.includes(text) ? `"\\x0${markCharacter(marks.indexOf(text)).charCodeAt(0)}"` : literal(text);
  const spelling = { ...how, mark };
  const rules = new Rules(format.notation?.(spelling));
  const repetitions = new Repetitions();
  const callable = tools.map((tool) => ({
    name: tool.name,
    given: namingTool(tool.name, () => schemaExpression(argumentsOf(tool), rules, repetitions)),
  }));
  return rules.grammar(rules.add(format.grammar(callable, rules, spelling)));
}

/** What a tool takes, as a schema of objects and nothing else. A tool that names no property takes none. */
function argumentsOf({ parameters = {} }: ChatTool): JsonSchema {
  const isNamed =
    Object.keys(asRecord(parameters['properties']) ?? {}).length > 0 || parameters['required'] !== undefined;
  const isWhole = ['$ref', 'const', 'enum', 'anyOf', 'oneOf', 'allOf'].some((key) => parameters[key] !== undefined);
  if (isWhole) {
    if (allowsObjects(parameters, parameters, 0)) return parameters;
  } else if (parameters['type'] === undefined || parameters['type'] === 'object') {
    const { additionalProperties = isNamed } = parameters;
    return { ...parameters, type: 'object', additionalProperties } as JsonSchema;
  }
  throw new KvError('bad-argument', 'the schema of the arguments allows what is no object', {
    hint: "parameters: { type: 'object', properties: { … } }",
  });
}

/** Schemas in schemas that are looked into. */
const DEPTH_MAX = 16;

/** True if it is seen that a schema allows objects alone. */
function allowsObjects(schema: unknown, root: Readonly<Record<string, unknown>>, depth: number): boolean {
  const node = asRecord(schema);
  if (node === undefined || depth > DEPTH_MAX) return false;
  const { $ref: ref, const: one, enum: values, type } = node;
  if (typeof ref === 'string') {
    const path = ref
      .replace(/^#\/?/, '')
      .split('/')
      .filter((part) => part !== '');
    const found = path.reduce<unknown>((at, part) => asRecord(at)?.[part], root);
    return allowsObjects(found, root, depth + 1);
  }
  const list = node['anyOf'] ?? node['oneOf'] ?? node['allOf'];
  if (Array.isArray(list)) return list.every((alternative) => allowsObjects(alternative, root, depth + 1));
  if (Array.isArray(values)) return values.every((value) => asRecord(value) !== undefined);
  return one === undefined ? type === 'object' : asRecord(one) !== undefined;
}

/** Says in errors which tool it is. */
function namingTool<Result>(name: string, make: () => Result): Result {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    const { code, message, values, hint } = error;
    throw new KvError(code, `the tool ${name}: ${message}`, { values: { tool: name, ...values }, hint, cause: error });
  }
}
