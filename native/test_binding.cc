// Single kernels on a chosen instruction set, for tests: each function takes an ISA id first, then the arguments listed
// in kernels.h. Every length is checked here against the given shapes; a wrong call is a RangeError or TypeError, never
// a crash.
#include <vector>

#include "test_call.h"

namespace palimpsest {
void exportAttend(Napi::Env env, Napi::Object exports);  // test_binding_attend.cc
void exportDense(Napi::Env env, Napi::Object exports);   // test_binding_dense.cc
#if defined(PALIMPSEST_DEBUG)
void exportCanaries(Napi::Env env, Napi::Object exports);  // test_canaries.cc
#endif
#if !defined(__wasm__)
void exportThreads(Napi::Env env, Napi::Object exports);  // test_threads.cc
#endif
}  // namespace palimpsest

namespace {

using namespace palimpsest;

constexpr int kMany = 1 << 20;

Napi::Value isas(const Napi::CallbackInfo& info) {
  Napi::Array list = Napi::Array::New(info.Env());
  uint32_t count = 0;
  for (int isa = kScalar; isa < kIsaCount; isa++) {
    if (kernelsFor(static_cast<Isa>(isa)) != nullptr) list.Set(count++, isa);
  }
  return list;
}

Napi::Value best(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), bestKernels()->isa); }

void dotF16(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int contraction = call.integer(0, kMany), outputs = call.integer(0, kMany), rowStride = call.integer(0, kMany);
  const int n = call.integer(0, kMany), xStride = call.integer(0, kMany), yStride = call.integer(0, kMany);
  if (outputs % 8 != 0 || rowStride < outputs || yStride < outputs || xStride < contraction) call.fail("contradicts the shape");
  const auto* m = call.array<uint16_t>(Call::span(contraction, rowStride, outputs));
  const auto* x = call.array<float>(Call::span(n, xStride, contraction));
  auto* y = call.array<float>(Call::span(n, yStride, outputs));
  kernels->dotF16(m, contraction, outputs, rowStride, x, n, static_cast<size_t>(xStride), y, static_cast<size_t>(yStride));
}

void dotI8(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int contraction = call.integer(4, 256), outputs = call.integer(16, kMany);
  const int n = call.integer(0, kMany), xStride = call.integer(0, kMany), yStride = call.integer(0, kMany);
  if (contraction % 4 != 0 || outputs % 16 != 0 || xStride < contraction || yStride < outputs) call.fail("contradicts the shape");
  const auto* tile = call.array<int8_t>(static_cast<size_t>(contraction) * outputs);
  const auto* x = call.array<int16_t>(Call::span(n, xStride, contraction));
  auto* y = call.array<int32_t>(Call::span(n, yStride, outputs));
  kernels->dotI8(tile, contraction, outputs, x, n, static_cast<size_t>(xStride), y, static_cast<size_t>(yStride));
}

void addDotI8(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int contraction = call.integer(4, 256), outputs = call.integer(1, kMany);
  const int n = call.integer(0, kMany), xStride = call.integer(0, kMany), yStride = call.integer(0, kMany);
  if (contraction % 4 != 0 || xStride < contraction || yStride < outputs) call.fail("contradicts the shape");
  const auto* tile = call.array<int8_t>(static_cast<size_t>(contraction) * ((outputs + 15) / 16 * 16));
  const auto* x = call.array<int16_t>(Call::span(n, xStride, contraction));
  const auto* steps = call.array<float>(n);
  auto* y = call.array<float>(Call::span(n, yStride, outputs));
  kernels->addDotI8(tile, contraction, outputs, x, n, static_cast<size_t>(xStride), steps, y, static_cast<size_t>(yStride));
}

void rotate(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int d = call.headDim(), n = call.integer(0, kMany), stride = call.integer(d, kMany);
  const bool inverse = call.flag();
  kernels->rotate(call.array<float>(Call::span(n, stride, d)), n, static_cast<size_t>(stride), d, inverse);
}

Napi::Value quantizeI16(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(0, kMany);
  const auto* x = call.array<float>(static_cast<size_t>(count));
  return Napi::Number::New(call.env(), kernels->quantizeI16(x, count, call.array<int16_t>(static_cast<size_t>(count))));
}

void softmaxPage(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int n = call.integer(0, kMany), stride = call.integer(kPageTokens, kMany);
  const size_t rows = static_cast<size_t>(n);
  auto* scores = call.array<float>(Call::span(n, stride, kPageTokens));
  const auto* first = call.array<int32_t>(rows);
  const auto* last = call.array<int32_t>(rows);
  auto* max = call.array<float>(rows);
  auto* sum = call.array<float>(rows);
  auto* rescale = call.array<float>(rows);
  auto* share = call.array<float>(rows);
  kernels->softmaxPage(scores, n, static_cast<size_t>(stride), first, last, max, sum, rescale, share, call.array<float>(rows));
}

void capScores(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(0, kMany);
  const float cap = call.number();
  kernels->capScores(call.array<float>(static_cast<size_t>(count)), count, cap);
}

void axpy(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(0, kMany);
  const float a = call.number();
  const auto* x = call.array<float>(static_cast<size_t>(count));
  kernels->axpy(a, x, call.array<float>(static_cast<size_t>(count)), count);
}

void scaleRow(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(0, kMany);
  const float a = call.number();
  kernels->scaleRow(a, call.array<float>(static_cast<size_t>(count)), count);
}

Napi::Value dot(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(0, kMany);
  const auto* a = call.array<float>(static_cast<size_t>(count));
  return Napi::Number::New(call.env(), kernels->dot(a, call.array<float>(static_cast<size_t>(count)), count));
}

void toHalf(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const size_t count = static_cast<size_t>(call.integer(0, kMany));
  const auto* x = call.array<float>(count);
  kernels->toHalf(x, call.array<uint16_t>(count), count);
}

void fromHalf(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const size_t count = static_cast<size_t>(call.integer(0, kMany));
  const auto* x = call.array<uint16_t>(count);
  kernels->fromHalf(x, call.array<float>(count), count);
}

void rope(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int tokens = call.integer(0, 4096), heads = call.integer(0, 256), headDim = call.integer(2, 4096);
  const int rotaryDim = call.integer(0, headDim);
  const bool interleaved = call.flag();
  if (rotaryDim % 2 != 0) call.fail("contradicts the shape");
  auto* x = call.array<float>(static_cast<uint64_t>(tokens) * heads * headDim);
  const auto* cos = call.array<float>(static_cast<size_t>(tokens) * rotaryDim / 2);
  const auto* sin = call.array<float>(static_cast<size_t>(tokens) * rotaryDim / 2);
  kernels->cold->rope(x, tokens, heads, headDim, rotaryDim, cos, sin, interleaved);
}

void matmulF64(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int rows = call.integer(1, 256), inner = call.integer(0, 4096), columns = call.integer(1, 4096);
  const auto* x = call.array<float>(static_cast<size_t>(rows) * inner);
  const auto* m = call.array<float>(static_cast<size_t>(inner) * columns);
  kernels->cold->matmulF64(x, rows, m, inner, columns, call.array<float>(static_cast<size_t>(rows) * columns));
}

// Formats. `bytes` holds the fields of a side of one head, each at a multiple of 64 (test_call.h).

// (isa, formats, isKey, d, stride, firstRow, x, bytes <- [formats][sideBytes]): formats of one family; of a shared
// field, only the first that has it is written.
void encodeSides(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = static_cast<int>(call.length());
  const auto* formats = call.array<int32_t>(count);
  if (count < 1 || count > kFormatSlots) call.fail("must be some formats");
  for (int i = 0; i < count; i++) {
    if (!isFormat(formats[i]) || kFormats[formats[i]].family != kFormats[formats[0]].family) call.fail("is not of the family");
  }
  const bool isKey = call.flag();
  const int d = call.headDim(), stride = call.integer(d, kMany), firstRow = call.integer(0, kSinkTokens);
  const auto* x = call.array<float>(Call::span(kPageTokens, stride, d));
  const size_t size = TestSide::bytes(d);
  TestSide all(call.array<uint8_t>(size * count), size * count);
  KeySteering steering = {};
  if (call.length() > 0) steering.feedback = call.array<float>(static_cast<uint64_t>(d) * d);
  if (steering.feedback) steering.weights = call.array<float>(d);
  std::vector<SideTarget> targets;
  for (int i = 0; i < count; i++) {
    targets.push_back(all.target(formats[i], d, size * i));
    if (steering.feedback) targets[i].steering = &steering;
    for (int f = 0; f < kFormats[formats[i]].fields; f++) {
      const FieldLayout& field = kFormats[formats[i]].field[f];
      for (int j = i - 1; field.isKept && j >= 0; j--) {
        if (kFormats[formats[j]].field[f].elementBits == field.elementBits) targets[i].field[f] = targets[j].field[f];
      }
    }
  }
  Buffer<uint8_t> space;
  space.grow(encodeSpace(d));
  kernels->cold->encode(targets.data(), count, isKey, d, firstRow, x, static_cast<size_t>(stride), workspaceIn(space));
  all.giveBack();
}

// (isa, from, to, isKey, d, bytes, out <- bytes)
void demoteSide(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int from = call.format(), to = call.format();
  if (!isDemotion(from, to) || !isMove(from, to)) call.fail("is no demotion");
  const bool isKey = call.flag();
  const int d = call.headDim();
  TestSide source(call.array<uint8_t>(TestSide::bytes(d)), TestSide::bytes(d));
  TestSide out(call.array<uint8_t>(TestSide::bytes(d)), TestSide::bytes(d));
  Buffer<uint8_t> space;
  space.grow(encodeSpace(d));
  kernels->cold->demote(source.view(from, d), isKey, d, out.target(to, d), workspaceIn(space));
  out.giveBack();
}

// (isa, format, isKey, d, stride, firstRow, bytes, x <-)
void decodeSide(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int format = call.format();
  const bool isKey = call.flag();
  const int d = call.headDim(), stride = call.integer(d, kMany), firstRow = call.integer(0, kSinkTokens);
  TestSide side(call.array<uint8_t>(TestSide::bytes(d)), TestSide::bytes(d));
  auto* x = call.array<float>(Call::span(kPageTokens, stride, d));
  Buffer<uint8_t> space;
  space.grow(decodeSpace(d));
  kernels->cold->decode(side.view(format, d), isKey, d, firstRow, x, static_cast<size_t>(stride), workspaceIn(space));
}

// (isa, format, isKey, d, count, tokens, bytes, x <- [count][d]) -> 1 where the format decodes rows alone, else 0
Napi::Value decodeSideRows(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int format = call.format();
  const bool isKey = call.flag();
  const int d = call.headDim(), count = call.integer(0, kPageTokens);
  const auto* tokens = call.array<uint8_t>(count);
  for (int i = 0; i < count; i++) {
    if (tokens[i] >= kPageTokens) call.fail("is no token of a page");
  }
  TestSide side(call.array<uint8_t>(TestSide::bytes(d)), TestSide::bytes(d));
  auto* x = call.array<float>(static_cast<size_t>(count) * d);
  Buffer<uint8_t> space;
  space.grow(decodeSpace(d));
  return Napi::Number::New(info.Env(), kernels->cold->decodeRows(side.view(format, d), isKey, d, tokens, count, x, d, workspaceIn(space)) ? 1 : 0);
}

// (isa, format, d, bytes, tile <-) -> 1 where the format has levels, else 0
Napi::Value levelsOfSide(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int format = call.format(), d = call.headDim();
  TestSide side(call.array<uint8_t>(TestSide::bytes(d)), TestSide::bytes(d));
  return Napi::Number::New(info.Env(), kernels->cold->levels(side.view(format, d), d, call.array<int8_t>(static_cast<size_t>(kPageTokens) * d)) ? 1 : 0);
}

#if !defined(__wasm__)
// () -> the bytes outside its heap that V8 knows of: those of array buffers, and what addons have told it
Napi::Value externalBytes(const Napi::CallbackInfo& info) {
  int64_t all = 0;
  napi_adjust_external_memory(info.Env(), 0, &all);
  return Napi::Number::New(info.Env(), static_cast<double>(all));
}
#endif

Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  const auto add = [&](const char* name, auto function) { exports.Set(name, Napi::Function::New(env, function, name)); };
  add("isas", isas);
  add("best", best);
  add("dotF16", dotF16);
  add("dotI8", dotI8);
  add("addDotI8", addDotI8);
  add("rotate", rotate);
  add("quantizeI16", quantizeI16);
  add("softmaxPage", softmaxPage);
  add("capScores", capScores);
  add("axpy", axpy);
  add("scaleRow", scaleRow);
  add("dot", dot);
  add("toHalf", toHalf);
  add("fromHalf", fromHalf);
  add("rope", rope);
  add("matmulF64", matmulF64);
  add("encodeSides", encodeSides);
  add("demoteSide", demoteSide);
  add("decodeSide", decodeSide);
  add("decodeSideRows", decodeSideRows);
  add("levelsOfSide", levelsOfSide);
  exportAttend(env, exports);
  exportDense(env, exports);
#if defined(PALIMPSEST_DEBUG)
  exportCanaries(env, exports);
#endif
#if !defined(__wasm__)
  add("externalBytes", externalBytes);
  exportThreads(env, exports);
#endif
  return exports;
}

}  // namespace

NODE_API_MODULE(kernels_test, initialize)
