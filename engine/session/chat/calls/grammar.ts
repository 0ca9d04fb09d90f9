/**
 * The grammar of calls: each tool by its name, with arguments that fulfil its schema, in the syntax of the model's
 * family.
 */
import { asRecord, KvError } from '../../../../native/index.ts';
import { literal } from '../../../transformer/grammar/notation.ts';
import { type JsonSchema, Repetitions } from '../../../transformer/grammar/options.ts';
import { Rules } from '../../../transformer/grammar/rules.ts';
import {
  allowsObjectsAlone,
  type FollowedSchema,
  type FollowedText,
  schemaExpression,
} from '../../../transformer/grammar/schema.ts';
import { markCharacter } from '../../../transformer/grammar/source.ts';
import type { ChatTool } from '../../../transformer/types.ts';
import type { CallFormat, Spelling } from './call.ts';

/**
 * Whatever fulfils it is a call, or several, that the format reads. unchecked: tools whose arguments may be anything.
 * marks: those that are tokens, in the order of their markCharacter. Throws 'bad-argument' and 'unsupported'.
 */
export function callGrammar(
  format: CallFormat,
  tools: readonly ChatTool[],
  { marks, ...how }: Omit<Spelling, 'mark'> & { readonly marks: readonly string[] },
): FollowedText & { readonly unchecked: readonly string[] } {
  const mark = (text: string): string =>
    marks.includes(text) ? `"\\x0${markCharacter(marks.indexOf(text)).charCodeAt(0)}"` : literal(text);
  const spelling = { ...how, mark };
  const rules = new Rules(format.notation?.(spelling));
  const repetitions = new Repetitions();
  const followed = tools.map((tool) => ({ name: tool.name, ...argumentsExpression(tool, rules, repetitions) }));
  const callable = followed.map(({ name, expression }) => ({ name, given: expression }));
  const text = rules.grammar(rules.add(format.grammar(callable, rules, spelling)));
  const left = new Map(followed.flatMap(({ name, fulfils }) => (fulfils === null ? [] : [[name, fulfils] as const])));
  const isRight = (answer: string): boolean =>
    format.parse(answer)?.calls.every((call) => left.get(call.name)?.(call.arguments) !== false) === true;
  const unchecked = followed.filter(({ isChecked }) => !isChecked).map(({ name }) => name);
  return { text, fulfils: left.size === 0 ? null : isRight, unchecked };
}

/** Of a tool that may go unchecked, any object where its schema cannot be followed. */
function argumentsExpression(
  tool: ChatTool,
  rules: Rules,
  repetitions: Repetitions,
): FollowedSchema & { readonly isChecked: boolean } {
  try {
    const followed = namingTool(tool.name, () => schemaExpression(argumentsOf(tool), rules, repetitions));
    return { ...followed, isChecked: true };
  } catch (error) {
    if (tool.strict !== false || !(error instanceof KvError) || error.code !== 'unsupported') throw error;
    return { expression: 'object', fulfils: null, isChecked: false };
  }
}

/** What a tool takes, as a schema of objects and nothing else. A tool that names no property takes none. */
function argumentsOf({ parameters = {} }: ChatTool): JsonSchema {
  const isNamed =
    Object.keys(asRecord(parameters['properties']) ?? {}).length > 0 || parameters['required'] !== undefined;
  const isMap = ['patternProperties', 'propertyNames'].some((key) => parameters[key] !== undefined);
  const isWhole = ['$ref', 'const', 'enum', 'anyOf', 'oneOf', 'allOf'].some((key) => parameters[key] !== undefined);
  const { type = 'object' } = parameters;
  if (isWhole && allowsObjectsAlone(parameters)) return parameters;
  if (!isWhole && type === 'object') {
    const { additionalProperties = isNamed || isMap } = parameters;
    return { ...parameters, type, additionalProperties } as JsonSchema;
  }
  throw new KvError('bad-argument', 'the schema of the arguments allows what is no object', {
    hint: "parameters: { type: 'object', properties: { … } }",
  });
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
