// The kernels of the dense half on a chosen instruction set, for tests.
#include <algorithm>
#include <cstring>

#include "cache/buffer.h"
#include "test_call.h"

namespace palimpsest {

namespace {

constexpr int kMostInputs = 4096;
constexpr int kMostOutputs = 1024;
constexpr int kMostRows = 64;

// (isa, count, gain [count], epsilon, x [count], y <- [count], gate [count] <-, up [count], gelu)
// Computes the norm of x into y, and the gate in place.
void normAndGate(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(1, kMostInputs);
  const auto* gain = call.array<float>(count);
  const float epsilon = call.number();
  const auto* x = call.array<float>(count);
  auto* y = call.array<float>(count);
  auto* gate = call.array<float>(count);
  kernels->denseNorm(x, gain, epsilon, count, y);
  const auto* up = call.array<float>(count);
  kernels->denseGate(gate, up, count, call.flag());
}

// (isa, form, inputs, outputs, n, panels, x [n][inputs], bias [panels * 16] or [0], base [n][outputs] or [0], y <-
// [n][outputs], steps <- [n][blocks], sums <- [n][blocks][2], planes) panels: [ceil(outputs/16)] of
// kernels/dense_products.h. Rows are quantized here, so their steps and sums are results too.
void densePanels(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const auto form = static_cast<DenseForm>(call.integer(0, kDenseFormCount - 1));
  const int inputs = call.integer(1, kMostInputs), outputs = call.integer(1, kMostOutputs), n = call.integer(1, kMostRows);
  const int blocks = denseBlocks(inputs), panels = (outputs + 15) / 16;
  if (blocks % kDenseForms[form].blocks != 0) throw Napi::RangeError::New(info.Env(), "records do not divide the inputs");
  const size_t bytes = panels * densePanelBytes(form, blocks);
  const auto* given = call.array<uint8_t>(bytes);
  const auto* x = call.array<float>(static_cast<size_t>(n) * inputs);
  size_t biases = 0, bases = 0;
  const auto* bias = call.arrayOrNone<float>(static_cast<size_t>(panels) * 16, &biases);
  const auto* base = call.arrayOrNone<float>(static_cast<size_t>(n) * outputs, &bases);
  auto* y = call.array<float>(static_cast<size_t>(n) * outputs);
  auto* steps = call.array<float>(static_cast<size_t>(n) * blocks);
  auto* sums = call.array<int32_t>(static_cast<size_t>(n) * blocks * 2);
  Buffer<uint8_t> weights;
  weights.grow(bytes);
  std::memcpy(weights.data(), given, bytes);
  Buffer<int8_t> integers;
  integers.grow(static_cast<size_t>(n) * blocks * 64);
  const DenseRows rows{integers.data(), steps, sums, blocks, call.integer(1, 2)};
  for (int row = 0; row < n; row++) kernels->denseRow(x + static_cast<size_t>(row) * inputs, inputs, rows, row);
  const DenseWeights view{form, weights.data(), biases > 0 ? bias : nullptr, outputs, nullptr};
  kernels->densePanels(view, 0, panels, rows, n, bases > 0 ? base : nullptr, y);
}

// (isa, type, inputs, rows, bytes of the rows as a file stores them, panels <-) -> 1 if all scales are finite, or 0
Napi::Value densePack(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const auto type = static_cast<DenseType>(call.integer(0, kDenseTypeCount - 1));
  const int inputs = call.integer(1, kMostInputs), rows = call.integer(1, kMostOutputs);
  if (inputs % kDenseTypes[type].values != 0) throw Napi::RangeError::New(info.Env(), "blocks do not divide the inputs");
  const size_t rowBytes = denseRowBytes(type, inputs), panelBytes = densePanelBytes(kDenseTypes[type].form, denseBlocks(inputs));
  const auto* from = call.array<uint8_t>(rows * rowBytes);
  auto* panels = call.array<uint8_t>((rows + 15) / 16 * panelBytes);
  bool finite = true;
  for (int row = 0; row < rows; row += 16) {
    finite &= kernels->cold->packWeights(type, from + row * rowBytes, std::min(16, rows - row), inputs, panels + row / 16 * panelBytes);
  }
  return Napi::Number::New(info.Env(), finite);
}

}  // namespace

void exportDense(Napi::Env env, Napi::Object exports) {
  exports.Set("normAndGate", Napi::Function::New(env, normAndGate, "normAndGate"));
  exports.Set("densePanels", Napi::Function::New(env, densePanels, "densePanels"));
  exports.Set("densePack", Napi::Function::New(env, densePack, "densePack"));
}

}  // namespace palimpsest
