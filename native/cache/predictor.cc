#include "predictor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "powers.h"

namespace palimpsest {

namespace {

// The columns of one side. False where there are not so many.
bool readColumns(const PredictedSide& side, const Predictor& predictor, int shift, int count, uint8_t* tables, CodedColumns* columns) {
  if (shift < kCodedShiftLeast || shift > kCodedShiftMost || count > static_cast<int>(side.tables.size())) return false;
  for (int c = 0; c < count; c++) tables[c] = predictor.moved(side.tables[c], shift);
  columns->count = count;
  columns->tables = tables;
  columns->factors = side.factors.data();
  return true;
}

constexpr int wholeQuads(int count) { return (count + 3) / 4 * 4; }

}  // namespace

std::vector<int> codedOrder(const uint8_t* tables, int width) {
  std::vector<int> order(width);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [tables](int a, int b) {
    return tables[a] != tables[b] ? tables[a] > tables[b] : a < b;
  });
  return order;
}

bool Predictor::setDistributions(const uint16_t* given, int count) {
  distributions = count;
  slots.resize(static_cast<size_t>(count) * kCodedSlots);
  shares.assign(given, given + static_cast<size_t>(count) * kCodedSymbols);
  starts.resize(shares.size());
  symbolBits.resize(shares.size());
  for (int table = 0; table < count; table++) {
    int at = 0;
    for (int symbol = 0; symbol < kCodedSymbols; symbol++) {
      const int share = shares[table * kCodedSymbols + symbol];
      if (share == 0 || share > kCodedSlots - at) return false;
      starts[table * kCodedSymbols + symbol] = static_cast<uint16_t>(at);
      symbolBits[table * kCodedSymbols + symbol] = 12.0 - logOfTwo(static_cast<float>(share));
      for (int i = 0; i < share; i++, at++) slots[table * kCodedSlots + at] = static_cast<uint32_t>(symbol | (share - 1) << 6 | i << 18);
    }
    if (at != kCodedSlots) return false;
  }
  return true;
}

size_t Predictor::bytes() const {
  size_t total = slots.size() * sizeof(uint32_t);
  for (const PredictedLayer& layer : layers) {
    total += layer.k.weights.bytes() + layer.v.weights.bytes() + 12 * layer.centres.size() * sizeof(float);
    for (const PredictedSide* side : {&layer.k, &layer.v}) total += side->back ? side->back->bytes() : 0;
  }
  return total;
}

void PageReader::reserve(const Predictor& predictor) {
  const size_t elements = static_cast<size_t>(kPageTokens) * predictor.width();
  k_.grow(elements);
  v_.grow(elements);
  tables_.grow(2 * static_cast<size_t>(predictor.width()));
  below_.grow(2 * elements);
  keyRows_.grow(3 * elements);
  valueRows_.grow(4 * elements);
}

void PageReader::pass(const Kernels* kernels, const PredictedLayer& layer, int width) {
  const size_t block = static_cast<size_t>(kGemmBlock) * 2 * width;
  for (const bool isKey : {true, false}) {
    const size_t from = isKey ? 0 : width;
    kernels->cold->roundToLevels(isKey ? k() : v(), layer.centres.data() + from, layer.gains.data() + from, width, below_.data() + from * kGemmBlock, block);
  }
}

void PageReader::multiply(const Kernels* kernels, const PredictedSide& side, int width, const int8_t* levels, int depth, float* rows) {
  float ones[kPageTokens];
  std::fill(ones, ones + kPageTokens, 1.0f);
  side.weights.multiplyFirst(kernels, levels, kPageTokens, depth, ones, side.base.data(), rows, width);
}

bool PageReader::read(const Kernels* kernels, const Predictor& predictor, int index, const uint8_t* bytes, size_t size) {
  const PredictedLayer& layer = predictor.layers[index];
  const size_t width = predictor.width(), below = index > 0 ? 2 * width : 0;
  if (size < kPredictedHead) return false;
  CodedColumns sides[2];
  int depth[2];
  for (int i = 0; i < 2; i++) {
    uint16_t count;
    std::memcpy(&count, bytes + 2 + 2 * i, sizeof count);
    if (!readColumns(i == 0 ? layer.k : layer.v, predictor, static_cast<int8_t>(bytes[i]), count, tables_.data() + i * width, &sides[i])) {
      return false;
    }
    const size_t inputs = below + i * width;
    depth[i] = static_cast<int>(inputs) + wholeQuads(count);
    sides[i].blockStride = static_cast<size_t>(kGemmBlock) * depth[i];
    sides[i].to = (i == 0 ? keyRows_ : valueRows_).data() + kGemmBlock * inputs;
  }
  if (!kernels->cold->decodeResiduals(predictor.slots.data(), bytes + kPredictedHead, size - kPredictedHead, sides)) return false;
  for (size_t i = 0; i < kPageTokens / kGemmBlock && below > 0; i++) {
    const int8_t* from = below_.data() + i * kGemmBlock * below;
    std::memcpy(keyRows_.data() + i * sides[0].blockStride, from, kGemmBlock * below);
    std::memcpy(valueRows_.data() + i * sides[1].blockStride, from, kGemmBlock * below);
  }
  multiply(kernels, layer.k, width, keyRows_.data(), depth[0], k());
  int8_t* keys = valueRows_.data() + kGemmBlock * below;
  kernels->cold->roundToLevels(k(), layer.centres.data(), layer.gains.data(), width, keys, sides[1].blockStride);
  multiply(kernels, layer.v, width, valueRows_.data(), depth[1], v());
  const size_t block = kGemmBlock * 2 * width;
  for (size_t i = 0; i < kPageTokens / kGemmBlock; i++) std::memcpy(below_.data() + i * block, keys + i * sides[1].blockStride, kGemmBlock * width);
  kernels->cold->roundToLevels(v(), layer.centres.data() + width, layer.gains.data() + width, width, below_.data() + kGemmBlock * width, block);
  return true;
}

}  // namespace palimpsest
