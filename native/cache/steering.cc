#include "steering.h"

#include "layer.h"

namespace palimpsest {

namespace {

// What an error of scores counts beside an error of keys.
constexpr double kQueryShare = 0.5;

// Whether a format of this build steers keys by the whole metric of the queries, and not by their power in each channel
// alone.
constexpr bool steersByMetric() {
  for (const FormatLayout& format : kFormats) {
    if (format.steering == kPlainKeys || format.steering == kTurnedKeys) return true;
  }
  return false;
}

// Factors the metric of queries [count][d], which may be overwritten. False where all are zero. w: [d][d].
[[maybe_unused]] bool factor(const float* queries, int count, int d, double* w, float* feedback, float* weights) {
  std::fill_n(w, d * d, 0.0);
  for (int r = 0; r < count; r++) {
    const float* q = queries + static_cast<size_t>(r) * d;
    for (int i = 0; i < d; i++) {
      for (int j = 0; j <= i; j++) w[i * d + j] += static_cast<double>(q[i]) * static_cast<double>(q[j]);
    }
  }
  double trace = 0;
  for (int i = 0; i < d; i++) trace += w[i * d + i];
  if (!(trace > 0)) return false;
  const double share = kQueryShare * d / trace;
  for (int i = 0; i < d; i++) {
    for (int j = 0; j <= i; j++) w[i * d + j] = w[i * d + j] * share + (i == j ? 1.0 : 0.0);
  }
  for (int c = d - 1; c >= 0; c--) {
    const double* row = w + c * d;
    weights[c] = static_cast<float>(row[c]);
    for (int i = 0; i < c; i++) {
      const double back = row[i] / row[c];
      feedback[c * d + i] = static_cast<float>(back);
      for (int j = 0; j <= i; j++) w[i * d + j] -= back * row[j];
    }
  }
  return true;
}

// The mean square of queries [count][d] in each channel. False where all are zero.
bool powersOf(const float* queries, int count, int d, float* powers) {
  bool any = false;
  for (int c = 0; c < d; c++) {
    double sum = 0;
    for (int r = 0; r < count; r++) sum += static_cast<double>(queries[static_cast<size_t>(r) * d + c]) * queries[static_cast<size_t>(r) * d + c];
    powers[c] = static_cast<float>(sum / count);
    any |= powers[c] > 0;
  }
  return any;
}

}  // namespace

std::shared_ptr<const Steering> Steering::of(const Kernels* kernels, const KeptQueries& kept, const CacheShape& shape, bool isKey, int format) {
  const Steered steered = kFormats[format].steering;
  if (!isKey || steered == kNoSteering) return nullptr;
  const int d = shape.headDim, group = shape.group();
  auto made = std::make_shared<Steering>();
  const size_t square = steered == kChannelPowers ? 0 : static_cast<size_t>(d) * d;
  made->numbers_.resize(shape.kvHeads * (square + d));
  made->heads_.resize(shape.kvHeads);
  std::vector<float> rows(kTrialQueries * static_cast<size_t>(group) * d);
  std::vector<double> metric(square);
  bool any = false;
  for (int head = 0; head < shape.kvHeads; head++) {
    int count = 0;
    for (int slot = 0; slot < kTrialQueries; slot++) {
      if (kept.position[slot] < 0) continue;
      kernels->fromHalf(&kept.q[slot * shape.queryElements() + static_cast<size_t>(head) * group * d], &rows[static_cast<size_t>(count) * d], group * d);
      count += group;
    }
    if (steered == kTurnedKeys) kernels->rotate(rows.data(), count, d, d, false);
    float* feedback = &made->numbers_[head * square];
    float* weights = &made->numbers_[shape.kvHeads * square + static_cast<size_t>(head) * d];
    if (steered == kChannelPowers) {
      if (!powersOf(rows.data(), count, d, weights)) continue;
      made->heads_[head] = {nullptr, weights};
      any = true;
      continue;
    }
    if constexpr (steersByMetric()) {
      if (!factor(rows.data(), count, d, metric.data(), feedback, weights)) continue;
      made->heads_[head] = {feedback, weights};
      any = true;
    }
  }
  return any ? made : nullptr;
}

}  // namespace palimpsest
