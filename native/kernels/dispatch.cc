// Chooses the kernels that this process uses by what its CPU supports.
#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace palimpsest {

extern const Kernels kKernels_scalar;
#if defined(__x86_64__)
extern const Kernels kKernels_avx2;
extern const Kernels kKernels_avx2vnni;
extern const Kernels kKernels_avx512;
extern const Kernels kKernels_avx512vnni;
#elif defined(__aarch64__)
extern const Kernels kKernels_neon;
extern const Kernels kKernels_neondot;
#elif defined(__wasm_simd128__)
extern const Kernels kKernels_wasmsimd;
#endif

#if defined(__x86_64__)
// AVX-VNNI is leaf 7, subleaf 1, bit 4 of eax; __builtin_cpu_supports of gcc 12 does not know it. It uses the registers of AVX2.
static bool hasAvxVnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 4) != 0;
}
#endif

#if defined(__aarch64__)
static bool hasDotProduct() {
#if defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP of the kernel's user interface
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
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
    case kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") ? &kKernels_avx2 : nullptr;
    case kAvx2vnni:
      return kernelsFor(kAvx2) && hasAvxVnni() ? &kKernels_avx2vnni : nullptr;
    case kAvx512:
      return kernelsFor(kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &kKernels_avx512
                 : nullptr;
    case kAvx512vnni:
      return kernelsFor(kAvx512) && __builtin_cpu_supports("avx512vnni") ? &kKernels_avx512vnni : nullptr;
#elif defined(__aarch64__)
    case kNeon:  // part of every 64-bit ARM
      return &kKernels_neon;
    case kNeondot:
      return hasDotProduct() ? &kKernels_neondot : nullptr;
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
