// Each CPU op at the shapes of three models, in GB/s or GFLOP/s beside what the machine can do.
//
//   build/release/bench/bench_kernels_cpu [--threads=N] [--benchmark_filter=REGEX ...]
//
// Every benchmark reports its best repetition's rate (`best`) and the fraction of the peak that bounds it (`of_peak`).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "machine/peak.h"
#include "ops/ops.h"
#include "tensor/bf16.h"

namespace zipage::bench {
namespace {

struct Geometry {
  const char* name;
  int hidden, heads, kv_heads, head_dim, intermediate, vocab;
};
constexpr Geometry kModels[] = {{"reasoner", 384, 8, 2, 64, 1152, 640},
                                {"smollm2", 576, 9, 3, 64, 1536, 49152},
                                {"qwen3-0.6b", 1024, 16, 8, 128, 3072, 151936}};

enum class Bound { kNearMemory, kFarMemory, kArithmetic };

class Bench {
 public:
  explicit Bench(int threads)
      : backend(make_cpu_backend({threads})), queue(backend->make_queue(QueuePriority::kNormal)) {
    peak = measure_peak(threads);
  }
  std::unique_ptr<Buffer> floats(int64_t count) {
    auto buffer = backend->allocate(static_cast<size_t>(count) * sizeof(float), "bench");
    for (int64_t i = 0; i < count; ++i) buffer->as<float>()[i] = static_cast<float>(i * 7919 % 1009 - 504) / 504.0F;
    return buffer;
  }
  static Matrix matrix(const Buffer& buffer, int64_t rows, int64_t cols) {
    return {buffer.data(), DType::kF32, rows, cols, cols};
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Queue> queue;
  MachinePeak peak;
};

// `amount`: bytes or operations of one call.
void measure(benchmark::State& state, const Bench& bench, Bound bound, double amount,
             const std::function<void()>& work) {
  work();
  double best = 1e9;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const double rate = amount / best / 1e9;
  const double peak = bound == Bound::kArithmetic   ? bench.peak.f32_gflops
                      : bound == Bound::kNearMemory ? bench.peak.read_gb_per_s
                                                    : bench.peak.far_read_gb_per_s;
  state.counters[bound == Bound::kArithmetic ? "best_GFLOPs" : "best_GBs"] = rate;
  state.counters["of_peak"] = rate / peak;
  state.counters["best_us"] = best * 1e6;
}

void add(const std::string& name, std::function<void(benchmark::State&)> body) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(body))
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime()
      ->MinTime(0.2);
}

std::shared_ptr<Linear> random_linear(Bench& bench, int out, int in) {
  std::vector<Bf16> weights(static_cast<size_t>(out) * static_cast<size_t>(in));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = Bf16(static_cast<float>(i * 31 % 257) / 257.0F - 0.5F);
  const HostTensor tensor{
      .name = "w", .dtype = DType::kBF16, .shape = {out, in}, .data = std::as_bytes(std::span(weights))};
  return bench.backend->make_linear({&tensor, 1});
}

void add_linears(Bench& bench) {
  for (const Geometry& model : kModels) {
    struct Shape {
      const char* what;
      int in, out;
    };
    for (Shape shape :
         {Shape{"qkv", model.hidden, (model.heads + 2 * model.kv_heads) * model.head_dim},
          Shape{"gate_up", model.hidden, 2 * model.intermediate}, Shape{"down", model.intermediate, model.hidden},
          Shape{"head", model.hidden, std::min(model.vocab, 49152)}}) {
      for (int rows : {1, 2, 4, 8, 16, 64, 512}) {
        if (static_cast<double>(rows) * shape.in * shape.out > 4e9) continue;
        add(std::string("linear/") + model.name + "/" + shape.what + "/rows:" + std::to_string(rows),
            [&bench, shape, rows](benchmark::State& state) {
              const auto weight = random_linear(bench, shape.out, shape.in);
              const auto x = bench.floats(static_cast<int64_t>(rows) * shape.in);
              const auto out = bench.floats(static_cast<int64_t>(rows) * shape.out);
              const LinearParams params{.x = Bench::matrix(*x, rows, shape.in),
                                        .weight = weight.get(),
                                        .out = Bench::matrix(*out, rows, shape.out)};
              const double products = 2.0 * rows * shape.in * shape.out;
              const bool few = rows < 4;
              measure(state, bench, few ? Bound::kNearMemory : Bound::kArithmetic,
                      few ? static_cast<double>(weight->bytes()) : products,
                      [&] { bench.backend->linear(*bench.queue, params); });
            });
      }
    }
  }
}

void add_attention(Bench& bench, const Geometry& model, int sequences, int context, int tokens) {
  const std::string name = std::string("attention/") + model.name + (tokens == 1 ? "/decode" : "/prefill") +
                           "/sequences:" + std::to_string(sequences) + "/context:" + std::to_string(context);
  add(name, [&bench, model, sequences, context, tokens](benchmark::State& state) {
    const int block_size = 64;
    const int slots = context + tokens;
    const int blocks = (slots + block_size - 1) / block_size;
    const KvGeometry geometry{1, blocks * sequences, block_size, model.kv_heads, model.head_dim, DType::kBF16};
    const auto data = bench.backend->allocate(
        bench.backend->kv_bytes_per_block(geometry) * static_cast<size_t>(geometry.num_blocks), "kv");
    std::fill_n(data->as<Bf16>(), data->bytes() / 2, Bf16(0.5F));
    std::vector<int32_t> table(static_cast<size_t>(blocks * sequences)), starts,
        lengths(static_cast<size_t>(sequences), slots);
    // Neighbours in a table are far apart in the pool.
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i * 7919 % table.size());
    for (int i = 0; i <= sequences; ++i) starts.push_back(i * tokens);
    BatchView batch;
    batch.num_tokens = sequences * tokens;
    batch.num_seqs = sequences;
    batch.num_decodes = tokens == 1 ? sequences : 0;
    batch.max_query_len = tokens;
    batch.max_seq_len = slots;
    batch.max_blocks_per_seq = blocks;
    batch.query_start_loc = starts.data();
    batch.seq_lens = lengths.data();
    batch.block_table = table.data();
    const int64_t width = static_cast<int64_t>(model.heads) * model.head_dim;
    const auto q = bench.floats(batch.num_tokens * width), out = bench.floats(batch.num_tokens * width);
    const AttentionParams params{.q = Bench::matrix(*q, batch.num_tokens, width),
                                 .num_heads = model.heads,
                                 .scale = 0.125F,
                                 .batch = batch,
                                 .kv = {geometry, data->data()},
                                 .out = Bench::matrix(*out, batch.num_tokens, width)};
    const double bytes = 4.0 * sequences * slots * model.kv_heads * model.head_dim;
    const double operations = 4.0 * sequences * tokens * (context + 0.5 * tokens) * static_cast<double>(width);
    measure(state, bench, tokens > 1 ? Bound::kArithmetic : Bound::kNearMemory, tokens > 1 ? operations : bytes,
            [&] { bench.backend->attention(*bench.queue, params); });
  });
}

void add_elementwise(Bench& bench) {
  for (const Geometry& model : kModels) {
    for (int rows : {1, 64, 512}) {
      const std::string suffix = std::string(model.name) + "/rows:" + std::to_string(rows);
      add("rms_norm/" + suffix, [&bench, model, rows](benchmark::State& state) {
        const int64_t count = static_cast<int64_t>(rows) * model.hidden;
        const auto x = bench.floats(count), residual = bench.floats(count), weight = bench.floats(model.hidden),
                   out = bench.floats(count);
        const RmsNormParams params{.x = Bench::matrix(*x, rows, model.hidden),
                                   .residual = Bench::matrix(*residual, rows, model.hidden),
                                   .weight = weight->as<float>(),
                                   .out = Bench::matrix(*out, rows, model.hidden)};
        measure(state, bench, Bound::kNearMemory, 16.0 * static_cast<double>(count), [&] {
          // The residual would grow without bound.
          std::memset(x->data(), 0, x->bytes());
          bench.backend->rms_norm(*bench.queue, params);
        });
      });
      add("silu_mul/" + suffix, [&bench, model, rows](benchmark::State& state) {
        const int64_t count = static_cast<int64_t>(rows) * model.intermediate;
        const auto gate_up = bench.floats(2 * count), out = bench.floats(count);
        const SiluMulParams params{Bench::matrix(*gate_up, rows, 2 * model.intermediate),
                                   Bench::matrix(*out, rows, model.intermediate)};
        measure(state, bench, Bound::kNearMemory, 12.0 * static_cast<double>(count),
                [&] { bench.backend->silu_mul(*bench.queue, params); });
      });
      add("qkv_rope_append/" + suffix, [&bench, model, rows](benchmark::State& state) {
        const KvGeometry geometry{1, (rows + 63) / 64, 64, model.kv_heads, model.head_dim, DType::kBF16};
        const auto data = bench.backend->allocate(
            bench.backend->kv_bytes_per_block(geometry) * static_cast<size_t>(geometry.num_blocks), "kv");
        const int64_t width = static_cast<int64_t>(model.heads + 2 * model.kv_heads) * model.head_dim;
        const auto qkv = bench.floats(rows * width), table = bench.floats(static_cast<int64_t>(rows) * model.head_dim),
                   norm = bench.floats(model.head_dim);
        std::vector<int32_t> slots(static_cast<size_t>(rows));
        std::iota(slots.begin(), slots.end(), 0);
        BatchView batch;
        batch.num_tokens = rows;
        batch.positions = slots.data();
        batch.slot_mapping = slots.data();
        const QkvRopeAppendParams params{.qkv = Bench::matrix(*qkv, rows, width),
                                         .num_heads = model.heads,
                                         .q_norm = norm->as<float>(),
                                         .k_norm = norm->as<float>(),
                                         .cos_sin = table->as<float>(),
                                         .rotary_dim = model.head_dim,
                                         .batch = batch,
                                         .kv = {geometry, data->data()}};
        const double bytes = rows * (4.0 * static_cast<double>(width) + 4.0 * model.heads * model.head_dim +
                                     4.0 * model.kv_heads * model.head_dim);
        const std::vector<float> fresh(qkv->as<float>(), qkv->as<float>() + rows * width);
        measure(state, bench, Bound::kNearMemory, bytes, [&] {
          // Rotated and normalised over and over, q would fade into denormal numbers.
          std::copy(fresh.begin(), fresh.end(), qkv->as<float>());
          bench.backend->qkv_rope_append(*bench.queue, params);
        });
      });
    }
  }
}

void add_sampling(Bench& bench) {
  for (int vocab : {640, 49152, 151936}) {
    struct Setting {
      const char* name;
      float temperature;
      int top_k;
      float top_p;
    };
    for (Setting setting : {Setting{"greedy", 0.0F, 0, 1.0F}, Setting{"plain", 1.0F, 0, 1.0F},
                            Setting{"top_k_top_p", 0.6F, 20, 0.95F}, Setting{"top_p", 0.6F, 0, 0.95F}}) {
      add(std::string("sample/") + setting.name + "/vocab:" + std::to_string(vocab) + "/rows:16",
          [&bench, vocab, setting](benchmark::State& state) {
            const int rows = 16;
            const auto logits = bench.floats(static_cast<int64_t>(rows) * vocab);
            // Peaked as a model's are: most of the weight on some tens of tokens.
            for (size_t i = 0; i < logits->bytes() / 4; ++i)
              logits->as<float>()[i] = 3.0F * logits->as<float>()[i] + (i % 1499 == 7 ? 12.0F : 0.0F);
            const std::vector<float> temperature(rows, setting.temperature), top_p(rows, setting.top_p),
                off(rows, 0.0F);
            const std::vector<int32_t> top_k(rows, setting.top_k);
            const std::vector<uint64_t> seed(rows, 1);
            std::vector<int64_t> position(rows, 1);
            std::vector<int32_t> out(rows);
            const SampleParams params{.logits = Bench::matrix(*logits, rows, vocab),
                                      .vocab = vocab,
                                      .temperature = temperature.data(),
                                      .top_k = top_k.data(),
                                      .top_p = top_p.data(),
                                      .min_p = off.data(),
                                      .seed = seed.data(),
                                      .position = position.data(),
                                      .out_token = out.data()};
            measure(state, bench, Bound::kNearMemory, 4.0 * rows * vocab, [&] {
              ++position[0];
              bench.backend->sample(*bench.queue, params);
            });
          });
    }
  }
}

}  // namespace
}  // namespace zipage::bench

int main(int argc, char** argv) {
  int threads = 0;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      threads = std::atoi(argv[i] + 10);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  using namespace zipage::bench;
  Bench bench(threads);
  std::printf("%s: reads %.1f GB/s near, %.1f GB/s far, %.1f GFLOP/s in fp32\n",
              bench.backend->info().description.c_str(), bench.peak.read_gb_per_s, bench.peak.far_read_gb_per_s,
              bench.peak.f32_gflops);
  add_linears(bench);
  for (const Geometry& model : kModels) {
    for (int sequences : {1, 16, 64}) {
      for (int context : {255, 2047}) add_attention(bench, model, sequences, context, 1);
    }
    for (int context : {0, 2048}) add_attention(bench, model, 1, context, 512);
  }
  add_elementwise(bench);
  add_sampling(bench);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
