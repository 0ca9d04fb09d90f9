// A trial measures what attention would lose if one page side, or both, were in another format. It swaps the page's
// contribution to the kept queries of the layer and changes nothing.
//
// A kept query has its log-sum-exp and its output o. Let (l, s) be the exp-sum and the value sum of the page as it is,
// (l', s') those of the page as it would be, and L the kept sum, all relative to one maximum:
//   o' - o = ((s' - l'·o) - (s - l·o)) / (L - l + l')
// In this form the rounding of o is multiplied by (l - l') / (L - l + l'), so it hardly matters while the page keeps
// about the same mass. o and L were recorded when the query was asked. If the page has changed its format since, l and
// s come from its present bytes, which can exceed what L contains; L - l is therefore kept from falling below zero.
//
// If a page held all the mass and would lose nearly all of it, the divisor consists of rounding alone. When the divisor
// is below 1/64 of L (kKnownShare), the rest of the history is therefore ignored: o' is what the page alone would give,
// s' / l'. Both outputs are then means of values, and |o' - o| <= 2 max|v|.
#pragma once
#include "layer.h"

namespace palimpsest {

// The format of a candidate whose sides are the kept originals, as they are. Such a candidate cannot be tried in the
// background.
constexpr int kAsOriginal = -1;
// The format of a candidate whose side has its kept rows as they were, while only those rows are looked at: all else of
// the page is as it is. It is the only candidate of its trial, for one side, and cannot be tried in the background.
constexpr int kAsKeptRows = -2;
// The format of a candidate whose sides are given as rows (GivenRows), likewise, for one side or both.
constexpr int kAsGiven = -3;

// So many pages of a layer, the newest, keep the codes of a form that each of their sides was tried in: sessions try
// pages again up to this age (engine/cache/trials.ts). What a page is tried in is made of its present codes alone, so
// it stays what it is until the page changes.
constexpr int kTriedPages = 9;

// What the page would be: some of its sides in one format, or (kLatentCandidatesFrom + LatentFormat, both sides) held
// as its latent or a lower one.
struct TrialCandidate {
  Sides sides;
  int format;
  // Negative for other candidates.
  int latent() const { return format < kLatentCandidatesFrom ? -1 : format - kLatentCandidatesFrom; }
};

// Keys and values that a page would have, [128][n][d] each; null: as it has them.
struct GivenRows {
  const float* k = nullptr;
  const float* v = nullptr;
};

// What a trial reads of a page.
struct TrialPage {
  const PageSide& k;
  const PageSide& v;
  const PageSide* originals;  // [2]; read by candidates that are kept originals
  const KeptRows* rows;       // [2]; read by candidates that have kept rows
  const PageSide* tried;      // [2]; codes that are there already
  PageSide* fresh;            // [2]; drafted for codes that are to be kept, or empty
  const PageLatent& latent;
  PageKind kind;
  GivenRows given = {};  // read by a candidate that is given as rows
};

// errors: [count]; NaN when no kept query sees the whole page, and for latents with a key or value beyond the range of
// f16. Answers kUnsupported for a candidate that transcode or toLatent would refuse.
Status trial(Cache& cache, int layer, int page, const TrialCandidate* candidates, int count, double* errors);
// The same for a page with these keys, values or both. Answers kBadValue for rows beyond the range of f16.
Status trialGiven(Cache& cache, int layer, int page, const GivenRows& given, double* error);

// Allocates what one thread needs for `rows` query rows of a head, and for latents of this width (0 for none).
void reserveForTrials(Scratch& scratch, const Kernels* kernels, int headDim, int rows, int width);

// The same on the background thread, with the queries kept now. The page's present bytes are kept until the trial is
// finished.
Status startTrial(Cache& cache, int layer, int page, const TrialCandidate* candidates, int count);
// The number of errors that the started and unfinished trials of a cache will report.
size_t startedErrors(const Cache& cache);
// Writes the errors of trials in the order of their start, up to the first that has not ended, or (wait) of all.
// Returns the number of trials.
size_t finishTrials(Cache& cache, bool wait, double* errors);
// Completes the trials of a page that is about to change, whichever cache started them, also one that is no fork and
// holds its keys and values too. finishTrials() reports their results later.
void endTrials(Workers& workers, Page& page);

}  // namespace palimpsest
