// Attention: every schedule of both orders against the CPU's kernels.
#include <fmt/format.h>

#include "cuda_check.h"

namespace invar {
namespace {

struct Case {
  int heads, kv_heads, head_dim, page_places, window = 0;
  DType out = DType::bf16;
};

class Attention : public CudaTest {
 protected:
  void check(Order order, const Case& c) {
    Random random(c.heads * 31 + c.head_dim * 7 + c.page_places + c.window);
    const int pages = 40;
    KvLayer kv{.page_places = c.page_places, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
    Twin<bf16_t> keys(gpu(), pages * c.kv_heads * kv.key_block()),
        values(gpu(), pages * c.kv_heads * kv.value_block());
    const auto any_finite =
        [&] {  // what a cache may hold: mostly ordinary, now and then any finite bits
          const bf16_t bits = static_cast<bf16_t>(random.next());
          if (random.below(40) == 0) return (bits & 0x7f80) == 0x7f80 ? bf16_t{0} : bits;
          return f32_to_bf16(random.uniform());
        };
    for (bf16_t& x : keys.host) x = any_finite();
    for (bf16_t& x : values.host) x = any_finite();
    for (int page = 0; page < pages; ++page)
      for (int g = 0; g < c.kv_heads; ++g)
        for (int place = 0; place < c.page_places; ++place)
          for (int64_t e = c.head_dim; e < round_up(c.head_dim, 32); ++e)
            keys.host[kv.key_index(page, g, place, e)] = 0;

    // Three tables of pages in no order; rows of a prompt, of single steps, and at the edges of
    // splits.
    std::vector<int32_t> order_of(pages), positions, table_of;
    for (int i = 0; i < pages; ++i) order_of[i] = (i * 17 + 5) % pages;
    const int per_table = pages / 3, places = per_table * c.page_places;
    for (int p = 0; p < 21; ++p)
      positions.push_back(std::min(p * 7 + 110, places - 1)), table_of.push_back(0);
    for (const int p : {0, 1, 15, 16, 31, 32, 127, 128, 129, 255, 256, 300})
      positions.push_back(std::min(p, places - 1)), table_of.push_back(1);
    positions.push_back(places - 1), table_of.push_back(2);
    const int64_t rows = std::ssize(positions), padded = round_up(c.head_dim, 32);
    Twin<bf16_t> q(gpu(), rows * c.heads * padded);
    for (int64_t i = 0; i < rows * c.heads; ++i)
      for (int64_t e = 0; e < padded; ++e)
        q.host[i * padded + e] =
            e < c.head_dim ? f32_to_bf16(random.uniform() * (i % 7 ? 1 : 30)) : bf16_t{0};
    for (auto* twin : {&keys, &values, &q}) twin->upload();
    const Twin<int32_t> pages_on(gpu(), order_of), positions_on(gpu(), positions),
        table_of_on(gpu(), table_of);
    const int32_t* host_tables[3];
    std::vector<const int32_t*> gpu_tables(3);
    for (int i = 0; i < 3; ++i) {
      host_tables[i] = order_of.data() + i * per_table;
      gpu_tables[i] = pages_on.device() + i * per_table;
    }
    const Twin<const int32_t*> tables_on(gpu(), gpu_tables);
    const int64_t width = c.heads * c.head_dim, stride = activation_stride(width);
    if (c.out == DType::bf16)
      compare<bf16_t>(order, c, kv, keys, values, q, positions_on, table_of_on, host_tables,
                      tables_on, stride);
    else
      compare<float>(order, c, kv, keys, values, q, positions_on, table_of_on, host_tables,
                     tables_on, stride);
  }

 private:
  template <typename T>
  void compare(Order order, const Case& c, KvLayer kv, const Twin<bf16_t>& keys,
               const Twin<bf16_t>& values, const Twin<bf16_t>& q, const Twin<int32_t>& positions,
               const Twin<int32_t>& table_of, const int32_t* const* host_tables,
               const Twin<const int32_t*>& tables, int64_t stride) {
    const int64_t rows = std::ssize(positions.host);
    Twin<T> out(gpu(), rows * stride);
    kv.keys = const_cast<bf16_t*>(keys.host.data());
    kv.values = const_cast<bf16_t*>(values.host.data());
    AttentionParams p{.q = q.host.data(),
                      .rows = rows,
                      .heads = c.heads,
                      .positions = positions.host.data(),
                      .table_of = table_of.host.data(),
                      .tables = host_tables,
                      .window = c.window,
                      .kv = kv,
                      .out = {out.host.data(), c.out, stride}};
    run_in_parts(1, [&](const Execution& on) { cpu(order).attention(p, on); });
    p.q = q.device();
    p.positions = positions.device();
    p.table_of = table_of.device();
    p.tables = tables.device();
    p.kv.keys = keys.device();
    p.kv.values = values.device();
    p.out.data = out.device();
    std::vector<unsigned char> stale(out.host.size() * sizeof(T), 0xff);
    for (const cuda::AttentionSchedule& s : cuda::attention_schedules(order)) {
      gpu().upload(out.device(), stale.data(), stale.size());
      s.attention(p, on());
      EXPECT_TRUE(out.matches()) << fmt::format("{} {}: heads {}/{} of {}, pages of {}, window {}",
                                                name_of(order), s.name, c.heads, c.kv_heads,
                                                c.head_dim, c.page_places, c.window);
    }
  }
};

constexpr Case kCases[] = {{4, 2, 16, 32},      {6, 2, 40, 64},     {8, 2, 64, 128},
                           {32, 8, 128, 64},    {5, 5, 96, 32, 50}, {16, 1, 128, 64, 129},
                           {12, 2, 256, 128, 7}};

TEST_F(Attention, Hopper) {
  for (const Case& c : kCases) check(Order::hopper, c);
}

TEST_F(Attention, Portable) {
  for (const Case& c : kCases) check(Order::portable, c);
  check(Order::portable, {6, 2, 40, 64, 0, DType::f32});
}

}  // namespace
}  // namespace invar
