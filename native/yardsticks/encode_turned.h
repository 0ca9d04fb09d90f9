// Codes of rows that are rotated and divided by their root mean square, without a mean. The arithmetic is that of
// native/reference/turned.ts, in the same order: float32, unfused, sums as zero-padded halving trees.
#pragma once

// The largest float16. Rows that another format gave back may be a little beyond it.
constexpr float kHalfMost = 65504.0f;

// Rotates the rows from firstRow on into y [128][D]; those before it become zeros. rms: [128], the root mean square of
// each, which is written to `halves` as f16.
template <int D>
static COLD void turnRows(int firstRow, const float* x, size_t stride, float* y, float* rms, uint16_t* halves) {
  constexpr int kCount = D / kLanes;
  alignas(64) float none[D];
  for (int c = 0; c < D; c += kLanes) store(none + c, splat(0.0f));
  for (int first = 0; first < kPageTokens; first += kLanes) {
    VecF v[kCount], partial[kLanes];
    for (int t = first; t < first + kLanes; t++) {
      if (t >= firstRow) {
        rotateRow<D>(x + t * stride, none, v);
      } else {
        for (int i = 0; i < kCount; i++) v[i] = splat(0.0f);
      }
      for (int i = 0; i < kCount; i++) {
        store(y + t * D + i * kLanes, v[i]);
        v[i] = v[i] * v[i];
      }
      partial[t - first] = treeSum<D>(v);
    }
    store(rms + first, sumsOfLanes(partial) / static_cast<float>(D));
  }
  for (int t = 0; t < kPageTokens; t++) {
    rms[t] = __builtin_sqrtf(rms[t]);
    halves[t] = floatToHalf(rms[t] > kHalfMost ? kHalfMost : rms[t]);
  }
}

// The codes of rotated rows [128][d], as bytes: the number of bounds below each element over rms.
[[maybe_unused]] static void codeRows(const float* y, const float* rms, int d, const float* bounds, uint8_t* codes) {
  const Sixteen unit = loadSixteen(bounds);
  for (int t = 0; t < kPageTokens; t++) {
    Sixteen scaled;
    for (int i = 0; i < kParts; i++) scaled.part[i] = unit.part[i] * rms[t];
    for (int c = 0; c < d; c += kLanes) storeLowBytes(codes + t * d + c, countBelow(scaled, load(y + t * d + c)));
  }
}

// Codes [128][D] of so many bits as planes (kernels/pack_planes.h).
template <int D>
static COLD void packPlanes(int bits, bool isKey, const uint8_t* codes, uint8_t* hi, uint8_t* lo, Workspace space) {
  uint8_t* tile = space.take<uint8_t>(kPageTokens * D);
  placeInTile<D>(isKey, codes, tile);
  packTile(bits, tile, kPageTokens * D, hi, lo);
}
