// A few threads that sleep until there is work. each() runs task(context, item, thread) for every item and returns when
// all are done; the calling thread takes part as thread 0. Items are independent, so who runs which changes no result.
// Tasks must not throw. With one thread nothing is started. A call may be for the first few threads only: then no other takes an item.
//
// The caller waits for nothing but items that another thread has begun: a thread that wakes late, or that the system does
// not let run at all, finds nothing left and sleeps on. There is no lock that a sleeping thread could hold.
#pragma once
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace palimpsest {

// A WebAssembly module has one.
#if defined(__wasm__)
constexpr bool kHasThreads = false;
#else
constexpr bool kHasThreads = true;
#endif

// Items a thread should find: who comes late takes fewer, and nobody waits long for the last one.
constexpr int kItemsAThread = 3;

class Threads {
 public:
  explicit Threads(int count);
  ~Threads();
  // Starts threads until there are so many. Between two calls only.
  void grow(int count);
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }
  // Whether so many multiplications are better shared, where there is somebody to share them with: a sleeping thread of a virtual machine begins some 50 us after it was called, and
  // 8 million are 100 to 200 us on AVX-512 (measured on two virtual cores of a Zen 5; below that two threads took up to twice as long as one).
  static bool worthSharing(int threads, double multiplications) { return threads > 1 && multiplications >= 1 << 23; }

  // threads: how many take part at most.
  template <typename Task>
  void each(int items, Task& task, int threads) {
    run(items, std::min(threads, count()), [](void* context, int item, int thread) { (*static_cast<Task*>(context))(item, thread); }, &task);
  }
  template <typename Task>
  void each(int items, Task& task) {
    each(items, task, count());
  }

 private:
  using Call = void (*)(void* context, int item, int thread);
  void run(int items, int threads, Call call, void* context);
  void work(int thread);
  void stop();
  bool runOne(int thread);

  std::vector<std::thread> workers_;
  // The round: written while nothing is left, read by whoever has taken an item, so never at the same time.
  Call call_ = nullptr;
  void* context_ = nullptr;
  int items_ = 0;
  // On lines of their own: every thread writes them.
  alignas(64) std::atomic<int> left_{0};  // items that nobody has taken, and above them the threads that may; 0 when none is left, kStopped at the end
  alignas(64) std::atomic<int> done_{0};  // items that are finished
};

}  // namespace palimpsest
