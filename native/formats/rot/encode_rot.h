// Encodes the rot family with the arithmetic of native/formats/rot/rot.ts, in the same order: float32, unfused, sums as
// zero-padded halving trees. A row stays in registers from the subtraction of the mean to its codes. Plane layout:
// planes.h.
#pragma once

// Where the widths of the family are written, by widthOf. Widths whose exponents are null are not written, and planes
// that are null neither.
struct RotTargets {
  uint8_t* hi = nullptr;
  uint8_t* lo[kWidths] = {};
  int8_t* exponents[kWidths] = {};
  int8_t* mean = nullptr;
  uint8_t* fromZero = nullptr;
  uint16_t* meanScale = nullptr;
  int8_t* reference = nullptr;
};

// Decode levels of a width, by 4-bit code.
INLINE Sixteen levelsByCode(int format) {
  float level[16];
  for (int code = 0; code < 16; code++) level[code] = static_cast<float>(levelsOf(format)[code >> (4 - bitsOf(format))]);
  return loadSixteen(level);
}

// Column sums as halving trees over 128 rows; rows before firstRow count as zeros.
template <int D>
INLINE void columnSums(const float* x, size_t stride, int firstRow, float* sums) {
  constexpr int kResidues = 8, kDepth = kPageTokens / kResidues;
  for (int c = 0; c < D; c += kLanes) {
    // The tree adds rows 64 apart first, then 32 … 1, so rows that are equal modulo 8 are added before any others.
    VecF part[kResidues];
    for (int r = 0; r < kResidues; r++) {
      VecF v[kDepth];
#pragma GCC unroll 16
      for (int j = 0; j < kDepth; j++) {
        const int t = r + j * kResidues;
        v[j] = t >= firstRow ? load(x + t * stride + c) : splat(0.0f);
      }
#pragma GCC unroll 4
      for (int half = kDepth / 2; half >= 1; half /= 2) {
#pragma GCC unroll 8
        for (int j = 0; j < half; j++) v[j] = v[j] + v[j + half];
      }
      part[r] = v[0];
    }
    for (int half = kResidues / 2; half >= 1; half /= 2) {
      for (int j = 0; j < half; j++) part[j] = part[j] + part[j + half];
    }
    store(sums + c, part[0]);
  }
}

INLINE VecF largestOf(const float* x, int count) {
  VecF top = splat(0.0f);
  for (int i = 0; i < count; i += kLanes) top = larger(magnitude(load(x + i)), top);
  return top;
}

// The low byte of each lane is x / scale, clamped to +-127 and rounded to the nearest integer, halves to even. scale >
// 0.
INLINE VecI divideToCodes(VecF x, float scale) {
  const VecF most = splat(127.0f);
  VecF code = x / splat(scale);
  code = code > most ? most : code;
  code = code < -most ? -most : code;
  return bits(code + kRoundMagic);
}

// Column means of `count` rows, the others from firstRow on being zeros, quantized to int8 with one f16 scale.
// decoded[c]: the dequantized mean.
template <int D>
INLINE void encodeMean(const float* x, size_t stride, int firstRow, int count, int8_t* mean, uint16_t* meanScale, float* decoded) {
  float average[D];
  columnSums<D>(x, stride, firstRow, average);
  const VecF rows = splat(static_cast<float>(count));
  for (int c = 0; c < D; c += kLanes) store(average + c, load(average + c) / rows);
  *meanScale = floatToHalf(largestLane(largestOf(average, D)) / 127.0f);
  const float scale = halfToFloat(*meanScale);
  for (int c = 0; c < D; c += kLanes) {
    storeLowBytes(mean + c, scale > 0.0f ? divideToCodes(load(average + c), scale) : VecI{});
  }
  for (int c = 0; c < D; c++) decoded[c] = static_cast<float>(mean[c]) * scale;
}

// Sets the bits of the rows from firstRow on that are nearer to zero than to the mean, and returns how many they are.
template <int D>
static COLD int findFromZero(const float* x, size_t stride, int firstRow, const float* mean, uint8_t* fromZero) {
  constexpr int kCount = D / kLanes;
  const auto product = [&](const float* row) MEMBER {
    VecF v[kCount];
#pragma GCC unroll 16
    for (int i = 0; i < kCount; i++) v[i] = load(row + i * kLanes) * load(mean + i * kLanes);
    return treeSum<D>(v);
  };
  VecF partial[kLanes];
  float along[kLanes];
  for (int i = 0; i < kLanes; i++) partial[i] = product(mean);
  const float half = sumsOfLanes(partial)[0] * 0.5f;
  __builtin_memset(fromZero, 0, kPageTokens / 8);
  int count = 0;
  for (int first = 0; first < kPageTokens; first += kLanes) {
    for (int i = 0; i < kLanes; i++) partial[i] = first + i < firstRow ? splat(0.0f) : product(x + (first + i) * stride);
    store(along, sumsOfLanes(partial));
    for (int i = 0; i < kLanes; i++) {
      const int t = first + i;
      if (t < firstRow || !(along[i] < half)) continue;
      fromZero[t / 8] = static_cast<uint8_t>(fromZero[t / 8] | 1 << t % 8);
      count++;
    }
  }
  return count;
}

// The mean, and which rows are coded from zero instead: native/formats/rot/rot.ts.
template <int D>
static COLD void encodeOrigins(const float* x, size_t stride, int firstRow, const RotTargets& targets, float* mean, Workspace space) {
  const int rows = kPageTokens - firstRow;
  encodeMean<D>(x, stride, firstRow, rows, targets.mean, targets.meanScale, mean);
  const int apart = findFromZero<D>(x, stride, firstRow, mean, targets.fromZero);
  if (apart == 0) return;
  float* others = space.take<float>(kPageTokens * D);
  for (int t = firstRow; t < kPageTokens; t++) {
    for (int c = 0; c < D; c += kLanes) store(others + t * D + c, isFromZero(targets.fromZero, t) ? splat(0.0f) : load(x + t * stride + c));
  }
  encodeMean<D>(others, D, firstRow, rows > apart ? rows - apart : 1, targets.mean, targets.meanScale, mean);
}

// y = H*D*(row - mean), in the order of operations of rotate.h.
template <int D>
INLINE void rotateRow(const float* row, const float* mean, VecF (&y)[D / kLanes]) {
  if constexpr (D == 80 || D == 96) {
    float v[D];
    for (int c = 0; c < D; c += kLanes) store(v + c, load(row + c) - load(mean + c));
    if constexpr (D == 80) rotateProduct<20, 4>(v, kHadamard20, kNorm80, false);
    else rotateProduct<12, 8>(v, kHadamard12, kNorm96, false);
    for (int i = 0; i < D / kLanes; i++) y[i] = load(v + i * kLanes);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < D / kLanes; i++) {
      y[i] = (load(row + i * kLanes) - load(mean + i * kLanes)) * load(kRotationSigns + i * kLanes);
    }
    hadamard<D>(y);
#pragma GCC unroll 16
    for (int i = 0; i < D / kLanes; i++) y[i] = y[i] * (D == 64 ? kNorm64 : D == 128 ? kNorm128 : kNorm256);
  }
}

// Packs bits At and At + 1 of four rows of 64 codes in tile order into 64 bytes of a 2-bit plane.
template <int At>
INLINE void packPairs(const uint8_t* codes, size_t elements, uint8_t* plane) {
  const VecI pair = splatI(0x03030303);
  for (size_t j = 0; j < elements / 4; j += 64) {
    for (int i = 0; i < 64; i += kLanes * 4) {
      const uint8_t* row = codes + j * 4 + i;
      VecI packed{};
#pragma GCC unroll 4
      for (int f = 0; f < 4; f++) packed |= ((loadWords(row + f * 64) >> At) & pair) << (2 * f);
      storeWords(plane + j + i, packed);
    }
  }
}

// Packs bit At of eight rows into 64 bytes of a 1-bit plane.
template <int At>
INLINE void packBits(const uint8_t* codes, size_t elements, uint8_t* plane) {
  const VecI one = splatI(0x01010101);
  for (size_t j = 0; j < elements / 8; j += 64) {
    for (int i = 0; i < 64; i += kLanes * 4) {
      const uint8_t* row = codes + j * 8 + i;
      VecI packed{};
#pragma GCC unroll 8
      for (int f = 0; f < 8; f++) packed |= ((loadWords(row + f * 64) >> At) & one) << f;
      storeWords(plane + j + i, packed);
    }
  }
}

// Codes of so many bits in tile order as planes (planes.h). elements: a multiple of 512.
static __attribute__((noinline)) void packTile(int bits, const uint8_t* tile, size_t elements, uint8_t* hi, uint8_t* lo) {
  switch (bits) {
    case 4:
      packPairs<2>(tile, elements, hi);
      packPairs<0>(tile, elements, lo);
      break;
    case 3:
      packPairs<1>(tile, elements, hi);
      packBits<0>(tile, elements, lo);
      break;
    case 2: packPairs<0>(tile, elements, hi); break;
    default: packBits<0>(tile, elements, lo);
  }
}

// A number below the octave of every float.
constexpr int kNoOctave = -1000;

// When unrolled, the codes of a row stay in registers; with four lanes there are too few registers for that.
constexpr int kUnroll = kLanes == 4 ? 1 : 16;

// floor(log2 rms) of the largest and the smallest row that is not a zero row.
struct Octaves {
  int largest;
  int smallest;
};

// Encodes every part of a head except its reference, as if that were 0.
template <int D>
static Octaves encodeRowsOf(bool isKey, const float* x, size_t stride, int firstRow, const RotTargets& targets, Workspace space) {
  constexpr int kCount = D / kLanes, kElements = kPageTokens * D;
  alignas(64) float mean[D], zero[D];
  encodeOrigins<D>(x, stride, firstRow, targets, mean, space);
  for (int c = 0; c < D; c += kLanes) store(zero + c, splat(0.0f));
  Sixteen levels[kWidths];
  for (int width = 0; width < kWidths; width++) levels[width] = levelsByCode(kWidthFormats[width]);
  float padded[16];
  for (int j = 0; j < 16; j++) padded[j] = kRotBounds[j < 15 ? j : 14];
  const Sixteen unit = loadSixteen(padded);

  VecI largest = splatI(kNoOctave), smallest = splatI(-kNoOctave);
  uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
  // It takes as many rows at a time as a vector has lanes, so that quantities with one number per row fill a vector.
  for (int first = 0; first < kPageTokens; first += kLanes) {
    alignas(64) VecF y[kLanes][kCount];
    VecF v[kCount], partial[kLanes];
    for (int row = 0; row < kLanes; row++) {
      const int t = first + row;
      if (t >= firstRow) {
        rotateRow<D>(x + t * stride, isFromZero(targets.fromZero, t) ? zero : mean, y[row]);
      } else {
        for (int i = 0; i < kCount; i++) y[row][i] = splat(0.0f);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kCount; i++) v[i] = y[row][i] * y[row][i];
      partial[row] = treeSum<D>(v);
    }
    const VecF yy = sumsOfLanes(partial);
    const VecF square = yy / static_cast<float>(D);
    const VecI octave = yy > splat(0.0f) ? ((bits(square) >> 23) - 127) >> 1 : largest;
    largest = octave > largest ? octave : largest;
    smallest = ((yy > splat(0.0f)) & (octave < smallest)) ? octave : smallest;
    float rms[kLanes];
    store(rms, square);
    // A zero row gets NaN bounds, which nothing is above, so its codes become 0.
    for (int row = 0; row < kLanes; row++) rms[row] = __builtin_sqrtf(rms[row]);
    store(rms, yy > splat(0.0f) ? load(rms) : splat(__builtin_nanf("")));

    VecF products[kWidths][kLanes];
    for (int row = 0; row < kLanes; row++) {
      Sixteen bounds;
      for (int i = 0; i < kParts; i++) bounds.part[i] = unit.part[i] * rms[row];
      VecI code[kCount];
#pragma GCC unroll kUnroll
      for (int i = 0; i < kCount; i++) {
        code[i] = countBelow(bounds, y[row][i]);
        storeLowBytes(codes + (first + row) * D + i * kLanes, code[i]);
      }
      for (int width = 0; width < kWidths; width++) {
        if (!targets.exponents[width]) continue;
#pragma GCC unroll kUnroll
        for (int i = 0; i < kCount; i++) v[i] = y[row][i] * lookUpFloat(levels[width], code[i]);
        products[width][row] = treeSum<D>(v);
      }
    }
    // The exponent of the unbiased scale <y,y> / <y,u>
    for (int width = 0; width < kWidths; width++) {
      if (!targets.exponents[width]) continue;
      const VecF yu = sumsOfLanes(products[width]);
      const VecI exponents = scaleExponents((yy * static_cast<float>(kDivisors[width])) / yu);
      const VecI some = (yy > splat(0.0f)) & (yu > splat(0.0f));
      storeLowBytes(targets.exponents[width] + first, some ? exponents : splatI(kZeroRow));
    }
  }

  uint8_t* tile = space.take<uint8_t>(kPageTokens * D);
  placeInTile<D>(isKey, codes, tile);
  if (targets.hi) packPairs<2>(tile, kElements, targets.hi);
  if (targets.lo[0]) packPairs<0>(tile, kElements, targets.lo[0]);
  if (targets.lo[1]) packBits<1>(tile, kElements, targets.lo[1]);
  if (targets.lo[3]) packBits<3>(tile, kElements, targets.lo[3]);
  Octaves octaves = {kNoOctave, -kNoOctave};
  for (int i = 0; i < kLanes; i++) {
    octaves.largest = largest[i] > octaves.largest ? largest[i] : octaves.largest;
    octaves.smallest = smallest[i] < octaves.smallest ? smallest[i] : octaves.smallest;
  }
  return octaves;
}

// The reference e of a page and head whose rows have these octaves; native/formats/rot/rot.ts says why.
INLINE int referenceOf(const Octaves& rows) {
  if (rows.largest > 6) return rows.largest - 6;
  return rows.smallest < -7 && rows.largest < 3 ? rows.largest - 3 : 0;
}

template <int D>
static void encodeRotOf(bool isKey, const float* x, size_t stride, int firstRow, const RotTargets& targets, Workspace space) {
  const int reference = referenceOf(encodeRowsOf<D>(isKey, x, stride, firstRow, targets, space));
  *targets.reference = static_cast<int8_t>(reference);
  if (reference == 0) return;
  float* scaled = space.take<float>(kPageTokens * D);
  const VecF unit = splat(powerOfTwo(-reference));
  for (int t = firstRow; t < kPageTokens; t++) {
    for (int c = 0; c < D; c += kLanes) store(scaled + t * D + c, load(x + t * stride + c) * unit);
  }
  encodeRowsOf<D>(isKey, scaled, D, firstRow, targets, space);
}

static __attribute__((noinline)) void encodeRotWidths(bool isKey, const float* x, size_t stride, int d, int firstRow, const RotTargets& targets, Workspace space) {
  withHeadDim(d, [&](auto dim) MEMBER { encodeRotOf<dim.value>(isKey, x, stride, firstRow, targets, space); });
}

// ---- Demotion, from codes alone.

// The upper bits of the four 2-bit fields of each byte: bit 2f + 1 -> bit f.
INLINE VecI upperBits(VecI fields) {
  VecI v = (fields >> 1) & 0x55555555;
  v = (v | v >> 1) & 0x33333333;
  return (v | v >> 2) & 0x0f0f0f0f;
}

// sums[t] = sum of a[e] * b[e] over the elements e of token t, both in tile order. |a * b| < 2^14, so int32 holds the
// sum of any 256 of them.
static void tokenSums(bool isKey, int d, const int8_t* a, const int8_t* b, int32_t* sums) {
  // Elements 4i..4i+3 of a tile row belong to token i (keys) or to four tokens in turn (values).
  int32_t wide[kPageTokens * 4];
  if (isKey) {
    constexpr int kRow = kPageTokens * 4;
    for (int i = 0; i < kRow; i++) wide[i] = 0;
    for (int step = 0; step < d / 4; step++) {
      for (int i = 0; i < kRow; i++) wide[i] += static_cast<int16_t>(a[step * kRow + i] * b[step * kRow + i]);
    }
    for (int t = 0; t < kPageTokens; t++) sums[t] = (wide[4 * t] + wide[4 * t + 1]) + (wide[4 * t + 2] + wide[4 * t + 3]);
    return;
  }
  for (int t = 0; t < kPageTokens; t += 4) {
    const int8_t* left = a + t * d;
    const int8_t* right = b + t * d;
    for (int i = 0; i < 64; i++) wide[i] = 0;
    for (int e = 0; e < 4 * d; e += 64) {
      for (int i = 0; i < 64; i++) wide[i] += static_cast<int16_t>(left[e + i] * right[e + i]);
    }
    for (int step = 0; step < 4; step++) {
      int32_t sum = 0;
      for (int i = step; i < 64; i += 4) sum += wide[i];
      sums[t + step] = sum;
    }
  }
}

// The third bits of codes, as a 1-bit plane, from the 2-bit plane of their low bits. elements: a multiple of 512.
static void narrowPairs(const uint8_t* pairs, size_t elements, uint8_t* bits) {
  // Each group of rows 4j..4j+3 of the 2-bit plane gives half of each byte of the 1-bit plane.
  for (size_t j = 0; j < elements / 8; j += 64) {
    for (int i = 0; i < 64; i += kLanes * 4) {
      const VecI first = upperBits(loadWords(pairs + j * 2 + i)), second = upperBits(loadWords(pairs + j * 2 + 64 + i));
      storeWords(bits + j + i, first | second << 4);
    }
  }
}

// The exponents of rows whose levels, in tile order and over one divisor, became others over another.
static void demoteExponents(bool isKey, int d, const int8_t* fine, int fineDivisor, const int8_t* coarse, int coarseDivisor, const int8_t* exponents,
                            int8_t* exponentsOut) {
  int32_t squares[kPageTokens], products[kPageTokens];
  tokenSums(isKey, d, fine, fine, squares);
  tokenSums(isKey, d, fine, coarse, products);
  for (int t = 0; t < kPageTokens; t += kLanes) {
    // Sums are below 2^23, and float32(sum * divisor) rounds once, from an exact product below 2^31.
    const VecF square = __builtin_convertvector(loadWords(squares + t) * coarseDivisor, VecF);
    const VecF product = __builtin_convertvector(loadWords(products + t) * fineDivisor, VecF);
    float scale[kLanes];
    for (int i = 0; i < kLanes; i++) scale[i] = scaleOf(exponents[t + i]);
    const VecF now = load(scale);
    const VecI narrow = scaleExponents(now * (square / product));
    storeLowBytes(exponentsOut + t, now > splat(0.0f) && product > splat(0.0f) ? narrow : splatI(kZeroRow));
  }
}

static void demoteRot(int from, int to, bool isKey, int d, const uint8_t* hi, const uint8_t* lo, const int8_t* exponents, uint8_t* loOut,
                      int8_t* exponentsOut, Workspace space) {
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  if (to == kRot3 || to == kRot1) narrowPairs(to == kRot1 ? hi : lo, elements, loOut);
  int8_t* fine = space.take<int8_t>(elements);
  int8_t* coarse = space.take<int8_t>(elements);
  unpackRot(from, hi, lo, elements, fine);
  unpackRot(to, hi, loOut, elements, coarse);
  demoteExponents(isKey, d, fine, divisorOf(from), coarse, divisorOf(to), exponents, exponentsOut);
}
