// y[t][o] = base[t][o] + rowScale[t] * (columnScale[o] * sum_c a[t][c] * w[c][o]): int8 activations times int8 weights.
// The sums are exact in int32 and the rest is unfused float32, so every instruction set gives the same bits.
//
//   a   [rows/8][contraction/4][8][4] int8: 32 bytes are 8 rows x 4 steps of the contraction, so a block of 8 rows is
//   one linear stream
//   w   panels of 48 outputs (the last ones 16 or 32, gemmPanelOutputs): [contraction/4][outputs of the panel][4]
//   bytes, weight + 128
//       (PackedWeights in native/cache/latent.h). Unsigned, as vpdpbusd takes one unsigned operand; 128 * sum(a) is
//       subtracted again.
//
// A block of 8 rows x 3 vectors has 24 accumulators, enough to hide the latency of vpdpbusd twice over, and needs 11
// loads for 24 products.
#pragma once

// How many rows and groups of 16 outputs are multiplied at once: as many as the registers hold.
#if defined(__AVX512VNNI__)
constexpr int kGemmRows = 8, kGemmGroups = 3;
#elif defined(__AVX512BW__)
constexpr int kGemmRows = 4, kGemmGroups = 3;
#else
constexpr int kGemmRows = kLanes == 8 || kHasMatrixProducts ? 4 : 2, kGemmGroups = 1;
#endif

struct GemmOutput {
  const float* rowScale;     // of the block's first row
  const float* columnScale;  // of the first output
  const float* base;         // null, or the block's first element
  size_t baseStride;
  float* y;
  size_t yStride;
};

// Writes the outputs for 16 sums of one row, or for the first `count` of them.
INLINE void gemmFinish(const int32_t* sums, const GemmOutput& out, int row, int column, int count) {
  alignas(64) float line[16], scale[16], start[16];
  const float* factor = out.columnScale + column;
  const float* base = out.base ? out.base + row * out.baseStride + column : nullptr;
  float* y = out.y + row * out.yStride + column;
  float* target = y;
  if (count < 16) {  // nothing is read or written beyond the last output
    for (int i = 0; i < 16; i++) scale[i] = i < count ? factor[i] : 0.0f;
    for (int i = 0; i < 16; i++) start[i] = base && i < count ? base[i] : 0.0f;
    factor = scale;
    if (base) base = start;
    target = line;
  }
  for (int i = 0; i < 16; i += kLanes) {
    VecI sum;
    __builtin_memcpy(&sum, sums + i, sizeof sum);
    VecF v = (load(factor + i) * __builtin_convertvector(sum, VecF)) * out.rowScale[row];
    if (base) v = load(base + i) + v;
    store(target + i, v);
  }
  for (int i = 0; count < 16 && i < count; i++) y[i] = line[i];
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Adds the products of all steps for rows in pairs, two or four: two steps at once, and a last one beside zeros.
template <int R, int B>
INLINE void gemmMatrices(const int8_t* a, const uint8_t* w, size_t stepBytes, int steps, Dots sum[R][B]) {
  PairDots part[R / 2][B] = {};
  const auto rowsAt = [](const int8_t* at) MEMBER {
    if constexpr (R == 4) return asLevels(loadBytes(at));
    else return reinterpret_cast<VecI>(vcombine_s8(vld1_s8(at), vld1_s8(at)));  // nothing is read beyond the last step
  };
  const auto add = [&](const uint8_t* next, VecI first, VecI second) MEMBER {
    repeat<B>([&](auto b) MEMBER {
      const VecI here = asLevels(loadBytes(w + b.value * kVectorBytes) ^ splatByte(kBias ^ 128));
      const VecI there = asLevels(loadBytes(next + b.value * kVectorBytes) ^ splatByte(kBias ^ 128));
      repeat<R / 2>([&](auto p) MEMBER {
        constexpr int kRow = p.value * 2;
        const VecI rows = shuffled(first, second, VecI{kRow, kRow + 4, kRow + 1, kRow + 5});
        addPair(part[p.value][b.value], evenOutputs(here, there), oddOutputs(here, there), rows);
      });
    });
  };
  for (int step = 0; step + 2 <= steps; step += 2, a += 2 * kGemmBlock * 4, w += 2 * stepBytes) add(w + stepBytes, rowsAt(a), rowsAt(a + kGemmBlock * 4));
  if (steps % 2 == 1) add(w, rowsAt(a), VecI{});
  repeat<R * B>([&](auto i) MEMBER { sum[i.value / B][i.value % B] += rowOf(part[i.value / B / 2][i.value % B], i.value / B % 2 == 1); });
}
#endif

// R rows x B vectors. a: the first row of a block; w: the first output of a panel. start: gemmStarts of each row.
template <int R, int B>
static __attribute__((noinline)) void gemmBlock(const int8_t* a, const uint8_t* w, size_t stepBytes, int steps, const int32_t* start, int column,
                                                int count, const GemmOutput& out) {
  Dots sum[R][B];
  // Every loop over the sums is unrolled; otherwise they would live in memory.
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) sum[r][b] = startDots(start[r]);
  }
#if defined(__ARM_FEATURE_MATMUL_INT8)
  if constexpr (R > 1) gemmMatrices<R, B>(a, w, stepBytes, steps, sum);
  else
#endif
  for (int step = 0; step < steps; step++) {
    Levels weight[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) weight[b] = asLevels(loadBytes(w + b * kVectorBytes) ^ splatByte(kBias ^ 128));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Quad row = asQuad(splatFour(a + r * 4));
#pragma GCC unroll 4
      for (int b = 0; b < B; b++) dot4(sum[r][b], weight[b], row);
    }
    a += kGemmBlock * 4;
    w += stepBytes;
  }
  alignas(64) int32_t sums[R][B * kLanes];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) storeBytes(sums[r] + b * kLanes, reinterpret_cast<Bytes>(sumsOf(sum[r][b])));
  }
#pragma GCC unroll 1
  for (int r = 0; r < R; r++) {
    for (int i = 0; i < B * kLanes; i += 16) {
      const int left = count - i;
      gemmFinish(sums[r] + i, out, r, column + i, left < 16 ? left : 16);
    }
  }
}

// All outputs of one panel for R rows.
template <int R>
INLINE void gemmPanel(const int8_t* a, const uint8_t* w, size_t stepBytes, int steps, const int32_t* start, int column, int count,
                      const GemmOutput& out) {
  constexpr int kGroup = 16 / kLanes;
  const int wide = static_cast<int>(stepBytes / 4);
  int o = 0;
  for (; o + kGemmGroups * 16 <= wide; o += kGemmGroups * 16) {
    gemmBlock<R, kGemmGroups * kGroup>(a, w + o * 4, stepBytes, steps, start, column + o, count - o, out);
  }
  if constexpr (kGemmGroups > 1) {
    if (o + 32 <= wide) {
      gemmBlock<R, 2 * kGroup>(a, w + o * 4, stepBytes, steps, start, column + o, count - o, out);
      o += 32;
    }
    for (; o < wide; o += 16) gemmBlock<R, kGroup>(a, w + o * 4, stepBytes, steps, start, column + o, count - o, out);
  }
}

// start[r] = -kBias * sum(a) of the 8 rows of a block.
INLINE void gemmStarts(const int8_t* a, int steps, int32_t* start) {
  // A step is 32 bytes: half a vector, a vector or two.
  constexpr int kAtOnce = kLanes == 16 ? 2 : 1, kVectors = kAtOnce * 32 / kVectorBytes;
  const Levels ones = asLevels(splatByte(1));
  Dots sum[kVectors];
  for (int v = 0; v < kVectors; v++) sum[v] = startDots(0);
  int step = 0;
  for (; step + kAtOnce <= steps; step += kAtOnce, a += kAtOnce * 32) {
    for (int v = 0; v < kVectors; v++) dot4(sum[v], ones, asQuad(reinterpret_cast<VecI>(loadBytes(a + v * kVectorBytes))));
  }
  alignas(64) int32_t lanes[kVectors * kLanes];
  for (int v = 0; v < kVectors; v++) storeBytes(lanes + v * kLanes, reinterpret_cast<Bytes>(sumsOf(sum[v])));
  for (int i = 0; step < steps && i < 32; i++) lanes[i / 4] += a[i];
  for (int r = 0; r < kGemmBlock; r++) start[r] = -kBias * (lanes[r] + (kAtOnce == 2 ? lanes[kGemmBlock % (kVectors * kLanes) + r] : 0));
}

static void gemmI8(const int8_t* a, int rows, int contraction, const uint8_t* w, int depth, int outputs, const float* rowScale, const float* columnScale,
                   const float* base, size_t baseStride, float* y, size_t yStride) {
  const int steps = contraction / 4;
  for (int first = 0; first < rows; first += kPageTokens) {
    const int many = rows - first < kPageTokens ? rows - first : kPageTokens;
    int32_t start[kPageTokens];
    for (int t = 0; t < many; t += kGemmBlock) gemmStarts(a + static_cast<size_t>(first + t) * contraction, steps, start + t);
    const uint8_t* panel = w;
    for (int column = 0, count; column < outputs; column += count) {
      count = gemmPanelOutputs(outputs - column);
      const size_t stepBytes = static_cast<size_t>((count + 15) / 16) * 64;
      for (int t = 0; t < many;) {
        const int row = first + t, inBlock = t % kGemmBlock;
        const int8_t* from = a + static_cast<size_t>(row / kGemmBlock) * kGemmBlock * contraction + inBlock * 4;
        const GemmOutput out = {rowScale + row, columnScale, base ? base + row * baseStride : nullptr, baseStride, y + row * yStride, yStride};
        const int left = many - t;
        if (left >= kGemmRows) {
          gemmPanel<kGemmRows>(from, panel, stepBytes, steps, start + t, column, count, out);
          t += kGemmRows;
        } else if (left >= 2) {
          gemmPanel<2>(from, panel, stepBytes, steps, start + t, column, count, out);
          t += 2;
        } else {
          gemmPanel<1>(from, panel, stepBytes, steps, start + t, column, count, out);
          t += 1;
        }
      }
      panel += stepBytes * (depth / 4);
    }
  }
  clearUpperHalves();
}
