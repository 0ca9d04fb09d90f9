// What the C++ file of a family of formats defines: a struct of static functions, compiled once per instruction set
// (kernels/hot.cc, kernels/cold.cc). The struct has the name of the folder with a capital: rot/rot.ts describes rot4,
// rot3, rot2 and rot1, and rot/rot.h defines Rot. What else a family needs lies in its folder; what families share is
// in kernels/.
//
// Required:
//   kMember                                     one format of the family; all of them have the same fields, except for
//   the bits per element
//   encode(targets, count, isKey, d, firstRow, x, stride, space)
//   decode(side, isKey, d, firstRow, x, stride, space)                                                 (both as in
//   Kernels)
// With these alone a format works everywhere: attention decodes its page and multiplies floats (kernels/attend_page.h).
//
// Levels, for formats that store int8 integers times scales, so that attention can multiply integers:
//   levels(side, d, tile)                       the int8 levels as an i8 tile, either the stored one or written to
//   `tile`
//   kBasis                                      whether the levels are of the plain or the rotated rows; kFolded: see
//   prepareKeys
//   prepareKeys(k, rows, head)                  sets keyScales of every token and factor and offset of every row: a
//   score is
//                                               (x . levels[t]) * (keyScales[t] * factor) + offset
//                                               kFolded: also the integers of the rows times the channel scales of this
//                                               page (foldRows)
//   prepareValues(v, rows, head)                sets valueScales of every token as multiples of valueSteps
// prepareKeys or prepareValues may be missing: attention then decodes that side.
//
// Optional:
//   writeRow(to, isKey, d, room, row, x)        for formats that a page may be open in, whose rows do not depend on
//   each other. Their score,
//                                               mix, prepareKeys and prepareValues read no further than rows.room
//   decodeRows(side, isKey, d, tokens, count, x, stride, space)    some rows alone, the bits of decode, for formats
//   whose rows take little of decoding the page
//   demote(from, isKey, d, to, space)           for nested families: conversion from codes alone
//   isSound(side, d)                            for formats where bytes that no encoder writes can do harm
//   score, mix                                  products of the format's own (f16)
//   addToScores(k, rows, head)                  adds to the scores what the product lacks: outliers
//   addToMix(v, rows, head)                     adds to rows.mixed what the product lacks: means, outliers
//   kMaySkip                                    values may be skipped where their mass is small (kernels/attend_page.h)
//   Unpacker                                    a type whose withRows<Least>(side, d, bias, f) unpacks levels in
//   registers, without a tile, of codes of so many bits or more: PlaneRows
//                                               (rot/levels.h), or one of the family's own; from kUnpackedRows rows
//                                               on there is a tile
//
// What takes a page or more of bytes comes from `space` and not from the stack (Workspace, kernels/kernels.h); the
// compiler refuses frames above 32 KiB. There are no exceptions, no allocation and no standard headers with inline
// functions. Float operations run in the same order on every instruction set, so that stored bytes and scores are
// bit-equal.
#pragma once

template <class F>
concept HasDemote = requires(const SideView& from, const SideTarget& to, Workspace space) { F::demote(from, true, 64, to, space); };
template <class F>
concept DecodesRows = requires(const SideView& side, const uint8_t* tokens, float* x, Workspace space) { F::decodeRows(side, true, 64, tokens, 1, x, 64, space); };
template <class F>
concept WritesRows = requires(const SideTarget& to, const float* x) { F::writeRow(to, true, 64, 16, 0, x); };
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
concept HasUnpacker = requires { typename F::Unpacker; };
