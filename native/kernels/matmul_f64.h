// The product of two matrices of floats, summed in double precision. A product of two floats is exact in a double, and
// every sum is taken in the order of the contraction, so each instruction set gives the same bits.
#pragma once

constexpr int kDoubles = kLanes / 2;
typedef double VecD __attribute__((vector_size(kDoubles * 8)));
typedef float HalfF __attribute__((vector_size(kDoubles * 4), aligned(4), may_alias));

// Rows [row, row + R) of y, in B vectors of columns from `column` on.
template <int R, int B>
INLINE void matmulBlock(const float* x, int row, const float* m, int inner, int columns, int column, float* y) {
  VecD sum[R][B] = {};
  for (int i = 0; i < inner; i++) {
    VecD of[B];
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) of[b] = __builtin_convertvector(*reinterpret_cast<const HalfF*>(m + static_cast<size_t>(i) * columns + column + b * kDoubles), VecD);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const double factor = x[static_cast<size_t>(row + r) * inner + i];
#pragma GCC unroll 4
      for (int b = 0; b < B; b++) sum[r][b] = sum[r][b] + of[b] * factor;
    }
  }
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) {
      const HalfF rounded = __builtin_convertvector(sum[r][b], HalfF);
      __builtin_memcpy(y + static_cast<size_t>(row + r) * columns + column + b * kDoubles, &rounded, sizeof rounded);
    }
  }
}

// All rows, in B vectors of columns.
template <int B>
static __attribute__((noinline)) void matmulColumns(const float* x, int rows, const float* m, int inner, int columns, int column, float* y) {
  constexpr int kRows = kLanes == 16 ? 8 : 4;
  int row = 0;
  for (; row + kRows <= rows; row += kRows) matmulBlock<kRows, B>(x, row, m, inner, columns, column, y);
  for (; row < rows; row++) matmulBlock<1, B>(x, row, m, inner, columns, column, y);
}

static void matmulF64(const float* x, int rows, const float* m, int inner, int columns, float* y) {
  int column = 0;
  for (; column + 2 * kDoubles <= columns; column += 2 * kDoubles) matmulColumns<2>(x, rows, m, inner, columns, column, y);
  for (; column + kDoubles <= columns; column += kDoubles) matmulColumns<1>(x, rows, m, inner, columns, column, y);
  for (; column < columns; column++) {
    for (int row = 0; row < rows; row++) {
      double sum = 0;
      for (int i = 0; i < inner; i++) sum += static_cast<double>(x[static_cast<size_t>(row) * inner + i]) * m[static_cast<size_t>(i) * columns + column];
      y[static_cast<size_t>(row) * columns + column] = static_cast<float>(sum);
    }
  }
  clearUpperHalves();
}
