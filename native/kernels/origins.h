// What the rows of a page and head are coded from: their mean, or zero where they are nearer to it. The arithmetic is
// that of native/reference/origins.ts, in the same order.
#pragma once

// Where the origins of a head are written: mean [d], one bit of each row, the f16 scale of the means.
struct Origins {
  int8_t* mean = nullptr;
  uint8_t* fromZero = nullptr;
  uint16_t* meanScale = nullptr;
};

// Whether a row is coded from zero instead of the mean: bit t % 8 of byte t / 8.
INLINE bool isFromZero(const uint8_t* fromZero, int t) { return (fromZero[t / 8] >> t % 8 & 1) != 0; }

INLINE bool hasFromZero(const uint8_t* fromZero) {
  uint64_t words[kPageTokens / 64];
  __builtin_memcpy(words, fromZero, sizeof words);
  return (words[0] | words[1]) != 0;
}

// All ones in the lanes of such rows, of kLanes rows from `first` on.
INLINE VecI lanesFromZero(const uint8_t* fromZero, int first) {
  alignas(64) static constexpr int32_t kLaneBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  uint32_t flags = fromZero[first / 8];
  if constexpr (kLanes == 16) flags |= static_cast<uint32_t>(fromZero[first / 8 + 1]) << 8;
  if constexpr (kLanes == 4) flags >>= first % 8;
  return (splatI(static_cast<int32_t>(flags)) & loadWords(kLaneBits)) != 0;
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
static __attribute__((noinline)) int findFromZero(const float* x, size_t stride, int firstRow, const float* mean, uint8_t* fromZero) {
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

// The mean, and which rows are coded from zero instead.
template <int D>
static __attribute__((noinline)) void encodeOrigins(const float* x, size_t stride, int firstRow, const Origins& targets, float* mean, Workspace space) {
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
