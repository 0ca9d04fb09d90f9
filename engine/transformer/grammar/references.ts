/**
 * What a `$ref` leads to: a place in the schema by JSON pointer (RFC 6901), a `$anchor`, or the `$id` of the schema or
 * of one within it.
 */
import { asRecord, KvError, show } from '../../../native/index.ts';
import type { JsonSchema } from './options.ts';

export type Node = Readonly<Record<string, unknown>>;

/** The address of a schema that gives itself none. */
const ROOT = 'schema://root/';
/** What holds data, of which nothing is a schema. */
const DATA = ['const', 'enum', 'default', 'examples'];

export class References {
  readonly #resources = new Map<string, JsonSchema>();
  readonly #anchors = new Map<string, JsonSchema>();
  /** The address behind which each schema stands. */
  readonly #bases = new Map<object, string>();

  constructor(root: JsonSchema) {
    this.#resources.set(ROOT, root);
    const left: { readonly value: unknown; readonly base: string }[] = [{ value: root, base: ROOT }];
    for (let next = left.pop(); next !== undefined; next = left.pop()) {
      if (typeof next.value !== 'object' || next.value === null) continue;
      const base = this.#enter(next.value as Node, next.base);
      for (const [key, value] of Object.entries(next.value)) if (!DATA.includes(key)) left.push({ value, base });
    }
  }

  /**
   * from: the schema that refers. Throws 'unsupported' for what is not in this schema, 'bad-argument' where nothing is.
   */
  find(ref: unknown, from: Node, where: string): JsonSchema {
    const address = typeof ref === 'string' ? absolute(ref, this.#bases.get(from) ?? ROOT) : null;
    const [resource, fragment = ''] = address?.split('#') ?? [];
    const root = resource === undefined ? undefined : this.#resources.get(resource);
    if (root === undefined)
      throw new KvError(
        'unsupported',
        `the schema at ${where} refers to ${show(ref).slice(0, 80)}, which is not in it`,
        {
          values: { ref: show(ref).slice(0, 80), where },
          hint: 'copy what is referred to into $defs',
        },
      );
    const found = fragment === '' || fragment.startsWith('/') ? pointed(root, fragment) : this.#anchors.get(address!);
    if (typeof found === 'boolean' || asRecord(found) !== undefined) return found as JsonSchema;
    throw new KvError(
      'bad-argument',
      `the schema at ${where} refers to ${String(ref).slice(0, 80)}, where there is none`,
      {
        values: { ref: String(ref).slice(0, 80), where },
      },
    );
  }

  /** → the address behind which what is in it stands */
  #enter(node: Node, outer: string): string {
    const { $id: id, $anchor: anchor } = node;
    const own = typeof id === 'string' ? absolute(id, outer)?.replace(/#$/, '') : undefined;
    const base = own ?? outer;
    if (own !== undefined) this.#resources.set(own, node);
    if (typeof anchor === 'string') this.#anchors.set(`${base}#${anchor}`, node);
    this.#bases.set(node, base);
    return base;
  }
}

function absolute(ref: string, base: string): string | null {
  try {
    return new URL(ref, base).href;
  } catch {
    return null;
  }
}

function pointed(root: JsonSchema, pointer: string): unknown {
  let at: unknown = root;
  for (const part of pointer.split('/').slice(1)) {
    const key = decoded(part).replaceAll('~1', '/').replaceAll('~0', '~');
    at = typeof at === 'object' && at !== null && Object.hasOwn(at, key) ? (at as Node)[key] : undefined;
  }
  return at;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
