#include "kernels/select.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/hopper.h"
#include "kernels/cpu/matmul.h"
#include "kernels/reference/reference.h"

namespace invar {

namespace {

// One row per instruction set, slowest first. `override_kernels` replaces the entries that the set
// does better.
struct Implementation {
  const char* name;
  bool (*is_supported)();
  void (*override_kernels)(Kernels&);
};

void override_avx2(Kernels& kernels) {
  cpu::override_elementwise<cpu::kAvx2Rows>(kernels);
  cpu::override_attention<cpu::attend_avx2, cpu::kVectorTileQueries>(kernels);
  cpu::override_matmul<cpu::product_avx2>(kernels);
  cpu::override_qkv_product<cpu::matmul<cpu::product_avx2>, cpu::kAvx2Rows>(kernels);
  if (kernels.order == Order::hopper) hopper::override_avx2(kernels);
}

void override_avx512(Kernels& kernels) {
  cpu::override_elementwise<cpu::kAvx512Rows>(kernels);
  cpu::override_attention<cpu::attend_avx512, cpu::kVectorTileQueries>(kernels);
  cpu::override_matmul<cpu::product_avx512>(kernels);
  cpu::override_qkv_product<cpu::matmul<cpu::product_avx512>, cpu::kAvx512Rows>(kernels);
  if (kernels.order == Order::hopper) hopper::override_avx512(kernels);
}

void override_amx(Kernels& kernels) {
  cpu::override_elementwise<cpu::kAmxRows>(kernels);
  cpu::override_attention<cpu::attend_amx, cpu::kAmxTileQueries>(kernels);
  cpu::override_matmul<cpu::product_amx>(kernels);
  cpu::override_qkv_product<cpu::matmul<cpu::product_amx>, cpu::kAmxRows>(kernels);
}

constexpr Implementation kImplementations[] = {
    {"scalar", [] { return true; }, [](Kernels&) {}},
    {"avx2", cpu::has_avx2, override_avx2},
    {"avx512", cpu::has_avx512, override_avx512},
    {"amx", cpu::has_amx, override_amx},
};

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
  if (instruction_set != "auto") {
    const auto& names = instruction_sets();
    if (std::find(names.begin(), names.end(), instruction_set) == names.end())
      fail_usage("expected an instruction set of auto, {}, found \"{}\"", fmt::join(names, ", "),
                 instruction_set);
    if (!is_supported(instruction_set))
      fail_usage("the instruction set {} is not available on this machine", instruction_set);
  }
  Kernels kernels = reference::table(order);
  for (const Implementation& i : kImplementations) {
    if (!i.is_supported()) continue;
    i.override_kernels(kernels);
    kernels.name = i.name;
    if (i.name == instruction_set) break;
  }
  return kernels;
}

}  // namespace invar
