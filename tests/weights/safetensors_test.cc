#include "weights/safetensors.h"

#include "model_files.h"

namespace invar {
namespace {

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), std::ssize(file),
                                  "f.safetensors");
}

void expect_refused(std::string_view header, std::string_view buffer, std::string_view text) {
  const std::string message = error_of([&] { parse(safetensors(header, buffer)); });
  expect_message(message, "f.safetensors: ");
  expect_message(message, text);
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string file = safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},)"
      R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[12,12]},)"
      R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"}}   )",
      "0123456789ab");
  const SafetensorsHeader header = parse(file);
  const int64_t buffer = static_cast<int64_t>(file.size()) - 12;
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0], (SafetensorsTensor{"a", "F32", {}, buffer, buffer + 4}));
  EXPECT_EQ(header.tensors[1], (SafetensorsTensor{"b", "F32", {1, 2}, buffer + 4, buffer + 12}));
  EXPECT_EQ(header.tensors[2],
            (SafetensorsTensor{"empty", "I64", {0, 7}, buffer + 12, buffer + 12}));
  ASSERT_EQ(header.metadata.size(), 1u);
  EXPECT_EQ(header.metadata[0].second, "pt");
}

TEST(Safetensors, RefusesABadFrame) {
  expect_message(error_of([] { parse("1234567"); }), "found one of 7 bytes");
  expect_message(error_of([] { parse(std::string(8, '\xff')); }), "at most 100000000 bytes");
  expect_message(error_of([] { parse(safetensors("{}", "").substr(0, 9)); }),
                 "2 bytes at byte 8 does not fit into the file's 9 bytes");
  expect_refused("", "", "begins with '{'");
  expect_refused(" {}", "", "begins with '{'");
  expect_refused("[]", "", "begins with '{'");
  expect_refused("{\"a\":}", "", "not valid JSON");
  expect_refused(R"({"a":{"a":{"a":{"a":{"a":{}}}}}})", "", "nested deeper");
  expect_refused("{\"\xff\":1}", "", "not valid JSON");
  expect_refused("{}", "x", "the tensors end at byte 10, the file at 11");
}

TEST(Safetensors, RefusesBadMetadata) {
  expect_refused(R"({"__metadata__":[]})", "",
                 "expected an object as __metadata__, found an array");
  expect_refused(R"({"__metadata__":{"a":1}})", "", "expected strings in __metadata__");
}

TEST(Safetensors, RefusesABadTensor) {
  expect_refused(R"({"a":1})", "", "tensor \"a\": expected a JSON object, found an integer");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1]}})", "1234", "data_offsets is missing");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":0}})", "1234",
                 "found \"x\"");
  expect_refused(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "1234", "\"F31\"");
  expect_refused(R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", "1234",
                 "expected a dtype of the format, found 32");
  expect_refused(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "1234",
                 "expected an array as shape");
  expect_refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234",
                 "expected integers from 0 in shape, found -1");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234",
                 "found 1.0");
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 4'000'000; ++i) many += ",0";
  expect_refused(many + "]}", "", "expected at most 4000000 values of JSON, found more");
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  expect_refused(R"({"a":{"dtype":"F32","shape":[)" + ones + R"(],"data_offsets":[0,4]}})", "1234",
                 "tensor \"a\": expected at most 64 dimensions, found 65");
  expect_refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                 "1234", "too many elements");
  expect_refused(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})",
                 "1234", "expected integers from 0 in shape");
  expect_refused(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "12",
                 "12 bits are no whole number of bytes");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234",
                 "expected data_offsets [begin, end], found [4, 0]");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", "1234",
                 "expected data_offsets [begin, end]");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "123",
                 "ends at byte 4 of a buffer of 3");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234",
                 "expected 8 bytes for shape [2] of F32, found 4 at byte 62");
}

TEST(Safetensors, RefusesOverlapsGapsAndDuplicates) {
  const char* a = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)";
  const auto with = [&](const char* rest) { return std::string(a) + rest; };
  expect_refused(with(R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})"), "12345",
                 "which leaves an overlap");
  expect_refused(with(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"), "1234",
                 "which leaves an overlap");
  expect_refused(with(R"("b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})"), "123456",
                 "which leaves a gap");
  expect_refused(with(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})"), "12345",
                 "stands twice");
}

TEST(Safetensors, LongNamesAreCutInMessages) {
  const std::string name(100000, 'x');
  const std::string message = error_of([&] { parse(safetensors("{\"" + name + "\":1}", "")); });
  expect_message(message, "xxx\"...");
}

TEST(Safetensors, AMissingOrEmptyFileIsNamed) {
  const TempDirectory directory;
  expect_message(error_of([&] { SafetensorsFile file(directory / "no"); }),
                 "/no: cannot be opened");
  write_file(directory / "empty", "");
  expect_message(error_of([&] { SafetensorsFile file(directory / "empty"); }), "an empty file");
  expect_message(error_of([&] { SafetensorsFile file(directory.path()); }), "something else");
}

}  // namespace
}  // namespace invar
