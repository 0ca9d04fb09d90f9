#include "threads.h"

#include <algorithm>

#include "../layout.gen.h"

namespace palimpsest {

namespace {

constexpr int kStopped = -1;
constexpr int kAll = 1 << 30;
// The low bits of left_ count the items of a round; the bits above hold the number of threads that may take them.
constexpr int kItemBits = 24;
constexpr int kItemsMost = (1 << kItemBits) - 1;
static_assert(kThreadsMax < 1 << (31 - kItemBits));

int itemsOf(int left) { return left & kItemsMost; }
bool mayTake(int left, int thread) { return left > 0 && thread < left >> kItemBits; }

#if defined(__wasm__)
// There is only one thread, so there is nobody to wait for.
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

void Threads::grow(int count) {
  workers_.reserve(count > 1 ? count - 1 : 0);
  for (int thread = this->count(); thread < count; thread++) workers_.push_back(startThread([this, thread] { work(thread); }));
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
  wake(left_, kAll);
  for (Thread& worker : workers_) worker.join();
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
  // If not all threads may take items, wake all of them: otherwise one that may take none could be woken in place of
  // one that may.
  wake(left_, threads < count() ? kAll : std::min(items, threads) - 1);
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
  if (done_.fetch_add(1) + 1 == items) wake(done_, 1);
  return true;
}

void Threads::work(int thread) {
  for (;;) {
    while (runOne(thread)) {
    }
    const int left = left_.load();
    if (left == kStopped) return;
    if (!mayTake(left, thread)) sleepWhile(left_, left);
  }
}

}  // namespace palimpsest
