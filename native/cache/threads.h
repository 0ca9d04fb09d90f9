// A few threads that wait until there is work: awake for a moment, since the next round of a step mostly comes at once,
// then asleep. each() runs task(item, thread) for every item and returns when all are
// done; the calling thread takes part as thread 0. Items are independent, so the results do not depend on which thread
// runs which item. Tasks must not throw. With one thread, no other thread is started. A call may be limited to the
// first few threads.
//
// The caller waits only for items that another thread has begun. A thread that wakes late, or that the system does not
// schedule at all, finds nothing left and goes back to sleep. There is no lock that a sleeping thread could hold.
//
// An environment has one crew: attention, the dense half and the log take turns with it, each with as many threads as
// it was told, and a round wakes nobody beyond these.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>

#include "start_thread.h"

namespace palimpsest {

// A WebAssembly module has only one thread.
#if defined(__wasm__)
constexpr bool kHasThreads = false;
#else
constexpr bool kHasThreads = true;
#endif

// Items to make per thread: a thread that comes late then takes fewer, and nobody waits long for the last one.
constexpr int kItemsAThread = 3;

class Threads {
 public:
  explicit Threads(int count);
  ~Threads();
  // Starts threads until there are `count`. Call it between two calls of each() only.
  void grow(int count);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }
  // Whether this many multiplications are worth sharing between threads. A thread that is awake begins within a
  // microsecond. One that sleeps begins some 50 us after it is woken on a virtual machine, and one that the system lets
  // wait for others takes milliseconds, in which 8 million multiplications (100 to 200 us with AVX-512) are done long
  // since: where somebody was that late, less than these are not shared for a while.
  bool worthSharing(int threads, double multiplications) const {
    return threads > 1 && (multiplications >= kManyMultiplications || (multiplications >= kFewMultiplications && !wasLate()));
  }

  // threads: the most that take part.
  template <typename Task>
  void each(int items, Task& task, int threads) {
    run(items, std::min(threads, count()), [](void* context, int item, int thread) { (*static_cast<Task*>(context))(item, thread); }, &task);
  }
  template <typename Task>
  void each(int items, Task& task) {
    each(items, task, count());
  }

 private:
  struct Worker {
    Thread thread;
    std::atomic<int> calls{0};  // it sleeps on this, which changes when it is called
  };
  using Call = void (*)(void* context, int item, int thread);
  void run(int items, int threads, Call call, void* context);
  void work(Worker& own, int thread);
  void wake(int threads);
  void stop();
  bool runOne(int thread);
  bool wasLate() const;

  static constexpr double kFewMultiplications = 1 << 18, kManyMultiplications = 1 << 23;

  std::deque<Worker> workers_;  // of thread 1 and those behind it
  // The current round. It is written while no item is left and read only by threads that have taken an item, so never
  // both at once.
  Call call_ = nullptr;
  void* context_ = nullptr;
  int items_ = 0;
  // Short rounds are not shared until then, and for how long that was decided.
  std::chrono::steady_clock::time_point aloneUntil_{};
  std::chrono::steady_clock::duration alone_{};
  // Each on its own cache line, because every thread writes them.
  alignas(64) std::atomic<int> left_{0};  // low bits: items not yet taken; high bits: threads that may take them; 0: none left; or kStopped
  alignas(64) std::atomic<int> done_{0};  // finished items
};

// As many threads of a crew as one of those who use it was told to have.
class Share {
 public:
  Share(std::shared_ptr<Threads> threads, int count) : threads_(std::move(threads)), count_(count) { threads_->grow(count); }

  int count() const { return count_; }
  bool worthSharing(double multiplications) const { return threads_->worthSharing(count_, multiplications); }
  template <typename Task>
  void each(int items, Task& task) const {
    threads_->each(items, task, count_);
  }

 private:
  std::shared_ptr<Threads> threads_;
  int count_;
};

}  // namespace palimpsest
