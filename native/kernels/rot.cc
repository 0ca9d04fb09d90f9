// Encoding, demotion and decoding of the rot family: the arithmetic of native/reference/rot.ts in the same order, float32,
// unfused, sums as zero-padded halving trees. Plane layout: rot.h.
#include "four.h"
#include "kernels.h"
#include "tables.gen.h"
#include "tile.h"

#include "scalar_half.h"

namespace palimpsest {

namespace {

constexpr int kMaxHeadDim = 256;
constexpr int8_t kZeroRow = -128;

const int8_t* levelsOf(int format) {
  return format == kRot4 ? kRot4Levels : format == kRot3 ? kRot3Levels : kRot2Levels;
}

int codeBits(int format) { return format == kRot4 ? 4 : format == kRot3 ? 3 : 2; }

// Sum of v[0..count), padded with zeros to a power of two: v[i] += v[i + half] for half = size/2 .. 1. Destroys v (room for 256).
float treeSum(float* v, int count) {
  int size = 64;
  while (size < count) size *= 2;
  for (int i = count; i < size; i++) v[i] = 0.0f;
  int half = size / 2;
  for (; half >= 4; half /= 2) {
    for (int i = 0; i < half; i += 4) storeFour(v + i, loadFour(v + i) + loadFour(v + i + half));
  }
  for (; half >= 1; half /= 2) {
    for (int i = 0; i < half; i++) v[i] = v[i] + v[i + half];
  }
  return v[0];
}

// k = -127 + number of boundaries below t.
int8_t scaleCode(float t) {
  int low = 0, high = 254;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (t > kScaleBounds[middle]) low = middle + 1;
    else high = middle;
  }
  return static_cast<int8_t>(low - 127);
}

// Column means of the rows from firstRow, quantized to int8 with one f16 scale. decoded[c] is what the codes stand for.
void encodeMean(const float* x, size_t stride, int d, int firstRow, int8_t* mean, uint16_t* meanScale, float* decoded) {
  // The halving tree over 128 rows for all channels at once; rows before firstRow are zeros.
  alignas(64) float tree[kPageTokens / 2][kMaxHeadDim];
  constexpr int kHalf = kPageTokens / 2;
  for (int t = 0; t < kHalf; t++) {
    const float* upper = x + (t + kHalf) * stride;
    if (t < firstRow) {
      for (int c = 0; c < d; c++) tree[t][c] = 0.0f + upper[c];
    } else {
      const float* lower = x + t * stride;
      for (int c = 0; c < d; c++) tree[t][c] = lower[c] + upper[c];
    }
  }
  for (int half = kHalf / 2; half >= 1; half /= 2) {
    for (int t = 0; t < half; t++) {
      for (int c = 0; c < d; c++) tree[t][c] = tree[t][c] + tree[t + half][c];
    }
  }
  float* average = tree[0];
  const float rows = static_cast<float>(kPageTokens - firstRow);
  for (int c = 0; c < d; c++) average[c] = average[c] / rows;
  const float max = largestMagnitude(average, d);
  *meanScale = floatToHalf(max / 127.0f);
  const float scale = halfToFloat(*meanScale);
  if (scale > 0.0f) {
    divideToCodes(average, scale, d, mean);
  } else {
    for (int c = 0; c < d; c++) mean[c] = 0;
  }
  for (int c = 0; c < d; c++) decoded[c] = static_cast<float>(mean[c]) * scale;
}

// 4-bit codes of one rotated row y, and <y,y>. False: a zero row, codes 0.
bool encodeRow(const float* y, int d, uint8_t* codes, float* yy) {
  float square[kMaxHeadDim];
  for (int c = 0; c < d; c++) square[c] = y[c] * y[c];
  *yy = treeSum(square, d);
  if (!(*yy > 0.0f)) {
    for (int c = 0; c < d; c++) codes[c] = 0;
    return false;
  }
  const float r = __builtin_sqrtf(*yy / static_cast<float>(d));
  Four bounds[15];
  for (int j = 0; j < 15; j++) bounds[j] = Four{} + r * kRotBounds[j];
  for (int c = 0; c < d; c += 4) {
    const Four value = loadFour(y + c);
    FourI count{};
    for (int j = 0; j < 15; j++) count -= value > bounds[j];  // a true lane is -1
    typedef uint8_t Bytes __attribute__((vector_size(4)));
    const Bytes bytes = __builtin_convertvector(count, Bytes);
    __builtin_memcpy(codes + c, &bytes, 4);
  }
  return true;
}

// Decode levels of a width, by 4-bit code.
struct LevelTable {
  float level[16];
  explicit LevelTable(int format) {
    for (int code = 0; code < 16; code++) level[code] = static_cast<float>(levelsOf(format)[code >> (4 - codeBits(format))]);
  }
};

// k of the unbiased scale <y,y> / <y,u>.
int8_t encodeScale(const float* y, int d, const uint8_t* codes, float yy, int format, const LevelTable& table) {
  alignas(64) float product[kMaxHeadDim];
  for (int c = 0; c < d; c++) product[c] = y[c] * table.level[codes[c]];
  const float yu = treeSum(product, d);
  if (!(yu > 0.0f)) return kZeroRow;
  return scaleCode((yy * static_cast<float>(rotDivisor(format))) / yu);
}

// 4-bit codes in tile order -> the 2-bit plane that every width has.
void packHigh(const uint8_t* codes, size_t elements, uint8_t* hi) {
  for (size_t j = 0; j < elements / 4; j += 64) {
    const uint8_t* row = codes + j * 4;
    for (int i = 0; i < 64; i++) {
      hi[j + i] = static_cast<uint8_t>((row[i] >> 2) | (row[i + 64] >> 2) << 2 | (row[i + 128] >> 2) << 4 | (row[i + 192] >> 2) << 6);
    }
  }
}

// ... -> the plane below it: 2 bits for rot4, 1 bit for rot3.
void packLow(int format, const uint8_t* codes, size_t elements, uint8_t* lo) {
  if (format == kRot4) {
    for (size_t j = 0; j < elements / 4; j += 64) {
      const uint8_t* row = codes + j * 4;
      for (int i = 0; i < 64; i++) {
        lo[j + i] = static_cast<uint8_t>((row[i] & 3) | (row[i + 64] & 3) << 2 | (row[i + 128] & 3) << 4 | (row[i + 192] & 3) << 6);
      }
    }
    return;
  }
  for (size_t j = 0; j < elements / 8; j += 64) {
    for (int i = 0; i < 64; i++) {
      uint8_t byte = 0;
      for (int f = 0; f < 8; f++) byte = static_cast<uint8_t>(byte | ((codes[j * 8 + f * 64 + i] >> 1) & 1) << f);
      lo[j + i] = byte;
    }
  }
}

// Planes -> codes of the width of `format`, in tile order.
void unpackCodes(int format, const uint8_t* hi, const uint8_t* lo, size_t elements, uint8_t* codes) {
  for (size_t row = 0; row < elements / 64; row++) {
    const uint8_t* high = hi + row / 4 * 64;
    const int shift = static_cast<int>(row % 4) * 2;
    uint8_t* out = codes + row * 64;
    if (format == kRot4) {
      const uint8_t* low = lo + row / 4 * 64;
      for (int i = 0; i < 64; i++) out[i] = static_cast<uint8_t>(((high[i] >> shift) & 3) << 2 | ((low[i] >> shift) & 3));
    } else if (format == kRot3) {
      const uint8_t* low = lo + row / 8 * 64;
      const int bit = static_cast<int>(row % 8);
      for (int i = 0; i < 64; i++) out[i] = static_cast<uint8_t>(((high[i] >> shift) & 3) << 1 | ((low[i] >> bit) & 1));
    } else {
      for (int i = 0; i < 64; i++) out[i] = (high[i] >> shift) & 3;
    }
  }
}

}  // namespace

float rotScale(int8_t k) { return k == kZeroRow ? 0.0f : kScaleValues[k + 127]; }

int rotDivisor(int format) { return format == kRot4 ? kRot4Divisor : format == kRot3 ? kRot3Divisor : kRot2Divisor; }

size_t hiPlaneBytes(int d) { return static_cast<size_t>(kPageTokens) * d / 4; }

size_t loPlaneBytes(int format, int d) {
  return format == kRot4 ? static_cast<size_t>(kPageTokens) * d / 4 : format == kRot3 ? static_cast<size_t>(kPageTokens) * d / 8 : 0;
}

void encodeRot(const Kernels* kernels, int format, bool isKey, const float* x, size_t stride, int d, int firstRow, uint8_t* hi, uint8_t* lo,
               int8_t* k, int8_t* mean, uint16_t* meanScale) {
  RotTargets targets;
  targets.hi = hi;
  targets.mean = mean;
  targets.meanScale = meanScale;
  targets.k[format - kRot4] = k;
  targets.lo[format - kRot4] = lo;
  encodeRotWidths(kernels, isKey, x, stride, d, firstRow, targets);
}

void encodeRotWidths(const Kernels* kernels, bool isKey, const float* x, size_t stride, int d, int firstRow, const RotTargets& targets) {
  const LevelTable tables[3] = {LevelTable(kRot4), LevelTable(kRot3), LevelTable(kRot2)};
  float decodedMean[kMaxHeadDim];
  encodeMean(x, stride, d, firstRow, targets.mean, targets.meanScale, decodedMean);
  alignas(64) uint8_t tile[kPageTokens * kMaxHeadDim];
  for (int t = 0; t < kPageTokens; t++) {
    uint8_t codes[kMaxHeadDim] = {};
    int8_t scale[3] = {kZeroRow, kZeroRow, kZeroRow};
    if (t >= firstRow) {
      alignas(64) float y[kMaxHeadDim];
      const float* row = x + t * stride;
      for (int c = 0; c < d; c++) y[c] = row[c] - decodedMean[c];
      kernels->rotate(y, 1, 0, d, false);
      float yy;
      if (encodeRow(y, d, codes, &yy)) {
        for (int width = 0; width < 3; width++) {
          if (targets.k[width]) scale[width] = encodeScale(y, d, codes, yy, kRot4 + width, tables[width]);
        }
      }
    }
    for (int width = 0; width < 3; width++) {
      if (targets.k[width]) targets.k[width][t] = scale[width];
    }
    if (isKey) {
      for (int c = 0; c < d; c += 4) __builtin_memcpy(tile + tileOffset(true, d, t, c), codes + c, 4);
    } else {
      for (int c = 0; c < d; c++) tile[tileOffset(false, d, t, c)] = codes[c];
    }
  }
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  packHigh(tile, elements, targets.hi);
  if (targets.lo[0]) packLow(kRot4, tile, elements, targets.lo[0]);
  if (targets.lo[1]) packLow(kRot3, tile, elements, targets.lo[1]);
}

void demoteRot(int from, int to, bool isKey, int d, const uint8_t* hi, const uint8_t* lo, const int8_t* k, uint8_t* loOut, int8_t* kOut) {
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  const int drop = codeBits(from) - codeBits(to);
  const int8_t* fine = levelsOf(from);
  const int8_t* coarse = levelsOf(to);
  // Per code: square of the fine level below, product of fine and coarse level above. Both sums stay under 2^23.
  int64_t terms[16];
  for (int code = 0; code < 16; code++) {
    const int64_t square = fine[code] * fine[code], product = fine[code] * coarse[code >> drop];
    terms[code] = square + product * (int64_t{1} << 32);
  }
  alignas(64) uint8_t codes[kPageTokens * kMaxHeadDim];
  unpackCodes(from, hi, lo, elements, codes);
  int64_t sums[kPageTokens] = {};
  const int outputs = isKey ? kPageTokens : d;
  for (int contraction = 0; contraction < (isKey ? d : kPageTokens); contraction += 4) {
    const uint8_t* quads = codes + static_cast<size_t>(contraction) * outputs;
    if (isKey) {
      for (int t = 0; t < kPageTokens; t++) {
        sums[t] += terms[quads[t * 4]] + terms[quads[t * 4 + 1]] + terms[quads[t * 4 + 2]] + terms[quads[t * 4 + 3]];
      }
    } else {
      for (int c = 0; c < d; c++) {
        for (int step = 0; step < 4; step++) sums[contraction + step] += terms[quads[c * 4 + step]];
      }
    }
  }
  for (int t = 0; t < kPageTokens; t++) {
    const float square = static_cast<float>((sums[t] & 0xffffffff) * rotDivisor(to));
    const int64_t cross = sums[t] >> 32;
    const float product = static_cast<float>(cross * rotDivisor(from));
    kOut[t] = k[t] == kZeroRow || cross <= 0 ? kZeroRow : scaleCode(rotScale(k[t]) * (square / product));
  }
  if (to != kRot3) return;
  // Rows 4j..4j+3 of the old 2-bit plane give half a byte of the new 1-bit plane each.
  for (size_t j = 0; j < elements / 8; j += 64) {
    for (int i = 0; i < 64; i++) {
      uint8_t byte = 0;
      for (int f = 0; f < 4; f++) {
        byte = static_cast<uint8_t>(byte | ((lo[j * 2 + i] >> (2 * f + 1)) & 1) << f | ((lo[j * 2 + 64 + i] >> (2 * f + 1)) & 1) << (f + 4));
      }
      loOut[j + i] = byte;
    }
  }
}

void decodeRot(const Kernels* kernels, int format, bool isKey, int d, int firstRow, const uint8_t* hi, const uint8_t* lo, const int8_t* k,
               const int8_t* mean, uint16_t meanScale, float* x, size_t stride) {
  alignas(64) int8_t tile[kPageTokens * kMaxHeadDim];
  kernels->unpackRot(format, hi, lo, static_cast<size_t>(kPageTokens) * d, tile);
  const float divisor = static_cast<float>(rotDivisor(format));
  const float scale = halfToFloat(meanScale);
  for (int t = firstRow; t < kPageTokens; t++) {
    float row[kMaxHeadDim];
    const float factor = rotScale(k[t]) / divisor;
    for (int c = 0; c < d; c++) row[c] = static_cast<float>(tile[tileOffset(isKey, d, t, c)]) * factor;
    kernels->rotate(row, 1, 0, d, true);
    float* out = x + t * stride;
    for (int c = 0; c < d; c++) out[c] = static_cast<float>(mean[c]) * scale + row[c];
  }
}

void codesRot(int format, bool isKey, int d, const uint8_t* hi, const uint8_t* lo, uint8_t* codes) {
  alignas(64) uint8_t tile[kPageTokens * kMaxHeadDim];
  unpackCodes(format, hi, lo, static_cast<size_t>(kPageTokens) * d, tile);
  for (int t = 0; t < kPageTokens; t++) {
    for (int c = 0; c < d; c++) codes[t * d + c] = tile[tileOffset(isKey, d, t, c)];
  }
}

}  // namespace palimpsest
