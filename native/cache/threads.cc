#include "threads.h"

#include <algorithm>

namespace palimpsest {

namespace {

constexpr int kStopped = -1;

#if defined(__wasm__)
// One thread: nobody to wait for.
void sleepWhile(const std::atomic<int>&, int) { __builtin_trap(); }
void wake(std::atomic<int>&, int) {}
#else
void sleepWhile(const std::atomic<int>& number, int value) { number.wait(value); }

void wake(std::atomic<int>& number, int threads) {
  if (threads > 4) {
    number.notify_all();
    return;
  }
  for (int thread = 0; thread < threads; thread++) number.notify_one();
}
#endif

}  // namespace

Threads::Threads(int count) {
  workers_.reserve(count > 1 ? count - 1 : 0);
  try {
    for (int thread = 1; thread < count; thread++) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() { stop(); }

void Threads::stop() {
  if (workers_.empty()) return;
  left_.store(kStopped);
  wake(left_, 1 << 30);
  for (std::thread& worker : workers_) worker.join();
}

void Threads::run(int items, Call call, void* context) {
  if (workers_.empty() || items <= 1) {
    for (int item = 0; item < items; item++) call(context, item, 0);
    return;
  }
  call_ = call;
  context_ = context;
  items_ = items;
  done_.store(0);
  left_.store(items);
  wake(left_, std::min(items, count()) - 1);
  while (runOne(0)) {
  }
  for (int done = done_.load(); done != items; done = done_.load()) sleepWhile(done_, done);
}

// Takes an item and runs it; false when none is left. What it took belongs to the round of now, even if `left` was read in
// an earlier one: that round ended with nothing left, and this one cannot end before the item that was taken is done.
bool Threads::runOne(int thread) {
  int left = left_.load();
  do {
    if (left <= 0) return false;
  } while (!left_.compare_exchange_weak(left, left - 1));
  const int items = items_;
  call_(context_, items - left, thread);
  if (done_.fetch_add(1) + 1 == items) wake(done_, 1);
  return true;
}

void Threads::work(int thread) {
  for (;;) {
    while (runOne(thread)) {
    }
    if (left_.load() == kStopped) return;
    sleepWhile(left_, 0);
  }
}

}  // namespace palimpsest
