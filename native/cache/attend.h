// Causal attention of the last T tokens of a layer over sinks, pages of every format and the open page, in one softmax.
#pragma once
#include "batch.h"

namespace palimpsest {

// What the caller has computed itself of foreign pages (layer.h), for every row: lse [T][H], the natural logarithm of
// the sum of e^score over the tokens that the row sees there, minus infinity for none; out [T][H][d], the mean of their
// values by these scores. Null: nothing.
struct Beside {
  const float* lse = nullptr;
  const float* out = nullptr;
};

// q: [T][H][d] -> out: [T][H][d]. xNorms: [T] or null. lse: [T][H] or null. observe: keep queries for trials and count
// mass per page. Answers kBadShape when the layer holds fewer than T tokens.
Status attend(Cache& cache, int layer, const float* q, int tokens, float* out, const float* xNorms, float* lse, bool observe, const Beside& beside = {});
// The same for every member, in one round of the threads: as many as each of them allows. Where one is refused, nothing
// is counted or kept of any.
Status attend(std::span<const Member> members, int layer, const float* q, float* out, const float* xNorms, float* lse, bool observe, size_t* refused,
              const Beside& beside = {});

}  // namespace palimpsest
