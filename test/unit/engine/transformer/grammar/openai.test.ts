// What the helpers of OpenAI's package write of schemas of zod 3 and 4 (zodResponseFormat, zodTextFormat, zodFunction),
// recorded by scripts/openai-schemas.ts: each is followed, takes a value that zod takes, and not another.
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { JsonSchema } from '../../../../../engine/transformer/grammar/options.ts';
import { onGrammars } from './following.ts';

const { follow } = onGrammars();

interface Recorded {
  readonly asks: string;
  readonly schema: JsonSchema;
  readonly right: unknown;
  readonly wrong: unknown;
}

const path = new URL('../../../../golden/openai-schemas.json', import.meta.url);
const { schemas } = JSON.parse(readFileSync(path, 'utf8')) as { readonly schemas: readonly Recorded[] };

/** On one line, with a space behind commas and colons. */
const spelled = (value: unknown): string =>
  JSON.stringify(value, null, 1)
    .replace(/\n\s*/g, ' ')
    .replace(/([[{]) | (?=[\]}])/g, '$1');

describe('a schema of the package openai', () => {
  it.each(schemas)('$asks', async ({ schema, right, wrong }) => {
    expect(await follow({ jsonSchema: schema }, spelled(right))).toBe('complete');
    expect(await follow({ jsonSchema: schema }, spelled(wrong))).not.toBe('complete');
  });
});
