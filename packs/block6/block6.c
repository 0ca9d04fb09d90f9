// block6: whole numbers of 6 bits in blocks of 32 channels of a row, with one scale a block: 6.5 bits of an element.
//
//   scale  s = the largest |x| of the block / 31, rounded up to bfloat16
//   code   c = round half even(x / s) + 32, which is 1..63
//   x^     = s * (c - 32)
//
// The error of an element is half a step at most, so that of a block is below sqrt(32) * 0.5 * 1.008 / 31 = 9.2% of its
// norm; of Gaussian rows it is 2.2%. Numbers below 1e-36 may be lost, since their scale has too few bits.
//
// Bytes of a block: the scale; 16 bytes with the low four bits of c[i] and c[16 + i]; 8 bytes with the high two bits of
// c[i], c[8 + i], c[16 + i] and c[24 + i], the first lowest. Blocks follow each other, then rows. Heads have a multiple
// of 32 channels. When not to use it: q8 errs by half as much with 8.25 bits, trellis4 four times as much with 4.2.
#define PACK_CODEC
#include "../pack.h"

enum { BLOCK = 32, BLOCK_BYTES = 26, DIM_MAX = 512 };

uint32_t pack_abi(void) { return 1; }

static int isServed(uint32_t dim) { return dim != 0 && dim % BLOCK == 0 && dim <= DIM_MAX; }

uint32_t pack_page_bytes(uint32_t tokens, uint32_t dim) {
  return isServed(dim) ? tokens * (dim / BLOCK) * BLOCK_BYTES : 0;
}

static inline float scaleOf(const uint8_t* block) {
  const uint32_t bits = ((uint32_t)block[1] << 24) | ((uint32_t)block[0] << 16);
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  return scale;
}

// The scale as it is stored, and as the number that it stands for.
static inline float putScale(uint8_t* block, float most) {
  const float exact = most / 31.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &exact, 4);
  bits = (bits + 0xffff) >> 16;
  block[0] = (uint8_t)bits;
  block[1] = (uint8_t)(bits >> 8);
  return scaleOf(block);
}

static inline float largest(const float* x) {
  v128_t most = wasm_f32x4_abs(wasm_v128_load(x));
  for (int i = 4; i < BLOCK; i += 4) most = wasm_f32x4_max(most, wasm_f32x4_abs(wasm_v128_load(x + i)));
  most = wasm_f32x4_max(most, wasm_i32x4_shuffle(most, most, 2, 3, 0, 1));
  most = wasm_f32x4_max(most, wasm_i32x4_shuffle(most, most, 1, 0, 3, 2));
  return wasm_f32x4_extract_lane(most, 0);
}

// Four codes, from -31 to 31. Rounding to f16's largest scale keeps them there; a quotient of two denormals may not be.
static inline v128_t rounded(const float* x, v128_t scale) {
  const v128_t level = wasm_f32x4_nearest(wasm_f32x4_div(wasm_v128_load(x), scale));
  return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_max(wasm_f32x4_splat(-31), wasm_f32x4_min(wasm_f32x4_splat(31), level)));
}

static inline v128_t sixteen(const float* x, v128_t scale) {
  const v128_t low = wasm_i16x8_narrow_i32x4(rounded(x, scale), rounded(x + 4, scale));
  const v128_t high = wasm_i16x8_narrow_i32x4(rounded(x + 8, scale), rounded(x + 12, scale));
  return wasm_i8x16_add(wasm_i8x16_narrow_i16x8(low, high), wasm_i8x16_splat(32));
}

static inline void putCodes(uint8_t* block, v128_t first, v128_t second) {
  const v128_t low = wasm_v128_or(wasm_v128_and(first, wasm_i8x16_splat(15)), wasm_i8x16_shl(second, 4));
  const v128_t a = wasm_u8x16_shr(first, 4), b = wasm_u8x16_shr(second, 4);
  // Lane i has codes i and 16 + i, and lane 8 + i of the same registers codes 8 + i and 24 + i.
  const v128_t both = wasm_v128_or(a, wasm_i8x16_shl(b, 4));
  const v128_t moved = wasm_i8x16_shl(wasm_i64x2_shuffle(both, both, 1, 1), 2);
  wasm_v128_store(block + 2, low);
  wasm_v128_store64_lane(block + 18, wasm_v128_or(both, moved), 0);
}

// The codes of a block, less 32.
static inline void codesOf(const uint8_t* block, v128_t* first, v128_t* second) {
  const v128_t low = wasm_v128_load(block + 2), high = wasm_v128_load64_splat(block + 18);
  const v128_t three = wasm_i8x16_splat(3);
  const v128_t a = wasm_i64x2_shuffle(wasm_v128_and(high, three), wasm_v128_and(wasm_u8x16_shr(high, 2), three), 0, 2);
  const v128_t b = wasm_i64x2_shuffle(wasm_v128_and(wasm_u8x16_shr(high, 4), three), wasm_u8x16_shr(high, 6), 0, 2);
  const v128_t middle = wasm_i8x16_splat(32);
  *first = wasm_i8x16_sub(wasm_v128_or(wasm_v128_and(low, wasm_i8x16_splat(15)), wasm_i8x16_shl(a, 4)), middle);
  *second = wasm_i8x16_sub(wasm_v128_or(wasm_u8x16_shr(low, 4), wasm_i8x16_shl(b, 4)), middle);
}

// The codes of a block as 32 floats.
static inline void levelsOf(const uint8_t* block, v128_t levels[8]) {
  v128_t codes[2];
  codesOf(block, &codes[0], &codes[1]);
  for (int i = 0; i < 2; i++) {
    const v128_t low = wasm_i16x8_extend_low_i8x16(codes[i]), high = wasm_i16x8_extend_high_i8x16(codes[i]);
    levels[4 * i] = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(low));
    levels[4 * i + 1] = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(low));
    levels[4 * i + 2] = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(high));
    levels[4 * i + 3] = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(high));
  }
}

int32_t pack_encode(const float* x, uint8_t* page, uint32_t tokens, uint32_t dim) {
  if (!isServed(dim)) return 1;
  const uint32_t blocks = tokens * (dim / BLOCK);
  for (uint32_t i = 0; i < blocks; i++, x += BLOCK, page += BLOCK_BYTES) {
    const float scale = putScale(page, largest(x));
    // Zeros, and nothing but numbers that are too small for a scale.
    const v128_t divisor = wasm_f32x4_splat(scale == 0 ? 1 : scale);
    putCodes(page, sixteen(x, divisor), sixteen(x + 16, divisor));
  }
  return 0;
}

int32_t pack_decode(const uint8_t* page, float* x, uint32_t tokens, uint32_t dim) {
  if (!isServed(dim)) return 1;
  const uint32_t blocks = tokens * (dim / BLOCK);
  for (uint32_t i = 0; i < blocks; i++, x += BLOCK, page += BLOCK_BYTES) {
    v128_t levels[8];
    levelsOf(page, levels);
    const v128_t scale = wasm_f32x4_splat(scaleOf(page));
    for (int j = 0; j < 8; j++) wasm_v128_store(x + 4 * j, wasm_f32x4_mul(levels[j], scale));
  }
  return 0;
}

static inline float summed(v128_t x) {
  x = wasm_f32x4_add(x, wasm_i32x4_shuffle(x, x, 2, 3, 0, 1));
  x = wasm_f32x4_add(x, wasm_i32x4_shuffle(x, x, 1, 0, 3, 2));
  return wasm_f32x4_extract_lane(x, 0);
}

int32_t pack_dots(const uint8_t* page, const float* q, float* out, uint32_t tokens, uint32_t dim, uint32_t queries) {
  if (!isServed(dim)) return 1;
  for (uint32_t i = 0; i < queries * tokens; i++) out[i] = 0;
  for (uint32_t t = 0; t < tokens; t++)
    for (uint32_t at = 0; at < dim; at += BLOCK, page += BLOCK_BYTES) {
      v128_t levels[8];
      levelsOf(page, levels);
      const float scale = scaleOf(page);
      const float* row = q + at;
#pragma clang loop unroll_count(4)
      for (uint32_t h = 0; h < queries; h++, row += dim) {
        v128_t sum = wasm_f32x4_mul(levels[0], wasm_v128_load(row));
        for (int j = 1; j < 8; j++) sum = wasm_f32x4_add(sum, wasm_f32x4_mul(levels[j], wasm_v128_load(row + 4 * j)));
        out[h * tokens + t] += scale * summed(sum);
      }
    }
  return 0;
}

int32_t pack_mix(const uint8_t* page, const float* w, float* out, uint32_t tokens, uint32_t dim, uint32_t queries) {
  if (!isServed(dim)) return 1;
  for (uint32_t t = 0; t < tokens; t++)
    for (uint32_t at = 0; at < dim; at += BLOCK, page += BLOCK_BYTES) {
      v128_t levels[8];
      levelsOf(page, levels);
      const float scale = scaleOf(page);
      float* row = out + at;
#pragma clang loop unroll_count(4)
      for (uint32_t h = 0; h < queries; h++, row += dim) {
        const v128_t weight = wasm_f32x4_splat(scale * w[h * tokens + t]);
        for (int j = 0; j < 8; j++)
          wasm_v128_store(row + 4 * j, wasm_f32x4_add(wasm_v128_load(row + 4 * j), wasm_f32x4_mul(levels[j], weight)));
      }
    }
  return 0;
}
