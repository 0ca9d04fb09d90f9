// The JavaScript binding of rotary embedding, half conversion and products of matrices, for arrays outside any cache
// (see addon.cc).
#include <napi.h>

#include "arguments.h"
#include "environment.h"

namespace palimpsest {

namespace {

// (x, tokens, heads, headDim, rotaryDim, cos, sin, interleaved)
Napi::Value rope(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<float> x, cos, sin;
    int tokens, heads, headDim, rotaryDim;
    if (!readFloats(info[0], &x) || !readFloats(info[5], &cos) || !readFloats(info[6], &sin) || !info[7].IsBoolean()) return kBadArgument;
    if (!readInt(info[1], 0, 1 << 30, &tokens) || !readInt(info[2], 1, kHeadsMax, &heads)) return kBadArgument;
    if (!readInt(info[3], 2, 1024, &headDim) || !readInt(info[4], 2, headDim, &rotaryDim) || rotaryDim % 2 != 0) return kBadArgument;
    if (x.length != static_cast<uint64_t>(tokens) * heads * headDim) return kBadShape;
    if (cos.length != static_cast<uint64_t>(tokens) * (rotaryDim / 2) || sin.length != cos.length) return kBadShape;
    const Kernels* kernels = kernelsOf(info.Env());
    if (tokens > 0) kernels->cold->rope(x.data, tokens, heads, headDim, rotaryDim, cos.data, sin.data, info[7].As<Napi::Boolean>().Value());
    return kOk;
  });
}

// (Float32Array, Uint16Array)
Napi::Value toHalf(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<float> x;
    Span<uint16_t> out;
    if (!readFloats(info[0], &x) || !readArray(info[1], napi_uint16_array, &out)) return kBadArgument;
    if (out.length != x.length) return kBadShape;
    kernelsOf(info.Env())->toHalf(x.data, out.data, x.length);
    return kOk;
  });
}

// (Uint16Array, Float32Array)
Napi::Value fromHalf(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint16_t> x;
    Span<float> out;
    if (!readArray(info[0], napi_uint16_array, &x) || !readFloats(info[1], &out)) return kBadArgument;
    if (out.length != x.length) return kBadShape;
    kernelsOf(info.Env())->fromHalf(x.data, out.data, x.length);
    return kOk;
  });
}

// (x [rows, inner], rows, m [inner, columns], columns, y [rows, columns])
Napi::Value matmulF64(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<float> x, m, y;
    int rows, columns;
    if (!readFloats(info[0], &x) || !readInt(info[1], 1, 1 << 30, &rows)) return kBadArgument;
    if (!readFloats(info[2], &m) || !readInt(info[3], 1, 1 << 30, &columns) || !readFloats(info[4], &y)) return kBadArgument;
    const size_t inner = x.length / rows;
    if (x.length % rows != 0 || inner > 1u << 30 || m.length != inner * static_cast<uint64_t>(columns)) return kBadShape;
    if (y.length != static_cast<uint64_t>(rows) * columns) return kBadShape;
    kernelsOf(info.Env())->cold->matmulF64(x.data, rows, m.data, static_cast<int>(inner), columns, y.data);
    return kOk;
  });
}

}  // namespace

void exportFloats(Napi::Env env, Napi::Object exports) {
  exports.Set("rope", Napi::Function::New(env, rope, "rope"));
  exports.Set("toHalf", Napi::Function::New(env, toHalf, "toHalf"));
  exports.Set("fromHalf", Napi::Function::New(env, fromHalf, "fromHalf"));
  exports.Set("matmulF64", Napi::Function::New(env, matmulF64, "matmulF64"));
}

}  // namespace palimpsest
