// The ways to compute digests, and the choice between them. Functions for instructions that not every CPU has carry
// their target themselves and call nothing that is not inlined into them, so that nothing else of this file is compiled
// for them.
#include "digest.h"

#include <cstring>

#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#include <arm_acle.h>
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

namespace palimpsest {

namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
alignas(64) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
    0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

void compressPlain(uint32_t* state, const uint8_t* bytes, size_t blocks) {
  for (; blocks > 0; blocks--, bytes += 64) {
    uint32_t w[16];
    for (int i = 0; i < 16; i++)
      w[i] = static_cast<uint32_t>(bytes[4 * i]) << 24 | static_cast<uint32_t>(bytes[4 * i + 1]) << 16 | static_cast<uint32_t>(bytes[4 * i + 2]) << 8 | bytes[4 * i + 3];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
      if (i >= 16) {
        const uint32_t near = w[(i + 14) & 15], far = w[(i + 1) & 15];
        w[i & 15] += (turned(near, 17) ^ turned(near, 19) ^ near >> 10) + w[(i + 9) & 15] + (turned(far, 7) ^ turned(far, 18) ^ far >> 3);
      }
      const uint32_t first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i & 15];
      const uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

void compressTwoPlain(uint32_t* state, const uint8_t* bytes, uint32_t* otherState, const uint8_t* otherBytes, size_t blocks) {
  compressPlain(state, bytes, blocks);
  compressPlain(otherState, otherBytes, blocks);
}

struct CrcTables {
  uint32_t of[8][256];
};

constexpr CrcTables crcTables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    tables.of[0][byte] = crc;
  }
  for (int table = 1; table < 8; table++)
    for (uint32_t byte = 0; byte < 256; byte++) {
      const uint32_t before = tables.of[table - 1][byte];
      tables.of[table][byte] = before >> 8 ^ tables.of[0][before & 255];
    }
  return tables;
}

constexpr CrcTables kCrc = crcTables();

uint32_t crcPlain(uint32_t crc, const uint8_t* bytes, size_t count) {
  for (; count >= 8; count -= 8, bytes += 8) {
    crc ^= static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
    crc = kCrc.of[7][crc & 255] ^ kCrc.of[6][crc >> 8 & 255] ^ kCrc.of[5][crc >> 16 & 255] ^ kCrc.of[4][crc >> 24] ^ kCrc.of[3][bytes[4]] ^ kCrc.of[2][bytes[5]] ^
          kCrc.of[1][bytes[6]] ^ kCrc.of[0][bytes[7]];
  }
  for (; count > 0; count--) crc = crc >> 8 ^ kCrc.of[0][(crc ^ *bytes++) & 255];
  return crc;
}

#if defined(__x86_64__)

// What a CRC becomes over kCrcStretch bytes of zeros, by each of its bytes.
constexpr size_t kCrcStretch = 512;
struct CrcOverZeros {
  uint32_t of[4][256];
};

constexpr CrcOverZeros crcOverZeros() {
  uint32_t ofBit[32]{};
  for (int bit = 0; bit < 32; bit++) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kCrcStretch; i++) crc = crc >> 8 ^ kCrc.of[0][crc & 255];
    ofBit[bit] = crc;
  }
  CrcOverZeros tables{};
  for (int place = 0; place < 4; place++)
    for (uint32_t byte = 0; byte < 256; byte++)
      for (int bit = 0; bit < 8; bit++)
        if ((byte >> bit & 1) != 0) tables.of[place][byte] ^= ofBit[8 * place + bit];
  return tables;
}

constexpr CrcOverZeros kCrcOverZeros = crcOverZeros();

__attribute__((always_inline)) inline uint32_t overZeros(uint32_t crc) {
  return kCrcOverZeros.of[0][crc & 255] ^ kCrcOverZeros.of[1][crc >> 8 & 255] ^ kCrcOverZeros.of[2][crc >> 16 & 255] ^ kCrcOverZeros.of[3][crc >> 24];
}

// `lanes` messages at once. The instructions want a, b, e, f in one register and c, d, g, h in the other.
template <int lanes>
__attribute__((target("sha,sse4.1"), always_inline)) inline void compressLanes(uint32_t* const* states, const uint8_t* const* bytes, size_t blocks) {
  const __m128i bigEndian = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
  __m128i abef[lanes], cdgh[lanes];
  for (int n = 0; n < lanes; n++) {
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(states[n])), 0xb1);
    const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(states[n] + 4)), 0x1b);
    abef[n] = _mm_alignr_epi8(cdab, hgfe, 8);
    cdgh[n] = _mm_blend_epi16(hgfe, cdab, 0xf0);
  }
  for (size_t block = 0; block < blocks; block++) {
    __m128i w[lanes][4], abefBefore[lanes], cdghBefore[lanes];
    for (int n = 0; n < lanes; n++) {
      abefBefore[n] = abef[n];
      cdghBefore[n] = cdgh[n];
      for (int i = 0; i < 4; i++)
        w[n][i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes[n] + 64 * block + 16 * i)), bigEndian);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds + 4 * i));
      for (int n = 0; n < lanes; n++) {
        __m128i& word = w[n][i & 3];
        const __m128i sum = _mm_add_epi32(word, constants);
        cdgh[n] = _mm_sha256rnds2_epu32(cdgh[n], abef[n], sum);
        abef[n] = _mm_sha256rnds2_epu32(abef[n], cdgh[n], _mm_shuffle_epi32(sum, 0x0e));
        if (i >= 12) continue;
        const __m128i between = _mm_alignr_epi8(w[n][(i + 3) & 3], w[n][(i + 2) & 3], 4);
        word = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(word, w[n][(i + 1) & 3]), between), w[n][(i + 3) & 3]);
      }
    }
    for (int n = 0; n < lanes; n++) {
      abef[n] = _mm_add_epi32(abef[n], abefBefore[n]);
      cdgh[n] = _mm_add_epi32(cdgh[n], cdghBefore[n]);
    }
  }
  for (int n = 0; n < lanes; n++) {
    const __m128i feba = _mm_shuffle_epi32(abef[n], 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh[n], 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(states[n]), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(states[n] + 4), _mm_alignr_epi8(dchg, feba, 8));
  }
}

__attribute__((target("sha,sse4.1"))) void compressSha(uint32_t* state, const uint8_t* bytes, size_t blocks) { compressLanes<1>(&state, &bytes, blocks); }

__attribute__((target("sha,sse4.1"))) void compressTwoSha(uint32_t* state, const uint8_t* bytes, uint32_t* otherState, const uint8_t* otherBytes, size_t blocks) {
  uint32_t* const states[] = {state, otherState};
  const uint8_t* const messages[] = {bytes, otherBytes};
  compressLanes<2>(states, messages, blocks);
}

// Eight bytes take three cycles, of which the instruction does nothing in two: three stretches go at once. A CRC is
// linear, so those of the later ones begin with zero, and each is carried over those behind it.
__attribute__((target("sse4.2,crc32"))) uint32_t crcSse42(uint32_t crc, const uint8_t* bytes, size_t count) {
  for (; count >= 3 * kCrcStretch; count -= 3 * kCrcStretch, bytes += 3 * kCrcStretch) {
    uint64_t crcs[3] = {crc, 0, 0};
    for (size_t at = 0; at < kCrcStretch; at += 8) {
#pragma GCC unroll 3
      for (int i = 0; i < 3; i++) {
        uint64_t eight;
        __builtin_memcpy(&eight, bytes + i * kCrcStretch + at, 8);
        crcs[i] = _mm_crc32_u64(crcs[i], eight);
      }
    }
    crc = overZeros(overZeros(static_cast<uint32_t>(crcs[0])) ^ static_cast<uint32_t>(crcs[1])) ^ static_cast<uint32_t>(crcs[2]);
  }
  uint64_t wide = crc;
  for (; count >= 8; count -= 8, bytes += 8) {
    uint64_t eight;
    __builtin_memcpy(&eight, bytes, 8);
    wide = _mm_crc32_u64(wide, eight);
  }
  crc = static_cast<uint32_t>(wide);
  for (; count > 0; count--) crc = _mm_crc32_u8(crc, *bytes++);
  return crc;
}

Digests choose() {
  Digests best = plainDigests();
  const CpuFeatures cpu = cpuFeatures();
  if (cpu.sha && cpu.sse41) {
    best.compress = compressSha;
    best.compressTwo = compressTwoSha;
  }
  if (cpu.sse42) best.crc = crcSse42;
  return best;
}

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))

template <int lanes>
__attribute__((target("+crypto"), always_inline)) inline void compressLanes(uint32_t* const* states, const uint8_t* const* bytes, size_t blocks) {
  uint32x4_t abcd[lanes], efgh[lanes];
  for (int n = 0; n < lanes; n++) {
    abcd[n] = vld1q_u32(states[n]);
    efgh[n] = vld1q_u32(states[n] + 4);
  }
  for (size_t block = 0; block < blocks; block++) {
    uint32x4_t w[lanes][4], abcdBefore[lanes], efghBefore[lanes];
    for (int n = 0; n < lanes; n++) {
      abcdBefore[n] = abcd[n];
      efghBefore[n] = efgh[n];
      for (int i = 0; i < 4; i++) w[n][i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(bytes[n] + 64 * block + 16 * i)));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      const uint32x4_t constants = vld1q_u32(kRounds + 4 * i);
      for (int n = 0; n < lanes; n++) {
        uint32x4_t& word = w[n][i & 3];
        const uint32x4_t sum = vaddq_u32(word, constants);
        const uint32x4_t before = abcd[n];
        abcd[n] = vsha256hq_u32(abcd[n], efgh[n], sum);
        efgh[n] = vsha256h2q_u32(efgh[n], before, sum);
        if (i < 12) word = vsha256su1q_u32(vsha256su0q_u32(word, w[n][(i + 1) & 3]), w[n][(i + 2) & 3], w[n][(i + 3) & 3]);
      }
    }
    for (int n = 0; n < lanes; n++) {
      abcd[n] = vaddq_u32(abcd[n], abcdBefore[n]);
      efgh[n] = vaddq_u32(efgh[n], efghBefore[n]);
    }
  }
  for (int n = 0; n < lanes; n++) {
    vst1q_u32(states[n], abcd[n]);
    vst1q_u32(states[n] + 4, efgh[n]);
  }
}

__attribute__((target("+crypto"))) void compressSha(uint32_t* state, const uint8_t* bytes, size_t blocks) { compressLanes<1>(&state, &bytes, blocks); }

__attribute__((target("+crypto"))) void compressTwoSha(uint32_t* state, const uint8_t* bytes, uint32_t* otherState, const uint8_t* otherBytes, size_t blocks) {
  uint32_t* const states[] = {state, otherState};
  const uint8_t* const messages[] = {bytes, otherBytes};
  compressLanes<2>(states, messages, blocks);
}

__attribute__((target("+crc"))) uint32_t crcArm(uint32_t crc, const uint8_t* bytes, size_t count) {
  for (; count >= 8; count -= 8, bytes += 8) {
    uint64_t eight;
    __builtin_memcpy(&eight, bytes, 8);
    crc = __crc32cd(crc, eight);
  }
  for (; count > 0; count--) crc = __crc32cb(crc, *bytes++);
  return crc;
}

Digests choose() {
  constexpr unsigned long kSha2 = 1ul << 6, kCrc32 = 1ul << 7;  // HWCAP_SHA2 and HWCAP_CRC32 of the kernel's user interface
#if defined(__linux__)
  const unsigned long has = getauxval(AT_HWCAP);
#else
  const unsigned long has = kSha2 | kCrc32;  // every Mac with such a processor has both
#endif
  Digests best = plainDigests();
  if ((has & kSha2) != 0) {
    best.compress = compressSha;
    best.compressTwo = compressTwoSha;
  }
  if ((has & kCrc32) != 0) best.crc = crcArm;
  return best;
}

#else

Digests choose() { return plainDigests(); }

#endif

}  // namespace

const Digests& plainDigests() {
  static const Digests plain = {compressPlain, compressTwoPlain, crcPlain};
  return plain;
}

const Digests& bestDigests() {
  static const Digests best = choose();
  return best;
}

}  // namespace palimpsest
