// Weights as files store them become the panels that the kernels read (kernels/dense_products.h). Quantized types keep
// their codes and scales, bit for bit; floats are rounded to 8 bits with a float scale per 32 inputs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "../kernels/kernels.h"

namespace palimpsest {

// Bytes of a row in the file. inputs: a multiple of the values of a block of this type.
constexpr size_t denseRowBytes(DenseType type, int inputs) { return static_cast<size_t>(inputs / kDenseTypes[type].values) * kDenseTypes[type].bytes; }
constexpr int denseBlocks(int inputs) { return (inputs + kDenseBlock - 1) / kDenseBlock; }

// Packs `rows` rows, at most kDensePanel, into one panel; the outputs after them become zeros. False if a scale, a
// minimum or a float is not finite.
bool packDensePanel(const Kernels* kernels, DenseType type, const uint8_t* from, int rows, int inputs, uint8_t* panel);

}  // namespace palimpsest
