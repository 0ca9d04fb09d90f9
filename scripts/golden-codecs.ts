/**
 * Writes test/golden/codecs.json: how the coded formats store certain fixed rows. If a change alters the stored bytes,
 * the test that reads this file fails.
 *   npm run golden -- codecs
 * Rewrite it only when you also raise the format's `layoutVersion`, because stored pages of older versions become
 * unreadable.
 */
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import {
  CODED_HEAD_DIMS,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  isAutomatic,
  PAGE_TOKENS,
  SIDES,
  type Side,
} from '../native/format.ts';
import { CODECS, type EncodedHead, planes, type ReferenceCodec, toTile } from '../native/reference/index.ts';

/** Raised when the shape of the file changes. */
export const GOLDEN_VERSION = 3;
export const GOLDEN_FIRST_ROW = 4;

/**
 * The fixed rows, [128, d]. They are sums of small integers, so they are exact in float32 and roughly Gaussian. Some
 * channels have a bias, one row is large and one row is zero.
 */
export function goldenRows(d: number, power: number): Float32Array {
  let state = d;
  const next = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state >>> 22; // 0..1023
  };
  return Float32Array.from({ length: PAGE_TOKENS * d }, (_, i) => {
    const noise = (next() + next() + next() + next() - 2046) / 512;
    const [t, c] = [Math.floor(i / d), i % d];
    if (t === 100) return 0;
    return (noise + (c % 8 === 1 ? 3 : 0)) * (t === 50 ? 16 : 1) * 2 ** power;
  });
}

const hex = (x: Uint8Array | Int8Array | Uint16Array): string =>
  Buffer.from(x.buffer, x.byteOffset, x.byteLength).toString('hex');
const sha256 = (x: Uint8Array): string => createHash('sha256').update(x).digest('hex');

export interface GoldenVector {
  readonly format: string;
  readonly layoutVersion: number;
  readonly headDim: number;
  /** The rows are goldenRows(headDim) times 2 to the power of this number. */
  readonly power: number;
  /** The SHA-256 of the stored code bytes of each side: the hi plane followed by the lo plane, or the i8 tile. */
  readonly codesSha256: Readonly<Record<Side, string>>;
  /** 16-bit values, little-endian, as hex. */
  readonly rowScales: string;
  readonly means: string;
  readonly meanScale: number;
  readonly reference: number;
  /** The SHA-256 of the decoded rows as float32, little-endian. */
  readonly decodedSha256: string;
}

/** The code bytes of one head as they are stored. */
export function storedCodes(head: EncodedHead, side: Side): Uint8Array {
  if (head.format === 'q8') return toTile(side, head.headDim, head.codes).map((code) => code - 128);
  const { hi, lo } = planes(head, side);
  return Buffer.concat([hi, lo]);
}

export function goldenVectors(): GoldenVector[] {
  const pages = [...CODED_HEAD_DIMS.map((headDim) => [headDim, 0] as const), [64, -20] as const, [64, 8] as const];
  return pages.flatMap(([headDim, power]) =>
    ([CODECS.q8, CODECS.rot4, CODECS.rot3, CODECS.rot2, CODECS.rot1] as ReferenceCodec<EncodedHead>[]).map(
      (codec): GoldenVector => {
        const head = codec.encode(goldenRows(headDim, power), headDim, GOLDEN_FIRST_ROW);
        const [k, v] = SIDES.map((side) => sha256(storedCodes(head, side)));
        return {
          format: codec.format,
          layoutVersion: FORMATS[codec.format as FormatName].layoutVersion,
          headDim,
          power,
          codesSha256: { k: k!, v: v! },
          rowScales: hex(head.rowScales),
          means: hex(head.means),
          meanScale: head.meanScale,
          reference: head.reference,
          decodedSha256: sha256(new Uint8Array(codec.decode(head).buffer)),
        };
      },
    ),
  );
}

/**
 * How a format stores the same rows, by side: one that is not of the first vectors' kind, or whose codes follow from
 * the order of a side.
 */
export interface GoldenSides {
  readonly format: FormatName;
  readonly layoutVersion: number;
  readonly headDim: number;
  /** The SHA-256 of all stored fields of each side, one after another. */
  readonly storedSha256: Readonly<Record<Side, string>>;
  /** The SHA-256 of the decoded rows of each side as float32, little-endian. */
  readonly decodedSha256: Readonly<Record<Side, string>>;
}

function goldenSides(format: FormatName): GoldenSides[] {
  const codec = CODECS[format] as unknown as ReferenceCodec;
  return CODED_HEAD_DIMS.map((headDim): GoldenSides => {
    const rows = goldenRows(headDim, 0);
    const heads = SIDES.map((side) => codec.encode(rows, headDim, GOLDEN_FIRST_ROW, side));
    const stored = heads.map((head, i) => sha256(Buffer.concat(Object.values(codec.stored(head, SIDES[i]!)))));
    const decoded = heads.map((head) => sha256(new Uint8Array(codec.decode(head).buffer)));
    return {
      format,
      layoutVersion: FORMATS[format].layoutVersion,
      headDim,
      storedSha256: { k: stored[0]!, v: stored[1]! },
      decodedSha256: { k: decoded[0]!, v: decoded[1]! },
    };
  });
}

export const goldenYardsticks = (): GoldenSides[] =>
  FORMAT_NAMES.filter((name) => !isAutomatic(name)).flatMap(goldenSides);
export const goldenTrellis = (): GoldenSides[] =>
  (['trellis4', 'trellis3', 'trellis2', 'trellis1'] as const).flatMap(goldenSides);

export const GOLDEN_FILE = join(import.meta.dirname, '../test/golden/codecs.json');

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const file = {
    magic: 'palimpsest codec vectors',
    version: GOLDEN_VERSION,
    vectors: goldenVectors(),
    yardsticks: goldenYardsticks(),
    trellis: goldenTrellis(),
  };
  writeFileSync(GOLDEN_FILE, `${JSON.stringify(file, null, 1)}\n`);
}
