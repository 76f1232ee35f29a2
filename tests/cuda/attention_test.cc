// Attention: every schedule of both orders against the CPU's kernels.
#include <fmt/format.h>

#include <bit>
#include <map>
#include <numeric>
#include <tuple>

#include "cuda_check.h"
#include "kernels/reference/reference.h"

namespace invar {
namespace {

struct Case {
  int heads, kv_heads, head_dim, block_size, window = 0;
  DType out = DType::bf16;
  int repeats = 1;  // of a table's blocks: a sequence as long as that
  double score_scale = 0;
  float score_cap = 0;
  bool has_sinks = false;
  DType kv = DType::bf16;  // queries, keys and values
  CacheType cache = CacheType::bf16;
};

// As queries and a cache of T have it.
template <typename T>
T value_of(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return f32_to_bf16(x);
}

// Rows of a batch: a table and a position each.
struct Batch {
  const char* name;
  std::vector<std::pair<int, int>> rows;
};

// Rows of a prompt that skip slots, of single steps, and at the edges of splits; two prompts; few
// single rows, so that a row's splits are computed apart; many rows of few for each table; single
// rows of any length, alone and around prompts.
std::vector<Batch> batches() {
  Batch mixed{"mixed", {}}, prompts{"prompts", {}}, few{"few", {}}, steps{"steps", {}},
      ragged{"ragged", {}}, load{"load", {}};
  for (int p = 0; p < 21; ++p) mixed.rows.emplace_back(0, p * 7 + 110);
  for (const int p : {0, 1, 15, 16, 31, 32, 127, 128, 129, 255, 256, 300})
    mixed.rows.emplace_back(1, p);
  mixed.rows.emplace_back(2, 1 << 20);
  for (int p = 0; p < 150; ++p) prompts.rows.emplace_back(0, p + 40);
  for (int p = 0; p < 70; ++p) prompts.rows.emplace_back(1, p + 250);
  for (int p = 0; p < 17; ++p) prompts.rows.emplace_back(2, p);
  few.rows = {{0, 1 << 20}, {1, 400}, {1, 401}, {2, 0}};
  for (int p = 0; p < 21; ++p) steps.rows.emplace_back(p / 7, p * 31 + 3);
  Random random(7);
  for (int i = 0; i < 140; ++i) ragged.rows.emplace_back(i, random.below(i % 20 ? 700 : 1 << 20));
  load.rows.assign(ragged.rows.begin(), ragged.rows.begin() + 65);
  for (int p = 0; p < 30; ++p) load.rows.emplace_back(65, p + 100);
  for (int i = 66; i < 120; ++i) load.rows.push_back(ragged.rows[i]);
  for (int p = 0; p < 16; ++p) load.rows.emplace_back(120, p * 3);
  return {mixed, prompts, few, steps, ragged, load};
}

class Attention : public CudaTest {
 protected:
  void check(Order order, const Case& c) {
    for (const Batch& batch : batches())
      c.kv == DType::f32     ? check_batch<float, float>(order, c, batch)
      : c.out == DType::bf16 ? check_batch<bf16_t, bf16_t>(order, c, batch)
                             : check_batch<float, bf16_t>(order, c, batch);
  }

  // T: the output's type, V: that of queries, keys and values.
  template <typename T, typename V>
  void check_batch(Order order, const Case& c, const Batch& batch) {
    Random random(c.heads * 31 + c.head_dim * 7 + c.block_size + c.window);
    const int blocks = 40;
    KvLayer host{
        .block_size = c.block_size, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .type = c.kv};
    KvLayer device = host;
    device.layout = cuda::kernels(order).cache;
    AlignedVector<V> host_keys(blocks * c.kv_heads * host.key_block()),
        host_values(blocks * c.kv_heads * host.value_block());
    Twin<V> keys(gpu(), blocks * c.kv_heads * device.key_block()),
        values(gpu(), blocks * c.kv_heads * device.value_block());
    for (auto* twin : {&keys, &values}) std::ranges::fill(twin->host, V{0});
    const auto any_finite = [&] {  // what a cache may hold: mostly ordinary, now and then any
                                   // finite bits; of many such bits every output would become NaN
      const bf16_t bits = static_cast<bf16_t>(random.next());
      const float any = bf16_to_f32((bits & 0x7f80) == 0x7f80 ? bf16_t{0} : bits);
      return value_of<V>(random.below(20000) == 0 ? any : random.uniform());
    };
    for (int block = 0; block < blocks; ++block)
      for (int g = 0; g < c.kv_heads; ++g)
        for (int slot = 0; slot < c.block_size; ++slot)
          for (int e = 0; e < c.head_dim; ++e) {
            host_keys[host.key_index(block, g, slot, e)] = any_finite();
            host_values[host.value_index(block, g, slot, e)] = any_finite();
          }
    host.keys = reinterpret_cast<bf16_t*>(host_keys.data());
    host.values = reinterpret_cast<bf16_t*>(host_values.data());
    device.stored = {nullptr, c.cache, c.block_size, c.kv_heads, c.head_dim};
    const bool is_stored = c.cache != CacheType::bf16;
    Twin<uint8_t> stored(gpu(), is_stored ? blocks * device.stored.block_bytes() : 1);
    if (is_stored) {
      host.stored = device.stored;
      host.stored.data = stored.host.data();
      store_all(host, blocks);
      device.stored.data = stored.device();
    }
    for (int block = 0; block < blocks; ++block)
      for (int g = 0; g < c.kv_heads; ++g)
        for (int slot = 0; slot < c.block_size; ++slot)
          for (int e = 0; e < c.head_dim; ++e) {
            keys.host[device.key_index(block, g, slot, e)] =
                host_keys[host.key_index(block, g, slot, e)];
            values.host[device.value_index(block, g, slot, e)] =
                host_values[host.value_index(block, g, slot, e)];
          }

    // Three tables of blocks in no order, for as many sequences as there are.
    const int per_table = blocks / 3 * c.repeats, slots = per_table * c.block_size;
    std::vector<int32_t> order_of(3 * per_table), positions, table_of;
    for (int i = 0; i < 3 * per_table; ++i) order_of[i] = (i * 17 + 5) % blocks;
    for (const auto& [table, position] : batch.rows) {
      table_of.push_back(table);
      positions.push_back(std::min(position, slots - 1));
    }
    const int64_t rows = std::ssize(positions), padded = round_up(c.head_dim, 32);
    Twin<V> q(gpu(), rows * c.heads * padded);
    for (int64_t i = 0; i < rows * c.heads; ++i)
      for (int64_t e = 0; e < padded; ++e)
        q.host[i * padded + e] =
            e < c.head_dim ? value_of<V>(random.uniform() * (i % 7 ? 1 : 30)) : V{0};
    for (int i = 0; spoiled_ && i < blocks * c.block_size; ++i) {
      values.host[device.value_index(i / c.block_size, 0, i % c.block_size, 0)] =
          value_of<V>(1000.0f);
      if (is_stored) *host.stored.value(i / c.block_size, 0, i % c.block_size).row ^= 0x40;
    }
    for (auto* twin : {&keys, &values, &q}) twin->upload();
    stored.upload();
    device.keys = reinterpret_cast<bf16_t*>(keys.device());
    device.values = reinterpret_cast<bf16_t*>(values.device());
    const Twin<int32_t> blocks_on(gpu(), order_of), table_of_on(gpu(), table_of),
        few_rows_on(gpu(), few_rows(table_of));
    Twin<int32_t> positions_on(gpu(), positions);
    std::vector<const int32_t*> host_tables, gpu_tables;
    for (int i = 0; i <= table_of.back(); ++i) {
      host_tables.push_back(order_of.data() + i % 3 * per_table);
      gpu_tables.push_back(blocks_on.device() + i % 3 * per_table);
    }
    const Twin<const int32_t*> tables_on(gpu(), gpu_tables);
    const int64_t stride = activation_stride(int64_t{c.heads} * c.head_dim);
    Twin<T> out(gpu(), rows * stride);
    std::vector<float> of_heads;  // that are little of a row's weight, or all of it
    for (int h = 0; h < c.heads; ++h) of_heads.push_back(h % 5 == 4 ? 90.0f : h - 3.5f);
    const Twin<float> sinks(gpu(), of_heads);
    AttentionParams p{.q = reinterpret_cast<const bf16_t*>(q.host.data()),
                      .rows = rows,
                      .heads = c.heads,
                      .positions = positions.data(),
                      .table_of = table_of.data(),
                      .tables = host_tables.data(),
                      .window = c.window,
                      .kv = host,
                      .out = {out.host.data(), c.out, stride},
                      .score_scale = c.score_scale,
                      .score_cap = c.score_cap,
                      .sinks = c.has_sinks ? sinks.host.data() : nullptr};
    run_in_parts(1, [&](const Execution& on) { cpu(order).attention(p, on); });
    p.q = reinterpret_cast<const bf16_t*>(q.device());
    p.positions = positions_on.device();
    p.table_of = table_of_on.device();
    p.tables = tables_on.device();
    p.few_rows = few_rows_on.device();
    if (p.sinks) p.sinks = sinks.device();
    const Shared shared = shared_of(batch, positions, few_rows(table_of));
    Twin<SharedPrefix> shared_on(gpu(), shared.prefixes);
    Twin<int32_t> shared_splits_on(gpu(), shared.splits);
    p.shared = shared_on.device();
    p.shared_splits = shared_splits_on.device();
    p.kv = device;
    p.out.data = out.device();
    const DeviceArray<std::byte> scratch(gpu(), cuda::kernels(order).attention_scratch, "a test");
    std::vector<unsigned char> stale(out.host.size() * sizeof(T), 0xff);
    // Of positions, and of what rows share, a half or all.
    const auto set_lengths = [&](int share) {
      for (size_t t = 0; t < positions.size(); ++t) {
        positions_on.host[t] = positions[t] / share;
        shared_splits_on.host[t] = shared.splits[t] / share;
      }
      for (size_t i = 0; i < shared.prefixes.size(); ++i)
        shared_on.host[i].splits = shared.prefixes[i].splits / share;
      positions_on.upload();
      shared_splits_on.upload();
      shared_on.upload();
    };
    for (const cuda::AttentionSchedule& s : cuda::attention_schedules(order))
      for (const auto& [memory, even, shares] :
           {std::tuple<void*, bool, bool>(nullptr, false, false),
            {scratch.data(), false, false},
            {scratch.data(), true, false},
            {scratch.data(), false, true},
            {scratch.data(), true, true}}) {
        if (shares && shared.prefixes.empty()) continue;
        // The others read what was made bf16.
        if (is_stored && &s != &cuda::attention_schedules(order).front()) continue;
        if (only_shared_ && (!shares || s.can == cuda::attention_schedules(order).back().can))
          continue;  // which reads all for every row
        p.scratch = memory;
        p.rows_are_even = even;
        p.num_shared = shares ? static_cast<int32_t>(shared.prefixes.size()) : 0;
        // With a scratch memory as a step calls it, which knows its tables, without one not.
        std::tie(p.fewest_rows, p.most_rows) =
            memory ? rows_of_tables(table_of) : std::pair(1, INT32_MAX);
        if (!s.can(p)) continue;
        // Recorded with other lengths: a step's graph is launched with any.
        set_lengths(2);
        const std::unique_ptr<Graph> graph =
            on().stream->record_graph([&] { s.attention(p, on()); });
        on().stream->launch(*graph);
        set_lengths(1);
        gpu().upload(out.device(), stale.data(), stale.size());
        on().stream->launch(*graph);
        EXPECT_EQ(static_cast<bool>(out.matches()), !spoiled_ && !only_shared_)
            << out.matches().message() << " "
            << fmt::format(
                   "{} {}, {} rows, scratch {}, even {}, shared {}: heads {}/{} of {}, blocks of "
                   "{}, window "
                   "{}",
                   name_of(order), s.name, batch.name, memory != nullptr, even, p.num_shared,
                   c.heads, c.kv_heads, c.head_dim, c.block_size, c.window);
        ++compared_;
      }
  }

  // Every slot of a cache as it is stored in 8 bits, and again as what that stands for.
  static void store_all(const KvLayer& kv, int blocks) {
    const int slots = blocks * kv.block_size;
    std::vector<int32_t> begin(slots + 1), block(slots), slot(slots), table(blocks);
    std::iota(begin.begin(), begin.end(), 0);
    std::iota(table.begin(), table.end(), 0);
    for (int i = 0; i < slots; ++i) block[i] = i / kv.block_size, slot[i] = i % kv.block_size;
    const int32_t last = slots - 1, first_table = 0;
    const int32_t* const tables[] = {table.data()};
    run_in_parts(1, [&](const Execution& on) {
      reference::store_slots({kv, slots, begin.data(), block.data(), slot.data()}, on);
      reference::load_slots({kv, 1, 0, &last, &first_table, tables}, on);
    });
  }

  // AttentionParams: of every 64 rows those whose tables have the same blocks, every third one.
  struct Shared {
    std::vector<SharedPrefix> prefixes;
    std::vector<int32_t> splits;
  };
  Shared shared_of(const Batch& batch, const std::vector<int32_t>& positions,
                   const std::vector<int32_t>& few) const {
    Shared shared{{}, std::vector<int32_t>(positions.size(), 0)};
    for (int32_t first = 0; first < std::ssize(positions); first += 64)
      for (int kind = 0; kind < 3; ++kind) {
        SharedPrefix prefix{.first_row = first, .splits = INT32_MAX};
        for (int32_t i = 1; i <= few[0]; ++i) {
          const int32_t t = few[i], splits = positions[t] / kSplitSlots;
          if (t / 64 * 64 != first || batch.rows[t].first % 3 != kind || splits < 2) continue;
          prefix.rows |= uint64_t{1} << (t - first);
          prefix.splits = std::min(prefix.splits, splits);
        }
        if (std::popcount(prefix.rows) < 2) continue;
        for (int i = 0; i < 64; ++i)
          if (prefix.rows >> i & 1) shared.splits[first + i] = prefix.splits;
        shared.prefixes.push_back(prefix);
      }
    // The control: rows that a prefix does not name begin behind it, too.
    if (only_shared_)
      for (SharedPrefix& prefix : shared.prefixes) prefix.rows &= prefix.rows - 1;
    return shared;
  }

  // AttentionParams: the rows of tables without many, their number first.
  static std::vector<int32_t> few_rows(const std::vector<int32_t>& table_of) {
    std::vector<int32_t> few = {0};
    for (int32_t t = 0; t < std::ssize(table_of); ++t)
      if (std::ranges::count(table_of, table_of[t]) < kManyRows) few.push_back(t);
    few[0] = static_cast<int32_t>(few.size() - 1);
    few.resize(table_of.size() + 1);
    return few;
  }

  static std::pair<int32_t, int32_t> rows_of_tables(const std::vector<int32_t>& table_of) {
    std::map<int32_t, int32_t> rows;
    for (const int32_t table : table_of) ++rows[table];
    const auto by_rows = [](const auto& a, const auto& b) { return a.second < b.second; };
    return {std::ranges::min_element(rows, by_rows)->second,
            std::ranges::max_element(rows, by_rows)->second};
  }

  int compared_ = 0;
  bool only_shared_ = false;  // only with prefixes, each of which lacks a row
  bool spoiled_ = false;      // one head element of the GPU's values is another
};

constexpr Case kCases[] = {
    {4, 2, 16, 32},
    {6, 2, 40, 64},
    {8, 2, 64, 128},
    {32, 8, 128, 64},
    {5, 5, 96, 32, 50},
    {16, 1, 128, 64, 129},
    {12, 2, 256, 128, 7},
    {6, 3, 80, 32},
    {14, 2, 64, 32, 200},
    {3, 3, 128, 64},
    {.heads = 8, .kv_heads = 4, .head_dim = 128, .block_size = 64, .score_scale = 0.07},
    {.heads = 8, .kv_heads = 4, .head_dim = 256, .block_size = 64, .window = 100, .score_cap = 5},
    {.heads = 8, .kv_heads = 4, .head_dim = 128, .block_size = 64, .window = 200, .score_cap = 5},
    {.heads = 3, .kv_heads = 3, .head_dim = 64, .block_size = 32, .score_cap = 0.5f},
    {.heads = 16, .kv_heads = 2, .head_dim = 64, .block_size = 64, .has_sinks = true},
    {.heads = 6,
     .kv_heads = 2,
     .head_dim = 128,
     .block_size = 64,
     .window = 130,
     .has_sinks = true},
    {.heads = 5, .kv_heads = 5, .head_dim = 40, .block_size = 32, .has_sinks = true},
    {16, 2, 256, 64},
    {.heads = 5, .kv_heads = 5, .head_dim = 256, .block_size = 32, .has_sinks = true},
    {.heads = 20, .kv_heads = 1, .head_dim = 576, .block_size = 64, .score_scale = 0.07},
    {.heads = 3, .kv_heads = 1, .head_dim = 288, .block_size = 32},
    {.heads = 8, .kv_heads = 1, .head_dim = 512, .block_size = 64, .score_scale = 1},
    {.heads = 10, .kv_heads = 5, .head_dim = 512, .block_size = 128},
    {.heads = 4, .kv_heads = 4, .head_dim = 512, .block_size = 32, .window = 130}};

Case in_f32(Case c) {
  c.kv = c.out = DType::f32;
  return c;
}

TEST_F(Attention, Hopper) {
  for (const Case& c : kCases) check(Order::hopper, c);
  EXPECT_GT(compared_, 3 * std::ssize(kCases) * 9);  // the tensor cores' tiles are among them
}

// Enough splits for several windows of the kernel that merges them.
TEST_F(Attention, HopperLong) {
  for (const bool has_sinks : {false, true})
    check(Order::hopper, {.heads = 4,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .block_size = 32,
                          .repeats = 90,
                          .has_sinks = has_sinks});
}

// Otherwise nothing above would say that outputs are compared.
TEST_F(Attention, ChangedValuesAreSeen) {
  spoiled_ = true;
  for (const Order order : {Order::hopper, Order::portable}) {
    check(order, {8, 2, 64, 128});
    check(order, {8, 2, 256, 64});
    check(order, {8, 1, 512, 64});
    check(order, {8, 1, 576, 64});
  }
  check(Order::portable, in_f32({8, 2, 64, 128}));
}

TEST_F(Attention, ARowThatAPrefixLacksIsSeen) {
  only_shared_ = true;
  for (const Case& c : {Case{32, 8, 128, 64}, Case{8, 2, 64, 128}})
    for (const Batch& batch : batches())
      if (batch.name == std::string_view("ragged"))
        check_batch<bf16_t, bf16_t>(Order::hopper, c, batch);
  EXPECT_GT(compared_, 0);
}

// What is stored in 8 bits is read as it lies, of head sizes that are; of prompts, and of other
// sizes, as the bf16 that was made of it.
constexpr Case kStoredCases[] = {
    {32, 8, 128, 64},
    {8, 2, 64, 128},
    {6, 2, 256, 32},
    {16, 1, 128, 64, 129},
    {6, 3, 80, 32},
    {.heads = 8, .kv_heads = 4, .head_dim = 128, .block_size = 128, .score_cap = 5},
    {.heads = 6, .kv_heads = 2, .head_dim = 64, .block_size = 64, .has_sinks = true}};

Case stored_in(CacheType type, Case c) {
  c.cache = type;
  return c;
}

TEST_F(Attention, Stored) {
  for (const CacheType type : {CacheType::int8, CacheType::fp8_e4m3})
    for (const Case& c : kStoredCases) check(Order::hopper, stored_in(type, c));
  EXPECT_GT(compared_, 2 * std::ssize(kStoredCases) * 2 * std::ssize(batches()));
}

TEST_F(Attention, ChangedStoredValuesAreSeen) {
  spoiled_ = true;
  for (const CacheType type : {CacheType::int8, CacheType::fp8_e4m3})
    for (const Case& c : kStoredCases)
      if (c.head_dim != 80) check(Order::hopper, stored_in(type, c));
}

TEST_F(Attention, Portable) {
  for (const Case& c : kCases) check(Order::portable, c);
  check(Order::portable, {6, 2, 40, 64, 0, DType::f32});
}

// Weight mode exact: the CPU's kernels are compared with the scalar definition elsewhere.
TEST_F(Attention, PortableInF32) {
  for (const Case& c : kCases) check(Order::portable, in_f32(c));
  EXPECT_GE(compared_, 3 * std::ssize(kCases) * std::ssize(batches()));
}

}  // namespace
}  // namespace invar
