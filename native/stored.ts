/**
 * The stored bytes of a sealed page. exportPage() writes them and importPage() reads them, for example into another
 * cache of the same model. They describe themselves, and importPage() uses nothing of them that it has not checked.
 *
 * All numbers are little-endian. The first 128 bytes are a head:
 *
 *     0  'KVPAGE' and two digits: the version of this container      8  u32 kind (index in PAGE_KINDS)
 *    12  u32 position of the first token                            16  u32 tokens of a page
 *    20  u32 sink tokens among them                                 24  u32 KV heads
 *    28  u32 head size                                              32  u32 width of the latent, 0 for none
 *    36  u32 bytes between this head and the checksum
 *    40  the formats of keys, of values and of the latent, each a name of 16 bytes (ASCII, padded with zeros) and its
 *    u32 layout
 *        version; both are zero where there is none
 *   100  zeros
 *
 * After the head come the parts of the keys and of the values, the latent, and, if the page is at position 0, the exact
 * sinks; of a freed or evicted page no more than those, and of a foreign one the bytes of the caller before them. The
 * last four bytes are the CRC-32 (as in gzip) of everything before them.
 */
import { crc32 } from 'node:zlib';
import { fail, show } from './arguments.ts';
import { KvError } from './error.ts';
import { checkServed, FORMAT_NAMES, FORMATS, isFormatName, nameOfId, PAGE_TOKENS, SINK_TOKENS } from './format.ts';
import { firstToken } from './geometry.ts';
import { LATENT_LAYOUT_VERSION, LATENT_NAMES } from './latent.ts';
import { type CacheHandle, check } from './load.ts';
import { type CacheShape, PAGE_KINDS, type PageKind, type PageTable } from './types.ts';

const MAGIC = 'KVPAGE01';
const HEAD_BYTES = 128;
const CRC_BYTES = 4;
const NAME_BYTES = 16;
const NAMES_AT = 40;

/**
 * The formats of a page by their ids: keys and values are null if it is held as a latent or nothing is left of it, and
 * the latent is null if it has none.
 */
interface Content {
  readonly kind: number;
  readonly formats: readonly [k: number | null, v: number | null, latent: number | null];
  readonly latentWidth: number;
}

/** True for pages that have neither keys and values of ours nor a latent. */
const isGone = (kind: PageKind | undefined): boolean => kind === 'freed' || kind === 'evicted' || kind === 'foreign';

const damaged = (message: string, values: Readonly<Record<string, unknown>>): never => {
  throw new KvError('bad-file', `stored page: ${message}`, { values, hint: 'export the page again' });
};

export function exportPage(
  handle: CacheHandle,
  shape: CacheShape,
  layer: number,
  page: number,
  table: PageTable,
): Uint8Array {
  const about = new Int32Array(2);
  const doing = `export page ${page} of layer ${layer}`;
  check(handle.exportPage(layer, page, about), doing, { layer, page });
  const [size, latentWidth] = about as unknown as [number, number];
  const kind = table.kind[page]!;
  const isResident = PAGE_KINDS[kind] === 'resident';
  const latent = table.latent[page]! - 1;
  const formats = [
    isResident ? idAt(table.kFormat[page]!) : null,
    isResident ? idAt(table.vFormat[page]!) : null,
    latent < 0 ? null : latent,
  ] as const;
  const bytes = new Uint8Array(HEAD_BYTES + size + CRC_BYTES);
  writeHead(bytes, shape, firstToken(page), { kind, formats, latentWidth });
  check(handle.exportPage(layer, page, about, bytes.subarray(HEAD_BYTES, HEAD_BYTES + size)), doing, { layer, page });
  const end = HEAD_BYTES + size;
  new DataView(bytes.buffer).setUint32(end, crc32(bytes.subarray(0, end)), true);
  return bytes;
}

/** The id of a format by its place in FORMAT_NAMES, which is what tables hold. */
const idAt = (place: number): number => FORMATS[FORMAT_NAMES[place]!].id;

/** The names and layout versions of a page's three formats. */
function described(formats: Content['formats']): readonly (readonly [name: string, version: number])[] {
  return formats.map((id, i) => {
    if (id === null) return ['', 0];
    if (i === 2) return [LATENT_NAMES[id]!, LATENT_LAYOUT_VERSION];
    const { name, layoutVersion } = FORMATS[nameOfId(id)];
    return [name, layoutVersion];
  });
}

function writeHead(bytes: Uint8Array, { kvHeads, headDim }: CacheShape, position: number, content: Content): void {
  const view = new DataView(bytes.buffer);
  new TextEncoder().encodeInto(MAGIC, bytes);
  const size = bytes.length - HEAD_BYTES - CRC_BYTES;
  const { kind, latentWidth } = content;
  const numbers = [kind, position, PAGE_TOKENS, SINK_TOKENS, kvHeads, headDim, latentWidth, size];
  numbers.forEach((number, i) => {
    view.setUint32(8 + 4 * i, number, true);
  });
  described(content.formats).forEach(([name, version], i) => {
    const at = NAMES_AT + i * (NAME_BYTES + 4);
    new TextEncoder().encodeInto(name, bytes.subarray(at, at + NAME_BYTES));
    view.setUint32(at + NAME_BYTES, version, true);
  });
}

/** Imports a page at `position`, the number of tokens that the layer holds. If it throws, nothing has changed. */
export function importPage(
  handle: CacheHandle,
  shape: CacheShape,
  layer: number,
  position: number,
  bytes: Uint8Array,
): void {
  if (position % PAGE_TOKENS !== 0) {
    fail(`layer ${layer} holds ${position} tokens: a page can only follow a full page`, { layer, tokens: position });
  }
  checkSum(bytes);
  const { kind, formats, latentWidth } = readHead(bytes, shape, position);
  const [k, v, latent] = formats;
  const numbers = Int32Array.of(kind, k ?? 0, v ?? 0, latent === null ? 0 : latent + 1, latentWidth);
  const status = handle.importPage(layer, numbers, bytes.subarray(HEAD_BYTES, bytes.length - CRC_BYTES));
  check(status, `import a page into layer ${layer}`, { layer, position, bytes: bytes.length });
}

/** Where the parts of a page without latents lie among its bytes, and the ids of its formats. */
interface Whole {
  /** Of what is no resident page there are at most bytes of the caller and the sinks; its formats mean nothing. */
  readonly kind: 'resident' | 'freed' | 'evicted' | 'foreign';
  readonly k: number;
  readonly v: number;
  readonly at: number;
  readonly length: number;
}

/** Reads heads of stored pages, of which those that say the same are read once, and verifies checksums. */
export function storedContent(shape: CacheShape): (bytes: Uint8Array, position: number) => Whole {
  const known = new Map<string, Whole>();
  return (bytes, position) => {
    checkSum(bytes);
    const all = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    // Everything but the position.
    const key = `${bytes.length} ${all.toString('latin1', 0, 12)}${all.toString('latin1', 16, HEAD_BYTES)}`;
    const before = known.get(key);
    if (before !== undefined && all.readUInt32LE(12) === position) return before;
    const { kind, formats, latentWidth } = readHead(bytes, shape, position);
    const [k, v] = formats;
    const name = PAGE_KINDS[kind] as PageKind;
    if (!isGone(name) && (name !== 'resident' || latentWidth > 0 || k === null || v === null))
      throw new KvError('unsupported', 'stored page: pages with latents are imported one by one');
    const at = { at: HEAD_BYTES, length: bytes.length - HEAD_BYTES - CRC_BYTES };
    const content = { kind: name as Whole['kind'], k: k ?? 0, v: v ?? 0, ...at };
    known.set(key, content);
    return content;
  };
}

function checkSum(bytes: Uint8Array): void {
  if (!(bytes instanceof Uint8Array)) fail('bytes must be a Uint8Array', { bytes: show(bytes) });
  const end = bytes.length - CRC_BYTES;
  if (end < HEAD_BYTES) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  if (MAGIC !== String.fromCharCode(...bytes.subarray(0, MAGIC.length))) return;
  const [expected, found] = [view.getUint32(end, true), crc32(bytes.subarray(0, end))];
  if (expected !== found) {
    throw new KvError('checksum-mismatch', 'stored page: its bytes have been changed or cut off', {
      values: { expected, found, bytes: bytes.length },
      hint: 'export the page again',
    });
  }
}

/** Throws for bytes that are no page, or not of this shape and position. */
function readHead(bytes: Uint8Array, shape: CacheShape, position: number): Content {
  const end = bytes.length - CRC_BYTES;
  if (end < HEAD_BYTES)
    damaged(`${bytes.length} bytes are too few`, { bytes: bytes.length, least: HEAD_BYTES + CRC_BYTES });
  const text = (at: number, length: number): string => String.fromCharCode(...bytes.subarray(at, at + length));
  if (text(0, MAGIC.length) !== MAGIC)
    damaged('the bytes do not begin as those of a page of this version do', { expected: MAGIC });
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const numbers = Array.from({ length: 8 }, (_, i) => view.getUint32(8 + 4 * i, true));
  const [kind, from, tokens, sinks, kvHeads, headDim, latentWidth, size] = numbers as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  if (size !== end - HEAD_BYTES) damaged('its sizes disagree', { said: size, found: end - HEAD_BYTES });
  if (tokens !== PAGE_TOKENS || sinks !== SINK_TOKENS || kvHeads !== shape.kvHeads || headDim !== shape.headDim) {
    throw new KvError('bad-shape', 'stored page: it comes from a cache of another shape', {
      values: { tokens, sinks, kvHeads, headDim, cacheKvHeads: shape.kvHeads, cacheHeadDim: shape.headDim },
    });
  }
  if (from !== position) {
    fail(`the stored page begins at token ${from}, but the next page of the layer begins at ${position}`, {
      from,
      position,
    });
  }
  const isResident = PAGE_KINDS[kind] === 'resident';
  if (!isResident && PAGE_KINDS[kind] !== 'latent' && !isGone(PAGE_KINDS[kind]))
    damaged('its kind is unknown', { kind });
  if (bytes.subarray(NAMES_AT + 3 * (NAME_BYTES + 4), HEAD_BYTES).some((byte) => byte !== 0))
    damaged('unused bytes are not zero', {});
  const formats = [0, 1, 2].map((i) => {
    const at = NAMES_AT + i * (NAME_BYTES + 4);
    return formatNamed(text(at, NAME_BYTES).replace(/\0+$/, ''), view.getUint32(at + NAME_BYTES, true), i === 2);
  }) as unknown as Content['formats'];
  if (formats.slice(0, 2).some((id) => (id !== null) !== isResident) || (formats[2] !== null) !== latentWidth > 0) {
    damaged('its kind does not fit its formats', { kind, latentWidth });
  }
  if (isGone(PAGE_KINDS[kind]) && latentWidth > 0) damaged('nothing is left of it but a latent', { latentWidth });
  return { kind, formats, latentWidth };
}

function formatNamed(name: string, version: number, isLatent: boolean): number | null {
  if (name === '' && version === 0) return null;
  const format = isFormatName(name) ? FORMATS[name] : null;
  if (format !== null && !isLatent) checkServed(format.name);
  const id = isLatent ? (LATENT_NAMES as readonly string[]).indexOf(name) : (format?.id ?? -1);
  const known = isLatent ? (id < 0 ? null : LATENT_LAYOUT_VERSION) : (format?.layoutVersion ?? null);
  if (known !== version) {
    throw new KvError(
      'unsupported',
      `stored page: there is no format ${JSON.stringify(name)} with layout version ${version}`,
      {
        values: { format: name, layoutVersion: version, known },
        hint: 'export the page with this version of palimpsest',
      },
    );
  }
  return id;
}
