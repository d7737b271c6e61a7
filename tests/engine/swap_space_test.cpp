#include "engine/swap_space.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace zipage {
namespace {

class SwapSpaceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    try {
      backend_ = make_backend(GetParam(), {});
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
    queue_ = backend_->make_queue(QueuePriority::kNormal);
    kv_.geometry = {
        .num_layers = 3, .num_blocks = 12, .block_size = 32, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};
    layer_block_bytes_ = backend_->kv_bytes_per_block(kv_.geometry);
    data_ = backend_->allocate(36 * layer_block_bytes_, "pool");
    scores_ = backend_->allocate(kEntries * sizeof(float), "scores");
    positions_ = backend_->allocate(kEntries * sizeof(int32_t), "positions");
    kv_.data = data_->data();
    kv_.scores = scores_->as<float>();
    kv_.positions = positions_->as<int32_t>();
  }

  // Fills all there is of the pool, in the queue's order.
  void fill(uint32_t seed) {
    std::mt19937 generator(seed);
    for (Buffer* buffer : {data_.get(), scores_.get(), positions_.get()}) {
      auto host = backend_->allocate(buffer->bytes(), "numbers", MemoryKind::kPinnedHost);
      for (size_t i = 0; i < buffer->bytes() / 4; ++i) host->as<uint32_t>()[i] = static_cast<uint32_t>(generator());
      backend_->upload(*queue_, buffer->data(), host->data(), buffer->bytes());
      sources_.push_back(std::move(host));
    }
  }

  // Of the block in all layers: K and V, scores, positions.
  std::vector<std::byte> contents(int block) {
    std::vector<std::byte> bytes;
    for (int layer = 0; layer < 3; ++layer) {
      const size_t at = static_cast<size_t>(layer * 12 + block);
      append(bytes, *data_, at * layer_block_bytes_, layer_block_bytes_);
      append(bytes, *scores_, at * kBlockEntries * 4, kBlockEntries * 4);
      append(bytes, *positions_, at * kBlockEntries * 4, kBlockEntries * 4);
    }
    return bytes;
  }
  void append(std::vector<std::byte>& to, const Buffer& from, size_t at, size_t size) {
    auto host = backend_->allocate(size, "copy", MemoryKind::kPinnedHost);
    backend_->download(*queue_, host->data(), from.data() + at, size);
    queue_->synchronize();
    to.insert(to.end(), host->data(), host->data() + size);
  }

  static constexpr size_t kBlockEntries = size_t{2} * 32, kEntries = 36 * kBlockEntries;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Queue> queue_;
  KvPool kv_;
  size_t layer_block_bytes_ = 0;
  std::unique_ptr<Buffer> data_, scores_, positions_;
  std::vector<std::unique_ptr<Buffer>> sources_;  // of uploads that may not be done
};

// What is enqueued after a move may write to its blocks at once; what was moved comes back as it was then, in whatever
// order, also of requests that are larger than the staging memory.
TEST_P(SwapSpaceTest, BlocksComeBackAsTheyWereBetweenTheBatches) {
  const std::vector<int32_t> first{7, 2, 10, 4, 5}, first_host{4, 0, 2, 6, 1}, second{1, 3}, second_host{3, 5};
  for (const int staging : {1, 2, 5, 7}) {
    SwapSpace space(
        *backend_, *queue_, kv_, {}, 0,
        {.num_blocks = 7, .num_rings = 0, .staging_blocks = backend_->info().host_accessible ? 0 : staging});
    fill(1);
    queue_->synchronize();
    std::vector<std::vector<std::byte>> expected;
    for (int block : first) expected.push_back(contents(block));
    space.move_blocks(first, first_host, true);
    fill(2);
    space.move_blocks(second, second_host, true);
    fill(3);
    const std::vector<int32_t> first_back{0, 11, 5, 8, 9}, second_back{6, 7};
    space.move_blocks(second_back, second_host, false);
    space.move_blocks(first_back, first_host, false);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(contents(first_back[i]), expected[i]) << i << ", " << staging;
    std::vector<std::vector<std::byte>> back{contents(6), contents(7)};
    fill(2);
    EXPECT_EQ(back[0], contents(1)) << staging;
    EXPECT_EQ(back[1], contents(3)) << staging;
  }
}

INSTANTIATE_TEST_SUITE_P(Device, SwapSpaceTest, testing::Values("cpu", "cuda"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace zipage
