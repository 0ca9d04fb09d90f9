// band3, band2 (band.ts): three bands of channels with codes of their own widths, rotated in blocks of 16. Queries are
// folded once per page: taken in the order of the bands, multiplied by the units of the channels, and rotated like the
// keys.
#pragma once
#include "../rot/levels.h"

struct Band {
  static constexpr int kMember = kBand3;
  static constexpr Basis kBasis = kFolded;

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER {
      for (int i = 0; i < count; i++) encodeRows<dim.value>(targets[i], isKey, firstRow, x, stride, space);
    });
  }

  static void decode(const SideView& side, bool, int d, int firstRow, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    alignas(64) int8_t rows[kLanes][kHeadDimMax + 4 * kLanes];
    alignas(64) float z[kHeadDimMax];
    levels(side, d, tile);
    const Folding folding(side, d);
    const float scale = halfToFloat(*side.at<uint16_t>(kBandMeanScale));
    for (int t = 0; t < kPageTokens; t++) {
      if (t % kLanes == 0) rowsOfTile(tile, d, t, rows[0], sizeof rows[0]);
      if (t < firstRow) {
        __builtin_memset(x + t * stride, 0, sizeof(float) * d);
        continue;
      }
      const float factor = scaleOf(side.at<int8_t>(kBandExponents)[t]);
      for (int place = 0; place < d; place += kLanes) {
        const VecF level = loadSigned(rows[t % kLanes] + place) / splat(divisorAt(side.format, d, place));
        store(z + place, level * splat(factor));
      }
      mixBlocks(z, d);
      for (int place = 0; place < d; place++) {
        const int c = folding.channel[place];
        x[t * stride + c] = static_cast<float>(side.at<int8_t>(kBandMean)[c]) * scale + z[place] * folding.unit[place];
      }
    }
    for (int i = 0; i < kApart; i++) {
      const int t = side.at(kBandApart)[i];
      if (t == kNoRow) continue;
      const float unit = halfToFloat(side.at<uint16_t>(kBandApartScales)[i]);
      for (int c = 0; c < d; c += kLanes) store(x + t * stride + c, loadSigned(side.at<int8_t>(kBandApartCodes) + i * d + c) * unit);
    }
  }

  // Each channel has a place, and rows apart are rows of the page.
  static bool isSound(const SideView& side, int d) {
    int members[4] = {};
    for (int c = 0; c < d; c++) members[side.at(kBandShape)[c] >> 6]++;
    bool isSound = members[0] == outer(d) && members[2] == outer(d) && members[3] == 0;
    for (int i = 0; i < kApart; i++) isSound &= side.at(kBandApart)[i] < kPageTokens || side.at(kBandApart)[i] == kNoRow;
    return isSound;
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    int from = 0;
    const uint8_t* planes = side.at(kBandCodes);
    for (int band = 0; band < 3; band++) {
      const int bits = bitsOf(side.format, band);
      const size_t elements = static_cast<size_t>(kPageTokens) * (endOf(d, band) - from);
      unpackPlanes(bits, kRotTables[4 - bits], planes, planes + highBytes(bits, elements), elements, tile + static_cast<size_t>(kPageTokens) * from);
      planes += elements * bits / 8;
      from = endOf(d, band);
    }
    return tile;
  }

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    const int d = rows.d;
    const int first = head * rows.perHead, end = first + rows.perHead;
    rowScales(k.at<int8_t>(kBandExponents), 0, 1.0f, rows.keyScales + head * kPageTokens);
    const Folding folding(k, d);
    alignas(64) float mean[kContractionMax], worth[kContractionMax], folded[kContractionMax];
    const float scale = halfToFloat(*k.at<uint16_t>(kBandMeanScale));
    for (int c = 0; c < d; c += kLanes) store(mean + c, loadSigned(k.at<int8_t>(kBandMean) + c) * scale);
    for (int place = 0; place < d; place += kLanes) store(worth + place, splat(1.0f / divisorAt(k.format, d, place)));
    for (int r = first; r < end; r++) {
      const float* q = rows.q + static_cast<size_t>(r) * d;
      for (int place = 0; place < d; place += kLanes) store(folded + place, gathered(q, folding.channel + place) * load(folding.unit + place));
      mixBlocks(folded, d);
      for (int place = 0; place < d; place += kLanes) store(folded + place, load(folded + place) * load(worth + place));
      integerRow(folded, d, rows.integers[kFolded] + r);
      rows.factor[r] = rows.integers[kFolded][r].step;
      rows.offset[r] = dot(q, mean, d);
    }
  }

  // Rows that stand apart have scores of their own.
  static void addToScores(const SideView& k, const PageRows& rows, int head) {
    const int d = rows.d;
    alignas(64) float row[kContractionMax];
    for (int i = 0; i < kApart; i++) {
      const int t = k.at(kBandApart)[i];
      if (t == kNoRow) continue;
      const float unit = halfToFloat(k.at<uint16_t>(kBandApartScales)[i]);
      for (int c = 0; c < d; c += kLanes) store(row + c, loadSigned(k.at<int8_t>(kBandApartCodes) + i * d + c) * unit);
      for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
        rows.scores[static_cast<size_t>(r) * kPageTokens + t] = dot(rows.q + static_cast<size_t>(r) * d, row, d);
      }
    }
  }

  struct Unpacker {
    static constexpr int kUnpackedRows = 1 << 30;

    template <int, class Done>
    static MEMBER void withRows(const SideView& side, int d, int bias, const Done& f) {
      if (side.format == kBand3) f(Rows<3>(side, d, bias));
      else f(Rows<2>(side, d, bias));
    }
  };

 private:
  static constexpr int kApart = 2, kNoRow = 255;

  // The levels of all bands, as LevelRows has those of one (planes.h). A multiple of two of its steps lies in each
  // band.
  template <int Bits>
  struct Rows {
    static constexpr bool kPaired = true;
    static constexpr int kTaken = 2;
    size_t first, second;
    LevelRows<Bits + 1> top;
    LevelRows<Bits> middle;
    LevelRows<Bits - 1> bottom;

    MEMBER Rows(const SideView& side, int d, int bias)
        : first(static_cast<size_t>(kPageTokens) * outer(d) / 256),
          second(static_cast<size_t>(kPageTokens) * (d - outer(d)) / 256),
          top(rowsOf<Bits + 1>(side.at(kBandCodes), first * 256, bias)),
          middle(rowsOf<Bits>(side.at(kBandCodes) + first * 32 * (Bits + 1), (second - first) * 256, bias)),
          bottom(rowsOf<Bits - 1>(side.at(kBandCodes) + first * 32 * (Bits + 1) + (second - first) * 32 * Bits, first * 256, bias)) {}

    template <int First, int B, int Parity>
    MEMBER void at(size_t j, int part, Bytes* out) const {
      if (j < first) top.template at<First, B, Parity>(j, part, out);
      else if (j < second) middle.template at<First, B, Parity>(j - first, part, out);
      else bottom.template at<First, B, Parity>(j - second, part, out);
    }
  };
  template <int Bits>
  static MEMBER LevelRows<Bits> rowsOf(const uint8_t* planes, size_t elements, int bias) {
    return LevelRows<Bits>(kRotTables[4 - Bits], planes, planes + highBytes(Bits, elements), bias);
  }

  static MEMBER constexpr int outer(int d) { return d / 64 * 16; }
  static MEMBER constexpr int endOf(int d, int band) { return band == 0 ? outer(d) : band == 1 ? d - outer(d) : d; }
  static MEMBER int bandAt(int d, int place) { return place < outer(d) ? 0 : place < d - outer(d) ? 1 : 2; }
  static MEMBER constexpr int bitsOf(int format, int band) { return kFormats[format].codeBits + 1 - band; }
  static MEMBER constexpr size_t highBytes(int bits, size_t elements) { return bits == 1 ? 0 : elements / 4; }
  static MEMBER float divisorAt(int format, int d, int place) { return static_cast<float>(kDivisors[4 - bitsOf(format, bandAt(d, place))]); }

  // 2^(n/4)
  static MEMBER float quarterPower(int n) {
    constexpr float kQuarters[4] = {1.0f, 0x1.306fe0p+0f, 0x1.6a09e6p+0f, 0x1.ae89fap+0f};
    return kQuarters[n & 3] * powerOfTwo(n >> 2);
  }

  // round(4 log2 x) for a normal x > 0.
  static int quarterOctaves(float x) {
    constexpr float kBounds[4] = {0x1.172b84p+0f, 0x1.4bfdaep+0f, 0x1.8ace54p+0f, 0x1.d5818ep+0f};
    int32_t word;
    __builtin_memcpy(&word, &x, sizeof word);
    const float mantissa = x * powerOfTwo(127 - (word >> 23));
    int octaves = 4 * ((word >> 23) - 127);
    for (const float bound : kBounds) octaves += mantissa > bound;
    return octaves;
  }

  // The channel at each place, and its unit with the sign of the place. Places past the last band, which a shape that
  // is not sound may ask for, are within the arrays.
  struct Folding {
    int32_t channel[kHeadDimMax + 16];
    alignas(64) float unit[kHeadDimMax + 16];

    Folding(const uint8_t* shape, int d, int reference, int direction) {
      int32_t steps[kHeadDimMax + 16];
      place(shape, d, steps);
      alignas(64) float quarters[16];
      for (int n = 0; n < 16; n++) quarters[n] = quarterPower(n & 3);
      const Sixteen table = loadSixteen(quarters);
      for (int at = 0; at < d; at += kLanes) {
        // direction * (reference - steps) quarter octaves
        const VecI n = (splatI(reference) - loadWords(steps + at)) * direction;
        const VecF power = fromBits(bits(lookUpFloat(table, n & 3)) + ((n >> 2) << 23));
        store(unit + at, power * load(kRotationSigns + at));
      }
    }
    Folding(const SideView& side, int d) : Folding(side.at(kBandShape), d, *side.at<int8_t>(kBandReference), 1) {}

   private:
    void place(const uint8_t* shape, int d, int32_t* steps) {
      int at = 0;
      for (int band = 0; band < 3; band++) {
#if defined(__AVX512F__)
        for (int c = 0; c < d; c += 16) {
          const __m512i shapes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(shape + c)));
          const __mmask16 members = _mm512_cmpeq_epi32_mask(_mm512_srli_epi32(shapes, 6), _mm512_set1_epi32(band));
          const __m512i channels = _mm512_add_epi32(reinterpret_cast<__m512i>(iota()), _mm512_set1_epi32(c));
          _mm512_storeu_si512(channel + at, _mm512_maskz_compress_epi32(members, channels));
          _mm512_storeu_si512(steps + at, _mm512_maskz_compress_epi32(members, _mm512_and_si512(shapes, _mm512_set1_epi32(63))));
          at += countOf(members);
        }
#else
        for (int c = 0; c < d; c++) {
          channel[at] = c;
          steps[at] = shape[c] & 63;
          at += shape[c] >> 6 == band;
        }
#endif
      }
      // Only a shape that is not sound leaves places without a channel.
      for (; at < d; at++) channel[at] = steps[at] = 0;
    }
  };

  // H16 of every 16 numbers in turn, orthonormal.
  static MEMBER void mixBlocks(float* x, int d) {
    for (int block = 0; block < d; block += 16) {
      VecF v[16 / kLanes];
      for (int i = 0; i < 16 / kLanes; i++) v[i] = load(x + block + i * kLanes);
      hadamard<16>(v);
      for (int i = 0; i < 16 / kLanes; i++) store(x + block + i * kLanes, v[i] * 0.25f);
    }
  }

  // Rows without their mean, [128][D], and the mean square of each channel.
  template <int D>
  static COLD void center(const SideTarget& to, int firstRow, const float* x, size_t stride, float* y, float* powers, Workspace space) {
    float* squares = space.take<float>(kPageTokens * D);
    alignas(64) float mean[D];
    encodeMean<D>(x, stride, firstRow, kPageTokens - firstRow, to.at<int8_t>(kBandMean), to.at<uint16_t>(kBandMeanScale), mean);
    const int apart = setApart<D>(to, firstRow, x, stride, mean);
    for (int t = 0; t < kPageTokens; t++) {
      const bool isLeftOut = t < firstRow || t == to.at(kBandApart)[0] || t == to.at(kBandApart)[1];
      for (int c = 0; c < D; c += kLanes) {
        const VecF v = isLeftOut ? splat(0.0f) : load(x + t * stride + c) - load(mean + c);
        store(y + t * D + c, v);
        store(squares + t * D + c, v * v);
      }
    }
    columnSums<D>(squares, D, firstRow, powers);
    for (int c = 0; c < D; c += kLanes) store(powers + c, load(powers + c) / splat(static_cast<float>(kPageTokens - firstRow - apart)));
  }

  // Writes the rows that stand apart, and returns how many there are.
  template <int D>
  static COLD int setApart(const SideTarget& to, int firstRow, const float* x, size_t stride, const float* mean) {
    uint8_t* apart = to.at(kBandApart);
    int8_t* codes = to.at<int8_t>(kBandApartCodes);
    __builtin_memset(apart, kNoRow, kApart);
    __builtin_memset(codes, 0, kApart * D);
    __builtin_memset(to.at(kBandApartScales), 0, kApart * sizeof(uint16_t));
    const float half = treeDotOf<D>(mean, mean) * 0.5f;
    float along[kApart];
    int count = 0;
    for (int t = firstRow; t < kPageTokens; t++) {
      const float projection = treeDotOf<D>(x + t * stride, mean);
      if (!(projection < half)) continue;
      int at = count < kApart ? count++ : kApart;
      for (; at > 0 && projection < along[at - 1]; at--) {
        if (at == kApart) continue;
        along[at] = along[at - 1];
        apart[at] = apart[at - 1];
      }
      if (at == kApart) continue;
      along[at] = projection;
      apart[at] = static_cast<uint8_t>(t);
    }
    for (int i = 0; i < count; i++) {
      const float* row = x + apart[i] * stride;
      const uint16_t unit = floatToHalf(largestLane(largestOf(row, D)) / 127.0f);
      to.at<uint16_t>(kBandApartScales)[i] = unit;
      for (int c = 0; c < D && halfToFloat(unit) > 0.0f; c += kLanes) storeLowBytes(codes + i * D + c, divideToCodes(load(row + c), halfToFloat(unit)));
    }
    return count;
  }

  // The sum of products as a halving tree.
  template <int D>
  static MEMBER float treeDotOf(const float* a, const float* b) {
    VecF v[D / kLanes];
    for (int i = 0; i < D / kLanes; i++) v[i] = load(a + i * kLanes) * load(b + i * kLanes);
    VecF rows[kLanes] = {};
    rows[0] = treeSum<D>(v);
    return sumsOfLanes(rows)[0];
  }

  static float mostOf(const float* x, int d) {
    float most = 0.0f;
    for (int c = 0; c < d; c++) most = x[c] > most ? x[c] : most;
    return most;
  }

  // Writes the shape and e, and sets what an error in each band weighs. False where the powers vanish. powers are
  // overwritten; asked: of queries, or null.
  static COLD bool findShape(const SideTarget& to, const float* asked, int d, float* powers, float* weights) {
    uint8_t* shape = to.at(kBandShape);
    int8_t* reference = to.at<int8_t>(kBandReference);
    const float most = mostOf(powers, d), mostAsked = asked == nullptr ? 0.0f : mostOf(asked, d);
    if (!(most >= 0x1p-63f)) {
      for (int c = 0; c < d; c++) shape[c] = static_cast<uint8_t>(bandAt(d, c) << 6);
      *reference = 0;
      return false;
    }
    float importance[kHeadDimMax], sum[kHeadDimMax];
    uint8_t order[kHeadDimMax];
    const auto atLeast = [](float x) MEMBER { return x > 0x1p-24f ? x : 0x1p-24f; };
    for (int c = 0; c < d; c++) {
      powers[c] = atLeast(powers[c] / most);
      importance[c] = __builtin_sqrtf(powers[c] * (mostAsked > 0.0f ? atLeast(asked[c] / mostAsked) : 1.0f));
      int at = c;
      for (; at > 0 && importance[order[at - 1]] < importance[c]; at--) order[at] = order[at - 1];
      order[at] = static_cast<uint8_t>(c);
    }
    int octaves[kHeadDimMax], highest = -1000;
    for (int band = 0, from = 0; band < 3; from = endOf(d, band++)) {
      const int members = endOf(d, band) - from;
      for (int i = 0; i < members; i++) sum[i] = importance[order[from + i]];
      const float mean = treeTotal(sum, members) / static_cast<float>(members);
      weights[band] = mean * mean;
      for (int i = from; i < from + members; i++) {
        const int c = order[i];
        shape[c] = static_cast<uint8_t>(band << 6);
        octaves[c] = quarterOctaves(__builtin_sqrtf(mean * powers[c] / importance[c]));
        highest = octaves[c] > highest ? octaves[c] : highest;
      }
    }
    for (int c = 0; c < d; c++) shape[c] = static_cast<uint8_t>(shape[c] | (highest - octaves[c] < 63 ? highest - octaves[c] : 63));
    *reference = static_cast<int8_t>(highest + quarterOctaves(__builtin_sqrtf(most)));
    return true;
  }

  // Float levels by 4-bit code, as fractions of their divisor.
  static MEMBER Sixteen levelsOfWidth(int bits) {
    Sixteen levels = levelsByCode(kWidthFormats[4 - bits]);
    for (int i = 0; i < kParts; i++) levels.part[i] = levels.part[i] / splat(static_cast<float>(kDivisors[4 - bits]));
    return levels;
  }

  template <int D>
  static COLD void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* x, size_t stride, Workspace space) {
    constexpr size_t kCodes = (kPageTokens - 1) * D + wholeWords(D);
    float* y = space.take<float>(kPageTokens * D);
    alignas(64) float powers[D], weights[3];
    uint8_t* codes = space.take<uint8_t>(kCodes);
    int8_t* exponents = to.at<int8_t>(kBandExponents);
    center<D>(to, firstRow, x, stride, y, powers, space);
    __builtin_memset(codes, 0, kCodes);
    const float* asked = isKey && to.steering != nullptr ? to.steering->weights : nullptr;
    if (findShape(to, asked, D, powers, weights)) codeRows<D>(to, y, weights, codes);
    else __builtin_memset(exponents, kZeroRow, kPageTokens);
    uint8_t* tile = space.take<uint8_t>(kPageTokens * D);
    placeInTile<D>(true, codes, tile);
    uint8_t* planes = to.at(kBandCodes);
    for (int band = 0, from = 0; band < 3; from = endOf(D, band++)) {
      const int bits = bitsOf(to.format, band);
      const size_t elements = static_cast<size_t>(kPageTokens) * (endOf(D, band) - from);
      packTile(bits, tile + static_cast<size_t>(kPageTokens) * from, elements, planes, planes + highBytes(bits, elements));
      planes += elements * bits / 8;
    }
  }

  template <int D>
  static MEMBER void codeRows(const SideTarget& to, const float* y, const float* weights, uint8_t* codes) {
    constexpr int kCount = D / kLanes;
    const Folding folding(to.at(kBandShape), D, *to.at<int8_t>(kBandReference), -1);
    alignas(64) float z[kLanes][D];
    Sixteen levels[3];
    for (int band = 0; band < 3; band++) levels[band] = levelsOfWidth(bitsOf(to.format, band));
    float padded[16];
    for (int j = 0; j < 16; j++) padded[j] = kRotBounds[j < 15 ? j : 14];
    const Sixteen unit = loadSixteen(padded);
    for (int first = 0; first < kPageTokens; first += kLanes) {
      VecF v[kCount], partial[kLanes], cross[kLanes];
      for (int row = 0; row < kLanes; row++) {
        const float* from = y + static_cast<size_t>(first + row) * D;
        for (int at = 0; at < D; at += kLanes) store(z[row] + at, gathered(from, folding.channel + at) * load(folding.unit + at));
        mixBlocks(z[row], D);
        for (int i = 0; i < kCount; i++) v[i] = load(z[row] + i * kLanes) * load(z[row] + i * kLanes);
        partial[row] = treeSum<D>(v);
      }
      const VecF zz = sumsOfLanes(partial);
      const VecF square = zz / static_cast<float>(D);
      float rms[kLanes];
      store(rms, square);
      // A zero row gets NaN bounds, which nothing is above, so its codes become 0.
      for (int row = 0; row < kLanes; row++) rms[row] = __builtin_sqrtf(rms[row]);
      store(rms, zz > splat(0.0f) ? load(rms) : splat(__builtin_nanf("")));
      for (int row = 0; row < kLanes; row++) {
        Sixteen bounds;
        for (int i = 0; i < kParts; i++) bounds.part[i] = unit.part[i] * rms[row];
        VecF w[kCount];
        for (int i = 0; i < kCount; i++) {
          const int band = bandAt(D, i * kLanes);
          const VecF value = load(z[row] + i * kLanes), weighed = value * splat(weights[band]);
          const VecI code = countBelow(bounds, value);
          storeLowBytes(codes + (first + row) * D + i * kLanes, code >> (4 - bitsOf(to.format, band)));
          v[i] = weighed * lookUpFloat(levels[band], code);
          w[i] = weighed * value;
        }
        cross[row] = treeSum<D>(v);
        partial[row] = treeSum<D>(w);
      }
      const VecF zu = sumsOfLanes(cross), weighed = sumsOfLanes(partial);
      const VecI some = (zz > splat(0.0f)) & (zu > splat(0.0f));
      storeLowBytes(to.at<int8_t>(kBandExponents) + first, some ? scaleExponents(weighed / zu) : splatI(kZeroRow));
    }
  }
};
