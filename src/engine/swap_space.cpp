#include "engine/swap_space.h"

#include <algorithm>
#include <numeric>

namespace zipage {

SwapShape SwapShape::of(const Backend& backend, const KvGeometry& kv, int64_t host_bytes, int blocks_per_request,
                        int num_rings) {
  const int64_t blocks = host_bytes / static_cast<int64_t>(backend.swap_bytes_per_block(kv));
  if (blocks == 0) return {};
  return {.num_blocks = blocks,
          .num_rings = num_rings,
          .staging_blocks = backend.info().host_accessible ? 0 : std::min<int64_t>(blocks, blocks_per_request)};
}

SwapSpace::SwapSpace(Backend& backend, Queue& batches, const KvPool& kv, const QueryRing& ring, int64_t row_elements,
                     const SwapShape& shape)
    : backend_(backend),
      batches_(batches),
      kv_(kv),
      ring_(ring),
      row_elements_(row_elements),
      block_bytes_(backend.swap_bytes_per_block(kv.geometry)),
      ring_bytes_(static_cast<size_t>(kv.geometry.num_layers * ring.window * row_elements) *
                  static_cast<size_t>(traits(backend.info().activation).block_bytes)),
      blocks_(backend.allocate(block_bytes_ * static_cast<size_t>(shape.num_blocks), "swap space",
                               MemoryKind::kPinnedHost)),
      rings_(backend.allocate(ring_bytes_ * static_cast<size_t>(shape.num_rings), "swapped queries",
                              MemoryKind::kPinnedHost)) {
  if (shape.staging_blocks == 0) return;
  staging_ = backend.allocate(block_bytes_ * static_cast<size_t>(shape.staging_blocks), "staging of swapped KV");
  staging_ids_.resize(static_cast<size_t>(shape.staging_blocks));
  std::iota(staging_ids_.begin(), staging_ids_.end(), 0);
  transfers_ = backend.make_copy_queue();
}

SwapSpace::~SwapSpace() {
  if (!transfers_) return;
  try {
    batches_.synchronize();
    transfers_->synchronize();
  } catch (const DeviceError&) {
    // The device is lost: nothing runs on it any more.
  }
}

void SwapSpace::move_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) {
  if (!staging_) {
    backend_.swap(
        batches_,
        {.kv = kv_, .blocks = blocks, .host_blocks = host_blocks, .host = blocks_->data(), .to_host = to_host});
    return;
  }
  for (size_t first = 0; first < blocks.size(); first += staging_ids_.size()) {
    const size_t count = std::min(staging_ids_.size(), blocks.size() - first);
    stage(blocks.subspan(first, count), host_blocks.subspan(first, count), to_host);
  }
}

void SwapSpace::stage(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) {
  const SwapParams between{.kv = kv_,
                           .blocks = blocks,
                           .host_blocks = std::span(staging_ids_).first(blocks.size()),
                           .host = staging_->data(),
                           .to_host = to_host};
  const auto each = [&](const auto& copy) {
    for (size_t i = 0; i < host_blocks.size(); ++i) {
      copy(blocks_->data() + static_cast<size_t>(host_blocks[i]) * block_bytes_, staging_->data() + i * block_bytes_);
    }
  };
  Queue& first = to_host ? batches_ : *transfers_;
  Queue& second = to_host ? *transfers_ : batches_;
  if (staging_free_) backend_.wait(first, *staging_free_);
  if (to_host) {
    backend_.swap(first, between);
  } else {
    each([&](std::byte* host, std::byte* device) { backend_.upload(first, device, host, block_bytes_); });
  }
  backend_.wait(second, *backend_.record(first));
  if (to_host) {
    each([&](std::byte* host, std::byte* device) { backend_.download(second, host, device, block_bytes_); });
  } else {
    backend_.swap(second, between);
  }
  staging_free_ = backend_.record(second);
}

void SwapSpace::move_ring(int query_slot, int host_ring, bool to_host) {
  backend_.swap_ring(batches_, {.ring = ring_,
                                .num_layers = kv_.geometry.num_layers,
                                .query_slot = query_slot,
                                .row_elements = row_elements_,
                                .host = rings_->data() + ring_bytes_ * static_cast<size_t>(host_ring),
                                .to_host = to_host});
}

}  // namespace zipage
