#include "weights/stacked_experts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/error.h"
#include "base/json.h"
#include "numerics/routing.h"
#include "weights/peft_adapter.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

// A tensor of the file, or an expert's part of one.
struct FactorEntry {
  TensorInfo info;
  std::string tensor;
  int64_t first_row = 0;
  int64_t column = 0, step = 1;  // which columns
};

class ExpertFactors final : public ListedTensors<FactorEntry> {
 public:
  explicit ExpertFactors(std::unique_ptr<TensorSource> base) : base_(std::move(base)) {}

  const TensorSource& base() const { return *base_; }
  void add(const std::string& name, FactorEntry entry) { entries_[name] = std::move(entry); }
  void end() { list_names(); }

  std::string where(std::string_view name) const override {
    return base_->where(has(name) ? std::string_view(find(name).tensor) : name);
  }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const FactorEntry& entry = find(name);
    const int64_t width = base_->info(entry.tensor).shape[1];
    if (entry.step == 1)
      return base_->read(entry.tensor, entry.first_row * width + first, count, as, out);
    const std::lock_guard lock(mutex_);
    const int64_t rows = base_->info(entry.tensor).shape[0], columns = entry.info.shape[1];
    const int64_t from = (entry.column * rows + entry.first_row) * columns + first;
    const auto size = static_cast<size_t>(size_of(as));
    std::memcpy(out, by_expert(entry, as).data() + static_cast<size_t>(from) * size,
                static_cast<size_t>(count) * size);
  }

 private:
  struct Whole {
    std::string tensor;
    DType as;
    std::vector<std::byte> elements;
  };
  // The tensors that were read last, their columns expert by expert: every expert's part of one is
  // read in turn.
  const std::vector<std::byte>& by_expert(const FactorEntry& entry, DType as) const {
    constexpr size_t kMost = 4;
    for (const Whole& one : wholes_)
      if (one.tensor == entry.tensor && one.as == as) return one.elements;
    if (wholes_.size() == kMost) wholes_.pop_front();
    const int64_t count = base_->info(entry.tensor).elements();
    std::vector<std::byte> read(static_cast<size_t>(count * size_of(as)));
    base_->read(entry.tensor, 0, count, as, read.data());
    Whole one{entry.tensor, as, std::vector<std::byte>(read.size())};
    const int64_t experts = entry.step, ranks = entry.info.shape[1];
    const auto turn = [&]<typename T>(T) {
      const T* from = reinterpret_cast<const T*>(read.data());
      T* to = reinterpret_cast<T*>(one.elements.data());
      const int64_t rows = count / (experts * ranks);
      for (int64_t n = 0; n < rows; ++n)
        for (int64_t r = 0; r < ranks; ++r)
          for (int64_t e = 0; e < experts; ++e) to[(e * rows + n) * ranks + r] = *from++;
    };
    size_of(as) == 4 ? turn(uint32_t()) : turn(uint16_t());
    return wholes_.emplace_back(std::move(one)).elements;
  }

  const std::unique_ptr<TensorSource> base_;
  mutable std::mutex mutex_;
  mutable std::deque<Whole> wholes_;
};

// One parameter's factors.
struct Stack {
  const AdapterFactors* factors;
  int64_t inputs, outputs, all_ranks;
};

Stack stack_of(const TensorSource& tensors, const std::string& module,
               const AdapterFactors& factors) {
  for (const char which : {'A', 'B'})
    expect_factor(tensors, module, which, which == 'A' ? factors.a : factors.b,
                  peft_name(module, which));
  const auto& a = tensors.info(factors.a).shape;
  const auto& b = tensors.info(factors.b).shape;
  if (a[0] != b[1])
    fail("{}: expected as many rows of A as columns of B, found A of [{}] and B of [{}]",
         tensors.where(factors.a), fmt::join(a, ", "), fmt::join(b, ", "));
  return {&factors, a[1], b[0], a[0]};
}

// gate_up_proj gives twice what down_proj reads, and reads what that gives.
bool is_gate_up(const Stack& stack, const Stack& other) {
  return stack.inputs == other.outputs && stack.outputs == 2 * other.inputs;
}

class Splitter {
 public:
  Splitter(ExpertFactors& out, const StackedSettings& settings, std::vector<AdapterModule>& modules)
      : out_(out), settings_(settings), modules_(modules) {}

  void split(const StackedExperts& experts) {
    const TensorSource& tensors = out_.base();
    std::vector<Stack> stacks;
    for (const AdapterFactors& factors : experts.factors)
      stacks.push_back(stack_of(tensors, experts.module, factors));
    if (stacks.size() > 2)
      fail("{}: expected adapters of gate_up_proj and down_proj, found {} parameters",
           tensors.where(stacks[2].factors->a), stacks.size());
    if (stacks.size() == 1) {
      if (settings_.parameters.size() != 1)
        fail("{}: expected adapters of {} parameters, as target_parameters says, found one",
             tensors.where(stacks[0].factors->a), settings_.parameters.size());
      // PEFT 0.18 exchanged inputs and outputs, which only shapes show.
      if (stacks[0].inputs == stacks[0].outputs)
        fail(
            "{}: expected adapters of both parameters, or of one that is not square, found one of "
            "{} "
            "to {}",
            tensors.where(stacks[0].factors->a), stacks[0].inputs, stacks[0].outputs);
      return split_parameter(experts.module, stacks[0], settings_.parameters.contains(kGateUp));
    }
    const bool is_first = is_gate_up(stacks[0], stacks[1]);
    if (is_first == is_gate_up(stacks[1], stacks[0]))
      fail("{}: expected adapters of gate_up_proj and down_proj, found {} to {} and {} to {}",
           tensors.where(stacks[0].factors->a), stacks[0].inputs, stacks[0].outputs,
           stacks[1].inputs, stacks[1].outputs);
    split_parameter(experts.module, stacks[is_first ? 0 : 1], true);
    split_parameter(experts.module, stacks[is_first ? 1 : 0], false);
  }

 private:
  static constexpr const char* kGateUp = "gate_up_proj";
  static constexpr int64_t kMostModules = 400'000;

  void split_parameter(const std::string& module, const Stack& stack, bool gate_up) {
    const std::string parameter = module + (gate_up ? ".gate_up_proj" : ".down_proj");
    const int64_t rank = settings_.rank(parameter), parts = gate_up ? 2 : 1;
    if (stack.all_ranks % rank != 0 || stack.outputs % parts != 0)
      fail("{}: expected {} rows for each expert and an even number of outputs, found {} and {}",
           out_.base().where(stack.factors->a), rank, stack.all_ranks, stack.outputs);
    const int64_t experts = stack.all_ranks / rank, outputs = stack.outputs / parts;
    if (experts > Routing::kMaxExperts || std::ssize(modules_) + experts * parts > kMostModules)
      fail(
          "{}: expected at most {} experts, and {} modules in all, found {} experts behind {} "
          "modules",
          out_.base().where(stack.factors->a), Routing::kMaxExperts, kMostModules, experts,
          modules_.size());
    const DType a = out_.base().info(stack.factors->a).dtype;
    const DType b = out_.base().info(stack.factors->b).dtype;
    for (int64_t expert = 0; expert < experts; ++expert)
      for (int64_t part = 0; part < parts; ++part) {
        const char* name = !gate_up ? "down_proj" : part == 0 ? "gate_proj" : "up_proj";
        AdapterModule one{.name = fmt::format("{}.{}.{}", module, expert, name),
                          .inputs = stack.inputs,
                          .outputs = outputs,
                          .rank = rank,
                          .scale = settings_.scale(parameter, rank),
                          .experts = experts};
        one.a = peft_name(one.name, 'A');
        one.b = peft_name(one.name, 'B');
        out_.add(one.a, {{a, {rank, stack.inputs}}, stack.factors->a, expert * rank});
        out_.add(one.b, {{b, {outputs, rank}}, stack.factors->b, part * outputs, expert, experts});
        modules_.push_back(std::move(one));
      }
  }

  ExpertFactors& out_;
  const StackedSettings& settings_;
  std::vector<AdapterModule>& modules_;
};

}  // namespace

std::string experts_module(std::string_view module) {
  constexpr std::string_view kWrapped = ".base_layer";
  while (module.ends_with(kWrapped)) module.remove_suffix(kWrapped.size());
  return module.ends_with(".experts") ? std::string(module) : std::string();
}

std::unique_ptr<TensorSource> split_experts(std::unique_ptr<TensorSource> tensors,
                                            const std::map<std::string, StackedExperts>& stacks,
                                            const StackedSettings& settings,
                                            std::vector<AdapterModule>& modules) {
  auto out = std::make_unique<ExpertFactors>(std::move(tensors));
  for (const AdapterModule& module : modules)
    for (const std::string& name : {module.a, module.b})
      out->add(name, {out->base().info(name), name});
  Splitter splitter(*out, settings, modules);
  for (const auto& [name, experts] : stacks) splitter.split(experts);
  out->end();
  return out;
}

}  // namespace invar
