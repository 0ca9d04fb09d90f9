// The kernels that a decode step or a prompt waits for, for one instruction set. Compiled once per set by
// native/binding.gyp, which names it in PALIMPSEST_ISA (scalar, avx2, avx2vnni, avx512vnni, neon, neondot, neoni8mm or
// wasmsimd), in PALIMPSEST_COLD the set whose cold kernels go with it (cold.cc), and passes the matching compiler
// flags. No standard header with inline functions may be included here or in cold.cc: of the copies of such a function
// the linker might keep, for the whole binary, the one compiled to instructions that not every CPU has. For the same
// reason everything below is static.
#include "isa.h"

namespace palimpsest {
namespace {

#include "families.h"
#include "gemm_i8.h"
#include "latent_codec.h"
#include "dense_products.h"

[[maybe_unused]] constexpr Isa scalar = kScalar, avx2 = kAvx2, avx2vnni = kAvx2vnni, avx512vnni = kAvx512vnni, neon = kNeon, neondot = kNeondot,
              neoni8mm = kNeoni8mm, wasmsimd = kWasmSimd128;

}  // namespace

// Each pointer is set by name, so that two of the same type cannot be swapped.
#define NAMED(kernel) .kernel = kernel

extern const ColdKernels PALIMPSEST_JOIN(kCold_, PALIMPSEST_COLD);
extern const Kernels PALIMPSEST_JOIN(kKernels_, PALIMPSEST_ISA);
const Kernels PALIMPSEST_JOIN(kKernels_, PALIMPSEST_ISA) = {
    .isa = PALIMPSEST_ISA,
    .name = PALIMPSEST_TEXT(PALIMPSEST_ISA),
    .cold = &PALIMPSEST_JOIN(kCold_, PALIMPSEST_COLD),
    NAMED(dotF16),
    NAMED(dotI8),
    NAMED(addDotI8),
    NAMED(rotate),
    NAMED(quantizeI16),
    NAMED(softmaxPage),
    NAMED(capScores),
    NAMED(axpy),
    NAMED(scaleRow),
    NAMED(dot),
    NAMED(toHalf),
    NAMED(fromHalf),
    NAMED(powers),
    NAMED(blendRow),
    NAMED(addShares),
    NAMED(integerRow),
    NAMED(attendPage),
    NAMED(attendRun),
    NAMED(mixPage),
    NAMED(gemmI8),
    NAMED(mixLatent),
    NAMED(denseRow),
    NAMED(densePanels),
    NAMED(denseNorm),
    NAMED(denseGate),
};

}  // namespace palimpsest
