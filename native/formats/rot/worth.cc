// The part of the rot family that is compiled once: latents need it, because they share its levels.
#include "kernels.h"
#include "tables.gen.h"

namespace palimpsest {

float rotWorth(int format, int8_t exponent) {
  return exponent == -128 ? 0.0f : kScaleValues[exponent + 127] / static_cast<float>(format == kRot4 ? kRot4Divisor : kRot3Divisor);
}

}  // namespace palimpsest
