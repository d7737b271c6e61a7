#include "compress/workspace.h"

namespace zipage {
namespace {

constexpr size_t kAlign = 256;

size_t padded(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

struct Parts {
  size_t per_slot;  // one float per layer, KV head and slot
  size_t kept;
  size_t scratch;
  size_t total() const { return 4 * per_slot + kept + scratch; }
};

Parts parts(const Backend& backend, const CompressionShape& shape) {
  const size_t heads = static_cast<size_t>(shape.kv.num_layers) * static_cast<size_t>(shape.kv.num_kv_heads);
  return {
      .per_slot = padded(heads * static_cast<size_t>(shape.max_slots) * sizeof(float)),
      .kept = padded(heads * static_cast<size_t>(shape.max_budget) * sizeof(int32_t)),
      .scratch = padded(backend.compression_scratch_bytes(shape.kv, shape.num_heads, shape.window, shape.max_slots))};
}

int source_blocks(const CompressionShape& shape) {
  return (shape.max_slots + shape.kv.block_size - 1) / shape.kv.block_size;
}

size_t block_list_bytes(const CompressionShape& shape) {
  return static_cast<size_t>(source_blocks(shape) + shape.max_budget / shape.kv.block_size) * sizeof(int32_t);
}

}  // namespace

size_t CompressionWorkspace::bytes(const Backend& backend, const CompressionShape& shape) {
  return parts(backend, shape).total() + block_list_bytes(shape);
}

CompressionWorkspace::CompressionWorkspace(Backend& backend, const CompressionShape& shape)
    : shape_(shape), max_source_blocks_(zipage::source_blocks(shape)) {
  const Parts p = parts(backend, shape);
  memory_ = backend.allocate(p.total(), "compression workspace", MemoryKind::kDevice);
  blocks_ = backend.allocate(block_list_bytes(shape), "compression block lists", MemoryKind::kDevice);
  for (Turn& turn : turns_) {
    turn.host = backend.allocate(block_list_bytes(shape), "compression block lists, host", MemoryKind::kPinnedHost);
  }
  std::byte* next = memory_->data();
  for (float** part : {&scores_, &pooled_, &redundancy_, &final_}) {
    *part = reinterpret_cast<float*>(next);
    next += p.per_slot;
  }
  kept_ = reinterpret_cast<int32_t*>(next);
  scratch_ = p.scratch > 0 ? next + p.kept : nullptr;
}

void CompressionWorkspace::upload_blocks(Backend& backend, Queue& queue, std::span<const BlockId> sources,
                                         std::span<const BlockId> targets) {
  now_ = (now_ + 1) % turns_.size();
  Turn& turn = turns_[now_];
  if (turn.uploaded) turn.uploaded->wait();
  auto* host = turn.host->as<int32_t>();
  for (size_t i = 0; i < sources.size(); ++i) host[i] = sources[i].value();
  for (size_t i = 0; i < targets.size(); ++i) host[static_cast<size_t>(max_source_blocks_) + i] = targets[i].value();
  backend.upload(queue, source_blocks(), host, sources.size() * sizeof(int32_t));
  backend.upload(queue, target_blocks(), host + max_source_blocks_, targets.size() * sizeof(int32_t));
  turn.uploaded = backend.record(queue);
}

}  // namespace zipage
