// The kernels that no decode step waits for (ColdKernels). Compiled once for each set of instructions that they differ
// in, which PALIMPSEST_COLD names (scalar, avx2, avx512, neon or wasmsimd).
#include "isa.h"

namespace palimpsest {
namespace {

#include "families.h"
#include "chosen.h"
#include "rope.h"
#include "matmul_f64.h"
#include "gemm_i8.h"
#include "latent_codec.h"
#include "residuals.h"
#include "pack_weights.h"

}  // namespace

#define NAMED(kernel) .kernel = kernel

extern const ColdKernels PALIMPSEST_JOIN(kCold_, PALIMPSEST_COLD);
const ColdKernels PALIMPSEST_JOIN(kCold_, PALIMPSEST_COLD) = {
    NAMED(encode),
    NAMED(writeRow),
    NAMED(demote),
    NAMED(decode),
    NAMED(decodeRows),
    NAMED(levels),
    NAMED(isSound),
    NAMED(rotateLatent),
    NAMED(encodeLatent),
    NAMED(unpackLatent),
    NAMED(demoteLatent),
    NAMED(decodeResiduals),
    NAMED(roundToLevels),
    NAMED(rope),
    NAMED(matmulF64),
    NAMED(packWeights),
};

}  // namespace palimpsest
