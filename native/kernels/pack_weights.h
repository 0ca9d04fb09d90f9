// Weights as files store them become the panels that products read (dense_products.h). Quantized types keep their codes
// and scales, bit for bit; floats are rounded to 8 bits with a float scale per 32 inputs. kLanes outputs are packed at
// once: 16 bytes of each of their rows become four vectors of words, and what a type does to its bits is done to these.
// No sum depends on the width of a vector, so every instruction set writes the same bytes.
#pragma once

// 16 bytes of every fourth row, of kLanes rows that are `stride` bytes apart: a row for every four lanes.
INLINE VecI everyFourthRow(const uint8_t* from, size_t stride) {
#if defined(__AVX512F__) || defined(__AVX2__)
  const auto row = [&](int i) MEMBER { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * i * stride)); };
  const auto two = [&](int i) MEMBER { return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 1), 1); };
#endif
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(_mm512_inserti64x4(_mm512_castsi256_si512(two(0)), two(2), 1));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI>(two(0));
#else
  (void)stride;
  return loadWords(from);
#endif
}

// Of every four lanes the first two of a and of b, or the last two, in turns (zip) or one after the other (join).
#if defined(__AVX512F__)
INLINE VecI zipFirst(VecI a, VecI b) { return reinterpret_cast<VecI>(_mm512_unpacklo_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))); }
INLINE VecI zipLast(VecI a, VecI b) { return reinterpret_cast<VecI>(_mm512_unpackhi_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))); }
INLINE VecU joinFirst(VecI a, VecI b) { return reinterpret_cast<VecU>(_mm512_unpacklo_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))); }
INLINE VecU joinLast(VecI a, VecI b) { return reinterpret_cast<VecU>(_mm512_unpackhi_epi64(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))); }
#elif defined(__AVX2__)
INLINE VecI zipFirst(VecI a, VecI b) { return reinterpret_cast<VecI>(_mm256_unpacklo_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b))); }
INLINE VecI zipLast(VecI a, VecI b) { return reinterpret_cast<VecI>(_mm256_unpackhi_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b))); }
INLINE VecU joinFirst(VecI a, VecI b) { return reinterpret_cast<VecU>(_mm256_unpacklo_epi64(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b))); }
INLINE VecU joinLast(VecI a, VecI b) { return reinterpret_cast<VecU>(_mm256_unpackhi_epi64(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b))); }
#else
INLINE VecI zipFirst(VecI a, VecI b) { return shuffled(a, b, VecI{0, 4, 1, 5}); }
INLINE VecI zipLast(VecI a, VecI b) { return shuffled(a, b, VecI{2, 6, 3, 7}); }
INLINE VecU joinFirst(VecI a, VecI b) { return reinterpret_cast<VecU>(shuffled(a, b, VecI{0, 1, 4, 5})); }
INLINE VecU joinLast(VecI a, VecI b) { return reinterpret_cast<VecU>(shuffled(a, b, VecI{2, 3, 6, 7})); }
#endif

// The 16 bytes at `from` of kLanes rows as four words of each.
INLINE void wordsOfRows(const uint8_t* from, size_t stride, VecU* words) {
  VecI v[4];
  for (int i = 0; i < 4; i++) v[i] = everyFourthRow(from + i * stride, stride);
  const VecI first = zipFirst(v[0], v[1]), firstOther = zipFirst(v[2], v[3]);
  const VecI last = zipLast(v[0], v[1]), lastOther = zipLast(v[2], v[3]);
  words[0] = joinFirst(first, firstOther);
  words[1] = joinLast(first, firstOther);
  words[2] = joinFirst(last, lastOther);
  words[3] = joinLast(last, lastOther);
}
// The four bytes at `from` of kLanes rows.
INLINE VecU wordOfRows(const uint8_t* from, size_t stride) {
  uint32_t words[kLanes];
  for (int i = 0; i < kLanes; i++) __builtin_memcpy(words + i, from + i * stride, 4);
  VecU v;
  __builtin_memcpy(&v, words, sizeof v);
  return v;
}

INLINE void storeWords(void* p, VecU v) { storeWords(p, reinterpret_cast<VecI>(v)); }
INLINE void storeLowBytes(void* p, VecU v) { storeLowBytes(p, reinterpret_cast<VecI>(v)); }
// The low half of every word, and -1 where it is infinite or none, as a float.
INLINE VecI storeHalves(void* p, VecU v) {
  const VecH halves = __builtin_convertvector(v, VecH);
  __builtin_memcpy(p, &halves, sizeof halves);
  return reinterpret_cast<VecI>(v & 0x7c00) == 0x7c00;
}

INLINE bool anyLane(VecI v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(v), reinterpret_cast<__m512i>(v)) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v));
#else
  uint64_t halves[2];
  static_assert(sizeof halves == sizeof v);
  __builtin_memcpy(halves, &v, sizeof v);
  return (halves[0] | halves[1]) != 0;
#endif
}

constexpr uint32_t kBits1 = 0x01010101, kBits2 = 0x03030303, kBits4 = 0x0f0f0f0f, kBits6 = 0x3f3f3f3f;

// What packs a record (or a block where a record is one) of kLanes rows, of which the first is output `lane` of its
// panel; -1 in lanes that have a scale or a minimum that is not finite. block: of 32 inputs, with which it begins.

// The types with blocks of 32: scale, minimum where there is one, 32 bits where there are five, then the codes.
template <DenseForm Form>
INLINE VecI packLegacy(const uint8_t* from, size_t stride, uint8_t* panel, int block, int lane) {
  constexpr DenseFormSizes kSizes = kDenseForms[Form];
  uint8_t* scales = panel + denseScalesAt(Form, block) + lane * 2;
  uint8_t* codes = panel + denseCodesAt(Form, block) + lane * 4;
  const VecU head = wordOfRows(from, stride);
  VecI bad = storeHalves(scales, head);
  from += 2;
  if constexpr (kSizes.scales == 64) {
    bad |= storeHalves(scales + 32, head >> 16);
    from += 2;
  }
  if constexpr (kSizes.bits == 5) {
    const VecU high = wordOfRows(from, stride);
    VecU plane{};
    for (int line = 0; line < 8; line++) plane |= ((high >> (4 * line) & 15) * 0x00204081 & kBits1) << line;
    storeWords(codes + 256, plane);
    from += 4;
  }
  // Nibbles of these types are where ours are.
  for (int part = 0; part < (kSizes.bits == 8 ? 2 : 1); part++) {
    VecU words[4];
    wordsOfRows(from + part * 16, stride, words);
    for (int i = 0; i < 4; i++) storeWords(codes + (part * 4 + i) * 64, kSizes.bits == 8 ? words[i] ^ 0x80808080u : words[i]);
  }
  return bad;
}

// Of 32 bytes of nibbles, the low ones or the high ones, as a line has them: of inputs 4 * line and on, and of those 16
// further.
INLINE void storeNibbles(const VecU* words, bool isHigh, uint8_t* codes) {
  for (int line = 0; line < 4; line++) {
    const VecU lower = words[line], upper = words[4 + line];
    storeWords(codes + line * 64, isHigh ? (lower >> 4 & kBits4) | (upper & ~kBits4) : (lower & kBits4) | (upper & kBits4) << 4);
  }
}

// Q4_K and Q5_K: d and e, 12 bytes with eight times two numbers of 6 bits, with five bits 32 bytes of which bit g is of
// group g, then the nibbles: two groups share 32 bytes.
template <DenseForm Form>
INLINE VecI packGroups(const uint8_t* from, size_t stride, uint8_t* panel, int block, int lane) {
  constexpr DenseFormSizes kSizes = kDenseForms[Form];
  uint8_t* to = panel + denseScalesAt(Form, block) - kSizes.head + lane * 2;
  VecU head[4];
  wordsOfRows(from, stride, head);
  const VecI bad = storeHalves(to, head[0]) | storeHalves(to + 32, head[0] >> 16);
  // Of four groups each.
  const VecU scales[2] = {head[1] & kBits6, (head[3] & kBits4) | (head[1] >> 2 & 0x30303030)};
  const VecU minima[2] = {head[2] & kBits6, (head[3] >> 4 & kBits4) | (head[2] >> 2 & 0x30303030)};
  from += 16;
  VecU high[8];
  if constexpr (kSizes.bits == 5) {
    wordsOfRows(from, stride, high);
    wordsOfRows(from + 16, stride, high + 4);
    from += 32;
  }
  for (int g = 0; g < 8; g++) {
    storeLowBytes(panel + denseScalesAt(Form, block + g) + lane, scales[g / 4] >> (g % 4 * 8));
    storeLowBytes(panel + denseScalesAt(Form, block + g) + 16 + lane, minima[g / 4] >> (g % 4 * 8));
  }
  for (int pair = 0; pair < 4; pair++) {
    VecU words[8];
    wordsOfRows(from + pair * 32, stride, words);
    wordsOfRows(from + pair * 32 + 16, stride, words + 4);
    for (int g = pair * 2; g < pair * 2 + 2; g++) {
      uint8_t* codes = panel + denseCodesAt(Form, block + g) + lane * 4;
      storeNibbles(words, g % 2 == 1, codes);
      if constexpr (kSizes.bits == 5) {
        VecU plane{};
        for (int line = 0; line < 8; line++) plane |= (high[line] >> g & kBits1) << line;
        storeWords(codes + 256, plane);
      }
    }
  }
  return bad;
}

// Q6_K: 128 bytes of nibbles, 64 of pairs of high bits, 16 scales, d. Of four groups, two share 32 bytes of nibbles,
// and all share 32 of pairs.
INLINE VecI packQ6K(const uint8_t* from, size_t stride, uint8_t* panel, int block, int lane) {
  VecU scales[4];
  wordsOfRows(from + 192, stride, scales);
  for (int i = 0; i < 16; i++) storeLowBytes(panel + denseScalesAt(kDenseQ6K, block + i / 2) + i % 2 * 16 + lane, scales[i / 4] >> (i % 4 * 8));
  for (int four = 0; four < 2; four++) {
    VecU pairs[8];
    wordsOfRows(from + 128 + four * 32, stride, pairs);
    wordsOfRows(from + 128 + four * 32 + 16, stride, pairs + 4);
    for (int two = 0; two < 2; two++) {
      VecU words[8];
      wordsOfRows(from + four * 64 + two * 32, stride, words);
      wordsOfRows(from + four * 64 + two * 32 + 16, stride, words + 4);
      for (int g = two; g < 4; g += 2) {
        uint8_t* codes = panel + denseCodesAt(kDenseQ6K, block + four * 4 + g) + lane * 4;
        storeNibbles(words, g >= 2, codes);
        for (int half = 0; half < 2; half++) {
          VecU plane{};
          for (int line = 0; line < 4; line++) plane |= (pairs[half * 4 + line] >> (g * 2) & kBits2) << (line * 2);
          storeWords(codes + 256 + half * 64, plane);
        }
      }
    }
  }
  // The last two bytes of a block, with those before them.
  return storeHalves(panel + denseScalesAt(kDenseQ6K, block) - kDenseForms[kDenseQ6K].head + lane * 2, wordOfRows(from + 206, stride) >> 16);
}

template <DenseForm Form>
INLINE VecI packRecord(const uint8_t* from, size_t stride, uint8_t* panel, int block, int lane) {
  if constexpr (Form == kDenseQ6K) return packQ6K(from, stride, panel, block, lane);
  else if constexpr (kDenseForms[Form].blocks > 1) return packGroups<Form>(from, stride, panel, block, lane);
  else return packLegacy<Form>(from, stride, panel, block, lane);
}

template <DenseType Type>
static bool packBlocks(const uint8_t* from, int rows, int inputs, uint8_t* panel) {
  constexpr size_t kBytes = kDenseTypes[Type].bytes;
  const int records = inputs / kDenseTypes[Type].values;
  size_t stride = records * kBytes;
  // Outputs that a last panel lacks are blocks of zeros.
  uint8_t padded[kDensePanel * kBytes] = {};
  VecI bad{};
  for (int record = 0; record < records; record++, from += kBytes) {
    const uint8_t* at = from;
    if (rows < kDensePanel) {
      for (int row = 0; row < rows; row++) __builtin_memcpy(padded + row * kBytes, from + row * stride, kBytes);
      at = padded;
    }
    const size_t apart = at == padded ? kBytes : stride;
    for (int lane = 0; lane < kDensePanel; lane += kLanes)
      bad |= packRecord<kDenseTypes[Type].form>(at + lane * apart, apart, panel, record * (kDenseTypes[Type].values / kDenseBlock), lane);
  }
  return !anyLane(bad);
}

// The 32 floats of one output of a block as codes; the scale, NaN if one of them is not finite.
INLINE float packFloats(const float* w, int32_t* codes) {
  constexpr int kVectors = kDenseBlock / kLanes;
  VecF most{};
  VecI bad{};
  for (int i = 0; i < kVectors; i++) {
    const VecF size = magnitude(load(w + i * kLanes));
    most = larger(most, size);
    bad |= bits(size) >= 0x7f800000;
  }
  if (anyLane(bad)) return __builtin_nanf("");
  const float largest = largestLane(most);
  // Where the inverse would overflow float32, the weights become zero.
  const VecF inverse = splat(largest > 0x1p-100f ? 127.0f / largest : 0.0f);
  for (int i = 0; i < kVectors; i++)
    storeWords(codes + i * kLanes, __builtin_convertvector(load(w + i * kLanes) * inverse + splat(128.5f), VecI));
  return largest / 127.0f;
}

// `count` values of a type of floats, at any address, and zeros after them.
template <DenseType Type>
INLINE void readFloats(const uint8_t* from, int count, float* to) {
  if constexpr (Type == kFromF32) {
    if (count < kDenseBlock) __builtin_memset(to, 0, kDenseBlock * sizeof(float));
    __builtin_memcpy(to, from, count * sizeof(float));
  } else {
    uint16_t halves[kDenseBlock] = {};
    __builtin_memcpy(halves, from, count * sizeof(uint16_t));
    for (int i = 0; i < kDenseBlock; i += kLanes) {
      if constexpr (Type == kFromF16) store(to + i, loadHalf(halves + i));
      else store(to + i, reinterpret_cast<VecF>(__builtin_convertvector(*reinterpret_cast<const UnalignedH*>(halves + i), VecU) << 16));
    }
  }
}

template <DenseType Type>
static bool packWide(const uint8_t* from, int rows, int inputs, uint8_t* panel) {
  const size_t bytes = kDenseTypes[Type].bytes, stride = inputs * bytes;
  bool finite = true;
  for (int block = 0; block * kDenseBlock < inputs; block++, from += kDenseBlock * bytes) {
    const int left = inputs - block * kDenseBlock, count = left < kDenseBlock ? left : kDenseBlock;
    alignas(64) int32_t codes[kDensePanel * kDenseBlock] = {};
    float scales[kDensePanel] = {};
    for (int row = 0; row < rows; row++) {
      alignas(64) float values[kDenseBlock];
      readFloats<Type>(from + row * stride, count, values);
      scales[row] = packFloats(values, codes + row * kDenseBlock);
      finite &= scales[row] == scales[row];
    }
    __builtin_memcpy(panel + denseScalesAt(kDenseWide, block), scales, sizeof scales);
    uint8_t* to = panel + denseCodesAt(kDenseWide, block);
    for (int lane = 0; lane < kDensePanel; lane += kLanes) {
      for (int line = 0; line < 8; line++) {
        VecU words[4];
        wordsOfRows(reinterpret_cast<const uint8_t*>(codes + lane * kDenseBlock + line * 4), kDenseBlock * sizeof(int32_t), words);
        storeWords(to + line * 64 + lane * 4, words[0] | words[1] << 8 | words[2] << 16 | words[3] << 24);
      }
    }
  }
  return finite;
}

static bool packWeights(DenseType type, const uint8_t* from, int rows, int inputs, uint8_t* panel) {
  bool finite = false;
  switch (type) {
    case kFromF32: finite = packWide<kFromF32>(from, rows, inputs, panel); break;
    case kFromF16: finite = packWide<kFromF16>(from, rows, inputs, panel); break;
    case kFromBf16: finite = packWide<kFromBf16>(from, rows, inputs, panel); break;
    case kFromQ80: finite = packBlocks<kFromQ80>(from, rows, inputs, panel); break;
    case kFromQ40: finite = packBlocks<kFromQ40>(from, rows, inputs, panel); break;
    case kFromQ41: finite = packBlocks<kFromQ41>(from, rows, inputs, panel); break;
    case kFromQ50: finite = packBlocks<kFromQ50>(from, rows, inputs, panel); break;
    case kFromQ51: finite = packBlocks<kFromQ51>(from, rows, inputs, panel); break;
    case kFromQ4K: finite = packBlocks<kFromQ4K>(from, rows, inputs, panel); break;
    case kFromQ5K: finite = packBlocks<kFromQ5K>(from, rows, inputs, panel); break;
    case kFromQ6K: finite = packBlocks<kFromQ6K>(from, rows, inputs, panel); break;
  }
  clearUpperHalves();
  return finite;
}
