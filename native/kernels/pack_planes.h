// Packs codes into bit planes (planes.h), and narrows planes.
#pragma once

// Packs bits At and At + 1 of four rows of 64 codes in tile order into 64 bytes of a 2-bit plane.
template <int At>
INLINE void packPairs(const uint8_t* codes, size_t elements, uint8_t* plane) {
  const VecI pair = splatI(0x03030303);
  for (size_t j = 0; j < elements / 4; j += 64) {
    for (int i = 0; i < 64; i += kLanes * 4) {
      const uint8_t* row = codes + j * 4 + i;
      VecI packed{};
#pragma GCC unroll 4
      for (int f = 0; f < 4; f++) packed |= ((loadWords(row + f * 64) >> At) & pair) << (2 * f);
      storeWords(plane + j + i, packed);
    }
  }
}

// Packs bit At of eight rows into 64 bytes of a 1-bit plane.
template <int At>
INLINE void packBits(const uint8_t* codes, size_t elements, uint8_t* plane) {
  const VecI one = splatI(0x01010101);
  for (size_t j = 0; j < elements / 8; j += 64) {
    for (int i = 0; i < 64; i += kLanes * 4) {
      const uint8_t* row = codes + j * 8 + i;
      VecI packed{};
#pragma GCC unroll 8
      for (int f = 0; f < 8; f++) packed |= ((loadWords(row + f * 64) >> At) & one) << f;
      storeWords(plane + j + i, packed);
    }
  }
}

// Codes of so many bits in tile order as planes (planes.h). elements: a multiple of 512.
static __attribute__((noinline)) void packTile(int bits, const uint8_t* tile, size_t elements, uint8_t* hi, uint8_t* lo) {
  switch (bits) {
    case 4:
      packPairs<2>(tile, elements, hi);
      packPairs<0>(tile, elements, lo);
      break;
    case 3:
      packPairs<1>(tile, elements, hi);
      packBits<0>(tile, elements, lo);
      break;
    case 2: packPairs<0>(tile, elements, hi); break;
    default: packBits<0>(tile, elements, lo);
  }
}

// The upper bits of the four 2-bit fields of each byte: bit 2f + 1 -> bit f.
INLINE VecI upperBits(VecI fields) {
  VecI v = (fields >> 1) & 0x55555555;
  v = (v | v >> 1) & 0x33333333;
  return (v | v >> 2) & 0x0f0f0f0f;
}

// The third bits of codes, as a 1-bit plane, from the 2-bit plane of their low bits. elements: a multiple of 512.
static void narrowPairs(const uint8_t* pairs, size_t elements, uint8_t* bits) {
  // Each group of rows 4j..4j+3 of the 2-bit plane gives half of each byte of the 1-bit plane.
  for (size_t j = 0; j < elements / 8; j += 64) {
    for (int i = 0; i < 64; i += kLanes * 4) {
      const VecI first = upperBits(loadWords(pairs + j * 2 + i)), second = upperBits(loadWords(pairs + j * 2 + 64 + i));
      storeWords(bits + j + i, first | second << 4);
    }
  }
}
