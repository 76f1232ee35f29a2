// Rotation and attention in one against one after the other, each of which other tests compare with
// the CPU.
#include <fmt/format.h>

#include "cuda_check.h"
#include "kernels/cuda/at_once.h"

namespace invar {
namespace {

struct Case {
  int heads, kv_heads, head_dim, block_size;
  bool norm = true;
  int window = 0;
};

// What a step leaves behind: the output, the cache and which rows were not finite.
struct Result {
  std::vector<bf16_t> out, keys, values;
  std::vector<char> failed;
  bool operator==(const Result&) const = default;
};

class RotatedAttention : public CudaTest {
 protected:
  // Rows of a sequence each, at positions that are the ends of splits, of blocks, or neither.
  static std::vector<int32_t> positions_of(int64_t rows) {
    constexpr int32_t kEdges[] = {0, 500, 127, 128, 1, 255, 256, 15, 16, 383, 77, 384};
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < rows; ++t) positions.push_back(kEdges[t % std::size(kEdges)]);
    return positions;
  }

  // `spoil` changes the step's input: nothing, or what has to be seen.
  void expect_same(const Case& c, int64_t rows, float spoil = 0, bool are_short = false) {
    const int e = c.head_dim, per_table = 512 / c.block_size;
    Random random(c.heads * 7 + e + rows);
    const int64_t width = int64_t{c.heads + 2 * c.kv_heads} * e,
                  stride = activation_stride(int64_t{c.heads} * e);
    const std::vector<int32_t> positions = positions_of(rows);
    std::vector<int32_t> blocks, table_of, begin = {0}, block, slot;
    for (int32_t t = 0; t < rows; ++t) {
      for (int i = 0; i < per_table; ++i) blocks.push_back(t * per_table + (i * 5 + 3) % per_table);
      table_of.push_back(t);
      block.push_back(blocks[t * per_table + positions[t] / c.block_size]);
      slot.push_back(positions[t] % c.block_size);
      begin.push_back(t + 1);
    }
    const Twin<int32_t> positions_on(gpu(), positions), blocks_on(gpu(), blocks),
        table_of_on(gpu(), table_of), begin_on(gpu(), begin), block_on(gpu(), block),
        slot_on(gpu(), slot);
    std::vector<const int32_t*> tables;
    for (int64_t t = 0; t < rows; ++t) tables.push_back(blocks_on.device() + t * per_table);
    const Twin<const int32_t*> tables_on(gpu(), tables);
    const Twin<float> cos(gpu(), random_floats(random, 512 * e / 2)),
        sin(gpu(), random_floats(random, 512 * e / 2)), q_norm(gpu(), random_floats(random, e)),
        k_norm(gpu(), random_floats(random, e));
    Twin<float> in(gpu(), random_floats(random, rows * width));
    in.host[width - e / 2] = -0.0f;
    if (rows > 2) in.host[3 * width - 1] = std::numeric_limits<float>::infinity();  // row 2 fails

    KvLayer kv{.block_size = c.block_size, .kv_heads = c.kv_heads, .head_dim = e};
    kv.layout = cuda::kernels(Order::hopper).cache;
    std::vector<bf16_t> cache(rows * per_table * c.kv_heads * kv.key_block());
    for (bf16_t& x : cache) x = f32_to_bf16(random.uniform());
    const DeviceArray<std::byte> scratch(gpu(), cuda::kernels(Order::hopper).attention_scratch,
                                         "a test");
    const auto run = [&](bool at_once) {
      const Twin<bf16_t> keys(gpu(), cache), values(gpu(), cache), q(gpu(), rows * c.heads * 256),
          out(gpu(), rows * stride);
      const Twin<char> failed(gpu(), std::vector<char>(rows, 0));
      kv.keys = keys.device();
      kv.values = values.device();
      in.upload();
      const RotatedAttentionParams p{
          .rotation = {.qkv = in.device(),
                       .qkv_stride = width,
                       .rows = rows,
                       .heads = c.heads,
                       .q_norm = c.norm ? q_norm.device() : nullptr,
                       .k_norm = c.norm ? k_norm.device() : nullptr,
                       .norm_eps = 1e-6f,
                       .positions = positions_on.device(),
                       .cos = cos.device(),
                       .sin = sin.device(),
                       .write_begin = begin_on.device(),
                       .write_block = block_on.device(),
                       .write_slot = slot_on.device(),
                       .kv = kv,
                       .q = q.device(),
                       .non_finite = reinterpret_cast<bool*>(failed.device())},
          .of = {.q = q.device(),
                 .rows = rows,
                 .heads = c.heads,
                 .positions = positions_on.device(),
                 .table_of = table_of_on.device(),
                 .tables = tables_on.device(),
                 .window = c.window,
                 .kv = kv,
                 .out = {out.device(), DType::bf16, stride},
                 .scratch = scratch.data(),
                 .most_rows = 1}};
      const Kernels table = cuda::kernels(Order::hopper);
      if (at_once) {
        (are_short ? cuda::short_attention : table.rotated_attention)(p, on());
      } else {
        table.qkv(p.rotation, on());
        table.attention(p.of, on());
      }
      return Result{out.download(), keys.download(), values.download(), failed.download()};
    };
    const Result expected = run(false);
    EXPECT_EQ(expected.failed[std::min<int64_t>(rows - 1, 2)], rows > 2);
    in.host[width - 1] += spoil;
    const std::string what = fmt::format("{} rows, heads {}/{} of {}, blocks of {}, window {}",
                                         rows, c.heads, c.kv_heads, e, c.block_size, c.window);
    // What pieces leave behind is as it was: the second call is like the first.
    for (int call = 0; call < 2; ++call) EXPECT_EQ(run(true) == expected, spoil == 0) << what;
  }
};

constexpr Case kCases[] = {{32, 8, 128, 16}, {8, 2, 64, 128},          {12, 1, 128, 64, false},
                           {6, 3, 80, 32},   {5, 5, 96, 32, true, 50}, {4, 2, 256, 128, false, 200},
                           {6, 2, 40, 64}};

TEST_F(RotatedAttention, IsRotationAndAttention) {
  for (const Case& c : kCases)
    for (const int64_t rows : {1, 5, 30, 150}) expect_same(c, rows);
}

// Few rows are rotated, cut and merged by one kernel.
TEST_F(RotatedAttention, ShortContextsAreOneKernel) {
  for (const Case& c : kCases)
    for (const int64_t rows : {1, 2, 3, 5}) expect_same(c, rows, 0, true);
  expect_same(kCases[0], 1, 1.0f, true);
}

// One element of the newest value of the first row is another.
TEST_F(RotatedAttention, ChangedValuesAreSeen) {
  for (const Case& c : kCases)
    for (const int64_t rows : {1, 150}) expect_same(c, rows, 1.0f);
}

}  // namespace
}  // namespace invar
