// Replicas that are processes: what kills one of them changes nothing, and all have the same
// weights and the same context.
#include <csignal>
#include <random>

#include "base/error.h"
#include "fake_engine_case.h"
#include "server/replicas.h"

namespace invar::server {
namespace {

using Commands = std::vector<std::vector<std::string>>;

Commands commands(const std::vector<std::string>& modes) {
  Commands all;
  for (const std::string& mode : modes) all.push_back({FAKE_ENGINE, mode});
  return all;
}

TEST(ReplicaProcesses, KillsOfAnyChangeNothing) {
  Collector collector;
  ReplicaProcesses replicas(commands({"steady", "steady", "steady"}), fake_tokenizer(), "");
  replicas.start(collector);
  std::mt19937 random(std::random_device{}());
  constexpr int kJobs = 24;
  for (int id = 1; id <= kJobs; ++id) {
    Request job = job_of(id, static_cast<uint64_t>(100 + id));
    job.prompt = {id, 2, 3};
    replicas.submit(std::move(job));
  }
  for (int kill = 0; kill < 20; ++kill) {
    collector.wait_for_tokens(collector.tokens() + 1 + random() % 450);
    if (const pid_t engine = replicas.process(random() % 3); engine > 0) ::kill(engine, SIGKILL);
  }
  ASSERT_TRUE(collector.wait_for(kJobs));
  for (const auto& [id, answer] : collector.answers()) {
    EXPECT_EQ(answer.tokens, expected(static_cast<uint64_t>(100 + id))) << id;
    EXPECT_NE(answer.tokens, expected(static_cast<uint64_t>(101 + id)));  // it can fail
    EXPECT_EQ(answer.finish, FinishReason::length);
  }
  EXPECT_EQ(collector.engines(), (std::set<int32_t>{0, 1, 2}));  // all took part, as themselves
  EXPECT_GE(replicas.restarts(), 10);
}

TEST(ReplicaProcesses, ARequestThatKillsItsReplicaFailsAlone) {
  Collector collector;
  ReplicaProcesses replicas(commands({"poison", "poison"}), fake_tokenizer(), "");
  replicas.start(collector);
  replicas.submit(job_of(1, kPoison));
  replicas.submit(job_of(2, 6));  // to the other one, which has less to do
  ASSERT_TRUE(collector.wait_for(2));
  EXPECT_EQ(collector.answers()[1].finish, FinishReason::failed);
  EXPECT_EQ(collector.answers()[2].tokens, expected(6));
}

TEST(ReplicaProcesses, AllHaveTheLeastContext) {
  ReplicaProcesses replicas(commands({"steady", "short"}), fake_tokenizer(), "--context");
  EXPECT_EQ(replicas.facts().max_model_len, 500);
}

TEST(ReplicaProcesses, AllComputeTheSame) {
  EXPECT_THROW(ReplicaProcesses(commands({"steady", "other-weights"}), fake_tokenizer(), ""),
               Error);
  EXPECT_THROW(ReplicaProcesses(commands({"steady", "never"}), fake_tokenizer(), ""), Error);
}

TEST(ReplicaProcesses, AllTakeWeightsOrNone) {
  Collector collector;
  ReplicaProcesses both(commands({"steady", "steady"}), fake_tokenizer(), "");
  both.start(collector);
  const Digest before = both.facts().weights;
  both.take_weights("others");
  const Digest after = both.facts().weights;
  EXPECT_NE(after, before);

  ReplicaProcesses one(commands({"steady", "keeps"}), fake_tokenizer(), "");
  one.start(collector);
  EXPECT_THROW(one.take_weights("others"), Error);
  EXPECT_EQ(one.facts().weights, before);
  one.submit(job_of(1, 5));
  one.submit(job_of(2, 6));
  ASSERT_TRUE(collector.wait_for(2));
  EXPECT_EQ(collector.answers()[1].tokens, expected(5));
  EXPECT_EQ(collector.answers()[2].tokens, expected(6));
}

}  // namespace
}  // namespace invar::server
