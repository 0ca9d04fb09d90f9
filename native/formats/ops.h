// What the C++ file of a family of formats defines: a struct of static functions, compiled once per instruction set (kernels/isa.cc). The
// family is named in its file as in TypeScript, with a capital: rot.ts describes rot4, rot3 and rot2, and rot.h defines Rot.
//
// Always there:
//   kMember                                     one of the family; its fields are those of all but for the bits of an element
//   encode(targets, count, isKey, d, firstRow, x, stride)
//   decode(side, isKey, d, firstRow, x, stride)                                                        (both as in Kernels)
// With these alone a format works everywhere: attention decodes its page and takes the products of floats (kernels/attend_page.h).
//
// Levels. The format is integers of a byte times scales, and attention multiplies integers:
//   levels(side, d, tile)                       the int8 levels as an i8 tile: its own, or written into `tile`
//   kBasis                                      what the levels are of: the rows as they are, or rotated; kFolded: see prepareKeys
//   prepareKeys(k, rows, head)                  keyScales of every token; factor and offset of every row: a score is
//                                               (x . levels[t]) * (keyScales[t] * factor) + offset
//                                               kFolded: also the integers of the rows times what the channels of this page are worth (foldRows)
//   prepareValues(v, rows, head)                valueScales of every token as multiples of valueSteps
// Of these, prepareKeys or prepareValues may be missing: that side is decoded then.
//
// Where there is something to gain or to add:
//   demote(from, isKey, d, to)                  nested families: on codes alone
//   isSound(side, d)                            when not all bytes that an encoder cannot write are harmless
//   score, mix                                  products of its own (f16)
//   addToScores(k, rows, head)                  what scores get beside the product: outliers
//   addToMix(v, rows, head)                     what rows.mixed gets beside the product: means, outliers
//   kMaySkip                                    values may be left out where their mass is small (kernels/attend_page.h)
//   withLevelRows(side, bias, f)                levels in registers, without a tile (coded.h)
//
// No exceptions, no allocation, no standard header with inline functions; float operations in an order that is the same on every instruction
// set, so that stored bytes and scores are equal to the bit.
#pragma once

template <class F>
concept HasDemote = requires(const SideView& from, const SideTarget& to) { F::demote(from, true, 64, to); };
template <class F>
concept ChecksBytes = requires(const SideView& side) { F::isSound(side, 64); };
template <class F>
concept HasLevels = requires(const SideView& side, int8_t* tile) { F::levels(side, 64, tile); };
template <class F>
concept HasOwnProducts = requires(const SideView& side, const PageRows& rows) { F::score(side, rows, 0, 128, &side); };
template <class F>
concept PreparesKeys = requires(const SideView& side, const PageRows& rows) { F::prepareKeys(side, rows, 0); };
template <class F>
concept PreparesValues = requires(const SideView& side, const PageRows& rows) { F::prepareValues(side, rows, 0); };
template <class F>
concept AddsToScores = requires(const SideView& side, const PageRows& rows) { F::addToScores(side, rows, 0); };
template <class F>
concept AddsToMix = requires(const SideView& side, const PageRows& rows) { F::addToMix(side, rows, 0); };
template <class F>
concept MaySkip = requires { requires F::kMaySkip; };
template <class F>
concept HasLevelRows = requires { requires F::kHasLevelRows; };
