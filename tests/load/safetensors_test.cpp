#include "load/safetensors.h"

#include <gmock/gmock.h>

#include <cstdint>

#include "load/test_files.h"

namespace zipage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}  )";

void expect_safetensors_error(const std::string& bytes, const testing::Matcher<std::string>& message) {
  const auto tensors = parse_safetensors(as_span(bytes), "dir/x.safetensors");
  ASSERT_FALSE(tensors.ok());
  EXPECT_EQ(tensors.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(tensors.status().message(), AllOf(HasSubstr("dir/x.safetensors: "), message));
  EXPECT_LT(tensors.status().message().size(), 1000U);
}

TEST(Safetensors, TensorsAreViewsInTheOrderOfTheirData) {
  const std::string bytes = safetensors_file(kTwo, std::string(20, 'd'));
  const auto tensors = parse_safetensors(as_span(bytes), "x");
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 2U);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, DType::kBF16);
  EXPECT_THAT((*tensors)[0].shape, ElementsAre(2));
  EXPECT_EQ((*tensors)[0].data.data(), as_span(bytes).data() + 8 + kTwo.size());
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_THAT((*tensors)[1].shape, ElementsAre(2, 2));
  EXPECT_EQ((*tensors)[1].data.data(), (*tensors)[0].data.data() + 4);
  EXPECT_EQ((*tensors)[1].data.size(), 16U);
}

TEST(Safetensors, EveryTypeOfTheFormatHasItsSize) {
  // 24 elements of each take 24 times as many bits as the name says.
  const std::pair<const char*, int> kBits[] = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"U16", 16},
      {"I16", 16}, {"F16", 16}, {"BF16", 16}, {"U32", 32},    {"I32", 32},    {"F32", 32},    {"U64", 64},
      {"I64", 64}, {"F64", 64}, {"C64", 64},  {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const auto& [name, bits] : kBits) {
    const int bytes = 3 * bits;
    const std::string header = std::string(R"({"t":{"dtype":")") + name + R"(","shape":[4,6],"data_offsets":[0,)" +
                               std::to_string(bytes) + "]}}";
    const std::string file = safetensors_file(header, std::string(static_cast<size_t>(bytes), 'x'));
    const auto tensors = parse_safetensors(as_span(file), "x");
    ASSERT_TRUE(tensors.ok()) << name << ": " << tensors.status().message();
  }
}

TEST(Safetensors, ScalarsAndNoTensorsAtAllAreFine) {
  const std::string scalar = safetensors_file(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234");
  const auto tensors = parse_safetensors(as_span(scalar), "x");
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_EQ((*tensors)[0].rows() * (*tensors)[0].cols(), 1);
  const std::string empty = safetensors_file("{}", "");
  EXPECT_TRUE(parse_safetensors(as_span(empty), "x").ok());
}

TEST(Safetensors, case_47_ATruncatedFileIsNamedWithItsSizes) {
  const std::string whole = safetensors_file(kTwo, std::string(20, 'd'));
  const size_t header_end = 8 + kTwo.size();
  expect_safetensors_error("", HasSubstr("the file is empty (0 bytes)"));
  expect_safetensors_error(whole.substr(0, 7), AllOf(HasSubstr("has 7 bytes"), HasSubstr("truncated")));
  expect_safetensors_error(whole.substr(0, 8),
                           AllOf(HasSubstr("has 8 bytes"), HasSubstr("expected at least " + std::to_string(header_end)),
                                 HasSubstr("truncated")));
  expect_safetensors_error(
      whole.substr(0, header_end - 1),
      AllOf(HasSubstr("has " + std::to_string(header_end - 1) + " bytes"), HasSubstr("truncated")));
  expect_safetensors_error(
      whole.substr(0, header_end),
      AllOf(HasSubstr("tensor \"b\""), HasSubstr("ends at byte 20 of the data, but only 0"), HasSubstr("truncated")));
  expect_safetensors_error(whole.substr(0, whole.size() - 1),
                           AllOf(HasSubstr("tensor \"b\""), HasSubstr("only 19"), HasSubstr("truncated")));
  expect_safetensors_error(whole + "x", HasSubstr("the tensors take 20 bytes of data, but the file has 21"));
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string part = whole.substr(0, cut);
    EXPECT_FALSE(parse_safetensors(as_span(part), "x").ok()) << cut;
  }
}

TEST(Safetensors, case_47_AGitLfsPointerIsCalledByItsName) {
  expect_safetensors_error("version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 4976698672\n",
                           AllOf(HasSubstr("Git LFS pointer of 87 bytes"),
                                 HasSubstr("the real file of 4976698672 bytes"), HasSubstr("git lfs pull")));
}

TEST(Safetensors, case_48_AHostileHeaderLengthAllocatesNothing) {
  for (const uint64_t length : {uint64_t{1} << 63, UINT64_MAX, uint64_t{100'000'001}}) {
    std::string bytes;
    append(bytes, length);
    bytes += "{}";
    expect_safetensors_error(bytes, AllOf(HasSubstr(std::to_string(length)), HasSubstr("100000000")));
  }
  expect_safetensors_error(safetensors_file("", ""), HasSubstr("does not begin with"));
  expect_safetensors_error(safetensors_file("[]", ""), HasSubstr("does not begin with"));
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return std::string(R"({"w":{"dtype":)") + std::string(dtype) + R"(,"shape":)" + std::string(shape) +
         R"(,"data_offsets":)" + std::string(offsets) + "}}";
}

TEST(Safetensors, case_48_AHostileHeaderIsRefusedWithTensorExpectedAndFound) {
  const std::string data(16, 'x');
  const std::pair<std::string, const char*> kHostile[] = {
      {one(R"("F32")", "[-2]", "[0,16]"), "tensor \"w\": -2 is negative"},
      {one(R"("F32")", "[0]", "[0,0]"), "tensor \"w\": shape [0] has a dimension of zero"},
      {one(R"("F32")", "[4611686018427387904,4]", "[0,16]"), "no valid size"},
      {one(R"("F32")", "[4611686018427387904,0,4]", "[0,0]"), "dimension of zero"},
      {one(R"("F32")", "[18446744073709551616]", "[0,16]"), "18446744073709551616 is no integer of 64 bits"},
      {one(R"("F32")", "[4.0]", "[0,16]"), "4.0 is no integer"},
      {one(R"("F32")", "[\"4\"]", "[0,16]"), "a string found where an integer belongs"},
      {one(R"("F32")", "[[4]]", "[0,16]"), "a list found"},
      {one(R"("F32")", "4", "[0,16]"), "a number found where the field \"shape\" needs a list"},
      {one(R"("F32")", "null", "[0,16]"), "null found"},
      {one(R"("F32")", "[3]", "[0,16]"), "shape [3] of F32 needs 12 bytes, data_offsets [0, 16] give 16"},
      {one(R"("F32")", "[4]", "[16,0]"), "data_offsets [16, 0] run backwards"},
      {one(R"("F32")", "[4]", "[0]"), "data_offsets has 1 numbers, expected 2"},
      {one(R"("F32")", "[4]", "[0,16,16]"), "data_offsets has 3 numbers, expected 2"},
      {one(R"("F32")", "[4]", "[18446744073709551600,18446744073709551615]"), "give 15"},
      {one(R"("F33")", "[4]", "[0,16]"), "unknown dtype \"F33\""},
      {one(R"("F4")", "[31]", "[0,15]"), "no valid size"},
      {one("7", "[4]", "[0,16]"), "a number found where the field \"dtype\" needs a string"},
      {R"({"w":{"dtype":"F32","shape":[4]}})", "the field \"data_offsets\" is missing"},
      {R"({"w":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}})", "the field \"dtype\" appears twice"},
      {R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"stride":[1]}})", "unknown field \"stride\""},
      {R"({"w":[]})", "a list found where an object with dtype, shape and data_offsets belongs"},
      {R"({"__metadata__":{"a":1}})", "a number found where a string belongs"},
      {R"({"__metadata__":{"a":{}}})", "an object found where a string belongs"},
      {R"({"__metadata__":{},"__metadata__":{}})", "\"__metadata__\" appears twice"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "the key \"a\" appears twice"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "tensor \"b\": its data begins at byte 8 of the data, expected 12: it overlaps"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       "tensor \"b\": its data begins at byte 8 of the data, expected 4: there is a gap"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", "there is a gap"},
      {"{\"\xff\xfe\":{}}", "ill-formed UTF-8"},
      {R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}},)", "not valid JSON"},
      {R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16])", "not valid JSON"},
      {"{\"a\":" + std::string(100000, '['), "a list found"},
      {"{\"" + std::string(100000, 'n') + "\":3}", "nnn...\": a number found"},
  };
  for (const auto& [header, message] : kHostile) {
    SCOPED_TRACE(header.substr(0, 200));
    expect_safetensors_error(safetensors_file(header, data), HasSubstr(message));
  }
}

}  // namespace
}  // namespace zipage
