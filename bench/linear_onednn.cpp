// Linear layers of oneDNN (bf16 weights in its own packed form) beside ours, one thread each.
//
//   OMP_NUM_THREADS=1 build/release/bench/bench_linear_onednn
//
// oneDNN gets its activations in bf16 already; ours stay fp32.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "dnnl.hpp"
#include "ops/ops.h"
#include "tensor/bf16.h"

namespace {

double best_seconds(const std::function<void()>& work) {
  double best = 1e9;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5 || std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200); ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double onednn_seconds(int rows, int in, int out) {
  using namespace dnnl;
  using tag = memory::format_tag;
  using type = memory::data_type;
  engine device(engine::kind::cpu, 0);
  stream queue(device);
  const memory::desc x({rows, in}, type::bf16, tag::ab), any({in, out}, type::bf16, tag::any),
      y({rows, out}, type::f32, tag::ab);
  const matmul::primitive_desc description(matmul::desc(x, any, y), device);
  memory input(x, device), weights(description.weights_desc(), device), output(y, device);
  std::fill_n(static_cast<uint16_t*>(input.get_data_handle()), static_cast<size_t>(rows) * static_cast<size_t>(in),
              uint16_t{0x3c00});
  std::fill_n(static_cast<uint8_t*>(weights.get_data_handle()), description.weights_desc().get_size(), uint8_t{0x3c});
  matmul primitive(description);
  return best_seconds([&] {
    primitive.execute(queue, {{DNNL_ARG_SRC, input}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, output}});
    queue.wait();
  });
}

double our_seconds(int rows, int in, int out) {
  using namespace zipage;
  const auto backend = make_cpu_backend({1});
  const auto queue = backend->make_queue(QueuePriority::kNormal);
  const std::vector<Bf16> values(static_cast<size_t>(in) * static_cast<size_t>(out), Bf16(0.01F));
  const HostTensor tensor{
      .name = "w", .dtype = DType::kBF16, .shape = {out, in}, .data = std::as_bytes(std::span(values))};
  const auto weight = backend->make_linear({&tensor, 1});
  std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(in), 0.5F),
      y(static_cast<size_t>(rows) * static_cast<size_t>(out));
  const LinearParams params{.x = {x.data(), DType::kF32, rows, in, in},
                            .weight = weight.get(),
                            .out = {y.data(), DType::kF32, rows, out, out}};
  return best_seconds([&] { backend->linear(*queue, params); });
}

}  // namespace

int main() {
  struct Shape {
    int in, out;
  };
  std::printf("%-14s %6s %12s %12s %8s\n", "in -> out", "rows", "oneDNN GF/s", "ours GF/s", "ratio");
  for (Shape shape : {Shape{384, 768},
                      {384, 2304},
                      {1152, 384},
                      {576, 3072},
                      {1536, 576},
                      {576, 49152},
                      {1024, 6144},
                      {3072, 1024}}) {
    for (int rows : {1, 4, 8, 16, 32, 64, 128, 512}) {
      const double operations = 2.0 * rows * shape.in * shape.out;
      if (operations > 4e9) continue;
      const double theirs = operations / onednn_seconds(rows, shape.in, shape.out) / 1e9;
      const double ours = operations / our_seconds(rows, shape.in, shape.out) / 1e9;
      std::printf("%5d -> %-5d %6d %12.1f %12.1f %8.2f\n", shape.in, shape.out, rows, theirs, ours, ours / theirs);
      std::fflush(stdout);
    }
  }
  return 0;
}
