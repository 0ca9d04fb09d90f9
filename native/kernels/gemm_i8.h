// y[t][o] = base[t][o] + rowScale[t] * (columnScale[o] * sum_c a[t][c] * w[c][o]): int8 activations times int8 weights. The sums are exact in
// int32, what follows is unfused float32, so every instruction set gives equal bits.
//
//   a   [rows/8][contraction/4][8][4] int8: 32 bytes are 8 rows x 4 steps of the contraction, so a block of 8 rows is one linear stream
//   w   panels of 48 outputs (the last ones 16 or 32, gemmPanelOutputs): [contraction/4][outputs of the panel][4] bytes, weight + 128 (gemmWeightBytes,
//       packWeights in native/cache/latent.cc). Unsigned, because vpdpbusd wants one unsigned operand; 128 * sum(a) is taken away again.
//
// A block of 8 rows x 3 vectors has 24 accumulators: enough to hide the latency of vpdpbusd twice over, and 11 loads for 24 products.
//   AVX-512 VNNI, AVX-VNNI  vpdpbusd
//   AVX-512, AVX2, SSE2     vpmaddwd on int16: steps 0, 2 and steps 1, 3 of each output are widened apart by shifts
//   anything else           int32 products, four steps one after the other
#pragma once

#if defined(__AVX512VNNI__)

typedef __m512i GemmSum;
typedef __m512i GemmWeight;
typedef __m512i GemmRow;
constexpr int kGemmLanes = 16, kGemmRows = 8, kGemmGroups = 3;
INLINE GemmSum gemmStart(int32_t v) { return _mm512_set1_epi32(v); }
INLINE GemmWeight gemmWeight(const uint8_t* p) { return _mm512_loadu_si512(p); }
// As assembly, like vpdpbusd itself: gcc 12 copies and spills accumulators around the intrinsics.
INLINE GemmRow gemmRow(const int8_t* p) {
  GemmRow row;
  asm("vpbroadcastd %1, %0" : "=v"(row) : "m"(*reinterpret_cast<const int8_t(*)[4]>(p)));
  return row;
}
INLINE void gemmStep(GemmSum& sum, GemmWeight w, GemmRow a) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a)); }
INLINE void gemmStore(int32_t* p, GemmSum v) { _mm512_storeu_si512(p, v); }

#elif defined(__AVXVNNI__)

typedef __m256i GemmSum;
typedef __m256i GemmWeight;
typedef __m256i GemmRow;
constexpr int kGemmLanes = 8, kGemmRows = 4, kGemmGroups = 1;
INLINE GemmSum gemmStart(int32_t v) { return _mm256_set1_epi32(v); }
INLINE GemmWeight gemmWeight(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
INLINE GemmRow gemmRow(const int8_t* p) {
  GemmRow row;
  asm("vpbroadcastd %1, %0" : "=x"(row) : "m"(*reinterpret_cast<const int8_t(*)[4]>(p)));
  return row;
}
INLINE void gemmStep(GemmSum& sum, GemmWeight w, GemmRow a) { asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(a)); }
INLINE void gemmStore(int32_t* p, GemmSum v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

#elif defined(__SSE2__)

#if defined(__AVX512BW__)
typedef __m512i GemmSum;
constexpr int kGemmLanes = 16, kGemmRows = 4, kGemmGroups = 3;
INLINE GemmSum gemmStart(int32_t v) { return _mm512_set1_epi32(v); }
INLINE GemmSum gemmLoad(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE GemmSum gemmEven(GemmSum v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
INLINE GemmSum gemmOdd(GemmSum v) { return _mm512_srai_epi16(v, 8); }
INLINE GemmSum gemmUnsignedEven(GemmSum v) { return _mm512_and_si512(v, _mm512_set1_epi16(255)); }
INLINE GemmSum gemmUnsignedOdd(GemmSum v) { return _mm512_srli_epi16(v, 8); }
INLINE GemmSum gemmAdd(GemmSum sum, GemmSum a, GemmSum b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
INLINE void gemmStore(int32_t* p, GemmSum v) { _mm512_storeu_si512(p, v); }
#elif defined(__AVX2__)
typedef __m256i GemmSum;
constexpr int kGemmLanes = 8, kGemmRows = 4, kGemmGroups = 1;
INLINE GemmSum gemmStart(int32_t v) { return _mm256_set1_epi32(v); }
INLINE GemmSum gemmLoad(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
INLINE GemmSum gemmEven(GemmSum v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
INLINE GemmSum gemmOdd(GemmSum v) { return _mm256_srai_epi16(v, 8); }
INLINE GemmSum gemmUnsignedEven(GemmSum v) { return _mm256_and_si256(v, _mm256_set1_epi16(255)); }
INLINE GemmSum gemmUnsignedOdd(GemmSum v) { return _mm256_srli_epi16(v, 8); }
INLINE GemmSum gemmAdd(GemmSum sum, GemmSum a, GemmSum b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
INLINE void gemmStore(int32_t* p, GemmSum v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
#else
typedef __m128i GemmSum;
constexpr int kGemmLanes = 4, kGemmRows = 2, kGemmGroups = 1;
INLINE GemmSum gemmStart(int32_t v) { return _mm_set1_epi32(v); }
INLINE GemmSum gemmLoad(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
INLINE GemmSum gemmEven(GemmSum v) { return _mm_srai_epi16(_mm_slli_epi16(v, 8), 8); }
INLINE GemmSum gemmOdd(GemmSum v) { return _mm_srai_epi16(v, 8); }
INLINE GemmSum gemmUnsignedEven(GemmSum v) { return _mm_and_si128(v, _mm_set1_epi16(255)); }
INLINE GemmSum gemmUnsignedOdd(GemmSum v) { return _mm_srli_epi16(v, 8); }
INLINE GemmSum gemmAdd(GemmSum sum, GemmSum a, GemmSum b) { return _mm_add_epi32(sum, _mm_madd_epi16(a, b)); }
INLINE void gemmStore(int32_t* p, GemmSum v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
#endif

struct GemmPair {
  GemmSum even, odd;
};
typedef GemmPair GemmWeight;
typedef GemmPair GemmRow;
INLINE GemmWeight gemmWeight(const uint8_t* p) {
  const GemmSum v = gemmLoad(p);
  return {gemmUnsignedEven(v), gemmUnsignedOdd(v)};
}
INLINE GemmRow gemmRow(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const GemmSum v = gemmStart(four);
  return {gemmEven(v), gemmOdd(v)};
}
INLINE void gemmStep(GemmSum& sum, const GemmWeight& w, const GemmRow& a) { sum = gemmAdd(gemmAdd(sum, w.even, a.even), w.odd, a.odd); }

#else

typedef VecI GemmSum;
constexpr int kGemmLanes = kLanes, kGemmRows = 2, kGemmGroups = 1;
struct GemmWeight {
  VecI step[4];
};
struct GemmRow {
  int32_t step[4];
};
INLINE GemmSum gemmStart(int32_t v) { return splatI(v); }
INLINE GemmWeight gemmWeight(const uint8_t* p) {
  VecI v;
  __builtin_memcpy(&v, p, sizeof v);
  return {{v & 255, (v >> 8) & 255, (v >> 16) & 255, (v >> 24) & 255}};
}
INLINE GemmRow gemmRow(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
INLINE void gemmStep(GemmSum& sum, const GemmWeight& w, const GemmRow& a) {
  for (int s = 0; s < 4; s++) sum += w.step[s] * a.step[s];
}
INLINE void gemmStore(int32_t* p, GemmSum v) { __builtin_memcpy(p, &v, sizeof v); }

#endif

constexpr int kGemmBlock = 8;    // rows of a block of a

struct GemmOutput {
  const float* rowScale;     // of the block's first row
  const float* columnScale;  // of the first output
  const float* base;         // null, or the block's first element
  size_t baseStride;
  float* y;
  size_t yStride;
};

// 16 sums of one row.
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

// R rows x B vectors. a: the first row of a block; w: the first output of a panel. start: -128 * sum(a) of each row.
template <int R, int B>
static __attribute__((noinline)) void gemmBlock(const int8_t* a, const uint8_t* w, size_t stepBytes, int steps, const int32_t* start, int column,
                                                int count, const GemmOutput& out) {
  GemmSum sum[R][B];
  // Unrolled everywhere, or the sums live in memory.
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) sum[r][b] = gemmStart(start[r]);
  }
  for (int step = 0; step < steps; step++) {
    GemmWeight weight[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) weight[b] = gemmWeight(w + b * kGemmLanes * 4);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const GemmRow row = gemmRow(a + r * 4);
#pragma GCC unroll 4
      for (int b = 0; b < B; b++) gemmStep(sum[r][b], weight[b], row);
    }
    a += kGemmBlock * 4;
    w += stepBytes;
  }
  alignas(64) int32_t sums[R][B * kGemmLanes];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) gemmStore(sums[r] + b * kGemmLanes, sum[r][b]);
  }
#pragma GCC unroll 1
  for (int r = 0; r < R; r++) {
    for (int i = 0; i < B * kGemmLanes; i += 16) {
      const int left = count - i;
      gemmFinish(sums[r] + i, out, r, column + i, left < 16 ? left : 16);
    }
  }
}

// All outputs of one panel for R rows.
template <int R>
INLINE void gemmPanel(const int8_t* a, const uint8_t* w, size_t stepBytes, int steps, const int32_t* start, int column, int count,
                      const GemmOutput& out) {
  constexpr int kGroup = 16 / kGemmLanes;
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

// start[r] = -128 * sum(a) of the 8 rows of a block.
INLINE void gemmStarts(const int8_t* a, int steps, int32_t* start) {
  typedef int32_t Eight __attribute__((vector_size(32)));
  typedef int32_t UnalignedEight __attribute__((vector_size(32), aligned(1), may_alias));
  Eight sum{};
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  const Eight ones = Eight{} + 0x01010101;
#endif
  for (int step = 0; step < steps; step++, a += kGemmBlock * 4) {
    const Eight v = *reinterpret_cast<const UnalignedEight*>(a);
#if defined(__AVX512VNNI__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(ones), "v"(v));
#elif defined(__AVXVNNI__)
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(ones), "x"(v));
#else
    sum += ((v << 24) >> 24) + ((v << 16) >> 24) + ((v << 8) >> 24) + (v >> 24);
#endif
  }
  sum *= -128;
  __builtin_memcpy(start, &sum, sizeof sum);
}

static void gemmI8(const int8_t* a, int rows, int contraction, const uint8_t* w, int outputs, const float* rowScale, const float* columnScale,
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
      panel += stepBytes * steps;
    }
  }
  clearUpperHalves();
}
