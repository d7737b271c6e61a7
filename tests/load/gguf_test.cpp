#include "load/gguf.h"

#include <gmock/gmock.h>

#include "load/gguf_builder.h"

namespace zipage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using B = GgufBuilder;

void expect_gguf_error(const std::string& bytes, const testing::Matcher<std::string>& message) {
  const auto file = GgufFile::parse(as_span(bytes), "dir/x.gguf");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.status().message(), AllOf(HasSubstr("dir/x.gguf: "), HasSubstr("(at byte "), message));
  EXPECT_LT(file.status().message().size(), 1000U);
}
void expect_gguf_error(const GgufBuilder& builder, const char* message) {
  expect_gguf_error(builder.build(), HasSubstr(message));
}

// One of everything.
GgufBuilder everything() {
  GgufBuilder builder;
  builder.pair("u8", B::kU8, B::raw(uint8_t{200})).pair("i8", B::kI8, B::raw(int8_t{-100}));
  builder.pair("u16", B::kU16, B::raw(uint16_t{60000})).pair("i16", B::kI16, B::raw(int16_t{-30000}));
  builder.u32("u32", 4000000000U).pair("i32", B::kI32, B::raw(int32_t{-2000000000}));
  builder.f32("f32", 0.5F).pair("f64", B::kF64, B::raw(0.1));
  builder.pair("true", B::kBool, B::raw(uint8_t{1})).pair("false", B::kBool, B::raw(uint8_t{0}));
  builder.pair("u64", B::kU64, B::raw(uint64_t{1} << 40)).pair("huge", B::kU64, B::raw(UINT64_MAX));
  builder.pair("i64", B::kI64, B::raw(INT64_MIN)).string("text", "hello").string("empty", "");
  builder.array("words", B::kString, 3, B::text("a") + B::text("") + B::text("ccc"));
  builder.array("i16s", B::kI16, 2, B::raw(int16_t{-1}) + B::raw(int16_t{7}));
  builder.array("f32s", B::kF32, 2, floats({1.5F, -2.0F})).array("none", B::kI32, 0, "");
  builder.tensor("matrix", {2, 3}, 0, floats({1, 2, 3, 4, 5, 6}));
  builder.tensor("blocks", {32, 2}, 8, std::string(68, 'q'));
  return builder;
}

TEST(Gguf, MetadataOfEveryTypeIsReadByKind) {
  for (const uint32_t version : {2U, 3U}) {
    GgufBuilder builder = everything();
    builder.version = version;
    const std::string bytes = builder.build();
    const auto parsed = GgufFile::parse(as_span(bytes), "x");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const GgufFile& file = **parsed;
    EXPECT_EQ(file.keys().size(), 19U);
    EXPECT_EQ(file.keys().front(), "u8");
    EXPECT_EQ(file.get_int("u8"), 200);
    EXPECT_EQ(file.get_int("i8"), -100);
    EXPECT_EQ(file.get_int("u16"), 60000);
    EXPECT_EQ(file.get_int("i16"), -30000);
    EXPECT_EQ(file.get_int("u32"), 4000000000);
    EXPECT_EQ(file.get_int("i32"), -2000000000);
    EXPECT_EQ(file.get_int("u64"), int64_t{1} << 40);
    EXPECT_EQ(file.get_int("i64"), INT64_MIN);
    EXPECT_EQ(file.get_int("huge"), std::nullopt);
    EXPECT_EQ(file.get_float("f32"), 0.5);
    EXPECT_EQ(file.get_float("f64"), 0.1);
    EXPECT_EQ(file.get_float("u16"), 60000.0);
    EXPECT_EQ(file.get_bool("true"), true);
    EXPECT_EQ(file.get_bool("false"), false);
    EXPECT_EQ(file.get_string("text"), "hello");
    EXPECT_EQ(file.get_string("empty"), "");
    EXPECT_THAT(*file.strings("words"), ElementsAre("a", "", "ccc"));
    EXPECT_THAT(*file.ints("i16s"), ElementsAre(-1, 7));
    EXPECT_THAT(*file.floats("f32s"), ElementsAre(1.5F, -2.0F));
    EXPECT_TRUE(file.ints("none")->empty());
  }
}

TEST(Gguf, AKeyOfAnotherKindIsNothing) {
  const std::string bytes = everything().build();
  const auto parsed = GgufFile::parse(as_span(bytes), "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const GgufFile& file = **parsed;
  for (const char* key : {"text", "words", "f32", "true", "missing"}) EXPECT_EQ(file.get_int(key), std::nullopt) << key;
  for (const char* key : {"u8", "words", "missing"}) EXPECT_EQ(file.get_string(key), std::nullopt) << key;
  for (const char* key : {"text", "true", "f32s", "huge"}) EXPECT_EQ(file.get_float(key), std::nullopt) << key;
  for (const char* key : {"u8", "text"}) EXPECT_EQ(file.get_bool(key), std::nullopt) << key;
  for (const char* key : {"text", "i16s", "missing"}) EXPECT_EQ(file.strings(key), std::nullopt) << key;
  for (const char* key : {"u8", "words", "f32s"}) EXPECT_EQ(file.ints(key), std::nullopt) << key;
  for (const char* key : {"f32", "words", "i16s"}) EXPECT_EQ(file.floats(key), std::nullopt) << key;
  EXPECT_TRUE(file.contains("none"));
  EXPECT_FALSE(file.contains("missing"));
}

TEST(Gguf, TensorsAreRowMajorViews) {
  const std::string bytes = everything().build();
  const auto parsed = GgufFile::parse(as_span(bytes), "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const HostTensor* matrix = (*parsed)->find_tensor("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_THAT(matrix->shape, ElementsAre(3, 2));
  float values[6];
  dequantize(*matrix, 0, 6, values);
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  const HostTensor* blocks = (*parsed)->find_tensor("blocks");
  ASSERT_NE(blocks, nullptr);
  EXPECT_EQ(blocks->dtype, DType::kQ8_0);
  EXPECT_EQ(blocks->data.size(), 68U);
  EXPECT_EQ(blocks->data[0], std::byte{'q'});
  EXPECT_EQ((*parsed)->find_tensor("other"), nullptr);
}

TEST(Gguf, AnotherAlignmentMovesTheData) {
  GgufBuilder builder;
  builder.alignment = 256;
  builder.u32("general.alignment", 256).tensor("a", {1}, 0, floats({7})).tensor("b", {1}, 0, floats({8}));
  const std::string bytes = builder.build();
  const auto parsed = GgufFile::parse(as_span(bytes), "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  float value = 0;
  dequantize(*(*parsed)->find_tensor("b"), 0, 1, &value);
  EXPECT_EQ(value, 8.0F);
}

TEST(Gguf, case_47_EveryTruncationIsAnError) {
  const std::string whole = everything().build();
  ASSERT_TRUE(GgufFile::parse(as_span(whole), "x").ok());
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const std::string part = whole.substr(0, cut);
    EXPECT_FALSE(GgufFile::parse(as_span(part), "x").ok()) << cut;
  }
  expect_gguf_error(std::string(), HasSubstr("the file is empty (0 bytes)"));
  expect_gguf_error(whole.substr(0, whole.size() - 1), AllOf(HasSubstr("tensor \"blocks\""), HasSubstr("truncated")));
}

TEST(Gguf, case_47_OtherFilesAreToldApart) {
  const auto pointer =
      GgufFile::parse(as_span(std::string("version https://git-lfs.github.com/spec/v1\nsize 5\n")), "x");
  EXPECT_THAT(pointer.status().message(), HasSubstr("Git LFS pointer"));
  GgufBuilder builder;
  builder.magic = "ggml";
  expect_gguf_error(builder, "begins with \"ggml\"");
  builder.magic = "GGUF";
  builder.version = 1;
  expect_gguf_error(builder, "version 1, supported are");
  builder.version = 0x03000000;
  expect_gguf_error(builder, "big-endian");
}

TEST(Gguf, case_53_HostileCountsAndLengthsAllocateNothing) {
  GgufBuilder builder;
  builder.num_tensors = uint64_t{1} << 40;
  expect_gguf_error(builder, "1099511627776 tensors don't fit");
  builder.num_tensors = 0;
  builder.num_pairs = UINT64_MAX;
  expect_gguf_error(builder, "18446744073709551615 metadata keys don't fit");

  expect_gguf_error(GgufBuilder().pair("k", B::kString, B::raw(uint64_t{1} << 63)),
                    "has a length of 9223372036854775808");
  expect_gguf_error(GgufBuilder().array("k", B::kI32, uint64_t{1} << 62, "1234"), "has 4611686018427387904 elements");
  expect_gguf_error(GgufBuilder().array("k", B::kString, uint64_t{1} << 61, B::text("a")),
                    "has 2305843009213693952 elements");
  expect_gguf_error(GgufBuilder().array("k", B::kString, 2, B::text("a") + B::raw(UINT64_MAX)), "has a length of");
  expect_gguf_error(GgufBuilder().array("k", B::kArray, 1, B::raw(uint32_t{0}) + B::raw(uint64_t{0})),
                    "array of arrays");
  expect_gguf_error(GgufBuilder().pair("k", 13, "12345678"), "unknown type 13");
  expect_gguf_error(GgufBuilder().array("k", 77, 0, ""), "unknown type 77");
  expect_gguf_error(GgufBuilder().u32("k", 1).u32("k", 2), "the key \"k\" appears twice");
  expect_gguf_error(GgufBuilder().u32("", 1), "key is empty");
  expect_gguf_error(GgufBuilder().u32(std::string(70000, 'k'), 1),
                    "a metadata key has a length of 70000, at most 65535");
  expect_gguf_error(GgufBuilder().u32("a\x1b[31m\xff", 1).u32("a\x1b[31m\xff", 1),
                    "the key \"a\\x1b[31m\\xff\" appears twice");
}

TEST(Gguf, case_53_HostileAlignmentsAreRefused) {
  for (const uint32_t alignment : {0U, 3U, 1U << 30}) {
    expect_gguf_error(GgufBuilder().u32("general.alignment", alignment), "expected a power of two");
  }
  expect_gguf_error(GgufBuilder().pair("general.alignment", B::kU64, B::raw(uint64_t{32})), "is no uint32");
  expect_gguf_error(GgufBuilder().string("general.alignment", "32"), "is no uint32");
  expect_gguf_error(GgufBuilder().array("general.alignment", B::kU32, 1, B::raw(uint32_t{32})), "is no uint32");
}

TEST(Gguf, case_53_HostileTensorsAreRefused) {
  const auto entry = [](const std::vector<uint64_t>& dims, uint32_t type = 0, uint64_t offset = 0) {
    return GgufBuilder().tensor_entry("w", dims, type, offset);
  };
  expect_gguf_error(entry({}), "tensor \"w\" has 0 dimensions");
  expect_gguf_error(entry({1, 1, 1, 1, 1, 1, 1, 1, 1}), "has 9 dimensions");
  expect_gguf_error(entry({0}), "has a dimension of 0");
  expect_gguf_error(entry({(uint64_t{1} << 42) + 1}), "ends beyond the file");
  expect_gguf_error(entry({(uint64_t{1} << 42) + 1, uint64_t{1} << 22}), "no valid size");
  expect_gguf_error(entry({static_cast<uint64_t>(INT64_MAX), 2}), "no valid size");
  expect_gguf_error(entry({uint64_t{1} << 63}), "no valid size");
  expect_gguf_error(entry({static_cast<uint64_t>(INT64_MAX)}), "ends beyond the file");
  expect_gguf_error(entry({uint64_t{1} << 30}), "ends beyond the file");
  expect_gguf_error(entry({8}, 0, 32), "takes bytes 32 to 64 of the data, the file has 0");
  expect_gguf_error(entry({8}, 0, UINT64_MAX - 31), "ends beyond the file");
  expect_gguf_error(entry({8}, 0, 4), "no multiple of the alignment 32");
  expect_gguf_error(entry({33}, 8), "rows of 33 elements, expected a multiple of 32");
  expect_gguf_error(entry({32}, 23), "is of type IQ4_XS, which is not supported");
  expect_gguf_error(entry({32}, 4), "unknown type 4");
  expect_gguf_error(GgufBuilder().tensor("w", {1}, 0, floats({1})).tensor("w", {1}, 0, floats({1})),
                    "tensor \"w\" appears twice");
  expect_gguf_error(GgufBuilder().tensor("a", {16}, 0, std::string(64, '0')).tensor_entry("b", {1}, 0, 32),
                    "tensors \"a\" and \"b\" overlap");
  expect_gguf_error(GgufBuilder().tensor("", {1}, 0, floats({1})), "name is empty");
}

}  // namespace
}  // namespace zipage
