#include "ops/paged_kv.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "tensor/bf16.h"

namespace zipage::test {

TestBatch::TestBatch(Device& device, const std::vector<TestSequence>& sequences,
                     const std::vector<std::vector<int32_t>>& tables, int block_size) {
  std::vector<int32_t> positions, seq_lens, flat_tables;
  size_t width = 1;
  for (const auto& table : tables) width = std::max(width, table.size());
  starts_.push_back(0);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const TestSequence& sequence = sequences[i];
    if (sequence.num_tokens == 1 && view_.num_decodes == static_cast<int>(i)) ++view_.num_decodes;
    if (view_.num_decodes <= static_cast<int>(i))
      view_.max_query_len = std::max(view_.max_query_len, sequence.num_tokens);
    for (int t = 0; t < sequence.num_tokens; ++t) {
      const int slot = sequence.context + t;
      positions.push_back(sequence.padding() ? 0 : slot);
      slots_.push_back(
          sequence.padding() ? -1 : tables[i][static_cast<size_t>(slot / block_size)] * block_size + slot % block_size);
    }
    starts_.push_back(starts_.back() + sequence.num_tokens);
    seq_lens.push_back(sequence.seq_len());
    view_.max_seq_len = std::max(view_.max_seq_len, sequence.seq_len());
    std::vector<int32_t> row = tables[i];
    row.resize(width, -1);  // an id that no kernel may follow
    flat_tables.insert(flat_tables.end(), row.begin(), row.end());
  }
  view_.num_tokens = starts_.back();
  view_.num_seqs = static_cast<int>(sequences.size());
  view_.max_blocks_per_seq = static_cast<int>(width);
  const auto keep = [&](const std::vector<int32_t>& values) {
    arrays_.push_back(device.array(values));
    return arrays_.back().data();
  };
  view_.positions = keep(positions);
  view_.slot_mapping = keep(slots_);
  view_.query_ring_rows = keep(std::vector<int32_t>(slots_.size(), -1));
  view_.query_start_loc = keep(starts_);
  view_.seq_lens = keep(seq_lens);
  view_.block_table = keep(flat_tables);
  view_.token_ids = keep(std::vector<int32_t>(slots_.size(), 0));
}

PagedKv::PagedKv(Device& device, const KvGeometry& geometry, bool with_scores) : device_(&device) {
  pool_.geometry = geometry;
  const size_t bytes = device.backend().kv_bytes_per_block(geometry) * static_cast<size_t>(geometry.num_blocks) *
                       static_cast<size_t>(geometry.num_layers);
  data_ = device.allocate(bytes);
  const std::vector<std::byte> nan(bytes, std::byte{0xff});
  device.upload(data_->data(), nan.data(), bytes);
  pool_.data = data_->data();
  if (geometry.dtype == DType::kF8E4M3) {
    // Each head's own, so that a wrong one shows.
    std::vector<float> scales;
    for (int i = 0; i < 2 * geometry.num_layers * geometry.num_kv_heads; ++i) {
      scales.push_back(0.02F + 0.003F * static_cast<float>(i % 7));
    }
    scales_ = device.allocate(scales.size() * sizeof(float));
    device.upload(scales_->data(), scales.data(), scales.size() * sizeof(float));
    pool_.k_scale = scales_->as<float>();
    pool_.v_scale = pool_.k_scale + geometry.num_layers * geometry.num_kv_heads;
  }
  if (with_scores) {
    const size_t entries = static_cast<size_t>(geometry.num_layers) * static_cast<size_t>(geometry.num_blocks) *
                           static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.block_size);
    scores_ = device.allocate(entries * sizeof(float));
    positions_ = device.allocate(entries * sizeof(int32_t));
    pool_.scores = scores_->as<float>();
    pool_.positions = positions_->as<int32_t>();
  }
}

std::vector<std::vector<int32_t>> PagedKv::make_tables(const std::vector<int>& lengths, Random& random) const {
  const int block_size = pool_.geometry.block_size;
  std::vector<int32_t> blocks(static_cast<size_t>(pool_.geometry.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  random.shuffle(blocks);
  std::vector<std::vector<int32_t>> tables;
  for (int length : lengths) {
    const auto needed = static_cast<size_t>((length + block_size - 1) / block_size);
    ZIPAGE_CHECK(needed <= blocks.size(), "the test's pool has too few blocks");
    tables.emplace_back(blocks.end() - static_cast<int64_t>(needed), blocks.end());
    blocks.resize(blocks.size() - needed);
  }
  return tables;
}

void PagedKv::write(int layer, const std::vector<int32_t>& table, int first, const std::vector<float>& k,
                    const std::vector<float>& v) {
  const KvGeometry& geometry = pool_.geometry;
  const auto row = static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.head_dim);
  const auto count = static_cast<int>(k.size() / row);
  if (count == 0) return;
  // A rotation by nothing: cosines 1, sines 0.
  std::vector<float> cos_sin(static_cast<size_t>(geometry.head_dim), 0.0F);
  std::fill_n(cos_sin.begin(), geometry.head_dim / 2, 1.0F);
  const auto table_of_angles = device_->array(cos_sin);
  std::vector<float> qkv;
  for (int t = 0; t < count; ++t) {
    const auto at = static_cast<int64_t>(static_cast<size_t>(t) * row);
    qkv.insert(qkv.end(), row, 0.0F);
    qkv.insert(qkv.end(), k.begin() + at, k.begin() + at + static_cast<int64_t>(row));
    qkv.insert(qkv.end(), v.begin() + at, v.begin() + at + static_cast<int64_t>(row));
  }
  TestBatch batch(*device_, {{first, count}}, {table}, geometry.block_size);
  const auto zeros = device_->array(std::vector<int32_t>(static_cast<size_t>(count), 0));
  batch.view().positions = zeros.data();
  ActMatrix act = device_->act(qkv, count, static_cast<int64_t>(3 * row));
  device_->backend().qkv_rope_append(device_->queue(), {.qkv = act.matrix(),
                                                        .num_heads = geometry.num_kv_heads,
                                                        .cos_sin = table_of_angles.data(),
                                                        .rotary_dim = geometry.head_dim,
                                                        .layer = layer,
                                                        .batch = batch.view(),
                                                        .kv = pool_});
  device_->queue().synchronize();
}

void PagedKv::read(int layer, int kv_head, const std::vector<int32_t>& slots, std::vector<float>& k,
                   std::vector<float>& v) {
  k.resize(slots.size() * static_cast<size_t>(pool_.geometry.head_dim));
  v.resize(k.size());
  device_->backend().kv_gather(
      device_->queue(),
      {.kv = pool_, .layer = layer, .kv_head = kv_head, .slots = slots, .k = k.data(), .v = v.data()});
  device_->queue().synchronize();
}

std::vector<std::byte> PagedKv::bytes() const {
  std::vector<std::byte> out(data_->bytes());
  device_->download(out.data(), data_->data(), out.size());
  return out;
}

std::vector<float> rounded_to_bf16(std::vector<float> values) {
  for (float& value : values) value = static_cast<float>(Bf16(value));
  return values;
}

}  // namespace zipage::test
