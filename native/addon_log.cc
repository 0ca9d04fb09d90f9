// The JavaScript binding of the entries of a log (see addon.cc): spelling and sealing those of a batch, following those
// of a segment, and opening what is sealed in them.
#include <napi.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "arguments.h"
#include "environment.h"
#include "log/entries.h"
#include "log/sealed.h"
#include "log/spell.h"

namespace palimpsest {

namespace {

// Whoever asks for the scalar kernels gets the plain digests too, so that every way can be tested.
const Digests& digestsOf(Napi::Env env) { return kernelsOf(env)->isa == kScalar ? plainDigests() : bestDigests(); }

// (bytes, from, to, state): fills in CRC and hash of the entries that lie in bytes [from, to), and moves the state
// behind them.
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

bool readSeq(const Napi::Value& value, uint64_t* seq) {
  if (!value.IsNumber()) return false;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= 9007199254740991.0 - 4294967296.0) || number != std::floor(number)) return false;
  *seq = static_cast<uint64_t>(number);
  return true;
}

bool readForms(const Info& info, int at, Span<double>* numbers, Span<uint8_t>* names) {
  return readArray(info[at], napi_float64_array, numbers) && readArray(info[at + 1], napi_uint8_array, names);
}

// The threads of this environment, at least so many.
Threads& threadsOf(Napi::Env env, int count) {
  Threads& pool = *crewOf(env);
  if (kHasThreads) pool.grow(count);
  return pool;
}

// (bytes, state, firstSeq, forms, names, threads, ends, kinds, hashes, out): follows entries from the beginning of
// bytes for as long as they are whole and continue the chain, at most as many as there is room for, and moves the state
// behind them. Of each, what comes out is where it ends, the index of its kind + 1 if it is certainly sound (else 0),
// and leaf and link. Without room in `hashes` these are left out, without forms nothing is certain. out: how many.
Napi::Value followLogEntries(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint8_t> bytes, state, names, kinds, hashes;
    Span<double> numbers, out;
    Span<uint32_t> ends;
    uint64_t firstSeq;
    int threads;
    if (!readArray(info[0], napi_uint8_array, &bytes) || !readArray(info[1], napi_uint8_array, &state)) return kBadArgument;
    if (!readSeq(info[2], &firstSeq) || !readForms(info, 3, &numbers, &names) || !readInt(info[5], 1, kThreadsMax, &threads)) return kBadArgument;
    if (!readArray(info[6], napi_uint32_array, &ends) || !readArray(info[7], napi_uint8_array, &kinds)) return kBadArgument;
    if (!readArray(info[8], napi_uint8_array, &hashes) || !readArray(info[9], napi_float64_array, &out)) return kBadArgument;
    if (out.length != 1 || kinds.length != ends.length || bytes.length > 1u << 30) return kBadShape;
    if (hashes.length != 0 && hashes.length != 2 * kHashBytes * static_cast<uint64_t>(ends.length)) return kBadShape;
    ChainState chain;
    if (!chain.read(state.data, state.length)) return kBadShape;
    Forms forms;
    const bool hasForms = numbers.length > 0;
    if (hasForms && !forms.read(numbers.data, numbers.length, names.data, names.length)) return kBadValue;
    const FollowedEntries followed = {ends.length, ends.data, kinds.data, hashes.length == 0 ? nullptr : hashes.data};
    Threads& pool = threadsOf(info.Env(), threads);
    const size_t count =
        followEntries(digestsOf(info.Env()), hasForms ? &forms : nullptr, pool, threads, bytes.data, bytes.length, firstSeq, &chain, followed);
    chain.write(state.data);
    out.data[0] = static_cast<double>(count);
    return kOk;
  });
}

// (bytes, from, count, firstSeq, forms, names, threads, keys, ends, kinds, room, texts, out): opens the sealed ones of
// `count` entries that were followed, from entry `from` on, and fills in the kinds that were not certain. What was
// opened comes to `room`, which has as many bytes as `bytes`, and `texts` says of each where and how many bytes; both
// empty: not wanted. out: the first whose session has no key among these.
Napi::Value openLogEntries(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint8_t> bytes, names, kinds, ring, room;
    Span<double> numbers, out;
    Span<uint32_t> ends, texts;
    uint64_t firstSeq;
    int threads, from, count;
    if (!readArray(info[0], napi_uint8_array, &bytes) || !readSeq(info[3], &firstSeq) || !readForms(info, 4, &numbers, &names)) return kBadArgument;
    if (!readInt(info[6], 1, kThreadsMax, &threads) || !readArray(info[7], napi_uint8_array, &ring)) return kBadArgument;
    if (!readArray(info[8], napi_uint32_array, &ends) || !readArray(info[9], napi_uint8_array, &kinds)) return kBadArgument;
    if (!readArray(info[10], napi_uint8_array, &room) || !readArray(info[11], napi_uint32_array, &texts)) return kBadArgument;
    if (!readArray(info[12], napi_float64_array, &out)) return kBadArgument;
    const int most = static_cast<int>(std::min<size_t>(std::min(ends.length, kinds.length), 1u << 24));
    if (!readInt(info[2], 0, most, &count) || !readInt(info[1], 0, count, &from)) return kBadArgument;
    if (out.length != 1 || bytes.length > 1u << 30) return kBadShape;
    if (texts.length > 0 && (room.length < bytes.length || texts.length < 2 * static_cast<uint64_t>(count))) return kBadShape;
    // A copy, because `kinds` may lie in the same bytes.
    const std::vector<uint32_t> known(ends.data, ends.data + count);
    uint32_t before = 0;
    for (const uint32_t end : known) {
      if (end > bytes.length || end < before || end - before <= kEntryExtraBytes) return kBadValue;
      before = end;
    }
    Forms forms;
    KeyRing keys;
    if (!forms.read(numbers.data, numbers.length, names.data, names.length) || !keys.read(ring.data, ring.length)) return kBadValue;
    const OpenedEntries entries = {bytes.data, firstSeq, known, kinds.data, texts.length > 0 ? room.data : nullptr, texts.data};
    out.data[0] = static_cast<double>(
        openEntries(digestsOf(info.Env()), keys, forms, threadsOf(info.Env(), threads), threads, static_cast<size_t>(from), entries));
    return kOk;
  });
}

// (bytes, bodies, keys, nonceStart, done): seals bodies that lie in the room of their sealed texts; three numbers for
// each say where its payload begins, where itself and how many bytes. done: 1 for each that was sealed; the others are
// as they were.
Napi::Value sealLogBodies(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint8_t> bytes, ring, nonceStart, done;
    Span<uint32_t> bodies;
    if (!readArray(info[0], napi_uint8_array, &bytes) || !readArray(info[1], napi_uint32_array, &bodies)) return kBadArgument;
    if (!readArray(info[2], napi_uint8_array, &ring) || !readArray(info[3], napi_uint8_array, &nonceStart)) return kBadArgument;
    if (!readArray(info[4], napi_uint8_array, &done)) return kBadArgument;
    if (nonceStart.length != 4 || bodies.length != 3 * static_cast<uint64_t>(done.length) || bytes.length > 1u << 30) return kBadShape;
    KeyRing keys;
    if (!keys.read(ring.data, ring.length)) return kBadValue;
    Aes aes;
    for (size_t i = 0; i < done.length; i++) {
      const PlainBody body = {bodies.data[3 * i], bodies.data[3 * i + 1], bodies.data[3 * i + 2]};
      if (body.payload > body.at || body.at > bytes.length || body.bytes > bytes.length) return kBadValue;
      if (sealedChars(body.bytes) > bytes.length - body.at) return kBadValue;
      done.data[i] = Aes::exists() && sealBody(digestsOf(info.Env()), &aes, keys, nonceStart.data, bytes.data, body) ? 1 : 0;
    }
    return kOk;
  });
}

// (bytes, at, steps, texts, numbers): writes an entry into bytes from `at` on, as a plan of steps says
// (log/spell.h) and all numbers but the first three. These become how many bytes it has, where its body begins, counted
// from `at`, and how many bytes that has.
Napi::Value spellLogEntry(const Info& info) {
  return guarded(info, [&]() -> Status {
    constexpr size_t kAnswers = 3;
    Span<uint8_t> bytes, texts;
    Span<uint32_t> steps;
    Span<double> numbers;
    int at;
    if (!readArray(info[0], napi_uint8_array, &bytes) || !readArray(info[2], napi_uint32_array, &steps)) return kBadArgument;
    if (!readArray(info[3], napi_uint8_array, &texts) || !readArray(info[4], napi_float64_array, &numbers)) return kBadArgument;
    if (!readInt(info[1], 0, static_cast<int>(std::min<size_t>(bytes.length, 1u << 30)), &at)) return kBadArgument;
    if (steps.length % 3 != 0 || numbers.length < kAnswers) return kBadShape;
    const SpellPlan plan = {steps.data, steps.length / 3, texts.data, texts.length};
    Spelled spelled;
    char* const out = reinterpret_cast<char*>(bytes.data) + at;
    if (!spell(plan, numbers.data + kAnswers, numbers.length - kAnswers, out, bytes.length - static_cast<size_t>(at), &spelled)) return kBadValue;
    numbers.data[0] = static_cast<double>(spelled.bytes);
    numbers.data[1] = static_cast<double>(spelled.body);
    numbers.data[2] = static_cast<double>(spelled.bodyBytes);
    return kOk;
  });
}

}  // namespace

void exportLog(Napi::Env env, Napi::Object exports) {
  exports.Set("sealLogEntries", Napi::Function::New(env, sealLogEntries, "sealLogEntries"));
  exports.Set("openLogEntries", Napi::Function::New(env, openLogEntries, "openLogEntries"));
  exports.Set("sealLogBodies", Napi::Function::New(env, sealLogBodies, "sealLogBodies"));
  exports.Set("spellLogEntry", Napi::Function::New(env, spellLogEntry, "spellLogEntry"));
  exports.Set("followLogEntries", Napi::Function::New(env, followLogEntries, "followLogEntries"));
}

}  // namespace palimpsest
