#include "support/deferred_device.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <vector>

#include "base/error.h"
#include "device/vacatable.h"
#include "kernels/adapters.h"
#include "kernels/recurrent.h"
#include "kernels/sample.h"
#include "kernels/select.h"

namespace invar {

namespace {

class DeferredStream;

// A piece of a stream's work. What is not ready waits for another stream.
struct Item {
  std::function<void()> work;
  std::function<bool()> is_ready = [] { return true; };
};

// A graph puts its items into their streams each time that it is launched.
struct DeferredGraph final : Graph {
  std::vector<std::pair<DeferredStream*, std::function<Item()>>> items;
};

// All streams of a device, and in which order their work is done.
class Streams {
 public:
  explicit Streams(const DeferredOrder& order) : waits(order.waits) {
    if (order.seed) random_.emplace(*order.seed);
  }

  void add(DeferredStream* stream) { all_.push_back(stream); }
  void remove(DeferredStream* stream) { std::erase(all_, stream); }

  // With a seed some work is done before anybody waits for it, of any stream.
  void did_put() {
    if (!random_) return;
    for (uint32_t left = (*random_)() % 3; left > 0; --left) do_any();
  }
  // Until `is_over`: the stream's own work first, others' where it waits for them or a seed says
  // so.
  void work_until(DeferredStream& stream, const std::function<bool()>& is_over);
  void end_recording();

  std::recursive_mutex mutex;  // threads that load share a stream
  DeferredGraph* recorded = nullptr;
  const bool waits;  // streams for others, as they are told to

 private:
  bool do_any();

  std::vector<DeferredStream*> all_;
  std::optional<std::mt19937> random_;
};

class DeferredEvent final : public Event {
 public:
  void wait() override;
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(marks->done_at -
                                         static_cast<const DeferredEvent&>(earlier).marks->done_at)
        .count();
  }

  struct Marks {
    int64_t put = 0, done = 0;  // how often the event was recorded, and how often that was done
    std::chrono::steady_clock::time_point done_at;
  };
  std::shared_ptr<Marks> marks = std::make_shared<Marks>();
  DeferredStream* stream = nullptr;  // that recorded it
};

class DeferredStream final : public Stream {
 public:
  DeferredStream(Device& device, Streams& streams) : device_(device), streams_(streams) {
    streams_.add(this);
  }
  ~DeferredStream() override { streams_.remove(this); }

  void put(std::function<void()> work) {
    put_made([=] { return Item{work}; });
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
    if (recorded_) fail("a stream was waited for while it was recorded");
    device_.note_wait();
    streams_.work_until(*this, [this] { return queue_.empty(); });
  }
  void record(Event& event) override {
    auto& mine = static_cast<DeferredEvent&>(event);
    mine.stream = this;
    put_made([marks = mine.marks] {
      ++marks->put;
      return Item{[marks] {
        ++marks->done;
        marks->done_at = std::chrono::steady_clock::now();
      }};
    });
  }
  void wait_for(const Event& event) override {
    const auto& other = static_cast<const DeferredEvent&>(event);
    if (!other.stream) return;
    // A stream that waits for one that is recorded is recorded with it.
    if (!recorded_) recorded_ = other.stream->recorded_;
    if (!streams_.waits) return;
    put_made([marks = other.marks] {
      return Item{[] {}, [marks, put = marks->put] { return marks->done >= put; }};
    });
  }

  std::unique_ptr<Graph> record_graph(FunctionRef<void()> work) override {
    auto graph = std::make_unique<DeferredGraph>();
    recorded_ = streams_.recorded = graph.get();
    try {
      work();
    } catch (...) {
      streams_.end_recording();
      throw;
    }
    streams_.end_recording();
    return graph;
  }
  void end_recording() { recorded_ = nullptr; }
  void launch(Graph& graph) override {
    for (const auto& [stream, make] : static_cast<DeferredGraph&>(graph).items)
      stream->put_made(make);
  }

  // Does the first piece of work, if there is one that is ready.
  bool do_first() {
    if (queue_.empty() || !queue_.front().is_ready()) return false;
    const ScopedFlushToZero flush;
    const Item item = std::move(queue_.front());
    queue_.pop_front();
    item.work();
    return true;
  }
  Device& device() { return device_; }
  Streams& streams() { return streams_; }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    put([=] { std::memcpy(to, from, bytes); });
  }
  void put_made(const std::function<Item()>& make) {
    const std::lock_guard lock(streams_.mutex);
    if (recorded_) return recorded_->items.emplace_back(this, make), void();
    queue_.push_back(make());
    streams_.did_put();
  }

  Device& device_;
  Streams& streams_;
  DeferredGraph* recorded_ = nullptr;
  std::deque<Item> queue_;
};

void Streams::work_until(DeferredStream& stream, const std::function<bool()>& is_over) {
  const std::lock_guard lock(mutex);
  while (!is_over())
    if (!(random_ && do_any()) && !stream.do_first() && !do_any())
      fail("streams wait for each other");
}

// A piece of one of the streams, drawn where there is a seed.
bool Streams::do_any() {
  const size_t first = random_ ? (*random_)() % all_.size() : 0;
  for (size_t i = 0; i < all_.size(); ++i)
    if (all_[(first + i) % all_.size()]->do_first()) return true;
  return false;
}

void Streams::end_recording() {
  for (DeferredStream* stream : all_) stream->end_recording();
  recorded = nullptr;
}

void DeferredEvent::wait() {
  if (!stream) return;
  Streams& streams = stream->streams();
  const std::lock_guard lock(streams.mutex);
  if (marks->done >= marks->put) return;
  stream->device().note_wait();
  streams.work_until(*stream, [this, put = marks->put] { return marks->done >= put; });
}

class DeferredDevice final : public Device, public VacatesMemory {
 public:
  explicit DeferredDevice(const DeferredOrder& order) : streams_(order) {}

  void* allocate(size_t bytes, const char* what) override {
    if (streams_.recorded) fail("memory was allocated while a stream was recorded");
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
    return std::make_unique<DeferredStream>(*this, streams_);
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
  Streams streams_;
};

template <Order order, auto entry, typename Params>
void deferred(const Params& params, const Execution& on) {
  static_cast<DeferredStream*>(on.stream)->put([=] {
    static const Kernels kernels = select_kernels(order, "scalar");
    (kernels.*entry)(params, Execution{});
  });
}

// Experts multiply by a function of their table.
template <Order order, auto entry, auto product, typename Params>
void deferred_experts(const Params& params, const Execution& on) {
  static_cast<DeferredStream*>(on.stream)->put([=] {
    static const Kernels kernels = select_kernels(order, "scalar");
    Params own = params;
    own.matmul = kernels.*product;
    (kernels.*entry)(own, Execution{});
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

// And those of experts and of layers with a state.
template <Order order>
Kernels whole_table() {
  Kernels all = table<order>();
  all.route = deferred<order, &Kernels::route, RouteParams>;
  all.sort_rows = deferred<order, &Kernels::sort_rows, SortRowsParams>;
  all.gather_rows = deferred<order, &Kernels::gather_rows, GatherRowsParams>;
  all.expert_matmul =
      deferred_experts<order, &Kernels::expert_matmul, &Kernels::matmul, ExpertMatmulParams>;
  all.expert_gated_matmul = deferred_experts<order, &Kernels::expert_gated_matmul,
                                             &Kernels::gated_matmul, ExpertGatedMatmulParams>;
  all.combine = deferred<order, &Kernels::combine, CombineParams>;
  all.copy_cells = deferred<order, &Kernels::copy_cells, CopyCellsParams>;
  all.short_conv = deferred<order, &Kernels::short_conv, ShortConvParams>;
  all.recurrent_gates = deferred<order, &Kernels::recurrent_gates, RecurrentGatesParams>;
  all.recurrent_keys = deferred<order, &Kernels::recurrent_keys, RecurrentKeysParams>;
  all.recurrence = deferred<order, &Kernels::recurrence, RecurrenceParams>;
  all.gated_norm = deferred<order, &Kernels::gated_norm, GatedNormParams>;
  return all;
}

}  // namespace

std::unique_ptr<Device> make_deferred_device(const DeferredOrder& order) {
  return std::make_unique<DeferredDevice>(order);
}

Kernels deferred_kernels(Order order) {
  return order == Order::hopper ? whole_table<Order::hopper>() : whole_table<Order::portable>();
}

}  // namespace invar
