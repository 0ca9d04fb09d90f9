#include "spell.h"

#include <charconv>
#include <cmath>
#include <cstring>


namespace palimpsest {

namespace {

// Every double that is a whole number below it is printed with all its digits.
constexpr double kWholeMost = 1e15;
constexpr int kDigitsMost = 17;
constexpr uint32_t kWordBytesMost = 255;

size_t spellWhole(int64_t whole, char* out) { return static_cast<size_t>(std::to_chars(out, out + kNumberBytes, whole).ptr - out); }

// `digits` with the first one at 10^exponent.
size_t layOut(const char* digits, int count, int exponent, char* out) {
  char* at = out;
  const auto put = [&](const char* from, int length) {
    std::memcpy(at, from, static_cast<size_t>(length));
    at += length;
  };
  const auto zeros = [&](int length) {
    std::memset(at, '0', static_cast<size_t>(length));
    at += length;
  };
  if (exponent >= 21 || exponent < -6) {
    *at++ = digits[0];
    if (count > 1) {
      *at++ = '.';
      put(digits + 1, count - 1);
    }
    *at++ = 'e';
    *at++ = exponent < 0 ? '-' : '+';
    return static_cast<size_t>(at - out) + spellWhole(std::abs(exponent), at);
  }
  if (exponent < 0) {
    put("0.", 2);
    zeros(-1 - exponent);
    put(digits, count);
  } else if (exponent + 1 >= count) {
    put(digits, count);
    zeros(exponent + 1 - count);
  } else {
    put(digits, exponent + 1);
    *at++ = '.';
    put(digits + exponent + 1, count - exponent - 1);
  }
  return static_cast<size_t>(at - out);
}

}  // namespace

size_t spellNumber(double number, char* out) {
  if (!std::isfinite(number)) return 0;
  if (std::fabs(number) < kWholeMost && number == std::trunc(number)) return spellWhole(static_cast<int64_t>(number), out);
#if defined(__cpp_lib_to_chars)
  // "d.ddde±dd"
  char printed[kNumberBytes];
  const auto [stop, failed] = std::to_chars(printed, printed + sizeof printed, std::fabs(number), std::chars_format::scientific);
  if (failed != std::errc()) return 0;
  char digits[kDigitsMost];
  int count = 0;
  const char* at = printed;
  for (; at < stop && *at != 'e'; at++)
    if (*at != '.' && count < kDigitsMost) digits[count++] = *at;
  int exponent = 0;
  const bool isSmall = at[1] == '-';
  for (at += 2; at < stop; at++) exponent = 10 * exponent + (*at - '0');
  if (number < 0) *out = '-';
  const size_t sign = number < 0 ? 1 : 0;
  return sign + layOut(digits, count, isSmall ? -exponent : exponent, out + sign);
#else
  return 0;
#endif
}

bool spell(const SpellPlan& plan, const double* numbers, size_t numberCount, char* out, size_t room, Spelled* spelled) {
  size_t at = 0, used = 0, body = 0;
  const auto put = [&](const void* text, size_t bytes) {
    if (bytes > room - at) return false;
    // An empty text may lie nowhere.
    if (bytes > 0) std::memcpy(out + at, text, bytes);
    at += bytes;
    return true;
  };
  const auto putText = [&](uint32_t from, uint32_t bytes) { return from <= plan.textBytes && bytes <= plan.textBytes - from && put(plan.texts + from, bytes); };
  for (size_t i = 0; i < plan.count; i++) {
    const uint32_t* const step = plan.steps + 3 * i;
    if (step[0] == kSpellText) {
      if (!putText(step[1], step[2])) return false;
      continue;
    }
    if (step[0] == kSpellBody) {
      body = at;
      continue;
    }
    if (used >= numberCount) return false;
    const double number = numbers[used++];
    switch (step[0]) {
      case kSpellNumberOrNull:
        if (number == HUGE_VAL) {
          if (!put("null", 4)) return false;
          break;
        }
        [[fallthrough]];
      case kSpellNumber: {
        if (room - at < kNumberBytes) return false;
        const size_t bytes = spellNumber(number, out + at);
        if (bytes == 0) return false;
        at += bytes;
        break;
      }
      case kSpellFlag:
        if (!(number == 0 || number == 1) || !(number == 1 ? put("true", 4) : put("false", 5))) return false;
        break;
      case kSpellWord: {
        if (!(number >= 0 && number <= 4294967295.0)) return false;
        const uint32_t word = static_cast<uint32_t>(number);
        if (!putText(word / (kWordBytesMost + 1), word % (kWordBytesMost + 1))) return false;
        break;
      }
      default: return false;
    }
  }
  if (used != numberCount || body == 0) return false;
  spelled->body = body;
  spelled->bodyBytes = at - body;
  if (!put("}", 1)) return false;
  spelled->bytes = at;
  return true;
}

}  // namespace palimpsest
