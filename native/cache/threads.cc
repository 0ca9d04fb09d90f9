#include "threads.h"

#include <algorithm>

#include "../layout.gen.h"

namespace palimpsest {

namespace {

constexpr int kStopped = -1;
// The low bits of left_ count the items of a round; the bits above hold the number of threads that may take them.
constexpr int kItemBits = 24;
constexpr int kItemsMost = (1 << kItemBits) - 1;
static_assert(kThreadsMax < 1 << (31 - kItemBits));

int itemsOf(int left) { return left & kItemsMost; }
bool mayTake(int left, int thread) { return left > 0 && thread < left >> kItemBits; }

#if defined(__wasm__)
// There is only one thread, so there is nobody to wait for.
void sleepWhile(const std::atomic<int>&, int) { __builtin_trap(); }
void notify(std::atomic<int>&) {}
#else
void sleepWhile(const std::atomic<int>& number, int value) { number.wait(value); }
void notify(std::atomic<int>& number) { number.notify_one(); }
#endif

}  // namespace

void Threads::grow(int count) {
  for (int thread = this->count(); thread < count; thread++) {
    Worker& worker = workers_.emplace_back();
    try {
      worker.thread = startThread([this, &worker, thread] { work(worker, thread); });
    } catch (...) {
      workers_.pop_back();
      throw;
    }
  }
}

Threads::Threads(int count) {
  try {
    grow(count);
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() { stop(); }

void Threads::stop() {
  if (workers_.empty()) return;
  left_.store(kStopped);
  wake(count());
  for (Worker& worker : workers_) worker.thread.join();
}

// Calls threads 1 to threads - 1.
void Threads::wake(int threads) {
  for (int thread = 1; thread < threads; thread++) {
    std::atomic<int>& calls = workers_[thread - 1].calls;
    calls.fetch_add(1);
    notify(calls);
  }
}

void Threads::run(int items, int threads, Call call, void* context) {
  if (threads <= 1 || items <= 1 || items > kItemsMost) {
    for (int item = 0; item < items; item++) call(context, item, 0);
    return;
  }
  call_ = call;
  context_ = context;
  items_ = items;
  done_.store(0);
  left_.store(threads << kItemBits | items);
  wake(std::min(items, threads));
  while (runOne(0)) {
  }
  for (int done = done_.load(); done != items; done = done_.load()) sleepWhile(done_, done);
}

// Takes an item and runs it; false when none is left for this thread. The item belongs to the current round even if
// `left` was read in an earlier one: that round ended with nothing left, and the current one cannot end before the item
// taken from it is done.
bool Threads::runOne(int thread) {
  int left = left_.load();
  do {
    if (!mayTake(left, thread)) return false;
  } while (!left_.compare_exchange_weak(left, itemsOf(left) == 1 ? 0 : left - 1));
  const int items = items_;
  call_(context_, items - itemsOf(left), thread);
  if (done_.fetch_add(1) + 1 == items) notify(done_);
  return true;
}

// Whoever calls it after `seen` was read wakes it, and what was there before that it finds.
void Threads::work(Worker& own, int thread) {
  for (;;) {
    const int seen = own.calls.load();
    while (runOne(thread)) {
    }
    if (left_.load() == kStopped) return;
    sleepWhile(own.calls, seen);
  }
}

}  // namespace palimpsest
