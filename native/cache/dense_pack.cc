#include "dense_pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace palimpsest {

namespace {

uint32_t word(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
// Puts the four bytes of an output into a line.
void put(uint8_t* line, int lane, uint32_t v) { std::memcpy(line + lane * 4, &v, 4); }

constexpr uint32_t everyByte(uint32_t v) { return v * 0x01010101u; }
// Four bits, one per byte.
constexpr uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & everyByte(1); }

// Copies a half into an array of one per output, and says whether it is finite.
bool keepHalf(const uint8_t* from, uint8_t* to, int lane) {
  to[lane * 2] = from[0];
  to[lane * 2 + 1] = from[1];
  return (from[1] & 0x7c) != 0x7c;
}

// The types with blocks of 32, `block` of a panel: scale, minimum where there is one, 32 bits where there are five,
// then the codes.
template <DenseForm Form>
bool packLegacy(const uint8_t* from, uint8_t* panel, int block, int lane) {
  constexpr DenseFormSizes kSizes = kDenseForms[Form];
  uint8_t* scales = panel + denseScalesAt(Form, block);
  bool finite = keepHalf(from, scales, lane);
  from += 2;
  if constexpr (kSizes.scales == 64) {
    finite &= keepHalf(from, scales + 32, lane);
    from += 2;
  }
  uint8_t* codes = panel + denseCodesAt(Form, block);
  if constexpr (kSizes.bits == 8) {
    for (int line = 0; line < 8; line++) put(codes + line * 64, lane, word(from + line * 4) ^ everyByte(128));
    return finite;
  }
  if constexpr (kSizes.bits == 5) {
    const uint32_t high = word(from);
    uint32_t plane = 0;
    for (int line = 0; line < 8; line++) plane |= spread(high >> (4 * line)) << line;
    put(codes + 256, lane, plane);
    from += 4;
  }
  // The nibbles of these types are where ours are.
  for (int line = 0; line < 4; line++) put(codes + line * 64, lane, word(from + line * 4));
  return finite;
}

// Four bytes of a line of nibbles: of inputs 4 * line and on, and of those 16 further, which are at `from` in the
// nibbles `shift`.
uint32_t pairOf(const uint8_t* from, int line, int shift) {
  const uint32_t lower = word(from + line * 4) >> shift & everyByte(15), upper = word(from + 16 + line * 4) >> shift & everyByte(15);
  return lower | upper << 4;
}

// Q4_K and Q5_K: d and e, 12 bytes with eight times two numbers of 6 bits, with five bits 32 bytes of which bit g is of
// group g, then the nibbles: two groups share 32 bytes.
template <DenseForm Form>
bool packGroups(const uint8_t* from, uint8_t* panel, int block, int lane) {
  constexpr DenseFormSizes kSizes = kDenseForms[Form];
  uint8_t* head = panel + denseScalesAt(Form, block) - kSizes.head;
  bool finite = keepHalf(from, head, lane);
  finite &= keepHalf(from + 2, head + 32, lane);
  const uint8_t* packed = from + 4;
  const uint8_t* high = from + 16;
  const uint8_t* nibbles = kSizes.bits == 5 ? high + 32 : high;
  for (int g = 0; g < 8; g++) {
    uint8_t* scales = panel + denseScalesAt(Form, block + g);
    scales[lane] = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    scales[16 + lane] = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    uint8_t* codes = panel + denseCodesAt(Form, block + g);
    for (int line = 0; line < 4; line++) put(codes + line * 64, lane, pairOf(nibbles + g / 2 * 32, line, g % 2 * 4));
    if constexpr (kSizes.bits == 5) {
      uint32_t plane = 0;
      for (int line = 0; line < 8; line++) plane |= (word(high + line * 4) >> g & everyByte(1)) << line;
      put(codes + 256, lane, plane);
    }
  }
  return finite;
}

// Q6_K: 128 bytes of nibbles, 64 of pairs of high bits, 16 scales, d. Of four groups, two share 32 bytes of nibbles,
// and all share 32 of pairs.
bool packQ6K(const uint8_t* from, uint8_t* panel, int block, int lane) {
  for (int g = 0; g < 8; g++) {
    uint8_t* scales = panel + denseScalesAt(kDenseQ6K, block + g);
    const uint8_t* nibbles = from + g / 4 * 64 + g % 2 * 32;
    const uint8_t* pairs = from + 128 + g / 4 * 32;
    for (int half = 0; half < 2; half++) scales[half * 16 + lane] = from[192 + g * 2 + half];
    uint8_t* codes = panel + denseCodesAt(kDenseQ6K, block + g);
    for (int line = 0; line < 4; line++) put(codes + line * 64, lane, pairOf(nibbles, line, g / 2 % 2 * 4));
    for (int half = 0; half < 2; half++) {
      uint32_t plane = 0;
      for (int line = 0; line < 4; line++) plane |= (word(pairs + half * 16 + line * 4) >> (g % 4 * 2) & everyByte(3)) << (line * 2);
      put(codes + 256 + half * 64, lane, plane);
    }
  }
  return keepHalf(from + 208, panel + denseScalesAt(kDenseQ6K, block) - kDenseForms[kDenseQ6K].head, lane);
}

// Floats of one output and block, which may be fewer than 32.
bool packWide(const float* w, int count, uint8_t* record, int lane) {
  uint32_t largest = 0;  // of the bits without the sign, whose order is that of the numbers
  for (int i = 0; i < count; i++) {
    uint32_t v;
    std::memcpy(&v, w + i, 4);
    largest = std::max(largest, v & 0x7fffffffu);
  }
  float most;
  std::memcpy(&most, &largest, 4);
  const float scale = most / 127.0f;
  std::memcpy(record + lane * 4, &scale, 4);
  // Where the inverse would overflow float32, the weights become zero.
  const float inverse = most > 0x1p-100f ? 127.0f / most : 0.0f;
  alignas(16) uint8_t codes[kDenseBlock] = {};
  if (largest >= 0x7f800000u) return false;
  for (int i = 0; i < count; i++) codes[i] = static_cast<uint8_t>(static_cast<int32_t>(w[i] * inverse + 128.5f));
  for (int line = 0; line < 8; line++) put(record + 64 + line * 64, lane, word(codes + line * 4));
  return true;
}

// `count` values of a type of floats. The bytes may lie at any address.
void readFloats(const Kernels* kernels, DenseType type, const uint8_t* from, int count, float* to) {
  if (type == kFromF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  uint16_t halves[kDenseBlock];
  std::memcpy(halves, from, count * sizeof(uint16_t));
  if (type == kFromF16) {
    kernels->fromHalf(halves, to, count);
    return;
  }
  for (int i = 0; i < count; i++) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    std::memcpy(to + i, &bits, 4);
  }
}

bool packFloats(const Kernels* kernels, DenseType type, const uint8_t* from, int rows, int inputs, uint8_t* panel) {
  const size_t rowBytes = denseRowBytes(type, inputs);
  bool finite = true;
  for (int first = 0; first < inputs; first += kDenseBlock, panel += denseTogetherBytes(kDenseWide)) {
    const int count = std::min(kDenseBlock, inputs - first);
    for (int o = 0; o < rows; o++) {
      float values[kDenseBlock];
      readFloats(kernels, type, from + o * rowBytes + static_cast<size_t>(first) * kDenseTypes[type].bytes, count, values);
      finite &= packWide(values, count, panel, o);
    }
  }
  return finite;
}

using PackBlock = bool (*)(const uint8_t* from, uint8_t* panel, int block, int lane);

// One block of a quantized type is one output of a record. block: of 32 inputs, with which the record begins.
PackBlock packerOf(DenseForm form) {
  switch (form) {
    case kDenseQ80: return packLegacy<kDenseQ80>;
    case kDenseQ40: return packLegacy<kDenseQ40>;
    case kDenseQ41: return packLegacy<kDenseQ41>;
    case kDenseQ50: return packLegacy<kDenseQ50>;
    case kDenseQ51: return packLegacy<kDenseQ51>;
    case kDenseQ4K: return packGroups<kDenseQ4K>;
    case kDenseQ5K: return packGroups<kDenseQ5K>;
    case kDenseQ6K: return packQ6K;
    case kDenseWide: break;
  }
  return nullptr;
}

}  // namespace

bool packDensePanel(const Kernels* kernels, DenseType type, const uint8_t* from, int rows, int inputs, uint8_t* panel) {
  const auto [form, values, blockBytes] = kDenseTypes[type];
  if (rows < kDensePanel) std::memset(panel, 0, densePanelBytes(form, denseBlocks(inputs)));
  if (form == kDenseWide) return packFloats(kernels, type, from, rows, inputs, panel);
  const PackBlock pack = packerOf(form);
  const size_t rowBytes = denseRowBytes(type, inputs);
  bool finite = true;
  for (int record = 0; record < inputs / values; record++) {
    const int block = record * (values / kDenseBlock);
    for (int o = 0; o < rows; o++) finite &= pack(from + o * rowBytes + static_cast<size_t>(record) * blockBytes, panel, block, o);
  }
  return finite;
}

}  // namespace palimpsest
