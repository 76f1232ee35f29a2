#include "model/arithmetic.h"

#include <fmt/format.h>

namespace invar {

int attention_output_runs(const DecoderSpec& spec) {
  return orders::row_parallel_runs(spec.query_width(), spec.heads);
}

int down_runs(const DecoderSpec& spec) {
  return orders::row_parallel_runs(spec.ffn, 1 << 30);
}

std::string identity(const Arithmetic& arithmetic, const DecoderSpec& spec) {
  return fmt::format("invar-1/{}/{}/row{}.{}",
                     arithmetic.is_baseline ? "control" : name_of(arithmetic.order),
                     arithmetic.is_rounded ? "rounded" : name_of(arithmetic.weights),
                     attention_output_runs(spec), down_runs(spec));
}

}  // namespace invar
