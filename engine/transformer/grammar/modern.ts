/** Schemas of older drafts as the newest writes them. */
import { asRecord } from '../../../native/index.ts';
import type { Node } from './references.ts';

/** A schema that allows nothing, as it is written: `false`, or `{ not: {} }`. */
export function isNothing(schema: unknown): boolean {
  const not = asRecord(schema)?.['not'];
  return schema === false || not === true || (asRecord(not) !== undefined && Object.keys(not as object).length === 0);
}

/** Where nothing is old, the same. What is beside nothing that looks into it is not evaluated by anything else. */
export function modern(given: Node): Node {
  const node = withNull(evaluated(given));
  const { items, additionalItems, exclusiveMinimum: above, exclusiveMaximum: below, ...others } = node;
  const hasOldBound = typeof above === 'boolean' || typeof below === 'boolean';
  if (!Array.isArray(items) && additionalItems === undefined && !hasOldBound) return node;
  const made: Record<string, unknown> = { ...others };
  if (Array.isArray(items)) Object.assign(made, { prefixItems: items, items: additionalItems ?? true });
  else if (items !== undefined) made['items'] = items;
  for (const [closed, open, value] of [
    ['minimum', 'exclusiveMinimum', above],
    ['maximum', 'exclusiveMaximum', below],
  ] as const) {
    if (typeof value !== 'boolean') {
      if (value !== undefined) made[open] = value;
    } else if (value && made[closed] !== undefined) {
      made[open] = made[closed];
      delete made[closed];
    }
  }
  return made;
}

/** `nullable` of OpenAPI 3.0, beside a type: null is allowed as well. */
function withNull({ nullable, ...node }: Node): Node {
  const { type, enum: values, const: value } = node;
  if (nullable !== true || type === undefined) return nullable === undefined ? node : { nullable, ...node };
  const listed = Array.isArray(values) ? values : value === undefined ? null : [value];
  const { const: _, ...others } = node;
  return {
    ...others,
    type: [...new Set([...(Array.isArray(type) ? type : [type]), 'null'])],
    ...(listed === null ? {} : { enum: [...new Set([...listed, null])] }),
  };
}

/** All properties and items that it names are those that were evaluated. */
export function evaluated({ unevaluatedProperties: properties, unevaluatedItems: items, ...node }: Node): Node {
  if (properties === undefined && items === undefined) return node;
  return {
    ...node,
    ...(properties === undefined ? {} : { additionalProperties: node['additionalProperties'] ?? properties }),
    ...(items === undefined ? {} : { items: node['items'] ?? items }),
  };
}
