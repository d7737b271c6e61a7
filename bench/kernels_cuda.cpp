// Each CUDA kernel beside its bound: what it moved or computed over the time it took, and that as a share of the
// machine's measured peak. Shapes are Qwen3-8B's. The data of a case is larger than the second-level cache, or rotates
// through memory that is.
//
//   bench_kernels_cuda [name...]     only cases whose name contains one of the words
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "compress/plan.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/gemm_gated.h"
#include "tensor/bf16.h"

namespace zipage::cuda {
namespace {

constexpr int kLayers = 36, kHidden = 4096, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kIntermediate = 12288,
              kVocab = 151936;
constexpr int kBlockSize = 64;
constexpr double kReadPeak = 4.39e12, kCopyPeak = 4.28e12, kMatrixPeak = 812e12;  // of the H200 that the goals speak of

struct Work {
  double bytes = 0;
  double flops = 0;
  double byte_peak = kReadPeak;
};

class Bench {
 public:
  explicit Bench(std::vector<std::string> wanted) : wanted_(std::move(wanted)) {
    cudaEventCreate(&start_);
    cudaEventCreate(&stop_);
  }

  CudaBackend& backend() { return backend_; }
  CudaQueue& queue() { return *queue_; }

  // Whether a case is asked for, or a group of cases: `name` has one of the words in it, or begins one of them.
  bool wants(const std::string& name) const {
    return wanted_.empty() || std::any_of(wanted_.begin(), wanted_.end(), [&](const auto& word) {
             return name.find(word) != std::string::npos || word.rfind(name, 0) == 0;
           });
  }

  // run(i) with i counting up, many of them in one graph as the engine replays its steps: no launch waits for the host.
  // The median of five rounds.
  void measure(const std::string& name, const Work& work, const std::function<void(int)>& run) {
    if (!wants(name)) return;
    int calls = 0;
    for (; calls < 3; ++calls) run(calls);
    const float once = time([&] { run(calls++); });
    const int repeat = std::clamp(static_cast<int>(10.0F / std::max(once, 1e-3F)), 1, 100);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(queue_->stream(), cudaStreamCaptureModeThreadLocal), "a capture");
    for (int i = 0; i < repeat; ++i) run(calls++);
    check(cudaStreamEndCapture(queue_->stream(), &graph), "a capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "a capture");
    std::vector<float> rounds;
    for (int i = 0; i < 6; ++i) rounds.push_back(time([&] { cudaGraphLaunch(executable, queue_->stream()); }));
    rounds.erase(rounds.begin());  // the first replay moves the graph to the device
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    std::sort(rounds.begin(), rounds.end());
    const double seconds = rounds[2] * 1e-3 / repeat;
    std::string rate;
    if (work.bytes > 0)
      rate += fmt::format("{:8.1f} GB/s {:5.1f} %", work.bytes / seconds * 1e-9,
                          100 * work.bytes / seconds / work.byte_peak);
    if (work.flops > 0)
      rate += fmt::format("{:8.1f} TFLOP/s {:5.1f} %", work.flops / seconds * 1e-12,
                          100 * work.flops / seconds / kMatrixPeak);
    fmt::print("{:<58} {:10.2f} us  {}\n", name, seconds * 1e6, rate);
    std::fflush(stdout);
  }

  // Device memory full of normal numbers in bf16.
  std::unique_ptr<Buffer> random(size_t bytes, const std::string& name) {
    auto buffer = backend_.allocate(bytes, name, MemoryKind::kDevice);
    if (pattern_.empty()) {
      std::mt19937 generator(1);
      std::normal_distribution<float> normal;
      pattern_.resize(size_t{16} << 20);
      for (Bf16& x : pattern_) x = Bf16(normal(generator));
    }
    for (size_t at = 0; at < bytes; at += pattern_.size() * 2) {
      // An odd shift, so that no two pieces are alike block by block.
      const size_t shift = at / (pattern_.size() * 2) * 7919 % (pattern_.size() / 2);
      const size_t piece = std::min(bytes - at, (pattern_.size() - shift) * 2);
      check(cudaMemcpy(buffer->data() + at, pattern_.data() + shift, piece, cudaMemcpyHostToDevice), "filling");
      if (piece < std::min(bytes - at, pattern_.size() * 2)) {
        check(cudaMemcpy(buffer->data() + at + piece, pattern_.data(),
                         std::min(bytes - at, pattern_.size() * 2) - piece, cudaMemcpyHostToDevice),
              "filling");
      }
    }
    return buffer;
  }
  template <typename T>
  std::unique_ptr<Buffer> array(const std::vector<T>& values) {
    auto buffer = backend_.allocate(values.size() * sizeof(T), "array", MemoryKind::kDevice);
    check(cudaMemcpy(buffer->data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "an array");
    return buffer;
  }

 private:
  float time(const std::function<void()>& run) {  // milliseconds
    cudaEventRecord(start_, queue_->stream());
    run();
    cudaEventRecord(stop_, queue_->stream());
    check(cudaEventSynchronize(stop_), "a bench");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, start_, stop_);
    return milliseconds;
  }

  std::vector<std::string> wanted_;
  CudaBackend backend_{0};
  std::unique_ptr<CudaQueue> queue_ = std::make_unique<CudaQueue>(QueuePriority::kNormal, size_t{256} << 20);
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  std::vector<Bf16> pattern_;
};

Matrix act(const Buffer& buffer, int64_t rows, int64_t cols) {
  return {.data = buffer.data(), .dtype = DType::kBF16, .rows = rows, .cols = cols, .stride = cols};
}

// ---- linear layers -------------------------------------------------------------------------------------------------

void bench_linear(Bench& bench) {
  if (!bench.wants("linear")) return;
  struct Layer {
    const char* name;
    int in, out;
  };
  std::vector<Bf16> host;
  for (const Layer& layer :
       {Layer{"qkv", kHidden, 6144}, Layer{"o", kHidden, kHidden}, Layer{"gate_up", kHidden, 2 * kIntermediate},
        Layer{"down", kIntermediate, kHidden}, Layer{"lm_head", kHidden, kVocab}}) {
    const size_t elements = static_cast<size_t>(layer.in) * static_cast<size_t>(layer.out);
    host.resize(elements);
    std::mt19937 generator(2);
    std::vector<Bf16> noise(1 << 20);
    for (Bf16& x : noise) x = Bf16(static_cast<float>(generator() % 2001) / 1000.0F - 1.0F);
    for (size_t i = 0; i < elements; ++i) host[i] = noise[(i + i / noise.size() * 77) % noise.size()];
    const HostTensor tensor{.name = layer.name,
                            .dtype = DType::kBF16,
                            .shape = {layer.out, layer.in},
                            .data = std::as_bytes(std::span(host))};
    std::vector<std::unique_ptr<Linear>> copies;  // together larger than the cache
    const int count = std::max<int>(1, static_cast<int>((size_t{200} << 20) / (elements * 2)));
    for (int i = 0; i < count; ++i) copies.push_back(bench.backend().make_linear({&tensor, 1}));
    for (int rows : {1, 4, 32, 80, 128, 256, 320, 2048, 8192}) {
      if (layer.out == kVocab && rows > 320) continue;
      const auto x = bench.random(static_cast<size_t>(rows) * static_cast<size_t>(layer.in) * 2, "x");
      const auto out = bench.backend().allocate(static_cast<size_t>(rows) * static_cast<size_t>(layer.out) * 4, "out",
                                                MemoryKind::kDevice);
      Matrix y = act(*out, rows, layer.out);
      if (layer.out == kVocab) y.dtype = DType::kF32;
      const Matrix in = act(*x, rows, layer.in);
      Work work;
      if (rows <= 128) {
        work.bytes = static_cast<double>(elements) * 2;
      } else {
        work.flops = 2.0 * rows * static_cast<double>(elements);
      }
      bench.measure(fmt::format("linear {} rows {}", layer.name, rows), work, [&](int i) {
        bench.backend().linear(bench.queue(),
                               {.x = in, .weight = copies[static_cast<size_t>(i % count)].get(), .out = y});
      });
    }
  }
}

// Every way to run a layer's GEMM of a few rows, behind a small kernel as in a model.
void bench_gemm(Bench& bench) {
  if (!bench.wants("gemm")) return;
  struct Layer {
    const char* name;
    int in, out;
  };
  const Launch launch{.stream = bench.queue().stream(),
                      .scratch = bench.queue().scratch(),
                      .scratch_bytes = bench.queue().scratch_bytes(),
                      .counters = bench.queue().counters(),
                      .num_sms = 132,
                      .max_shared_bytes = 231424,
                      .compute_capability = 90};
  const auto norm = bench.array(std::vector<float>(kIntermediate, 1.0F));
  for (const Layer& layer : {Layer{"qkv", kHidden, 6144}, Layer{"o", kHidden, kHidden},
                             Layer{"gate_up", kHidden, 2 * kIntermediate}, Layer{"down", kIntermediate, kHidden}}) {
    const size_t bytes = static_cast<size_t>(layer.in) * static_cast<size_t>(layer.out) * 2;
    const int count = std::max<int>(2, static_cast<int>((size_t{300} << 20) / bytes));
    const auto weights = bench.random(bytes * static_cast<size_t>(count), "weights");
    for (int rows : {1, 64, 128}) {
      const auto x = bench.random(static_cast<size_t>(rows) * kIntermediate * 2, "x");
      const auto out = bench.backend().allocate(static_cast<size_t>(rows) * static_cast<size_t>(layer.out) * 4, "out",
                                                MemoryKind::kDevice);
      const Matrix in = act(*x, rows, layer.in), y = act(*out, rows, layer.out);
      const RmsNormParams before{.x = in, .weight = norm->as<float>(), .out = in};
      for (const GemmPlan& plan : gemm_hopper_plans(launch, rows, layer.in, layer.out, layer.in, layer.out)) {
        bench.measure(fmt::format("gemm {} rows {} tile {} split {}", layer.name, rows, plan.columns, plan.split),
                      {.bytes = static_cast<double>(bytes)}, [&](int i) {
                        rms_norm(launch, before);
                        gemm_hopper(launch, plan, in, weights->data() + static_cast<size_t>(i % count) * bytes, nullptr,
                                    y);
                      });
      }
    }
  }
}

// Gate, up and SiLU in one kernel, and one after the other.
void bench_gated(Bench& bench) {
  if (!bench.wants("gated")) return;
  const Launch launch{.stream = bench.queue().stream(), .num_sms = 132, .compute_capability = 90};
  Backend& b = bench.backend();
  const auto weight = b.make_noise_linear(2 * kIntermediate, kHidden, 1);
  const void* data = static_cast<const CudaLinear&>(*weight).data();
  for (const int64_t rows : {256, 512, 1024, 2048, 8192}) {
    const auto buffer = [&](int64_t cols) { return bench.random(static_cast<size_t>(rows * cols) * 2, "activations"); };
    const auto x = buffer(kHidden), both = buffer(2 * kIntermediate), ffn = buffer(kIntermediate);
    const Matrix in = act(*x, rows, kHidden), wide = act(*both, rows, 2 * kIntermediate),
                 out = act(*ffn, rows, kIntermediate);
    const Work work{.flops = 4.0 * static_cast<double>(rows) * kHidden * kIntermediate};
    bench.measure(fmt::format("gated rows {}", rows), work, [&](int) { gemm_gated(launch, in, data, out); });
    bench.measure(fmt::format("gated rows {}, op by op", rows), work, [&](int) {
      b.linear(bench.queue(), {.x = in, .weight = weight.get(), .out = wide});
      b.silu_mul(bench.queue(), {.gate_up = wide, .out = out});
    });
  }
}

// The linear layers between two attentions: as one kernel, and op by op.
void bench_chain(Bench& bench) {
  if (!bench.wants("chain")) return;
  constexpr int kDistinct = 3;
  struct Layer {
    std::unique_ptr<Linear> qkv, o, gate_up, down;
  };
  Backend& b = bench.backend();
  std::vector<Layer> layers;
  for (uint64_t i = 0; i < kDistinct; ++i) {
    layers.push_back({b.make_noise_linear(6144, kHidden, 4 * i), b.make_noise_linear(kHidden, kHidden, 4 * i + 1),
                      b.make_noise_linear(2 * kIntermediate, kHidden, 4 * i + 2),
                      b.make_noise_linear(kHidden, kIntermediate, 4 * i + 3)});
  }
  const auto norm = bench.array(std::vector<float>(kHidden, 1.0F));
  const double bytes = 2.0 * kHidden * (6144.0 + kHidden + 3.0 * kIntermediate);
  for (const int64_t rows : {1, 8, 16, 24, 32, 40, 48, 64, 80, 128, 256, 320, 8192}) {
    const auto buffer = [&](int64_t cols) { return bench.random(static_cast<size_t>(rows * cols) * 2, "activations"); };
    const auto x = buffer(kHidden), hidden = buffer(kHidden), residual = buffer(kHidden), qkv = buffer(6144),
               gate_up = buffer(2 * kIntermediate), ffn = buffer(kIntermediate);
    for (const bool one : {true, false}) {
      bench.measure(fmt::format("chain rows {}{}", rows, one ? "" : ", op by op"), {.bytes = bytes}, [&](int i) {
        const Layer& layer = layers[static_cast<size_t>(i % kDistinct)];
        const DenseChainParams p{.x = act(*x, rows, kHidden),
                                 .residual = act(*residual, rows, kHidden),
                                 .output = {layer.o.get()},
                                 .gate_up = {layer.gate_up.get()},
                                 .down = {layer.down.get()},
                                 .next_qkv = {layer.qkv.get()},
                                 .norm = norm->as<float>(),
                                 .next_norm = norm->as<float>(),
                                 .hidden = act(*hidden, rows, kHidden),
                                 .gate_up_out = act(*gate_up, rows, 2 * kIntermediate),
                                 .ffn = act(*ffn, rows, kIntermediate),
                                 .qkv = act(*qkv, rows, 6144)};
        if (one) {
          b.dense_chain(bench.queue(), p);
        } else {
          b.Backend::dense_chain(bench.queue(), p);
        }
      });
    }
  }
}

// ---- attention -----------------------------------------------------------------------------------------------------

struct Pool {
  Pool(Bench& bench, int layers, int blocks, DType dtype, int block_size = kBlockSize, bool numbers = false) {
    pool.geometry = {layers, blocks, block_size, kKvHeads, kHeadDim, dtype};
    const size_t bytes =
        bench.backend().kv_bytes_per_block(pool.geometry) * static_cast<size_t>(layers) * static_cast<size_t>(blocks);
    data = bench.random(bytes, "pool");
    if (dtype == DType::kF8E4M3) check(cudaMemset(data->data(), 0x3a, bytes), "filling");  // no NaN among the bytes
    pool.data = data->data();
    scales = bench.array(std::vector<float>(static_cast<size_t>(layers) * kKvHeads, 1.0F));
    pool.k_scale = pool.v_scale = scales->as<float>();
    if (!numbers) return;
    const size_t entries =
        static_cast<size_t>(layers) * static_cast<size_t>(blocks) * kKvHeads * static_cast<size_t>(block_size);
    scores = bench.backend().allocate(entries * 4, "scores", MemoryKind::kDevice);
    positions = bench.backend().allocate(entries * 4, "positions", MemoryKind::kDevice);
    pool.scores = scores->as<float>();
    pool.positions = positions->as<int32_t>();
  }
  KvPool pool;
  std::unique_ptr<Buffer> data, scales, scores, positions;
};

struct Batch {
  Batch(Bench& bench, int seqs, int query_len, int seq_len, int block_size, int pool_blocks) {
    const int blocks = (seq_len + block_size - 1) / block_size;
    std::vector<int32_t> ids(static_cast<size_t>(pool_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
    std::vector<int32_t> block_table(static_cast<size_t>(seqs) * static_cast<size_t>(blocks));
    for (size_t i = 0; i < block_table.size(); ++i) block_table[i] = ids[i % ids.size()];
    std::vector<int32_t> start_loc, slots, token_positions;
    for (int s = 0; s <= seqs; ++s) start_loc.push_back(s * query_len);
    for (int s = 0; s < seqs; ++s) {
      for (int t = seq_len - query_len; t < seq_len; ++t) {
        token_positions.push_back(t);
        slots.push_back(block_table[static_cast<size_t>(s * blocks + t / block_size)] * block_size + t % block_size);
      }
    }
    table = bench.array(block_table);
    starts = bench.array(start_loc);
    lens = bench.array(std::vector<int32_t>(static_cast<size_t>(seqs), seq_len));
    slot_mapping = bench.array(slots);
    positions = bench.array(token_positions);
    ring_rows = bench.array(std::vector<int32_t>(slots.size(), -1));
    view = {.num_tokens = seqs * query_len,
            .num_seqs = seqs,
            .num_decodes = query_len == 1 ? seqs : 0,
            .max_query_len = query_len,
            .max_seq_len = seq_len,
            .max_blocks_per_seq = blocks,
            .positions = positions->as<int32_t>(),
            .slot_mapping = slot_mapping->as<int32_t>(),
            .query_ring_rows = ring_rows->as<int32_t>(),
            .query_start_loc = starts->as<int32_t>(),
            .seq_lens = lens->as<int32_t>(),
            .block_table = table->as<int32_t>()};
  }
  BatchView view;
  std::unique_ptr<Buffer> table, starts, lens, slot_mapping, positions, ring_rows;
};

void bench_attention(Bench& bench, DType dtype, int block_size) {
  const std::string kind = fmt::format("{}, blocks of {}", dtype == DType::kBF16 ? "bf16" : "fp8", block_size);
  if (!bench.wants("attention decode") && !bench.wants("attention prefill")) return;
  const int pool_blocks = 11000 * 64 / block_size, layers = dtype == DType::kBF16 ? 1 : 2;
  Pool pool(bench, layers, pool_blocks, dtype, block_size);
  const auto q = bench.random(size_t{8192} * 6144 * 2, "q");
  const auto out = bench.backend().allocate(size_t{8192} * 4096 * 2, "out", MemoryKind::kDevice);
  const auto run = [&](const Batch& batch, int i) {
    Matrix query = act(*q, batch.view.num_tokens, kHeads * kHeadDim);
    query.stride = 6144;
    bench.backend().attention(bench.queue(), {.q = query,
                                              .num_heads = kHeads,
                                              .scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim)),
                                              .layer = i % layers,
                                              .batch = batch.view,
                                              .kv = pool.pool,
                                              .out = act(*out, batch.view.num_tokens, kHeads * kHeadDim)});
  };
  struct Case {
    int seqs, len;
  };
  for (const Case& c : {Case{256, 2300}, Case{80, 8300}, Case{320, 1500}, Case{64, 1280}, Case{32, 640}, Case{1, 640},
                        Case{1, 8192}, Case{4, 16384}}) {
    const Batch batch(bench, c.seqs, 1, c.len, block_size, pool_blocks);
    const double bytes = 2.0 * c.seqs * c.len * kKvHeads * kHeadDim * (dtype == DType::kBF16 ? 2 : 1);
    bench.measure(fmt::format("attention decode {} x {} {}", c.seqs, c.len, kind), {.bytes = bytes},
                  [&](int i) { run(batch, i); });
  }
  struct Chunk {
    int seqs, query, len;
  };
  for (const Chunk& c : {Chunk{4, 2048, 2048}, Chunk{1, 8192, 8192}, Chunk{1, 2048, 8192}, Chunk{32, 64, 2048}}) {
    const Batch batch(bench, c.seqs, c.query, c.len, block_size, pool_blocks);
    const double pairs = static_cast<double>(c.query) * (c.len - c.query) + 0.5 * c.query * (c.query + 1.0);
    bench.measure(fmt::format("attention prefill {} x {} of {} {}", c.seqs, c.query, c.len, kind),
                  {.flops = 4.0 * c.seqs * pairs * kHeads * kHeadDim}, [&](int i) { run(batch, i); });
  }
}

// ---- the small ones ------------------------------------------------------------------------------------------------

void bench_elementwise(Bench& bench) {
  Pool pool(bench, 1, 2048, DType::kBF16);
  const auto weight = bench.array(std::vector<float>(kHidden, 1.0F));
  const auto cos_sin = bench.array(std::vector<float>(size_t{16384} * kHeadDim, 0.7F));
  for (int rows : {1, 256, 8192}) {
    const auto a = bench.random(static_cast<size_t>(rows) * 2 * kIntermediate * 2, "a");
    const auto b = bench.random(static_cast<size_t>(rows) * kIntermediate * 2, "b");
    const double n = rows;
    bench.measure(fmt::format("rms_norm + residual, rows {}", rows), {.bytes = n * kHidden * 8, .byte_peak = kCopyPeak},
                  [&](int) {
                    bench.backend().rms_norm(bench.queue(), {.x = act(*a, rows, kHidden),
                                                             .residual = act(*b, rows, kHidden),
                                                             .weight = weight->as<float>(),
                                                             .out = act(*a, rows, kHidden)});
                  });
    bench.measure(
        fmt::format("silu_mul rows {}", rows), {.bytes = n * kIntermediate * 6, .byte_peak = kCopyPeak}, [&](int) {
          bench.backend().silu_mul(bench.queue(),
                                   {.gate_up = act(*a, rows, 2 * kIntermediate), .out = act(*b, rows, kIntermediate)});
        });
    const Batch batch(bench, rows, 1, 1, kBlockSize, 2048);
    bench.measure(fmt::format("qkv_rope_append rows {}", rows), {.bytes = n * 6144 * 4, .byte_peak = kCopyPeak},
                  [&](int) {
                    bench.backend().qkv_rope_append(bench.queue(), {.qkv = act(*a, rows, 6144),
                                                                    .num_heads = kHeads,
                                                                    .q_norm = weight->as<float>(),
                                                                    .k_norm = weight->as<float>(),
                                                                    .cos_sin = cos_sin->as<float>(),
                                                                    .rotary_dim = kHeadDim,
                                                                    .batch = batch.view,
                                                                    .kv = pool.pool});
                  });
  }
}

void bench_sample(Bench& bench) {
  if (!bench.wants("sample") && !bench.wants("logprobs")) return;
  std::mt19937 generator(4);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> line(kVocab);
  for (float& x : line) x = normal(generator);
  for (int rows : {1, 64, 256}) {
    std::vector<float> all;
    for (int r = 0; r < rows; ++r) {
      std::rotate(line.begin(), line.begin() + 977, line.end());
      all.insert(all.end(), line.begin(), line.end());
    }
    const auto logits = bench.array(all);
    const auto count = static_cast<size_t>(rows);
    const auto out = bench.array(std::vector<int32_t>(count));
    const auto floats = bench.array(std::vector<float>(count));
    const auto seeds = bench.array(std::vector<uint64_t>(count, 7));
    const auto positions = bench.array(std::vector<int64_t>(count, 9));
    const auto warm = bench.array(std::vector<float>(count, 0.6F)), p95 = bench.array(std::vector<float>(count, 0.95F));
    const auto k20 = bench.array(std::vector<int32_t>(count, 20));
    SampleParams p{.logits = {logits->data(), DType::kF32, rows, kVocab, kVocab},
                   .vocab = kVocab,
                   .seed = seeds->as<uint64_t>(),
                   .position = positions->as<int64_t>(),
                   .out_token = out->as<int32_t>()};
    const Work work{.bytes = static_cast<double>(rows) * kVocab * 4};
    const auto run = [&](int) { bench.backend().sample(bench.queue(), p); };
    bench.measure(fmt::format("sample greedy rows {}", rows), work, run);
    p.temperature = warm->as<float>();
    bench.measure(fmt::format("sample temperature rows {}", rows), work, run);
    p.top_p = p95->as<float>();
    bench.measure(fmt::format("sample top_p rows {}", rows), work, run);
    p.top_k = k20->as<int32_t>();
    bench.measure(fmt::format("sample top_k top_p rows {}", rows), work, run);
    bench.measure(fmt::format("logprobs rows {}", rows), work, [&](int) {
      bench.backend().logprobs(
          bench.queue(),
          {.logits = p.logits, .vocab = kVocab, .chosen = out->as<int32_t>(), .out_chosen = floats->as<float>()});
    });
  }
}

// ---- compression ---------------------------------------------------------------------------------------------------

// Keys as a model's are: a common direction, some recurring ones and noise, in content; rotation is left out of the
// table.
void bench_compression(Bench& bench) {
  if (!bench.wants("compress")) return;
  constexpr int kSlots = 2304, kBudget = 2048, kWindow = 16, kBlocks = kSlots / kBlockSize, kSpan = 8192;
  constexpr int kPool = 72;  // blocks: the sequence's, and what it is compressed into
  Pool pool(bench, kLayers, kPool, DType::kBF16, kBlockSize, true);
  std::vector<Bf16> rows(size_t{kPool} * 2 * kKvHeads * kBlockSize *
                         kHeadDim);  // a layer: no two slots of a unit alike
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  const auto fill = [&](float common, float recurring) {
    std::vector<float> directions(size_t{64} * kHeadDim);
    for (float& x : directions) x = normal(generator);
    for (size_t r = 0; r < rows.size() / kHeadDim; ++r) {
      const size_t mine = 1 + generator() % 63;
      for (size_t d = 0; d < kHeadDim; ++d) {
        rows[r * kHeadDim + d] =
            Bf16(common * directions[d] + recurring * directions[mine * kHeadDim + d] + normal(generator));
      }
    }
    const size_t piece = rows.size() * 2, bytes = pool.data->bytes();
    for (size_t at = 0; at < bytes; at += piece) {
      check(cudaMemcpy(pool.data->data() + at, rows.data(), std::min(piece, bytes - at), cudaMemcpyHostToDevice),
            "filling");
    }
  };
  std::vector<int32_t> blocks(kPool);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), generator);
  const auto table = bench.array(blocks);
  // What earlier compressions left of kSpan positions, each head its own.
  const KvGeometry& g = pool.pool.geometry;
  std::vector<int32_t> positions(pool.positions->bytes() / 4), of_head(kBudget), all(kSpan);
  std::iota(all.begin(), all.end(), 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kKvHeads; ++head) {
      std::sample(all.begin(), all.end(), of_head.begin(), kBudget, generator);
      for (int t = 0; t < kBudget; ++t) {
        const int block = blocks[static_cast<size_t>(t / kBlockSize)];
        positions[static_cast<size_t>(((layer * g.num_blocks + block) * kKvHeads + head) * kBlockSize +
                                      t % kBlockSize)] = of_head[static_cast<size_t>(t)];
      }
    }
  }
  check(cudaMemcpy(pool.positions->data(), positions.data(), positions.size() * 4, cudaMemcpyHostToDevice), "filling");
  const std::vector<float> cosines = [] {
    std::vector<float> out;
    for (int p = 0; p < kSpan + kSlots; ++p) {
      for (int j = 0; j < kHeadDim; ++j) out.push_back(j < kHeadDim / 2 ? 1.0F : 0.0F);
    }
    return out;
  }();
  const auto cos_sin = bench.array(cosines);
  const CompressionSource source{.kv = pool.pool,
                                 .source_blocks = table->as<int32_t>(),
                                 .num_slots = kSlots,
                                 .num_scored = kBudget,
                                 .first_position = kSpan,
                                 .prompt_len = 128};
  const auto ring = bench.random(size_t{kLayers} * kWindow * kHeads * kHeadDim * 2, "ring");
  const size_t per_slot = size_t{kLayers} * kKvHeads * kSlots * 4;
  const auto scores = bench.backend().allocate(per_slot, "S", MemoryKind::kDevice),
             pooled = bench.backend().allocate(per_slot, "pooled", MemoryKind::kDevice),
             redundancy = bench.backend().allocate(per_slot, "R", MemoryKind::kDevice),
             final_scores = bench.backend().allocate(per_slot, "F", MemoryKind::kDevice);
  const auto kept = bench.backend().allocate(size_t{kLayers} * kKvHeads * kBudget * 4, "kept", MemoryKind::kDevice);
  const auto scratch =
      bench.backend().allocate(bench.backend().compression_scratch_bytes(pool.pool.geometry, kHeads, kWindow, kSlots),
                               "scratch", MemoryKind::kDevice);
  Backend& b = bench.backend();
  Queue& queue = bench.queue();

  const double keys = double{kLayers} * kKvHeads * kSlots * kHeadDim * 2;
  const double moved = double{kLayers} * kKvHeads * kBudget * kHeadDim * 2 * 2 * 2;
  const WindowScoreParams of_window{.source = source,
                                    .ring = {ring->data(), 1, kWindow},
                                    .num_heads = kHeads,
                                    .scale = 0.088F,
                                    .scores = scores->as<float>(),
                                    .scratch = scratch->data()};
  const auto of_keys = [&](RedundancyScope scope, RedundancyKeys which) -> RedundancyParams {
    return {.source = source,
            .scope = scope,
            .keys = which,
            .cos_sin = cos_sin->as<float>(),
            .rotary_dim = kHeadDim,
            .redundancy = redundancy->as<float>(),
            .scratch = scratch->data()};
  };
  const auto window = [&](int) { b.window_scores(queue, of_window); };
  const auto redundant = [&](RedundancyScope scope, RedundancyKeys which) {
    b.redundancy(queue, of_keys(scope, which));
  };
  const auto value_norms = [&](int) { b.value_norms(queue, {.source = source, .scores = scores->as<float>()}); };
  const auto carry = [&](int) { b.carry(queue, {.source = source, .scores = scores->as<float>()}); };
  const auto pool_scores = [&](int) {
    b.pool_scores(queue, {.source = source, .scores = scores->as<float>(), .out = pooled->as<float>()});
  };
  const auto combine = [&](int) {
    CombineParams p{.source = source,
                    .scores = pooled->as<float>(),
                    .redundancy = redundancy->as<float>(),
                    .out = final_scores->as<float>()};
    p.params.budget = kBudget, p.params.recent = kBudget / 2;
    b.combine(queue, p);
  };
  const auto final_scores_of = [&](KvPolicy policy, RedundancyScope scope) {
    const CompressionOptions options{.kv_budget = kBudget, .kv_policy = policy, .redundancy = scope};
    b.final_scores(queue, {.source = source,
                           .params = resolve(options),
                           .ring = of_window.ring,
                           .num_heads = kHeads,
                           .scale = of_window.scale,
                           .cos_sin = cos_sin->as<float>(),
                           .rotary_dim = kHeadDim,
                           .scores = scores->as<float>(),
                           .pooled = pooled->as<float>(),
                           .redundancy = redundancy->as<float>(),
                           .final_scores = final_scores->as<float>(),
                           .scratch = scratch->data()});
  };
  const auto select = [&](int) {
    b.select(
        queue,
        {.source = source, .budget = kBudget, .final_scores = final_scores->as<float>(), .kept = kept->as<int32_t>()});
  };
  // Into other blocks, so that the source stays as it is, but for blocks that a compression retains.
  const auto targets_with = [&](int num_retained) {
    constexpr int kTargets = kBudget / kBlockSize;
    static_assert(kBlocks + kTargets <= kPool);
    const auto others = blocks.begin() + kBlocks;
    std::vector<int32_t> targets(others, others + kTargets - num_retained);
    targets.insert(targets.end(), others - num_retained, others);
    return bench.array(targets);
  };
  const auto compact = [&](int num_retained, const Buffer& targets) {
    b.compact(queue, {.source = source,
                      .budget = kBudget,
                      .num_retained = num_retained,
                      .kept = kept->as<int32_t>(),
                      .scores = pooled->as<float>(),
                      .target_blocks = targets.as<int32_t>()});
  };
  const auto no_retained = targets_with(0);

  for (const bool alike : {true, false}) {
    const std::string data = alike ? "recurring keys" : "unlike keys";
    fill(alike ? 0.7F : 0.0F, alike ? 1.5F : 0.0F);
    // So that each stage has something to work on, whichever are asked for.
    final_scores_of(KvPolicy::kContent, RedundancyScope::kMean), select(0);
    bench.measure(fmt::format("compress window_scores, {}", data), {.bytes = keys}, window);
    bench.measure(fmt::format("compress redundancy mean, {}", data), {.bytes = keys},
                  [&](int) { redundant(RedundancyScope::kMean, RedundancyKeys::kContent); });
    bench.measure(fmt::format("compress redundancy lightning, {}", data), {.bytes = keys},
                  [&](int) { redundant(RedundancyScope::kLightning, RedundancyKeys::kRotated); });
    bench.measure(fmt::format("compress redundancy exact, {}", data), {.bytes = keys},
                  [&](int) { redundant(RedundancyScope::kExact, RedundancyKeys::kContent); });
    bench.measure(fmt::format("compress value_norms, {}", data), {.bytes = keys}, value_norms);
    bench.measure(fmt::format("compress final_scores of content, {}", data), {.bytes = 2 * keys},
                  [&](int) { final_scores_of(KvPolicy::kContent, RedundancyScope::kMean); });
    bench.measure(fmt::format("compress carry, {}", data), {}, carry);
    bench.measure(fmt::format("compress pool_scores, {}", data), {}, pool_scores);
    bench.measure(fmt::format("compress combine, {}", data), {}, combine);
    bench.measure(fmt::format("compress select, {}", data), {}, select);
    bench.measure(fmt::format("compress compact, {}", data), {.bytes = moved, .byte_peak = kCopyPeak},
                  [&](int) { compact(0, *no_retained); });
    struct Whole {
      const char* name;
      KvPolicy policy;
      RedundancyScope scope;
    };
    for (const Whole& w : {Whole{"content", KvPolicy::kContent, RedundancyScope::kMean},
                           Whole{"zipage", KvPolicy::kZipage, RedundancyScope::kLightning},
                           Whole{"content, exact", KvPolicy::kContent, RedundancyScope::kExact}}) {
      const CompressionParams params = resolve({.kv_budget = kBudget, .kv_policy = w.policy, .redundancy = w.scope});
      const int num_retained = retained_blocks(0, kSlots, params, kBlockSize);
      const auto targets = targets_with(num_retained);
      bench.measure(fmt::format("compress all of {}, {}", w.name, data), {},
                    [&](int i) { final_scores_of(w.policy, w.scope), select(i), compact(num_retained, *targets); });
      if (num_retained == 0) continue;
      final_scores_of(w.policy, w.scope), select(0);
      const double share = 1.0 - static_cast<double>(num_retained * kBlockSize) / kBudget;
      bench.measure(fmt::format("compress compact of {}, {}", w.name, data),
                    {.bytes = moved * share, .byte_peak = kCopyPeak}, [&](int) { compact(num_retained, *targets); });
    }
  }
}

// ---- a whole decoding step -----------------------------------------------------------------------------------------

// All kernels of a step in one graph, as the engine replays it; weights of a few layers and their KV take turns.
void bench_step(Bench& bench) {
  if (!bench.wants("step")) return;
  constexpr int kDistinct = 3;
  Backend& b = bench.backend();
  CudaQueue& queue = bench.queue();
  std::vector<Bf16> host(size_t{kVocab} * kHidden);
  std::mt19937 generator(2);
  for (size_t i = 0; i < host.size(); ++i)
    host[i] = i < (1 << 20) ? Bf16(static_cast<float>(generator() % 2001) / 5e4F - 0.02F) : host[i - 1048573];
  const auto linear = [&](int64_t in, int64_t out) {
    const HostTensor tensor{.name = "weight",
                            .dtype = DType::kBF16,
                            .shape = {out, in},
                            .data = std::as_bytes(std::span(host)).first(static_cast<size_t>(in * out * 2))};
    return b.make_linear({&tensor, 1});
  };
  struct Layer {
    std::unique_ptr<Linear> qkv, o, gate_up, down;
  };
  std::vector<Layer> layers;
  for (int i = 0; i < kDistinct; ++i)
    layers.push_back({linear(kHidden, 6144), linear(kHidden, kHidden), linear(kHidden, 2 * kIntermediate),
                      linear(kIntermediate, kHidden)});
  const auto head = linear(kHidden, kVocab);
  const auto norm = bench.array(std::vector<float>(kHidden, 1.0F));
  const auto cos_sin = bench.array(std::vector<float>(size_t{16384} * kHeadDim, 0.7F));

  struct Case {
    int seqs, len;
  };
  for (const Case& c :
       {Case{1, 384}, Case{32, 640}, Case{64, 1152}, Case{256, 2300}, Case{320, 2176}, Case{80, 8300}}) {
    const std::string name = fmt::format("step {} x {}", c.seqs, c.len);
    if (!bench.wants(name)) continue;
    const int blocks = c.seqs * ((c.len + kBlockSize - 1) / kBlockSize);
    Pool pool(bench, kDistinct, blocks, DType::kBF16);
    const Batch batch(bench, c.seqs, 1, c.len, kBlockSize, blocks);
    const int64_t rows = c.seqs;
    const auto buffer = [&](int64_t cols, int element = 2) {
      return b.allocate(static_cast<size_t>(rows * cols * element), "activations", MemoryKind::kDevice);
    };
    const auto hidden = buffer(kHidden), residual = buffer(kHidden), qkv = buffer(6144), attended = buffer(kHidden),
               gate_up = buffer(2 * kIntermediate), activated = buffer(kIntermediate), logits = buffer(kVocab, 4),
               tokens = buffer(1, 4);
    const Matrix h = act(*hidden, rows, kHidden), r = act(*residual, rows, kHidden);
    const auto step = [&] {
      b.embedding(queue, {.table = head.get(), .token_ids = tokens->as<int32_t>(), .out = r});
      b.rms_norm(queue, {.x = r, .weight = norm->as<float>(), .out = h});
      b.linear(queue, {.x = h, .weight = layers[0].qkv.get(), .out = act(*qkv, rows, 6144)});
      for (int i = 0; i < kLayers; ++i) {
        const Layer& layer = layers[static_cast<size_t>(i % kDistinct)];
        Matrix q = act(*qkv, rows, kHidden);
        q.stride = 6144;
        b.append_and_attend(queue,
                            {.qkv = act(*qkv, rows, 6144),
                             .num_heads = kHeads,
                             .q_norm = norm->as<float>(),
                             .k_norm = norm->as<float>(),
                             .cos_sin = cos_sin->as<float>(),
                             .rotary_dim = kHeadDim,
                             .layer = i % kDistinct,
                             .batch = batch.view,
                             .kv = pool.pool},
                            {.q = q,
                             .num_heads = kHeads,
                             .scale = 0.088F,
                             .layer = i % kDistinct,
                             .batch = batch.view,
                             .kv = pool.pool,
                             .out = act(*attended, rows, kHidden)});
        b.dense_chain(queue, {.x = act(*attended, rows, kHidden),
                              .residual = r,
                              .output = {layer.o.get()},
                              .gate_up = {layer.gate_up.get()},
                              .down = {layer.down.get()},
                              .next_qkv = {layers[static_cast<size_t>((i + 1) % kDistinct)].qkv.get()},
                              .norm = norm->as<float>(),
                              .next_norm = norm->as<float>(),
                              .hidden = h,
                              .gate_up_out = act(*gate_up, rows, 2 * kIntermediate),
                              .ffn = act(*activated, rows, kIntermediate),
                              .qkv = act(*qkv, rows, 6144)});
      }
      b.rms_norm(queue, {.x = h, .residual = r, .weight = norm->as<float>(), .out = h});
      b.linear(queue, {.x = h, .weight = head.get(), .out = {logits->data(), DType::kF32, rows, kVocab, kVocab}});
      b.sample(queue, {.logits = {logits->data(), DType::kF32, rows, kVocab, kVocab},
                       .vocab = kVocab,
                       .out_token = tokens->as<int32_t>()});
    };
    const double weights =
        2.0 * (double{kLayers} * kHidden * (6144.0 + kHidden + 3.0 * kIntermediate) + double{kVocab} * kHidden);
    const double kv = 2.0 * 2.0 * kLayers * kKvHeads * kHeadDim * static_cast<double>(c.seqs) * c.len;
    bench.measure(name, {.bytes = weights + kv}, [&](int) { step(); });
  }
}

void bench_copy(Bench& bench) {
  const size_t bytes = size_t{4} << 30;
  if (!bench.wants("copy")) return;
  const auto from = bench.random(bytes, "from");
  const auto to = bench.backend().allocate(bytes, "to", MemoryKind::kDevice);
  bench.measure("copy of 4 GiB", {.bytes = 2.0 * static_cast<double>(bytes), .byte_peak = kCopyPeak}, [&](int) {
    cudaMemcpyAsync(to->data(), from->data(), bytes, cudaMemcpyDeviceToDevice, bench.queue().stream());
  });
}

}  // namespace
}  // namespace zipage::cuda

int main(int argc, char** argv) {
  using namespace zipage;
  try {
    cuda::Bench bench({argv + 1, argv + argc});
    fmt::print("{}\n", bench.backend().info().description);
    cuda::bench_copy(bench);
    cuda::bench_attention(bench, DType::kBF16, 64);
    cuda::bench_attention(bench, DType::kF8E4M3, 64);
    cuda::bench_elementwise(bench);
    cuda::bench_sample(bench);
    cuda::bench_compression(bench);
    cuda::bench_gemm(bench);
    cuda::bench_gated(bench);
    cuda::bench_chain(bench);
    cuda::bench_linear(bench);
    cuda::bench_step(bench);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
