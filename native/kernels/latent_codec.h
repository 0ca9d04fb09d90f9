// Latents of a page, from which keys and values are recomputed. The arithmetic is that of native/reference/latent.ts in
// the same order: float32, unfused, sums as zero-padded halving trees. Codes, scales and means are bit-equal on every
// instruction set.
//
// A latent row has `width` channels, a multiple of 16 and at least 64. It is rotated, the mean of the page is
// subtracted, and the rest is coded with one scale per row. Codes are in the order that gemmI8 reads their levels:
//   tile       [128/8][width/4][8][4] int8
//   xq8        the tile as it is
//   xq4, xq3   the bit planes of rot4 and rot3 over the tile, with their levels (formats/rot/levels.h)
#pragma once
#include "../formats/rot/levels.h"

// The format of page sides whose codes and levels a latent has.
constexpr int rotOf(int latentFormat) { return latentFormat == kXq4 ? kRot4 : kRot3; }

INLINE int largestPowerOfTwo(int width) {
  int p = 1;
  while (p * 2 <= width) p *= 2;
  return p;
}

// Signs drawn from splitmix64: bit 63 set means -1.
INLINE void latentSigns(uint64_t seed, int width, float* signs) {
  uint64_t state = seed;
  for (int i = 0; i < width; i++) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    signs[i] = z >> 63 ? -1.0f : 1.0f;
  }
}

INLINE void multiplyBy(float* x, const float* by, int count) {
  for (int i = 0; i < count; i += kLanes) store(x + i, load(x + i) * load(by + i));
}

// Butterflies at distance 1 .. size/2 and one multiplication by float32(1/sqrt size). size: a power of two, at least
// 64.
INLINE void hadamardInMemory(float* x, int size) {
  for (int at = 0; at < size; at += 64) {
    VecF v[64 / kLanes];
    for (int i = 0; i < 64 / kLanes; i++) v[i] = load(x + at + i * kLanes);
    hadamard<64>(v);
    for (int i = 0; i < 64 / kLanes; i++) store(x + at + i * kLanes, v[i]);
  }
  for (int half = 64; half < size; half *= 2) {
    for (int at = 0; at < size; at += 2 * half) {
      for (int i = at; i < at + half; i += kLanes) {
        const VecF a = load(x + i), b = load(x + i + half);
        store(x + i, a + b);
        store(x + i + half, a - b);
      }
    }
  }
  const float norm = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(size)));
  for (int i = 0; i < size; i += kLanes) store(x + i, load(x + i) * norm);
}

// Signs, then a Hadamard transform of the first p channels (p is the largest power of two that fits). If that is not
// all of them, signs and a transform of the last p follow. The result is orthonormal, and every channel reaches at
// least p others.
static void rotateLatent(float* x, int n, size_t stride, int width, bool inverse, Workspace space) {
  const int p = largestPowerOfTwo(width);
  float* first = space.take<float>(width);
  float* second = space.take<float>(width);
  latentSigns(1, width, first);
  if (p < width) latentSigns(2, p, second);
  for (int i = 0; i < n; i++) {
    float* row = x + i * stride;
    float* end = row + width - p;
    if (!inverse) {
      multiplyBy(row, first, width);
      hadamardInMemory(row, p);
      if (p < width) multiplyBy(end, second, p);
      if (p < width) hadamardInMemory(end, p);
    } else {
      if (p < width) hadamardInMemory(end, p);
      if (p < width) multiplyBy(end, second, p);
      hadamardInMemory(row, p);
      multiplyBy(row, first, width);
    }
  }
  clearUpperHalves();
}

// Sum as a zero-padded halving tree. Overwrites v. count: a multiple of 16.
INLINE float latentTreeSum(float* v, int count) {
  int half = largestPowerOfTwo(count);
  if (half == count) half /= 2;
  for (int here = count; half >= 16; here = half, half /= 2) {
    // A missing partner counts as +0 and need not be added: x + 0 differs from x only in the sign of a zero, which no
    // use of a sum depends on.
    for (int i = 0; i < here - half; i += kLanes) store(v + i, load(v + i) + load(v + i + half));
  }
  for (half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; i++) v[i] = v[i] + v[i + half];
  }
  return v[0];
}

// Writes the 4-bit codes of a row without its mean and returns the exponent of its unbiased scale <z,z>/<z,u>. levels:
// by 4-bit code. room: [width].
INLINE int8_t codeRow(const float* z, int width, const Sixteen& unit, const Sixteen& levels, int divisor, float* room, uint8_t* codes) {
  for (int c = 0; c < width; c += kLanes) store(room + c, load(z + c) * load(z + c));
  const float zz = latentTreeSum(room, width);
  // A zero row gets NaN bounds, which nothing is above, so its codes become 0.
  const float r = zz > 0.0f ? __builtin_sqrtf(zz / static_cast<float>(width)) : __builtin_nanf("");
  Sixteen bounds;
  for (int i = 0; i < kParts; i++) bounds.part[i] = unit.part[i] * r;
  for (int c = 0; c < width; c += kLanes) {
    const VecF v = load(z + c);
    const VecI code = countBelow(bounds, v);
    storeLowBytes(codes + c, code);
    store(room + c, v * lookUpFloat(levels, code));
  }
  const float zu = latentTreeSum(room, width);
  if (!(zz > 0.0f) || !(zu > 0.0f)) return kZeroRow;
  return static_cast<int8_t>(scaleExponents(splat((zz * static_cast<float>(divisor)) / zu))[0]);
}

// Writes the int8 codes of a row and returns the f16 bits of its scale.
INLINE uint16_t codeRow8(const float* z, int width, uint8_t* codes) {
  const uint16_t half = floatToHalf(largestLane(largestOf(z, width)) / 127.0f);
  const float scale = halfToFloat(half);
  for (int c = 0; c < width; c += kLanes) storeLowBytes(codes + c, scale > 0.0f ? divideToCodes(load(z + c), scale) : VecI{});
  return half;
}

// Rows before firstRow stay out of mean and codes.
static void encodeLatent(int format, float* x, int width, int firstRow, uint8_t* high, uint8_t* low, void* scales, int16_t* mean, float* meanScale,
                         Workspace space) {
  const bool wide = format == kXq8;
  if (width < 64) __builtin_unreachable();  // without this, gcc warns about arrays that no loop fills
  rotateLatent(x + static_cast<size_t>(firstRow) * width, kPageTokens - firstRow, static_cast<size_t>(width), width, false, space);
  float* average = space.take<float>(width);
  float* room = space.take<float>(width);
  const VecF rows = splat(static_cast<float>(kPageTokens - firstRow));
  for (int c = 0; c < width; c += 16) columnSums<16>(x + c, static_cast<size_t>(width), firstRow, average + c);
  for (int c = 0; c < width; c += kLanes) store(average + c, load(average + c) / rows);
  *meanScale = quantizeI16(average, width, mean);
  for (int c = 0; c < width; c++) average[c] = static_cast<float>(mean[c]) * *meanScale;

  float padded[16];
  for (int j = 0; j < 16; j++) padded[j] = kRotBounds[j < 15 ? j : 14];
  const Sixteen unit = loadSixteen(padded), levels = levelsByCode(rotOf(format));
  uint8_t* lines = space.take<uint8_t>(8 * static_cast<size_t>(width));
  // The codes in tile order replace rows that have been coded: those of rows 8j .. 8j + 7 take the place of rows 2j and
  // 2j + 1.
  uint8_t* tile = reinterpret_cast<uint8_t*>(x);
  for (int t = 0; t < kPageTokens; t++) {
    float* z = x + static_cast<size_t>(t) * width;
    uint8_t* line = lines + t % 8 * width;
    if (t < firstRow) {
      __builtin_memset(line, 0, static_cast<size_t>(width));
      if (wide) static_cast<uint16_t*>(scales)[t] = 0;
      else static_cast<int8_t*>(scales)[t] = kZeroRow;
    } else {
      for (int c = 0; c < width; c += kLanes) store(z + c, load(z + c) - load(average + c));
      if (wide) static_cast<uint16_t*>(scales)[t] = codeRow8(z, width, line);
      else static_cast<int8_t*>(scales)[t] = codeRow(z, width, unit, levels, divisorOf(rotOf(format)), room, line);
    }
    if (t % 8 != 7) continue;
    uint8_t* to = tile + static_cast<size_t>(t - 7) * width;
    for (int c = 0; c < width; c += 4, to += 32) {
      for (int r = 0; r < 8; r++) __builtin_memcpy(to + r * 4, lines + r * width + c, 4);
    }
  }
  const size_t elements = static_cast<size_t>(kPageTokens) * width;
  if (wide) {
    __builtin_memcpy(high, tile, elements);
  } else {
    packPairs<2>(tile, elements, high);
    if (format == kXq4) packPairs<0>(tile, elements, low);
    else packBits<1>(tile, elements, low);
  }
  clearUpperHalves();
}

static void unpackLatent(int format, const uint8_t* high, const uint8_t* low, size_t elements, int8_t* tile) {
  unpackRot(rotOf(format), high, low, elements, tile);
  clearUpperHalves();
}

// The high plane stays. As in demoteRot, the scale is multiplied by <u,u>/<u,u'>, from integer sums over the codes of a
// row.
static void demoteLatent(const uint8_t* high, const uint8_t* low, const int8_t* exponents, int width, int8_t* tiles, uint8_t* lowOut, int8_t* exponentsOut) {
  const size_t elements = static_cast<size_t>(kPageTokens) * width;
  int8_t* coarse = tiles + elements;
  narrowPairs(low, elements, lowOut);
  unpackRot(kRot4, high, low, elements, tiles);
  unpackRot(kRot3, high, lowOut, elements, coarse);
  for (int t = 0; t < kPageTokens; t += 8) {
    // Sums of four lanes for each of the block's eight rows; each sums at most 4096 products.
    int32_t squares[32] = {}, products[32] = {};
    for (size_t i = static_cast<size_t>(t) * width; i < static_cast<size_t>(t + 8) * width; i += 32) {
      for (int lane = 0; lane < 32; lane++) {
        squares[lane] += static_cast<int16_t>(tiles[i + lane] * tiles[i + lane]);
        products[lane] += static_cast<int16_t>(tiles[i + lane] * coarse[i + lane]);
      }
    }
    for (int r = 0; r < 8; r++) {
      // Doubles hold these sums and products exactly, so each is rounded once.
      double square = 0, product = 0;
      for (int lane = 4 * r; lane < 4 * r + 4; lane++) {
        square += squares[lane];
        product += products[lane];
      }
      const float ratio = static_cast<float>(square * kRot3Divisor) / static_cast<float>(product * kRot4Divisor);
      const int8_t now = exponents[t + r];
      exponentsOut[t + r] = now == kZeroRow ? kZeroRow : static_cast<int8_t>(scaleExponents(splat(scaleOf(now) * ratio))[0]);
    }
  }
  clearUpperHalves();
}

// y[i][c] += sum_t weights[i][t] * tile[t][c] over the 128 rows of a tile, for n rows of weights. y: [n][width]. Each
// channel has 8 partial sums, one per row of a block, which are then added in halves at every vector width, so every
// instruction set gives the same bits.
static void mixLatent(const int8_t* tile, int width, const float* weights, int n, size_t weightStride, float* y, size_t yStride) {
  const int steps = width / 4;
  for (int i = 0; i < n; i++) {
    // The weight of row r of a block is repeated in lanes 4r .. 4r+3 of the block's 32.
    alignas(64) float spread[kPageTokens * 4];
    for (int t = 0; t < kPageTokens; t++) {
      for (int s = 0; s < 4; s++) spread[t * 4 + s] = weights[i * weightStride + t];
    }
    for (int step = 0; step < steps; step++) {
      constexpr int kCount = 32 / kLanes;
      VecF sum[kCount];
      for (int v = 0; v < kCount; v++) sum[v] = splat(0.0f);
      const int8_t* from = tile + step * 32;
      for (int block = 0; block < kPageTokens / 8; block++, from += static_cast<size_t>(width) * 8) {
#pragma GCC unroll 8
        for (int v = 0; v < kCount; v++) sum[v] = sum[v] + loadSigned(from + v * kLanes) * load(spread + block * 32 + v * kLanes);
      }
      float lanes[32];
      for (int v = 0; v < kCount; v++) store(lanes + v * kLanes, sum[v]);
      for (int half = 16; half >= 4; half /= 2) {
        for (int j = 0; j < half; j++) lanes[j] = lanes[j] + lanes[j + half];
      }
      for (int s = 0; s < 4; s++) y[i * yStride + step * 4 + s] += lanes[s];
    }
  }
  clearUpperHalves();
}
