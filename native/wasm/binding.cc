// What the module exports to native/wasm.ts, and what replaces exceptions. See napi.h.
#include "napi.h"

#include <cstdlib>
#include <new>
#include <typeinfo>
#include <vector>

// Throws in JavaScript. kind: 0 for out of memory, 1 for TypeError, 2 for RangeError.
__attribute__((import_module("palimpsest"), import_name("fail"), noreturn)) void failInJavaScript(int kind, const char* text, size_t length);

namespace Napi {

namespace {

struct Registered {
  Callee callee;
  void* function;
};

std::vector<Registered>& callees() {
  static std::vector<Registered> list;
  return list;
}

std::vector<Constructor>& constructors() {
  static std::vector<Constructor> list;
  return list;
}

constexpr size_t kSlots = 32;
Slot slots[kSlots];
double resultNumber;
std::string resultText;

int errorKind = 0;
std::string errorText;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace

uint32_t addCallee(Callee callee, void* function) {
  callees().push_back({callee, function});
  return static_cast<uint32_t>(callees().size() - 1);
}

uint32_t addConstructor(Constructor constructor) {
  constructors().push_back(constructor);
  return static_cast<uint32_t>(constructors().size() - 1);
}

std::string Value::text() const {
  switch (slot_.kind) {
    case kNumber: return std::to_string(static_cast<long>(slot_.number));  // ids and counts
    case kBoolean: return slot_.number != 0 ? "true" : "false";
    case kJson:
      if (json_->empty()) return "{}";
      return (*json_)[0] == '[' ? *json_ + ']' : (*json_)[0] == '{' ? *json_ + '}' : *json_;
    default: return "null";
  }
}

Value String::New(Env, const std::string& text) { return Value(std::make_shared<std::string>(quoted(text))); }

// text() adds the closing bracket, because more members may follow.
void Object::Set(const char* name, const Value& value) { *json_ += (json_->empty() ? '{' : ',') + quoted(name) + ':' + value.text(); }
void Array::Set(uint32_t, const Value& value) { *json_ += (json_->empty() ? '[' : ',') + value.text(); }

void Error::keep(int kind, const std::string& text) {
  errorKind = kind;
  errorText = text;
}

}  // namespace Napi

using namespace Napi;

#define EXPORT(name) extern "C" __attribute__((export_name(#name)))

// Answers the JSON of everything that can be called. Called once, before anything else.
EXPORT(surface) void surface() { resultText = kInit(Env(), Object::New(Env())).text(); }

EXPORT(slotsAddress) Slot* slotsAddress() { return slots; }
EXPORT(numberAddress) double* numberAddress() { return &resultNumber; }
EXPORT(textAddress) const char* textAddress() { return resultText.data(); }
EXPORT(textLength) size_t textLength() { return resultText.size(); }

// Memory for the arrays of one call, which JavaScript keeps and enlarges. Null when there is none.
EXPORT(allocate) void* allocate(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }
EXPORT(release) void release(void* bytes) { free(bytes); }

EXPORT(construct) Wrapped* construct(uint32_t constructor) {
  Wrapped* it = new Wrapped;
  constructors()[constructor](it, CallbackInfo(slots, 0, it));
  return it;
}
EXPORT(destroy) void destroy(Wrapped* it) {
  it->destroy(it->self);
  delete it;
}

// Answers the kind of the result: undefined, a number, or JSON.
EXPORT(call) uint32_t call(uint32_t callee, Wrapped* it, size_t count) {
  const Registered& registered = callees()[callee];
  const Value result = registered.callee(it ? it->self : nullptr, CallbackInfo(slots, count, it), registered.function);
  if (result.kind() == kNumber) resultNumber = result.number();
  if (result.kind() == kJson) resultText = result.text();
  return result.kind();
}

// ---- Replacement of exceptions

static void* orFail(void* bytes) {
  if (!bytes) failInJavaScript(0, nullptr, 0);
  return bytes;
}

void* operator new(size_t size) { return orFail(malloc(size ? size : 1)); }
void* operator new[](size_t size) { return orFail(malloc(size ? size : 1)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return malloc(size ? size : 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return malloc(size ? size : 1); }
void operator delete(void* bytes) noexcept { free(bytes); }
void operator delete[](void* bytes) noexcept { free(bytes); }
void operator delete(void* bytes, size_t) noexcept { free(bytes); }
void operator delete[](void* bytes, size_t) noexcept { free(bytes); }

extern "C" {

// Exceptions are thrown one at a time and never caught, so one buffer is enough.
void* __cxa_allocate_exception(size_t size) throw() {
  alignas(16) static char room[256];
  if (size > sizeof room) abort();
  return room;
}
void __cxa_free_exception(void*) throw() {}

// An error of Napi has stored its text; any other exception here comes from the standard library and is about memory.
void __cxa_throw(void*, std::type_info*, void* (*)(void*)) {
  const int kind = errorKind;
  errorKind = 0;
  failInJavaScript(kind, errorText.data(), errorText.size());
}

}  // extern "C"
