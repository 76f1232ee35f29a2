#include "session/weight_receiver.h"

#include <fmt/ranges.h>

#include <array>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "engine/model_description.h"
#include "model/families/tensor_table.h"

namespace invar {

namespace {

constexpr int64_t kAlign = 256;    // of what a tensor or a piece begins at
constexpr int64_t kGpuAlign = 16;  // of what a GPU copies and hashes where it lies
constexpr int64_t kMostBytes = int64_t{1} << 44;

struct TorchType {
  const char* name;
  DType type;
  Nccl::Type sent_as;
};
constexpr std::array kTorchTypes = {TorchType{"bfloat16", DType::bf16, Nccl::Type::bfloats},
                                    TorchType{"float16", DType::f16, Nccl::Type::halves},
                                    TorchType{"float32", DType::f32, Nccl::Type::floats}};

const TorchType& torch_type(const Announcement::One& one) {
  for (const TorchType& known : kTorchTypes)
    if (one.dtype == known.name) return known;
  fail_usage("expected the type of {} as bfloat16, float16 or float32, found {}",
             json::quoted(one.name), json::quoted(one.dtype));
}

Nccl::Type sent_as(DType type) {
  for (const TorchType& known : kTorchTypes)
    if (known.type == type) return known.sent_as;
  return Nccl::Type::bytes;
}

int64_t elements_of(const Announcement::One& one) {
  int64_t elements = 1;
  for (const int64_t size : one.shape)
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements) || elements > kMostBytes)
      fail_usage("expected the shape of {} as sizes of a tensor, found [{}]",
                 json::quoted(one.name), fmt::join(one.shape, ", "));
  return elements;
}

int64_t aligned(int64_t at) {
  return (at + kAlign - 1) / kAlign * kAlign;
}

// Whether TensorSource::read makes the one type of the other.
bool is_readable_as(DType from, DType to) {
  return from == to || to == DType::bf16 || to == DType::f32;
}

}  // namespace

WeightReceiver::WeightReceiver(Model& model, std::chrono::milliseconds patience)
    : model_(model), patience_(patience) {
  const auto loaded = open_weights(model.options());
  if (&loaded->as_stored() != loaded.get())
    fail_usage(
        "weights by NCCL need a checkpoint with a tensor for each of the model's, found {} in "
        "another form",
        model.options().model);
  if (std::ssize(model.workers().here()) < model.ranks() * model.stages())
    fail_usage("weights by NCCL need workers that are threads, found some in other processes");
  int64_t bytes = 0;
  for (const std::string& name : loaded->names()) {
    const TensorInfo& info = infos_[name] = loaded->info(name);
    bytes += aligned(bytes_of(info.dtype, info.elements()));
  }
  if (const auto found = infos_.find(tensor_name(TensorRole::embedding));
      model.spec().tied_head && found != infos_.end())  // what torch calls a state has both
    infos_.emplace(tensor_name(TensorRole::head), TensorInfo(found->second));
  Nccl::open();  // says now that there is none
  if (model.only_gpu() >= 0 || model.device().is_host())
    memory_ = {model.device(), static_cast<size_t>(bytes), "weights on their way"};
}

void WeightReceiver::join(const TrainerGroup::Meeting& meeting) {
  group_.reset();
  group_.emplace(meeting, model_.device(), patience_, stopping_.get_token());
}

void WeightReceiver::begin() {
  used_ = 0;
  came_.clear();
  counts_ = {};
}

WeightReceiver::Coming WeightReceiver::coming(const Announcement::One& one) {
  const DType type = torch_type(one).type;
  const int64_t elements = elements_of(one);
  Coming coming{&one, type, elements, bytes_of(type, elements), {}};
  const auto found = infos_.find(one.name);
  const std::string name = "update_weights: " + json::quoted(one.name);
  if (found == infos_.end()) {
    coming.wrong = fmt::format("{}: expected a tensor of the model", name);
  } else if (const TensorInfo& info = found->second;
             info.shape != one.shape || !is_readable_as(type, info.dtype)) {
    coming.wrong = fmt::format(
        "{}: expected {} of shape [{}] as in the checkpoint, found {} of "
        "shape [{}]",
        name, name_of(info.dtype), fmt::join(info.shape, ", "), one.dtype,
        fmt::join(one.shape, ", "));
  } else if (came_.contains(one.name)) {
    coming.wrong = fmt::format("{}: expected it once in an update, found it again", name);
  } else {
    came_[one.name].info = info;
  }
  return coming;
}

WeightReceiver::Counts WeightReceiver::receive(const Announcement& announcement) {
  if (!group_)
    fail_usage(
        "expected a trainer's group (/init_weight_transfer_engine) before its weights, "
        "found none");
  std::vector<Coming> all;
  try {
    for (const Announcement::One& one : announcement.tensors) all.push_back(coming(one));
    for (size_t begin = 0; begin < all.size();) {
      size_t end = begin;
      int64_t bytes = 0;
      do bytes += all[end++].bytes;
      while (announcement.is_packed && end < all.size() && bytes <= announcement.piece_bytes);
      receive_run(Run(all).subspan(begin, end - begin), announcement.is_packed);
      begin = end;
    }
  } catch (...) {
    group_.reset();
    throw;
  }
  for (const Coming& one : all)
    if (!one.wrong.empty()) fail_usage("{}", one.wrong);
  counts_.tensors += all.size();
  return counts_;
}

// One message of the trainer's.
void WeightReceiver::receive_run(Run run, bool is_packed) {
  int64_t bytes = 0;
  for (const Coming& one : run) bytes += one.bytes;
  std::byte* to = place(run, bytes);
  if (is_packed)
    group_->receive({to, static_cast<size_t>(bytes), Nccl::Type::bytes}, stopping_.get_token());
  else
    group_->receive({to, static_cast<size_t>(run[0].elements), sent_as(run[0].type)},
                    stopping_.get_token());
  counts_.bytes += bytes;
  for (const Coming& one : run) {
    if (one.wrong.empty()) keep(one, to);
    to += one.bytes;
  }
}

// Where the tensors may stay; or memory that the next piece takes.
std::byte* WeightReceiver::place(Run run, int64_t bytes) {
  const bool stays = std::ranges::all_of(
      run, [&](const Coming& one) { return one.wrong.empty() && stays_in_place(one); });
  const int64_t begin = aligned(used_);
  if (!stays || begin + bytes > static_cast<int64_t>(memory_.size())) return scratch(bytes);
  used_ = begin + bytes;
  return memory_.data() + begin;
}

bool WeightReceiver::stays_in_place(const Coming& one) const {
  return came_.at(one.one->name).info.dtype == one.type;
}

std::byte* WeightReceiver::scratch(int64_t bytes) {
  if (static_cast<int64_t>(scratch_.size()) < bytes) {
    scratch_ = {};
    scratch_ = {model_.device(), static_cast<size_t>(bytes), "a trainer's tensors"};
  }
  return scratch_.data();
}

// A tensor that has come: where it is, or on the host in the model's type.
void WeightReceiver::keep(const Coming& one, const std::byte* data) {
  Came& came = came_.at(one.one->name);
  const bool is_in_memory = data >= memory_.data() && data < memory_.data() + memory_.size();
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % kGpuAlign == 0 && one.bytes % 4 == 0;
  if (is_in_memory && (is_aligned || model_.device().is_host())) {
    came.data = data;
    return;
  }
  std::vector<std::byte> sent(static_cast<size_t>(one.bytes));
  model_.device().download(sent.data(), data, sent.size());
  came.copy.resize(static_cast<size_t>(bytes_of(came.info.dtype, one.elements)));
  convert_elements(sent.data(), one.type, one.elements, came.info.dtype, came.copy.data());
  came.data = came.copy.data();
}

std::vector<GivenTensor> WeightReceiver::came() const {
  std::vector<GivenTensor> all;
  for (const auto& [name, came] : came_)
    all.push_back({.name = name,
                   .info = came.info,
                   .data = came.data,
                   .gpu = came.copy.empty() ? model_.only_gpu() : -1});
  return all;
}

}  // namespace invar
