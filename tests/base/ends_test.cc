#include "base/ends.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace invar {
namespace {

TEST(Ends, AreTheEntriesThemselves) {
  std::vector<int> list = {1, 2, 3};
  first_of(list) = 7;
  last_of(list) = 9;
  EXPECT_EQ(list, (std::vector<int>{7, 2, 9}));
  const std::deque<int> one = {5};
  EXPECT_EQ(&first_of(one), &last_of(one));
}

TEST(Ends, OfAnEmptyListAreErrors) {
  const std::vector<int> none;
  std::string text;
  EXPECT_THROW(first_of(none), Error);
  EXPECT_THROW(last_of(text), Error);
}

}  // namespace
}  // namespace invar
