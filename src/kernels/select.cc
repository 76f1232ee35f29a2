#include "kernels/select.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/adapters.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/backward.h"
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/hopper.h"
#include "kernels/cpu/indexer.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pair.h"
#include "kernels/cpu/recurrent.h"
#include "kernels/reference/reference.h"

namespace invar {

namespace {

// One row per instruction set, slowest first. The functions replace the entries that the set does
// better.
struct Implementation {
  const char* name;
  bool (*is_supported)();
  void (*override_kernels)(Kernels&);
  void (*override_training)(TrainingKernels&);
  void (*override_blocks)(Kernels&);
};

constexpr cpu::AttendFunctions kAvx2Attend = {cpu::attend_avx2, cpu::kVectorTileQueries,
                                              cpu::attend_f32_avx2, cpu::add_index_scores_avx2};
constexpr cpu::AttendFunctions kAvx512Attend = {cpu::attend_avx512, cpu::kVectorTileQueries,
                                                cpu::attend_f32_avx512,
                                                cpu::add_index_scores_avx512};
// Attention of order `pair`, which has no cache of f32.
constexpr cpu::AttendFunctions kAvx2PairAttend = {cpu::attend_pair_avx2, cpu::kVectorTileQueries,
                                                  cpu::attend_f32_avx2,
                                                  cpu::add_pair_index_scores_avx2};
constexpr cpu::AttendFunctions kAvx512PairAttend = {cpu::attend_pair_avx512,
                                                    cpu::kVectorTileQueries, cpu::attend_f32_avx512,
                                                    cpu::add_pair_index_scores_avx512};
constexpr cpu::AttendFunctions kAmxAttend = {cpu::attend_amx, cpu::kAmxTileQueries,
                                             cpu::attend_f32_avx512, cpu::add_index_scores_avx512};

template <const cpu::RowFunctions& rows, const cpu::RecurrentFunctions& recurrent,
          cpu::RunProduct product, const cpu::AttendFunctions& attend,
          void (*override_hopper)(Kernels&), cpu::RunProduct int8_product,
          cpu::RunProduct fp8_product, cpu::RunProduct pair_product,
          const cpu::AttendFunctions& pair_attend>
void override_kernels(Kernels& kernels) {
  cpu::override_elementwise<rows>(kernels);
  cpu::override_experts<rows>(kernels);
  cpu::override_adapters<rows>(kernels);
  cpu::override_recurrent<recurrent>(kernels);
  cpu::override_attention<attend>(kernels);
  cpu::override_indexer<attend>(kernels);
  cpu::override_matmul<product>(kernels);
  cpu::override_qkv_product<cpu::matmul<product>, cpu::matmul<int8_product>,
                            cpu::matmul<fp8_product>, rows>(kernels);
  cpu::override_int8<int8_product>(kernels);
  cpu::override_fp8<fp8_product>(kernels);
  cpu::override_attention<pair_attend, Order::pair>(kernels);
  cpu::override_indexer<pair_attend, Order::pair>(kernels);
  cpu::override_matmul<pair_product, Order::pair>(kernels);
  cpu::override_qkv_product<cpu::matmul<pair_product>, cpu::matmul<int8_product>,
                            cpu::matmul<fp8_product>, rows, Order::pair>(kernels);
  if (kernels.order == Order::hopper) override_hopper(kernels);
}

template <const cpu::BackwardRows& rows, cpu::RunProduct product>
void override_training(TrainingKernels& kernels) {
  cpu::override_backward<rows>(kernels);
  cpu::override_attention_backward<product, rows>(kernels);
  cpu::override_training_matmul<product>(kernels);
}

constexpr Implementation kImplementations[] = {
    {"scalar", [] { return true; }, [](Kernels&) {}, [](TrainingKernels&) {},
     reference::override_blocks},
    {"avx2", cpu::has_avx2,
     override_kernels<cpu::kAvx2Rows, cpu::kAvx2Recurrent, cpu::product_avx2, kAvx2Attend,
                      hopper::override_avx2, cpu::int8_best_avx2, cpu::fp8_product_avx2,
                      cpu::pair_product_avx2, kAvx2PairAttend>,
     override_training<cpu::kAvx2Backward, cpu::product_avx2>,
     cpu::override_blocks<cpu::block_product_avx2, cpu::product_avx2>},
    {"avx512", cpu::has_avx512,
     override_kernels<cpu::kAvx512Rows, cpu::kAvx512Recurrent, cpu::product_avx512, kAvx512Attend,
                      hopper::override_avx512, cpu::int8_best_avx512, cpu::fp8_product_avx512,
                      cpu::pair_best_avx512, kAvx512PairAttend>,
     override_training<cpu::kAvx512Backward, cpu::product_avx512>,
     cpu::override_blocks<cpu::block_best_avx512, cpu::product_avx512>},
    // Nothing of AMX computes the orders hopper and pair: they stay with AVX-512.
    {"amx", cpu::has_amx,
     override_kernels<cpu::kAmxRows, cpu::kAvx512Recurrent, cpu::product_amx, kAmxAttend,
                      hopper::override_avx512, cpu::int8_best_amx, cpu::fp8_product_avx512,
                      cpu::pair_best_avx512, kAvx512PairAttend>,
     override_training<cpu::kAmxBackward, cpu::product_amx>,
     cpu::override_blocks<cpu::block_best_amx, cpu::product_amx>},
};

// The last row that is asked for and supported. Throws UsageError for unknown or unsupported names.
const Implementation* choose(std::string_view instruction_set) {
  const Implementation* chosen = nullptr;
  for (const Implementation& i : kImplementations) {
    if (i.name == instruction_set && !i.is_supported())
      fail_usage("the instruction set {} is not available on this machine", instruction_set);
    if (i.is_supported() && (instruction_set == "auto" || i.name == instruction_set)) chosen = &i;
  }
  if (!chosen)
    fail_usage("expected an instruction set of auto, {}, found \"{}\"",
               fmt::join(instruction_sets(), ", "), instruction_set);
  return chosen;
}

// A table with what the chosen set and the slower ones do better.
template <typename Table>
Table overridden(Table table, std::string_view instruction_set,
                 void (*Implementation::*override_table)(Table&)) {
  const Implementation* chosen = choose(instruction_set);
  for (const Implementation& i : kImplementations) {
    if (!i.is_supported()) continue;
    (i.*override_table)(table);
    if (&i == chosen) break;
  }
  table.name = chosen->name;
  return table;
}

}  // namespace

const std::vector<std::string>& instruction_sets() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Implementation& i : kImplementations) all.push_back(i.name);
    return all;
  }();
  return names;
}

bool is_supported(std::string_view instruction_set) {
  return std::any_of(std::begin(kImplementations), std::end(kImplementations),
                     [&](const auto& i) { return i.name == instruction_set && i.is_supported(); });
}

Kernels select_kernels(Order order, std::string_view instruction_set) {
  return overridden(reference::table(order), instruction_set, &Implementation::override_kernels);
}

Kernels select_block_kernels(std::string_view instruction_set) {
  Kernels kernels = select_kernels(Order::portable, instruction_set);
  return overridden(kernels, instruction_set, &Implementation::override_blocks);
}

TrainingKernels select_training_kernels(Order order, std::string_view instruction_set) {
  return overridden(reference::training_table(order), instruction_set,
                    &Implementation::override_training);
}

}  // namespace invar
