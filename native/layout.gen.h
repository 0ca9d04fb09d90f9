// Written by scripts/generate-layout.ts. Change native/layout.ts or native/formats/, not this file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace palimpsest {

constexpr char kAbi[] = "11 formats=14 layout=1e6b6ac62b211a3ef7bfee2f356987a4";

constexpr int kPageTokens = 128;
constexpr int kSinkTokens = 4;
constexpr int kOpenRowsLeast = 16;
constexpr int kTrialQueries = 16;
constexpr int kTrialStride = 8;
constexpr int kTrialCandidatesMax = 128;
constexpr int kKeptRowsMax = 128;
constexpr int kLatentCandidatesFrom = 128;
constexpr int kSketchRows = 32;
constexpr int kPagePartAlign = 64;
constexpr int kContractionMax = 256;
constexpr int kHeadDimMax = 256;
constexpr int kHeadsMax = 1024;
constexpr int kLayersMax = 4096;
constexpr int kThreadsMax = 64;
constexpr int kEntryPayloadMax = 1048576;
constexpr int kChainPeaksMax = 53;
constexpr int kExpertsMax = 1024;
constexpr int kExpertsAllMax = 65536;
constexpr int kExpertsUsedMax = 64;

enum Status : int { kOk = 0, kBadArgument = 1, kBadShape = 2, kBadValue = 3, kUnsupported = 4, kBudgetExceeded = 5, kBudgetTooSmall = 6, kClosed = 7, kNoMemory = 8 };
enum Isa : int { kScalar = 0, kAvx2 = 1, kAvx512vnni = 2, kNeon = 3, kNeondot = 4, kWasmSimd128 = 5, kAvx2vnni = 6, kNeoni8mm = 7 };
constexpr int kIsaCount = 8;
constexpr Isa kIsasBestFirst[] = {kAvx512vnni, kAvx2vnni, kAvx2, kNeoni8mm, kNeondot, kNeon, kWasmSimd128, kScalar};
enum LatentFormat : int { kXq8 = 0, kXq4 = 1, kXq3 = 2 };
constexpr int kLatentFormats = 3;
enum LatentOperation : int { kLatentWeights = 0, kLatentRotary = 1, kLatentHold = 2, kLatentRestore = 3, kLatentKeep = 4, kLatentScratch = 5, kLatentMove = 6, kLatentDrop = 7 };
constexpr int kLatentOperations = 8;
enum OriginalOperation : int { kOriginalKeep = 0, kOriginalDrop = 1, kOriginalRestore = 2, kOriginalTry = 3, kOriginalFormat = 4 };
constexpr int kOriginalOperations = 5;
enum KeptRowsOperation : int { kRowsKeep = 0, kRowsDrop = 1, kRowsTry = 2, kRowsCount = 3 };
constexpr int kKeptRowsOperations = 4;
enum DenseSlot : int { kDenseQ = 0, kDenseK = 1, kDenseV = 2, kDenseO = 3, kDenseGate = 4, kDenseUp = 5, kDenseDown = 6 };
constexpr int kDenseSlots = 7;
enum DenseNorm : int { kAttnNorm = 0, kMlpNorm = 1, kQNorm = 2, kKNorm = 3, kAttnPost = 4, kMlpPost = 5 };
constexpr int kDenseNorms = 6;
enum DenseFeature : int { kNoPreNorms = 1, kPostNorms = 2, kGelu = 4, kWidthNorms = 8, kShareAmongChosen = 16, kLayerNorms = 32, kParallel = 64, kUngated = 128, kGeluErf = 256 };
constexpr int kDenseFeatures = 511;
enum DenseForm : int { kDenseWide = 0, kDenseQ80 = 1, kDenseQ40 = 2, kDenseQ41 = 3, kDenseQ50 = 4, kDenseQ51 = 5, kDenseQ4K = 6, kDenseQ5K = 7, kDenseQ6K = 8 };
struct DenseFormSizes {
  int bits;
  int blocks;
  int head;
  int scales;
};
constexpr DenseFormSizes kDenseForms[] = {{8, 1, 0, 64}, {8, 1, 0, 32}, {4, 1, 0, 32}, {4, 1, 0, 64}, {5, 1, 0, 32}, {5, 1, 0, 64}, {4, 8, 64, 32}, {5, 8, 64, 32}, {6, 8, 64, 32}};
constexpr int kDenseFormCount = 9;
enum DenseType : int { kFromF32 = 0, kFromF16 = 1, kFromBf16 = 2, kFromQ80 = 3, kFromQ40 = 4, kFromQ41 = 5, kFromQ50 = 6, kFromQ51 = 7, kFromQ4K = 8, kFromQ5K = 9, kFromQ6K = 10 };
struct DenseTypeSizes {
  DenseForm form;
  int values;
  int bytes;
};
constexpr DenseTypeSizes kDenseTypes[] = {{kDenseWide, 1, 4}, {kDenseWide, 1, 2}, {kDenseWide, 1, 2}, {kDenseQ80, 32, 34}, {kDenseQ40, 32, 18}, {kDenseQ41, 32, 20}, {kDenseQ50, 32, 22}, {kDenseQ51, 32, 24}, {kDenseQ4K, 256, 144}, {kDenseQ5K, 256, 176}, {kDenseQ6K, 256, 210}};
constexpr int kDenseTypeCount = 11;

enum FormatId : int { kBand3 = 32, kBand2 = 33, kF16 = 0, kKivi4 = 7, kKivi2 = 8, kQ8 = 1, kRot4 = 2, kRot3 = 3, kRot2 = 4, kRot1 = 5, kTrellis4 = 34, kTrellis3 = 35, kTrellis2 = 36, kTrellis1 = 37 };
constexpr int kFormatSlots = 38;
constexpr int kFieldsMax = 9;
constexpr int kPartsMax = 3;
// Numbers of the fields of a family.
enum BandField : int { kBandCodes = 0, kBandExponents = 1, kBandMean = 2, kBandShape = 3, kBandApartCodes = 4, kBandApartScales = 5, kBandApart = 6, kBandMeanScale = 7, kBandReference = 8 };
enum F16Field : int { kF16Halves = 0 };
enum KiviField : int { kKiviCodes = 0, kKiviScales = 1, kKiviLows = 2 };
enum Q8Field : int { kQ8Codes = 0, kQ8RowScales = 1 };
enum RotField : int { kRotHigh = 0, kRotLow = 1, kRotExponents = 2, kRotMean = 3, kRotFromZero = 4, kRotMeanScale = 5, kRotReference = 6 };
enum TrellisField : int { kTrellisHigh = 0, kTrellisLow = 1, kTrellisExponents = 2, kTrellisMean = 3, kTrellisFromZero = 4, kTrellisMeanScale = 5, kTrellisReference = 6 };

// What one head holds of one page: 128 * d * elementBits / 8 + 128 * tokenBytes + d
// * channelBytes + headBytes.
struct FieldLayout {
  int part;
  int elementBits;
  int tokenBytes;
  int channelBytes;
  int headBytes;
  bool isKept;  // a demotion on codes leaves it as it is
};
// Whether the codes of keys are chosen by queries, and in which basis.
enum Steered : uint8_t { kNoSteering, kPlainKeys, kTurnedKeys, kChannelPowers };
constexpr int kSteeredKinds = 4;
struct FormatLayout {
  const char* name;  // null: no format has this id
  int family;
  int version;
  int codeBits;
  bool isWindow;
  bool isNested;
  Steered steering;  // of its keys
  uint64_t from;    // ids that a page side may come from
  int headDims[8];  // none: any
  int parts;
  int fields;
  FieldLayout field[kFieldsMax];
};
constexpr FormatLayout kFormats[kFormatSlots] = {
    {.name = "f16", .family = 1, .version = 1, .codeBits = 16, .isWindow = true, .isNested = false, .steering = kNoSteering,
     .from = 0x2ull, .headDims = {}, .parts = 1, .fields = 1, .field = {{0, 16, 0, 0, 0, false}}},
    {.name = "q8", .family = 3, .version = 1, .codeBits = 8, .isWindow = true, .isNested = false, .steering = kNoSteering,
     .from = 0x1ull, .headDims = {64, 80, 96, 128, 256}, .parts = 2, .fields = 2, .field = {{0, 8, 0, 0, 0, false}, {1, 0, 2, 0, 0, false}}},
    {.name = "rot4", .family = 4, .version = 3, .codeBits = 4, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x400000083ull, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 2, 0, 0, 0, true}, {1, 2, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {.name = "rot3", .family = 4, .version = 3, .codeBits = 3, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0xd00000087ull, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 2, 0, 0, 0, true}, {1, 1, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {.name = "rot2", .family = 4, .version = 3, .codeBits = 2, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x1f0000018full, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 2, 0, 0, 0, true}, {1, 0, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {.name = "rot1", .family = 4, .version = 3, .codeBits = 1, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x3f0000019full, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 0, 0, 0, 0, true}, {1, 1, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {},
    {.name = "kivi4", .family = 2, .version = 1, .codeBits = 4, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x400000003ull, .headDims = {64, 80, 96, 128, 256}, .parts = 2, .fields = 3, .field = {{0, 4, 0, 0, 0, false}, {1, 0, 0, 8, 0, true}, {1, 0, 0, 8, 0, true}}},
    {.name = "kivi2", .family = 2, .version = 1, .codeBits = 2, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x1f0000008full, .headDims = {64, 80, 96, 128, 256}, .parts = 2, .fields = 3, .field = {{0, 2, 0, 0, 0, false}, {1, 0, 0, 8, 0, true}, {1, 0, 0, 8, 0, true}}},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {},
    {.name = "band3", .family = 0, .version = 1, .codeBits = 3, .isWindow = false, .isNested = false, .steering = kChannelPowers,
     .from = 0xc00000087ull, .headDims = {64, 80, 96, 128, 256}, .parts = 1, .fields = 9, .field = {{0, 3, 0, 0, 0, false}, {0, 0, 1, 0, 0, false}, {0, 0, 0, 1, 0, false}, {0, 0, 0, 1, 0, false}, {0, 0, 0, 2, 0, false}, {0, 0, 0, 0, 4, false}, {0, 0, 0, 0, 2, false}, {0, 0, 0, 0, 2, false}, {0, 0, 0, 0, 1, false}}},
    {.name = "band2", .family = 0, .version = 1, .codeBits = 2, .isWindow = false, .isNested = false, .steering = kChannelPowers,
     .from = 0x1d0000008full, .headDims = {64, 80, 96, 128, 256}, .parts = 1, .fields = 9, .field = {{0, 2, 0, 0, 0, false}, {0, 0, 1, 0, 0, false}, {0, 0, 0, 1, 0, false}, {0, 0, 0, 1, 0, false}, {0, 0, 0, 2, 0, false}, {0, 0, 0, 0, 4, false}, {0, 0, 0, 0, 2, false}, {0, 0, 0, 0, 2, false}, {0, 0, 0, 0, 1, false}}},
    {.name = "trellis4", .family = 5, .version = 1, .codeBits = 4, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x3ull, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 2, 0, 0, 0, true}, {1, 2, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {.name = "trellis3", .family = 5, .version = 1, .codeBits = 3, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x400000087ull, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 2, 0, 0, 0, true}, {1, 1, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {.name = "trellis2", .family = 5, .version = 1, .codeBits = 2, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0xd0000008full, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 2, 0, 0, 0, true}, {1, 0, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
    {.name = "trellis1", .family = 5, .version = 1, .codeBits = 1, .isWindow = false, .isNested = true, .steering = kNoSteering,
     .from = 0x1f0000019full, .headDims = {64, 80, 96, 128, 256}, .parts = 3, .fields = 7, .field = {{0, 0, 0, 0, 0, true}, {1, 1, 0, 0, 0, false}, {2, 0, 1, 0, 0, false}, {2, 0, 0, 1, 0, true}, {2, 0, 0, 0, 16, true}, {2, 0, 0, 0, 2, true}, {2, 0, 0, 0, 1, true}}},
};

}  // namespace palimpsest
