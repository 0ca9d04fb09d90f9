#include "page_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace palimpsest {

namespace {

// A residual becomes the next step from 0 where it is this far from the last.
constexpr double kRoundUp = 0.42;
constexpr uint32_t kLeastState = 1 << 15;

// The byte of row t and column c in rows of gemmI8 of so many columns.
inline size_t placeOf(size_t t, size_t c, size_t columns) {
  return t / kGemmBlock * kGemmBlock * columns + c / 4 * 4 * kGemmBlock + t % kGemmBlock * 4 + c % 4;
}

// The nearest whole number, halves upwards.
inline int rounded(double x) {
  x += 0.5;
  const int whole = static_cast<int>(x);
  return whole - (static_cast<double>(whole) > x ? 1 : 0);
}

// Copies the first `columns` columns of rows of gemmI8 into wider rows.
void copyColumns(const int8_t* from, size_t columns, int8_t* to, size_t width) {
  for (int block = 0; block < kPageTokens / kGemmBlock && columns > 0; block++) {
    std::memcpy(to + block * kGemmBlock * width, from + block * kGemmBlock * columns, kGemmBlock * columns);
  }
}

}  // namespace

void PageWriter::reserve(const Predictor& predictor) {
  const size_t width = predictor.width(), elements = width * kPageTokens;
  for (Side& side : sides_) {
    side.columns.grow(elements);
    side.tables.grow(width);
  }
  for (Buffer<float>* one : {&madeKeys_, &madeValues_, &residuals_}) one->grow(elements);
  valueInputs_.grow(3 * elements);
  rows_.grow(4 * elements);
  line_.grow(elements);
  packed_.grow(elements);
  words_.grow(2 * elements);
}

size_t PageWriter::bytes() const {
  size_t total = valueInputs_.bytes() + rows_.bytes() + line_.bytes() + packed_.bytes() + words_.bytes();
  for (const Side& side : sides_) total += side.columns.bytes() + side.tables.bytes();
  for (const Buffer<float>* one : {&madeKeys_, &madeValues_, &residuals_}) total += one->bytes();
  return total;
}

void PageWriter::code(const Kernels* kernels, const Predictor& predictor, const PredictedSide& by, const int8_t* inputs, int inputWidth, const float* wanted,
                      int firstRow, Side& side, float* made) {
  const size_t width = predictor.width(), elements = width * kPageTokens;
  float scales[kPageTokens];
  std::fill(scales, scales + kPageTokens, 1.0f);
  float* residuals = residuals_.data();
  if (inputWidth > 0) {
    by.weights.multiplyFirst(kernels, inputs, kPageTokens, inputWidth, scales, by.base.data(), residuals, width);
  } else {
    for (size_t t = 0; t < kPageTokens; t++) std::copy(by.base.begin(), by.base.end(), residuals + t * width);
  }
  for (size_t i = 0; i < elements; i++) residuals[i] = wanted[i] - residuals[i];
  // Rows in 8 bits, turned back into the basis in which they are coded.
  for (size_t t = 0; t < kPageTokens; t++) {
    const float* row = residuals + t * width;
    double most = 0;
    for (size_t c = 0; c < width; c++) most = std::max(most, static_cast<double>(std::fabs(row[c])));
    // A residual beyond float32 is as good as lost.
    const bool isCoded = most > 0 && std::isfinite(most);
    scales[t] = isCoded ? static_cast<float>(most / 127) : 0.0f;
    for (size_t c = 0; c < width; c++) line_[t * width + c] = isCoded ? static_cast<int8_t>(rounded(127 * static_cast<double>(row[c]) / most)) : 0;
  }
  packLevels(line_.data(), kPageTokens, static_cast<int>(width), packed_.data());
  by.back->multiply(kernels, packed_.data(), kPageTokens, scales, 2, nullptr, 0, residuals, width);
  side.count = 0;
  for (size_t c = 0; c < width; c++) {
    int8_t* column = side.columns.data() + c * kPageTokens;
    int any = 0;
    for (size_t t = 0; t < kPageTokens; t++) {
      const double value = residuals[t * width + c];
      const double size = std::fabs(value) + kRoundUp;
      const int level = size < kCodedLevelMax ? static_cast<int>(size) : kCodedLevelMax;
      any |= column[t] = static_cast<int8_t>(t < static_cast<size_t>(firstRow) ? 0 : value < 0 ? -level : level);
    }
    if (any != 0) side.count = static_cast<int>(c) + 1;
  }
  chooseTables(predictor, by, side);
  // What a reader will have.
  const size_t depth = inputWidth + (side.count + 3) / 4 * 4;
  copyColumns(inputs, inputWidth, rows_.data(), depth);
  for (size_t c = 0; c < depth - inputWidth; c++) {
    const int8_t* column = side.columns.data() + c * kPageTokens;
    const bool isCoded = c < static_cast<size_t>(side.count);
    for (size_t t = 0; t < kPageTokens; t++) {
      rows_[placeOf(t, inputWidth + c, depth)] = static_cast<int8_t>(isCoded ? column[t] * by.factors[c] : 0);
    }
  }
  std::fill(scales, scales + kPageTokens, 1.0f);
  if (depth > 0) {
    by.weights.multiplyFirst(kernels, rows_.data(), kPageTokens, static_cast<int>(depth), scales, by.base.data(), made, width);
  } else {
    for (size_t t = 0; t < kPageTokens; t++) std::copy(by.base.begin(), by.base.end(), made + t * width);
  }
}

// The distributions that make the columns shortest.
void PageWriter::chooseTables(const Predictor& predictor, const PredictedSide& by, Side& side) {
  std::vector<uint32_t> counts(static_cast<size_t>(side.count) * kCodedSymbols);
  for (int c = 0; c < side.count; c++) {
    for (int t = 0; t < kPageTokens; t++) counts[c * kCodedSymbols + kCodedLevelMax + side.columns[c * kPageTokens + t]]++;
  }
  double least = 0;
  for (int shift = kCodedShiftLeast; shift <= kCodedShiftMost; shift++) {
    double bits = 0;
    for (int c = 0; c < side.count; c++) {
      const double* of = predictor.symbolBits.data() + static_cast<size_t>(predictor.moved(by.tables[c], shift)) * kCodedSymbols;
      for (int symbol = 0; symbol < kCodedSymbols; symbol++) {
        if (const uint32_t count = counts[c * kCodedSymbols + symbol]) bits += count * of[symbol];
      }
    }
    if (shift > kCodedShiftLeast && bits >= least) continue;
    least = bits;
    side.shift = shift;
  }
  for (int c = 0; c < side.count; c++) side.tables[c] = predictor.moved(by.tables[c], side.shift);
}

// Columns of both sides, from the last symbol to the first: states take turns, and each gives up its low words before
// it grows over 31 bits.
size_t PageWriter::encode(const Predictor& predictor, uint8_t* out, size_t room) {
  uint32_t states[kCodedStates];
  std::fill(states, states + kCodedStates, kLeastState);
  const size_t most = static_cast<size_t>(sides_[0].count + sides_[1].count) * kPageTokens;
  size_t first = most;
  for (Side* side : {&sides_[1], &sides_[0]}) {
    for (int c = side->count - 1; c >= 0; c--) {
      const uint16_t* shares = predictor.shares.data() + side->tables[c] * kCodedSymbols + kCodedLevelMax;
      const uint16_t* starts = predictor.starts.data() + side->tables[c] * kCodedSymbols + kCodedLevelMax;
      const int8_t* column = side->columns.data() + c * kPageTokens;
      for (int t = kPageTokens - 1; t >= 0; t--) {
        uint32_t& state = states[t % kCodedStates];
        const uint32_t share = shares[column[t]];
        if (state >= share << 19) {
          words_[--first] = static_cast<uint16_t>(state);
          state >>= 16;
        }
        const uint32_t whole = state / share;
        state = whole * kCodedSlots + (state - whole * share) + starts[column[t]];
      }
    }
  }
  const size_t size = sizeof states + (most - first) * sizeof(uint16_t);
  if (size > room) return 0;
  std::memcpy(out, states, sizeof states);
  if (most > first) std::memcpy(out + sizeof states, words_.data() + first, (most - first) * sizeof(uint16_t));
  return size;
}

size_t PageWriter::write(const Kernels* kernels, const Predictor& predictor, int index, const int8_t* below, const float* k, const float* v, int firstRow,
                         uint8_t* out, size_t room, int8_t* levels) {
  const PredictedLayer& layer = predictor.layers[index];
  const size_t width = predictor.width(), belowWidth = below ? 2 * width : 0, inputWidth = belowWidth + width;
  code(kernels, predictor, layer.k, below, static_cast<int>(belowWidth), k, firstRow, sides_[0], madeKeys_.data());
  copyColumns(below, belowWidth, valueInputs_.data(), inputWidth);
  const float *keyCentres = layer.centres.data(), *keyGains = layer.gains.data();
  kernels->cold->roundToLevels(madeKeys_.data(), keyCentres, keyGains, static_cast<int>(width), valueInputs_.data() + kGemmBlock * belowWidth, kGemmBlock * inputWidth);
  code(kernels, predictor, layer.v, valueInputs_.data(), static_cast<int>(inputWidth), v, firstRow, sides_[1], madeValues_.data());
  size_t size = 0;
  if (room > kPredictedHead) size = encode(predictor, out + kPredictedHead, room - kPredictedHead);
  if (size > 0) {
    for (int i = 0; i < 2; i++) {
      const uint16_t count = static_cast<uint16_t>(sides_[i].count);
      out[i] = static_cast<uint8_t>(sides_[i].shift);
      std::memcpy(out + 2 + 2 * i, &count, sizeof count);
    }
    size += kPredictedHead;
  }
  const size_t block = kGemmBlock * 2 * width;
  kernels->cold->roundToLevels(size > 0 ? madeKeys_.data() : k, keyCentres, keyGains, static_cast<int>(width), levels, block);
  kernels->cold->roundToLevels(size > 0 ? madeValues_.data() : v, keyCentres + width, keyGains + width, static_cast<int>(width), levels + kGemmBlock * width, block);
  return size;
}

}  // namespace palimpsest
