// What would attention lose if one page side were in another format? Measured on the kept queries of the layer by swapping
// the page's contribution. Changes nothing.
//
// A kept query has its log-sum-exp and its output o. With (l, s) the exp-sum and the value sum of the page as it is and
// (l', s') of the page as it would be, all in one maximum where the kept sum is L:
//   o' - o = ((s' - l'·o) - (s - l·o)) / (L - l + l')
// Written as a difference, the rounding of o matters only to second order. o and its sum are those of the moment when the query
// was asked: a page that changed its format since is compared with its bytes of now, weighted by what it was then; L - l is
// kept from falling below zero for that reason.
#pragma once
#include "layer.h"

namespace palimpsest {

struct TrialCandidate {
  bool isKey;
  int format;
};

// errors: [count]; NaN when no kept query sees the page whole. kUnsupported for a candidate that transcode would refuse.
Status trial(Cache& cache, int layer, int page, const TrialCandidate* candidates, int count, double* errors);

}  // namespace palimpsest
