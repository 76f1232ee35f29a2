#include "frontend/body_pieces.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

LateLists::List numbers(const char* before, size_t size) {
  return {before, size, [](size_t i, std::string& out) { out += std::to_string(i); }};
}

std::string whole(BodyPieces pieces, size_t bytes, int* calls = nullptr) {
  std::string all;
  bool more = true;
  while (more) {
    std::string piece;
    more = pieces.append(piece, bytes);
    all += piece;
    if (calls) ++*calls;
  }
  return all;
}

TEST(BodyPieces, AreTheBodyHoweverTheyAreCut) {
  const auto make = [] {
    LateLists late;
    json::Value body = json::Object{{"id", "{\"@late\": 0}"}};  // a text is no list
    body.set("one", late.add({numbers("[", 12)}, "]"));
    body.set("none", late.add({numbers("[", 0)}, "]"));
    json::Value inner;
    inner.set("two", late.add({numbers("{\"a\": [", 2), numbers("], \"b\": [", 3)}, "]}"));
    body.set("list", json::Array{inner});
    return BodyPieces(body, std::move(late));
  };
  const std::string expected =
      R"({"id": "{\"@late\": 0}", "one": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], "none": [], )"
      R"("list": [{"two": {"a": [0, 1], "b": [0, 1, 2]}}]})";
  for (const size_t bytes : {1, 2, 3, 7, 20, 50, 1000}) EXPECT_EQ(whole(make(), bytes), expected);
  int calls = 0;
  whole(make(), 1, &calls);
  EXPECT_GT(calls, 17);  // element by element
}

TEST(BodyPieces, ABodyWithoutListsIsOnePiece) {
  EXPECT_EQ(whole(BodyPieces(json::Object{{"a", 1}}, {}), 1), R"({"a": 1})");
}

}  // namespace
}  // namespace invar
