// Reads the arguments of a test binding's function one after the other; a wrong one is a RangeError or TypeError, never
// a crash.
#pragma once
#include <napi.h>

#include <climits>
#include <cstring>
#include <string>

#include "cache/buffer.h"
#include "formats/format.h"
#include "kernels.h"

namespace palimpsest {

class Call {
 public:
  explicit Call(const Napi::CallbackInfo& info) : info_(info) {}

  const Kernels* kernels() {
    const int isa = integer(INT_MIN, INT_MAX);
    const Kernels* kernels = isa < kScalar || isa >= kIsaCount ? nullptr : kernelsFor(static_cast<Isa>(isa));
    if (kernels == nullptr) fail("this CPU or build has no such instruction set");
    return kernels;
  }

  int integer(int least, int most) {
    const Napi::Value value = next();
    if (!value.IsNumber()) throw Napi::TypeError::New(info_.Env(), "argument " + at() + " must be a number");
    const double number = value.As<Napi::Number>().DoubleValue();
    if (!(number >= least && number <= most) || number != static_cast<int>(number)) fail("must be an integer in range");
    return static_cast<int>(number);
  }

  float number() {
    const Napi::Value value = next();
    if (!value.IsNumber()) throw Napi::TypeError::New(info_.Env(), "argument " + at() + " must be a number");
    return value.As<Napi::Number>().FloatValue();
  }

  bool flag() {
    const Napi::Value value = next();
    if (!value.IsBoolean()) throw Napi::TypeError::New(info_.Env(), "argument " + at() + " must be a boolean");
    return value.As<Napi::Boolean>().Value();
  }

  int headDim() {
    const int d = integer(64, 256);
    if (d != 64 && d != 80 && d != 96 && d != 128 && d != 256) fail("must be a coded head size");
    return d;
  }

  int format() {
    const int id = integer(0, kFormatSlots - 1);
    if (!isFormat(id)) fail("is no format");
    return id;
  }

  // A typed array of T with room for `count` elements.
  template <class T>
  T* array(uint64_t count) {
    const Napi::Value value = next();
    if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != typeOf(static_cast<T*>(nullptr))) {
      throw Napi::TypeError::New(info_.Env(), "argument " + at() + " must be a typed array of the right kind");
    }
    const Napi::TypedArray typed = value.As<Napi::TypedArray>();
    if (typed.ElementLength() < count) {
      fail("has " + std::to_string(typed.ElementLength()) + " elements, " + std::to_string(count) + " are needed");
    }
    return reinterpret_cast<T*>(static_cast<uint8_t*>(typed.ArrayBuffer().Data()) + typed.ByteOffset());
  }

  // The same, or an empty array. length: 0 or `count`.
  template <class T>
  T* arrayOrNone(uint64_t count, size_t* length) {
    const Napi::Value value = info_[index_];
    const bool isEmpty = value.IsTypedArray() && value.As<Napi::TypedArray>().ElementLength() == 0;
    *length = isEmpty ? 0 : count;
    return array<T>(*length);
  }

  // The number of elements of the next argument, a typed array.
  uint64_t length() const {
    const Napi::Value value = info_[index_];
    return value.IsTypedArray() ? value.As<Napi::TypedArray>().ElementLength() : 0;
  }

  // The number of elements spanned by n rows of `length` at `stride`.
  static uint64_t span(int n, int stride, int length) { return n == 0 ? 0 : static_cast<uint64_t>(n - 1) * stride + length; }

  [[noreturn]] void fail(const std::string& why) { throw Napi::RangeError::New(info_.Env(), "argument " + at() + " " + why); }

  Napi::Env env() const { return info_.Env(); }

 private:
  static napi_typedarray_type typeOf(float*) { return napi_float32_array; }
  static napi_typedarray_type typeOf(int8_t*) { return napi_int8_array; }
  static napi_typedarray_type typeOf(uint8_t*) { return napi_uint8_array; }
  static napi_typedarray_type typeOf(int16_t*) { return napi_int16_array; }
  static napi_typedarray_type typeOf(uint16_t*) { return napi_uint16_array; }
  static napi_typedarray_type typeOf(int32_t*) { return napi_int32_array; }

  Napi::Value next() { return info_[index_++]; }
  std::string at() const { return std::to_string(index_ - 1); }

  const Napi::CallbackInfo& info_;
  size_t index_ = 0;
};

// A side of one head in tests: the fields of its format one after the other, each at a multiple of 64. It is a copy,
// aligned like a cache's.
class TestSide {
 public:
  // The size of the largest format.
  static size_t bytes(int d) {
    size_t most = 0;
    for (int format = 0; format < kFormatSlots; format++) {
      size_t size = 0;
      for (int i = 0; i < kFormats[format].fields; i++) size += alignedPart(fieldBytes(kFormats[format].field[i], d));
      most = size > most ? size : most;
    }
    return most;
  }

  TestSide(uint8_t* given, size_t size) : given_(given), size_(size) {
    own_.grow(size);
    std::memcpy(own_.data(), given, size);
  }
  SideTarget target(int format, int d, size_t at = 0) {
    SideTarget target;
    target.format = format;
    for (int i = 0; i < kFormats[format].fields; i++) {
      target.field[i] = own_.data() + at;
      at += alignedPart(fieldBytes(kFormats[format].field[i], d));
    }
    return target;
  }
  SideView view(int format, int d, size_t at = 0) {
    const SideTarget fields = target(format, d, at);
    SideView view;
    view.format = format;
    for (int i = 0; i < kFieldsMax; i++) view.field[i] = fields.field[i];
    return view;
  }
  void giveBack() const { std::memcpy(given_, own_.data(), size_); }

 private:
  uint8_t* given_;
  size_t size_;
  Buffer<uint8_t> own_;
};

}  // namespace palimpsest
