// Measures how fast this machine reads memory, the yardstick for the benches. Not part of the package.
//
// One region, in 2 MB pages where the system provides them, is read once by n threads, each reading its own share from
// front to back. The best prefetch distance and number of places of a share to read at once differ between machines.
// Opening therefore tries a few ways and keeps the fastest, so that nothing can beat the stream merely because the
// stream was slow. One thread is timed by the processor time of the process, several by the clock, like everything that
// is compared with it.
#include <napi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kStep = 256;  // four cache lines, the body of every loop

enum Way { kPlain, kAvx2, kAvx512 };

struct Reading {
  size_t ahead;  // bytes
  int places;    // of one share, read in turn
};
constexpr Reading kReadings[] = {{2048, 1}, {4096, 1}, {8192, 1}, {16384, 1}, {2048, 2}, {4096, 4}};

// Each of these reads `bytes` (a multiple of kStep times places) and returns a value that depends on all of them.
// A prefetch past the end is harmless: it never faults.
uint64_t readPlain(const uint8_t* at, size_t bytes, const Reading& how) {
  const size_t share = bytes / how.places;
  uint64_t sum = 0;
  for (size_t i = 0; i < share; i += kStep) {
    for (int p = 0; p < how.places; p++) {
      const uint8_t* from = at + p * share + i;
      for (size_t line = 0; line < kStep; line += 64) {
#if defined(__GNUC__)
        __builtin_prefetch(from + how.ahead + line);
#endif
        for (size_t word = 0; word < 64; word += 8) {
          uint64_t value;
          std::memcpy(&value, from + line + word, 8);
          sum ^= value;
        }
      }
    }
  }
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t readAvx2(const uint8_t* at, size_t bytes, const Reading& how) {
  const size_t share = bytes / how.places;
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t i = 0; i < share; i += kStep) {
    for (int p = 0; p < how.places; p++) {
      const uint8_t* from = at + p * share + i;
      for (size_t line = 0; line < kStep; line += 128) {
        _mm_prefetch(reinterpret_cast<const char*>(from + how.ahead + line), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(from + how.ahead + line + 64), _MM_HINT_T0);
        const auto* v = reinterpret_cast<const __m256i*>(from + line);
        a = _mm256_xor_si256(a, _mm256_load_si256(v));
        b = _mm256_xor_si256(b, _mm256_load_si256(v + 1));
        c = _mm256_xor_si256(c, _mm256_load_si256(v + 2));
        d = _mm256_xor_si256(d, _mm256_load_si256(v + 3));
      }
    }
  }
  alignas(32) uint64_t out[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
  return out[0] ^ out[1] ^ out[2] ^ out[3];
}

__attribute__((target("avx512f"))) uint64_t readAvx512(const uint8_t* at, size_t bytes, const Reading& how) {
  const size_t share = bytes / how.places;
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (size_t i = 0; i < share; i += kStep) {
    for (int p = 0; p < how.places; p++) {
      const uint8_t* from = at + p * share + i;
      const char* next = reinterpret_cast<const char*>(from + how.ahead);
      _mm_prefetch(next, _MM_HINT_T0);
      _mm_prefetch(next + 64, _MM_HINT_T0);
      _mm_prefetch(next + 128, _MM_HINT_T0);
      _mm_prefetch(next + 192, _MM_HINT_T0);
      a = _mm512_xor_si512(a, _mm512_load_si512(from));
      b = _mm512_xor_si512(b, _mm512_load_si512(from + 64));
      c = _mm512_xor_si512(c, _mm512_load_si512(from + 128));
      d = _mm512_xor_si512(d, _mm512_load_si512(from + 192));
    }
  }
  alignas(64) uint64_t out[8];
  _mm512_store_si512(out, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
  uint64_t sum = 0;
  for (uint64_t word : out) sum ^= word;
  return sum;
}
#endif

uint64_t readWith(Way way, const uint8_t* at, size_t bytes, const Reading& how) {
#if defined(__x86_64__)
  if (way == kAvx512) return readAvx512(at, bytes, how);
  if (way == kAvx2) return readAvx2(at, bytes, how);
#endif
  (void)way;
  return readPlain(at, bytes, how);
}

Way bestWay() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kAvx512;
  if (__builtin_cpu_supports("avx2")) return kAvx2;
#endif
  return kPlain;
}

const char* nameOf(Way way) { return way == kAvx512 ? "AVX-512" : way == kAvx2 ? "AVX2" : "plain"; }

uint8_t* allocate(size_t bytes) {
  void* at = nullptr;
  if (posix_memalign(&at, kHugePage, bytes) != 0) return nullptr;
#if defined(__linux__)
  madvise(at, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<uint8_t*>(at);
}

class Stream : public Napi::ObjectWrap<Stream> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Stream",
                       {InstanceMethod<&Stream::read>("read"), InstanceMethod<&Stream::close>("close"),
                        InstanceAccessor<&Stream::way>("way"), InstanceAccessor<&Stream::bytes>("bytes")});
  }

  // bytes: rounded up to whole 2 MB pages.
  explicit Stream(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Stream>(info), way_(bestWay()) {
    const double asked = info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : 0;
    if (!(asked >= 1 && asked <= 8e9)) throw Napi::RangeError::New(info.Env(), "bytes must be between 1 and 8e9");
    bytes_ = (static_cast<size_t>(asked) + kHugePage - 1) / kHugePage * kHugePage;
    at_ = allocate(bytes_);
    if (at_ == nullptr) throw Napi::Error::New(info.Env(), "the system has no memory for the stream");
    for (size_t i = 0; i < bytes_; i += 8) {
      const uint64_t value = i * 0x9e3779b97f4a7c15u;
      std::memcpy(at_ + i, &value, 8);
    }
    choose();
  }

  ~Stream() override { std::free(at_); }

 private:
  void choose() {
    double best = 1e30;
    for (int round = 0; round < 3; round++) {
      for (const Reading& how : kReadings) {
        const double seconds = pass(1, how);
        if (seconds < best) {
          best = seconds;
          how_ = how;
        }
      }
    }
  }

  static double now(int threads) {
    if (threads == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // The seconds of one pass over the region, from when every thread has started until the last is done.
  double pass(int threads, const Reading& how) {
    const size_t unit = kStep * 4;
    const size_t share = bytes_ / threads / unit * unit;
    std::vector<uint64_t> sums(threads);
    std::atomic<int> waiting{threads};
    auto work = [&](int thread) {
      const uint8_t* from = at_ + thread * share;
      waiting--;
      while (waiting > 0) std::this_thread::yield();
      sums[thread] = readWith(way_, from, share, how);
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
    while (waiting > 1) std::this_thread::yield();
    const double start = now(threads);
    work(0);
    for (std::thread& other : others) other.join();
    const double took = now(threads) - start;
    for (uint64_t sum : sums) sink_ ^= sum;
    // Rounding to whole units left out a few bytes; count them at the same speed.
    return took * static_cast<double>(bytes_) / static_cast<double>(share * threads);
  }

  // (threads) → seconds of one pass
  Napi::Value read(const Napi::CallbackInfo& info) {
    if (at_ == nullptr) throw Napi::Error::New(info.Env(), "the stream is closed");
    const double threads = info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : 0;
    if (!(threads >= 1 && threads <= 64) || threads != static_cast<int>(threads)) {
      throw Napi::RangeError::New(info.Env(), "threads must be a whole number from 1 to 64");
    }
    return Napi::Number::New(info.Env(), pass(static_cast<int>(threads), how_));
  }

  void close(const Napi::CallbackInfo&) {
    std::free(at_);
    at_ = nullptr;
  }

  Napi::Value bytes(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), static_cast<double>(bytes_)); }

  // e.g. "AVX-512, 4096 bytes ahead, 1 place"
  Napi::Value way(const Napi::CallbackInfo& info) {
    const std::string places = std::to_string(how_.places) + (how_.places == 1 ? " place" : " places");
    return Napi::String::New(info.Env(), std::string(nameOf(way_)) + ", " + std::to_string(how_.ahead) + " bytes ahead, " + places);
  }

  Way way_;
  uint8_t* at_ = nullptr;
  size_t bytes_ = 0;
  Reading how_ = kReadings[0];
  volatile uint64_t sink_ = 0;
};

// ---- Products: the other limit. Sums stay in registers, and nothing is read from memory.

constexpr int kRounds = 20000;
constexpr int kSums = 24;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) double vnniProducts() {
  __m512i sum[kSums];
  // Unrolled like the loops below, because otherwise gcc keeps the sums in memory.
#pragma GCC unroll 24
  for (int i = 0; i < kSums; i++) sum[i] = _mm512_setzero_si512();
  const __m512i bytes = _mm512_set1_epi8(3);
  for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; i++) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sum[i]) : "v"(bytes));
  }
  return 2.0 * 64 * kSums * kRounds;
}

__attribute__((target("avx2"))) double wordProducts() {
  constexpr int kFew = 8;
  __m256i sum[kFew];
#pragma GCC unroll 8
  for (int i = 0; i < kFew; i++) sum[i] = _mm256_setzero_si256();
  const __m256i words = _mm256_set1_epi16(3);
  for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 8
    for (int i = 0; i < kFew; i++) {
      __m256i product;
      asm volatile("vpmaddwd %1, %1, %0" : "=x"(product) : "x"(words));
      asm volatile("vpaddd %1, %0, %0" : "+x"(sum[i]) : "x"(product));
    }
  }
  return 2.0 * 16 * kFew * kRounds;
}
#endif

// () → int8 operations per second of one thread (a product and a sum count as two), or 0 where no way to do them is
// known
Napi::Value products(const Napi::CallbackInfo& info) {
  double operations = 0;
#if defined(__x86_64__)
  const std::clock_t start = std::clock();
  if (__builtin_cpu_supports("avx512vnni")) operations = vnniProducts();
  else if (__builtin_cpu_supports("avx2")) operations = wordProducts();
  const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  if (took > 0) operations /= took;
#endif
  return Napi::Number::New(info.Env(), operations);
}

Napi::Object start(Napi::Env env, Napi::Object exports) {
  exports.Set("products", Napi::Function::New(env, products, "products"));
  exports.Set("Stream", Stream::define(env));
  return exports;
}

}  // namespace

NODE_API_MODULE(bench_stream, start)
