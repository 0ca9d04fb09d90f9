// Entries as text, from numbers: what of an entry is always the same stands in a plan, with holes between.
#pragma once
#include <cstddef>
#include <cstdint>

namespace palimpsest {

// What a step of a plan writes: text of the plan, or what the next number says.
enum SpellStep {
  kSpellText = 0,
  // As JavaScript prints it.
  kSpellNumber,
  // The same; Infinity is null.
  kSpellNumberOrNull,
  // 1 is true, 0 false.
  kSpellFlag,
  // Text that stands among the texts too: 256 times where it begins, and how many bytes it has.
  kSpellWord,
  // Nothing: the body begins here.
  kSpellBody,
};

struct SpellPlan {
  // For each step what it is, and for text where it begins and how many bytes it has.
  const uint32_t* steps;
  size_t count;
  const uint8_t* texts;
  size_t textBytes;
};

struct Spelled {
  // Where the body begins in what was written, and how many bytes it has.
  size_t body, bodyBytes;
  // Of everything.
  size_t bytes;
};

// The shortest decimal of a double, as JavaScript prints it (ECMAScript, Number::toString). Bytes written, at most kNumberBytes; 0 for what is not finite,
// or where the C++ library does not print doubles.
constexpr size_t kNumberBytes = 32;
size_t spellNumber(double number, char* out);

// Writes the steps and a closing bracket; sealed: the body in the room that its sealed text will take, with what stands around it. False, with anything in `out`, for a
// plan that does not fit its numbers or the room, and for numbers that cannot be spelled.
bool spell(const SpellPlan& plan, const double* numbers, size_t numberCount, bool isSealed, char* out, size_t room, Spelled* spelled);

}  // namespace palimpsest
