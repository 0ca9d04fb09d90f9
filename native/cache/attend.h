// Causal attention of the last T tokens of a layer over sinks, pages of every format and the open page, in one softmax.
#pragma once
#include "batch.h"

namespace palimpsest {

// q: [T][H][d] -> out: [T][H][d]. xNorms: [T] or null. lse: [T][H] or null. observe: keep queries for trials and count
// mass per page. Answers kBadShape when the layer holds fewer than T tokens.
Status attend(Cache& cache, int layer, const float* q, int tokens, float* out, const float* xNorms, float* lse, bool observe);
// The same for every member, in one round of the threads: as many as each of them allows. Where one is refused, nothing
// is counted or kept of any.
Status attend(std::span<const Member> members, int layer, const float* q, float* out, const float* xNorms, float* lse, bool observe, size_t* refused);

}  // namespace palimpsest
