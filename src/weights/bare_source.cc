#include "weights/bare_source.h"

#include <algorithm>

namespace invar {

namespace {

constexpr std::string_view kPrefix = "model.", kEmbedding = "embed_tokens.weight";
constexpr std::string_view kScore = "score.", kHead = "lm_head.";

class BareSource final : public TensorSource {
 public:
  BareSource(std::unique_ptr<TensorSource> stored, bool has_head, bool has_classes)
      : stored_(std::move(stored)),
        is_bare_(stored_->has(kEmbedding)),
        has_head_(has_head),
        has_classes_(has_classes) {
    for (const std::string& name : stored_->names())
      if (!is_left_out(name)) names_.push_back(is_bare_ ? std::string(kPrefix) + name : name);
    std::ranges::sort(names_);
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override {
    return !is_left_out(name) && (!is_bare_ || name.starts_with(kPrefix)) &&
           stored_->has(own(name));
  }
  const TensorInfo& info(std::string_view name) const override { return stored_->info(own(name)); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    stored_->read(own(name), first, count, as, out);
  }
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    stored_->read_row_scales(own(name), first_row, rows, out);
  }
  const TensorSource& as_stored() const override { return stored_->as_stored(); }
  std::string where(std::string_view name) const override { return stored_->where(own(name)); }

 private:
  bool is_left_out(std::string_view name) const {
    return (has_classes_ && name.starts_with(kScore)) || (!has_head_ && name.starts_with(kHead));
  }
  std::string_view own(std::string_view name) const {
    return is_bare_ && name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  }

  std::unique_ptr<TensorSource> stored_;
  std::vector<std::string> names_;
  bool is_bare_, has_head_, has_classes_;
};

}  // namespace

std::unique_ptr<TensorSource> bare_tensors(std::unique_ptr<TensorSource> stored, bool has_head,
                                           bool has_classes) {
  if (has_head && !has_classes && !stored->has(kEmbedding)) return stored;
  return std::make_unique<BareSource>(std::move(stored), has_head, has_classes);
}

}  // namespace invar
