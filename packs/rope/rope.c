// Rotary position embedding of rows whose first `width` channels are rotated, a half with the other:
// (a, b) -> (a cos - b sin, a sin + b cos). Parameters of a token are the cosines, then the sines. Each product and sum
// is rounded by itself, as in native/kernels/rope.h, so the bits are the same.
#include "../pack.h"

uint32_t pack_abi(void) { return 1; }

int32_t pack_apply(float* x, const float* parameters, uint32_t tokens, uint32_t dim, uint32_t width) {
  if (width % 2 != 0 || width > dim) return 1;
  const uint32_t pairs = width / 2;
  for (uint32_t t = 0; t < tokens; t++) {
    float* lower = x + t * dim;
    float* upper = lower + pairs;
    const float* cosines = parameters + t * width;
    const float* sines = cosines + pairs;
    uint32_t i = 0;
    for (; i + 4 <= pairs; i += 4) {
      const v128_t a = wasm_v128_load(lower + i), b = wasm_v128_load(upper + i);
      const v128_t c = wasm_v128_load(cosines + i), s = wasm_v128_load(sines + i);
      wasm_v128_store(lower + i, wasm_f32x4_sub(wasm_f32x4_mul(a, c), wasm_f32x4_mul(b, s)));
      wasm_v128_store(upper + i, wasm_f32x4_add(wasm_f32x4_mul(a, s), wasm_f32x4_mul(b, c)));
    }
#pragma clang loop vectorize(disable) unroll(disable)
    for (; i < pairs; i++) {
      const float a = lower[i], b = upper[i];
      lower[i] = a * cosines[i] - b * sines[i];
      upper[i] = a * sines[i] + b * cosines[i];
    }
  }
  return 0;
}
