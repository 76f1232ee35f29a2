// A small model whose weights are numbers of 8 bits that are multiplied as such: what holds for
// integers (numerics 2.1) and for e4m3 numbers (2.2, 2.5).
#pragma once

#include <gtest/gtest.h>

#include "../weights/model_files.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/quantised_checkpoint.h"
#include "schedules.h"

namespace invar::testing_model {

class ByteModel : public testing::Test {
 protected:
  // `mode`: int8, fp8 or fp8-row, the name of the directory, too; `weights`: of ModelOptions.
  ByteModel(const std::string& mode, const std::string& weights) : mode_(mode), weights_(weights) {
    make_model(files_ / "bf16", {.spec = preset_spec("tiny")}, 7, pool_);
    const auto write = mode == "fp8" ? write_fp8 : mode == "fp8-row" ? write_fp8_row : write_w8a8;
    write(files_ / "bf16", files_ / mode, pool_, {});
  }
  ModelOptions options() const {
    return {.model = files_ / mode_, .weights = weights_, .threads = 2};
  }

  static std::vector<Tokens> sequences() {
    return {random_tokens(90, 512, 1), random_tokens(33, 512, 2), random_tokens(1, 512, 4)};
  }
  static RunnerLimits limits() { return {.blocks = 64, .max_rows = 512, .max_logit_rows = 512}; }
  static std::vector<Digests> hashes(const ModelOptions& options) {
    Model model(options);
    Executor runner(model, limits());
    return one_by_one(runner, sequences());
  }

  void expect_one_answer_under_every_schedule() const {
    for (const char* order : {"portable", "hopper"}) {
      ModelOptions served = options();
      served.arithmetic = order;
      Model model(served);
      EXPECT_EQ(model.identity(), std::string("invar-1/") + order + "/" + mode_ + "/row8.8");
      Executor runner(model, limits());
      const auto expected = one_by_one(runner, sequences());
      for (const int max_chunk : {7, 40, 90})
        EXPECT_EQ(random_schedule(runner, sequences(), 10 + max_chunk, max_chunk), expected)
            << order << " " << max_chunk;
      auto other = sequences();
      other[0][20] ^= 1;  // the control
      EXPECT_NE(random_schedule(runner, other, 5, 40)[0], expected[0]) << order;
    }
  }

  // `most`: ranks on a vector set.
  void expect_one_answer_on_every_set_thread_and_rank(int most) const {
    ModelOptions served = options();
    served.instruction_set = "scalar";
    const auto expected = hashes(served);
    for (const std::string& set : instruction_sets())
      for (int ranks = 1; ranks <= most; ranks *= 2) {
        if (!is_supported(set) || (set == "scalar" && ranks > 2)) continue;
        served.instruction_set = set;
        served.ranks = ranks;
        EXPECT_EQ(hashes(served), expected) << set << " " << ranks << " ranks";
      }
    served = options();
    served.threads = 4;
    EXPECT_EQ(hashes(served), expected);
  }

  ThreadPool pool_{2};
  TempDirectory files_;

 private:
  std::string mode_, weights_;
};

}  // namespace invar::testing_model
