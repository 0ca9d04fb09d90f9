/** Data of whoever asks, for a template. */
import { Text } from './text.ts';
import { Dict, type Value } from './values.ts';

/** Plain data as a template's value: texts were given, an int is a number without a part behind the point. */
export function givenValue(data: unknown): Value {
  if (typeof data === 'string') return Text.given(data);
  if (typeof data === 'number') return Number.isSafeInteger(data) && !Object.is(data, -0) ? BigInt(data) : data;
  if (data === null || typeof data === 'boolean') return data;
  if (Array.isArray(data)) return data.map((item) => givenValue(item ?? null));
  const fields = Object.entries(data as object).filter(([, value]) => value !== undefined);
  return new Dict(fields.map(([name, value]) => [Text.given(name), givenValue(value)] as const));
}
