// A request's parameters are checked once on its way.
#include "engine/request.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar {
namespace {

constexpr int32_t kVocab = 100;

Request asked() {
  Request request{.id = 1, .prompt = {1, 2}};
  request.params.top_k = -1;
  request.params.stop_token_ids = {9, 3, 3};
  return request;
}

TEST(Request, ParametersAreBroughtIntoTheirOneForm) {
  Request request = asked();
  check_params(request, kVocab);
  EXPECT_TRUE(request.params_are_checked);
  EXPECT_EQ(request.params.top_k, 0);
  EXPECT_EQ(request.params.stop_token_ids, (std::vector<int32_t>{3, 9}));
}

// What was checked is left as it is, without another look; the control is the same request that
// was not.
TEST(Request, ParametersAreCheckedOnce) {
  Request request = asked();
  request.params_are_checked = true;
  check_params(request, kVocab);
  EXPECT_EQ(request.params, asked().params);
  request.params_are_checked = false;
  check_params(request, kVocab);
  EXPECT_NE(request.params, asked().params);
}

TEST(Request, WrongParametersAreRefused) {
  Request request = asked();
  request.params.stop_token_ids = {kVocab};
  EXPECT_THROW(check_params(request, kVocab), UsageError);
}

}  // namespace
}  // namespace invar
