/**
 * Packed bodies: JSON data in about a seventh of its text. Bodies that are encrypted are packed before. Each says all
 * by itself, so that it can be opened and explained alone: what it repeats (a text, a number, the keys of an object) it
 * names by the place where it stood first in the same body or in two lists that are the same for ever
 * (`pack-lists.ts`). There is one packed form for everything. docs/log-format.md has the bytes.
 */
import { isUtf8 } from 'node:buffer';
import { PACKED_SHAPES, PACKED_TEXTS } from './pack-lists.ts';

/** Every packed body begins with it; no text of a body does, which is `{`. */
export const PACKED_MARK = 1;
/** What a value begins with, where it is not itself a small number, a shape or a text. */
const TAG = {
  null: 0x40,
  false: 0x41,
  true: 0x42,
  whole: 0x43,
  negative: 0x44,
  float32: 0x45,
  double: 0x46,
  number: 0x47,
  newText: 0x48,
  text: 0x49,
  list: 0x4a,
  newShape: 0x4b,
  shape: 0x4c,
} as const;
/** A whole number below it is one byte. */
const SMALL_END = 0x40;
const SHAPE_FIRST = 0x60;
const SHAPES_SMALL = 0x20;
const TEXT_FIRST = 0x80;
const TEXTS_SMALL = 0x80;
const DEPTH_MAX = 32;
/** Characters of all texts and keys together: what is repeated is short here, and would be endless when it is told. */
const CHARS_MAX = 2 ** 24;
/** A key that would set the prototype of an object. */
const PROTOTYPE_KEY = '__proto__';

/** Half of a surrogate pair, alone. */
const HALF_PAIR = /\p{Surrogate}/u;

const TEXT_PLACES: ReadonlyMap<string, number> = new Map(PACKED_TEXTS.map((text, place) => [text, place]));
/** Between the keys of the name of a shape; a key that has it is not packed. */
const JOINT = '\0';
const SHAPE_PLACES: ReadonlyMap<string, number> = new Map(
  PACKED_SHAPES.map((keys, place) => [keys.join(JOINT), place]),
);

/** The keys of an object. */
interface Shape {
  /** As the object has them, and as they are packed. */
  readonly own: readonly string[];
  readonly keys: readonly string[];
  readonly name: string;
  /** Among those that are listed; undefined: it is not. */
  readonly place: number | undefined;
  readonly chars: number;
}

/** Objects of a kind have their keys in the same order, so these are sorted once. By count of keys; it is bounded. */
const known: Shape[][] = [];
const KNOWN_KEYS_MAX = 64;
const KNOWN_MAX = 16;

function shapeOf(own: readonly string[]): Shape {
  const shapes = own.length < KNOWN_KEYS_MAX ? (known[own.length] ??= []) : [];
  for (const shape of shapes) if (isSame(shape.own, own)) return shape;
  const keys = own.slice().sort();
  const name = keys.join(JOINT);
  const shape = { own, keys, name, place: SHAPE_PLACES.get(name), chars: charsOf(keys) };
  if (shapes.length < KNOWN_MAX) shapes.push(shape);
  return shape;
}

const charsOf = (keys: readonly string[]): number => keys.reduce((sum, key) => sum + key.length, 0);

function isSame(a: readonly string[], b: readonly string[]): boolean {
  for (let index = 0; index < a.length; index++) if (a[index] !== b[index]) return false;
  return true;
}

/** Thrown within this file where a value cannot be packed. */
class Unpackable extends Error {}

class Packer {
  #bytes = Buffer.allocUnsafeSlow(64 * 1024);
  #length = 0;
  #chars = 0;
  readonly #texts = new Map<string, number>();
  readonly #numbers = new Map<number, number>();
  readonly #shapes = new Map<string, number>();

  /** Valid until the next call. */
  pack(value: unknown): Buffer {
    this.#length = 0;
    this.#chars = 0;
    this.#texts.clear();
    this.#numbers.clear();
    this.#shapes.clear();
    this.#byte(PACKED_MARK);
    this.#value(value, 0);
    return this.#bytes.subarray(0, this.#length);
  }

  #room(bytes: number): void {
    if (this.#length + bytes <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(2 * (this.#length + bytes));
    this.#bytes.copy(larger, 0, 0, this.#length);
    this.#bytes = larger;
  }

  #byte(value: number): void {
    this.#room(1);
    this.#bytes[this.#length++] = value;
  }

  #count(value: number): void {
    this.#room(8);
    let rest = value;
    for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) this.#bytes[this.#length++] = (rest % 0x80) | 0x80;
    this.#bytes[this.#length++] = rest;
  }

  #value(value: unknown, depth: number): void {
    if (typeof value === 'string') this.#text(value);
    else if (typeof value === 'number') this.#number(value);
    else if (typeof value === 'boolean') this.#byte(value ? TAG.true : TAG.false);
    else if (value === null) this.#byte(TAG.null);
    else if (typeof value !== 'object' || depth >= DEPTH_MAX) throw new Unpackable();
    else if (Array.isArray(value)) this.#list(value, depth);
    else this.#object(value as Record<string, unknown>, depth);
  }

  #list(items: readonly unknown[], depth: number): void {
    this.#byte(TAG.list);
    this.#count(items.length);
    // Also the places of a list that hold nothing, which have no packed form.
    for (let index = 0; index < items.length; index++) this.#value(items[index], depth + 1);
  }

  #number(value: number): void {
    if (!Number.isFinite(value)) throw new Unpackable();
    const place = this.#numbers.get(value);
    if (Number.isSafeInteger(value)) this.#whole(value);
    else if (place === undefined) this.#newNumber(value);
    else {
      this.#byte(TAG.number);
      this.#count(place);
    }
  }

  #whole(value: number): void {
    if (value >= 0 && value < SMALL_END) this.#byte(value);
    else {
      this.#byte(value < 0 ? TAG.negative : TAG.whole);
      this.#count(value < 0 ? -1 - value : value);
    }
  }

  #newNumber(value: number): void {
    this.#numbers.set(value, this.#numbers.size);
    const isShort = Math.fround(value) === value;
    this.#byte(isShort ? TAG.float32 : TAG.double);
    this.#room(8);
    const length = this.#length;
    this.#length = isShort ? this.#bytes.writeFloatLE(value, length) : this.#bytes.writeDoubleLE(value, length);
  }

  #says(chars: number): void {
    this.#chars += chars;
    if (this.#chars > CHARS_MAX) throw new Unpackable();
  }

  #text(text: string): void {
    this.#says(text.length);
    const place = TEXT_PLACES.get(text) ?? this.#texts.get(text);
    if (place === undefined) this.#newText(text);
    else if (place < TEXTS_SMALL) this.#byte(TEXT_FIRST + place);
    else {
      this.#byte(TAG.text);
      this.#count(place);
    }
  }

  #newText(text: string): void {
    // UTF-8 has no half of a surrogate pair.
    if (HALF_PAIR.test(text)) throw new Unpackable();
    this.#texts.set(text, PACKED_TEXTS.length + this.#texts.size);
    const bytes = Buffer.byteLength(text);
    this.#byte(TAG.newText);
    this.#count(bytes);
    this.#room(bytes);
    this.#length += this.#bytes.write(text, this.#length, 'utf8');
  }

  #object(value: Record<string, unknown>, depth: number): void {
    const prototype: unknown = Object.getPrototypeOf(value);
    if (prototype !== Object.prototype && prototype !== null) throw new Unpackable();
    const shape = shapeOf(Object.keys(value));
    if (isDefined(value, shape.keys)) this.#fields(value, shape, depth);
    else this.#object(defined(value), depth);
  }

  #fields(value: Record<string, unknown>, shape: Shape, depth: number): void {
    this.#says(shape.chars);
    const place = shape.place ?? this.#shapes.get(shape.name);
    if (place === undefined) this.#newShape(shape);
    else if (place < SHAPES_SMALL) this.#byte(SHAPE_FIRST + place);
    else {
      this.#byte(TAG.shape);
      this.#count(place);
    }
    for (const key of shape.keys) this.#value(value[key], depth + 1);
  }

  #newShape({ keys, name }: Shape): void {
    if (keys.some((key) => key === PROTOTYPE_KEY || key.includes(JOINT))) throw new Unpackable();
    this.#shapes.set(name, PACKED_SHAPES.length + this.#shapes.size);
    this.#byte(TAG.newShape);
    this.#count(keys.length);
    for (const key of keys) this.#text(key);
  }
}

/** A field that is undefined is none. */
function isDefined(value: Record<string, unknown>, keys: readonly string[]): boolean {
  for (const key of keys) if (value[key] === undefined) return false;
  return true;
}

const defined = (value: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined));

const packer = new Packer();

/**
 * The packed form of plain data, valid until the next call; null: it has none, and is spelled as text (half of a
 * surrogate pair, or what no log holds).
 */
export function packBody(value: unknown): Buffer | null {
  try {
    return packer.pack(value);
  } catch (error) {
    if (error instanceof Unpackable) return null;
    throw error;
  }
}

/** Thrown within this file where bytes are no packed body. */
class Unreadable extends Error {}

type KnownShape = Pick<Shape, 'keys' | 'chars'>;
const LISTED_SHAPES: readonly KnownShape[] = PACKED_SHAPES.map((keys) => ({ keys, chars: charsOf(keys) }));

class Unpacker {
  readonly #bytes: Buffer;
  #at = 1;
  #chars = 0;
  readonly #texts: string[] = [];
  readonly #numbers: number[] = [];
  readonly #shapes: KnownShape[] = [];

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  unpack(): unknown {
    const value = this.#value(0);
    if (this.#at !== this.#bytes.length) throw new Unreadable();
    return value;
  }

  #byte(): number {
    const byte = this.#bytes[this.#at++];
    if (byte === undefined) throw new Unreadable();
    return byte;
  }

  #count(): number {
    let count = 0;
    for (let factor = 1; factor <= 2 ** 49; factor *= 0x80) {
      const byte = this.#byte();
      count += (byte % 0x80) * factor;
      if (byte < 0x80) return count;
    }
    throw new Unreadable();
  }

  /** Number of things that follow, each of at least a byte. */
  #following(): number {
    const count = this.#count();
    if (count > this.#bytes.length - this.#at) throw new Unreadable();
    return count;
  }

  #value(depth: number): unknown {
    const byte = this.#byte();
    if (byte < SMALL_END) return byte;
    if (byte >= TEXT_FIRST) return this.#text(byte);
    if (byte >= SHAPE_FIRST) return this.#object(this.#shapeAt(byte - SHAPE_FIRST), depth);
    switch (byte) {
      case TAG.null:
        return null;
      case TAG.false:
        return false;
      case TAG.true:
        return true;
      case TAG.whole:
        return this.#count();
      case TAG.negative:
        return -1 - this.#count();
      case TAG.float32:
      case TAG.double:
        return this.#float(byte === TAG.float32 ? 4 : 8);
      case TAG.number:
        return this.#numbers[this.#count()];
      case TAG.newText:
      case TAG.text:
        return this.#text(byte);
    }
    if (depth >= DEPTH_MAX) throw new Unreadable();
    if (byte === TAG.list) return Array.from({ length: this.#following() }, () => this.#value(depth + 1));
    return this.#object(this.#shape(byte), depth);
  }

  #float(bytes: 4 | 8): number {
    if (this.#at + bytes > this.#bytes.length) throw new Unreadable();
    const value = bytes === 4 ? this.#bytes.readFloatLE(this.#at) : this.#bytes.readDoubleLE(this.#at);
    this.#at += bytes;
    this.#numbers.push(value);
    return value;
  }

  /** Before so many characters more are named: packing refuses them too. */
  #says(chars: number): void {
    this.#chars += chars;
    if (this.#chars > CHARS_MAX) throw new Unreadable();
  }

  #text(tag: number): string | undefined {
    const text = this.#textAt(tag);
    this.#says(text?.length ?? 0);
    return text;
  }

  #textAt(tag: number): string | undefined {
    if (tag >= TEXT_FIRST) return PACKED_TEXTS[tag - TEXT_FIRST];
    if (tag === TAG.text) {
      const place = this.#count();
      return PACKED_TEXTS[place] ?? this.#texts[place - PACKED_TEXTS.length];
    }
    if (tag !== TAG.newText) throw new Unreadable();
    const bytes = this.#following();
    const utf8 = this.#bytes.subarray(this.#at, this.#at + bytes);
    if (!isUtf8(utf8)) throw new Unreadable();
    const text = utf8.toString('utf8');
    this.#at += bytes;
    this.#texts.push(text);
    return text;
  }

  #shapeAt(place: number): KnownShape | undefined {
    return LISTED_SHAPES[place] ?? this.#shapes[place - LISTED_SHAPES.length];
  }

  #shape(tag: number): KnownShape | undefined {
    if (tag === TAG.shape) return this.#shapeAt(this.#count());
    if (tag !== TAG.newShape) throw new Unreadable();
    const keys = Array.from({ length: this.#following() }, () => this.#text(this.#byte()) ?? PROTOTYPE_KEY);
    if (keys.includes(PROTOTYPE_KEY)) throw new Unreadable();
    const shape = { keys, chars: charsOf(keys) };
    this.#shapes.push(shape);
    return shape;
  }

  #object(shape: KnownShape | undefined, depth: number): Record<string, unknown> {
    if (shape === undefined || depth >= DEPTH_MAX) throw new Unreadable();
    this.#says(shape.chars);
    const value: Record<string, unknown> = {};
    for (const key of shape.keys) value[key] = this.#value(depth + 1);
    return value;
  }
}

/** What was packed; undefined: these bytes are not the one packed form of anything. */
export function unpackBody(bytes: Buffer): unknown {
  if (bytes[0] !== PACKED_MARK) return undefined;
  let value: unknown;
  try {
    value = new Unpacker(bytes).unpack();
  } catch {
    // `Unreadable`: nothing else is thrown.
    return undefined;
  }
  return packBody(value)?.equals(bytes) === true ? value : undefined;
}
