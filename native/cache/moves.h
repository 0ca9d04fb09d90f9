// Moves: a page side changes its format. Each is planned (checked, and found room for), drafted, encoded and put in place. transcode() does
// all of it in one call. startMove() leaves the encoding to a thread while the cache goes on, and finishMoves() puts in place what is encoded.
//
// That thread reads a sealed page side, which nobody writes, and writes parts that nobody else knows of. Owners and counts of parts
// change on the calling thread only, which also alone knows what is under way.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "buffer.h"
#include "page.h"
#include "status.h"

namespace palimpsest {

// Bytes that a move allocates, and bytes that the page side gives back.
struct MovePlan {
  size_t added;
  size_t released;
};

// One page side written in another format. Says nothing about whose it is, so that any thread may run it.
struct Encoding {
  const Kernels* kernels;
  SideShape side;
  int firstRow;
  const uint16_t* sinks;  // rows of this side, [n][4][d] half; read when firstRow is not 0
  const PageSide* from;
  const PageSide* to;  // drafted
  // rows, lines: [128*d] each.
  void run(float* rows, float* lines) const;
};

struct Move {
  int layer;
  int page;
  bool isKey;
  PageSide from;  // holds the source
  PageSide to;
  size_t added;
  Encoding encoding;
  std::atomic<bool> done{false};
  Move* next = nullptr;  // in the mover's queue
};

// How a move ended: kOk, or kBudgetExceeded when its bytes found no room in the end and the page is as it was.
struct MoveResult {
  Status status;
  double freed;  // as in transcode
};

// A thread that encodes moves in the order in which they come, and sleeps when there are none. It is started by the first move.
class Mover {
 public:
  Mover() = default;
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Everything that can fail: scratch for this head size, and the thread.
  void open(int headDim);
  // The move must live until it is done or taken back.
  void add(Move* move);
  // True: the move was not begun, and the caller has it back. False: it is done, now at the latest.
  bool take(Move* move);
  size_t bytes() const { return rows_.bytes() + lines_.bytes(); }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Move* first_ = nullptr;
  Move* last_ = nullptr;
  Move* running_ = nullptr;
  bool stop_ = false;
  Buffer<float> rows_;
  Buffer<float> lines_;
  std::thread thread_;
};

}  // namespace palimpsest
