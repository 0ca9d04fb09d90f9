// One cache: per layer one open page, the sinks, and sealed pages in position order. Append, seal, transcode, decode,
// fork. Attention over it is in attend.h, measuring a move in trial.h, and moving a page side in moves.h.
//
// Legend: T tokens, H query heads, n KV heads, d head_dim, g = H/n. The open page of one layer has the fields of a page
// side in its format, for as many tokens as it has room for: 0 at first, then 16, 32, 64 and 128 as tokens come. An
// open page in f16 is encoded when it is sealed and keeps its room. One in a coded format has its rows coded as they
// come, so it becomes the sealed page as it is, and the next one begins without room. The sinks of one layer are K rows
// [n][4][d], then V rows [n][4][d], f16. With an open page in f16 they are allocated when it grows to 128 and written
// when page 0 is sealed; a coded one has them beside it from the first token on, because sinks are not coded.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "kept_rows.h"
#include "latent_pages.h"
#include "moves.h"
#include "page.h"
#include "rows.h"
#include "threads.h"

namespace palimpsest {


struct CacheShape {
  int layers;
  int queryHeads;
  int kvHeads;
  int headDim;
  int group() const { return queryHeads / kvHeads; }
  size_t rowElements() const { return static_cast<size_t>(kvHeads) * headDim; }
  size_t queryElements() const { return static_cast<size_t>(queryHeads) * headDim; }
};

struct CacheOptions {
  CacheShape shape;
  int windowFormat;           // kQ8 or kF16
  int openFormat = kF16;      // kF16, or the window format
  int threads = 1;            // the most that take part in a call
  float skipShare = 0;        // PageRows::skipShare of attention
  float scale;
  float scoreCap = 0;         // a scaled score s becomes scoreCap * tanh(s / scoreCap); 0: it stays as it is
  std::vector<int> window;    // [layers], 0 = all
  std::vector<float> slopes;  // [H] or empty
};

// How a sealed page is held.
enum PageKind : uint8_t {
  kResident = 0,  // keys and values, each in a format; a latent may be kept beside them
  kLatent = 1,    // only the latent, from which keys and values are recomputed; both sides are empty
  kFreed = 3,     // nothing: it is before all that a sliding window sees
  kEvicted = 4,   // nothing: attention goes on without it, though its place is within sight; sinks stay
  kForeign = 5,   // bytes that the caller alone understands: attention skips it as well, and the caller adds what it gives
};

// Keys and values of a sealed page. Caches that are no forks of each other may hold them together (Cache::adopt): a
// move is then one for all, made and counted once.
struct PageBody {
  // Whose parts they are while they are held together, or were; null: those of the one cache and its forks. The first
  // member, so that it outlives them.
  std::shared_ptr<Account> account;
  PageSide k;
  PageSide v;
  PageSide tried[2];   // keys, values: the codes of a form that the side was tried in, which other trials and the move to it need not make again; not counted
  uint8_t moving = 0;  // Sides with a move under way
  uint32_t walk = 0;   // the last walk that visited its parts
  // A side is about to change, or its page is old: codes that were made of it are of no use any more.
  void forgetTried() {
    for (PageSide& side : tried) side = PageSide();
  }
};

// The most bytes that a page may have whose bytes somebody else understands: those of f16 for 64 heads of 256, twice.
constexpr size_t kForeignBytesMost = size_t{1} << 24;
constexpr bool isForeignSize(size_t bytes) { return bytes > 0 && bytes <= kForeignBytesMost; }

// A sealed page. A cache and its forks share it as one object, so that a change is made and counted once for all of
// them. Each cache keeps its own record of the attention that the page received (Layer::mass).
struct Page {
  std::shared_ptr<PageBody> body = std::make_shared<PageBody>();  // the first member, as its account
  PageSide original[2];  // keys, values: an earlier form of a side that is kept beside it, empty where there is none
  KeptRows rows[2];      // keys, values: some rows as they were at one time
  PageLatent latent;
  PartRef foreign;            // keys and values as somebody else coded them, of a foreign page
  uint32_t foreignBytes = 0;  // of the part, those that were given
  PageKind kind = kResident;
  uint32_t walk = 0;  // the last walk that visited its parts
  PageSide& side(bool isKey) { return isKey ? body->k : body->v; }
  const PageSide& side(bool isKey) const { return isKey ? body->k : body->v; }
  // Whether caches that are no forks of each other hold its keys and values together, or did.
  bool isCommon() const { return body->account != nullptr; }
  // Whether there are neither keys and values nor a latent; whether attention goes on without it.
  bool isGone() const { return kind == kFreed || isSkipped(); }
  bool isSkipped() const { return kind == kEvicted || kind == kForeign; }
  // Bytes of what the page is held as, and the bytes that kept originals and rows add to them.
  size_t sideBytes() const { return body->k.bytes() + body->v.bytes(); }
  size_t heldBytes() const { return sideBytes() + latent.bytes() + foreign.size(); }
  // Memory for the bytes of a foreign page, not counted yet; zeros behind them. False: there is none.
  bool draftForeign(Account& of, size_t bytes);
  size_t bytes() const { return heldBytes() + original[0].bytesBeside(body->k) + original[1].bytesBeside(body->v) + rows[0].part.size() + rows[1].part.size(); }
};

// The page that tokens are appended to.
struct OpenPage {
  PageSide k;
  PageSide v;
  int room = 0;  // tokens
  PageSide& side(bool isKey) { return isKey ? k : v; }
  const PageSide& side(bool isKey) const { return isKey ? k : v; }
  size_t bytes() const { return k.bytes() + v.bytes(); }
};

// Recent queries of a layer, for trials. Their slot is (position / 8) % 16.
struct KeptQueries {
  std::vector<uint16_t> q;       // [slots][H][d] half, as given; slots are added as needed, up to 16
  std::vector<uint16_t> output;  // [slots][H][d] half, attention output
  std::vector<float> lse;        // [slots][H]
  std::vector<float> norm = std::vector<float>(kTrialQueries, -1.0f);    // [16], negative when not given
  std::vector<int> position = std::vector<int>(kTrialQueries, -1);       // [16], -1 when empty
  size_t bytes() const;
};

struct Layer {
  int length = 0;
  OpenPage open;
  PartRef sinks;
  std::vector<std::shared_ptr<Page>> pages;
  std::vector<double> mass;  // attention that each sealed page received
  double openMass = 0;
  double sinkMass = 0;           // what of the first page's mass the sinks received where they are met by themselves
  uint64_t skipped[2] = {0, 0};  // heads of pages whose values could have been skipped, and how many of them were
  std::shared_ptr<KeptQueries> kept = std::make_shared<KeptQueries>();  // started trials share it until it changes (ownKept)
  std::shared_ptr<const std::vector<uint16_t>> sketch;  // [H*d][32] half, divided by sketchScale; one for all caches of a model
  float sketchScale = 0;
  std::shared_ptr<const LatentLayer> latent;  // null until weights are set

  Page& page(int index) { return *pages[index]; }
  const Page& page(int index) const { return *pages[index]; }
  int sealed() const { return static_cast<int>(pages.size()); }
  // Called before kept queries change: whoever shares them goes on with those that are there.
  void ownKept() {
    if (kept.use_count() > 1) kept = std::make_shared<KeptQueries>(*kept);
  }
  int openRows() const { return length - sealed() * kPageTokens; }
  // Bytes of what is shared: of latents with forks, of the sketch with all caches of the model.
  size_t latentBytes() const;
  size_t sketchBytes() const;
};

// Working memory of one thread, kept between calls.
struct Scratch {
  QueryRows query;
  int loaded = -1;              // attend: whose rows query holds
  std::vector<SideView> sides;  // attend: sides of the next pages, in reading order
  Buffer<float> keyRows;    // [128][d]
  Buffer<float> valueRows;  // [128][d]
  Buffer<float> lines;      // attend: the sinks as float rows
  Buffer<uint8_t> codes;    // one head of one page side in any format
  Buffer<uint8_t> space;    // what kernels take (Workspace)
  Buffer<float> results;    // trial: of all heads, then what measuring takes
  Buffer<float> base;       // trial: results for the page as it is now; attend: mass and maximum of every page
  LatentScratch latent;
  Buffer<uint16_t> latentTiles;  // a held page that has no block: n K tiles, then n V tiles
  Workspace workspace() { return workspaceIn(space); }
  size_t bytes() const;
};

// The rows that a call has just appended to an open page in codes, as they were given (f16). The attention that follows
// reads them instead of their codes: a query looks most at the tokens just before it and at its own. They are scratch,
// so the next append to any layer replaces them.
struct FreshRows {
  int layer = -1;           // -1: none
  int length;               // of the layer
  int first;                // row of the open page
  int count;
  int room;                 // as OpenPage::room
  Buffer<uint16_t> halves;  // n K tiles [d][room], then n V tiles [room][d]
};

// The crew and its scratch, shared by all caches of a pool and used by one call at a time: for as many threads as any
// of the caches asked for, and for the largest shape. The first cache creates the scratch, and it ends with the last.
struct Workers {
  // Makes sure that there are at least `count` threads.
  void grow(int count) {
    if (scratch.size() < static_cast<size_t>(count)) scratch.resize(count);
    threads->grow(count);
  }
  explicit Workers(std::shared_ptr<Threads> crew) : threads(std::move(crew)) {}
  const std::shared_ptr<Threads> threads;
  std::deque<Scratch> scratch;
  Buffer<float> partial;  // results of history ranges before they are merged
  Buffer<float> mass;     // of every result line and page
  Buffer<uint64_t> skipped;  // [items][2]
  Buffer<float> delta;
  Mover mover;
  // Sketches that caches hold: those of one model have the same.
  std::vector<std::weak_ptr<const std::vector<uint16_t>>> sketches;
  // The one among them that has these numbers, or this one from now on.
  std::shared_ptr<const std::vector<uint16_t>> shared(std::shared_ptr<const std::vector<uint16_t>> sketch);
  size_t bytes() const;
};

// A page from outside, none of which is trusted. The bytes of page 0 are followed by the sinks.
struct StoredPage {
  PageKind kind;
  int formats[2];    // of keys and values; used when kind is kResident
  int latentFormat;  // -1 for none
  int latentWidth;
  const uint8_t* bytes;
  size_t size;
};

// One side of a page from outside, not trusted either.
struct StoredSide {
  int format;
  const uint8_t* bytes;
  size_t size;
};

struct Predictor;

// cos and sin of positions from 0 on, [tokens][rotaryDim/2].
struct RotaryRows {
  const float* cos;
  const float* sin;
  int rotaryDim;
  bool interleaved;
};

// All pages of a cache, none of which is trusted: page after page, and of each layer by layer.
struct PageRecord {
  bool isPredicted;
  PageKind kind = kResident;  // kResident, kForeign, or one of which at most the sinks are left, as it is stored
  int formats[2];  // of keys and values, in which the page is to be
  // A page as it is stored is like StoredPage. Predicted: the sinks of page 0 (rows of keys, then of values, f16), and
  // residuals (predictor.h).
  const uint8_t* bytes;
  size_t size;
};
struct PageRecords {
  int pages;
  const PageRecord* records;   // [pages][layers]
  const Predictor* predictor;  // null if none is predicted
  RotaryRows rotary;           // from the first page of the cache to the last of these, where some are predicted
  int* damaged;                // <- the first record that is damaged
};

struct CacheMemory {
  size_t open;
  size_t sinks;
  size_t pages;
  size_t scratch;
};

// Whether every |x| <= largest; false for NaN.
bool withinMagnitude(const float* x, size_t count, float largest);
// Converts to halves. What exceeds their range (a code of 65,504 decodes to slightly more) becomes the largest half,
// not infinity.
void halvesOf(const Kernels* kernels, const float* x, uint16_t* halves, size_t count);

class Cache : public PartOwner {
 public:
  // Uses none of the budget: everything that counts is allocated with tokens.
  static std::unique_ptr<Cache> open(std::shared_ptr<Account> account, const Kernels* kernels, CacheOptions options);
  ~Cache() override;

  const CacheShape& shape() const { return options_.shape; }
  const CacheOptions& options() const { return options_; }
  Account& account() const { return *account_; }
  void setSkipShare(float share) { options_.skipShare = share; }
  const Kernels* kernels() const { return kernels_; }
  SideShape sideShape(bool isKey) const { return {isKey, options_.shape.kvHeads, options_.shape.headDim, places_}; }
  Layer& layer(int index) { return layers_[index]; }
  const Layer& layer(int index) const { return layers_[index]; }
  // Pages that the first layer has sealed.
  int heldPages() const { return layers_[0].sealed(); }
  Workers& workers() { return *workers_; }

  // k, v: [T][n][d]. All or nothing. See FreshRows for what the attention that follows reads.
  Status append(int layer, const float* k, const float* v, int tokens);
  struct Appending;
  // The same in two steps, for several caches of which all append or none (batch.h). A draft does everything that can
  // fail, changes nothing that can be seen, and may be dropped. `before`: bytes that drafts of other caches add when
  // they are made first. Nothing may happen to the layer until the draft is made.
  Status draftAppend(int layer, const float* k, const float* v, int tokens, const Pending& before, Appending* draft);
  void makeAppend(int layer, const float* k, const float* v, int tokens, Appending draft);
  // Moves one side of a page, or both, to a format, for every cache that shares the page. freed: bytes by which the
  // account's count fell.
  Status transcode(int layer, int page, Sides sides, int to, double* freed);
  // The same in the background: the page stays as it is until finishMoves(). Like transcode() and hold(), it is refused
  // while one of these sides is already moving, here or in a fork. The new bytes count once they are in place; until
  // then their room is reserved.
  Status startMove(int layer, int page, Sides sides, int to);
  size_t movesUnderWay() const { return moves_.size(); }
  // Puts moves in place in the order of their start, up to the first that is not yet encoded, or (wait) all of them.
  // results: [movesUnderWay()]. Returns how many it finished.
  size_t finishMoves(bool wait, MoveResult* results);
  // out: [tokens][n][d]. page == sealed() means the open page.
  void decode(int layer, int page, bool isKey, float* out);
  // Keys or values of one head of a sealed page as rows `stride` apart, with exact sinks, however the page is held.
  void materialize(int layer, int page, bool isKey, int head, float* rows, size_t stride, Scratch& scratch) const;
  // Forgets the rows from `tokens` on in every layer: rows of the open page, or, while no move is under way, whole
  // sealed pages and all behind them; not so far back that a freed page would be seen again. Mass is counted per page,
  // so the share of remaining open rows is unknown, and the open page's count starts from zero again.
  Status truncate(int tokens);
  void setSketch(int layer, const float* sketch);
  bool hasSketch(int layer) const;
  CacheMemory memory() const;
  // Bytes beside those of the pool: this cache's own, and its share of what it has together with forks or with all
  // caches of the pool.
  size_t besideBytes() const;
  size_t sealBytes() const;
  // Bytes by which the count grows when `tokens` are appended to a layer.
  size_t appendBytes(int layer, int tokens) const;
  std::unique_ptr<Cache> fork(Status* status) const;
  // Begins with the first sealed pages of another cache of the same pool, of which it is no fork; this one is empty.
  // Each goes on as its own: a move of such a page is one for both, and everything else that becomes of it is one's
  // own. Refused for pages that are moving, freed or evicted, and for caches with latents.
  Status adopt(Cache& from, int pages);
  // Bytes of keys and values that it holds together with caches that are no forks of it, or did.
  size_t commonBytes() const;
  // The count of its account, and those bytes.
  double countedBytes() const { return static_cast<double>(account_->usedBytes()) + static_cast<double>(commonBytes()); }
  // The most that was counted at any time when it was asked, or that its account ever was.
  double peakBytes();

  // Weights of a layer's latents; refused once the layer holds a latent. rotary: for all layers, null for none.
  Status setLatentLayer(int layer, std::shared_ptr<const LatentLayer> weights);
  Status setRotary(std::shared_ptr<const RotaryTable> rotary);
  void setLatentScratch(size_t bytes);
  // Replaces keys and values of a sealed page by its latent: latentBytes() of them. freed: as in transcode.
  Status hold(int layer, int page, int format, const uint8_t* bytes, double* freed);
  // Stores the latent of a sealed page beside its keys and values. A page has at most one latent.
  Status keep(int layer, int page, int format, const uint8_t* bytes);
  // Keeps the present form of a side when the side moves on. Takes bytes only from then on, because until then the two
  // share their parts. A side keeps one original at most. Refused while the side is moving, and for pages held as
  // latents.
  Status keepOriginal(int layer, int page, bool isKey);
  // Forgets a kept original, or puts it back in place of the present form, which is freed. freed: as in transcode.
  Status dropOriginal(int layer, int page, bool isKey, double* freed);
  Status restoreOriginal(int layer, int page, bool isKey, double* freed);
  // Keeps some rows of a side as they are now, in 8 bits (kept_rows.h). places: [count], at least one, at most
  // kKeptRowsMax. A side keeps rows once at most; those of sinks are none. Refused as keepOriginal.
  Status keepRows(int layer, int page, bool isKey, const uint16_t* places, int count);
  // Forgets them. freed: as in transcode.
  Status dropRows(int layer, int page, bool isKey, double* freed);
  // Holds a page that has a latent as that latent alone, or as a lower one made of it. freed: as in transcode.
  Status toLatent(int layer, int page, int format, double* freed);
  // Lets go of a sealed page that no query from now on sees through the sliding window of its layer; forks that share
  // the page keep it. Refused for others, and while the page is moving. freed: as in transcode.
  Status freePage(int layer, int page, double* freed);
  // Lets go of a sealed page, for every cache that shares it: attention skips it from then on, and other tokens keep
  // their positions. Sinks stay, because they are not among its rows. Refused while the page is moving. freed: as in
  // transcode.
  Status evictPage(int layer, int page, double* freed);
  // Holds a sealed page as bytes that the caller made of its keys and values, for every cache that shares it;
  // everything else of it is freed. For attention it is evicted (attend.h: Beside). Refused for pages that are gone,
  // and while the page is moving. freed: as in transcode.
  Status holdForeign(int layer, int page, const uint8_t* bytes, size_t size, double* freed);
  // Makes a foreign page again of rows, k and v: [128][n][d], both in `format`. freed: as in transcode.
  Status restoreForeign(int layer, int page, int format, const float* k, const float* v, double* freed);
  // Whether attention skips a page that begins at `position` or later, or holds it.
  bool isEvictedFrom(int layer, int position) const;
  // Whether a query at `position`, or a later one, sees a freed page among the first `pages` of a layer.
  bool seesFreed(int layer, int position, int pages) const;
  // Forgets a latent that is kept beside keys and values.
  Status dropLatent(int layer, int page, double* freed);
  // Recomputes keys and values of a page from its latent, both in `format`. The latent is then freed or kept beside
  // them.
  Status restore(int layer, int page, int format, bool keepsLatent, double* freed);
  // Bytes of a stored page: the parts of keys and of values, the latent, and the sinks for page 0.
  size_t storedBytes(int layer, int page) const;
  // out: [storedBytes()].
  void exportPage(int layer, int page, uint8_t* out) const;
  // One side of a resident page as bytes, the parts of its format one behind the other: sideBytes() of them.
  void exportSide(int layer, int page, bool isKey, uint8_t* out) const;
  // Puts such bytes in place of one side, for every cache that shares the page. A kept original stays what it was.
  // Answers kUnsupported while the side is moving, for pages held as latents and for formats that do not serve the head
  // size, kBadShape when sizes disagree, and kBadValue when a row would not be finite. freed: as in transcode.
  Status exchangeSide(int layer, int page, bool isKey, const StoredSide& stored, double* freed);
  // Adds a stored page after the last one. Answers kUnsupported unless the layer ends at a page boundary (or for a
  // latent without weights), kBadShape when sizes disagree, kBadValue when a row would not be finite. All or nothing.
  Status importPage(int layer, const StoredPage& stored);
  // Puts all pages of a cache in place at once, behind those that it was given by adopt(), if any. Answers kBadValue
  // for a record that is damaged or holds rows that are no numbers, and as importPage does. All or nothing.
  Status importPages(const PageRecords& given);
  // Recomputes the latent pages in [from, to) of a layer that attention will read, as far as blocks have room.
  void prepareLatents(int layer, int from, int to);
  // Where the f16 tiles of one head of a held page are: in its block, or in the scratch of the thread.
  void latentViews(int layer, int page, int head, Scratch& scratch, SideView* k, SideView* v) const;
  // Recomputes some heads of a held page into the scratch, unless the page has a block.
  void fillLatent(int layer, int page, int firstHead, int heads, Scratch& scratch) const;

  void visitParts(uint32_t walk, const std::function<void(PartRef&)>& visit) override;

  // The shape of a side of an open page with this room, which is not 0.
  SideShape openShape(bool isKey, int room) const { return {isKey, options_.shape.kvHeads, options_.shape.headDim, openPlaces_[roomIndex(room)]}; }
  // The rows that the last call appended to this layer, null if it was not the last or if they are not codes.
  const FreshRows* freshRows(int layer) const;
  // One head of them as an f16 page side.
  SideView freshView(bool isKey, int head) const;
  // Whether the rows of an open page are codes, beside which the sinks are kept.
  bool codesOpenRows() const { return isCoded(options_.openFormat); }
  // Sink rows of one head, [4][d] half.
  const uint16_t* sinkRows(const Layer& layer, bool isKey, int head) const { return sinkRows(layer.sinks, isKey, head); }
  const uint16_t* sinkRows(const PartRef& sinks, bool isKey, int head) const;
  // Overwrites rows 0..3 with the exact sinks.
  void restoreSinks(const Layer& layer, bool isKey, int head, float* rows, size_t stride) const;

 private:
  Cache(std::shared_ptr<Account> account, const Kernels* kernels, CacheOptions options);
  static constexpr int kRooms = 4;  // 16, 32, 64, 128
  static int roomFor(int rows) {
    int room = rows > 0 ? kOpenRowsLeast : 0;
    while (room < rows) room *= 2;
    return room;
  }
  static int roomIndex(int room) { return room == 16 ? 0 : room == 32 ? 1 : room == 64 ? 2 : 3; }
  size_t openBytes(int room) const { return room == 0 ? 0 : 2 * sideBytes(options_.openFormat, shape().kvHeads, shape().headDim, room); }
  size_t sinkBytes() const { return options_.shape.rowElements() * kSinkTokens * 4; }
  // What appending `tokens` to a layer does to its memory.
  struct Growth {
    int seals = 0;      // pages that are sealed
    int room = 0;       // room of the larger open page, 0 if the present one is large enough
    int lastRoom = 0;   // room of the open page after the last seal, where open pages become sealed ones
    bool sinks = false; // whether sinks are allocated
    size_t added = 0;   // bytes allocated
    size_t freed = 0;   // bytes of the open page that is replaced
  };
  Growth growthBy(const Layer& layer, int tokens) const;
  // Drafts a larger open page with the rows of `from`, and the sinks if they are due; neither is counted yet. False
  // when memory ran out.
  bool draftGrowth(const Layer& from, const Growth& growth, OpenPage& open, PartRef& sinks) const;
  // An empty open page, not counted yet. False when memory ran out.
  bool draftOpen(int room, OpenPage& open) const;
  void countOpen(const Layer& layer) const;
  // What sealing one page needs, not counted yet.
  struct Seal {
    std::shared_ptr<Page> page;  // with the sides that an open page in f16 is encoded to
    OpenPage next;               // the open page after it, where the present one becomes the sealed page
  };
  // Drafts a seal after which there is room for `nextRoom` tokens where a new open page follows. False when memory ran
  // out.
  bool draftSeal(int nextRoom, Seal& seal);
  // Whose keys and values of a page are.
  Account& accountOf(const Page& page) const { return page.isCommon() ? *page.body->account : *account_; }
  static void reservePages(Layer& layer, int more);
  // Makes the full open page a sealed one.
  void seal(Layer& layer, Seal seal);
  void encodeOpen(Layer& layer, Page& page);
  // The room that rows of a call need and that there is not yet, cleared; empty where there is enough.
  Buffer<uint16_t> draftFresh(int tokens) const;
  // k, v: of the last `tokens` tokens of a layer.
  void keepFresh(int layer, const float* k, const float* v, int tokens);
  void forgetRows(Layer& layer, int row);
  void dropPages(Layer& layer, int pages);
  Status draftMove(int layer, int page, Sides sides, int to, Move& move) const;
  double putInPlace(Move& move);
  MoveResult commitMove(Move& move);
  void dropMoves();
  void write(Layer& layer, const float* k, const float* v, int row, int count);
  bool areHalves(const uint16_t* halves, size_t count) const;
  // Whether every row of a resident page decodes to finite numbers. rows: [128][d], overwritten. space: of
  // decodeSpace(d).
  bool holdsNumbers(const Page& page, float* rows, Workspace space) const;
  bool holdsNumbers(const PageSide& side, bool isKey, float* rows, Workspace space) const;
  struct PageWork;
  struct Drafts;
  Status checkRecords(const PageRecords& given, size_t* bytes) const;
  bool draftPages(const PageRecords& given, Drafts* drafts);
  int readRecords(const PageRecords& given, const Drafts& drafts);
  bool readStored(const PageRecords& given, int at, Page& page, const std::vector<PartRef>& sinks, const RotaryRows* reversed, PageWork& work) const;
  bool readPredicted(const PageRecords& given, int at, Page& page, const std::vector<PartRef>& sinks, PageWork& work) const;
  bool rotaryReaches(int page) const { return !rotary_ || (page + 1) * kPageTokens <= rotary_->positions(); }
  // Whether scales and mean of a latent are finite, and all keys and values recomputed from it are in the range of f16.
  bool recomputesToHalves(const PageLatent& latent, int page);
  // Whether a page has no latent yet and may get one now.
  bool mayHaveLatent(const Layer& layer, int page) const;
  PageLatent draftLatent(const Layer& layer, int format, const uint8_t* bytes);
  // A lower latent of a page, made of the one that it has.
  PageLatent draftLower(const PageLatent& from, int format, int page);
  // Holds a page as a latent that recomputes to halves; everything else of it is freed.
  Status holdAs(Page& page, int pageIndex, PageLatent latent, double* freed);
  // Keys or values of one head of a page that has a latent, with exact sinks: [128][d].
  void latentRows(const Layer& layer, int page, bool isKey, int head, float* rows, LatentScratch& scratch) const;
  // Both sides of one head, among the n K tiles and n V tiles of a page.
  void fillTiles(const Layer& layer, int page, int head, uint16_t* tiles, Scratch& scratch) const;

  std::shared_ptr<Account> account_;  // shared with forks; the first member, so that the parts of the layers below are released before it
  const Kernels* kernels_;
  CacheOptions options_;
  SidePlaces places_[kFormatSlots];
  SidePlaces openPlaces_[kRooms][kFormatSlots];  // of the open format, by room
  std::shared_ptr<Workers> workers_;
  std::shared_ptr<LatentBlocks> latents_;  // shared with forks
  std::shared_ptr<const RotaryTable> rotary_;
  std::vector<Layer> layers_;
  double peakBytes_ = 0;  // as it was seen while pages are common
  FreshRows fresh_;
  std::vector<std::unique_ptr<Move>> moves_;  // in the order of their start
};

// Tokens that are about to be appended to a layer.
struct Cache::Appending {
  Growth growth;
  std::vector<Seal> seals;
  OpenPage open;
  PartRef sinks;
  Buffer<uint16_t> fresh;  // replaces FreshRows::halves where it holds more
  size_t grownBytes() const { return growth.added - growth.freed; }
};

}  // namespace palimpsest
