// What steers the codes of keys: the metric of the queries that a layer keeps, factored for every KV head
// (native/reference/steering.ts).
#pragma once
#include <memory>
#include <vector>

#include "../kernels/kernels.h"

namespace palimpsest {

struct CacheShape;
struct KeptQueries;

class Steering {
 public:
  // Null for values, for formats that are not steered, and where no query is kept.
  static std::shared_ptr<const Steering> of(const Kernels* kernels, const KeptQueries& kept, const CacheShape& shape, bool isKey, int format);
  // Null where the queries of the head are zero.
  const KeySteering* head(int head) const { return heads_[head].weights ? &heads_[head] : nullptr; }

 private:
  std::vector<float> numbers_;  // [n][d][d], then [n][d]
  std::vector<KeySteering> heads_;
};

// What steers the keys of a head, null where nothing does.
inline const KeySteering* headOf(const std::shared_ptr<const Steering>& steering, int head) { return steering ? steering->head(head) : nullptr; }

}  // namespace palimpsest
