/** The OpenAPI 3.1 document of the live view, made from the table of its routes. */
import { z } from 'zod';
import { packageVersion } from '../../native/index.ts';
import type { AnsweredPath } from '../openai/paths.ts';
import { ANSWERED } from './answered.ts';
import { ANSWERS } from './answers.ts';
import { ROUTES, type Route } from './routes.ts';

const schemaOf = (schema: z.ZodType): object => {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { unrepresentable: 'any' });
  return rest;
};

const parametersOf = (schema: z.ZodObject, where: 'path' | 'query'): object[] =>
  Object.entries(schema.shape as Readonly<Record<string, z.ZodType>>).map(([name, field]) => {
    const { $schema: _, description, ...rest } = z.toJSONSchema(field, { io: 'input' });
    const isRequired = !field.safeParse(undefined).success;
    return {
      name,
      in: where,
      required: isRequired,
      ...(description === undefined ? {} : { description }),
      schema: rest,
    };
  });

function operation({ does, inPath, inQuery, type, answer, changes }: Route): object {
  const media = type.split(';')[0]!;
  const schema = answer === undefined ? { type: media === 'application/json' ? 'object' : 'string' } : schemaOf(answer);
  return {
    summary: does,
    parameters: [...parametersOf(inPath, 'path'), ...parametersOf(inQuery, 'query')],
    responses: {
      200: { description: does, content: { [media]: { schema } } },
      default: {
        description: 'What was refused, and why.',
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      },
    },
    security: changes === true ? [{ token: [] }] : [{}, { token: [] }],
  };
}

/** An operation of the API for clients of OpenAI servers. */
function answered({ path, does, body, streams }: AnsweredPath): object {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!);
  const json = { 'application/json': { schema: { type: 'object' } } };
  const events = streams === true ? { 'text/event-stream': { schema: { type: 'string' } } } : {};
  return {
    summary: does,
    parameters: names.map((name) => ({ name, in: 'path', required: true, schema: { type: 'string' } })),
    ...(body === undefined
      ? {}
      : { requestBody: { required: true, content: { 'application/json': { schema: schemaOf(body) } } } }),
    responses: {
      200: { description: does, content: { ...json, ...events } },
      default: {
        description: 'What was refused, and why.',
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      },
    },
    security: [{}, { token: [] }],
  };
}

/** The document as an object. answers: true if prompts are answered here. */
export function openApi(answers = false): object {
  return {
    openapi: '3.1.0',
    info: {
      title: 'palimpsest live view',
      version: packageVersion(),
      description:
        'What the caches of an engine hold and decide, read from its log, and where prompts are answered, the paths that clients of OpenAI servers ask. What is asked by POST without a body changes something, and needs a token.',
    },
    paths: Object.fromEntries([
      ...ROUTES.map((route) => [route.path, { [route.changes === true ? 'post' : 'get']: operation(route) }] as const),
      ...(answers ? ANSWERED : []).map(
        (one) =>
          [
            one.path,
            {
              [one.body === undefined ? 'get' : 'post']: answered(one),
              ...(one.removes === true ? { delete: answered(one) } : {}),
            },
          ] as const,
      ),
    ]),
    components: {
      schemas: { Error: schemaOf(ANSWERS.error) },
      securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
    },
  };
}
