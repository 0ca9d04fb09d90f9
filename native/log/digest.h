// SHA-256 (FIPS 180-4) and CRC-32C (RFC 3720, appendix B.4), with the instructions that the CPU has for them and
// without.
#pragma once
#include <cstddef>
#include <cstdint>

namespace palimpsest {

constexpr size_t kHashBytes = 32;

// Two ways to compute the same: on the CPU's own instructions, or in plain C++.
struct Digests {
  // Takes `blocks` blocks of 64 bytes into the state.
  void (*compress)(uint32_t* state, const uint8_t* bytes, size_t blocks);
  // The same for two messages at once: the instructions of one are waited for while those of the other run.
  void (*compressTwo)(uint32_t* state, const uint8_t* bytes, uint32_t* otherState, const uint8_t* otherBytes, size_t blocks);
  // Continues `crc`, that of the bytes before, inverted as it is between two calls.
  uint32_t (*crc)(uint32_t crc, const uint8_t* bytes, size_t count);
};

const Digests& plainDigests();
// What this CPU does best; each of the functions is chosen by itself.
const Digests& bestDigests();

}  // namespace palimpsest
