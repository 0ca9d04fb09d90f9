// Every kernel of the project. Kernels take pointers, lengths and strides; they have no exceptions, allocation, globals
// or policy. hot.cc is compiled once per instruction set, cold.cc for fewer of them; dispatch.cc chooses among the
// resulting tables.
//
// Legend: d head_dim, n KV heads, g query heads per KV head, P = 128 tokens per page.
// A page side of one KV head is a matrix [contraction][outputs]:
//   keys    contraction = d channels, outputs = 128 tokens   (scores = q · K)
//   values  contraction = 128 tokens, outputs = d channels   (o = p · V)
// so keys and values share every kernel. There are two tile layouts:
//   f16 tile   [contraction][outputs] IEEE half
//   i8 tile    [contraction/4][outputs/16][16][4] int8: 64 bytes are 16 outputs x 4 contraction steps
#pragma once
#include "../layout.gen.h"

namespace palimpsest {

// How the error of a key is steered away from the queries (native/reference/steering.ts): the metric of one head,
// factored.
struct KeySteering {
  const float* feedback;  // [d][d], below the diagonal: the share of the error of an earlier channel that a later one takes back; null for kChannelPowers
  const float* weights;   // [d]; for kChannelPowers the mean square of the queries in each channel
};
// Memory for what a kernel keeps of a page while it runs. It is not on the stack: some systems give a thread 128 KiB of
// that, and the rows of a page alone may take as much. It is handed on by value, so what a function takes is free again
// when it returns. A kernel that took more than there is would be a fault.
class Workspace {
 public:
  __attribute__((always_inline)) Workspace(void* from, size_t bytes) : next_(static_cast<uint8_t*>(from)), left_(bytes) {}
  // Room for `count` of T, aligned for vectors as `from` is.
  template <class T>
  __attribute__((always_inline)) T* take(size_t count) {
    const size_t bytes = (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    if (bytes > left_) __builtin_trap();
    T* const taken = reinterpret_cast<T*>(next_);
    next_ += bytes;
    left_ -= bytes;
    return taken;
  }

 private:
  static constexpr size_t kAlign = 64;
  uint8_t* next_;
  size_t left_;
};
// Bytes of a workspace that is enough for decode, and one that is enough for encode, demote and decode, at a head size.
constexpr size_t decodeSpace(int d) { return static_cast<size_t>(kPageTokens) * d; }
constexpr size_t encodeSpace(int d) { return 14 * static_cast<size_t>(kPageTokens) * d + 4096; }
// The same for encodeLatent and rotateLatent, at a width of latents.
constexpr size_t latentSpace(int width) { return 24 * static_cast<size_t>(width) + 512; }

// Where the fields of one page side of one KV head are written. Fields have the numbers of layout.gen.h (kRotMean,
// ...).
struct SideTarget {
  int format = kF16;
  const KeySteering* steering = nullptr;  // for formats that ask for it (FormatLayout), where there is one
  uint8_t* field[kFieldsMax] = {};
  template <class T = uint8_t>
  __attribute__((always_inline)) T* at(int number) const { return reinterpret_cast<T*>(field[number]); }
};
// The same fields for reading.
struct SideView {
  int format = kF16;
  const uint8_t* field[kFieldsMax] = {};
  template <class T = uint8_t>
  __attribute__((always_inline)) const T* at(int number) const { return reinterpret_cast<const T*>(field[number]); }
};

// A row of integers |x| <= 32512 in the layout that the integer dot products of an instruction set read (dot4.h). step:
// the value of one unit.
struct alignas(64) IntegerRow {
  int8_t bytes[2 * kContractionMax];
  int32_t correction;
  float step;
};

// The largest softmax scale and slope: times a dot product of rows within kHalfMax, or times a distance, they still
// give a finite number.
constexpr float kLargestFactor = 1e20f;
// The smallest cap of scores and logits: its inverse is a number that they can be multiplied by. The largest is
// kLargestFactor.
constexpr float kLeastCap = 1e-20f;

// How many rows of probabilities are converted to integers at once; they take 13.5 KB.
constexpr int kWeightRows = 24;

// What the integers of a query row are made from: the row itself, the rotated row, or the row multiplied by the channel
// scales of one page (these integers are computed again for every page).
enum Basis : int { kPlain = 0, kTurned = 1, kFolded = 2 };

// The query rows that attend to a page, `perHead` for each of `heads` KV heads, and the state of their online softmax.
// Rows lie head after head without gaps. Scores are in units of log2(e): q has been multiplied by scale * log2(e),
// slopes and the cap by log2(e).
struct PageRows {
  int count;                  // heads * perHead
  int heads;
  int perHead;
  int d;
  const float* q;             // [count][d]
  IntegerRow* integers[3];    // [count] each: q in each Basis
  bool* ready;                // [2] whether integers[kPlain] and integers[kTurned] are filled
  bool* turnedBack;           // set once values are added to mixedTurned, which then has to be rotated back at the end
  float cap;                  // a score s becomes cap * tanh(s / cap) before its slope is taken from it; 0: scores stay as they are
  const float* slope;         // [count], ALiBi; null for none
  const int* position;        // [count]
  const int* first;           // [count] a row sees the tokens first <= t < last of the page
  const int* last;
  float* scores;              // [count][128]; after the softmax 2^(score - the row's largest score in this page)
  float* max;                 // [count]
  float* sum;                 // [count]
  float* mixed;               // [count][d]
  float* mixedTurned;         // [count][d], values of rotated formats, still rotated
  float* rowMass;             // [count] of this page: sum of 2^(score - current max)
  int room;                   // tokens that the sides have room for: 128, or fewer in an open page that still grows
  float skipShare;            // skips values of formats that allow it while each row loses at most this share of its mass; 0: never
  float* skippedMass;         // [count] mass skipped so far, relative to max
  uint64_t* skipped;          // [2] how often the values of a head of a page could have been skipped, and how often they were
  float* rescale;             // [count] scratch from here on
  float* share;               // [count] 2^(the row's largest score in this page - current max): the factor of its probabilities
  float* factor;              // [count]
  float* offset;              // [count]
  float* keyScales;           // [heads][128]
  float* valueScales;         // [heads][128], as multiples of valueSteps
  float* valueSteps;          // [heads]
  IntegerRow* weights;        // [kWeightRows]
  int8_t* tile;               // [128 * d], of levels or for what decode keeps
  float* spare;               // [count][d]
  float* decoded;             // [128][d]
};

// The mass that each row gives to each page of a run: mass[row * stride + page], relative to max[row * stride + page].
// mass null: not recorded.
struct PageNotes {
  float* mass = nullptr;
  float* max = nullptr;
  size_t stride = 0;
};

// Outputs of the next panel of packed weights (gemm_i8.h), usually 48. With 49 to 64 left it is 32, because 48 would
// leave a panel of only 16.
constexpr int gemmPanelOutputs(int left) { return left > 48 && left <= 64 ? 32 : left < 48 ? left : 48; }

// Input rows in the layout that products with packed weights read (dense_products.h).
struct DenseRows {
  int8_t* bytes;   // [rows][blocks][64]
  float* steps;    // [rows][blocks], the value of one unit of the integers
  int32_t* sums;   // [rows][blocks][2], the sum of the integers, and of the last 16
  int blocks;      // of 32 inputs
  int planes;      // 2: integers of 16 bits, |x| <= 32512; 1: of 8, |x| <= 127
};

constexpr int kDenseBlock = 32, kDensePanel = 16;
constexpr int denseBlocks(int inputs) { return (inputs + kDenseBlock - 1) / kDenseBlock; }
// Bytes of a row in the file. inputs: a multiple of the values of a block of this type.
constexpr size_t denseRowBytes(DenseType type, int inputs) { return static_cast<size_t>(inputs / kDenseTypes[type].values) * kDenseTypes[type].bytes; }
// Bytes of the codes of a block of inputs of a panel.
constexpr size_t denseCodeBytes(DenseForm form) { return size_t{64} * kDenseForms[form].bits; }
// How many blocks have their scales together, before the codes of all of them, so that codes begin at multiples of 64:
// those of a record, or two.
constexpr int denseTogether(DenseForm form) { return kDenseForms[form].scales == 64 ? 1 : kDenseForms[form].blocks > 1 ? kDenseForms[form].blocks : 2; }
// Bytes of these blocks, with the head of their record.
constexpr size_t denseTogetherBytes(DenseForm form) { return kDenseForms[form].head + denseTogether(form) * (kDenseForms[form].scales + denseCodeBytes(form)); }
// Where the scales and the codes of a block of a panel begin.
constexpr size_t denseScalesAt(DenseForm form, int block) {
  return block / denseTogether(form) * denseTogetherBytes(form) + kDenseForms[form].head + block % denseTogether(form) * kDenseForms[form].scales;
}
constexpr size_t denseCodesAt(DenseForm form, int block) {
  const int first = block - block % denseTogether(form);
  return denseScalesAt(form, first) + denseTogether(form) * kDenseForms[form].scales + (block - first) * denseCodeBytes(form);
}
// Bytes of a panel, whose inputs are whole records.
constexpr size_t densePanelBytes(DenseForm form, int blocks) { return denseCodesAt(form, blocks - 1) + denseCodeBytes(form); }

// Panels have 16 outputs; the last may have fewer. bias: null, or one number per output, padded to whole panels.
// Memory that is read soon, from a line of 64 bytes on.
struct DenseSpan {
  const uint8_t* from;
  size_t bytes;
};
struct DenseWeights {
  DenseForm form;
  const uint8_t* panels;
  const float* bias;
  int outputs;
  const uint8_t* behind;  // the panels that are likely to be read next, whose beginning is fetched meanwhile; or null
  const DenseSpan* beside = nullptr;  // what is read after these products, of which each panel fetches `share` bytes meanwhile
  int spans = 0;
  size_t share = 0;
};

// Residuals of a predicted page are entropy-coded, column by column (engine/session/park/rans.ts): states that take
// turns, symbols of shares of 4096.
constexpr int kCodedStates = 32, kCodedSlots = 4096, kCodedLevelMax = 21, kCodedSymbols = 2 * kCodedLevelMax + 1;
constexpr int kGemmBlock = 8;  // rows in a block of gemmI8
// Columns of one side, and where they go: as factor * residual into rows of gemmI8, four columns to 32 bytes of each
// block of rows.
struct CodedColumns {
  int count;
  const uint8_t* tables;   // [count], the distribution of each
  const uint8_t* factors;  // [count], times a residual within int8
  int8_t* to;
  size_t blockStride;      // bytes from one block of rows to the next
};

// Kernels that no decode step waits for: formats and latents are written, read back and narrowed. They give the same
// bits on every instruction set and contain no products of bytes, so sets that differ only in those share one table
// (cold.cc).
struct ColdKernels {
  // Formats (native/formats/). They follow the order of operations of their references, so stored bytes are the same on
  // every instruction set. Rows of one head: x[t][0..d) at x + t*stride. isKey selects the tile orientation. Writes one
  // side in `count` formats of one family at once; fields that the family shares are written to the first target only.
  // Rows before firstRow (sinks) stay out of every code and mean. space: of encodeSpace(d).
  void (*encode)(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space);
  // Writes row `row` of one side of an open page with room for `room` tokens, in a format that a page may be open in.
  void (*writeRow)(const SideTarget& target, bool isKey, int d, int room, int row, const float* x);
  // Converts to a lower format of the family from the codes alone; fields that the family shares are not written.
  void (*demote)(const SideView& from, bool isKey, int d, const SideTarget& to, Workspace space);
  // Decodes all 128 rows. In coded formats the rows before firstRow become zeros. space: of decodeSpace(d).
  void (*decode)(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space);
  // Decodes `count` rows alone, those of `tokens`, none of which is a sink's: x[i] is what decode makes of tokens[i].
  // False where the format decodes whole pages. space: of decodeSpace(d).
  bool (*decodeRows)(const SideView& side, bool isKey, int d, const uint8_t* tokens, int count, float* x, size_t stride, Workspace space);
  // The levels of a side as an i8 tile; false when the format has none.
  bool (*levels)(const SideView& side, int d, int8_t* tile);
  // False if the side holds bytes that its encoder cannot write and that the kernels rely on not reading.
  bool (*isSound)(const SideView& side, int d);

  // Latents (latent_codec.h). width: a multiple of 16, 64 .. 16384. high, low: planes of codes; xq8 has its codes in
  // high. space: of latentSpace(width).
  void (*rotateLatent)(float* x, int n, size_t stride, int width, bool inverse, Workspace space);
  // x: [128][width], overwritten. scales: [128] f16 bits (xq8) or int8 exponents. mean: [width], in units of meanScale.
  void (*encodeLatent)(int format, float* x, int width, int firstRow, uint8_t* high, uint8_t* low, void* scales, int16_t* mean, float* meanScale,
                       Workspace space);
  // The levels of `elements` codes (a multiple of 512) of xq4 or xq3, in tile order.
  void (*unpackLatent)(int format, const uint8_t* high, const uint8_t* low, size_t elements, int8_t* tile);
  // xq4 -> xq3, from codes alone: writes the low plane and the exponents of xq3. tiles: [2][128 * width], overwritten.
  void (*demoteLatent)(const uint8_t* high, const uint8_t* low, const int8_t* exponents, int width, int8_t* tiles, uint8_t* lowOut, int8_t* exponentsOut);
  // Decodes the keys and the values of a predicted page, sides[2]; false where the bytes are not what coding makes. The
  // last columns are filled up with zeros to four. bytes: the states, u32, then words, u16. slots:
  // [distributions][4096], of each slot the symbol, its share - 1 and the place in it, in 6, 12 and 12 bits.
  bool (*decodeResiduals)(const uint32_t* slots, const uint8_t* bytes, size_t size, const CodedColumns* sides);
  // Rows x [128][width] as levels: (x - centres) * gains, held within +-127 and rounded to the nearest integer, halves
  // to even; float32. They are written as columns of rows of gemmI8, whose blocks are blockStride bytes apart. width: a
  // multiple of eight.
  void (*roundToLevels)(const float* x, const float* centres, const float* gains, int width, int8_t* to, size_t blockStride);

  // Rotary embedding in place, x [tokens][heads][headDim], the first `rotaryDim` channels of each head.
  // cos, sin: [tokens][rotaryDim/2]. interleaved: pairs (2i, 2i+1), else (i, i + rotaryDim/2).
  void (*rope)(float* x, int tokens, int heads, int headDim, int rotaryDim, const float* cos, const float* sin, bool interleaved);

  // y[r][c] = sum_i x[r][i] * m[i][c], i < inner, summed in doubles in this order and rounded once.
  // x: [rows][inner], m: [inner][columns], y: [rows][columns].
  void (*matmulF64)(const float* x, int rows, const float* m, int inner, int columns, float* y);

  // Packs `rows` rows of weights as a file stores them, at most kDensePanel, into one panel. Outputs that it lacks
  // become what rows of zeros are. False if a scale, a minimum or a float is not finite.
  bool (*packWeights)(DenseType type, const uint8_t* from, int rows, int inputs, uint8_t* panel);
};

struct Kernels {
  Isa isa;
  const char* name;
  const ColdKernels* cold;

  // y[i][o] = sum_c x[i][c] * f32(m[c][o]) for i < n. m: f16 tile. Any contraction, any outputs (multiple of 8). Uses
  // fused multiply-add where the hardware has it, so instruction sets differ in the last bits. Only densePanels does so
  // too.
  void (*dotF16)(const uint16_t* m, int contraction, int outputs, int rowStride, const float* x, int n, size_t xStride, float* y,
                 size_t yStride);

  // y[i][o] = sum_c x[i][c] * tile[c][o], exact in int32, |x| <= 32512 (127*256). tile: i8 tile, any alignment;
  // contraction % 4 == 0 and <= 256, outputs % 16 == 0.
  void (*dotI8)(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, int32_t* y,
                size_t yStride);

  // y[i][o] += steps[i] * sum_c x[i][c] * tile[c][o] for o < outputs; the sum as in dotI8, of whose tile the outputs
  // are padded to a multiple of 16. Bit-equal on every ISA: the sum, the product and y are rounded one after the other.
  void (*addDotI8)(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, const float* steps, float* y,
                   size_t yStride);

  // x[i][0..d) <- H*D*x (forward) or D*H*x (inverse), orthonormal. d in {64, 80, 96, 128, 256}. Bit-equal on every ISA:
  // float32 without fused multiply-add, in the order of operations of native/reference/rotation.ts.
  void (*rotate)(float* x, int n, size_t stride, int d, bool inverse);

  // Quantizes x[0..count) to int16: out = rint(x * (32512 / max|x|)), half to even, |out| <= 32512; returns s = max|x|
  // / 32512. If max|x| < 2^-100, out and s are 0; if an x is NaN or infinite, out is 0 and s NaN. Bit-equal on every
  // ISA.
  float (*quantizeI16)(const float* x, int count, int16_t* out);

  // For each row i < n of scores[i][0..128): masked to first[i] <= t < last[i] (others count as -inf); online softmax
  // with state (max[i], sum[i]):
  //   newMax = max(max, row max); rescale[i] = 2^(max - newMax); share[i] = 2^(row max - newMax); p = 2^(score - row
  //   max) (0 where masked);
  //   rowMass[i] = share*sum(p) (relative to newMax); sum = sum*rescale + rowMass. An all-masked row changes nothing: p
  //   = share = 0, rescale = 1.
  // p does not depend on other pages: its largest value is 1, so it can be converted to integers without another pass.
  void (*softmaxPage)(float* scores, int n, size_t stride, const int* first, const int* last, float* max, float* sum, float* rescale,
                      float* share, float* rowMass);

  // x[i] = cap * tanh(x[i] / cap) for cap in [1e-20, 1e20]: the relative error is below 4e-7. Bit-equal on every ISA.
  void (*capScores)(float* x, int count, float cap);

  // y[i] += a * x[i];  y[i] *= a;  dot (16 interleaved sums). Bit-equal on every ISA.
  void (*axpy)(float a, const float* x, float* y, int count);
  void (*scaleRow)(float a, float* y, int count);
  float (*dot)(const float* a, const float* b, int count);

  void (*toHalf)(const float* x, uint16_t* out, size_t count);  // round half to even
  void (*fromHalf)(const uint16_t* x, float* out, size_t count);

  // x[i] = 2^x[i] for x <= 0, 0 below -100; count a multiple of 16. Unfused.
  void (*powers)(float* x, int count);
  // y[i] = a * x[i] + b * z[i] + c * h[i], h half; count a multiple of 8. Unfused.
  void (*blendRow)(float a, const float* x, float b, const float* z, float c, const uint16_t* h, float* y, int count);
  // line[p] += mass[p] * inverse * 2^(then[p] - max) for p < count, a multiple of 16. Unfused.
  void (*addShares)(const float* mass, const float* then, float max, float inverse, float* line, int count);

  // quantizeI16 of x[0..d), d <= 256, in the layout of this instruction set.
  void (*integerRow)(const float* x, int d, IntegerRow* out);
  // The rows attend to one page, tokens [start, start + 128): scores, softmax, mixed values. sides: the keys of every
  // head, all in one format, then the values of every head, all in one format. visible: one past the last token that
  // any row sees, at least 1.
  void (*attendPage)(const SideView* sides, const PageRows& rows, int start, int visible);
  // The rows attend to `pages` pages from token `start` on and see each of them whole (rows.first is 0, rows.last 128).
  // sides: as in attendPage, page after page, for `known` >= pages pages, so that later pages can be prefetched while
  // one is read.
  void (*attendRun)(const SideView* sides, int pages, int known, int start, const PageRows& rows, const PageNotes& notes);
  // Mixes another version of the values [heads] of the page attended to last, with the probabilities in rows.scores.
  void (*mixPage)(const SideView* values, const PageRows& rows, int visible);

  // y[t][o] = base[t][o] + rowScale[t] * (columnScale[o] * sum_c a[t][c] * w[c][o]); sums exact in int32. Layouts:
  // gemm_i8.h. contraction % 4 == 0 and <= 65536. a must be readable in whole blocks of 8 rows. w: of a contraction of
  // `depth`, of which the first are taken. base: null, or rows baseStride apart (0: one row for all).
  void (*gemmI8)(const int8_t* a, int rows, int contraction, const uint8_t* w, int depth, int outputs, const float* rowScale, const float* columnScale,
                 const float* base, size_t baseStride, float* y, size_t yStride);

  // y[i][c] += sum_t weights[i][t] * tile[t][c] over the 128 rows of a tile.
  void (*mixLatent)(const int8_t* tile, int width, const float* weights, int n, size_t weightStride, float* y, size_t yStride);

  // The matrices around attention (dense_products.h). Converts x[0..count) to row `row` of rows.
  void (*denseRow)(const float* x, int count, const DenseRows& rows, int row);
  // Outputs of panels [from, to) for n rows: y[t][o] = base[t][o] + bias[o] + sum_i x[t][i] * w[o][i], y and base
  // [n][outputs]. base: null for 0. Uses fused multiply-add where the hardware has it.
  void (*densePanels)(const DenseWeights& w, int from, int to, const DenseRows& x, int n, const float* base, float* y);
  // Root-mean-square norm of one row; gate <- silu(gate) * up, or GELU in the form with a hyperbolic tangent. Unfused.
  void (*denseNorm)(const float* x, const float* gain, float epsilon, int count, float* y);
  void (*denseGate)(float* gate, const float* up, int count, bool gelu);
};

// Null when the build lacks the instruction set or the CPU cannot run it.
const Kernels* kernelsFor(Isa isa);
// The best kernels that this CPU can run.
const Kernels* bestKernels();

// The value of one level of rot4 or rot3 in a row with this exponent, -127..127: 2^(exponent/16) / the divisor of the
// levels; 0 for -128 (rot.cc).
float rotWorth(int format, int8_t exponent);

}  // namespace palimpsest
