// What hot.cc and cold.cc begin with.
#pragma once
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
