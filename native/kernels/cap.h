// Scores and logits that a hyperbolic tangent keeps below a cap. Operations are unfused, so every instruction set gives
// the same bits.
#pragma once

// tanh(x) = x P(x²) / Q(x²) for |x| <= 9, beyond which the answer is the same as at 9: there 1 - tanh(x) is below
// 3.1e-8, which a float cannot say. P and Q, of degree 4 each, are our own minimax fit of tanh(√t) / √t over 0 <= t <=
// 81 by relative error (Remez), 2.1e-8 before coefficients are rounded to floats. All coefficients are positive, so
// nothing cancels: with the rounding of every step the relative error is below 4e-7 (test/unit/native/cap.test.ts tries
// all of the range), and small x come back as they are.
constexpr float kTanhMost = 9.0f;
INLINE VecF hyperbolicTangent(VecF x) {
  x = x < -kTanhMost ? splat(-kTanhMost) : x;
  x = x > kTanhMost ? splat(kTanhMost) : x;
  const VecF t = x * x;
  VecF p = t * 1.3354655475642930e-8f;
  p = p + 2.0609076572171858e-5f;
  p = p * t;
  p = p + 3.4955877021460800e-3f;
  p = p * t;
  p = p + 1.3381025248503581e-1f;
  p = p * t;
  p = p + 1.0f;
  VecF q = t * 7.7765554463552391e-7f;
  q = q + 3.2856341803434511e-4f;
  q = q * t;
  q = q + 2.5876980484731191e-2f;
  q = q * t;
  q = q + 4.6714340837163890e-1f;
  q = q * t;
  q = q + 1.0f;
  return x * p / q;
}

// x <- cap tanh(x / cap). What is no number stays none.
static void capScores(float* x, int count, float cap) {
  const float inverse = 1.0f / cap;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(x + i, hyperbolicTangent(load(x + i) * inverse) * cap);
  if (i < count) {
    VecF v{};
    __builtin_memcpy(&v, x + i, (count - i) * sizeof(float));
    v = hyperbolicTangent(v * inverse) * cap;
    __builtin_memcpy(x + i, &v, (count - i) * sizeof(float));
  }
  clearUpperHalves();
}
