// The part of node-addon-api that addon.cc and test_binding.cc use, for WebAssembly: both bindings are built from the
// same sources, so they cannot drift apart. The JavaScript half is native/wasm.ts, which copies typed arrays in before
// a call and back after it.
//
// There are no exceptions here. A C++ throw ends the call: JavaScript throws instead and resets the stack, so the
// destructors in between do not run. This leaks the memory of the local variables and does no other harm, because all
// code allocates before it changes anything (as it must for the native addon too, which unwinds at the same places).
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

enum napi_typedarray_type {
  napi_int8_array,
  napi_uint8_array,
  napi_uint8_clamped_array,
  napi_int16_array,
  napi_uint16_array,
  napi_int32_array,
  napi_uint32_array,
  napi_float32_array,
  napi_float64_array,
};

struct napi_type_tag {
  uint64_t lower;
  uint64_t upper;
};

namespace Napi {
class Env;
}
// Nothing to report: the garbage collector already knows the whole memory of a module.
inline void napi_adjust_external_memory(const Napi::Env&, int64_t, int64_t*) {}

namespace Napi {

enum Kind : uint32_t { kUndefined, kNull, kBoolean, kNumber, kTypedArray, kObject, kOther, kJson };

// An object that JavaScript holds by its address.
struct Wrapped {
  const napi_type_tag* tag = nullptr;
  void* self = nullptr;
  void (*destroy)(void*) = nullptr;
};

// One argument as native/wasm.ts writes it.
struct Slot {
  uint32_t kind;
  uint32_t arrayType;
  uint32_t data;    // address of the first element, or of a Wrapped
  uint32_t length;  // elements
  double number;    // of a boolean as well
};

class Env {
 public:
  template <class T>
  void SetInstanceData(T* data) const { instance = data; }
  template <class T>
  T* GetInstanceData() const { return static_cast<T*>(instance); }

 private:
  static inline void* instance = nullptr;
};

class Value {
 public:
  Value() = default;
  explicit Value(const Slot& slot) : slot_(slot) {}
  Value(Kind kind, double number) : slot_{kind, 0, 0, 0, number} {}
  explicit Value(std::shared_ptr<std::string> json) : slot_{kJson, 0, 0, 0, 0}, json_(std::move(json)) {}

  bool IsUndefined() const { return slot_.kind == kUndefined; }
  bool IsNull() const { return slot_.kind == kNull; }
  bool IsBoolean() const { return slot_.kind == kBoolean; }
  bool IsNumber() const { return slot_.kind == kNumber; }
  bool IsTypedArray() const { return slot_.kind == kTypedArray; }
  bool IsObject() const { return slot_.kind == kObject || slot_.kind == kTypedArray; }

  template <class T>
  T As() const { return T(*this); }

  Kind kind() const { return static_cast<Kind>(slot_.kind); }
  const Slot& slot() const { return slot_; }
  double number() const { return slot_.number; }
  Wrapped* wrapped() const { return slot_.kind == kObject ? reinterpret_cast<Wrapped*>(slot_.data) : nullptr; }
  std::string text() const;  // as JSON

 protected:
  Slot slot_{};
  std::shared_ptr<std::string> json_;  // for kJson; copies share it, like references to a JavaScript object
};

class Number : public Value {
 public:
  explicit Number(const Value& value) : Value(value) {}
  static Value New(Env, double number) { return Value(kNumber, number); }
  double DoubleValue() const { return slot_.number; }
  float FloatValue() const { return static_cast<float>(slot_.number); }
};

class Boolean : public Value {
 public:
  explicit Boolean(const Napi::Value& value) : Napi::Value(value) {}
  bool Value() const { return slot_.number != 0; }
};

class String {
 public:
  static Value New(Env, const std::string& text);
};

struct ArrayBuffer {
  void* data;
  void* Data() const { return data; }
};

class TypedArray : public Value {
 public:
  explicit TypedArray(const Value& value) : Value(value) {}
  napi_typedarray_type TypedArrayType() const { return static_cast<napi_typedarray_type>(slot_.arrayType); }
  size_t ElementLength() const { return slot_.length; }
  Napi::ArrayBuffer ArrayBuffer() const { return {reinterpret_cast<void*>(slot_.data)}; }
  size_t ByteOffset() const { return 0; }
};

template <class T>
class TypedArrayOf : public TypedArray {
 public:
  explicit TypedArrayOf(const Value& value) : TypedArray(value) {}
  T* Data() const { return reinterpret_cast<T*>(slot_.data); }
};

// A handle that JavaScript passed in, or an object made here, which is JSON.
class Object : public Value {
 public:
  explicit Object(const Value& value) : Value(value) {}
  static Object New(Env) { return Object(Value(std::make_shared<std::string>())); }
  void Set(const char* name, const Value& value);
  void TypeTag(const napi_type_tag* tag) const { wrapped()->tag = tag; }
  bool CheckTypeTag(const napi_type_tag* tag) const {
    const Wrapped* it = wrapped();
    return it && it->tag && it->tag->lower == tag->lower && it->tag->upper == tag->upper;
  }
};

class Array : public Value {
 public:
  explicit Array(const Value& value) : Value(value) {}
  static Array New(Env) { return Array(Value(std::make_shared<std::string>())); }
  // Indices must come in order.
  void Set(uint32_t, const Value& value);
  void Set(uint32_t index, double number) { Set(index, Value(kNumber, number)); }
};

class CallbackInfo {
 public:
  CallbackInfo(const Slot* slots, size_t count, Wrapped* self) : slots_(slots), count_(count), self_(self) {}
  Value operator[](size_t index) const { return index < count_ ? Value(slots_[index]) : Value(); }
  Napi::Env Env() const { return {}; }
  Value This() const { return Value(Slot{kObject, 0, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(self_)), 0, 0}); }

 private:
  const Slot* slots_;
  size_t count_;
  Wrapped* self_;
};

// Everything that JavaScript can call, by number.
using Callee = Value (*)(void* self, const CallbackInfo& info, void* function);
uint32_t addCallee(Callee callee, void* function);
using Constructor = void (*)(Wrapped* it, const CallbackInfo& info);
uint32_t addConstructor(Constructor constructor);

class Function : public Value {
 public:
  explicit Function(const Value& value) : Value(value) {}
  static Function New(Env, Value (*function)(const CallbackInfo&), const char*) {
    return number(addCallee([](void*, const CallbackInfo& info, void* it) { return reinterpret_cast<Value (*)(const CallbackInfo&)>(it)(info); },
                            reinterpret_cast<void*>(function)));
  }
  static Function New(Env, void (*function)(const CallbackInfo&), const char*) {
    return number(addCallee(
        [](void*, const CallbackInfo& info, void* it) {
          reinterpret_cast<void (*)(const CallbackInfo&)>(it)(info);
          return Value();
        },
        reinterpret_cast<void*>(function)));
  }

 private:
  static Function number(uint32_t callee) { return Function(Value(kNumber, callee)); }
};

template <class T>
class ObjectWrap {
 public:
  explicit ObjectWrap(const CallbackInfo&) {}
  virtual ~ObjectWrap() = default;
  virtual void Finalize(Env) {}
  static T* Unwrap(const Object& object) { return static_cast<T*>(object.wrapped()->self); }

 protected:
  struct Method {
    const char* name;
    Callee callee;
  };
  template <auto method>
  static Method InstanceMethod(const char* name) {
    return {name, [](void* self, const CallbackInfo& info, void*) { return (static_cast<T*>(self)->*method)(info); }};
  }
  static Function DefineClass(Env env, const char*, std::initializer_list<Method> methods) {
    Object names = Object::New(env);
    for (const Method& method : methods) names.Set(method.name, Number::New(env, addCallee(method.callee, nullptr)));
    Object about = Object::New(env);
    about.Set("constructor", Number::New(env, addConstructor([](Wrapped* it, const CallbackInfo& info) {
                it->destroy = [](void* self) { delete static_cast<T*>(self); };
                it->self = new T(info);
              })));
    about.Set("methods", names);
    return Function(about);
  }
};

// An error is created only to be thrown at once, so its text is stored until then.
class Error {
 protected:
  static void keep(int kind, const std::string& text);
};
class TypeError : public Error {
 public:
  static TypeError New(Env, const std::string& text) {
    keep(1, text);
    return {};
  }
};
class RangeError : public Error {
 public:
  static RangeError New(Env, const std::string& text) {
    keep(2, text);
    return {};
  }
};

using Init = Object (*)(Env, Object);
extern const Init kInit;

}  // namespace Napi

#define NODE_API_MODULE(name, init) \
  const Napi::Init Napi::kInit = init;
