// All kernels for one instruction set. Compiled once per set by native/binding.gyp, which names it in PALIMPSEST_ISA
// (scalar, avx2, avx2vnni, avx512, avx512vnni, neon, neondot or wasmsimd) and passes the matching compiler flags.
// No standard header with inline functions may be included here: of the copies of such a function the linker might keep, for
// the whole binary, the one compiled to instructions that not every CPU has. For the same reason everything below is static.
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#include "kernels.h"
#include "tables.gen.h"

#define PALIMPSEST_JOIN_(a, b) a##b
#define PALIMPSEST_JOIN(a, b) PALIMPSEST_JOIN_(a, b)
#define PALIMPSEST_TEXT_(a) #a
#define PALIMPSEST_TEXT(a) PALIMPSEST_TEXT_(a)

namespace palimpsest {
namespace {

#include "vector.h"
#include "repeat.h"
#include "half.h"
#include "dot4.h"
#include "ahead.h"
#include "dot_f16.h"
#include "dot_i8.h"
#include "planes.h"
#include "rotate.h"
#include "softmax.h"
#include "cap.h"
#include "row_ops.h"
#include "../formats/ops.h"
#include "coded.h"
#include "codes.h"
#include "packed.h"
#include "encode_rot.h"
#include "trellis.h"
#include "decode_rot.h"
#include "attend_page.h"
#include "rope.h"
#include "gemm_i8.h"
#include "latent_codec.h"
#include "dense_products.h"
#include "residuals.h"

[[maybe_unused]] constexpr Isa scalar = kScalar, avx2 = kAvx2, avx2vnni = kAvx2vnni, avx512 = kAvx512, avx512vnni = kAvx512vnni, neon = kNeon, neondot = kNeondot,
              wasmsimd = kWasmSimd128;

}  // namespace

// Each pointer is set by name, so that two of the same type cannot be swapped.
#define NAMED(kernel) .kernel = kernel

extern const Kernels PALIMPSEST_JOIN(kKernels_, PALIMPSEST_ISA);
const Kernels PALIMPSEST_JOIN(kKernels_, PALIMPSEST_ISA) = {
    .isa = PALIMPSEST_ISA,
    .name = PALIMPSEST_TEXT(PALIMPSEST_ISA),
    NAMED(dotF16),
    NAMED(dotI8),
    NAMED(rotate),
    NAMED(quantizeI16),
    NAMED(softmaxPage),
    NAMED(capScores),
    NAMED(axpy),
    NAMED(scaleRow),
    NAMED(dot),
    NAMED(toHalf),
    NAMED(fromHalf),
    NAMED(rope),
    NAMED(powers),
    NAMED(blendRow),
    NAMED(addShares),
    NAMED(integerRow),
    NAMED(attendPage),
    NAMED(attendRun),
    NAMED(mixPage),
    NAMED(encode),
    NAMED(writeRow),
    NAMED(demote),
    NAMED(decode),
    NAMED(levels),
    NAMED(isSound),
    NAMED(gemmI8),
    NAMED(rotateLatent),
    NAMED(encodeLatent),
    NAMED(unpackLatent),
    NAMED(demoteLatent),
    NAMED(mixLatent),
    NAMED(decodeResiduals),
    NAMED(roundToLevels),
    NAMED(denseRow),
    NAMED(densePanels),
    NAMED(denseNorm),
    NAMED(denseGate),
};

}  // namespace palimpsest
