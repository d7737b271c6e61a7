// A compressed request's KV to the host and back (Qwen3-8B's, 36 blocks of 64), alone and beside work that reads memory
// as fast as it can, as decoding does.
//
//   bench_swap_cuda
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include "engine/swap_space.h"

namespace zipage {
namespace {

constexpr int kBlocks = 36, kRounds = 7, kLayersOfWork = 60;
constexpr int64_t kHidden = 4096, kFeatures = 151936, kRows = 64;

double median_milliseconds(const std::function<void()>& run) {
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    rounds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[kRounds / 2];
}

void bench_swap() {
  const auto backend = make_backend("cuda", {});
  Backend& b = *backend;
  const auto queue = b.make_queue(QueuePriority::kNormal);
  KvPool pool;
  pool.geometry = {.num_layers = 36,
                   .num_blocks = 2 * kBlocks,
                   .block_size = 64,
                   .num_kv_heads = 8,
                   .head_dim = 128,
                   .dtype = DType::kBF16};
  const size_t slots = size_t{36} * 2 * kBlocks * 8 * 64;
  const auto data = b.allocate(b.kv_bytes_per_block(pool.geometry) * 36 * 2 * kBlocks, "pool");
  const auto scores = b.allocate(slots * 4, "scores"), positions = b.allocate(slots * 4, "positions");
  pool.data = data->data();
  pool.scores = scores->as<float>();
  pool.positions = positions->as<int32_t>();
  SwapSpace space(b, *queue, pool, {}, 0, {.num_blocks = kBlocks, .num_rings = 0, .staging_blocks = kBlocks});

  const auto weight = b.make_noise_linear(kFeatures, kHidden, 1);
  const auto x = b.allocate(kRows * kHidden * 2, "x"), out = b.allocate(kRows * kFeatures * 2, "out");
  const auto work = [&] {
    for (int i = 0; i < kLayersOfWork; ++i) {
      b.linear(*queue, {.x = {x->data(), DType::kBF16, kRows, kHidden, kHidden},
                        .weight = weight.get(),
                        .out = {out->data(), DType::kBF16, kRows, kFeatures, kFeatures}});
    }
  };
  std::vector<int32_t> blocks(kBlocks), host(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 5);
  std::iota(host.begin(), host.end(), 0);
  // There and, behind what was enqueued, back: the way back waits for the way there.
  const auto with = [&](const std::function<void()>& between) {
    space.move_blocks(blocks, host, true);
    between();
    space.move_blocks(blocks, host, false);
    queue->synchronize();
  };
  work();
  with([] {});
  const double alone = median_milliseconds([&] { with([] {}); });
  const double only_work = median_milliseconds([&] {
    work();
    queue->synchronize();
  });
  const double beside = median_milliseconds([&] { with(work); });
  const double bytes = 2.0 * kBlocks * static_cast<double>(b.swap_bytes_per_block(pool.geometry));
  fmt::print("{} blocks there and back, alone {:>22.2f} ms {:8.1f} GB/s\n", kBlocks, alone, bytes / alone * 1e-6);
  fmt::print("work alone {:>43.2f} ms {:8.1f} GB/s of weights\n", only_work,
             2.0 * kHidden * kFeatures * kLayersOfWork / only_work * 1e-6);
  fmt::print("there, work, back {:>36.2f} ms, {:.2f} ms more than the work alone\n", beside, beside - only_work);
}

}  // namespace
}  // namespace zipage

int main() {
  try {
    zipage::bench_swap();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
