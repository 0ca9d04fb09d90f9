// Products of float rows with packed weights: the matrices of a model around attention.
//   y[t][o] = base[t][o] + bias[o] + sum over blocks b of 32 inputs of  step[t][b] * (scale[o][b] * sum(x16 * (code -
//   middle)) + min[o][b] * sum(x16))
// Rows become int16 per block of 32 (quantizeI16: within 1.5e-5 of the block's largest), or int8 where one plane is
// asked for (within 3.9e-3; a byte takes one product where two planes take two), and sums of products are exact
// in int32 (32 * 255 * 32512 < 2^31). After that, fused multiply-add is used where the hardware has it, so instruction
// sets differ in the last bits. A row gives the same bits alone as among others. A block with NaN or infinity has the
// step NaN, and with it all that the row is multiplied by.
//
//   weights  panels of 16 outputs, each a linear stream of records (DENSE_FORMS in layout.ts). A record is a head, and
//   then per block of 32 inputs
//            the scales and the codes; scales of 32 bytes come before the codes of all blocks of a record, or of two
//            where a record is one
//            (denseTogether). So codes begin at multiples of 64. The last panel is padded with
//            rows of zeros, and the inputs of `wide` with zeros.
//              form         head                scales of a block                     middle
//              wide                             [16] float scale                      128
//              Q8_0                             [16] half scale                       128
//              Q4_0, Q5_0                       [16] half scale                       8, 16
//              Q4_1, Q5_1                       [16] half scale, [16] half minimum    0
//              Q4_K, Q5_K   [16] half d, e      [16] byte s, [16] byte t              0; scale = d * s, minimum = -e *
//              t
//              Q6_K         [16] half d      [2][16] byte s, of 16 inputs each     32; scale = d * s. The head is
//              filled up to 64 bytes.
//            Codes are lines of 64 bytes, in which each output has four. With i from 0 to 3:
//              8 bits       line j (0-7): byte i is input 4j + i
//              4 to 6 bits  line j (0-3): the low nibble of byte i is input 4j + i, the high one input 16 + 4j + i
//              5 bits       and a line with bit 4: bit j of byte i is that of input 4j + i
//              6 bits       and two lines with bits 4 and 5: bits 2j and 2j + 1 of byte i are those of input 4j + i, in
//              the second line of 16 + 4j + i
//   rows     64 bytes per block, as dot4.h places them. Of one plane, where bytes are multiplied: 32 per block, in the
//            first half of the room of the row. Elsewhere integers of 8 bits stand where those of 16 do.
#pragma once

constexpr int kDenseVectors = kDensePanel / kLanes;  // vectors in the outputs of a panel
// How many rows and panels are multiplied at once: as many as the registers hold.
#if defined(__AVXVNNI__)
constexpr int kDenseRows = 3, kDensePanels = 1;
#else
constexpr int kDenseRows = kLanes >= 8 ? 4 : 2, kDensePanels = kLanes == 16 ? 2 : 1;
#endif
// Where matrices are multiplied, codes are put in order for each tile, so one of twice as many rows is taken where it
// has no more sums.
template <int Planes>
constexpr int kDenseTileRows = kHasMatrixProducts && Planes == 1 ? 2 * kDenseRows : kDenseRows;

// Whether rows of one plane stand in bytes.
constexpr bool kDenseByteRows = kHasByteProducts || kHasBytePairs;

static void denseRow(const float* x, int count, const DenseRows& rows, int row) {
  const size_t first = static_cast<size_t>(row) * rows.blocks;
  for (int block = 0; block < rows.blocks; block++) {
    alignas(64) float line[32] = {};
    alignas(64) int16_t whole[32];
    const int left = count - block * 32 < 32 ? count - block * 32 : 32;
    __builtin_memcpy(line, x + block * 32, left * sizeof(float));
    rows.steps[first + block] = quantizeWithin(line, 32, rows.planes == 1 ? kByteMax : kIntegerMax, whole);
    int32_t* sums = rows.sums + (first + block) * 2;
    sums[0] = sums[1] = 0;
    for (int i = 16; i < 32; i++) sums[1] += whole[i];
    if (kDenseByteRows && rows.planes == 1) {
      int8_t* to = rows.bytes + first * 64 + block * 32;
      for (int i = 0; i < 32; i++) to[i] = static_cast<int8_t>(whole[i]);
      for (int i = 0; i < 32; i++) sums[0] += whole[i];
    } else {
      sums[0] = placeRow(whole, 32, rows.bytes + (first + block) * 64);
    }
  }
}

// How many scales the inputs of a block have, and what is to be taken from its codes. Codes of 8 bits are multiplied
// with kBias added.
template <DenseForm Form>
constexpr int kDenseGroups = Form == kDenseQ6K ? 2 : 1;
template <DenseForm Form>
constexpr int kDenseMiddle = kDenseForms[Form].bits == 8 ? kBias : Form == kDenseQ40 ? 8 : Form == kDenseQ50 ? 16 : Form == kDenseQ6K ? 32 : 0;
template <DenseForm Form>
constexpr bool kDenseHasMinimum = Form == kDenseQ41 || Form == kDenseQ51 || Form == kDenseQ4K || Form == kDenseQ5K;

INLINE VecF denseHalves(const uint8_t* p, int at) { return loadHalf(reinterpret_cast<const uint16_t*>(p) + at); }
INLINE VecF denseBytes(const uint8_t* p, int at) { return loadSigned(reinterpret_cast<const int8_t*>(p) + at); }

// Scales of kLanes outputs from output `at` on, and their minima.
template <DenseForm Form>
INLINE VecF denseScale(const uint8_t* head, const uint8_t* scales, int group, int at) {
  if constexpr (Form == kDenseWide) return load(reinterpret_cast<const float*>(scales) + at);
  else if constexpr (kDenseForms[Form].head > 0) return denseHalves(head, at) * denseBytes(scales, group * kDensePanel + at);
  else return denseHalves(scales, at);
}
template <DenseForm Form>
INLINE VecF denseMinimum(const uint8_t* head, const uint8_t* scales, int at) {
  if constexpr (kDenseForms[Form].head > 0) return VecF{} - denseHalves(head, kDensePanel + at) * denseBytes(scales, kDensePanel + at);
  else return denseHalves(scales, kDensePanel + at);
}

// The codes of one line of inputs, 0 to 7, for the outputs of one vector.
template <DenseForm Form, int Line>
INLINE Bytes denseBytesOf(const uint8_t* codes) {
  constexpr int kBits = kDenseForms[Form].bits;
  const Bytes v = loadBytes(codes + Line % (kBits == 8 ? 8 : 4) * 64);
  if constexpr (kBits == 8) return v;
  else if constexpr (kBits == 4) return (Line >= 4 ? v >> 4 : v) & splatByte(15);
  else {
    // The fields that belong to this line are shifted to bit 4.
    constexpr int kField = kBits == 5 ? Line : Line % 4 * 2;
    const Bytes plane = loadBytes(codes + 256 + (kBits == 5 ? 0 : Line / 4 * 64));
    const Bytes upper = kField < 4 ? plane << (4 - kField) : plane >> (kField - 4);
    return ((Line >= 4 ? v >> 4 : v) & splatByte(15)) | (upper & splatByte(kBits == 5 ? 0x10 : 0x30));
  }
}
template <DenseForm Form, int Line>
INLINE Levels denseCodes(const uint8_t* codes) {
  constexpr int kBits = kDenseForms[Form].bits;
  if constexpr (kBits == 4) return nibblesOf(loadBytes(codes + Line % 4 * 64), Line >= 4);
  else if constexpr (kBits == 8) return asLevels(denseBytesOf<Form, Line>(codes) ^ splatByte(kBias ^ 128));
  else return asLevels(denseBytesOf<Form, Line>(codes));
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Adds the products of `Lines` lines from `First` on of one panel with R rows of bytes, `stride` bytes apart. As many
// lines at once as int16 hold: eight of codes of 4 bits, 8 * 2 * 15 * 127.
template <int R, DenseForm Form, int First, int Lines>
INLINE void densePairs(const uint8_t* codes, const int8_t* bytes, size_t stride, Dots sum[R][kDenseVectors]) {
  constexpr int V = kDenseVectors, kBits = kDenseForms[Form].bits, kMost = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  constexpr int kAtOnce = kMost < Lines ? kMost : Lines;
  repeat<Lines / kAtOnce>([&](auto part) MEMBER {
    VecI pairs[R][V] = {};
    repeat<kAtOnce>([&](auto at) MEMBER {
      constexpr int kLine = First + part.value * kAtOnce + at.value;
      VecI weight[V], size[V];
      repeat<V>([&](auto v) MEMBER {
        weight[v.value] = reinterpret_cast<VecI>(denseBytesOf<Form, kLine>(codes + v.value * kVectorBytes) ^ splatByte(kBits == 8 ? 128 : 0));
        size[v.value] = kBits == 8 ? magnitudes(weight[v.value]) : weight[v.value];
      });
      repeat<R>([&](auto r) MEMBER {
        const VecI x = splatFour(bytes + r.value * stride + kLine * 4);
        repeat<V>([&](auto v) MEMBER {
          if constexpr (kBits == 8) addByteQuads(sum[r.value][v.value], size[v.value], signedBy(x, weight[v.value]));
          else addBytePairs(pairs[r.value][v.value], size[v.value], x);
        });
      });
    });
    if constexpr (kBits < 8) repeat<R * V>([&](auto i) MEMBER { addHalves(sum[i.value / V][i.value % V], pairs[i.value / V][i.value % V]); });
  });
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Eight inputs of two rows: `Plane` of what dot4.h and denseRow place at `first` and `second` for two lines.
template <int Planes, int Plane>
INLINE VecI densePairOf(const int8_t* first, const int8_t* second) {
  if constexpr (Planes == 1) return reinterpret_cast<VecI>(vcombine_s8(vld1_s8(first), vld1_s8(second)));
  else return shuffled(asLevels(loadBytes(first)), asLevels(loadBytes(second)), VecI{Plane, Plane + 2, Plane + 4, Plane + 6});
}

// The codes of two lines of inputs, for two outputs each. Nibbles are put in order while there are two in a byte.
template <DenseForm Form, int Line>
INLINE void denseTwoLines(const uint8_t* codes, VecI& even, VecI& odd) {
  if constexpr (kDenseForms[Form].bits == 4) {
    const VecI first = asLevels(loadBytes(codes + Line % 4 * 64)), second = asLevels(loadBytes(codes + (Line % 4 + 1) * 64));
    even = nibblesOf(reinterpret_cast<Bytes>(evenOutputs(first, second)), Line >= 4);
    odd = nibblesOf(reinterpret_cast<Bytes>(oddOutputs(first, second)), Line >= 4);
  } else {
    const VecI first = denseCodes<Form, Line>(codes), second = denseCodes<Form, Line + 1>(codes);
    even = evenOutputs(first, second);
    odd = oddOutputs(first, second);
  }
}

// Adds the products of `Lines` lines from `First` on of one panel with R rows, two at a time; the last of an odd number
// stands beside itself. Lines that share bytes follow each other.
template <int R, DenseForm Form, int First, int Lines, int Planes, class Sum>
INLINE void denseMatrices(const uint8_t* codes, const int8_t* bytes, size_t stride, Sum sum[R][kDenseVectors]) {
  constexpr int V = kDenseVectors, kPairs = (R + 1) / 2;
  PairDots part[kPairs][V][Planes] = {};
  repeat<Lines / 2>([&](auto at) MEMBER {
    constexpr int kLine = First + (Lines == 8 ? at.value % 2 * 4 + at.value / 2 * 2 : at.value * 2);
    VecI x[kPairs][Planes];
    repeat<kPairs * Planes>([&](auto i) MEMBER {
      constexpr int kRow = i.value / Planes * 2;
      const int8_t* line = bytes + kRow * stride + kLine * 4 * Planes;
      x[i.value / Planes][i.value % Planes] = densePairOf<Planes, i.value % Planes>(line, kRow + 1 < R ? line + stride : line);
    });
    repeat<V>([&](auto v) MEMBER {
      VecI even, odd;
      denseTwoLines<Form, kLine>(codes + v.value * kVectorBytes, even, odd);
      repeat<kPairs * Planes>([&](auto i) MEMBER {
        addPair(part[i.value / Planes][v.value][i.value % Planes], even, odd, x[i.value / Planes][i.value % Planes]);
      });
    });
  });
  repeat<R * V>([&](auto i) MEMBER {
    constexpr int kRow = i.value / V, kVector = i.value % V;
    const PairDots* of = part[kRow / 2][kVector];
    if constexpr (Planes == 1) sum[kRow][kVector] += rowOf(of[0], kRow % 2 == 1);
    else sum[kRow][kVector].part[1] += rowOf({(of[0].even << 8) + of[1].even, (of[0].odd << 8) + of[1].odd}, kRow % 2 == 1);
  });
}
#endif

// What is fetched while a tile is computed: `step` bytes in each of its panels for each block of inputs, from `next`
// on. What is due is counted in bytes, so that many tiles share a panel evenly.
struct DenseAhead {
  const uint8_t *next, *due;
  size_t step;
  // And what is read beside the panels, later, so it goes to the second-level cache: from byte `at` of a span on.
  const DenseSpan *span, *end;
  size_t at, owed, besideStep;
};

// visits: blocks of inputs that are computed until `panels` panels from `panel` on are done.
INLINE void startBeside(const DenseWeights& w, int panel, int panels, size_t visits, DenseAhead& ahead) {
  ahead.span = w.beside;
  ahead.end = w.beside + w.spans;
  ahead.owed = 0;
  ahead.besideStep = (panels * w.share + visits - 1) / visits;
  ahead.at = panel * w.share;
  for (; ahead.span < ahead.end && ahead.at >= ahead.span->bytes; ahead.span++) ahead.at -= ahead.span->bytes;
}
INLINE void fetchBeside(DenseAhead& ahead) {
  for (ahead.owed += ahead.besideStep; ahead.owed >= 64 && ahead.span < ahead.end; ahead.owed -= 64) {
    __builtin_prefetch(ahead.span->from + ahead.at, 0, 2);
    ahead.at += 64;
    if (ahead.at < ahead.span->bytes) continue;
    ahead.at -= ahead.span->bytes;
    ahead.span++;
  }
}

template <int Planes>
struct DenseSums {
  typedef RowDots One;
  MEMBER static One start(int32_t v) { return startRow(v); }
};
template <>
struct DenseSums<1> {
  typedef Dots One;
  MEMBER static One start(int32_t v) { return startDots(v); }
};

// R rows and P panels. out: R rows of P * 16, without base and bias.
template <int R, int P, DenseForm Form, int Planes>
static __attribute__((noinline)) void denseTile(const uint8_t* w, size_t panelBytes, const DenseRows& x, int row, DenseAhead& ahead, float* out) {
  constexpr int V = kDenseVectors, G = kDenseGroups<Form>, kTogether = denseTogether(Form);
  constexpr DenseFormSizes kSizes = kDenseForms[Form];
  const int blocks = x.blocks;
  const int8_t* bytes = x.bytes + static_cast<size_t>(row) * blocks * 64;
  const float* steps = x.steps + static_cast<size_t>(row) * blocks;
  const int32_t* sums = x.sums + static_cast<size_t>(row) * blocks * 2;
  const uint8_t *head = w, *scales = w, *codes = w;
  const uint8_t *next = ahead.next, *due = ahead.due;
  VecF total[R][P][V] = {};
  for (int block = 0; block < blocks; block++, scales += kSizes.scales, codes += denseCodeBytes(Form), bytes += 32 * Planes) {
    if (block % kTogether == 0) {
      head = codes;
      scales = head + kSizes.head;
      codes = scales + kTogether * kSizes.scales;
    }
    for (due += ahead.step; next < due; next += 64) {
      for (int p = 0; p < P; p++) __builtin_prefetch(next + p * panelBytes);
    }
    fetchBeside(ahead);
    repeat<G>([&](auto group) MEMBER {
      typename DenseSums<Planes>::One sum[R][P * V];
      repeat<R>([&](auto r) MEMBER {
        const int32_t* both = sums + (static_cast<size_t>(r.value) * blocks + block) * 2;
        constexpr int kMiddle = Planes == 1 && kHasBytePairs && kSizes.bits == 8 ? 0 : kDenseMiddle<Form>;
        const auto start = DenseSums<Planes>::start(-kMiddle * (G == 1 ? both[0] : group.value == 0 ? both[0] - both[1] : both[1]));
        repeat<P * V>([&](auto i) MEMBER { sum[r.value][i.value] = start; });
      });
#if defined(__AVX2__) && !defined(__AVX512F__)
      if constexpr (Planes == 1 && kHasBytePairs) densePairs<R, Form, group.value * (8 / G), 8 / G>(codes, bytes, static_cast<size_t>(blocks) * 64, sum);
      else
#elif defined(__ARM_FEATURE_MATMUL_INT8)
      if constexpr (R > 1) denseMatrices<R, Form, group.value * (8 / G), 8 / G, Planes>(codes, bytes, static_cast<size_t>(blocks) * 64, sum);
      else
#endif
      repeat<8 / G>([&](auto line) MEMBER {
        constexpr int kLine = group.value * (8 / G) + line.value;
        Levels weight[P * V];
        repeat<P * V>([&](auto i) MEMBER { weight[i.value] = denseCodes<Form, kLine>(codes + i.value / V * panelBytes + i.value % V * kVectorBytes); });
        repeat<R>([&](auto r) MEMBER {
          const int8_t* line = bytes + static_cast<size_t>(r.value) * blocks * 64 + kLine * 4 * Planes;
          if constexpr (Planes == 1) addFour<P * V>(sum[r.value], weight, line);
          else addQuad<P * V>(sum[r.value], weight, line);
        });
      });
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
          const VecF scale = denseScale<Form>(head + p * panelBytes, scales + p * panelBytes, group.value, v * kLanes);
          VecF least{};
          if constexpr (kDenseHasMinimum<Form>) least = denseMinimum<Form>(head + p * panelBytes, scales + p * panelBytes, v * kLanes);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) {
            VecF part = __builtin_convertvector(sumsOf(sum[r][p * V + v]), VecF);
            if constexpr (kDenseHasMinimum<Form>) part = mulAdd(part, scale, least * splat(static_cast<float>(sums[(r * blocks + block) * 2])));
            else part = part * scale;
            total[r][p][v] = mulAdd(part, splat(steps[r * blocks + block]), total[r][p][v]);
          }
        }
      }
    });
  }
  ahead.next = next;
  ahead.due = due;
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) store(out + (r * P + p) * 16 + v * kLanes, total[r][p][v]);
    }
  }
}

// Adds bias and base to `count` rows from `row` on and stores them. out: `width` outputs of each, from `first` on.
static __attribute__((noinline)) void denseStore(const DenseWeights& w, int first, int width, int row, int count, float* out, const float* base, float* y) {
  const int outputs = w.outputs - first < width ? w.outputs - first : width;
  for (int r = 0; r < count; r++, out += width) {
    const size_t at = static_cast<size_t>(row + r) * w.outputs + first;
    if (w.bias) {
      for (int o = 0; o < width; o++) out[o] += w.bias[first + o];
    }
    if (base) {
      for (int o = 0; o < outputs; o++) out[o] += base[at + o];
    }
    __builtin_memcpy(y + at, out, outputs * sizeof(float));
  }
}

// The tile of `count` rows, at most R. Two panels are computed for two rows or more.
template <int R, int P, DenseForm Form, int Planes>
INLINE void denseRows(int count, const uint8_t* w, size_t panelBytes, const DenseRows& x, int row, DenseAhead& ahead, float* out) {
  if constexpr (R >= P) {
    if (count == R) denseTile<R, P, Form, Planes>(w, panelBytes, x, row, ahead, out);
    else denseRows<R - 1, P, Form, Planes>(count, w, panelBytes, x, row, ahead, out);
  }
}

// The rows are dealt out evenly to as few tiles as hold them, so that none computes one row beside others of four. All
// tiles together fetch the panels behind these: if the first did it alone, the others would leave memory idle.
template <int P, DenseForm Form, int Planes>
INLINE void densePanelRows(const DenseWeights& w, int panel, const DenseRows& x, int n, const float* base, float* y) {
  constexpr int kRows = kDenseTileRows<Planes>;
  alignas(64) float out[kRows * P * kDensePanel];
  const size_t panelBytes = densePanelBytes(Form, x.blocks);
  const uint8_t* start = w.panels + panel * panelBytes;
  const bool last = (panel + P) * kDensePanel >= w.outputs;
  const uint8_t* next = !last ? start + P * panelBytes : w.behind ? w.behind : start;
  int tiles = (n + kRows - 1) / kRows;
  const size_t visits = static_cast<size_t>(tiles) * x.blocks;
  DenseAhead ahead{next, next, (panelBytes + visits - 1) / visits, nullptr, nullptr, 0, 0, 0};
  startBeside(w, panel, P, visits, ahead);
  for (int row = 0, count; row < n; row += count, tiles--) {
    count = (n - row + tiles - 1) / tiles;
    denseRows<kRows, P, Form, Planes>(count, start, panelBytes, x, row, ahead, out);
    denseStore(w, panel * kDensePanel, P * kDensePanel, row, count, out, base, y);
  }
}

template <int Planes, DenseForm Form>
INLINE void denseEvery(const DenseWeights& w, int from, int to, const DenseRows& x, int n, const float* base, float* y) {
  int panel = from;
  if constexpr (kDensePanels > 1) {
    // Few rows read one panel after another, as a linear stream.
    for (; n >= kDenseTileRows<Planes> && panel + kDensePanels <= to; panel += kDensePanels) densePanelRows<kDensePanels, Form, Planes>(w, panel, x, n, base, y);
  }
  for (; panel < to; panel++) densePanelRows<1, Form, Planes>(w, panel, x, n, base, y);
}

template <DenseForm Form>
INLINE void denseAll(const DenseWeights& w, int from, int to, const DenseRows& x, int n, const float* base, float* y) {
  if constexpr (kDenseByteRows) {
    if (x.planes == 1) return denseEvery<1, Form>(w, from, to, x, n, base, y);
  }
  denseEvery<2, Form>(w, from, to, x, n, base, y);
}

static void densePanels(const DenseWeights& w, int from, int to, const DenseRows& x, int n, const float* base, float* y) {
  switch (w.form) {
    case kDenseWide: denseAll<kDenseWide>(w, from, to, x, n, base, y); break;
    case kDenseQ80: denseAll<kDenseQ80>(w, from, to, x, n, base, y); break;
    case kDenseQ40: denseAll<kDenseQ40>(w, from, to, x, n, base, y); break;
    case kDenseQ41: denseAll<kDenseQ41>(w, from, to, x, n, base, y); break;
    case kDenseQ50: denseAll<kDenseQ50>(w, from, to, x, n, base, y); break;
    case kDenseQ51: denseAll<kDenseQ51>(w, from, to, x, n, base, y); break;
    case kDenseQ4K: denseAll<kDenseQ4K>(w, from, to, x, n, base, y); break;
    case kDenseQ5K: denseAll<kDenseQ5K>(w, from, to, x, n, base, y); break;
    case kDenseQ6K: denseAll<kDenseQ6K>(w, from, to, x, n, base, y); break;
  }
  clearUpperHalves();
}

// y = x / sqrt(mean(x²) + epsilon) * gain. x may be y.
static void denseNorm(const float* x, const float* gain, float epsilon, int count, float* y) {
  float squares = dot(x, x, count), least = epsilon;
  if (!(squares <= kFloatMax)) {
    // The squares of finite numbers may be beyond a float, and then all would become zeros. Of 2^20 numbers that are
    // 2^76 times smaller they are not.
    constexpr float kShrink = 0x1p-76f;
    for (int i = 0; i < count; i++) y[i] = x[i] * kShrink;
    squares = dot(y, y, count);
    least = 0.0f;
    x = y;
  }
  const float inverse = 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + least);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i) * inverse * load(gain + i));
  for (; i < count; i++) y[i] = x[i] * inverse * gain[i];
  clearUpperHalves();
}

// gate <- gate * sigmoid(z) * up, where z = gate, or for GELU z = 2 sqrt(2/pi) (gate + 0.044715 gate^3), since 1 +
// tanh(z/2) = 2 sigmoid(z). The exponential is taken of -|z|, which cannot overflow.
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
