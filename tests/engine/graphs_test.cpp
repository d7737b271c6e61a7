// Recorded decode steps: the same tokens as steps launched op by op, and padding that touches nothing.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/engine_impl.h"
#include "engine/runner.h"

namespace zipage {
namespace {

constexpr int kRequests = 5;
constexpr int kTokens = 100;

EngineConfig config_of(bool graphs) {
  EngineConfig config;
  config.model = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
  config.device = "cuda";
  config.num_gpu_blocks_override = 64;
  config.compression.kv_budget = 0;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 512;
  config.swap_space = 0;
  config.enforce_eager = !graphs;
  config.cudagraph_capture_sizes = {8};
  return config;
}

class Graphs : public testing::Test {
 protected:
  void SetUp() override {
    try {
      make_backend("cuda", {});
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  static std::vector<std::vector<int32_t>> answers(Engine& engine) {
    std::vector<std::vector<int32_t>> tokens(kRequests);
    for (int i = 0; i < kRequests; ++i) {
      Request request;
      for (int k = 0; k < 20 + i; ++k) request.prompt_token_ids.push_back((k * 7 + i * 3) % 90);
      request.sampling.temperature = 0;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = kTokens;
      request.sink = [&to = tokens[static_cast<size_t>(i)]](RequestOutput&& output) {
        to.insert(to.end(), output.new_token_ids.begin(), output.new_token_ids.end());
      };
      EXPECT_TRUE(engine.submit(std::move(request)).ok());
    }
    while (engine.step()) {
    }
    return tokens;
  }
};

TEST_F(Graphs, case_45_case_46_PaddingTouchesNoBlockAndChangesNoToken) {
  auto eager = Engine::create(config_of(false));
  ASSERT_TRUE(eager.ok()) << eager.status().message();
  const auto expected = answers(**eager);
  auto engine = Engine::create(config_of(true));
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  auto& runner = static_cast<Runner&>(static_cast<EngineImpl&>(**engine).runner());
  ASSERT_EQ(runner.plan().graph_sizes, std::vector<int>{8});

  // Not-a-numbers everywhere: what is read without having been written shows, and so does what is written by mistake.
  const KvGeometry& geometry = runner.kv().geometry;
  const size_t block_bytes = runner.backend().kv_bytes_per_block(geometry);
  const size_t layer_bytes = block_bytes * static_cast<size_t>(geometry.num_blocks);
  const size_t bytes = layer_bytes * static_cast<size_t>(geometry.num_layers);
  const auto image = runner.backend().allocate(bytes, "image", MemoryKind::kPinnedHost);
  std::memset(image->data(), 0xFF, bytes);
  runner.backend().upload(runner.queue(), runner.kv().data, image->data(), bytes);
  runner.queue().synchronize();
  EXPECT_EQ(answers(**engine), expected);
  runner.backend().download(runner.queue(), image->data(), runner.kv().data, bytes);
  runner.queue().synchronize();
  int touched = 0;
  for (int block = 0; block < geometry.num_blocks; ++block) {
    bool intact = true;
    for (size_t layer = 0; layer < static_cast<size_t>(geometry.num_layers); ++layer) {
      const std::byte* at = image->data() + layer * layer_bytes + static_cast<size_t>(block) * block_bytes;
      intact &= std::all_of(at, at + block_bytes, [](std::byte value) { return value == std::byte{0xFF}; });
    }
    touched += !intact;
    // The pool hands out its first blocks first; the last ones are nobody's.
    if (block >= geometry.num_blocks / 2) {
      EXPECT_TRUE(intact) << "block " << block;
    }
  }
  EXPECT_LE(touched, kRequests * ((kTokens + 24 + geometry.block_size) / geometry.block_size));
}

}  // namespace
}  // namespace zipage
