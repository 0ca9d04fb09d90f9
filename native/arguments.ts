/** Checks of arguments. Each throws a KvError that names the argument and its value. */
import { KvError } from './error.ts';
import { checkServed, FORMATS, type FormatName, PARTS, type Part, SIDES, type Side, servedFormats } from './format.ts';

export function fail(message: string, values: Readonly<Record<string, unknown>>, hint?: string): never {
  throw new KvError('bad-argument', message, { values, hint });
}

/** Elements of a list that are shown. */
const SHOWN_MAX = 16;

/**
 * A short text for any value, even for proxies that throw and detached arrays. Of a list, its first elements; of those
 * that are objects, their kind.
 */
export function show(value: unknown): string {
  try {
    return Array.isArray(value) ? value.slice(0, SHOWN_MAX).map(kindOrText).join(',') : kindOrText(value);
  } catch {
    return '[object]';
  }
}

const kindOrText = (value: unknown): string =>
  (typeof value === 'object' && value !== null) || typeof value === 'function'
    ? Object.prototype.toString.call(value)
    : String(value);

export function integer(value: unknown, name: string, least: number, most: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < least || value > most) {
    fail(`${name} must be an integer from ${least} to ${most}`, { [name]: show(value) });
  }
  return value;
}

export function floats(value: unknown, name: string): Float32Array {
  if (!(value instanceof Float32Array)) fail(`${name} must be a Float32Array`, { [name]: show(value) });
  return value;
}

export function record(value: unknown, name: string): void {
  if (typeof value !== 'object' || value === null) fail(`${name} must be an object`, { [name]: show(value) });
}

export function shapeError(message: string, values: Readonly<Record<string, unknown>>, hint?: string): never {
  throw new KvError('bad-shape', message, { values, hint });
}

export function overlaps(a: Float32Array, b: Float32Array): boolean {
  return (
    a.buffer === b.buffer && a.byteOffset < b.byteOffset + b.byteLength && b.byteOffset < a.byteOffset + a.byteLength
  );
}

export function sideId(side: Side): number {
  const id = SIDES.indexOf(side);
  if (id < 0) fail("side must be 'k' or 'v'", { side: show(side) });
  return id;
}

export function partId(part: Part): number {
  const id = PARTS.indexOf(part);
  if (id < 0) fail("side must be 'k', 'v' or 'kv'", { side: show(part) });
  return id;
}

export function formatId(format: FormatName): number {
  const id = formatNumber(format);
  if (id === UNKNOWN) {
    throw new KvError('unsupported', `unknown format '${show(format)}'`, {
      values: { given: show(format), known: servedFormats().join(', ') },
    });
  }
  checkServed(format);
  return id;
}

export function closed(what: string): never {
  throw new KvError('closed', `the ${what} was closed`, { hint: `open a new ${what}` });
}

/** A number that stands for no side and no format, so that the binary refuses it. */
const UNKNOWN = 255;

/** The id of a side or part, or UNKNOWN. Unlike `sideId` and `partId` it does not throw. */
export const sideNumber = (side: Side | undefined): number => (side === 'k' ? 0 : side === 'v' ? 1 : UNKNOWN);
export const partNumber = (part: Part | undefined): number => (part === 'kv' ? 2 : sideNumber(part));

/** The id of a format, or UNKNOWN. Unlike `formatId` it does not throw. */
export const formatNumber = (format: FormatName | undefined): number =>
  typeof format === 'string' && Object.hasOwn(FORMATS, format) ? FORMATS[format].id : UNKNOWN;
