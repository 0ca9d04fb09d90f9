// Rotary position embedding in place: (a, b) -> (a cos - b sin, a sin + b cos). Unfused, so every instruction set gives
// the same bits.
#pragma once

static void rope(float* x, int tokens, int heads, int headDim, int rotaryDim, const float* cos, const float* sin, bool interleaved) {
  const int pairs = rotaryDim / 2;
  for (int t = 0; t < tokens; t++) {
    const float* c = cos + static_cast<size_t>(t) * pairs;
    const float* s = sin + static_cast<size_t>(t) * pairs;
    for (int h = 0; h < heads; h++) {
      float* row = x + (static_cast<size_t>(t) * heads + h) * headDim;
      int i = 0;
      if (!interleaved) {
        float* upper = row + pairs;
        for (; i + kLanes <= pairs; i += kLanes) {
          const VecF a = load(row + i), b = load(upper + i), cv = load(c + i), sv = load(s + i);
          store(row + i, a * cv - b * sv);
          store(upper + i, a * sv + b * cv);
        }
        for (; i < pairs; i++) {
          const float a = row[i], b = upper[i];
          row[i] = a * c[i] - b * s[i];
          upper[i] = a * s[i] + b * c[i];
        }
      } else {
        for (; i < pairs; i++) {
          const float a = row[2 * i], b = row[2 * i + 1];
          row[2 * i] = a * c[i] - b * s[i];
          row[2 * i + 1] = a * s[i] + b * c[i];
        }
      }
    }
  }
}
