#include <gmock/gmock.h>

#include "load/model_files.h"
#include "load/test_files.h"

namespace zipage {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<std::string> resolve(const std::string& name, const std::vector<std::string>& caches) {
  return resolve_model_path(name, caches);
}

TEST(HubCache, APathThatExistsIsTakenAsItIs) {
  TemporaryDirectory directory;
  const auto path = resolve(directory.path(), {});
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(*path, directory.path());
}

TEST(HubCache, TheSnapshotOfMainIsFound) {
  TemporaryDirectory empty, cache;
  cache.write("models--Qwen--Qwen3-8B/snapshots/aaa/config.json", "{}");
  cache.write("models--Qwen--Qwen3-8B/snapshots/bbb/config.json", "{}");
  cache.write("models--Qwen--Qwen3-8B/refs/main", "bbb\n");
  const auto path = resolve("Qwen/Qwen3-8B", {empty.path(), cache.path()});
  ASSERT_TRUE(path.ok()) << path.status().message();
  EXPECT_EQ(*path, cache.path("models--Qwen--Qwen3-8B/snapshots/bbb"));
}

TEST(HubCache, WithoutARefTheOnlySnapshotIsTaken) {
  TemporaryDirectory cache;
  cache.write("models--gpt2/snapshots/aaa/config.json", "{}");
  EXPECT_EQ(resolve("gpt2", {cache.path()}).status().message(), "");
  cache.write("models--gpt2/snapshots/bbb/config.json", "{}");
  EXPECT_FALSE(resolve("gpt2", {cache.path()}).ok());
}

TEST(HubCache, AnUnknownModelSaysWhatWasLookedForWhere) {
  TemporaryDirectory cache;
  const auto missing = resolve("org/name", {cache.path()});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(),
              AllOf(HasSubstr("\"org/name\""), HasSubstr("models--org--name"), HasSubstr(cache.path())));
  EXPECT_THAT(resolve("org/name", {}).status().message(), HasSubstr("no Hugging Face cache to look in"));
  for (const char* name : {"/no/such/place", "a/b/c", "../up", "a\\b", ""}) {
    EXPECT_THAT(resolve(name, {cache.path()}).status().message(), HasSubstr("no such file or directory")) << name;
  }
}

TEST(HubCache, AHostileRefDoesNotLeaveTheCache) {
  TemporaryDirectory cache;
  cache.write("models--a--b/refs/main", "../../../..");
  EXPECT_FALSE(resolve("a/b", {cache.path()}).ok());
}

}  // namespace
}  // namespace zipage
