// Kernels of formats that are chosen by their number: pages are written, narrowed, read back and checked.
#pragma once

static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
  withFormat(targets->format, [&](auto format) MEMBER { format.encode(targets, count, isKey, d, firstRow, x, stride, space); });
  clearUpperHalves();
}

static void writeRow(const SideTarget& target, bool isKey, int d, int room, int row, const float* x) {
  withFormat(target.format, [&](auto format) MEMBER {
    if constexpr (WritesRows<decltype(format)>) format.writeRow(target, isKey, d, room, row, x);
    else __builtin_trap();  // never reached: a cache is not opened with such a format
  });
  clearUpperHalves();
}

static void demote(const SideView& from, bool isKey, int d, const SideTarget& to, Workspace space) {
  withFormat(from.format, [&](auto format) MEMBER {
    if constexpr (HasDemote<decltype(format)>) format.demote(from, isKey, d, to, space);
    else __builtin_trap();  // never reached: formats/index.gen.h refuses nested formats without demote
  });
  clearUpperHalves();
}

static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
  withFormat(side.format, [&](auto format) MEMBER { format.decode(side, isKey, d, firstRow, x, stride, space); });
  clearUpperHalves();
}

static bool decodeRows(const SideView& side, bool isKey, int d, const uint8_t* tokens, int count, float* x, size_t stride, Workspace space) {
  bool has = false;
  withFormat(side.format, [&](auto format) MEMBER {
    if constexpr (DecodesRows<decltype(format)>) {
      has = true;
      format.decodeRows(side, isKey, d, tokens, count, x, stride, space);
    }
  });
  clearUpperHalves();
  return has;
}

static bool levels(const SideView& side, int d, int8_t* tile) {
  bool has = false;
  withFormat(side.format, [&](auto format) MEMBER {
    if constexpr (HasLevels<decltype(format)>) {
      has = true;
      const int8_t* at = format.levels(side, d, tile);
      if (at != tile) __builtin_memcpy(tile, at, static_cast<size_t>(kPageTokens) * d);
    }
  });
  clearUpperHalves();
  return has;
}

static bool isSound(const SideView& side, int d) {
  bool sound = true;
  withFormat(side.format, [&](auto format) MEMBER {
    if constexpr (ChecksBytes<decltype(format)>) sound = format.isSound(side, d);
  });
  return sound;
}
