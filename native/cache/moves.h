// A move changes the format of one side of a page, or of both. Each move is planned (checked, and room found for it),
// drafted, encoded and put in place. transcode() does all of this in one call. startMove() leaves the encoding to a
// background thread while the cache goes on, and finishMoves() puts encoded moves in place.
//
// The background thread reads a sealed page side, which nobody writes, and writes parts that nobody else knows of. Only
// the calling thread changes the owners and counts of parts and keeps the list of moves under way. Started trials run
// on the background thread too (trial.h).
//
// A page may be shared with forks. A move belongs to the cache that started it: if that cache closes, the move is
// dropped and the page stays as it is; when it finishes the move, the page has changed for all of them. A fork made in
// the meantime shares the page like any other.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "buffer.h"
#include "latent_pages.h"
#include "page.h"
#include "start_thread.h"
#include "steering.h"

namespace palimpsest {

struct Layer;
struct Page;

// Which sides of a page: a set of bits.
enum Sides : uint8_t { kKeys = 1, kValues = 2, kBothSides = 3 };
constexpr Sides sideBit(bool isKey) { return isKey ? kKeys : kValues; }

// Writes one page side in another format. It refers to no cache, so that any thread may run it.
struct Encoding {
  const Kernels* kernels = nullptr;
  SideShape side;
  int firstRow;
  const uint16_t* sinks;  // rows of this side, [n][4][d] half; read when firstRow is not 0
  const PageSide* from;
  const PageSide* to;  // drafted
  std::shared_ptr<const Steering> steering;  // null where the codes of this side are not steered
  // rows: [128*d]. space: of encodeSpace(d).
  void run(float* rows, Workspace space) const;
};

struct Scratch;

// Work for the background thread. It must live until it is done or taken back.
struct Task {
  virtual ~Task() = default;
  // Must not fail, and touches nothing that the calling thread may change meanwhile.
  virtual void run(Scratch& scratch) = 0;
  std::atomic<bool> done{false};
  Task* next = nullptr;  // in the mover's queue
};

struct Move : Task {
  void run(Scratch& scratch) override;
  std::shared_ptr<Page> page;
  uint8_t sides = 0;    // the sides under way
  uint8_t changed = 0;  // those of them that are not yet in the target format
  PageSide from[2];     // keep the source alive: keys, values
  PageSide to[2];
  size_t added = 0;     // drafted bytes
  Encoding encoding[2];  // without kernels where a trial has made the codes
  PartRef sinks;        // keeps the sinks alive while they are read
};

// A trial in the background (trial.h). It changes nothing, so it does not matter when it ends.
struct StartedTrial : Task {
  const void* owner = nullptr;  // the cache
  Page* page = nullptr;         // held by the cache; null once the trial is released
  const Layer* layer = nullptr; // that of the page, in the cache
  int pageIndex = 0;
  PageSide k;                   // k, v, tried, latent, sinks and kept keep alive what the trial reads; release() empties them once it is brought to its end
  PageSide v;
  PageSide tried[2];
  PageSide fresh[2];            // codes that the trial leaves to its page (Page::tried), drafted
  PageLatent latent;
  PartRef sinks;
  std::shared_ptr<const KeptQueries> kept;
  void release();
  std::vector<double> errors;
};

// How a move ended: kOk, or kBudgetExceeded when there was no room for its bytes in the end and the page is unchanged.
struct MoveResult {
  Status status;
  double freed;  // as in transcode
};

// A thread that runs the tasks of a pool's caches in the order in which they arrive, and sleeps when there are none.
// The first open() starts it.
class Mover {
 public:
  Mover();
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Does everything that can fail: allocates scratch for this head size, number of trial query rows (0 for moves),
  // width of latents (0 for none) and number of floats of results, and starts the thread.
  void open(const Kernels* kernels, int headDim, int rows, int width, size_t results);
  void add(Task* task);
  // True: the task had not begun, and the caller has it back. False: it is done; the call waited for it if necessary.
  bool take(Task* task);
  // The same without waiting. False: the task has begun, or is done.
  bool takeWaiting(Task* task);
  size_t bytes() const;

  // Used by the calling thread only.
  std::vector<std::unique_ptr<StartedTrial>> trials;  // in the order of their start
  std::vector<std::unique_ptr<StartedTrial>> spareTrials;

 private:
  void work();
  bool remove(Task* task);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Task* first_ = nullptr;
  Task* last_ = nullptr;
  Task* running_ = nullptr;
  bool stop_ = false;
  // For the largest head size, the most rows, the widest latents and the most results so far. A running task keeps the
  // scratch that it began with, so a larger one may replace it here.
  std::shared_ptr<Scratch> scratch_;
  int headDim_ = 0;
  int rows_ = 0;
  int width_ = 0;
  size_t results_ = 0;
  Thread thread_;
};

}  // namespace palimpsest
