/**
 * Writes the constant tables of the formats that rotate rows, for both languages:
 *   native/kernels/tables.gen.h      for the kernels
 *   native/reference/tables.gen.ts   for the TypeScript reference
 * With `--check` it writes nothing, and fails when a file differs.
 * It uses only operations that IEEE 754 rounds correctly (+ - * / sqrt), so every machine writes the same bytes.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');

/** The positive levels of the 16-level Lloyd-Max quantizer of N(0,1), to five decimals. */
const GAUSSIAN_LEVELS = [0.1284, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259];

/**
 * The levels that codes are decoded to, as int8 over a common divisor: the positive half, smallest first. The codes are
 * nested: code_b = code_4 >> (4 - b).
 */
const ROT_LEVELS = {
  rot4: { divisor: 46, positive: [6, 18, 30, 43, 58, 74, 95, 126] },
  rot3: { divisor: 55, positive: [14, 43, 77, 123] },
  rot2: { divisor: 79, positive: [39, 127] },
  rot1: { divisor: 75, positive: [94] },
};

const mirror = (positive) => [...positive.map((v) => -v).reverse(), ...positive];

/** The 15 bounds between codes, ascending. Each is the midpoint of two neighbouring levels, and bound 7 is 0. */
function bounds() {
  const levels = mirror(GAUSSIAN_LEVELS);
  return levels.slice(1).map((level, i) => Math.fround((levels[i] + level) / 2));
}

/** Head sizes with a rotation. */
const HEAD_DIMS = [64, 80, 96, 128, 256];

function power(x, n) {
  let product = 1;
  for (let i = 0; i < n; i++) product *= x;
  return product;
}

/**
 * One coordinate of a random unit vector in an even number d of dimensions has a density ∝ (1 − t²)^((d−3)/2). The mass
 * and the first moment of a cell: the first by Simpson's rule, the second in closed form.
 */
function sphereCell(d, from, to) {
  const steps = 128;
  const h = (to - from) / steps;
  const density = (t) => power(1 - t * t, (d - 4) / 2) * Math.sqrt(1 - t * t);
  const above = (t) => (power(1 - t * t, (d - 2) / 2) * Math.sqrt(1 - t * t)) / (d - 1);
  let mass = density(from) + density(to);
  for (let i = 1; i < steps; i++) mass += (i % 2 === 1 ? 4 : 2) * density(from + i * h);
  return { mass: (mass * h) / 3, first: above(from) - above(to) };
}

/** The positive levels of the Lloyd-Max quantizer of such a coordinate, times √d, with the mass of each cell. */
function sphereLevels(d, bits) {
  const root = Math.sqrt(d);
  const cells = (levels) => {
    // Beyond 10/√d the density is below 1e-18 of its largest.
    const edges = [0, ...levels.slice(1).map((level, i) => (levels[i] + level) / 2), 10 / root];
    return levels.map((_, i) => sphereCell(d, edges[i], Math.min(edges[i + 1], 1)));
  };
  let levels = Array.from({ length: 2 ** (bits - 1) }, (_, i) => (3 * (i + 0.5)) / 2 ** (bits - 1) / root);
  for (let moved = 1; moved > 1e-12; ) {
    const next = cells(levels).map(({ mass, first }) => first / mass);
    moved = Math.max(...next.map((level, i) => Math.abs(level - levels[i])));
    levels = next;
  }
  return { levels: levels.map((level) => level * root), masses: cells(levels).map(({ mass }) => mass) };
}

/** The codebook of a width and a head size: bounds, and levels as int8 over the divisor that errs least. */
function sphereCodebook(d, bits) {
  const { levels, masses } = sphereLevels(d, bits);
  const integers = (divisor) => levels.map((level) => Math.round(level * divisor));
  const error = (divisor) =>
    integers(divisor).reduce((sum, integer, i) => sum + masses[i] * (levels[i] - integer / divisor) ** 2, 0);
  let divisor = 30;
  for (let other = divisor; Math.max(...integers(other)) <= 127; other++) {
    if (error(other) < error(divisor)) divisor = other;
  }
  const full = mirror(levels);
  return {
    divisor,
    levels: mirror(integers(divisor)),
    bounds: full.slice(1).map((level, i) => Math.fround((full[i] + level) / 2)),
  };
}

/** By bits − 1 and place in HEAD_DIMS. */
const SPHERE = [1, 2, 3, 4].map((bits) => HEAD_DIMS.map((d) => sphereCodebook(d, bits)));

/**
 * Grids of pairs: the 256, 64 and 16 points that err least on pairs of independent N(0,1), as integers over a divisor.
 * Lloyd's iterations found them on a lattice of 90,000 or more pairs, from several random starts; a test checks that
 * every point is the mean of its cell.
 */
const GRIDS = JSON.parse(readFileSync(join(root, 'scripts/gaussian-grids.json'), 'utf8'));

/**
 * By sequence of codes, the table, or the two whose entries are added, of the levels of trellis codes, over a divisor:
 * scripts/fit-trellis.ts.
 */
const TRELLIS = JSON.parse(readFileSync(join(root, 'scripts/trellis-levels.json'), 'utf8'));
const TRELLIS_DIVISOR = 32;

/** 2^(j/32) as float32 for any integer j, from five square roots and products and an exact power of two. */
function powerOfTwo32nds(j) {
  const whole = Math.floor(j / 32);
  let fraction = j - whole * 32;
  let value = 1;
  let root = 2;
  for (let bit = 16; bit >= 1; bit /= 2) {
    root = Math.sqrt(root);
    if (fraction >= bit) {
      value *= root;
      fraction -= bit;
    }
  }
  return Math.fround(value * 2 ** whole);
}

/** The signs of `count` channels from splitmix64 with this seed: channel i is negative when bit 63 of draw i is set. */
function rotationSigns(count, seed) {
  const mask = (1n << 64n) - 1n;
  let state = BigInt(seed);
  const signs = [];
  for (let i = 0; i < count; i++) {
    state = (state + 0x9e3779b97f4a7c15n) & mask;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & mask;
    z ^= z >> 31n;
    signs.push(z >> 63n ? -1 : 1);
  }
  return signs;
}

/**
 * A symmetric Hadamard matrix of order q + 1, for a prime q = 3 mod 4. It is Paley's first construction with the rows
 * of its core reflected, which makes it symmetric: the first row and column are 1, and H[i+1][j+1] = chi(i + j mod q),
 * where chi(0) = -1.
 */
function paley(q) {
  const squares = new Set();
  for (let i = 1; i < q; i++) squares.add((i * i) % q);
  const rows = [Array(q + 1).fill(1)];
  for (let i = 0; i < q; i++) {
    rows.push([1, ...Array.from({ length: q }, (_, j) => (squares.has((i + j) % q) ? 1 : -1))]);
  }
  return rows;
}

const wrap = (items, perLine) => {
  const lines = [];
  for (let i = 0; i < items.length; i += perLine) lines.push(`    ${items.slice(i, i + perLine).join(', ')},`);
  return lines.join('\n');
};

const scaleValues = Array.from({ length: 255 }, (_, i) => powerOfTwo32nds((i - 127) * 2));
const scaleBounds = Array.from({ length: 254 }, (_, i) => powerOfTwo32nds((i - 127) * 2 + 1));

const f = (v) => {
  const text = String(v);
  return /[.e]/.test(text) ? `${text}f` : `${text}.0f`;
};

/** Levels and bounds of the rot family. */
function rotHeader() {
  const rot = Object.entries(ROT_LEVELS);
  const levels = rot.map(([name, { positive }]) => {
    const full = mirror(positive);
    const padded = Array.from({ length: 16 }, (_, i) => full[i % full.length]);
    return `// ${name}, repeated to 16 entries for byte look-ups\nconstexpr int8_t k${name[0].toUpperCase()}${name.slice(1)}Levels[16] = {\n${wrap(padded, 16)}\n};`;
  });
  return `${levels.join('\n')}
${rot.map(([name, { divisor }]) => `constexpr int k${name[0].toUpperCase()}${name.slice(1)}Divisor = ${divisor};`).join('\n')}

// code = number of bounds b with y > float(r * b)
constexpr float kRotBounds[15] = {
${wrap(bounds().map(f), 5)}
};`;
}

/** Codebooks of the families that code numbers of unit vectors, pairs of numbers, and sequences. */
function codebooksHeader() {
  return `// Codebooks of one coordinate of a random unit vector, times sqrt(d): [bits - 1][64, 80, 96, 128 or 256 channels]. Levels are repeated to 16
// entries, bounds are followed by infinities.
constexpr int8_t kSphereLevels[4][5][16] = {
${SPHERE.map((row) => `    {\n${row.map(({ levels }) => `        {${Array.from({ length: 16 }, (_, i) => levels[i % levels.length]).join(', ')}},`).join('\n')}\n    },`).join('\n')}
};
constexpr int kSphereDivisors[4][5] = {
${SPHERE.map((row) => `    {${row.map(({ divisor }) => divisor).join(', ')}},`).join('\n')}
};
constexpr float kSphereBounds[4][5][16] = {
${SPHERE.map((row) => `    {\n${row.map(({ bounds }) => `        {${Array.from({ length: 16 }, (_, i) => (i < bounds.length ? f(bounds[i]) : '__builtin_inff()')).join(', ')}},`).join('\n')}\n    },`).join('\n')}
};

// Points of the grids of pairs of Gaussians, over a divisor
${Object.entries(GRIDS)
  .map(
    ([count, { divisor, points }]) =>
      `constexpr int kGrid${count}Divisor = ${divisor};\nconstexpr int8_t kGrid${count}[${count}][2] = {\n${wrap(
        points.map((point) => `{${point.join(', ')}}`),
        8,
      )}\n};`,
  )
  .join('\n')}

// Levels of trellis codes, one table or two whose entries are added, over a divisor: of the sequences
// ${Object.keys(TRELLIS).join(', ')}
constexpr int kTrellisDivisor = ${TRELLIS_DIVISOR};
constexpr int8_t kTrellisLevels[4][2][16] = {
${Object.values(TRELLIS)
  .map((tables) => `    {${tables.map((table) => `{${table.join(', ')}}`).join(',\n     ')}},`)
  .join('\n')}
};`;
}

/** Scales, and the rotation. */
function scalesHeader() {
  const matrix = (name, rows) =>
    `constexpr int8_t ${name}[${rows.length}][${rows.length}] = {\n${rows.map((row) => `    {${row.join(', ')}},`).join('\n')}\n};`;
  return `// 2^(k/16) for k = -127..127
constexpr float kScaleValues[255] = {
${wrap(scaleValues.map(f), 5)}
};

// 2^((k+1/2)/16) for k = -127..126: k = -127 + number of bounds below t
constexpr float kScaleBounds[254] = {
${wrap(scaleBounds.map(f), 5)}
};

// Signs of the diagonal D: splitmix64, seed 1, bit 63
constexpr float kRotationSigns[256] = {
${wrap(
  rotationSigns(256, 1).map((s) => `${s}.0f`),
  16,
)}
};

// Symmetric Paley-Hadamard matrices, not normalized
${matrix('kHadamard12', paley(11))}

${matrix('kHadamard20', paley(19))}`;
}

const header = () => `// Written by scripts/generate-tables.mjs. Change the script, not this file.
#pragma once
#include <cstdint>

namespace palimpsest {

${rotHeader()}

${codebooksHeader()}

${scalesHeader()}

}  // namespace palimpsest
`;

const list = (name, values, perLine) =>
  `export const ${name}: readonly number[] = [\n${wrap(values, perLine).replaceAll('    ', '  ')}\n];`;

const typescript = () => `// Written by scripts/generate-tables.mjs. Change the script, not this file.

/** Decode levels (integers) and their divisor. */
export const ROT_LEVELS = {
${Object.entries(ROT_LEVELS)
  .map(
    ([name, { divisor, positive }]) => `  ${name}: { divisor: ${divisor}, levels: [${mirror(positive).join(', ')}] },`,
  )
  .join('\n')}
} as const;

${codebooksSource()}

/** code = number of bounds b with y > fround(r * b) */
${list('ROT_BOUNDS', bounds(), 5)}

/** 2^(k/16) for k = -127..127 */
${list('SCALE_VALUES', scaleValues, 5)}

/** 2^((k+1/2)/16) for k = -127..126 */
${list('SCALE_BOUNDS', scaleBounds, 5)}
`;

function codebooksSource() {
  return `/** A codebook of scalars: integer levels over a divisor, and the bounds between codes. */
export interface Codebook {
  readonly divisor: number;
  readonly levels: readonly number[];
  readonly bounds: readonly number[];
}

/** Codebooks of one coordinate of a random unit vector, times √d: by bits − 1 and by head size. */
export const SPHERE: readonly Readonly<Record<number, Codebook>>[] = [
${SPHERE.map(
  (row) =>
    `  {\n${row.map(({ divisor, levels, bounds }, i) => `    ${HEAD_DIMS[i]}: {\n      divisor: ${divisor},\n      levels: [${levels.join(', ')}],\n      bounds: [\n${wrap(bounds, 5).replaceAll('    ', '        ')}\n      ],\n    },`).join('\n')}\n  },`,
).join('\n')}
];

/** The points of the grids of 256, 64 and 16 pairs: integers over a divisor. */
export const GRIDS: Readonly<
  Record<
    256 | 64 | 16,
    { readonly divisor: number; readonly points: readonly (readonly [number, number])[] }
  >
> = {
${Object.entries(GRIDS)
  .map(
    ([count, { divisor, points }]) =>
      `  ${count}: {\n    divisor: ${divisor},\n    points: [\n${wrap(
        points.map((point) => `[${point.join(', ')}]`),
        8,
      ).replaceAll('    [', '      [')}\n    ],\n  },`,
  )
  .join('\n')}
};

/**
 * Levels of trellis codes by their sequence: the entries of a table, or sums of an entry of each of two, over a
 * divisor.
 */
export const TRELLIS_DIVISOR = ${TRELLIS_DIVISOR};
export const TRELLIS: Readonly<
  Record<${Object.keys(TRELLIS)
    .map((sequence) => `'${sequence}'`)
    .join(' | ')}, readonly (readonly number[])[]>
> = {
${Object.entries(TRELLIS)
  .map(
    ([sequence, tables]) => `  ${sequence}: [\n${tables.map((table) => `    [${table.join(', ')}],`).join('\n')}\n  ],`,
  )
  .join('\n')}
};`;
}

const outputs = [
  [join(root, 'native/kernels/tables.gen.h'), header()],
  [join(root, 'native/reference/tables.gen.ts'), typescript()],
];
const check = process.argv.includes('--check');
for (const [path, text] of outputs) {
  let old = '';
  try {
    old = readFileSync(path, 'utf8');
  } catch {
    // The file is missing: it is written below, or reported by --check.
  }
  if (old === text) continue;
  if (check) {
    console.error(`${path} is not what scripts/generate-tables.mjs writes; run npm run generate`);
    process.exitCode = 1;
  } else writeFileSync(path, text);
}
