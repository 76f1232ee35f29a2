#include "train/trained_arrays.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "train/layout_source.h"

namespace invar {

namespace {

constexpr int64_t kBlock = 1 << 18;  // elements

}  // namespace

class TrainedArrays::Weights final : public LayoutSource {
 public:
  explicit Weights(const TrainedArrays& of) : LayoutSource(of.layout_), of_(of) {}

 private:
  void read_elements(int64_t offset, int64_t count, DType as, void* out) const override {
    if (as == DType::bf16) return of_.read(rounded, offset, count, static_cast<std::byte*>(out));
    std::vector<bf16_t> elements(static_cast<size_t>(count));
    of_.read(rounded, offset, count, reinterpret_cast<std::byte*>(elements.data()));
    convert_elements(elements.data(), DType::bf16, count, as, out);
  }

  const TrainedArrays& of_;
};

class TrainedArrays::State final : public TensorSource {
 public:
  explicit State(const TrainedArrays& of) : of_(of), info_{DType::f32, {of.layout_.size()}} {}

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override {
    return std::ranges::find(names_, name) != names_.end();
  }
  const TensorInfo& info(std::string_view) const override { return info_; }
  std::string where(std::string_view name) const override {
    return fmt::format("state \"{}\"", name);
  }
  void read(std::string_view name, int64_t begin, int64_t count, DType as,
            void* out) const override {
    constexpr std::array kKinds{first, master, second};  // as the names
    const auto index = std::ranges::find(names_, name) - names_.begin();
    const Kind kind = kKinds.at(static_cast<size_t>(index));
    CHECK(as == DType::f32, "a state is read as what it is");
    of_.read(kind, begin, count, static_cast<std::byte*>(out));
  }

 private:
  const TrainedArrays& of_;
  const std::vector<std::string> names_{"first", "master", "second"};
  const TensorInfo info_;
};

TrainedArrays::TrainedArrays(const ParameterLayout& layout, const OwnedTensors& owned,
                             Group* processes, std::vector<OwnedArrays> here)
    : layout_(layout),
      owned_(owned),
      processes_(processes),
      here_(std::move(here)),
      weights_(std::make_unique<Weights>(*this)),
      state_(std::make_unique<State>(*this)) {}

TrainedArrays::~TrainedArrays() = default;

const TensorSource& TrainedArrays::weights() const {
  return *weights_;
}

const TensorSource& TrainedArrays::state() const {
  return *state_;
}

// `rank`: of those that are here.
const void* TrainedArrays::array(Kind kind, int rank) const {
  const OwnedArrays& own = here_[static_cast<size_t>(rank)];
  switch (kind) {
    case master:
      return own.master;
    case first:
      return own.first;
    case second:
      return own.second;
    default:
      return own.rounded;
  }
}

void TrainedArrays::read(Kind kind, int64_t begin, int64_t count, std::byte* out) const {
  const int64_t size = element(kind);
  const auto copy = [&](const void* from, int64_t first, int64_t to, int64_t n) {
    std::memcpy(out + (to - begin) * size, static_cast<const std::byte*>(from) + first * size,
                static_cast<size_t>(n * size));
  };
  const auto take = [&](int rank, int64_t place, int64_t offset, int64_t n) {
    Device& device = *here_[static_cast<size_t>(rank)].device;
    const auto* from = static_cast<const std::byte*>(array(kind, rank)) + place * size;
    device.download(out + (offset - begin) * size, from, static_cast<size_t>(n * size));
  };
  if (!processes_) return owned_.for_each_piece(begin, begin + count, take);
  for (int64_t at = begin; at < begin + count;) {
    const Block block{kind, at / kBlock};
    fetch(block);
    const int64_t end = std::min((block.number + 1) * kBlock, begin + count);
    copy(bytes_.data(), at - block.number * kBlock, at, end - at);
    at = end;
  }
}

// Tensors are read from one end to the other: the last block is kept.
void TrainedArrays::fetch(const Block& block) const {
  if (block_ == block) return;
  CHECK(processes_->rank() == 0, "the first process alone reads");
  block_ = ask(block);
  bytes_.resize(static_cast<size_t>(kBlock * element(block.kind)));
  hand_over(block, bytes_.data());
}

// Says to every process which block the first one wants.
TrainedArrays::Block TrainedArrays::ask(const Block& block) const {
  std::vector<Block> all(static_cast<size_t>(processes_->size()));
  processes_->all_gather(&block, sizeof block, all.data(), {});
  return all[0];
}

void TrainedArrays::hand_over(const Block& block, std::byte* out) const {
  const int64_t begin = block.number * kBlock, end = std::min(begin + kBlock, layout_.size());
  const void* own = array(block.kind, 0);
  if (block.kind == rounded)
    gather_range(*processes_, owned_, begin, end, static_cast<const bf16_t*>(own),
                 reinterpret_cast<bf16_t*>(out), {});
  else
    gather_range(*processes_, owned_, begin, end, static_cast<const float*>(own),
                 reinterpret_cast<float*>(out), {});
}

void TrainedArrays::serve() const {
  while (true) {
    const Block block = ask({});
    if (block.kind == nothing) return;
    hand_over(block, nullptr);
  }
}

void TrainedArrays::end_serving() const {
  block_ = ask({});
}

}  // namespace invar
