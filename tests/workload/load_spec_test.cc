// Loads in TOML: what is read, and what is refused with file, line and key.
#include "workload/load_spec.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "workload/requests.h"

namespace invar {
namespace {

std::string file_with(const std::string& name, const std::string& text) {
  const std::string path =
      ::testing::TempDir() + "load_spec_test_" + std::to_string(getpid()) + name;
  write_file_atomically(path, text);
  return path;
}

constexpr char kLengths[] =
    "[prompts]\nkind = 'fixed'\nlow = 5\n[answers]\nkind = 'fixed'\nlow = 6\n";

TEST(LoadSpec, ReadsTheLoadOfTheRepository) {
  const LoadSpec spec = read_load(INVAR_SOURCE_DIR "/bench/loads/mixed.toml");
  EXPECT_EQ(spec.arrivals.kind, "poisson");
  EXPECT_EQ(spec.arrivals.rate, 0);
  EXPECT_EQ(spec.arrivals.share, 0.8);
  EXPECT_EQ(spec.prompts.low, 256);
  EXPECT_EQ(spec.prompts.high, 4096);
  EXPECT_EQ(spec.answers.high, 256);
  EXPECT_EQ(spec.longest(), 4352);
  EXPECT_EQ(spec.policies.size(), 5u);
}

TEST(LoadSpec, TakesATraceBesideIt) {
  const std::string lengths =
      file_with("lengths.csv", "num_prefill_tokens,num_decode_tokens\n300,100\n3000,1000\n7,0\n");
  const std::string path =
      file_with("trace.toml", "name = 't'\n[trace]\nfile = '" +
                                  std::filesystem::path(lengths).filename().string() +
                                  "'\n"
                                  "max_tokens = 400\nshuffle = false\n"
                                  "[arrivals]\nkind = 'fixed'\nrate = 2\n");
  const LoadSpec spec = read_load(path);
  const auto requests = make_requests(spec, 3, spec.arrivals.rate);
  EXPECT_EQ(requests[0].prompt, 300);
  EXPECT_EQ(requests[1].prompt, 300);  // 4000 tokens in proportion
  EXPECT_EQ(requests[1].answer, 100);
  EXPECT_EQ(requests[2].answer, 1);
  EXPECT_DOUBLE_EQ(requests[2].arrival, 1);
  EXPECT_THROW(make_requests(spec, 4, 2), Error);  // the trace is shorter
  LoadSpec timed = spec;
  timed.arrivals.kind = "trace";
  EXPECT_THROW(make_requests(timed, 3, 0), UsageError);  // it has no times
}

TEST(LoadSpec, WhatMakesNoSenseIsRefusedWithItsPlace) {
  const std::string lengths = kLengths;
  const std::pair<std::string, const char*> cases[] = {
      {"x", "line 1: not TOML"},
      {"", "expected \"name\", found no such key"},
      {"name = 'a'\n", "expected \"prompts\""},
      {"name = 'a'\n[prompts]\n[answers]\nlow = 1\n", "expected \"prompts.low\""},
      {"name = 'a'\n" + lengths + "[arrivals]\nkind = 'often'\n",
       "expected \"arrivals.kind\" to be one of poisson, gamma, fixed, trace, found \"often\""},
      {"name = 'a'\n" + lengths + "[arrivals]\nrate = -1\n", "expected \"arrivals.rate\" from"},
      {"name = 'a'\n" + lengths + "[arrivals]\nrate = nan\n", "expected \"arrivals.rate\" from"},
      {"name = 'a'\n" + lengths + "[arrivals]\nrate = 1\nshare_of_capacity = 1\n", "found both"},
      {"name = 'a'\n" + lengths + "[arrivals]\nkind = 'trace'\n", "need a trace, found none"},
      {"name = 'a'\nrequests = 0\n" + lengths, "expected \"requests\" from 1"},
      {"name = 'a'\nspeed = 1\n" + lengths, "found \"speed\""},
      {"name = 'a'\n[prompts]\nlow = 9\nhigh = 3\n[answers]\nlow = 1\n", "\"prompts.high\" from 9"},
      {"name = 'a'\n[prompts]\nlow = 1\nhigh = 1048576\n[answers]\nlow = 9\n", "at most 1048576"},
      {"name = 'a'\n" + lengths + "[[policies]]\nname = 'fair'\n",
       "\"policies.name\" to be one of"},
      {"name = 'a'\n" + lengths + "[[policies]]\nname = 'vllm'\nbudgets = []\n",
       "\"policies.budgets\" to be a list of integers"},
      {"name = 'a'\n" + lengths + "[[policies]]\nname = 'vllm'\nbudgets = [0]\n", "found 0"}};
  for (const auto& [text, expected] : cases) try {
      read_load(file_with("bad.toml", text));
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("bad.toml"), std::string::npos) << error.what();
    }
  EXPECT_THROW(read_load("/nowhere/load.toml"), Error);
}

}  // namespace
}  // namespace invar
