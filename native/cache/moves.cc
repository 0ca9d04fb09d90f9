#include "moves.h"

#include <algorithm>
#include <cstring>

#include "layer.h"
#include "trial.h"

namespace palimpsest {

namespace {

// The parts of a side that a move leaves in place.
PageSide keptParts(const PageSide& old, int to) {
  PageSide kept;
  for (int part = 0; part < kPartsMax; part++) {
    if (isDemotion(old.format, to) && isPartKept(old.format, to, part)) kept.part[part] = old.part[part];
  }
  return kept;
}

// Bytes that are freed when a side has moved: those that neither the new form nor a kept original shares. Where others
// hold the page as well, they may have kept it as an original: then its parts have more owners than the page and, once
// it is drafted, the move.
size_t releasedBytes(const Page& page, bool isKey, int to, bool isDrafted) {
  const PageSide& old = page.side(isKey);
  PageSide others = keptParts(old, to);
  if (page.isCommon()) return old.bytesBeside(others, isDrafted ? 2 : 1);
  for (int part = 0; part < kPartsMax; part++) {
    if (page.original[isKey ? 0 : 1].part[part].part() == old.part[part].part()) others.part[part] = old.part[part];
  }
  return old.bytesBeside(others);
}

}  // namespace

void Encoding::run(float* rows, Workspace space) const {
  const int d = side.headDim;
  const FormatLayout& layout = kFormats[to->format];
  // What a demotion copies: fields that stay the same, in parts that do not.
  int copied[kFieldsMax], copies = 0;
  for (int i = 0; i < layout.fields; i++) {
    const bool isThere = side.places[to->format].field[i].headBytes > 0;
    if (layout.field[i].isKept && isThere && !isPartKept(from->format, to->format, layout.field[i].part)) copied[copies++] = i;
  }
  for (int head = 0; head < side.kvHeads; head++) {
    const SideView source = from->view(side, head);
    SideTarget target = to->target(side, head);
    target.steering = headOf(steering, head);
    if (isDemotion(from->format, to->format)) {
      for (int i = 0; i < copies; i++) std::memcpy(target.field[copied[i]], source.field[copied[i]], side.places[to->format].field[copied[i]].headBytes);
      kernels->cold->demote(source, side.isKey, d, target, space);
      continue;
    }
    materializeHead(kernels, source, side.isKey, d, firstRow, sinks + static_cast<size_t>(head) * kSinkTokens * d, rows, d, space);
    kernels->cold->encode(&target, 1, side.isKey, d, firstRow, rows, d, space);
  }
}

void Move::run(Scratch& scratch) {
  for (const bool isKey : {true, false}) {
    const Encoding& one = encoding[isKey ? 0 : 1];
    if (one.kernels != nullptr) one.run(scratch.keyRows.data(), scratch.workspace());
  }
}

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

void Mover::open(const Kernels* kernels, int headDim, int rows, int width, size_t results) {
  if (headDim <= headDim_ && rows <= rows_ && width <= width_ && results <= results_) return;
  headDim = std::max(headDim, headDim_);
  rows = std::max(rows, rows_);
  width = std::max(width, width_);
  results = std::max(results, results_);
  auto scratch = std::make_shared<Scratch>();
  scratch->keyRows.grow(static_cast<size_t>(kPageTokens) * headDim);
  scratch->space.grow(encodeSpace(headDim));
  scratch->results.grow(results);
  if (rows > 0) reserveForTrials(*scratch, kernels, headDim, rows, width);
  if (kHasThreads && !thread_.joinable()) thread_ = startThread([this] { work(); });
  std::lock_guard<std::mutex> lock(mutex_);
  scratch_ = std::move(scratch);
  headDim_ = headDim;
  rows_ = rows;
  width_ = width;
  results_ = results;
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

// Under the lock. False if the task does not wait.
bool Mover::remove(Task* task) {
  Task* before = nullptr;
  for (Task* at = first_; at; before = at, at = at->next) {
    if (at != task) continue;
    (before ? before->next : first_) = task->next;
    if (last_ == task) last_ = before;
    return true;
  }
  return false;
}

bool Mover::take(Task* task) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (remove(task)) return true;
  idle_.wait(lock, [&] { return running_ != task; });
  return false;
}

bool Mover::takeWaiting(Task* task) {
  std::lock_guard<std::mutex> lock(mutex_);
  return remove(task);
}

void Mover::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || first_; });
    if (stop_) return;
    Task* task = first_;
    first_ = task->next;
    running_ = task;
    std::shared_ptr<Scratch> scratch = scratch_;
    lock.unlock();
    task->run(*scratch);
    scratch.reset();
    lock.lock();
    task->done.store(true);  // from here on the task may no longer exist
    running_ = nullptr;
    idle_.notify_all();
  }
}

// ---- The cache

// Checks a move, checks that there is room for it, and drafts what it will write. Changes nothing but the move.
Status Cache::draftMove(int index, int pageIndex, Sides sides, int to, Move& move) const {
  const Layer& layer = layers_[index];
  move.page = layer.pages[pageIndex];
  move.sides = sides;
  const Page& page = *move.page;
  if (page.kind != kResident || (page.body->moving & sides)) return kUnsupported;
  const size_t bytes = sideBytes(to, shape().kvHeads, shape().headDim);
  size_t released = 0;
  for (const bool isKey : {true, false}) {
    const PageSide& old = page.side(isKey);
    if (!(sides & sideBit(isKey)) || old.format == to) continue;
    if (!isMove(old.format, to) || !servesHeadDim(to, shape().headDim)) return kUnsupported;
    move.changed |= sideBit(isKey);
    move.added += bytes - keptParts(old, to).bytes();
    released += releasedBytes(page, isKey, to, false);
  }
  Account& account = accountOf(page);
  if (!account.hasRoom(move.added, released)) return kBudgetExceeded;
  for (const bool isKey : {true, false}) {
    if (!(move.changed & sideBit(isKey))) continue;
    PageSide& from = move.from[isKey ? 0 : 1];
    PageSide& fresh = move.to[isKey ? 0 : 1];
    from = page.side(isKey);
    PageSide& tried = move.page->body->tried[isKey ? 0 : 1];
    if (tried.isThere() && tried.format == to) {
      fresh = std::move(tried);
      continue;
    }
    fresh = keptParts(from, to);
    if (!fresh.draft(account, to, sideShape(isKey))) return kNoMemory;
    move.encoding[isKey ? 0 : 1] = {kernels_, sideShape(isKey), pageIndex == 0 ? kSinkTokens : 0, sinkRows(layer, isKey, 0), &from, &fresh,
                                       Steering::of(kernels_, *layer.kept, shape(), isKey, to)};
  }
  return kOk;
}

// Replaces the old sides by the finished ones. Returns the bytes by which the account's count fell.
double Cache::putInPlace(Move& move) {
  const double before = countedBytes();
  for (const bool isKey : {true, false}) {
    if (!(move.changed & sideBit(isKey))) continue;
    PageSide& side = move.page->side(isKey);
    move.page->body->tried[isKey ? 0 : 1] = PageSide();
    move.from[isKey ? 0 : 1] = PageSide();
    side = std::move(move.to[isKey ? 0 : 1]);
    side.count(accountOf(*move.page));
  }
  return before - countedBytes();
}

Status Cache::transcode(int index, int pageIndex, Sides sides, int to, double* freed) {
  *freed = 0;
  endTrials(*workers_, layers_[index].page(pageIndex));
  Move move;
  const Status status = draftMove(index, pageIndex, sides, to, move);
  if (status != kOk) return status;
  move.run(workers_->scratch[0]);
  *freed = putInPlace(move);
  return kOk;
}

Status Cache::startMove(int index, int pageIndex, Sides sides, int to) {
  Page& page = layers_[index].page(pageIndex);
  endTrials(*workers_, page);
  auto move = std::make_unique<Move>();
  const Status status = draftMove(index, pageIndex, sides, to, *move);
  if (status != kOk) return status;
  move->sinks = layers_[index].sinks;
  if (move->changed) workers_->mover.open(kernels_, shape().headDim, 0, 0, 0);
  else move->done.store(true);
  moves_.push_back(std::move(move));
  // From here on nothing can fail.
  Move& started = *moves_.back();
  accountOf(page).claim(started.added);
  page.body->moving |= sides;
  if (started.changed) workers_->mover.add(&started);
  return kOk;
}

// If the budget has been lowered since the start, there may be no room in the end.
MoveResult Cache::commitMove(Move& move) {
  Page& page = *move.page;
  page.body->moving &= static_cast<uint8_t>(~move.sides);
  Account& account = accountOf(page);
  account.unclaim(move.added);
  endTrials(*workers_, page);
  size_t released = 0;
  for (const bool isKey : {true, false}) {
    if (move.changed & sideBit(isKey)) released += releasedBytes(page, isKey, move.to[isKey ? 0 : 1].format, true);
  }
  if (!account.fits(move.added, released)) return {kBudgetExceeded, 0};
  return {kOk, putInPlace(move)};
}

size_t Cache::finishMoves(bool wait, MoveResult* results) {
  size_t count = 0;
  Scratch& scratch = workers_->scratch[0];
  for (; count < moves_.size(); count++) {
    Move& move = *moves_[count];
    if (!move.done.load()) {
      if (!wait) break;
      // Rather than wait for a thread that may not run, the caller runs a move that has not begun.
      if (workers_->mover.take(&move)) move.run(scratch);
    }
    results[count] = commitMove(move);
  }
  moves_.erase(moves_.begin(), moves_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

// ---- Kept originals

Status Cache::keepOriginal(int index, int pageIndex, bool isKey) {
  Page& page = layers_[index].page(pageIndex);
  PageSide& original = page.original[isKey ? 0 : 1];
  if (page.kind != kResident || (page.body->moving & sideBit(isKey)) || original.isThere()) return kUnsupported;
  original = page.side(isKey);
  return kOk;
}

Status Cache::dropOriginal(int index, int pageIndex, bool isKey, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  PageSide& original = page.original[isKey ? 0 : 1];
  if (!original.isThere()) return kUnsupported;
  endTrials(*workers_, page);
  const double before = countedBytes();
  original = PageSide();
  *freed = before - countedBytes();
  return kOk;
}

Status Cache::restoreOriginal(int index, int pageIndex, bool isKey, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  PageSide& original = page.original[isKey ? 0 : 1];
  if (page.kind != kResident || (page.body->moving & sideBit(isKey)) || !original.isThere()) return kUnsupported;
  endTrials(*workers_, page);
  const double before = countedBytes();
  page.body->tried[isKey ? 0 : 1] = PageSide();
  if (page.isCommon()) original.moveTo(*page.body->account);
  page.side(isKey) = std::move(original);
  original = PageSide();
  *freed = before - countedBytes();
  return kOk;
}

void Cache::dropMoves() {
  for (const std::unique_ptr<Move>& move : moves_) {
    if (!move->done.load()) workers_->mover.take(move.get());
    accountOf(*move->page).unclaim(move->added);
    move->page->body->moving &= static_cast<uint8_t>(~move->sides);  // forks may share the page
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
