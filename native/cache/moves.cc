#include "moves.h"

#include <algorithm>
#include <cstring>

#include "layer.h"
#include "trial.h"

namespace palimpsest {

namespace {

constexpr uint8_t sideBit(bool isKey) { return isKey ? 1 : 2; }

bool isDemotion(int from, int to) { return isRot(from) && isRot(to); }

// Old parts that nobody else owns. A demotion keeps the high plane where it lies.
size_t releasedBytes(const PageSide& old, int to) {
  size_t bytes = 0;
  if (!isDemotion(old.format, to) && !old.codes.shared()) bytes += old.codes.size();
  if (!old.low.shared()) bytes += old.low.size();
  if (!old.meta.shared()) bytes += old.meta.size();
  return bytes;
}

}  // namespace

void Encoding::run(float* rows, float* lines) const {
  const int d = side.headDim;
  for (int head = 0; head < side.kvHeads; head++) {
    const SideView source = from->view(side, head);
    const SideTarget target = to->target(side, head);
    if (isDemotion(from->format, to->format)) {
      std::memcpy(target.mean, source.mean, d);
      *target.meanScale = *source.meanScale;
      demoteHead(kernels, to->format, side.isKey, d, source, target);
      continue;
    }
    decodeHead(kernels, side.isKey, d, firstRow, source, rows, d, lines);
    for (int t = 0; t < firstRow; t++) {
      kernels->fromHalf(sinks + (static_cast<size_t>(head) * kSinkTokens + t) * d, rows + static_cast<size_t>(t) * d, d);
    }
    encodeHead(kernels, to->format, side.isKey, d, firstRow, rows, target);
  }
}

void Move::run(Scratch& scratch) { encoding.run(scratch.keyRows.data(), scratch.lines.data()); }

// ---- The thread

Mover::Mover() = default;

Mover::~Mover() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Mover::open(int headDim) {
  if (scratch_) return;
  auto scratch = std::make_unique<Scratch>();
  for (Buffer<float>* rows : {&scratch->keyRows, &scratch->valueRows, &scratch->lines}) rows->grow(static_cast<size_t>(kPageTokens) * headDim);
  if (kHasThreads) thread_ = std::thread([this] { work(); });
  scratch_ = std::move(scratch);
}

size_t Mover::bytes() const { return scratch_ ? scratch_->bytes() : 0; }

void Mover::add(Task* task) {
  if (!kHasThreads) {
    task->run(*scratch_);
    task->done.store(true);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    (first_ ? last_->next : first_) = task;
    last_ = task;
  }
  wake_.notify_one();
}

bool Mover::take(Task* task) {
  std::unique_lock<std::mutex> lock(mutex_);
  Task* before = nullptr;
  for (Task* at = first_; at; before = at, at = at->next) {
    if (at != task) continue;
    (before ? before->next : first_) = task->next;
    if (last_ == task) last_ = before;
    return true;
  }
  idle_.wait(lock, [&] { return running_ != task; });
  return false;
}

void Mover::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || first_; });
    if (stop_) return;
    Task* task = first_;
    first_ = task->next;
    running_ = task;
    lock.unlock();
    task->run(*scratch_);
    lock.lock();
    task->done.store(true);  // from here on it may be gone
    running_ = nullptr;
    idle_.notify_all();
  }
}

// ---- The cache

bool Cache::legalMove(int from, int to) { return to >= from || (from == kQ8 && to == kF16); }

Status Cache::planMove(int index, int pageIndex, bool isKey, int to, MovePlan* plan) const {
  *plan = {0, 0};
  const Page& page = layers_[index].pages[pageIndex];
  if (page.latent || (page.moving & sideBit(isKey))) return kUnsupported;
  const PageSide& old = page.side(isKey);
  if (old.format == to) return kOk;
  if (!legalMove(old.format, to)) return kUnsupported;
  if (isCoded(to) && !hasCodes(shape().headDim)) return kUnsupported;
  const PartSizes sizes = partSizes(to, shape().kvHeads, shape().headDim);
  plan->added = sizes.total() - (isDemotion(old.format, to) ? sizes.codes : 0);
  plan->released = releasedBytes(old, to);
  return account_->hasRoom(plan->added, plan->released) ? kOk : kBudgetExceeded;
}

Encoding Cache::encodingOf(int index, int pageIndex, const PageSide* from, const PageSide* to, bool isKey) const {
  return {kernels_, sideShape(isKey), pageIndex == 0 ? kSinkTokens : 0, sinkRows(layers_[index], isKey, 0), from, to};
}

// Puts a complete side in the place of the old one. → bytes by which the account's count fell
double Cache::replaceSide(PageSide& old, PageSide fresh) {
  const double before = static_cast<double>(account_->usedBytes());
  old = std::move(fresh);
  old.count(*account_);
  return before - static_cast<double>(account_->usedBytes());
}

Status Cache::transcode(int index, int pageIndex, bool isKey, int to, double* freed) {
  *freed = 0;
  endTrials(*this, index, pageIndex);
  MovePlan plan;
  const Status status = planMove(index, pageIndex, isKey, to, &plan);
  PageSide& old = layers_[index].pages[pageIndex].side(isKey);
  if (status != kOk || old.format == to) return status;
  PageSide fresh;
  if (isDemotion(old.format, to)) fresh.codes = old.codes;
  if (!fresh.draft(*account_, to, sideShape(isKey))) return kNoMemory;
  Scratch& scratch = workers_->scratch[0];
  encodingOf(index, pageIndex, &old, &fresh, isKey).run(scratch.keyRows.data(), scratch.lines.data());
  *freed = replaceSide(old, std::move(fresh));
  return kOk;
}

Status Cache::startMove(int index, int pageIndex, bool isKey, int to) {
  endTrials(*this, index, pageIndex);
  MovePlan plan;
  const Status status = planMove(index, pageIndex, isKey, to, &plan);
  if (status != kOk) return status;
  Page& page = layers_[index].pages[pageIndex];
  const PageSide& old = page.side(isKey);
  auto move = std::make_unique<Move>();
  move->layer = index;
  move->page = pageIndex;
  move->isKey = isKey;
  move->from = old;
  move->added = plan.added;
  move->encoding = encodingOf(index, pageIndex, &move->from, &move->to, isKey);
  const bool isThere = old.format == to;
  if (isThere) {
    move->to = old;
    move->done.store(true);
  } else {
    if (isDemotion(old.format, to)) move->to.codes = old.codes;
    if (!move->to.draft(*account_, to, sideShape(isKey))) return kNoMemory;
    workers_->mover.open(shape().headDim);
  }
  moves_.push_back(std::move(move));
  // From here on nothing can fail.
  account_->claim(plan.added);
  page.moving |= sideBit(isKey);
  if (!isThere) workers_->mover.add(moves_.back().get());
  return kOk;
}

// The page side may have come to be shared since, and the budget may have been lowered: then there may be no room in the end.
MoveResult Cache::commitMove(Move& move) {
  Page& page = layers_[move.layer].pages[move.page];
  PageSide& old = page.side(move.isKey);
  page.moving &= static_cast<uint8_t>(~sideBit(move.isKey));
  move.from = PageSide();
  account_->unclaim(move.added);
  endTrials(*this, move.layer, move.page);  // they share the side, and are no reason to refuse
  if (!account_->fits(move.added, releasedBytes(old, move.to.format))) return {kBudgetExceeded, 0};
  return {kOk, replaceSide(old, std::move(move.to))};
}

size_t Cache::finishMoves(bool wait, MoveResult* results) {
  size_t count = 0;
  Scratch& scratch = workers_->scratch[0];
  for (; count < moves_.size(); count++) {
    Move& move = *moves_[count];
    if (!move.done.load()) {
      if (!wait) break;
      // Rather than wait for a thread that may not run, the caller does what is not begun.
      if (workers_->mover.take(&move)) move.run(scratch);
    }
    results[count] = commitMove(move);
  }
  moves_.erase(moves_.begin(), moves_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

void Cache::dropMoves() {
  for (const std::unique_ptr<Move>& move : moves_) {
    if (!move->done.load()) workers_->mover.take(move.get());
    account_->unclaim(move->added);
  }
  moves_.clear();
  if (!workers_) return;  // a cache that could not be opened
  std::vector<std::unique_ptr<StartedTrial>>& trials = workers_->mover.trials;
  for (const std::unique_ptr<StartedTrial>& trial : trials) {
    if (trial->owner == this && !trial->done.load()) workers_->mover.take(trial.get());
  }
  trials.erase(std::remove_if(trials.begin(), trials.end(), [this](const std::unique_ptr<StartedTrial>& trial) { return trial->owner == this; }), trials.end());
}

}  // namespace palimpsest
