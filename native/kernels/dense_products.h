// Products of float rows with 4- or 8-bit weights: the matrices of a model around attention.
//   y[t][o] = base[t][o] + bias[o] + sum over blocks b of 32 inputs of  step[t][b] * (scale[o][b] * sum(x16 * code) + min[o][b] * sum(x16))
// Rows become int16 per block of 32 (quantizeI16: within 1.5e-5 of the block's largest), and sums of products are exact in int32
// (32 * 255 * 32512 < 2^31). After that, fused multiply-add is used where the hardware has it, so instruction sets differ in the last bits.
// A row gives the same bits alone as among others.
//
//   weights  panels of 16 outputs, each a linear stream of one record per block (the last panel is padded with zeros):
//              wide    [16] float scales, 8 x 64 bytes: byte i of output o in line j is input 4j + i, code = level + 128
//              narrow  [16] half scales, [16] half minima, 4 x 64 bytes: low nibbles are input 4j + i, high nibbles input 16 + 4j + i
//   rows     64 bytes per block, as dot4.h places them
#pragma once

constexpr int kDenseVectors = 16 / kLanes;  // vectors in the outputs of a panel
// How many rows and panels are multiplied at once: as many as the registers hold.
#if defined(__AVXVNNI__)
constexpr int kDenseRows = 3, kDensePanels = 1;
#else
constexpr int kDenseRows = kLanes >= 8 ? 4 : 2, kDensePanels = kLanes == 16 ? 2 : 1;
#endif

static void denseRow(const float* x, int count, const DenseRows& rows, int row) {
  const size_t first = static_cast<size_t>(row) * rows.blocks;
  for (int block = 0; block < rows.blocks; block++) {
    alignas(64) float line[32] = {};
    alignas(64) int16_t whole[32];
    const int left = count - block * 32 < 32 ? count - block * 32 : 32;
    __builtin_memcpy(line, x + block * 32, left * sizeof(float));
    rows.steps[first + block] = quantizeI16(line, 32, whole);
    rows.sums[first + block] = placeRow(whole, 32, rows.bytes + (first + block) * 64);
  }
}

// R rows and P panels. out: R rows of P * 16, without base and bias.
template <int R, int P, bool Wide>
static __attribute__((noinline)) void denseTile(const uint8_t* w, size_t panelBytes, const DenseRows& x, int row, float* out) {
  constexpr int V = kDenseVectors;
  constexpr size_t kRecord = Wide ? kDenseWideRecord : kDenseNarrowRecord;
  const int blocks = x.blocks;
  const int8_t* bytes = x.bytes + static_cast<size_t>(row) * blocks * 64;
  const float* steps = x.steps + static_cast<size_t>(row) * blocks;
  const int32_t* sums = x.sums + static_cast<size_t>(row) * blocks;
  VecF total[R][P][V] = {};
  for (int block = 0; block < blocks; block++, w += kRecord, bytes += 64) {
    // A single row reads each weight once, so the weights are prefetched in the order of addresses.
    if (R == 1) {
      for (size_t line = 0; line < kRecord; line += 64) __builtin_prefetch(w + kDenseAhead + line);
    }
    RowDots sum[R][P * V];
    repeat<R>([&](auto r) MEMBER {
      const RowDots start = startRow(Wide ? -kBias * sums[r.value * blocks + block] : 0);
      repeat<P * V>([&](auto i) MEMBER { sum[r.value][i.value] = start; });
    });
    const uint8_t* codes = w + kRecord - (Wide ? 512 : 256);
    repeat<8>([&](auto line) MEMBER {
      Levels weight[P * V];
      repeat<P * V>([&](auto i) MEMBER {
        const Bytes v = loadBytes(codes + i.value / V * panelBytes + i.value % V * kVectorBytes + line.value % (Wide ? 8 : 4) * 64);
        weight[i.value] = Wide ? asLevels(v ^ splatByte(kBias ^ 128)) : nibblesOf(v, line.value >= 4);
      });
      repeat<R>([&](auto r) MEMBER { addQuad<P * V>(sum[r.value], weight, bytes + static_cast<size_t>(r.value) * blocks * 64 + line.value * 8); });
    });
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) {
        const uint8_t* scales = w + p * panelBytes;
        const VecF scale = Wide ? load(reinterpret_cast<const float*>(scales) + v * kLanes) : loadHalf(reinterpret_cast<const uint16_t*>(scales) + v * kLanes);
        const VecF least = Wide ? VecF{} : loadHalf(reinterpret_cast<const uint16_t*>(scales) + 16 + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          VecF part = __builtin_convertvector(sumsOf(sum[r][p * V + v]), VecF);
          if constexpr (Wide) part = part * scale;
          else part = mulAdd(part, scale, least * splat(static_cast<float>(sums[r * blocks + block])));
          total[r][p][v] = mulAdd(part, splat(steps[r * blocks + block]), total[r][p][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) store(out + (r * P + p) * 16 + v * kLanes, total[r][p][v]);
    }
  }
}

// Multiplies R rows from `row` by P panels from `panel`.
template <int R, int P, bool Wide>
INLINE void denseStore(const DenseWeights& w, int panel, const DenseRows& x, int row, const float* base, float* y) {
  alignas(64) float out[R * P * 16];
  const size_t panelBytes = (Wide ? kDenseWideRecord : kDenseNarrowRecord) * static_cast<size_t>(x.blocks);
  denseTile<R, P, Wide>(w.panels + panel * panelBytes, panelBytes, x, row, out);
  const int first = panel * 16;
  const int count = w.outputs - first < P * 16 ? w.outputs - first : P * 16;
  for (int r = 0; r < R; r++) {
    float* line = out + r * P * 16;
    const size_t at = static_cast<size_t>(row + r) * w.outputs + first;
    if (w.bias) {
      for (int o = 0; o < P * 16; o++) line[o] += w.bias[first + o];
    }
    if (base) {
      for (int o = 0; o < count; o++) line[o] += base[at + o];
    }
    __builtin_memcpy(y + at, line, count * sizeof(float));
  }
}

template <int P, bool Wide>
INLINE void densePanelRows(const DenseWeights& w, int panel, const DenseRows& x, int n, const float* base, float* y) {
  int row = 0;
  for (; row + kDenseRows <= n; row += kDenseRows) denseStore<kDenseRows, P, Wide>(w, panel, x, row, base, y);
  for (; row < n; row++) denseStore<1, P, Wide>(w, panel, x, row, base, y);
}

template <bool Wide>
INLINE void denseAll(const DenseWeights& w, int from, int to, const DenseRows& x, int n, const float* base, float* y) {
  int panel = from;
  if constexpr (kDensePanels > 1) {
    // A single row reads one panel after another, as a linear stream.
    for (; n > 1 && panel + kDensePanels <= to; panel += kDensePanels) densePanelRows<kDensePanels, Wide>(w, panel, x, n, base, y);
  }
  for (; panel < to; panel++) densePanelRows<1, Wide>(w, panel, x, n, base, y);
}

static void densePanels(const DenseWeights& w, int from, int to, const DenseRows& x, int n, const float* base, float* y) {
  if (w.wide) denseAll<true>(w, from, to, x, n, base, y);
  else denseAll<false>(w, from, to, x, n, base, y);
  clearUpperHalves();
}

// y = x / sqrt(mean(x²) + epsilon) * gain
static void denseNorm(const float* x, const float* gain, float epsilon, int count, float* y) {
  const float inverse = 1.0f / __builtin_sqrtf(dot(x, x, count) / static_cast<float>(count) + epsilon);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i) * inverse * load(gain + i));
  for (; i < count; i++) y[i] = x[i] * inverse * gain[i];
  clearUpperHalves();
}

// gate <- gate * sigmoid(z) * up, where z = gate, or for GELU z = 2 sqrt(2/pi) (gate + 0.044715 gate^3), since 1 + tanh(z/2) = 2 sigmoid(z).
// The exponential is taken of -|z|, which cannot overflow.
static void denseGate(float* gate, const float* up, int count, bool gelu) {
  for (int i = 0; i < count; i += kLanes) {
    const int left = count - i < kLanes ? count - i : kLanes;
    VecF g{}, u{};
    if (left == kLanes) {
      g = load(gate + i);
      u = load(up + i);
    } else {
      __builtin_memcpy(&g, gate + i, left * sizeof(float));
      __builtin_memcpy(&u, up + i, left * sizeof(float));
    }
    const VecF z = gelu ? (g + g * g * g * 0.044715f) * 1.5957691216057308f : g;
    VecF power[1] = {magnitude(z) * -1.44269504088896341f};
    powersOfTwo(power);
    const VecF one = splat(1.0f);
    const VecF sigmoid = (z < 0.0f ? power[0] : one) / (one + power[0]);
    g = g * sigmoid * u;
    if (left == kLanes) store(gate + i, g);
    else __builtin_memcpy(gate + i, &g, left * sizeof(float));
  }
  clearUpperHalves();
}
