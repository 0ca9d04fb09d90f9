// Moves: one side of a page, or both, change their format. Each is planned (checked, and found room for), drafted, encoded and put in place. transcode() does
// all of it in one call. startMove() leaves the encoding to a thread while the cache goes on, and finishMoves() puts in place what is encoded.
//
// That thread reads a sealed page side, which nobody writes, and writes parts that nobody else knows of. Owners and counts of parts
// change on the calling thread only, which also alone knows what is under way. Trials that are started run on it too (trial.h).
//
// A page may be shared with forks. The move belongs to the cache that started it: when that one closes, the move is dropped and the page
// stays as it is; when it finishes it, the page has changed for all of them. A fork that is made meanwhile shares the page as any other.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "buffer.h"
#include "page.h"

namespace palimpsest {

struct Page;

// Which sides of a page: a set of bits.
enum Sides : uint8_t { kKeys = 1, kValues = 2, kBothSides = 3 };
constexpr Sides sideBit(bool isKey) { return isKey ? kKeys : kValues; }

// One page side written in another format. Says nothing about whose it is, so that any thread may run it.
struct Encoding {
  const Kernels* kernels;
  SideShape side;
  int firstRow;
  const uint16_t* sinks;  // rows of this side, [n][4][d] half; read when firstRow is not 0
  const PageSide* from;
  const PageSide* to;  // drafted
  // rows: [128*d].
  void run(float* rows) const;
};

struct Scratch;

// Work for the background thread. It lives until it is done or taken back.
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
  uint8_t sides = 0;    // that are under way
  uint8_t changed = 0;  // those of them that are in another format yet
  PageSide from[2];     // hold the source: keys, values
  PageSide to[2];
  size_t added = 0;     // bytes that are drafted
  Encoding encoding[2];
  PartRef sinks;        // holds what encoding reads of them
};

// A trial that was started (trial.h). Changes nothing, so that it may end whenever it does.
struct StartedTrial : Task {
  const void* owner = nullptr;  // the cache
  const Page* page = nullptr;   // which the cache holds
  PageSide k;                   // hold what is read; empty once it is done and the page was to change
  PageSide v;
  PartRef sinks;
  std::vector<double> errors;
};

// How a move ended: kOk, or kBudgetExceeded when its bytes found no room in the end and the page is as it was.
struct MoveResult {
  Status status;
  double freed;  // as in transcode
};

// A thread that does what the caches of a pool give it, in the order in which it comes, and sleeps when there is nothing. The first task starts it.
class Mover {
 public:
  Mover();
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Everything that can fail: scratch for this head size and so many query rows of trials (0 for moves), and the thread.
  void open(const Kernels* kernels, int headDim, int rows);
  void add(Task* task);
  // True: the task was not begun, and the caller has it back. False: it is done, now at the latest.
  bool take(Task* task);
  size_t bytes() const;

  // Known to the calling thread only.
  std::vector<std::unique_ptr<StartedTrial>> trials;  // in the order of their start
  std::vector<std::unique_ptr<StartedTrial>> spareTrials;

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Task* first_ = nullptr;
  Task* last_ = nullptr;
  Task* running_ = nullptr;
  bool stop_ = false;
  // For the largest head size and the most rows yet. A task keeps the one that it began with, so that a larger one may take its place meanwhile.
  std::shared_ptr<Scratch> scratch_;
  int headDim_ = 0;
  int rows_ = 0;
  std::thread thread_;
};

}  // namespace palimpsest
