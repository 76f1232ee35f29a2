#include "session/trained_weights.h"

#include "base/error.h"
#include "base/json.h"
#include "engine/model_description.h"
#include "kernels/back_end.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

// The weights in use, of which a trainer has changed some: those are in the model's memory alone.
class InUse final : public SourceOver {
 public:
  // Both outlive it.
  InUse(const TensorSource& loaded, const std::set<std::string, std::less<>>& changed)
      : SourceOver(loaded), changed_(changed) {}

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (changed_.contains(name))
      fail_usage("expected {} in the update, too, whose bits the head must have",
                 json::quoted(std::string(name)));
    base_.read(name, first, count, as, out);
  }
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    base_.read_row_scales(name, first_row, rows, out);
  }

 private:
  const std::set<std::string, std::less<>>& changed_;
};

void hash_on_gpu(const WeightChange& change, Device& device, TensorDigests& digests) {
  std::vector<GpuValues> values;
  for (const auto& [name, tensor] : change.on_gpu)
    values.push_back({tensor.data, tensor.info.dtype, tensor.info.elements()});
  if (values.empty()) return;
  const std::vector<Digest> chunks = gpu_back_end().chunk_digests(device, values, kDigestChunk);
  std::span<const Digest> rest = chunks;
  for (const auto& [name, tensor] : change.on_gpu) {
    const auto own =
        static_cast<size_t>((tensor.info.elements() + kDigestChunk - 1) / kDigestChunk);
    digests[name] = tensor_digest(name, tensor.info, rest.first(own));
    rest = rest.subspan(own);
  }
}

// Every tensor's digest after the change.
TensorDigests digests_after(const WeightChange& change, const ChangedWeights& weights,
                            const TensorDigests& before, Model& model) {
  TensorDigests digests = before;
  hash_on_gpu(change, model.device(), digests);
  for (const std::string& name : weights.names())
    if (change.here.contains(name) || !digests.contains(name))
      digests[name] = tensor_digest(weights, name, model.pool());
  return digests;
}

}  // namespace

void TrainedWeights::forget() {
  changed_.clear();
  digests_.clear();
}

Digest TrainedWeights::take(Engine& engine, std::span<const GivenTensor> tensors) {
  engine.expect_no_work();
  Model& model = engine.model();
  const auto loaded = open_weights(model.options());
  const InUse in_use(*loaded, changed_);
  WeightChange change(in_use, model);
  change.add(tensors);
  change.expect_finite();
  const ChangedWeights weights = change.over_those_in_use();
  TensorDigests digests = digests_after(change, weights, digests_, model);
  try {
    engine.take_weights(weights);
  } catch (const std::exception& error) {  // some of it may have been written
    engine.take_weights(*loaded);
    forget();
    fail("{}; the weights are those of {} again", error.what(), model.options().model);
  }
  for (const auto& [name, tensor] : change.here) changed_.insert(name);
  for (const auto& [name, tensor] : change.on_gpu) changed_.insert(name);
  digests_ = std::move(digests);
  return weights_digest(digests_);
}

}  // namespace invar
