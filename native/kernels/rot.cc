// The part of the rot family that is compiled once: latents need it, because they share the levels of rot4.
#include "kernels.h"
#include "tables.gen.h"

namespace palimpsest {

float rot4Worth(int8_t exponent) { return exponent == -128 ? 0.0f : kScaleValues[exponent + 127] / static_cast<float>(kRot4Divisor); }

}  // namespace palimpsest
