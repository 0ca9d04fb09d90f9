// A few threads that sleep until there is work. each() runs task(context, item, thread) for every item and returns when
// all are done; the calling thread takes part as thread 0. Items are independent, so who runs which changes no result.
// Tasks must not throw. With one thread nothing is started.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace palimpsest {

class Threads {
 public:
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }

  template <typename Task>
  void each(int items, Task& task) {
    run(items, [](void* context, int item, int thread) { (*static_cast<Task*>(context))(item, thread); }, &task);
  }

 private:
  using Call = void (*)(void* context, int item, int thread);
  void run(int items, Call call, void* context);
  void work(int thread);
  void stop();
  void drain(int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  int items_ = 0;
  std::atomic<int> next_{0};
  int running_ = 0;
  unsigned long round_ = 0;
  bool stop_ = false;
};

}  // namespace palimpsest
