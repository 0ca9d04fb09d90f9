// Vectors of bytes, and the dot product of four unsigned with four signed bytes per lane, exact in int32. The integer
// kernels of the instruction sets differ only in how they compute this product:
//   AVX-512 VNNI, AVX-VNNI   vpdpbusd
//   NEON dotprod             sdot, which takes two signed factors; with i8mm also smmla, for two rows or more of
//   activations (PairDots)
//   others                   products of int16, first bytes 0 and 2, then bytes 1 and 3 of a lane: vpmaddwd and its
//   like; NEON widens and adds
// Levels are signed bytes. As factors they have kBias added, and a sum starts with -kBias * sum(x) to correct for it.
// Where the instruction takes unsigned bytes for the other factor, rows of weights are that factor, and levels stay as
// they are (kBiasFor). Rows x of 16-bit integers, |x| <= 32512, take eight bytes for a quad (four x). Where bytes are
// multiplied, these are two planes, hi = (x + 128) >> 8 and lo = int8(x), x = 256 hi + lo; elsewhere x0, x2, x1, x3.
// These two parts are multiplied by levels separately.
#pragma once

constexpr int kVectorBytes = kLanes * 4;
constexpr int kRowVectors = 64 / kVectorBytes;  // vectors in one row of a tile
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Bytes in lanes of 16 bits, so that they can be shifted; the bits that cross over from the neighbouring byte are
// masked off.
typedef uint16_t Bytes __attribute__((vector_size(kVectorBytes)));
typedef uint16_t UnalignedBytes __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
INLINE Bytes loadBytes(const void* p) { return *static_cast<const UnalignedBytes*>(p); }
INLINE void storeBytes(void* p, Bytes v) { *static_cast<UnalignedBytes*>(p) = v; }
INLINE Bytes splatByte(int v) { return Bytes{} + static_cast<uint16_t>(v * 0x0101); }

// mask ? a : b, bit by bit
INLINE Bytes choose(Bytes a, Bytes b, Bytes mask) {
#if defined(__AVX512F__)
  return reinterpret_cast<Bytes>(_mm512_ternarylogic_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b), reinterpret_cast<__m512i>(mask), 0xE4));
#else
  return (a & mask) | (b & ~mask);
#endif
}

// A table of sixteen bytes, and a lookup of its entries by the bytes of `index`, 0 to 15. Each 16 bytes of a vector
// have their own table.
#if defined(__AVX512BW__)
INLINE Bytes loadTable(const int8_t* t) { return reinterpret_cast<Bytes>(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t)))); }
INLINE Bytes lookUp(Bytes table, Bytes index) {
  return reinterpret_cast<Bytes>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(table), reinterpret_cast<__m512i>(index)));
}
#elif defined(__AVX2__)
INLINE Bytes loadTable(const int8_t* t) { return reinterpret_cast<Bytes>(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t)))); }
INLINE Bytes lookUp(Bytes table, Bytes index) {
  return reinterpret_cast<Bytes>(_mm256_shuffle_epi8(reinterpret_cast<__m256i>(table), reinterpret_cast<__m256i>(index)));
}
#else
INLINE Bytes loadTable(const int8_t* t) { return loadBytes(t); }
#if !defined(__aarch64__) && !defined(__wasm_simd128__)
// Without an instruction for it, a look-up is long, and a function of its own halves what unpacks levels.
static __attribute__((noinline)) Bytes lookUp(Bytes table, Bytes index) {
#else
INLINE Bytes lookUp(Bytes table, Bytes index) {
#endif
#if defined(__aarch64__)
  return reinterpret_cast<Bytes>(vqtbl1q_u8(reinterpret_cast<uint8x16_t>(table), reinterpret_cast<uint8x16_t>(index)));
#elif defined(__wasm_simd128__)
  return reinterpret_cast<Bytes>(wasm_i8x16_swizzle(reinterpret_cast<v128_t>(table), reinterpret_cast<v128_t>(index)));
#else
  const uint8_t* entry = reinterpret_cast<const uint8_t*>(&table);
  Bytes out{};
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) out[i] = static_cast<uint16_t>(entry[index[i] & 15] | entry[index[i] >> 8] << 8);
  return out;
#endif
}
#endif

// The lanes of a, then those of b, as int16.
INLINE Bytes narrowed(VecI a, VecI b) {
#if defined(__AVX512BW__)
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return reinterpret_cast<Bytes>(_mm512_permutexvar_epi64(order, _mm512_packs_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))));
#elif defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm256_permute4x64_epi64(_mm256_packs_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)), 0xd8));
#elif defined(__SSE2__)
  return reinterpret_cast<Bytes>(_mm_packs_epi32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  Bytes out;
  for (int i = 0; i < kLanes; i++) {
    out[i] = static_cast<uint16_t>(a[i]);
    out[i + kLanes] = static_cast<uint16_t>(b[i]);
  }
  return out;
#endif
}

// Broadcasts four bytes from memory to every lane. It is assembly because gcc 12 copies and spills accumulators around
// the intrinsics.
INLINE VecI splatFour(const int8_t* p) {
#if defined(__AVX2__)
  VecI v;
  asm("vpbroadcastd %1, %0" : "=v"(v) : "m"(*reinterpret_cast<const int8_t(*)[4]>(p)));
  return v;
#else
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return splatI(four);
#endif
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)

// Whether four bytes are multiplied at once, or two, as int16: then a row of one plane takes half the products.
constexpr bool kHasByteProducts = true, kHasBytePairs = false;
#if defined(__aarch64__)
constexpr int kBias = 0;
#else
constexpr int kBias = 128;
#endif

// Unsigned factors, signed ones, and their sums.
typedef VecI Levels;
typedef VecI Quad;
typedef VecI Dots;
INLINE Levels asLevels(Bytes v) { return reinterpret_cast<VecI>(v); }
INLINE Levels nibblesOf(Bytes v, bool upper) { return asLevels((upper ? v >> 4 : v) & splatByte(15)); }
INLINE Quad asQuad(VecI bytes) { return bytes; }
INLINE Dots startDots(int32_t v) { return splatI(v); }
INLINE VecI sumsOf(Dots sum) { return sum; }

// sum += levels . x
INLINE void dot4(Dots& sum, Levels levels, Quad x) {
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(levels), "v"(x));
#elif defined(__AVXVNNI__)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(levels), "x"(x));
#else
  sum = vdotq_s32(sum, reinterpret_cast<int8x16_t>(levels), reinterpret_cast<int8x16_t>(x));
#endif
}

// Sums of levels times a row of 16-bit integers, and how many registers a sum and its levels take.
struct RowDots {
  Dots part[2];
};
constexpr int kSumRegisters = 2, kLevelRegisters = 1;
INLINE RowDots startRow(int32_t v) { return {{splatI(0), splatI(v)}}; }
// On x86 weights, which have no sign, are the unsigned factor, so that levels keep theirs and nothing has to be
// corrected.
#if defined(__aarch64__)
constexpr bool kUnsignedWeights = false;
#else
constexpr bool kUnsignedWeights = true;
#endif
template <int Part, bool Weights> INLINE void addPart(RowDots& sum, Levels levels, VecI x) {
  if constexpr (Weights && kUnsignedWeights) dot4(sum.part[Part], x, levels);
  else dot4(sum.part[Part], levels, x);
}
INLINE VecI sumsOf(const RowDots& sum) { return (sum.part[0] << 8) + sum.part[1]; }

constexpr int8_t kQuadOrder[16] = {1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14};
INLINE Bytes planes(Bytes x) { return choose(x + 128, x, Bytes{} + 0xff00); }

#else

#if defined(__AVX2__)
constexpr bool kHasByteProducts = false, kHasBytePairs = true;
#else
constexpr bool kHasByteProducts = false, kHasBytePairs = false;
#endif
constexpr int kBias = 128;

struct Levels {
  VecI part[2];
};
typedef Levels Quad;
INLINE Levels asLevels(Bytes v) { return {{reinterpret_cast<VecI>(v & 255), reinterpret_cast<VecI>(v >> 8)}}; }
INLINE Levels nibblesOf(Bytes v, bool upper) {
  if (upper) return {{reinterpret_cast<VecI>(v >> 4 & 15), reinterpret_cast<VecI>(v >> 12)}};
  return {{reinterpret_cast<VecI>(v & 15), reinterpret_cast<VecI>(v >> 8 & 15)}};
}
INLINE Quad asQuad(VecI bytes) {
  typedef int16_t Signed __attribute__((vector_size(kVectorBytes)));
  const Signed v = reinterpret_cast<Signed>(bytes);
  return {{reinterpret_cast<VecI>((v << 8) >> 8), reinterpret_cast<VecI>(v >> 8)}};
}

// sum += a0 * b0 + a1 * b1 of the int16 halves of every lane.
#if defined(__aarch64__)
constexpr int kSumRegisters = 2;
struct Dots {
  VecI low, high;  // the two products of a lane stay side by side
};
INLINE Dots startDots(int32_t v) { return {VecI{v, 0, v, 0}, VecI{v, 0, v, 0}}; }
INLINE VecI sumsOf(const Dots& sum) { return vpaddq_s32(sum.low, sum.high); }
INLINE void addPairs(Dots& sum, VecI a, VecI b) {
  const int16x8_t left = reinterpret_cast<int16x8_t>(a), right = reinterpret_cast<int16x8_t>(b);
  sum.low = vmlal_s16(sum.low, vget_low_s16(left), vget_low_s16(right));
  sum.high = vmlal_high_s16(sum.high, left, right);
}
#else
constexpr int kSumRegisters = 1;
typedef VecI Dots;
INLINE Dots startDots(int32_t v) { return splatI(v); }
INLINE VecI sumsOf(Dots sum) { return sum; }
INLINE void addPairs(Dots& sum, VecI a, VecI b) {
#if defined(__AVX2__)
  VecI product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(a), "v"(b));
#elif defined(__SSE2__)
  sum += reinterpret_cast<VecI>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#elif defined(__wasm_simd128__)
  sum += reinterpret_cast<VecI>(wasm_i32x4_dot_i16x8(reinterpret_cast<v128_t>(a), reinterpret_cast<v128_t>(b)));
#else
  // Levels are not negative, so the upper half of a needs no sign extension.
  sum += (a & 0xffff) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}
#endif
INLINE void dot4(Dots& sum, const Levels& levels, const Quad& x) {
  addPairs(sum, levels.part[0], x.part[0]);
  addPairs(sum, levels.part[1], x.part[1]);
}

constexpr int kLevelRegisters = 2;
constexpr bool kUnsignedWeights = false;
typedef Dots RowDots;
INLINE RowDots startRow(int32_t v) { return startDots(v); }
template <int Part, bool> INLINE void addPart(RowDots& sum, const Levels& levels, VecI x) { addPairs(sum, levels.part[Part], x); }

constexpr int8_t kQuadOrder[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
INLINE Bytes planes(Bytes x) { return x; }

#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kHasMatrixProducts = true;
// Sums of the four outputs of a vector for two rows. An instruction multiplies eight bytes of two outputs with eight of
// two rows, so outputs 0 and 2 stand together, and 1 and 3: of each the sum of the first row, then that of the second.
struct PairDots {
  VecI even, odd;
};
// Two vectors of levels, four inputs each, as one of eight inputs of two outputs; and eight bytes of two rows of x.
INLINE VecI evenOutputs(VecI first, VecI second) { return shuffled(first, second, VecI{0, 4, 2, 6}); }
INLINE VecI oddOutputs(VecI first, VecI second) { return shuffled(first, second, VecI{1, 5, 3, 7}); }
INLINE void addPair(PairDots& sum, VecI even, VecI odd, VecI x) {
  const int8x16_t rows = reinterpret_cast<int8x16_t>(x);
  sum.even = vmmlaq_s32(sum.even, reinterpret_cast<int8x16_t>(even), rows);
  sum.odd = vmmlaq_s32(sum.odd, reinterpret_cast<int8x16_t>(odd), rows);
}
// The sums of one row, output by output.
INLINE VecI rowOf(const PairDots& sum, bool second) { return second ? oddOutputs(sum.even, sum.odd) : evenOutputs(sum.even, sum.odd); }
#else
constexpr bool kHasMatrixProducts = false;
#endif

// What is added to levels that are multiplied by queries, or by weights.
template <bool Weights>
constexpr int kBiasFor = Weights && kUnsignedWeights ? 0 : kBias;

// 16-bit integers in the layout of a row.
template <bool Weights = false>
INLINE Bytes quadsOf(Bytes x) {
#if defined(__SSE2__) && !defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm_shufflehi_epi16(_mm_shufflelo_epi16(reinterpret_cast<__m128i>(x), 0xd8), 0xd8));
#else
  return lookUp(Weights && kUnsignedWeights ? x : planes(x), loadTable(kQuadOrder));
#endif
}

// Writes a row and returns the sum of x. count: a multiple of 4; nothing is read beyond it.
INLINE int32_t placeRow(const int16_t* x, int count, int8_t* out) {
  int32_t sum = 0;
  for (int i = 0; i < count; i++) sum += x[i];
  for (int i = 0; i < count; i += 2 * kLanes) {
    Bytes v{};
    __builtin_memcpy(&v, x + i, (count - i < 2 * kLanes ? count - i : 2 * kLanes) * sizeof(int16_t));
    storeBytes(out + i * 2, quadsOf(v));
  }
  return sum;
}

INLINE void splitRow(const int16_t* x, int count, IntegerRow& out) { out.correction = -kBias * placeRow(x, count, out.bytes); }

// sum[b] += level[b] . quad for B vectors of levels; quad: eight bytes of a row.
template <int B, bool Weights = false>
INLINE void addQuad(RowDots* sum, const Levels* level, const int8_t* quad) {
#if defined(__AVX2__)
  repeat<2>([&](auto i) MEMBER {
    const VecI x = splatFour(quad + i.value * 4);
    repeat<B>([&](auto b) MEMBER { addPart<i.value, Weights>(sum[b.value], level[b.value], x); });
  });
#else
  const VecI first = splatFour(quad), second = splatFour(quad + 4);
  repeat<B>([&](auto b) MEMBER {
    addPart<0, Weights>(sum[b.value], level[b.value], first);
    addPart<1, Weights>(sum[b.value], level[b.value], second);
  });
#endif
}

// sum[b] += level[b] . four for B vectors of levels; four: bytes of a row of one plane.
template <int B>
INLINE void addFour(Dots* sum, const Levels* level, const int8_t* four) {
  const VecI x = splatFour(four);
  repeat<B>([&](auto b) MEMBER { dot4(sum[b.value], level[b.value], asQuad(x)); });
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Adds sums of two products of bytes each, unsigned with signed, as int16; and the same of signed levels of -128 or
// more: their magnitudes are multiplied with x that has their signs. Nothing saturates where |x| <= 127.
INLINE void addBytePairs(VecI& sum, VecI levels, VecI x) {
  VecI product;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(levels), "x"(x));
}
// The same, as int32 at once.
INLINE void addByteQuads(VecI& sum, VecI levels, VecI x) {
  const VecI ones = splatI(0x00010001);
  VecI product;
  asm("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(levels), "x"(x), "x"(ones));
}
INLINE VecI magnitudes(VecI levels) { return reinterpret_cast<VecI>(_mm256_abs_epi8(reinterpret_cast<__m256i>(levels))); }
INLINE VecI signedBy(VecI x, VecI levels) { return reinterpret_cast<VecI>(_mm256_sign_epi8(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(levels))); }
// sum += the two int16 of each lane.
INLINE void addHalves(VecI& sum, VecI pairs) {
  const VecI ones = splatI(0x00010001);
  VecI product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(pairs), "x"(ones));
}
#endif
