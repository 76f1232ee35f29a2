#include "support/deferred_device.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "device/vacatable.h"
#include "kernels/adapters.h"
#include "kernels/sample.h"
#include "kernels/select.h"

namespace invar {

namespace {

using Work = std::function<void()>;

class DeferredGraph final : public Graph {
 public:
  std::vector<Work> work;
};

class DeferredStream final : public Stream {
 public:
  explicit DeferredStream(Device& device, bool& is_recording)
      : device_(device), is_recording_(is_recording) {}

  void put(Work work) {
    const std::lock_guard lock(mutex_);
    recording_ ? recording_->work.push_back(work) : queue_.push_back(work);
  }

  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t width,
                 size_t rows) override {
    for (size_t row = 0; row < rows; ++row)
      copy(static_cast<char*>(to) + row * to_stride,
           static_cast<const char*>(from) + row * from_stride, width);
  }
  void clear(void* to, size_t bytes) override {
    put([=] { std::memset(to, 0, bytes); });
  }

  void wait() override {
    if (recording_) fail("a stream was waited for while it was recorded");
    device_.note_wait();
    work();
  }
  void record(Event& event) override;
  void wait_for(const Event&) override {}  // everything is one queue

  std::unique_ptr<Graph> record_graph(FunctionRef<void()> work) override {
    auto graph = std::make_unique<DeferredGraph>();
    recording_ = graph.get();
    is_recording_ = true;
    const auto end = [&] {
      recording_ = nullptr;
      is_recording_ = false;
    };
    try {
      work();
    } catch (...) {
      end();
      throw;
    }
    end();
    return graph;
  }
  void launch(Graph& graph) override {
    for (const Work& work : static_cast<DeferredGraph&>(graph).work) put(work);
  }

  void work() {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty()) work_once();
  }
  void work_once() {
    const std::lock_guard lock(mutex_);
    const ScopedFlushToZero flush;
    queue_.front()();
    queue_.pop_front();
  }
  Device& device() { return device_; }
  std::recursive_mutex& mutex() { return mutex_; }  // threads that load share a stream

 private:
  void copy(void* to, const void* from, size_t bytes) {
    put([=] { std::memcpy(to, from, bytes); });
  }

  Device& device_;
  bool& is_recording_;
  DeferredGraph* recording_ = nullptr;
  std::recursive_mutex mutex_;
  std::deque<Work> queue_;
};

class DeferredEvent final : public Event {
 public:
  void wait() override {
    if (!stream) return;
    const std::lock_guard lock(stream->mutex());
    if (is_done) return;
    stream->device().note_wait();
    while (!is_done) stream->work_once();
  }
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(done_at -
                                         static_cast<const DeferredEvent&>(earlier).done_at)
        .count();
  }

  DeferredStream* stream = nullptr;
  bool is_done = true;
  std::chrono::steady_clock::time_point done_at;
};

void DeferredStream::record(Event& event) {
  auto& mark = static_cast<DeferredEvent&>(event);
  const std::lock_guard lock(mutex_);
  mark.stream = this;
  mark.is_done = false;
  put([&mark] {
    mark.is_done = true;
    mark.done_at = std::chrono::steady_clock::now();
  });
}

class DeferredDevice final : public Device, public VacatesMemory {
 public:
  void* allocate(size_t bytes, const char* what) override {
    if (is_recording_) fail("memory was allocated while a stream was recorded");
    return host_->allocate(bytes, what);
  }
  void release(void* address, size_t bytes) override { host_->release(address, bytes); }
  void* allocate_vacatable(size_t bytes, const char* what) override {
    return allocate(bytes, what);
  }
  void release_vacatable(void* address, size_t bytes) override { release(address, bytes); }
  void vacate(void* address, size_t bytes) override {
    dynamic_cast<VacatesMemory&>(*host_).vacate(address, bytes);
  }
  void occupy(void* address, size_t bytes, const char* what) override {
    dynamic_cast<VacatesMemory&>(*host_).occupy(address, bytes, what);
  }
  void* allocate_pinned(size_t bytes, const char* what) override { return allocate(bytes, what); }
  void release_pinned(void* address, size_t bytes) override { release(address, bytes); }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<DeferredStream>(*this, is_recording_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<DeferredEvent>(); }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  bool is_host() const override { return false; }
  size_t available_bytes() const override { return host_->available_bytes(); }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    note_wait();
    std::memcpy(to, from, bytes);
  }

  std::unique_ptr<Device> host_ = make_host_device();
  bool is_recording_ = false;
};

template <Order order, auto entry, typename Params>
void deferred(const Params& params, const Execution& on) {
  static_cast<DeferredStream*>(on.stream)->put([=] {
    static const Kernels kernels = select_kernels(order, "scalar");
    (kernels.*entry)(params, Execution{});
  });
}

// One row with the adapter that a tile's slot has when the work is done.
class AdaptedRow {
 public:
  AdaptedRow(const AdapterParams& params, const AdapterTile& tile, int32_t i)
      : slot_(params.tables.slots[tile.slot * params.tables.slot_stride]),
        run_{params.tables.rows[tile.first + i], 1} {
    int64_t inner = 0;
    const DType type = params.x.type;
    for (int32_t j = 0; j < slot_.tensors; ++j) {
      const AdapterSlot::Tensor& of = slot_.outputs[j];
      outputs_.push_back({.b = {.data = of.b, .type = type, .n = of.n, .k = of.rank},
                          .scale = of.scale,
                          .inner = of.inner,
                          .output = of.output,
                          .step = of.step});
      inner = of.inner + round_up(of.rank, kLeafPad);
    }
    group_ = {.a = {.data = slot_.a, .type = type, .n = inner, .k = params.tables.k},
              .outputs = outputs_.data(),
              .tensors = slot_.tensors,
              .runs = &run_,
              .num_runs = 1,
              .rows = 1};
  }
  AdaptedRow(const AdaptedRow&) = delete;
  const AdapterGroup& group() const { return group_; }
  int64_t row() const { return run_.first; }

 private:
  AdapterSlot slot_;
  RowRun run_;
  std::vector<AdapterOutputs> outputs_;
  AdapterGroup group_;
};

// By tables, as a GPU.
template <Order order, bool expands>
void deferred_adapters(const AdapterParams& params, const Execution& on) {
  static_cast<DeferredStream*>(on.stream)->put([=] {
    static const Kernels kernels = select_kernels(order, "scalar");
    if (!params.tables.slots) return;
    AdapterParams one = params;
    one.matmul = kernels.matmul;
    one.num_groups = 1;
    for (int32_t i = 0; i < params.tables.num_tiles; ++i)
      for (int32_t j = 0; j < params.tables.tiles[i].count; ++j) {
        const AdaptedRow adapted(params, params.tables.tiles[i], j);
        if (adapted.group().tensors == 0) continue;
        one.groups = &adapted.group();
        if (!expands) {
          kernels.adapter_shrink(one, Execution{});
          continue;
        }
        std::vector<float> inner(static_cast<size_t>((adapted.row() + 1) * params.sums_stride));
        one.inner = {inner.data(), params.x.type, params.sums_stride};
        kernels.adapter_round(one, Execution{});
        kernels.adapter_expand(one, Execution{});
      }
  });
}

template <Order order>
Kernels table() {
  return {.name = "deferred",
          .order = order,
          .embed = deferred<order, &Kernels::embed, EmbedParams>,
          .rms_norm = deferred<order, &Kernels::rms_norm, RmsNormParams>,
          .matmul = deferred<order, &Kernels::matmul, MatmulParams>,
          .gated_matmul = deferred<order, &Kernels::gated_matmul, GatedMatmulParams>,
          .qkv = deferred<order, &Kernels::qkv, QkvParams>,
          .attention = deferred<order, &Kernels::attention, AttentionParams>,
          .round = deferred<order, &Kernels::round, RoundParams>,
          .add = deferred<order, &Kernels::add, AddParams>,
          .add_silu = deferred<order, &Kernels::add_silu, AddSiluParams>,
          .copy_slots = deferred<order, &Kernels::copy_slots, CopySlotsParams>,
          .sample = deferred<order, &Kernels::sample, SampleRowsParams>,
          .hash_logits = deferred<order, &Kernels::hash_logits, HashLogitsParams>,
          .adapter_shrink = deferred_adapters<order, false>,
          .adapter_expand = deferred_adapters<order, true>,
          .add_bias = deferred<order, &Kernels::add_bias, AddBiasParams>,
          .gate_pairs = deferred<order, &Kernels::gate_pairs, GatePairsParams>};
}

}  // namespace

std::unique_ptr<Device> make_deferred_device() {
  return std::make_unique<DeferredDevice>();
}

Kernels deferred_kernels(Order order) {
  return order == Order::hopper ? table<Order::hopper>() : table<Order::portable>();
}

}  // namespace invar
