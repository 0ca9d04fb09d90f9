// x <- H*D*x and back. The order of operations is that of native/reference/rotation.ts, so every instruction set gives
// the same bits: signs; butterflies at distance 1, 2, 4, ...: (a, b) -> (a + b, a - b); for d = 96 and 80 then a dense
// sum over the 12 or 20 blocks, block 0 first; one multiplication by float32(1/sqrt d). H is symmetric, so the inverse
// is the same with the signs last.
#pragma once

// partner + v, with v negated in the lanes whose number has that bit. A product with 1 or -1 is exact, so fusing
// changes no bit.
template <int Bit>
INLINE VecF addSigned(VecF partner, VecF v) {
#if defined(__AVX2__) || defined(__aarch64__)
  const VecF one = splat(1.0f);
  return mulAdd(v, (iota() & Bit) != 0 ? -one : one, partner);
#else
  constexpr int kToSign = Bit == 1 ? 31 : Bit == 2 ? 30 : Bit == 4 ? 29 : 28;
  return partner + fromBits(bits(v) ^ ((iota() & Bit) << kToSign));
#endif
}

// Butterflies at distance 1, 2, 4, 8 within a vector: exchange partners, negate the upper one of each pair, add.
INLINE VecF butterfly1(VecF v) {
#if defined(__AVX512F__)
  const VecI partner = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
#elif defined(__AVX2__)
  const VecI partner = {1, 0, 3, 2, 5, 4, 7, 6};
#else
  const VecI partner = {1, 0, 3, 2};
#endif
  return addSigned<1>(shuffled(v, partner), v);
}
INLINE VecF butterfly2(VecF v) {
#if defined(__AVX512F__)
  const VecI partner = {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13};
#elif defined(__AVX2__)
  const VecI partner = {2, 3, 0, 1, 6, 7, 4, 5};
#else
  const VecI partner = {2, 3, 0, 1};
#endif
  return addSigned<2>(shuffled(v, partner), v);
}
INLINE VecF butterfly4(VecF v) {
#if defined(__AVX512F__)
  const VecI partner = {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11};
#elif defined(__AVX2__)
  const VecI partner = {4, 5, 6, 7, 0, 1, 2, 3};
#else
  const VecI partner = {0, 1, 2, 3};  // never called: distance 4 is between registers here
#endif
  return addSigned<4>(shuffled(v, partner), v);
}
INLINE VecF butterfly8(VecF v) {
#if defined(__AVX512F__)
  const VecI partner = {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7};
  return addSigned<8>(shuffled(v, partner), v);
#else
  return v;
#endif
}

// Butterflies at distance 1 .. D/2 over D floats held in D / kLanes registers.
template <int D>
INLINE void hadamard(VecF (&v)[D / kLanes]) {
  constexpr int kCount = D / kLanes;
#pragma GCC unroll 16
  for (int i = 0; i < kCount; i++) {
    v[i] = butterfly2(butterfly1(v[i]));
    if constexpr (kLanes > 4) v[i] = butterfly4(v[i]);
    if constexpr (kLanes > 8) v[i] = butterfly8(v[i]);
  }
#pragma GCC unroll 6
  for (int half = 1; half < kCount; half *= 2) {
#pragma GCC unroll 32
    for (int pair = 0; pair < kCount / 2; pair++) {
      const int j = pair / half * 2 * half + pair % half;
      const VecF a = v[j], b = v[j + half];
      v[j] = a + b;
      v[j + half] = a - b;
    }
  }
}

// float32(1/sqrt d)
constexpr float kNorm64 = 0.125f, kNorm80 = 0.11180339753627777f, kNorm96 = 0.10206207633018494f, kNorm128 = 0.08838834613561630f,
                kNorm256 = 0.0625f;

template <int D>
static void rotatePowerOfTwo(float* x, float norm, bool inverse) {
  VecF v[D / kLanes];
  for (int i = 0; i < D / kLanes; i++) {
    v[i] = load(x + i * kLanes);
    if (!inverse) v[i] = v[i] * load(kRotationSigns + i * kLanes);
  }
  hadamard<D>(v);
  for (int i = 0; i < D / kLanes; i++) {
    v[i] = v[i] * norm;
    if (inverse) v[i] = v[i] * load(kRotationSigns + i * kLanes);
    store(x + i * kLanes, v[i]);
  }
}

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t FourI __attribute__((vector_size(16)));

INLINE Four butterflies4(Four v) {
  const FourI flip1 = {0, INT32_MIN, 0, INT32_MIN}, flip2 = {0, 0, INT32_MIN, INT32_MIN};
  const FourI by1 = {1, 0, 3, 2}, by2 = {2, 3, 0, 1};
  v = shuffled(v, by1) + reinterpret_cast<Four>(reinterpret_cast<FourI>(v) ^ flip1);
  return shuffled(v, by2) + reinterpret_cast<Four>(reinterpret_cast<FourI>(v) ^ flip2);
}

// Multiplies by H_Blocks (x) H_Inner, Inner 4 or 8: butterflies inside each block, then the dense sum over blocks.
template <int Blocks, int Inner>
INLINE void rotateProduct(float* x, const int8_t (&matrix)[Blocks][Blocks], float norm, bool inverse) {
  constexpr int kFours = Inner / 4;
  Four v[Blocks][kFours];
  for (int b = 0; b < Blocks; b++) {
    for (int i = 0; i < kFours; i++) {
      const int at = b * Inner + i * 4;
      v[b][i] = *reinterpret_cast<Four*>(x + at);
      if (!inverse) v[b][i] = v[b][i] * *reinterpret_cast<const Four*>(kRotationSigns + at);
      v[b][i] = butterflies4(v[b][i]);
    }
    if constexpr (kFours == 2) {
      const Four low = v[b][0], high = v[b][1];
      v[b][0] = low + high;
      v[b][1] = low - high;
    }
  }
  // The loops are unrolled so that the compiler knows every sign. Column 0 of both matrices is all ones.
#pragma GCC unroll 20
  for (int row = 0; row < Blocks; row++) {
#pragma GCC unroll 2
    for (int i = 0; i < kFours; i++) {
      Four sum = v[0][i];
#pragma GCC unroll 20
      for (int b = 1; b < Blocks; b++) sum = matrix[row][b] > 0 ? sum + v[b][i] : sum - v[b][i];
      sum = sum * norm;
      const int at = row * Inner + i * 4;
      if (inverse) sum = sum * *reinterpret_cast<const Four*>(kRotationSigns + at);
      *reinterpret_cast<Four*>(x + at) = sum;
    }
  }
}

static void rotate(float* x, int n, size_t stride, int d, bool inverse) {
  for (int i = 0; i < n; i++) {
    float* row = x + i * stride;
    switch (d) {
      case 64: rotatePowerOfTwo<64>(row, kNorm64, inverse); break;
      case 80: rotateProduct<20, 4>(row, kHadamard20, kNorm80, inverse); break;
      case 96: rotateProduct<12, 8>(row, kHadamard12, kNorm96, inverse); break;
      case 128: rotatePowerOfTwo<128>(row, kNorm128, inverse); break;
      case 256: rotatePowerOfTwo<256>(row, kNorm256, inverse); break;
      default: __builtin_trap();
    }
  }
  clearUpperHalves();
}
