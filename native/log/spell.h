// Entries as text, from numbers: what of an entry is always the same stands in a plan, with holes between.
#pragma once
#include <cstddef>
#include <cstdint>

#include "entries.gen.h"

namespace palimpsest {

struct SpellPlan {
  // For each step what it is (SpellStep), and for text where it begins and how many bytes it has. Every other step but
  // the body, which writes nothing, takes the next number: it is written as JavaScript prints it, and Infinity as null
  // where the step allows that; a flag is 1 or 0; a word stands among the texts too, and its number is 256 times where
  // it begins, and how many bytes it has.
  const uint32_t* steps;
  size_t count;
  const uint8_t* texts;
  size_t textBytes;
};

struct Spelled {
  // Where the body begins in what was written, and how many bytes it has.
  size_t body, bodyBytes;
  // Bytes of everything.
  size_t bytes;
};

// The shortest decimal of a double, as JavaScript prints it (ECMAScript, Number::toString). Bytes written, at most
// kNumberBytes; 0 for what is not finite, or where the C++ library does not print doubles.
constexpr size_t kNumberBytes = 32;
size_t spellNumber(double number, char* out);

// Writes the steps and a closing bracket. False, with anything in `out`, for a plan that does not fit its numbers or
// the room, and for numbers that cannot be spelled.
bool spell(const SpellPlan& plan, const double* numbers, size_t numberCount, char* out, size_t room, Spelled* spelled);

}  // namespace palimpsest
