#include "server/embedding.h"

#include <gtest/gtest.h>

#include "fake_exchange.h"

namespace invar::server {
namespace {

struct Case {
  Case() {
    embedding.full = [this] { ++full; };
    embedding.failed = [this](const std::string& sentence) { failed.push_back(sentence); };
  }
  Embedding embedding{std::vector<Request>(2),
                      [this](const Numbers& numbers) {
                        shown = numbers;
                        return std::string("body");
                      },
                      std::make_shared<FakeExchange>(), nullptr, nullptr};
  Numbers shown;
  int full = 0;
  std::vector<std::string> failed;
};

TEST(EmbeddingTest, IsFullWithItsLastVectorInWhateverOrder) {
  Case c;
  c.embedding.on_vector(1, {2});
  EXPECT_EQ(c.full, 0);
  EXPECT_FALSE(c.embedding.is_over());
  c.embedding.on_vector(0, {1});
  EXPECT_EQ(c.full, 1);
  EXPECT_TRUE(c.embedding.is_over());
  EXPECT_EQ(c.embedding.body(), "body");
  EXPECT_EQ(c.shown, (Numbers{{1}, {2}}));
  EXPECT_EQ(c.embedding.outcome(), Outcome::finished);
}

TEST(EmbeddingTest, SoManyTextsAreComputedAtTheSameTime) {
  constexpr size_t kTexts = 2 * Embedding::kAtOnce;
  Embedding all(std::vector<Request>(kTexts), nullptr, std::make_shared<FakeExchange>(), nullptr,
                nullptr);
  size_t begun = 0;
  all.more = [&] { begun += all.next() != nullptr; };
  all.full = [] {};
  while (all.next()) ++begun;
  EXPECT_EQ(begun, Embedding::kAtOnce);
  for (size_t i = 0; i < kTexts; ++i) {
    EXPECT_EQ(begun, std::min(kTexts, Embedding::kAtOnce + i));
    all.on_vector(i, {1});
  }
  EXPECT_TRUE(all.is_over());
  EXPECT_FALSE(all.next());
}

TEST(EmbeddingTest, FailsOnceAndHearsNothingAfterThat) {
  Case c;
  c.embedding.fail("one");
  c.embedding.fail("two");
  c.embedding.on_vector(0, {1});
  c.embedding.on_vector(1, {1});
  EXPECT_EQ(c.failed, (std::vector<std::string>{"one"}));
  EXPECT_EQ(c.full, 0);
}

TEST(EmbeddingTest, SaysNothingWhenNobodyWantsIt) {
  Case c;
  c.embedding.drop();
  c.embedding.on_vector(0, {1});
  c.embedding.on_vector(1, {1});
  c.embedding.fail("late");
  EXPECT_EQ(c.full, 0);
  EXPECT_TRUE(c.failed.empty());
}

}  // namespace
}  // namespace invar::server
