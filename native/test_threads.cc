// The thread pool by itself, for tests: its guarantees cannot be tested through a cache, because results do not depend
// on them. Part of kernels_test, see binding.gyp.
#include <napi.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "cache/threads.h"
#if defined(__linux__)
#include <pthread.h>
#include <signal.h>
#include <time.h>
#endif

namespace palimpsest {

namespace {

int argument(const Napi::CallbackInfo& info, size_t index, int least, int most) {
  const double number = info[index].IsNumber() ? info[index].As<Napi::Number>().DoubleValue() : -1;
  if (!(number >= least && number <= most)) throw Napi::RangeError::New(info.Env(), "an argument is out of range");
  return static_cast<int>(number);
}

// (threads, rounds, most items, seed) -> { wrong, shared, byOthers }: rounds of random size and work, for a random
// number of the threads, without pauses; half of the threads are added midway. An item is wrong if it did not run
// exactly once before each() returned, ran at the same time as another with the same thread number, or ran on a thread
// that the round was not for. shared: rounds in which the caller waited for another thread; byOthers: rounds in which
// another took an item.
Napi::Value threadRounds(const Napi::CallbackInfo& info) {
  const int count = argument(info, 0, 1, 64), rounds = argument(info, 1, 1, 1 << 20), most = argument(info, 2, 1, 4096);
  uint64_t random = static_cast<uint64_t>(argument(info, 3, 0, 1 << 30));
  Threads threads((count + 1) / 2);
  // Deliberately not atomic: the end of each() must order them for the caller, and the thread sanitizer checks that it
  // does.
  std::vector<int> times(most);
  std::vector<unsigned> sums(most);
  std::vector<std::atomic<bool>> busy(count);
  std::atomic<int> overlaps{0}, byOthers{0};
  int wrong = 0, shared = 0;
  for (int round = 0; round < rounds; round++) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const int items = static_cast<int>((random >> 33) % most) + 1;
    const int work = static_cast<int>((random >> 20) % 2000);
    if (round == rounds / 2) threads.grow(count);
    const int allowed = round % 3 == 0 ? 1 + static_cast<int>((random >> 40) % count) : count;
    // In every eighth round the caller stays in its first item until another thread has taken one: without that, a
    // caller whose items take no time would run them all.
    const bool isShared = round % 8 == 0 && items > 1 && std::min(allowed, threads.count()) > 1;
    if (isShared) shared++;
    std::atomic<bool> isMet{false};
    auto task = [&](int item, int thread) {
      if (thread >= allowed || busy[thread].exchange(true)) overlaps++;
      if (thread != 0 && !isMet.exchange(true)) byOthers++;
      while (thread == 0 && isShared && !isMet.load()) std::this_thread::yield();
      unsigned sum = 0;
      for (int i = 0; i < work; i++) sum = sum * 31 + static_cast<unsigned>(item + i);
      sums[item] = sum;
      times[item]++;
      busy[thread].store(false);
    };
    threads.each(items, task, allowed);
    for (int item = 0; item < most; item++) {
      if (times[item] != (item < items ? 1 : 0)) wrong++;
      times[item] = 0;
    }
  }
  Napi::Object found = Napi::Object::New(info.Env());
  found.Set("wrong", Napi::Number::New(info.Env(), wrong + overlaps.load()));
  found.Set("shared", Napi::Number::New(info.Env(), shared));
  found.Set("byOthers", Napi::Number::New(info.Env(), byOthers.load()));
  return found;
}

#if defined(__linux__)

void nap() {
  const timespec time{0, 200000};
  nanosleep(&time, nullptr);
}

volatile sig_atomic_t held = 0;  // threads wait in their handlers while set
std::atomic<int> inHandler{0};

void holdStill(int) {
  inHandler++;
  while (held) nap();
  inHandler--;
}

// Runs one item on every thread at the same time and returns the threads.
std::vector<pthread_t> meetAll(Threads& threads) {
  std::vector<pthread_t> who(threads.count());
  std::atomic<int> here{0};
  auto task = [&](int, int thread) {
    who[thread] = pthread_self();
    here++;
    while (here.load() < threads.count()) nap();
  };
  threads.each(threads.count(), task);
  return who;
}

// (threads, rounds) -> how many items the caller ran. Every other thread is stopped in a signal handler, wherever it
// is, as if the system did not schedule it; if each() waited for one of them, this would never return. Afterwards they
// go on, and every thread runs one more item.
Napi::Value stoppedThreads(const Napi::CallbackInfo& info) {
  const int count = argument(info, 0, 2, 64), rounds = argument(info, 1, 1, 1 << 20);
  Threads threads(count);
  const std::vector<pthread_t> who = meetAll(threads);
  const int signal = SIGRTMIN + 7;
  struct sigaction mine = {}, before = {};
  mine.sa_handler = holdStill;
  sigaction(signal, &mine, &before);
  held = 1;
  for (int thread = 1; thread < count; thread++) pthread_kill(who[thread], signal);
  while (inHandler.load() < count - 1) nap();
  int ran = 0;
  auto task = [&](int, int thread) { ran += thread == 0 ? 1 : 0; };
  for (int round = 0; round < rounds; round++) threads.each(2 + round % (2 * count), task);
  held = 0;
  while (inHandler.load() > 0) nap();
  meetAll(threads);
  sigaction(signal, &before, nullptr);
  return Napi::Number::New(info.Env(), ran);
}

#endif

}  // namespace

void exportThreads(Napi::Env env, Napi::Object exports) {
  exports.Set("threadRounds", Napi::Function::New(env, threadRounds, "threadRounds"));
#if defined(__linux__)
  exports.Set("stoppedThreads", Napi::Function::New(env, stoppedThreads, "stoppedThreads"));
#endif
}

}  // namespace palimpsest
