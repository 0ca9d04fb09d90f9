// Written by scripts/generate-layout.ts. Add a file to this folder, not a line to this one.
#pragma once
#include "band.h"
#include "f16.h"
#include "fp8.h"
#include "higgs.h"
#include "int3.h"
#include "kivi.h"
#include "nuq.h"
#include "prod.h"
#include "q8.h"
#include "rot.h"
#include "trellis.h"
#include "turbo.h"

// Calls f with the family of a format. Numbers are checked where they come in (isFormat); any other is a fault of ours and ends the process.
template <class Call>
INLINE void withFormat(int format, const Call& f) {
  switch (format) {
    case kBand3: case kBand2: return f(Band{});
    case kF16: return f(F16{});
    case kFp8: return f(Fp8{});
    case kHiggs4: case kHiggs3: case kHiggs2: return f(Higgs{});
    case kInt3: return f(Int3{});
    case kKivi8: case kKivi4: case kKivi2: case kSquat4: case kSquat2: return f(Kivi{});
    case kNuq4: case kNuq3: case kNuq2: return f(Nuq{});
    case kTurbo4Prod: case kTurbo3Prod: case kTurbo2Prod: return f(Prod{});
    case kQ8: return f(Q8{});
    case kRotq4: case kRotq3: case kRotq2: case kRot4: case kRot3: case kRot2: case kRot1: return f(Rot{});
    case kTrellis4: case kTrellis3: case kTrellis2: case kTrellis1: return f(Trellis{});
    case kTurbo4: case kTurbo3: case kTurbo2: return f(Turbo{});
    default: __builtin_trap();
  }
}
static_assert(HasDemote<Kivi>, "a nested family is demoted on codes");
static_assert(HasDemote<Trellis>, "a nested family is demoted on codes");
