// The border with JavaScript: values are read without trusting them (each reader answers false unless the value is
// exactly what was asked for), and every call answers with a status.
#pragma once
#include <napi.h>

#include <cmath>
#include <new>
#include <stdexcept>
#include <system_error>

#include "cache/finite.h"
#include "layout.gen.h"

namespace palimpsest {

inline bool readInt(const Napi::Value& value, int least, int most, int* out) {
  if (!value.IsNumber()) return false;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= least && number <= most) || number != std::floor(number)) return false;
  *out = static_cast<int>(number);
  return true;
}

// The largest whole number that a double holds with all below it.
constexpr double kMostBytes = 9007199254740991.0;

inline bool readBytes(const Napi::Value& value, uint64_t* bytes) {
  if (!value.IsNumber()) return false;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= kMostBytes) || number != std::floor(number)) return false;
  *bytes = static_cast<uint64_t>(number);
  return true;
}

template <typename Element>
struct Span {
  Element* data = nullptr;
  size_t length = 0;
};

inline bool finite(const Span<float>& x) { return allFinite(x.data, x.length); }

template <typename Element>
bool readArray(const Napi::Value& value, napi_typedarray_type type, Span<Element>* out) {
  if (!value.IsTypedArray()) return false;
  const Napi::TypedArray array = value.As<Napi::TypedArray>();
  if (array.TypedArrayType() != type) return false;
  Napi::TypedArrayOf<Element> typed = value.As<Napi::TypedArrayOf<Element>>();
  out->data = typed.Data();
  out->length = typed.ElementLength();
  return out->length == 0 || out->data != nullptr;
}

inline bool readFloats(const Napi::Value& value, Span<float>* out) { return readArray(value, napi_float32_array, out); }
inline bool absent(const Napi::Value& value) { return value.IsUndefined() || value.IsNull(); }

// Logarithms and values of what the caller computed beside attention: both or neither, told by whether there is data.
inline bool readBeside(const Napi::Value& lse, const Napi::Value& out, Span<float>* besideLse, Span<float>* besideOut) {
  if (absent(lse) && absent(out)) return true;
  return readFloats(lse, besideLse) && readFloats(out, besideOut) && besideLse->data && besideOut->data;
}

using Info = Napi::CallbackInfo;

inline Napi::Value answer(const Info& info, Status status) { return Napi::Number::New(info.Env(), status); }

// Runs a body that answers a status, and turns exceptions about memory into one.
template <typename Body>
Napi::Value guarded(const Info& info, Body body) {
  try {
    return answer(info, body());
  } catch (const std::bad_alloc&) {
    return answer(info, kNoMemory);
  } catch (const std::length_error&) {
    return answer(info, kNoMemory);
  } catch (const std::system_error&) {
    return answer(info, kNoMemory);
  }
}

}  // namespace palimpsest
