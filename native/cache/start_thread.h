// The threads of the addon. Each has a stack of its own size wherever it runs: a system gives 128 KiB (musl) to 8 MiB
// (glibc) where none is named, and std::thread names none.
#pragma once
#include <memory>
#include <utility>
#if !defined(__wasm__) && !defined(_WIN32)
#include <pthread.h>
#endif

namespace palimpsest {

constexpr size_t kThreadStack = size_t{2} << 20;

#if defined(__wasm__)
using ThreadHandle = int;
#elif defined(_WIN32)
using ThreadHandle = void*;
#else
using ThreadHandle = pthread_t;
#endif

// A running thread, or none. Whoever has it must join() it before it goes.
class Thread {
 public:
  Thread() = default;
  Thread(Thread&& other) noexcept : handle_(other.handle_), isThere_(std::exchange(other.isThere_, false)) {}
  Thread& operator=(Thread&& other) noexcept {
    handle_ = other.handle_;
    isThere_ = std::exchange(other.isThere_, false);
    return *this;
  }
  bool joinable() const { return isThere_; }
  void join();

 private:
  struct Body {
    virtual ~Body() = default;
    virtual void run() = 0;
  };
  template <typename Work>
  struct BodyOf : Body {
    explicit BodyOf(Work given) : work(std::move(given)) {}
    void run() override { work(); }
    Work work;
  };
  template <typename Work>
  friend Thread startThread(Work work);
#if defined(_WIN32)
  static unsigned __stdcall begin(void* body);
#else
  static void* begin(void* body);
#endif
  static Thread start(std::unique_ptr<Body> body);

  ThreadHandle handle_{};
  bool isThere_ = false;
};

// Runs work() on a thread of its own. Where the system gives none, throws std::system_error as std::thread does. work
// must not throw.
template <typename Work>
Thread startThread(Work work) {
  return Thread::start(std::make_unique<Thread::BodyOf<Work>>(std::move(work)));
}

}  // namespace palimpsest
