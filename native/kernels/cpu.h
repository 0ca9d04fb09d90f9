// What an x86-64 CPU has, asked of itself. gcc has __builtin_cpu_supports for it, but the answer lies in a library of
// the compiler's, and in those that are linked for other systems it is missing or always no.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

namespace palimpsest {

struct CpuFeatures {
  bool sse41, sse42, sha, avx2, avxVnni, avx512, avx512vnni;
};

// Bits as in Intel's Software Developer's Manual, CPUID. `avx2` includes FMA and F16C, `avx512` its parts F, BW, DQ and
// VL. Registers count only if the system saves them (XCR0: 2 SSE and AVX, 5 to 7 those of AVX-512).
inline CpuFeatures cpuFeatures() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return {};
  const auto has = [](unsigned bits, int bit) { return (bits >> bit & 1) != 0; };
  const unsigned first = ecx;
  unsigned saved = 0;
  if (has(first, 27)) {
    unsigned high;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  }
  unsigned seventh = 0, seventhC = 0, subleaves = 0, vnni = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    seventh = ebx;
    seventhC = ecx;
    subleaves = eax;
  }
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) vnni = eax;
  CpuFeatures cpu = {};
  cpu.sse41 = has(first, 19);
  cpu.sse42 = has(first, 20);
  cpu.sha = has(seventh, 29);
  cpu.avx2 = (saved & 0x6) == 0x6 && has(first, 28) && has(first, 12) && has(first, 29) && has(seventh, 5);
  cpu.avxVnni = cpu.avx2 && has(vnni, 4);
  cpu.avx512 = cpu.avx2 && (saved & 0xe6) == 0xe6 && has(seventh, 16) && has(seventh, 17) && has(seventh, 30) && has(seventh, 31);
  cpu.avx512vnni = cpu.avx512 && has(seventhC, 11);
  return cpu;
}

}  // namespace palimpsest
#endif
