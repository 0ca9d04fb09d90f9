// The integer dots of dot_i8.h on 64-bit ARM. A block is R rows by 16 outputs; a loaded level serves all R rows.
//   dotprod   sdot takes signed bytes on both sides: x splits into two planes, hi = (x + 128) >> 8 and lo = int8(x), x = 256 hi + lo.
//   NEON      a de-interleaving load gives the four steps apart; widening multiply-adds of int16.
#pragma once

#if defined(__ARM_FEATURE_DOTPROD)

// The two planes of one row of x, four bytes a quad.
struct NeonRow {
  alignas(16) int8_t hi[kContractionMax];
  alignas(16) int8_t lo[kContractionMax];
};

INLINE void prepareRow(const int16_t* x, int contraction, NeonRow& out) {
  for (int c = 0; c < contraction; c += 4) {
    const int16x8_t v = vcombine_s16(vld1_s16(x + c), vdup_n_s16(0));
    // |x| <= 32512, so adding 128 cannot overflow
    const int8x8_t hi = vmovn_s16(vshrq_n_s16(vaddq_s16(v, vdupq_n_s16(128)), 8)), lo = vmovn_s16(v);
    vst1_lane_s32(reinterpret_cast<int32_t*>(out.hi + c), vreinterpret_s32_s8(hi), 0);
    vst1_lane_s32(reinterpret_cast<int32_t*>(out.lo + c), vreinterpret_s32_s8(lo), 0);
  }
}

INLINE int8x16_t quadOf(const int8_t* plane, int quad) {
  return vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(plane) + quad));
}

template <int R>
INLINE void blockI8(const int8_t* tile, int quads, size_t rowBytes, const NeonRow* x, int32_t* y, size_t yStride) {
  int32x4_t high[R][4], low[R][4];
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < 4; b++) high[r][b] = low[r][b] = vdupq_n_s32(0);
  }
  for (int q = 0; q < quads; q++) {
    const int8x16x4_t level = vld1q_s8_x4(tile + q * rowBytes);
    for (int r = 0; r < R; r++) {
      const int8x16_t hi = quadOf(x[r].hi, q), lo = quadOf(x[r].lo, q);
      for (int b = 0; b < 4; b++) high[r][b] = vdotq_s32(high[r][b], level.val[b], hi);
      for (int b = 0; b < 4; b++) low[r][b] = vdotq_s32(low[r][b], level.val[b], lo);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < 4; b++) vst1q_s32(y + r * yStride + b * 4, vaddq_s32(vshlq_n_s32(high[r][b], 8), low[r][b]));
  }
}

#else

struct NeonRow {
  const int16_t* x;
};

INLINE void prepareRow(const int16_t* x, int, NeonRow& out) { out.x = x; }

template <int R>
INLINE void blockI8(const int8_t* tile, int quads, size_t rowBytes, const NeonRow* x, int32_t* y, size_t yStride) {
  int32x4_t sum[R][4];
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < 4; b++) sum[r][b] = vdupq_n_s32(0);
  }
  for (int q = 0; q < quads; q++) {
    const int8x16x4_t level = vld4q_s8(tile + q * rowBytes);
    for (int s = 0; s < 4; s++) {
      const int16x8_t first = vmovl_s8(vget_low_s8(level.val[s])), second = vmovl_s8(vget_high_s8(level.val[s]));
      for (int r = 0; r < R; r++) {
        const int16_t factor = x[r].x[q * 4 + s];
        sum[r][0] = vmlal_n_s16(sum[r][0], vget_low_s16(first), factor);
        sum[r][1] = vmlal_n_s16(sum[r][1], vget_high_s16(first), factor);
        sum[r][2] = vmlal_n_s16(sum[r][2], vget_low_s16(second), factor);
        sum[r][3] = vmlal_n_s16(sum[r][3], vget_high_s16(second), factor);
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < 4; b++) vst1q_s32(y + r * yStride + b * 4, sum[r][b]);
  }
}

#endif

template <int R>
static __attribute__((noinline)) void rowsI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, size_t xStride, int32_t* y,
                                             size_t yStride) {
  NeonRow rows[R];
  for (int r = 0; r < R; r++) prepareRow(x + r * xStride, contraction, rows[r]);
  const size_t rowBytes = static_cast<size_t>(outputs) * 4;
  for (int o = 0; o < outputs; o += 16) blockI8<R>(tile + o * 4, contraction / 4, rowBytes, rows, y + o, yStride);
}

// Three rows are 24 of the 32 registers with two planes.
static void dotI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, int32_t* y, size_t yStride) {
  int i = 0;
  for (; n - i > 4 || n - i == 3; i += 3) rowsI8<3>(tile, contraction, outputs, x + i * xStride, xStride, y + i * yStride, yStride);
  for (; n - i >= 2; i += 2) rowsI8<2>(tile, contraction, outputs, x + i * xStride, xStride, y + i * yStride, yStride);
  if (i < n) rowsI8<1>(tile, contraction, outputs, x + i * xStride, xStride, y + i * yStride, yStride);
}
