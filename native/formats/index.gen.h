// Written by scripts/generate-layout.ts. Add a folder to this one, not a line to this file.
#pragma once
#include "band/band.h"
#include "f16/f16.h"
#include "kivi/kivi.h"
#include "q8/q8.h"
#include "rot/rot.h"
#include "trellis/trellis.h"

// Calls f with the family of a format. Numbers are checked where they come in (isFormat); any other is a fault of ours
// and ends the process.
template <class Call>
INLINE void withFormat(int format, const Call& f) {
  switch (format) {
    case kBand3: case kBand2: return f(Band{});
    case kF16: return f(F16{});
    case kKivi4: case kKivi2: return f(Kivi{});
    case kQ8: return f(Q8{});
    case kRot4: case kRot3: case kRot2: case kRot1: return f(Rot{});
    case kTrellis4: case kTrellis3: case kTrellis2: case kTrellis1: return f(Trellis{});
    default: __builtin_trap();
  }
}
static_assert(HasDemote<Kivi>, "a nested family is demoted on codes");
static_assert(HasDemote<Rot>, "a nested family is demoted on codes");
static_assert(HasDemote<Trellis>, "a nested family is demoted on codes");
