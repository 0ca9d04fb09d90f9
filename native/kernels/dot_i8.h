// Products with a tile of levels: y[i][o] = sum_c x[i][c] * tile[c][o]. They are exact: x is int16, the tile int8, the
// sums int32 (steps may wrap, but the final result fits). A 64-byte row of the tile is 16 outputs x 4 contraction
// steps.
#pragma once

// What rows of integers are.
enum Factors : int { kQueries, kWeights };

// How many vectors of levels are multiplied by R rows at once: as many as fit in registers beside the sums. Vectors of
// four lanes are loaded one after the other. Taken: registers that unpacking needs.
template <int R, int Taken = 2, int B = 4>
constexpr int vectorsFor() {
  if constexpr (B == 1 || R * B * kSumRegisters + (kLanes == 4 ? 4 : B * kLevelRegisters) <= kRegisters - Taken) return B;
  else return vectorsFor<R, Taken, B / 2>();
}

// kBlockRows: rows that share each load of levels. kUnpackedRows: from this many rows on, the codes of a side are first
// unpacked into a tile (coded.h). Both were chosen by measurement.
#if defined(__AVX512VNNI__)
constexpr int kBlockRows = 6, kUnpackedRows = 1 << 30;
#elif defined(__AVXVNNI__)
constexpr int kBlockRows = 4, kUnpackedRows = 5;
#elif defined(__AVX2__)
constexpr int kBlockRows = 5, kUnpackedRows = 1;
#else
constexpr int kBlockRows = kRegisters == 32 ? 3 : 4, kUnpackedRows = 1;
#endif
constexpr int kManyRows = kBlockRows == 4 && kLanes == 8 ? 3 : kBlockRows;  // four at once are no faster than two pairs

// Calls f(Number<R>, first row) for blocks of rows, all of nearly the same size. Where there are blocks of six, five
// rows are three and two, unless Fives asks for code of their own.
template <bool Fives = false, class F>
INLINE void eachBlock(int n, const F& f) {
  for (int i = 0; i < n;) {
    const int most = n - i <= kBlockRows ? kBlockRows : kManyRows, blocks = (n - i + most - 1) / most, size = (n - i + blocks - 1) / blocks;
    const int rows = Fives || kBlockRows < 6 || size != 5 ? size : n - i == 5 ? 3 : 6;
    repeat<kBlockRows>([&](auto r) MEMBER {
      if constexpr (Fives || kBlockRows < 6 || r.value + 1 != 5) {
        if (rows == r.value + 1) f(Number<r.value + 1>{}, i);
      }
    });
    i += rows;
  }
}

// Sums of products of R rows of integers with B vectors of levels.
template <int R, int B, Factors X>
struct Sums {
  RowDots of[R][B];

  explicit MEMBER Sums(const IntegerRow* x) {
    repeat<R>([&](auto r) MEMBER { repeat<B>([&](auto b) MEMBER { of[r.value][b.value] = startRow(x[r.value].correction); }); });
  }
  // Adds quad q, four contraction steps.
  MEMBER void add(const Bytes* levels, const IntegerRow* x, int q) {
    Levels level[B];
    repeat<B>([&](auto b) MEMBER { level[b.value] = asLevels(levels[b.value]); });
    repeat<R>([&](auto r) MEMBER { addQuad<B, X != kQueries>(of[r.value], level, x[r.value].bytes + q * 8); });
  }
};

// Calls done(row, first output, sums) for kLanes outputs at a time. tile: levels with `bias` added.
template <Factors X, int R, int B, class Done>
INLINE void sumTileBlock(const int8_t* tile, int bias, int quads, size_t rowBytes, int o, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  constexpr int kOutputs = B * kLanes, kPasses = 64 / kOutputs;
  Sums<R, B, X> sums(x);
  for (int q = 0; q < quads; q++) {
    if (q % kPasses == 0) fetch(ahead, (static_cast<size_t>(o / kOutputs) * quads + q) / kPasses);
    Bytes levels[B];
    repeat<B>([&](auto b) MEMBER { levels[b.value] = loadBytes(tile + q * rowBytes + o * 4 + b.value * kVectorBytes) ^ splatByte(kBiasFor<X != kQueries> ^ bias); });
    sums.add(levels, x, q);
  }
  repeat<R>([&](auto r) MEMBER {
    repeat<B>([&](auto b) MEMBER { done(r.value, o + b.value * kLanes, sumsOf(sums.of[r.value][b.value])); });
  });
}

template <Factors X, int R, class Done>
INLINE void sumTile(const int8_t* tile, int bias, int quads, int outputs, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  constexpr int B = vectorsFor<R>();
  const size_t rowBytes = static_cast<size_t>(outputs) * 4;
  int o = 0;
  for (; o + B * kLanes <= outputs; o += B * kLanes) sumTileBlock<X, R, B>(tile, bias, quads, rowBytes, o, x, ahead, done);
  if constexpr (B > 1) {
    for (; o < outputs; o += kLanes) sumTileBlock<X, R, 1>(tile, bias, quads, rowBytes, o, x, ahead, done);
  }
}

template <int R>
static __attribute__((noinline)) void rowsI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, size_t xStride, int32_t* y,
                                             size_t yStride) {
  IntegerRow rows[R];
  for (int r = 0; r < R; r++) splitRow(x + r * xStride, contraction, rows[r]);
  const Ahead nothing = {reinterpret_cast<const uint8_t*>(tile), reinterpret_cast<const uint8_t*>(tile), 0, 0, false};
  sumTile<kQueries, R>(tile, 0, contraction / 4, outputs, rows, nothing, [&](int r, int o, VecI sum) MEMBER { storeBytes(y + r * yStride + o, reinterpret_cast<Bytes>(sum)); });
}

static void dotI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, int32_t* y, size_t yStride) {
  eachBlock(n, [&](auto r, int i) MEMBER { rowsI8<r.value>(tile, contraction, outputs, x + i * xStride, xStride, y + i * yStride, yStride); });
}

// y[0..kLanes) += step * sum, as far as there are outputs. One rounding each, on every instruction set.
INLINE void addScaled(VecI sum, float step, int left, float* y) {
  const VecF part = __builtin_convertvector(sum, VecF) * splat(step);
  if (left >= kLanes) {
    store(y, load(y) + part);
    return;
  }
  alignas(64) float line[kLanes];
  store(line, part);
  for (int i = 0; i < left; i++) y[i] += line[i];
}

template <int R>
static __attribute__((noinline)) void addRowsI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, size_t xStride, const float* steps,
                                                float* y, size_t yStride) {
  IntegerRow rows[R];
  for (int r = 0; r < R; r++) splitRow(x + r * xStride, contraction, rows[r]);
  const Ahead nothing = {reinterpret_cast<const uint8_t*>(tile), reinterpret_cast<const uint8_t*>(tile), 0, 0, false};
  sumTile<kQueries, R>(tile, 0, contraction / 4, (outputs + 15) / 16 * 16, rows, nothing,
                       [&](int r, int o, VecI sum) MEMBER { addScaled(sum, steps[r], outputs - o, y + r * yStride + o); });
}

static void addDotI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, const float* steps, float* y, size_t yStride) {
  eachBlock(n, [&](auto r, int i) MEMBER { addRowsI8<r.value>(tile, contraction, outputs, x + i * xStride, xStride, steps + i, y + i * yStride, yStride); });
  clearUpperHalves();
}
