#include "engine/memory_plan.h"

#include <gtest/gtest.h>

namespace zipage {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30, kBlock = int64_t{10} << 20;

BackendInfo gpu(int64_t total, int64_t free) {
  return {.name = "gpu",
          .description = "",
          .host_accessible = false,
          .asynchronous = true,
          .memory_bytes = static_cast<size_t>(total),
          .free_memory_bytes = static_cast<size_t>(free)};
}

std::string error_of(const Result<int>& result) {
  return result.ok() ? "" : result.status().message();
}

TEST(NumBlocks, TakeTheShareOfTheGpuThatNobodyElseUses) {
  EngineConfig config;
  config.gpu_memory_utilization = 0.9;
  // 90 of 100 GiB, of which 20 are used and 10 spoken for.
  const auto blocks = choose_num_blocks(config, gpu(100 * kGiB, 80 * kGiB), kBlock, 10 * kGiB, 1);
  ASSERT_TRUE(blocks.ok());
  EXPECT_EQ(*blocks, 60 * kGiB / kBlock);
}

TEST(NumBlocks, OnTheHostNoMoreThanIsOfUseNorHalfOfWhatIsFree) {
  const EngineConfig config;
  BackendInfo host = gpu(100 * kGiB, 80 * kGiB);
  host.host_accessible = true;
  EXPECT_EQ(*choose_num_blocks(config, host, kBlock, kGiB, 7), 7);
  EXPECT_EQ(*choose_num_blocks(config, host, kBlock, kGiB, 1 << 30), 40 * kGiB / kBlock);
}

TEST(NumBlocks, WhatWasAskedForMustFitAndTheErrorSaysHowMuchWould) {
  EngineConfig config;
  config.num_gpu_blocks_override = 1000;
  EXPECT_EQ(*choose_num_blocks(config, gpu(100 * kGiB, 20 * kGiB), kBlock, 10 * kGiB, 1), 1000);
  const auto blocks = choose_num_blocks(config, gpu(100 * kGiB, 12 * kGiB), kBlock, 10 * kGiB, 1);
  EXPECT_NE(error_of(blocks).find("lower --num-gpu-blocks-override to 204 at most"), std::string::npos)
      << error_of(blocks);
  config.num_gpu_blocks_override.reset();
  config.kv_cache_memory_bytes = 3 * kGiB;
  EXPECT_EQ(*choose_num_blocks(config, gpu(100 * kGiB, 20 * kGiB), kBlock, 10 * kGiB, 1), 3 * kGiB / kBlock);
  const auto bytes = choose_num_blocks(config, gpu(100 * kGiB, 12 * kGiB), kBlock, 10 * kGiB, 1);
  EXPECT_NE(error_of(bytes).find("lower --kv-cache-memory-bytes to 1.99 GiB at most"), std::string::npos)
      << error_of(bytes);
}

TEST(NumBlocks, NoRoomForOneNamesWhatTakesItAndWhatToChange) {
  EngineConfig config;
  const std::string message = error_of(choose_num_blocks(config, gpu(100 * kGiB, 20 * kGiB), kBlock, 50 * kGiB, 1));
  EXPECT_NE(message.find("--max-num-batched-tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("--gpu-memory-utilization"), std::string::npos) << message;
}

}  // namespace
}  // namespace zipage
