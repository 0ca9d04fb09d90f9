// Attention of rows of several KV heads over page after page, for tests: any format with any bytes, on a chosen
// instruction set.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cache/rows.h"
#include "test_call.h"

namespace palimpsest {

namespace {

constexpr int kMostRows = 64;
constexpr int kMostPages = 16;

// (isa, d, heads, perHead, pages, last, window, inRuns, skipShare, cap (0: none), formats [pages][2], bytes
// [pages][2][heads][TestSide::bytes], q [rows][d], position [rows], slope [rows] or [0], sinkRows [2][heads][4][d] or
// [0], max <- [rows], sum <- [rows], mixed <- [rows][d], skipped <- [2], mass, top <- [rows][pages], of pages met in
// runs) Page p is tokens [128p, 128p + 128), the last page only the first `last` of them. If sinkRows is given, it
// replaces the first four tokens of page 0. inRuns: consecutive pages of which every row sees all tokens are met in one
// call.
void attendPages(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int d = call.headDim(), heads = call.integer(1, 16), perHead = call.integer(1, kMostRows), pages = call.integer(1, kMostPages);
  const int last = call.integer(1, kPageTokens), window = call.integer(0, INT_MAX);
  const bool inRuns = call.flag();
  const float skipShare = call.number(), cap = call.number();
  const int rows = heads * perHead, sides = 2 * heads;
  if (rows > kMostRows) call.fail("has too many rows");
  const auto* formats = call.array<int32_t>(static_cast<size_t>(pages) * 2);
  for (int i = 0; i < 2 * pages; i++) {
    if (!isFormat(formats[i])) call.fail("is no format");
  }
  const size_t bytes = TestSide::bytes(d);
  TestSide all(call.array<uint8_t>(bytes * sides * pages), bytes * sides * pages);
  const auto* q = call.array<float>(static_cast<size_t>(rows) * d);
  const auto* position = call.array<int32_t>(rows);
  size_t slopes = 0, sinks = 0;
  const auto* slope = call.arrayOrNone<float>(rows, &slopes);
  const auto* sinkRows = call.arrayOrNone<float>(static_cast<size_t>(sides) * kSinkTokens * d, &sinks);
  auto* max = call.array<float>(rows);
  auto* sum = call.array<float>(rows);
  auto* mixed = call.array<float>(static_cast<size_t>(rows) * d);
  auto* skipped = call.array<int32_t>(2);
  auto* mass = call.array<float>(static_cast<size_t>(rows) * pages);
  auto* top = call.array<float>(static_cast<size_t>(rows) * pages);

  std::vector<SideView> views;
  for (int page = 0; page < pages; page++) {
    for (int side = 0; side < sides; side++) {
      views.push_back(all.view(formats[2 * page + side / heads], d, bytes * (static_cast<size_t>(page) * sides + side)));
    }
  }

  QueryRows query;
  query.reserve(kernels, d, rows, heads);
  query.begin(rows, heads);
  query.window = window;
  query.alibi = slopes > 0;
  query.skipShare = skipShare;
  query.cap = cap;
  std::copy_n(q, static_cast<size_t>(rows) * d, query.q.data());
  std::copy_n(position, rows, query.position.data());
  if (slopes > 0) std::copy_n(slope, rows, query.slope.data());
  if (sinks > 0) query.sinks(sinkRows, sinkRows + sinks / 2);
  const int oldest = *std::min_element(position, position + rows), newest = *std::max_element(position, position + rows);
  const auto isWhole = [&](int page) {
    if (!inRuns || (page == 0 && sinks > 0) || (page == pages - 1 && last < kPageTokens)) return false;
    return oldest >= (page + 1) * kPageTokens - 1 && (window == 0 || newest - window + 1 <= page * kPageTokens);
  };
  for (int page = 0; page < pages;) {
    const SideView* at = &views[static_cast<size_t>(page) * sides];
    int next = page;
    while (next < pages && isWhole(next)) next++;
    if (next > page) {
      query.run(at, next - page, pages - page, page * kPageTokens, {mass + page, top + page, static_cast<size_t>(pages)});
      page = next;
      continue;
    }
    query.page(at, page * kPageTokens, page == 0 && sinks > 0 ? kSinkTokens : 0, page == pages - 1 ? last : kPageTokens);
    page++;
  }
  query.finish();
  std::copy_n(query.max.data(), rows, max);
  std::copy_n(query.sum.data(), rows, sum);
  std::copy_n(query.mixed.data(), static_cast<size_t>(rows) * d, mixed);
  for (int i = 0; i < 2; i++) skipped[i] = static_cast<int32_t>(query.skipped[i]);
}

}  // namespace

void exportAttend(Napi::Env env, Napi::Object exports) {
  exports.Set("attendPages", Napi::Function::New(env, attendPages, "attendPages"));
}

}  // namespace palimpsest
