#include <string_view>

#include "kernels/cpu/backward.h"
#include "kernels/reference/reference.h"
#include "kernels/select.h"

namespace invar {

namespace {

struct Implementation {
  std::string_view name;
  void (*override_kernels)(BackwardKernels&);
};

// As in select.cc, slowest first.
constexpr Implementation kImplementations[] = {
    {"scalar", [](BackwardKernels&) {}},
    {"avx2",
     [](BackwardKernels& k) {
       cpu::override_backward<cpu::kAvx2Backward>(k);
       cpu::override_attention_backward<cpu::product_avx2, cpu::kAvx2Backward>(k);
     }},
    {"avx512",
     [](BackwardKernels& k) {
       cpu::override_backward<cpu::kAvx512Backward>(k);
       cpu::override_attention_backward<cpu::product_avx512, cpu::kAvx512Backward>(k);
     }},
    {"amx",
     [](BackwardKernels& k) {
       cpu::override_backward<cpu::kAmxBackward>(k);
       cpu::override_attention_backward<cpu::product_amx, cpu::kAmxBackward>(k);
     }},
};

}  // namespace

BackwardKernels select_backward_kernels(Order order, std::string_view instruction_set) {
  const char* name = select_kernels(order, instruction_set).name;  // refuses unknown ones
  BackwardKernels kernels = reference::backward_table(order);
  for (const Implementation& i : kImplementations) {
    i.override_kernels(kernels);
    if (i.name == name) break;
  }
  kernels.name = name;
  return kernels;
}

}  // namespace invar
