// The JavaScript binding of rotary embedding and half conversion, for arrays outside any cache (see addon.cc).
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

}  // namespace

void exportFloats(Napi::Env env, Napi::Object exports) {
  exports.Set("rope", Napi::Function::New(env, rope, "rope"));
  exports.Set("toHalf", Napi::Function::New(env, toHalf, "toHalf"));
  exports.Set("fromHalf", Napi::Function::New(env, fromHalf, "fromHalf"));
}

}  // namespace palimpsest
