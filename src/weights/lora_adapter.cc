#include "weights/lora_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "base/canonical_json.h"
#include "base/error.h"
#include "base/json.h"
#include "weights/gguf.h"
#include "weights/gguf_adapter.h"
#include "weights/peft_adapter.h"
#include "weights/weights_digest.h"

namespace invar {

void expect_factor(const TensorSource& tensors, const std::string& module, char which,
                   const std::string& name, const std::string& missing) {
  if (name.empty())
    fail("{}: expected {} of the adapter of {}, found none", tensors.where(missing), which,
         json::quoted(module));
  const TensorInfo& info = tensors.info(name);
  const bool is_float =
      info.dtype == DType::bf16 || info.dtype == DType::f16 || info.dtype == DType::f32;
  if (info.shape.size() != 2 || !is_float || info.elements() == 0)
    fail("{}: expected a matrix of BF16, F16 or F32, found {} of [{}]", tensors.where(name),
         name_of(info.dtype), fmt::join(info.shape, ", "));
}

LoraAdapter::LoraAdapter(const std::string& path)
    : LoraAdapter(is_gguf(path) ? open_gguf_adapter(path) : open_peft_adapter(path)) {}

int64_t LoraAdapter::most_rank() const {
  return std::ranges::max_element(modules_, {}, &AdapterModule::rank)->rank;
}

Digest LoraAdapter::digest(ThreadPool& pool) const {
  json::Array modules;
  for (const AdapterModule& module : modules_) {
    check_finite(*tensors_, module.a, pool);
    check_finite(*tensors_, module.b, pool);
    modules.push_back(
        json::Object{{"module", module.name},
                     {"rank", module.rank},
                     {"scale", fmt::format("{:016x}", std::bit_cast<uint64_t>(module.scale))}});
  }
  return json::digest_of(
      json::Object{{"modules", std::move(modules)},
                   {"weights", to_hex(weights_digest(*tensors_, tensors_->names(), pool))}});
}

AdapterModule adapter_module(const TensorSource& tensors, const std::string& module,
                             const AdapterFactors& factors,
                             FunctionRef<std::string(char which)> name_of) {
  for (const char which : {'A', 'B'})
    expect_factor(tensors, module, which, which == 'A' ? factors.a : factors.b, name_of(which));
  const auto& a = tensors.info(factors.a).shape;
  const auto& b = tensors.info(factors.b).shape;
  if (a[0] != b[1] || a[0] > kMostAdapterRank)
    fail("{}: expected one rank of 1 to {} of A and B, found A of [{}] and B of [{}]",
         tensors.where(factors.a), kMostAdapterRank, fmt::join(a, ", "), fmt::join(b, ", "));
  return {.name = module,
          .inputs = a[1],
          .outputs = b[0],
          .rank = a[0],
          .a = factors.a,
          .b = factors.b};
}

}  // namespace invar
