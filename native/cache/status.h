// What a call on the cache can answer. The TypeScript face turns everything but kOk into a KvError.
#pragma once

namespace palimpsest {

enum Status : int {
  kOk = 0,
  kBadArgument = 1,
  kBadShape = 2,
  kBadValue = 3,
  kUnsupported = 4,
  kBudgetExceeded = 5,
  kBudgetTooSmall = 6,
  kClosed = 7,
  kNoMemory = 8,
};

}  // namespace palimpsest
