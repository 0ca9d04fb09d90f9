/**
 * Writes the constant tables of the rot family for both languages from one place:
 *   native/kernels/tables.gen.h      the kernels
 *   native/reference/tables.gen.ts   the TypeScript reference
 * Plain Node without dependencies. `--check` writes nothing and fails when a file differs.
 * Only operations that IEEE 754 rounds exactly (+ - * / sqrt) are used, so every machine writes the same bytes.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');

/** Positive levels of the 16-level Lloyd-Max quantizer of N(0,1): the fixed point, to five decimals. */
const GAUSSIAN_LEVELS = [0.1284, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259];

/** Decode levels as int8 over a common divisor: positive half, smallest first. Nested: code_b = code_4 >> (4 - b). */
const ROT_LEVELS = {
  rot4: { divisor: 46, positive: [6, 18, 30, 43, 58, 74, 95, 126] },
  rot3: { divisor: 55, positive: [14, 43, 77, 123] },
  rot2: { divisor: 79, positive: [39, 127] },
};

const mirror = (positive) => [...positive.map((v) => -v).reverse(), ...positive];

/** The 15 decision bounds: midpoints of neighbouring levels, ascending. Midpoint 7 is 0. */
function bounds() {
  const levels = mirror(GAUSSIAN_LEVELS);
  return levels.slice(1).map((level, i) => Math.fround((levels[i] + level) / 2));
}

/** 2^(j/32) as float32 for any integer j: five square roots and products, then an exact power of two. */
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

/** splitmix64 started at `seed`; draw i decides the sign of channel i: bit 63 set means -1. */
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
 * Symmetric Hadamard matrix of order q + 1 for a prime q = 3 mod 4 (Paley's first construction, rows of its core
 * reflected so that it becomes symmetric): first row and column 1, H[i+1][j+1] = chi(i + j mod q), with chi(0) = -1.
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

function header() {
  const rot = Object.entries(ROT_LEVELS);
  const levels = rot.map(([name, { positive }]) => {
    const full = mirror(positive);
    const padded = Array.from({ length: 16 }, (_, i) => full[i % full.length]);
    return `// ${name}, repeated to 16 entries for byte look-ups\nconstexpr int8_t k${name[0].toUpperCase()}${name.slice(1)}Levels[16] = {\n${wrap(padded, 16)}\n};`;
  });
  const matrix = (name, rows) =>
    `constexpr int8_t ${name}[${rows.length}][${rows.length}] = {\n${rows.map((row) => `    {${row.join(', ')}},`).join('\n')}\n};`;
  return `// Written by scripts/generate-tables.mjs. Change the script, not this file.
#pragma once
#include <cstdint>

namespace palimpsest {

${levels.join('\n')}
${rot.map(([name, { divisor }]) => `constexpr int k${name[0].toUpperCase()}${name.slice(1)}Divisor = ${divisor};`).join('\n')}

// code = number of bounds b with y > float(r * b)
constexpr float kRotBounds[15] = {
${wrap(bounds().map(f), 5)}
};

// 2^(k/16) for k = -127..127
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

${matrix('kHadamard20', paley(19))}

}  // namespace palimpsest
`;
}

function typescript() {
  const list = (name, values, perLine, type = 'number') =>
    `export const ${name}: readonly ${type}[] = [\n${wrap(values, perLine).replaceAll('    ', '  ')}\n];`;
  return `// Written by scripts/generate-tables.mjs. Change the script, not this file.

/** Decode levels (integers) and their divisor. */
export const ROT_LEVELS = {
${Object.entries(ROT_LEVELS)
  .map(
    ([name, { divisor, positive }]) => `  ${name}: { divisor: ${divisor}, levels: [${mirror(positive).join(', ')}] },`,
  )
  .join('\n')}
} as const;

/** code = number of bounds b with y > fround(r * b) */
${list('ROT_BOUNDS', bounds(), 5)}

/** 2^(k/16) for k = -127..127 */
${list('SCALE_VALUES', scaleValues, 5)}

/** 2^((k+1/2)/16) for k = -127..126 */
${list('SCALE_BOUNDS', scaleBounds, 5)}
`;
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
    // missing: written below, or reported by --check
  }
  if (old === text) continue;
  if (check) {
    console.error(`${path} is not what scripts/generate-tables.mjs writes; run npm run generate`);
    process.exitCode = 1;
  } else writeFileSync(path, text);
}
