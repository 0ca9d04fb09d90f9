// rot4, rot3, rot2, rot1 (rot.ts): how attention uses their bit planes, exponents and means. What families share that
// have the same fields (trellis.h) is in OverRotation. Planes and levels: kernels/planes.h; encoding:
// encode_rot.h; decoding: kernels/decode_rot.h.
#pragma once
#include "encode_rot.h"

INLINE int largestExponent(const int8_t* exponents) {
#if defined(__AVX2__)
  __m256i top = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents));
  for (int t = 32; t < kPageTokens; t += 32) top = _mm256_max_epi8(top, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents + t)));
  const __m128i most = _mm_max_epi8(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  // 127 - exponent is unsigned, so that one instruction finds the smallest 16-bit number.
  const __m128i least = _mm_xor_si128(most, _mm_set1_epi8(127));
  return 127 - _mm_extract_epi16(_mm_minpos_epu16(_mm_min_epu8(least, _mm_srli_epi16(least, 8))), 0);
#else
  int most = kZeroRow;
  for (int t = 0; t < kPageTokens; t++) most = exponents[t] > most ? exponents[t] : most;
  return most;
#endif
}

INLINE void meanRow(const SideView& side, int d, float* out) {
  const float scale = halfToFloat(*side.at<uint16_t>(kRotMeanScale)) * powerOfTwo(*side.at<int8_t>(kRotReference));
  for (int c = 0; c < d; c += kLanes) store(out + c, loadSigned(side.at<int8_t>(kRotMean) + c) * scale);
}

// Divisor: what the integer levels of a format are over.
template <int (*Divisor)(int format)>
struct OverRotation {
  static constexpr Basis kBasis = kTurned;
  static constexpr bool kMaySkip = true;

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    const int d = rows.d;
    const int first = head * rows.perHead, end = first + rows.perHead;
    rotScales(k.at<int8_t>(kRotExponents), 0, 1.0f, rows.keyScales + head * kPageTokens);
    const float unit = unitOf(k);
    alignas(64) float mean[kContractionMax];
    meanRow(k, d, mean);
    for (int r = first; r < end; r++) rows.factor[r] = rows.integers[kTurned][r].step * unit;
    for (int r = first; r < end; r++) rows.offset[r] = dot(rows.q + static_cast<size_t>(r) * d, mean, d);
  }

  // A step is the largest scale of the page over 32512.
  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    const int8_t* exponents = v.at<int8_t>(kRotExponents);
    const int most = largestExponent(exponents);
    rotScales(exponents, most, kIntegerMax, rows.valueScales + head * kPageTokens);
    rows.valueSteps[head] = scaleOf(static_cast<int8_t>(most)) / kIntegerMax * unitOf(v);
  }

  // Takes the product with the mean off the scores of rows that are coded from zero.
  static MEMBER void addToScores(const SideView& k, const PageRows& rows, int head) {
    const uint8_t* fromZero = k.at(kRotFromZero);
    if (!hasFromZero(fromZero)) return;
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      float* score = rows.scores + static_cast<size_t>(r) * kPageTokens;
      for (int t = 0; t < kPageTokens; t += kLanes) store(score + t, load(score + t) - fromBits(bits(splat(rows.offset[r])) & lanesFromZero(fromZero, t)));
    }
  }

  // Adds the mean of the page times the mass of the rows that are coded from it.
  static MEMBER void addToMix(const SideView& v, const PageRows& rows, int head) {
    const int d = rows.d;
    const int first = head * rows.perHead, end = first + rows.perHead;
    const uint8_t* fromZero = v.at(kRotFromZero);
    const bool isWhole = !hasFromZero(fromZero);
    alignas(64) float mean[kContractionMax];
    meanRow(v, d, mean);
    for (int r = first; r < end; r++) {
      const float mass = isWhole ? rows.rowMass[r] : massFromMean(fromZero, rows.scores + static_cast<size_t>(r) * kPageTokens) * rows.share[r];
      axpy(mass, mean, rows.mixed + static_cast<size_t>(r) * d, d);
    }
  }

 private:
  // The sum of the probabilities of the rows that are coded from the mean.
  static MEMBER float massFromMean(const uint8_t* fromZero, const float* probability) {
    Parts sum{};
    for (int t = 0; t < kPageTokens; t += kLanes) {
      VecF& part = sum.part[t / kLanes % kParts];
      part = part + fromBits(bits(load(probability + t)) & ~lanesFromZero(fromZero, t));
    }
    return sumParts(sum);
  }

  // The value of one level in a row whose scale is 1.
  static MEMBER float unitOf(const SideView& side) { return 1.0f / static_cast<float>(Divisor(side.format)) * powerOfTwo(*side.at<int8_t>(kRotReference)); }
};

struct Rot : OverRotation<divisorOf> {
  static constexpr int kMember = kRot4;
  using Unpacker = PlaneRows;

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    RotTargets all;
    for (int i = 0; i < count; i++) addTarget(all, targets[i]);
    encodeRotWidths(isKey, x, stride, d, firstRow, all, space);
  }

  static void demote(const SideView& from, bool isKey, int d, const SideTarget& to, Workspace space) {
    demoteRot(from.format, to.format, isKey, d, from.at(kRotHigh), from.at(kRotLow), from.at<int8_t>(kRotExponents), to.at(kRotLow),
              to.at<int8_t>(kRotExponents), space);
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    decodeRotRows(isKey, d, firstRow, side, levels(side, d, tile), divisorOf(side.format), x, stride);
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    unpackRot(side.format, side.at(kRotHigh), side.at(kRotLow), static_cast<size_t>(kPageTokens) * d, tile);
    return tile;
  }

 protected:  // yardsticks/rotq/rotq.h has the same bytes
  static MEMBER void addTarget(RotTargets& all, const SideTarget& to) {
    const int width = widthOf(to.format);
    all.exponents[width] = to.at<int8_t>(kRotExponents);
    if (width != widthOf(kRot2)) all.lo[width] = to.at(kRotLow);
    if (width != widthOf(kRot1)) all.hi = to.at(kRotHigh);
    if (all.mean) return;
    all.mean = to.at<int8_t>(kRotMean);
    all.fromZero = to.at(kRotFromZero);
    all.meanScale = to.at<uint16_t>(kRotMeanScale);
    all.reference = to.at<int8_t>(kRotReference);
  }
};
