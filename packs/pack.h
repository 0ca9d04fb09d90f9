// What a kernel pack exports, version 1 (docs/packs.md, What a module may do). Addresses are of the module's own
// memory; the host puts arrays above __heap_base. Functions that return int32_t return 0, or another number for a shape
// that they do not serve.
#pragma once
#include <stdint.h>
#include <wasm_simd128.h>

#define EXPORT(name) __attribute__((export_name(#name), visibility("default"))) name

uint32_t EXPORT(pack_abi)(void);

#ifdef PACK_CODEC
// Bytes of a page with so many rows; 0: no page has this shape.
uint32_t EXPORT(pack_page_bytes)(uint32_t tokens, uint32_t dim);
// x: [tokens][dim]. The page comes filled with zeros.
int32_t EXPORT(pack_encode)(const float* x, uint8_t* page, uint32_t tokens, uint32_t dim);
int32_t EXPORT(pack_decode)(const uint8_t* page, float* x, uint32_t tokens, uint32_t dim);
// out: [queries][tokens] = q·x for q: [queries][dim].
int32_t EXPORT(pack_dots)(const uint8_t* page, const float* q, float* out, uint32_t tokens, uint32_t dim, uint32_t queries);
// out: [queries][dim] += w·x for w: [queries][tokens].
int32_t EXPORT(pack_mix)(const uint8_t* page, const float* w, float* out, uint32_t tokens, uint32_t dim, uint32_t queries);
#else
// x: [tokens][dim], in place; parameters: [tokens][width].
int32_t EXPORT(pack_apply)(float* x, const float* parameters, uint32_t tokens, uint32_t dim, uint32_t width);
#endif
