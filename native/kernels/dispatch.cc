// Chooses the kernels that this process uses by what its CPU supports.
#include "cpu.h"
#include "kernels.h"

// A build may leave out sets (native/binding.gyp) and then names those that it has; one that names none has all of its
// processor.
#if !defined(PALIMPSEST_NAMES_ISAS)
#define PALIMPSEST_HAS_AVX2
#define PALIMPSEST_HAS_AVX2VNNI
#define PALIMPSEST_HAS_AVX512VNNI
#define PALIMPSEST_HAS_NEON
#define PALIMPSEST_HAS_NEONDOT
#define PALIMPSEST_HAS_NEONI8MM
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace palimpsest {

extern const Kernels kKernels_scalar;
// What a build has not is declared all the same: nothing refers to it then.
#if defined(__x86_64__)
extern const Kernels kKernels_avx2;
extern const Kernels kKernels_avx2vnni;
extern const Kernels kKernels_avx512vnni;
#elif defined(__aarch64__)
extern const Kernels kKernels_neon;
extern const Kernels kKernels_neondot;
extern const Kernels kKernels_neoni8mm;
#elif defined(__wasm_simd128__)
extern const Kernels kKernels_wasmsimd;
#endif

#if defined(__x86_64__)
static const CpuFeatures& cpu() {
  static const CpuFeatures features = cpuFeatures();
  return features;
}
#endif

#if defined(__aarch64__)
static bool hasDotProduct() {
#if defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP of the kernel's user interface
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
#elif defined(__APPLE__)
  return true;  // the first Mac with such a processor, the M1, is an ARMv8.4, which has them
#else
  return false;
#endif
}

// Products of matrices of bytes, beside dot products.
static bool hasMatrixProducts() {
#if defined(__linux__)
  constexpr unsigned long kI8mm = 1ul << 13;  // HWCAP2_I8MM, likewise
  return hasDotProduct() && (getauxval(AT_HWCAP2) & kI8mm) != 0;
#elif defined(__APPLE__)
  int has = 0;  // from the M2 on; a system that does not know the name answers with an error
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}
#endif

const Kernels* kernelsFor(Isa isa) {
  switch (isa) {
    case kScalar:
      return &kKernels_scalar;
#if defined(__x86_64__)
#if defined(PALIMPSEST_HAS_AVX2)
    case kAvx2:
      return cpu().avx2 ? &kKernels_avx2 : nullptr;
#endif
#if defined(PALIMPSEST_HAS_AVX2VNNI)
    case kAvx2vnni:
      return cpu().avxVnni ? &kKernels_avx2vnni : nullptr;
#endif
#if defined(PALIMPSEST_HAS_AVX512VNNI)
    case kAvx512vnni:
      return cpu().avx512vnni ? &kKernels_avx512vnni : nullptr;
#endif
#elif defined(__aarch64__)
#if defined(PALIMPSEST_HAS_NEON)
    case kNeon:  // part of every 64-bit ARM
      return &kKernels_neon;
#endif
#if defined(PALIMPSEST_HAS_NEONDOT)
    case kNeondot:
      return hasDotProduct() ? &kKernels_neondot : nullptr;
#endif
#if defined(PALIMPSEST_HAS_NEONI8MM)
    case kNeoni8mm:
      return hasMatrixProducts() ? &kKernels_neoni8mm : nullptr;
#endif
#elif defined(__wasm_simd128__)
    case kWasmSimd128:  // an engine without SIMD refuses the whole module, so it need not be checked
      return &kKernels_wasmsimd;
#endif
    default:
      return nullptr;
  }
}

const Kernels* bestKernels() {
  static const Kernels* const best = [] {
    for (Isa isa : kIsasBestFirst) {
      if (const Kernels* kernels = kernelsFor(isa)) return kernels;
    }
    return static_cast<const Kernels*>(nullptr);  // never reached: every build has the scalar kernels
  }();
  return best;
}

}  // namespace palimpsest
