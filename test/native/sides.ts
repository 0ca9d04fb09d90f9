/**
 * Sides of pages by the fields of their formats: as test bindings take one head (native/test_call.h), and as a cache
 * stores them.
 */
import {
  ALL_FAMILIES,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  isMove,
  PAGE_PART_ALIGN,
  SERVED_FORMATS,
  SIDES,
  type Side,
} from '../../native/format.ts';
import { type FormatDescriptor, fieldBytes } from '../../native/formats/descriptor.ts';
import type { KvCache } from '../../native/index.ts';

const align = (bytes: number): number => Math.ceil(bytes / PAGE_PART_ALIGN) * PAGE_PART_ALIGN;
const fieldsOf = (format: FormatName) =>
  FORMATS[format].parts.flatMap(({ fields }, part) => fields.map((field) => ({ part, ...field })));

/** True if a move works on codes alone. */
export const isDemotion = (from: FormatName, to: FormatName): boolean =>
  from !== to && isMove(from, to) && FORMATS[from].nested && FORMATS[to].nested && familyOf(from) === familyOf(to);
const familyOf = (name: FormatName): FormatDescriptor =>
  ALL_FAMILIES.map(([, { formats }]) => formats).find((formats) => formats.some((one) => one.name === name))![0]!;

interface Place {
  readonly name: string;
  readonly at: number;
  readonly bytes: number;
  readonly elementBits: number;
}

/** Where the fields of one head lie for a test binding: one after the other, each at a multiple of 64. */
export function placesOf(format: FormatName, headDim: number): Place[] {
  let at = 0;
  return fieldsOf(format).map((field) => {
    const place = { name: field.name, at, bytes: fieldBytes(field, headDim), elementBits: field.elementBits ?? 0 };
    at += align(place.bytes);
    return place;
  });
}

/** What a test binding takes for one head in any format. */
export const sideBytes = (headDim: number): number =>
  Math.max(
    ...SERVED_FORMATS.map((format) => placesOf(format, headDim).reduce((sum, { bytes }) => sum + align(bytes), 0)),
  );

/** Stored fields as a test binding takes them. */
export function packSide(
  format: FormatName,
  headDim: number,
  fields: Readonly<Record<string, Uint8Array>>,
): Uint8Array {
  const packed = new Uint8Array(sideBytes(headDim));
  for (const { name, at } of placesOf(format, headDim)) packed.set(fields[name]!, at);
  return packed;
}

/** The field `name` of a side as a test binding holds it. */
export function fieldIn(format: FormatName, headDim: number, packed: Uint8Array, name: string): Uint8Array {
  const { at, bytes } = placesOf(format, headDim).find((place) => place.name === name)!;
  return packed.subarray(at, at + bytes);
}

/** The bytes of one side of a sealed page, without padding: by field, all heads one after the other. */
export function storedFields(cache: KvCache, layer: number, page: number, side: Side): Record<string, Uint8Array> {
  const { kvHeads, headDim } = cache.shape;
  const table = cache.table(layer);
  const stored = cache.exportPage(layer, page).subarray(128);
  const found: Record<string, Uint8Array> = {};
  let at = 0;
  for (const which of SIDES) {
    const format = FORMAT_NAMES[(which === 'k' ? table.kFormat : table.vFormat)[page]!]!;
    const fields = fieldsOf(format);
    for (const [part] of FORMATS[format].parts.entries()) {
      const start = at;
      for (const field of fields.filter((one) => one.part === part)) {
        const bytes = kvHeads * fieldBytes(field, headDim);
        if (which === side) found[field.name] = stored.slice(at, at + bytes);
        at += bytes;
      }
      at = start + align(at - start);
    }
  }
  return found;
}

/** One head of a stored field. */
export const headOf = (field: Uint8Array, head: number, kvHeads: number): Uint8Array =>
  field.subarray((head * field.length) / kvHeads, ((head + 1) * field.length) / kvHeads);
