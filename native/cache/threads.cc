#include "threads.h"

#include <algorithm>
#include <thread>

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

using Clock = std::chrono::steady_clock;

// How long who waits stays awake. Between two rounds of a step lie some 50 us of other work. Of 30, 100, 200 and 400 us
// on two virtual cores, 200 and 400 gave the shortest steps (SmolLM2, 1 and 8 sequences).
constexpr std::chrono::microseconds kAwake{200};
// A thread is late by what it takes beyond as long as the caller itself worked. That counts for a while, and for twice
// as long each time that it comes again soon.
constexpr std::chrono::microseconds kLate{100};
constexpr std::chrono::milliseconds kAlone{50}, kAloneMost{1600};

#if defined(__wasm__)
// There is only one thread, so there is nobody to wait for.
Clock::time_point now() { return {}; }
bool hasCore(int) { return false; }
void stayAwake(const std::atomic<int>&, int) {}
void sleepWhile(const std::atomic<int>&, int) { __builtin_trap(); }
void notify(std::atomic<int>&) {}
#else
Clock::time_point now() { return Clock::now(); }

// Whether there is a core for this many threads and one more.
bool hasCore(int threads) { return threads < static_cast<int>(std::thread::hardware_concurrency()); }

// Tells the processor that this thread only waits.
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

void stayAwake(const std::atomic<int>& number, int value) {
  for (const Clock::time_point end = now() + kAwake; now() < end;) {
    for (int look = 0; look < 16; look++) {
      if (number.load() != value) return;
      relax();
    }
  }
}

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
  const Clock::time_point begun = now();
  while (runOne(0)) {
  }
  const Clock::time_point worked = now();
  for (int done = done_.load(); done != items; done = done_.load()) {
    stayAwake(done_, done);
    sleepWhile(done_, done);
  }
  const Clock::time_point over = now();
  if (over - worked <= worked - begun + kLate) return;
  alone_ = over < aloneUntil_ + alone_ ? std::min<Clock::duration>(2 * alone_, kAloneMost) : kAlone;
  aloneUntil_ = over + alone_;
}

bool Threads::wasLate() const { return now() < aloneUntil_; }

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
  const bool isQuick = hasCore(thread);
  for (;;) {
    const int seen = own.calls.load();
    while (runOne(thread)) {
    }
    if (left_.load() == kStopped) return;
    if (isQuick) stayAwake(own.calls, seen);
    sleepWhile(own.calls, seen);
  }
}

}  // namespace palimpsest
