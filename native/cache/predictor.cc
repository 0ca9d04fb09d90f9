#include "predictor.h"

#include <algorithm>
#include <cstring>

namespace palimpsest {

namespace {

constexpr int kBlock = 8;  // rows of gemmI8
// Half octaves by which the distributions of a side may be moved.
constexpr int kShiftLeast = -4, kShiftMost = 6;
constexpr size_t kSideHead = 5;

uint32_t readU32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// The bytes of one side, and its distributions. Answers how many bytes it takes, 0 where they are damaged.
size_t readSide(const PredictedSide& side, int distributions, const uint8_t* bytes, size_t size, uint8_t* tables, CodedResiduals* coded) {
  if (size < kSideHead) return 0;
  const size_t content = readU32(bytes);
  if (content < 1 || content > size - 4) return 0;
  const int shift = static_cast<int8_t>(bytes[4]);
  if (shift < kShiftLeast || shift > kShiftMost) return 0;
  for (size_t c = 0; c < side.tables.size(); c++) tables[c] = static_cast<uint8_t>(std::clamp(side.tables[c] + shift, 0, distributions - 1));
  coded->bytes = bytes + kSideHead;
  coded->size = content - 1;
  coded->tables = tables;
  return 4 + content;
}

}  // namespace

bool Predictor::setDistributions(const uint16_t* given, int count) {
  distributions = count;
  symbols.resize(static_cast<size_t>(count) * kCodedSlots);
  shares.resize(static_cast<size_t>(count) * kCodedSymbols);
  for (int table = 0; table < count; table++) {
    int at = 0;
    for (int symbol = 0; symbol < kCodedSymbols; symbol++) {
      const int share = given[table * kCodedSymbols + symbol];
      if (share == 0 || share > kCodedSlots - at) return false;
      shares[table * kCodedSymbols + symbol] = static_cast<uint32_t>(share) << 16 | static_cast<uint32_t>(at);
      std::memset(symbols.data() + table * kCodedSlots + at, symbol, share);
      at += share;
    }
    if (at != kCodedSlots) return false;
  }
  return true;
}

size_t Predictor::bytes() const {
  size_t total = symbols.size() + shares.size() * sizeof(uint32_t);
  for (const PredictedLayer& layer : layers) total += layer.k.weights.bytes() + layer.v.weights.bytes() + 12 * layer.centres.size() * sizeof(float);
  return total;
}

void PageReader::reserve(const Predictor& predictor) {
  const size_t width = predictor.width();
  k_.grow(kPageTokens * width);
  v_.grow(kPageTokens * width);
  tables_.grow(2 * width);
  codes_.grow(2 * kPageTokens * width);
  levels_.grow(kPageTokens * width);
  below_.grow(2 * kPageTokens * width);
  operand_.grow(4 * kPageTokens * width);
}

void PageReader::toLevels(const Kernels* kernels, const PredictedLayer& layer, bool isKey, int width) {
  const float* rows = isKey ? k() : v();
  const size_t from = isKey ? 0 : width;
  for (size_t at = 0; at < static_cast<size_t>(kPageTokens) * width; at += width) {
    kernels->roundToLevels(rows + at, layer.centres.data() + from, layer.gains.data() + from, width, levels_.data() + at);
  }
}

void PageReader::putColumns(const int8_t* levels, int width, int8_t* to, int depth, int at) {
  for (int t = 0; t < kPageTokens; t++, levels += width) {
    int8_t* place = to + static_cast<size_t>(t / kBlock) * kBlock * depth + at * kBlock + t % kBlock * 4;
    for (int c = 0; c < width; c += 4, place += kBlock * 4) std::memcpy(place, levels + c, 4);
  }
}

void PageReader::pass(const Kernels* kernels, const PredictedLayer& layer, int width) {
  for (const bool isKey : {true, false}) {
    toLevels(kernels, layer, isKey, width);
    putColumns(levels_.data(), width, below_.data(), 2 * width, isKey ? 0 : width);
  }
}

void PageReader::multiply(const Kernels* kernels, const PredictedSide& side, int width, int8_t* codes, bool hasBelow, bool hasKeys, float* rows) {
  const int depth = side.weights.contraction();
  for (int t = 0; t < kPageTokens; t++) {
    int8_t* row = codes + static_cast<size_t>(t) * width;
    for (int c = 0; c < width; c++) row[c] = static_cast<int8_t>(row[c] * side.factors[c]);
  }
  int8_t* to = operand_.data();
  putColumns(codes, width, to, depth, 0);
  const size_t block = static_cast<size_t>(kBlock) * depth, below = static_cast<size_t>(kBlock) * 2 * width;
  for (int i = 0; i < kPageTokens / kBlock && hasBelow; i++) std::memcpy(to + i * block + kBlock * width, below_.data() + i * below, below);
  if (hasKeys) putColumns(levels_.data(), width, to, depth, depth - width);
  float ones[kPageTokens];
  std::fill(ones, ones + kPageTokens, 1.0f);
  side.weights.multiply(kernels, to, kPageTokens, ones, 1, side.base.data(), 0, rows, width);
}

bool PageReader::read(const Kernels* kernels, const Predictor& predictor, int index, const uint8_t* bytes, size_t size) {
  const PredictedLayer& layer = predictor.layers[index];
  const int width = predictor.width();
  int8_t* codes[2] = {codes_.data(), codes_.data() + static_cast<size_t>(kPageTokens) * width};
  CodedResiduals coded[2];
  for (int i = 0; i < 2; i++) {
    coded[i].codes = codes[i];
    const size_t taken = readSide(i == 0 ? layer.k : layer.v, predictor.distributions, bytes, size, tables_.data() + i * width, &coded[i]);
    if (taken == 0) return false;
    bytes += taken;
    size -= taken;
  }
  if (size != 0) return false;
  if (!kernels->decodeResiduals(predictor.symbols.data(), predictor.shares.data(), coded, kPageTokens, width)) return false;
  multiply(kernels, layer.k, width, codes[0], index > 0, false, k());
  toLevels(kernels, layer, true, width);
  multiply(kernels, layer.v, width, codes[1], index > 0, true, v());
  putColumns(levels_.data(), width, below_.data(), 2 * width, 0);
  toLevels(kernels, layer, false, width);
  putColumns(levels_.data(), width, below_.data(), 2 * width, width);
  return true;
}

}  // namespace palimpsest
