#include "threads.h"

namespace palimpsest {

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
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::run(int items, Call call, void* context) {
  if (workers_.empty() || items <= 1) {
    for (int item = 0; item < items; item++) call(context, item, 0);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    call_ = call;
    context_ = context;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    running_ = static_cast<int>(workers_.size());
    round_++;
  }
  wake_.notify_all();
  drain(0);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
}

void Threads::drain(int thread) {
  for (int item = next_.fetch_add(1); item < items_; item = next_.fetch_add(1)) call_(context_, item, thread);
}

void Threads::work(int thread) {
  unsigned long seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    drain(thread);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace palimpsest
