#include "kept_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "layer.h"

namespace palimpsest {

bool KeptRows::draft(Account& account, const uint16_t* places, int rows, int headDim) {
  part = account.draft(bytesOf(rows, headDim));
  if (!part) return false;
  std::memset(part.bytes(), 0, part.size());
  std::copy_n(places, rows, reinterpret_cast<uint16_t*>(part.bytes()));
  count = static_cast<uint16_t>(rows);
  return true;
}

int KeptRows::ofHead(int head, int* first) const {
  const uint16_t* from = std::lower_bound(places(), places() + count, head * kPageTokens);
  const uint16_t* to = std::lower_bound(from, places() + count, (head + 1) * kPageTokens);
  *first = static_cast<int>(from - places());
  return static_cast<int>(to - from);
}

void KeptRows::write(const Kernels* kernels, int index, const float* x, int headDim) {
  float largest = 0;
  for (int c = 0; c < headDim; c++) largest = std::max(largest, std::abs(x[c]));
  const float given = largest / 127.0f;
  kernels->toHalf(&given, scales() + index, 1);
  float scale;
  kernels->fromHalf(scales() + index, &scale, 1);
  for (int c = 0; c < headDim && scale > 0; c++) {
    // The scale was rounded, so the largest element can lie a little beyond 127 of it.
    codes(index, headDim)[c] = static_cast<int8_t>(std::nearbyint(std::min(127.0f, std::max(-127.0f, x[c] / scale))));
  }
}

void KeptRows::read(const Kernels* kernels, int index, float* x, int headDim) const {
  float scale;
  kernels->fromHalf(scales() + index, &scale, 1);
  for (int c = 0; c < headDim; c++) x[c] = scale * static_cast<float>(codes(index, headDim)[c]);
}

// ---- The cache

Status Cache::keepRows(int index, int pageIndex, bool isKey, const uint16_t* places, int count) {
  const Layer& layer = layers_[index];
  Page& page = layers_[index].page(pageIndex);
  KeptRows& kept = page.rows[isKey ? 0 : 1];
  if (page.kind != kResident || (page.body->moving & sideBit(isKey)) || kept.isThere()) return kUnsupported;
  const int firstRow = pageIndex == 0 ? kSinkTokens : 0;
  for (int i = 0; i < count; i++) {
    if (places[i] >= shape().kvHeads * kPageTokens || places[i] % kPageTokens < firstRow || (i > 0 && places[i] <= places[i - 1])) return kBadArgument;
  }
  if (!account_->hasRoom(KeptRows::bytesOf(count, shape().headDim))) return kBudgetExceeded;
  KeptRows fresh;
  if (!fresh.draft(*account_, places, count, shape().headDim)) return kNoMemory;
  Scratch& scratch = workers_->scratch[0];
  const size_t d = shape().headDim;
  for (int head = 0; head < shape().kvHeads; head++) {
    int first;
    const int rows = fresh.ofHead(head, &first);
    if (rows == 0) continue;
    materializeHead(kernels_, page.side(isKey).view(sideShape(isKey), head), isKey, shape().headDim, firstRow, sinkRows(layer, isKey, head), scratch.keyRows.data(),
                    d, scratch.workspace());
    for (int i = first; i < first + rows; i++) fresh.write(kernels_, i, scratch.keyRows.data() + places[i] % kPageTokens * d, shape().headDim);
  }
  kept = std::move(fresh);
  account_->count(kept.part);
  return kOk;
}

Status Cache::dropRows(int index, int pageIndex, bool isKey, double* freed) {
  *freed = 0;
  KeptRows& kept = layers_[index].page(pageIndex).rows[isKey ? 0 : 1];
  if (!kept.isThere()) return kUnsupported;
  const double before = static_cast<double>(account_->usedBytes());
  kept = KeptRows();
  *freed = before - static_cast<double>(account_->usedBytes());
  return kOk;
}

}  // namespace palimpsest
