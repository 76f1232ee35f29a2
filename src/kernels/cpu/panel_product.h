// One share of a matrix product as plain data. The files compiled for wider instruction sets see
// this header and no other: an inline function of a shared header, compiled there, could be the
// copy that the linker keeps for every file (tools/check_symbols).
#pragma once

#include <cstdint>

#include "numerics/storage.h"

namespace invar::cpu {

// `rows` activation rows times `panels` panels. Numerics 1 and 2; layouts in kernels.h.
struct PanelProduct {
  bool f32;        // type of activations and elements of weights; bf16 when false
  DType stored;    // of the weights
  int64_t scales;  // where a panel's begin, for types with blocks
  const void* x;
  int64_t x_stride;          // bytes between rows
  const RunScale* x_scales;  // of integers and e4m3_row: [rows][runs]; of e4m3: [rows][groups]
  int64_t rows;
  const void* w;        // the first panel
  int64_t panel_bytes;  // from panel to panel
  int64_t panels;
  const void* next;  // or null: panels that are read after these, which may be fetched
  int64_t next_panel_bytes;
  int64_t leaves;  // of a whole row; `split_k` divides it
  int split_k;
  int64_t outputs;  // real ones in these panels; for a gated pair in every second panel

  // Either y = dot (+ bias), or y = y + (dot (+ bias)), or y's own chains gone on with ...
  float* y;
  int64_t y_stride;  // elements
  const float* bias;
  bool accumulate;
  bool extend;
  bool is_open;  // extend or not, without the + 0 that ends a dot; whole tiles only, one run

  // ... or, when `out` is set, out = silu(g) * u, or that of another curve, with gate and up panels
  // in turn. All 16 columns of a panel are written, those past `outputs` as zeros.
  void* out;
  int64_t out_stride;  // bytes
  const float* gate_bias;
  const float* up_bias;
  bool is_gelu, is_clamped;
  float* dots;          // or null: the dots of all panels, too
  int64_t dots_stride;  // elements
};

// Some leaves of a panel of blocks, whose scales are given, as a panel of bf16.
using ExpandPanel = void (*)(const char* values, const char* scales, int64_t leaf, int64_t leaves,
                             char* out);
// The weights that are read after those that are read now, as many of them. They are fetched
// meanwhile, from several places at a time, line after line, so that the hardware's own prefetcher
// helps.
struct FetchedNext {
  static constexpr int kStreams = 8;
  const char* first;  // or null
  int64_t bytes;
  int64_t done;  // of the weights that are read now
};
// A few rows by some leaves of a panel of blocks, which are unpacked in registers.
struct BlockTile {
  const float* x;
  int64_t x_stride;  // elements
  int64_t rows;      // 1, 2, 4 or 8, and no more than BlockFunctions has
  const char* values;
  const char* scales;
  int64_t leaf, leaves;  // of the panel
  bool first;            // the chains begin here, from +0
  float* chains;         // [rows][16]
  FetchedNext next;
};

// The functions that read a type with blocks; null for others.
struct BlockFunctions {
  ExpandPanel expand = nullptr;
  void (*multiply)(const BlockTile&) = nullptr;
  int64_t rows = 0;  // that it takes at most
};
BlockFunctions blocks_avx2(DType type);
BlockFunctions blocks_avx512(DType type);
BlockFunctions blocks_avx512bf16(DType type);
// The better of the last two on this machine.
BlockFunctions best_blocks_avx512(DType type);

// Products of integers (numerics 2.1).
void int8_product_avx2(const PanelProduct& p);
void int8_product_avxvnni(const PanelProduct& p);
void int8_product_avx512(const PanelProduct& p);  // with VNNI
void int8_product_amx(const PanelProduct& p);
// One run of a row of bf16, whose memory goes on to whole leaves, as integers; as those of
// orders::quantise_run, pad columns are written too.
RunScale quantise_avx2(const uint16_t* x, int64_t k, int8_t* q);

// Products of e4m3 numbers (numerics 2.2, 2.5).
void fp8_product_avx2(const PanelProduct& p);
void fp8_product_avx512(const PanelProduct& p);

// In the order `pair`, of bf16; the last by an instruction whose steps on 16 words of pairs are
// those of orders::pair_step where pair_instruction_holds says so.
void pair_product_avx2(const PanelProduct& p);
void pair_product_avx512(const PanelProduct& p);
void pair_product_avx512bf16(const PanelProduct& p);
void pair_steps_avx512bf16(const uint32_t* x, const uint32_t* w, const float* chain, float* out);

void product_avx2(const PanelProduct& p);
void product_avx512(const PanelProduct& p);
void product_amx(const PanelProduct& p);
// The same for so many rows at most and weights in blocks.
constexpr int kRowsOfBlocksAmx = 32;
void product_of_blocks_amx(const PanelProduct& p);
// The same for many rows of bf16 in whole tiles and panels, the second when `out` and `dots` are
// set.
void chains_amx(const PanelProduct& p);
void gated_chains_amx(const PanelProduct& p);

}  // namespace invar::cpu
