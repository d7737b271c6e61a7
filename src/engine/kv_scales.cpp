#include "engine/kv_scales.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "engine/step_inputs.h"

namespace zipage {
namespace {

constexpr int kTokens = 256;
constexpr float kLargestFp8 = 448;
constexpr float kHeadroom = 2;

float largest_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0F, [](float a, float b) { return std::max(a, std::abs(b)); });
}

}  // namespace

float fp8_scale(float largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return std::exp2(std::ceil(std::log2(largest * kHeadroom / kLargestFp8)));
}

KvScales calibrate_kv_scales(Backend& backend, Queue& queue, Decoder& decoder, const KvGeometry& geometry,
                             int vocab_size, int max_tokens) {
  const int num_tokens = std::min(kTokens, max_tokens);
  KvPool kv;
  kv.geometry = geometry;
  kv.geometry.dtype = DType::kBF16;
  kv.geometry.num_blocks = (num_tokens + geometry.block_size - 1) / geometry.block_size;
  const auto data =
      backend.allocate(backend.kv_bytes_per_block(kv.geometry) * static_cast<size_t>(geometry.num_layers) *
                           static_cast<size_t>(kv.geometry.num_blocks),
                       "KV to find scales");
  kv.data = data->data();

  Sequence sequence;
  std::mt19937 random(1);
  for (int i = 0; i < num_tokens; ++i) {
    sequence.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size)));
  }
  sequence.num_prompt = num_tokens;
  for (int i = 0; i < kv.geometry.num_blocks; ++i) sequence.blocks.push_back(BlockId(i));
  const StepBatch batch =
      flatten({{.sequence = &sequence, .num_tokens = num_tokens, .records_queries = false, .samples = false}},
              geometry.block_size, {});
  StepInputs inputs(backend, num_tokens, 1, kv.geometry.num_blocks);
  decoder.forward(queue, inputs.upload(queue, batch), kv, {});

  KvScales scales;
  std::vector<int32_t> slots(static_cast<size_t>(num_tokens));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<float> k(slots.size() * static_cast<size_t>(geometry.head_dim)), v(k.size());
  for (int layer = 0; layer < geometry.num_layers; ++layer) {
    for (int head = 0; head < geometry.num_kv_heads; ++head) {
      backend.kv_gather(queue,
                        {.kv = kv, .layer = layer, .kv_head = head, .slots = slots, .k = k.data(), .v = v.data()});
      scales.k.push_back(fp8_scale(largest_of(k)));
      scales.v.push_back(fp8_scale(largest_of(v)));
    }
  }
  return scales;
}

}  // namespace zipage
