#include "load/mapped_file.h"

#include <gmock/gmock.h>

#include <cstring>

#include "load/test_files.h"

namespace zipage {
namespace {

// File-backed memory of this process that is in RAM, in KiB.
int64_t resident_file_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssFile:") {
      int64_t kib = 0;
      status >> kib;
      return kib;
    }
  }
  return -1;
}

bool equal(std::span<const std::byte> bytes, const std::string& content) {
  return bytes.size() == content.size() && std::memcmp(bytes.data(), content.data(), content.size()) == 0;
}

TEST(MappedFile, ReleasedPagesLeaveTheProcessAndComeBack) {
  constexpr int64_t kMiB = 16;
  TemporaryDirectory directory;
  const std::string content(static_cast<size_t>(kMiB) << 20, '\1');
  const auto file = MappedFile::open(directory.write("data", content));
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(equal((*file)->bytes(), content));
  const int64_t touched = resident_file_kib();
  (*file)->release((*file)->bytes());
  const int64_t released = resident_file_kib();
  EXPECT_GE(touched - released, (kMiB - 1) * 1024);
  EXPECT_TRUE(equal((*file)->bytes(), content));
}

TEST(MappedFile, PartsThatShareAPageKeepIt) {
  TemporaryDirectory directory;
  const auto file = MappedFile::open(directory.write("data", std::string(100, 'x')));
  ASSERT_TRUE(file.ok()) << file.status().message();
  (*file)->release((*file)->bytes().subspan(10, 50));
  EXPECT_EQ((*file)->bytes()[20], std::byte{'x'});
}

TEST(MappedFile, OpensWhatCanBeMappedAndNamesWhatCannot) {
  TemporaryDirectory directory;
  const auto empty = MappedFile::open(directory.write("empty", ""));
  ASSERT_TRUE(empty.ok()) << empty.status().message();
  EXPECT_TRUE((*empty)->bytes().empty());
  const auto missing = MappedFile::open(directory.path("missing"));
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), testing::HasSubstr(directory.path("missing")));
  EXPECT_THAT(MappedFile::open(directory.path()).status().message(), testing::HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace zipage
