// Tokens of several caches in one call, as a step of several conversations has them: append, and attention in one round
// of the threads (attend.h). Each cache holds and answers what it would if it were called alone, to the bit; which
// others are in the call changes nothing but the time.
#pragma once
#include <span>

#include "layer.h"

namespace palimpsest {

// A cache and how many tokens of the call are its own. In q, k, v and whatever else has a row for each token, members
// stand one behind the other. All are of one pool, one shape and one set of kernels, and none is there twice.
struct Member {
  Cache* cache;
  int tokens;
};

// k, v: [tokens of all][n][d]. All append or none. refused: the member that was refused, when the status is not kOk. It
// is the one that would be refused, and for the same reason, if they were called one after the other.
Status append(std::span<const Member> members, int layer, const float* k, const float* v, size_t* refused);

}  // namespace palimpsest
