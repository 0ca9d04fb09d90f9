// The JavaScript binding of the entries of a log (see addon.cc): sealing those of a batch, and following those of a segment.
#include <napi.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "arguments.h"
#include "environment.h"
#include "log/entries.h"
#include "log/forms.h"

namespace palimpsest {

namespace {

// Whoever asks for the scalar kernels gets the plain digests too, so that every way can be tested.
const Digests& digestsOf(Napi::Env env) { return kernelsOf(env)->isa == kScalar ? plainDigests() : bestDigests(); }

// (bytes, from, to, state): fills in CRC and hash of the entries that lie in bytes [from, to), and moves the state behind them.
Napi::Value sealLogEntries(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint8_t> bytes, state;
    int from, to;
    if (!readArray(info[0], napi_uint8_array, &bytes) || !readArray(info[3], napi_uint8_array, &state)) return kBadArgument;
    const int most = static_cast<int>(std::min<size_t>(bytes.length, 1u << 30));
    if (!readInt(info[1], 0, most, &from) || !readInt(info[2], from, most, &to)) return kBadArgument;
    ChainState chain;
    if (!chain.read(state.data, state.length)) return kBadShape;
    if (!sealEntries(digestsOf(info.Env()), bytes.data + from, static_cast<size_t>(to - from), &chain)) return kBadValue;
    chain.write(state.data);
    return kOk;
  });
}

// (bytes, state, firstSeq, forms, names, ends, kinds, hashes, out): follows entries from the beginning of bytes for as long as they are whole and continue
// the chain, at most as many as there is room for, and moves the state behind them. Of each, what comes out is where it ends, the index of its
// kind + 1 if it is certainly sound (else 0), and leaf and link. Without room in `hashes` these are left out, without forms nothing is certain. out: how many.
Napi::Value followLogEntries(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint8_t> bytes, state, names, kinds, hashes;
    Span<double> numbers, out;
    Span<uint32_t> ends;
    if (!readArray(info[0], napi_uint8_array, &bytes) || !readArray(info[1], napi_uint8_array, &state)) return kBadArgument;
    if (!info[2].IsNumber()) return kBadArgument;
    const double firstSeq = info[2].As<Napi::Number>().DoubleValue();
    if (!(firstSeq >= 0 && firstSeq <= 9007199254740991.0 - 4294967296.0) || firstSeq != std::floor(firstSeq)) return kBadArgument;
    if (!readArray(info[3], napi_float64_array, &numbers) || !readArray(info[4], napi_uint8_array, &names)) return kBadArgument;
    if (!readArray(info[5], napi_uint32_array, &ends) || !readArray(info[6], napi_uint8_array, &kinds)) return kBadArgument;
    if (!readArray(info[7], napi_uint8_array, &hashes) || !readArray(info[8], napi_float64_array, &out)) return kBadArgument;
    if (out.length != 1 || kinds.length != ends.length || bytes.length > 1u << 30) return kBadShape;
    if (hashes.length != 0 && hashes.length != 2 * kHashBytes * static_cast<uint64_t>(ends.length)) return kBadShape;
    ChainState chain;
    if (!chain.read(state.data, state.length)) return kBadShape;
    Forms forms;
    const bool hasForms = numbers.length > 0;
    if (hasForms && !forms.read(numbers.data, numbers.length, names.data, names.length)) return kBadValue;
    Follower follower(digestsOf(info.Env()), bytes.data, bytes.length, &chain);
    size_t count = 0;
    for (Followed entry; count < ends.length && follower.next(&entry); count++) {
      ends.data[count] = static_cast<uint32_t>(follower.at() - bytes.data);
      kinds.data[count] = hasForms ? static_cast<uint8_t>(forms.kindOf(entry.payload, entry.payloadBytes, static_cast<uint64_t>(firstSeq) + count) + 1) : 0;
      if (hashes.length == 0) continue;
      uint8_t* const pair = hashes.data + 2 * kHashBytes * count;
      std::memcpy(pair, entry.leaf, kHashBytes);
      std::memcpy(pair + kHashBytes, chain.head, kHashBytes);
    }
    chain.write(state.data);
    out.data[0] = static_cast<double>(count);
    return kOk;
  });
}

}  // namespace

void exportLog(Napi::Env env, Napi::Object exports) {
  exports.Set("sealLogEntries", Napi::Function::New(env, sealLogEntries, "sealLogEntries"));
  exports.Set("followLogEntries", Napi::Function::New(env, followLogEntries, "followLogEntries"));
}

}  // namespace palimpsest
