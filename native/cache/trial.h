// What would attention lose if one page side were in another format? Measured on the kept queries of the layer by swapping
// the page's contribution. Changes nothing.
//
// A kept query has its log-sum-exp and its output o. With (l, s) the exp-sum and the value sum of the page as it is and
// (l', s') of the page as it would be, all in one maximum where the kept sum is L:
//   o' - o = ((s' - l'·o) - (s - l·o)) / (L - l + l')
// Written as a difference, the rounding of o is multiplied by (l - l') / (L - l + l'): it hardly matters while the page keeps about the mass
// that it had. o and its sum are those of the moment when the query was asked: a page that changed its format since is compared with
// its bytes of now, weighted by what it was then; L - l is kept from falling below zero for that reason.
//
// A page that held all mass and would lose nearly all of it leaves a divisor that is rounding alone. Below 1/64 of L (kKnownShare) the rest is
// therefore taken as nothing: o' is what the page alone would give, s' / l'. Both are means of values then, and |o' - o| <= 2 max|v|.
#pragma once
#include "layer.h"

namespace palimpsest {

// What the page would be: some of its sides in one format.
struct TrialCandidate {
  Sides sides;
  int format;
};

// errors: [count]; NaN when no kept query sees the page whole. kUnsupported for a candidate that transcode would refuse.
Status trial(Cache& cache, int layer, int page, const TrialCandidate* candidates, int count, double* errors);

// What one thread needs for `rows` query rows of a head.
void reserveForTrials(Scratch& scratch, const Kernels* kernels, int headDim, int rows);

// The same on the background thread, on the queries that are kept now. The page's bytes of now live until it is finished.
Status startTrial(Cache& cache, int layer, int page, const TrialCandidate* candidates, int count);
// How many errors all trials have that were started and not finished.
size_t startedErrors(const Cache& cache);
// Errors of trials in the order of their start, up to the first that has not ended, or of all. → how many trials that were
size_t finishTrials(Cache& cache, bool wait, double* errors);
// Brings those of one page to their end without answering yet, whichever cache started them: it is about to change.
void endTrials(Workers& workers, const Page& page);

}  // namespace palimpsest
