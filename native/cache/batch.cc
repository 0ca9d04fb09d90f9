#include "batch.h"

namespace palimpsest {

namespace {

// What the first `count` drafts will add.
Pending pendingOf(std::span<const Member> members, const std::vector<Cache::Appending>& drafts, size_t count) {
  const Account* account = &members[count].cache->account();
  Pending pending;
  for (size_t i = 0; i < count; i++) {
    const size_t bytes = drafts[i].grownBytes();
    pending.pool += bytes;
    if (bytes > 0 && &members[i].cache->account() == account) pending.account += bytes;
  }
  return pending;
}

}  // namespace

Status append(std::span<const Member> members, int layer, const float* k, const float* v, size_t* refused) {
  std::vector<Cache::Appending> drafts(members.size());
  const auto eachRows = [&](const auto& work) {
    size_t at = 0;
    for (size_t i = 0; i < members.size(); i++) {
      const size_t elements = members[i].cache->shape().rowElements() * members[i].tokens;
      const Status status = work(i, k + at, v + at);
      if (status != kOk) return *refused = i, status;
      at += elements;
    }
    return kOk;
  };
  const Status status = eachRows([&](size_t i, const float* keys, const float* values) {
    return members[i].cache->draftAppend(layer, keys, values, members[i].tokens, pendingOf(members, drafts, i), &drafts[i]);
  });
  if (status != kOk) return status;
  // From here on nothing can fail.
  return eachRows([&](size_t i, const float* keys, const float* values) {
    members[i].cache->makeAppend(layer, keys, values, members[i].tokens, std::move(drafts[i]));
    return kOk;
  });
}

}  // namespace palimpsest
