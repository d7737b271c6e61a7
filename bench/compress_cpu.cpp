// Time of one compression on the CPU, whole and by stage. Arguments: threads, resident slots, budget.
//
// Keys are as alike as the reasoner's content keys: six of seven columns find last(n) among the newest eight slots,
// since all share a direction; the others find the newest copy of their own content. "unlike" keys share nothing and
// find none, the worst case of scope exact.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compress/compress.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kv_layout.h"

namespace zipage {
namespace {

struct Setup {
  int threads = 1, num_slots = 576, budget = 512;
  bool alike = true;
  int num_layers = 8, num_kv_heads = 2, num_heads = 8, head_dim = 64, block_size = 64, window = 16;
};

class Sequence {
 public:
  Sequence(const Setup& setup, const CompressionParams& params)
      : setup_(setup),
        params_(params),
        backend_(make_cpu_backend({.num_threads = setup.threads})),
        queue_(backend_->make_queue(QueuePriority::kNormal)),
        geometry_{
            .num_layers = setup.num_layers,
            .num_blocks = (setup.num_slots + setup.block_size - 1) / setup.block_size + setup.budget / setup.block_size,
            .block_size = setup.block_size,
            .num_kv_heads = setup.num_kv_heads,
            .head_dim = setup.head_dim},
        workspace_(*backend_, {.kv = geometry_,
                               .num_heads = setup.num_heads,
                               .window = setup.window,
                               .max_slots = setup.num_slots,
                               .max_budget = setup.budget}) {
    allocate();
    fill();
    for (int block = 0; block * setup.block_size < setup.num_slots; ++block) table_.emplace_back(block);
    // Fresh targets for what moves, as if those blocks were shared: the source stays as it is from one round to the
    // next.
    num_retained_ = retained_blocks(0, setup.num_slots, params, setup.block_size);
    for (int i = 0; i < setup.budget / setup.block_size - num_retained_; ++i)
      targets_.emplace_back(static_cast<int>(table_.size()) + i);
    targets_.insert(targets_.end(), table_.end() - num_retained_, table_.end());
  }

  void compress() {
    zipage::compress(
        *backend_, *queue_,
        {.num_heads = setup_.num_heads, .scale = 0.125F, .cos_sin = cos_sin_.data(), .rotary_dim = setup_.head_dim},
        {.params = params_,
         .kv = pool_,
         .ring = ring_,
         .table = table_,
         .targets = targets_,
         .num_retained = num_retained_,
         .num_slots = setup_.num_slots,
         .num_scored = 0,
         .logical_len = setup_.num_slots},
        workspace_);
  }

 private:
  void allocate() {
    const auto layers = static_cast<size_t>(geometry_.num_layers);
    const auto blocks = static_cast<size_t>(geometry_.num_blocks);
    const size_t slots = layers * blocks * static_cast<size_t>(geometry_.num_kv_heads * geometry_.block_size);
    kv_ = backend_->allocate(layers * blocks * backend_->kv_bytes_per_block(geometry_), "kv", MemoryKind::kDevice);
    scores_ = backend_->allocate(slots * sizeof(float), "scores", MemoryKind::kDevice);
    positions_ = backend_->allocate(slots * sizeof(int32_t), "positions", MemoryKind::kDevice);
    ring_data_ = backend_->allocate(
        layers * static_cast<size_t>(setup_.window * setup_.num_heads * setup_.head_dim) * sizeof(float), "ring",
        MemoryKind::kDevice);
    pool_ = {.geometry = geometry_,
             .data = kv_->data(),
             .scores = scores_->as<float>(),
             .positions = positions_->as<int32_t>()};
    ring_ = {.data = ring_data_->data(), .num_query_slots = 1, .window = setup_.window};
  }

  void fill() {
    std::mt19937 random(1);
    std::normal_distribution<float> gauss;
    const auto dim = static_cast<size_t>(setup_.head_dim);
    for (float* q = ring_data_->as<float>(); q < ring_data_->as<float>() + ring_data_->bytes() / sizeof(float); ++q)
      *q = gauss(random);
    cos_sin_.resize(static_cast<size_t>(setup_.num_slots) * dim);
    for (size_t p = 0; p < static_cast<size_t>(setup_.num_slots); ++p) {
      for (size_t j = 0; j < dim / 2; ++j) {
        const double angle =
            static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(dim));
        cos_sin_[p * dim + j] = static_cast<float>(std::cos(angle));
        cos_sin_[p * dim + j + dim / 2] = static_cast<float>(std::sin(angle));
      }
    }
    for (int layer = 0; layer < setup_.num_layers; ++layer) {
      for (int head = 0; head < setup_.num_kv_heads; ++head) fill_head(layer, head, random);
    }
  }

  void fill_head(int layer, int head, std::mt19937& random) {
    std::normal_distribution<float> gauss;
    const auto dim = static_cast<size_t>(setup_.head_dim);
    const cpu::KvLayerView view(pool_, layer);
    std::vector<std::vector<float>> directions(200, std::vector<float>(dim));
    for (auto& direction : directions) {
      for (float& x : direction) x = gauss(random);
    }
    for (int t = 0; t < setup_.num_slots; ++t) {
      const size_t content = 1 + random() % (directions.size() - 1);
      const float shared = content % 7 == 0 ? 0.3F : 1.0F;
      std::vector<float> k(dim), rotated(dim), v(dim);
      for (size_t d = 0; d < dim; ++d) {
        k[d] = setup_.alike ? shared * directions[0][d] + 0.7F * directions[content][d] + 0.2F * gauss(random)
                            : gauss(random);
        v[d] = gauss(random);
      }
      for (size_t j = 0; j < dim / 2; ++j) {
        const float c = cos_sin_[static_cast<size_t>(t) * dim + j],
                    s = cos_sin_[static_cast<size_t>(t) * dim + j + dim / 2];
        rotated[j] = k[j] * c - k[j + dim / 2] * s;
        rotated[j + dim / 2] = k[j + dim / 2] * c + k[j] * s;
      }
      view.write_key(t / setup_.block_size, head, t % setup_.block_size, rotated.data());
      view.write_value(t / setup_.block_size, head, t % setup_.block_size, v.data());
    }
  }

  Setup setup_;
  CompressionParams params_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Queue> queue_;
  KvGeometry geometry_;
  CompressionWorkspace workspace_;
  std::unique_ptr<Buffer> kv_, scores_, positions_, ring_data_;
  KvPool pool_;
  QueryRing ring_;
  std::vector<float> cos_sin_;
  std::vector<BlockId> table_, targets_;
  int num_retained_ = 0;
};

CompressionParams preset(KvPolicy policy, int budget) {
  CompressionOptions options;
  options.kv_policy = policy;
  options.kv_budget = budget;
  options.kv_slack = 64;
  return resolve(options);
}

void time_compression(benchmark::State& state, const CompressionParams& params, bool alike) {
  Setup setup;
  setup.threads = static_cast<int>(state.range(0));
  setup.num_slots = static_cast<int>(state.range(1));
  setup.budget = static_cast<int>(state.range(2));
  setup.alike = alike;
  Sequence sequence(setup, params);
  sequence.compress();  // touches all memory once
  for (auto _ : state) sequence.compress();
}

void policy(benchmark::State& state, KvPolicy kv_policy, bool alike) {
  time_compression(state, preset(kv_policy, static_cast<int>(state.range(2))), alike);
}

// One stage at a time: what it adds to selection and compaction, which every policy needs.
void stage(benchmark::State& state, bool attention, RedundancyScope scope, RedundancyKeys keys, bool alike) {
  CompressionParams params = preset(KvPolicy::kContent, static_cast<int>(state.range(2)));
  params.attention = attention;
  params.scope = scope;
  params.keys = keys;
  time_compression(state, params, alike);
}

double least(const std::vector<double>& times) {
  return *std::min_element(times.begin(), times.end());
}

// The least of many short runs: what else the machine does only ever adds.
void sizes(benchmark::internal::Benchmark* b) {
  b->Args({1, 576, 512})->Args({2, 576, 512})->Unit(benchmark::kMicrosecond)->UseRealTime();
  b->Iterations(4)->Repetitions(50)->ReportAggregatesOnly(true)->ComputeStatistics("least", least);
}

BENCHMARK_CAPTURE(policy, content, KvPolicy::kContent, true)
    ->Apply(sizes)
    ->Args({1, 2304, 2048})
    ->Args({1, 1088, 1024});
BENCHMARK_CAPTURE(policy, content_unlike_keys, KvPolicy::kContent, false)->Apply(sizes);
BENCHMARK_CAPTURE(policy, zipage, KvPolicy::kZipage, true)->Apply(sizes);
BENCHMARK_CAPTURE(policy, streaming, KvPolicy::kStreaming, true)->Apply(sizes);
BENCHMARK_CAPTURE(stage, select_and_compact, false, RedundancyScope::kOff, RedundancyKeys::kRotated, true)
    ->Apply(sizes);
BENCHMARK_CAPTURE(stage, window_scores, true, RedundancyScope::kOff, RedundancyKeys::kRotated, true)->Apply(sizes);
BENCHMARK_CAPTURE(stage, mean_rotated, false, RedundancyScope::kMean, RedundancyKeys::kRotated, true)->Apply(sizes);
BENCHMARK_CAPTURE(stage, mean_content, false, RedundancyScope::kMean, RedundancyKeys::kContent, true)->Apply(sizes);
BENCHMARK_CAPTURE(stage, exact_content, false, RedundancyScope::kExact, RedundancyKeys::kContent, true)->Apply(sizes);
BENCHMARK_CAPTURE(stage, exact_content_unlike, false, RedundancyScope::kExact, RedundancyKeys::kContent, false)
    ->Apply(sizes);

}  // namespace
}  // namespace zipage

BENCHMARK_MAIN();
