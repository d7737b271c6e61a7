// A random sequence in a random pool on the CPU, and the same sequence as the oracle sees it. All memory that the
// sequence does not use holds NaN.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/compare.h"
#include "ops/compress_ops.h"
#include "ops/compress_oracle.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/kv_layout.h"
#include "ops/ops.h"
#include "tensor/bf16.h"

namespace zipage::test {

struct Shape {
  int num_layers = 2, num_kv_heads = 2, group = 4, head_dim = 64, block_size = 64, num_slots = 576, num_scored = 0;
  int query_stride = 1;
  int window = 16, prompt_len = 100, evicted = 0, rotary_dim = 0;  // 0 = head_dim
  double rope_scale = 1;
  uint32_t seed = 1;

  std::string describe() const {
    return fmt::format(
        "layers {} kv heads {} group {} head_dim {} block {} T {} scored {} window {} stride {} prompt {} evicted {} "
        "seed {}",
        num_layers, num_kv_heads, group, head_dim, block_size, num_slots, num_scored, window, query_stride, prompt_len,
        evicted, seed);
  }
};

// Every instruction set that this processor has.
inline std::vector<cpu::Isa> all_isas() {
  std::vector<cpu::Isa> out;
  for (cpu::Isa isa : {cpu::Isa::kPortable, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (cpu::supported(isa)) out.push_back(isa);
  }
  return out;
}

inline Shape random_shape(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](std::initializer_list<int> values) { return std::data(values)[random() % values.size()]; };
  Shape s;
  s.seed = seed;
  s.num_layers = pick({1, 2});
  s.num_kv_heads = pick({1, 2, 3});
  s.group = pick({1, 2, 3, 4, 5, 7, 8});
  s.head_dim = pick({32, 64, 80, 128});
  s.block_size = pick({16, 48, 64, 80, 128, 256});
  s.window = std::min(pick({1, 5, 16}), s.block_size);
  s.query_stride = pick({1, 1, 3, 4});
  s.num_slots = s.window * s.query_stride + static_cast<int>(random() % pick({50, 300, 700, 1500}));
  s.num_scored = pick({0, 1, 2}) == 0
                     ? 0
                     : static_cast<int>(random() % static_cast<uint32_t>(s.num_slots - s.window * s.query_stride + 1));
  s.evicted = s.num_scored > 0 ? static_cast<int>(random() % 700) : 0;
  s.prompt_len = static_cast<int>(random() % static_cast<uint32_t>(s.num_slots));
  s.rope_scale = pick({0, 1}) == 0 ? 1.0 : 1.25;
  s.rotary_dim = pick({0, 0, 1}) == 0 ? s.head_dim : s.head_dim / 2;
  return s;
}

class CompressFixture {
 public:
  explicit CompressFixture(const Shape& shape) : shape_(shape), random_(shape.seed) {
    if (shape_.rotary_dim == 0) shape_.rotary_dim = shape_.head_dim;
    const int b = shape.block_size;
    const int blocks = (shape.num_slots + b - 1) / b;
    geometry_ = {.num_layers = shape.num_layers,
                 .num_blocks = 2 * blocks + 8,
                 .block_size = b,
                 .num_kv_heads = shape.num_kv_heads,
                 .head_dim = shape.head_dim};
    allocate();
    std::vector<int32_t> ids(static_cast<size_t>(geometry_.num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    table_.assign(ids.begin(), ids.begin() + blocks);
    unused_.assign(ids.begin() + blocks, ids.end());
    fill_sequence();
  }

  const Shape& shape() const { return shape_; }
  const oracle::Sequence& sequence() const { return sequence_; }
  oracle::Sequence& mutable_sequence() { return sequence_; }  // follow with write_slot()
  const KvPool& pool() const { return pool_; }
  const QueryRing& ring() const { return ring_; }
  const std::vector<int32_t>& table() const { return table_; }
  const std::vector<int32_t>& unused() const { return unused_; }  // blocks outside the table
  const float* cos_sin() const { return cos_sin_.data(); }
  static constexpr int kQuerySlot = 1;

  CompressionSource source() const {
    return {.kv = pool_,
            .source_blocks = table_.data(),
            .num_slots = shape_.num_slots,
            .num_scored = shape_.num_scored,
            .first_position = sequence_.logical_len - (shape_.num_slots - shape_.num_scored),
            .prompt_len = shape_.prompt_len};
  }
  int64_t heads() const { return int64_t{shape_.num_layers} * shape_.num_kv_heads; }
  std::vector<float> per_slot() const {
    return std::vector<float>(static_cast<size_t>(heads() * shape_.num_slots), NAN);
  }

  // Scores as small as those of attention are, for every head.
  std::vector<float> random_scores() const {
    std::mt19937 random(shape_.seed);
    std::vector<float> scores = per_slot();
    for (float& s : scores) s = static_cast<float>(random() % 1000) / 20000.0F;
    return scores;
  }
  // Head `task` of [num_layers, num_kv_heads], and its part of per_slot().
  const oracle::Head& head(int64_t task) const {
    return sequence_
        .heads[static_cast<size_t>(task / shape_.num_kv_heads)][static_cast<size_t>(task % shape_.num_kv_heads)];
  }
  oracle::Row row(const std::vector<float>& values, int64_t task) const {
    const auto begin = values.begin() + task * shape_.num_slots;
    return {begin, begin + shape_.num_slots};
  }

  // All bytes of one block: K, V, scores and positions of every layer.
  std::vector<std::byte> block_bytes(int32_t block) const {
    std::vector<std::byte> out;
    for (int layer = 0; layer < geometry_.num_layers; ++layer) {
      const cpu::KvLayerView view(pool_, layer);
      const auto append = [&](const void* p, size_t n) {
        out.insert(out.end(), static_cast<const std::byte*>(p), static_cast<const std::byte*>(p) + n);
      };
      append(view.keys(block, 0), cpu::kv_block_bytes(geometry_));
      const size_t slots = static_cast<size_t>(geometry_.num_kv_heads * geometry_.block_size);
      append(view.scores(block, 0), slots * sizeof(float));
      append(view.positions(block, 0), slots * sizeof(int32_t));
    }
    return out;
  }

  // Writes slot t of the oracle's sequence (grown by the caller) into the pool.
  void write_slot(int layer, int head, int t, int block, int slot) {
    const oracle::Head& h = sequence_.heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
    const cpu::KvLayerView view(pool_, layer);
    const std::vector<float> k(h.k[static_cast<size_t>(t)].begin(), h.k[static_cast<size_t>(t)].end());
    const std::vector<float> v(h.v[static_cast<size_t>(t)].begin(), h.v[static_cast<size_t>(t)].end());
    view.write_key(block, head, slot, k.data());
    view.write_value(block, head, slot, v.data());
  }

  // Appends tokens with new positions to the sequence: `table` must have room. The window's queries become new ones.
  void append(int tokens) {
    for (int i = 0; i < tokens; ++i) {
      const int t = sequence_.num_slots++;
      const int position = sequence_.logical_len++;
      for (int layer = 0; layer < shape_.num_layers; ++layer) {
        for (int head = 0; head < shape_.num_kv_heads; ++head) {
          push_slot(layer, head, position);
          write_slot(layer, head, t, table_[static_cast<size_t>(t / shape_.block_size)], t % shape_.block_size);
        }
      }
    }
    shape_.num_slots = sequence_.num_slots;
    make_queries();
  }

  // After a compression: the oracle's sequence becomes what was kept (per head), S becomes `previous`.
  void become(const std::vector<std::vector<std::vector<int>>>& kept,
              const std::vector<std::vector<oracle::Row>>& scores, std::vector<int32_t> table) {
    for (size_t layer = 0; layer < sequence_.heads.size(); ++layer) {
      for (size_t g = 0; g < sequence_.heads[layer].size(); ++g) {
        const oracle::Head old = sequence_.heads[layer][g];
        oracle::Head next;
        for (int t : kept[layer][g]) {
          const auto i = static_cast<size_t>(t);
          next.k.push_back(old.k[i]);
          next.v.push_back(old.v[i]);
          next.position.push_back(old.position[i]);
          next.previous.push_back(scores[layer][g].empty() ? 0 : scores[layer][g][i]);
        }
        sequence_.heads[layer][g] = std::move(next);
      }
    }
    const int budget = static_cast<int>(kept[0][0].size());
    sequence_.num_slots = sequence_.num_scored = shape_.num_slots = shape_.num_scored = budget;
    table_ = std::move(table);
  }

 private:
  void allocate() {
    const size_t bytes = static_cast<size_t>(geometry_.num_layers) * static_cast<size_t>(geometry_.num_blocks) *
                         cpu::kv_block_bytes(geometry_);
    const size_t slots = static_cast<size_t>(geometry_.num_layers) * static_cast<size_t>(geometry_.num_blocks) *
                         static_cast<size_t>(geometry_.num_kv_heads * geometry_.block_size);
    data_.assign(bytes / sizeof(uint16_t), 0x7fc0);  // NaN
    scores_.assign(slots, NAN);
    positions_.assign(slots, -1000000);
    pool_ = {.geometry = geometry_,
             .data = reinterpret_cast<std::byte*>(data_.data()),
             .scores = scores_.data(),
             .positions = positions_.data()};
  }

  double gauss() { return std::normal_distribution<double>()(random_); }
  static double rounded(double x) { return static_cast<float>(Bf16(static_cast<float>(x))); }

  // Content made of a common direction, one of a few recurring directions and noise, then turned to its position.
  oracle::Row make_key(int position) {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    if (directions_.empty()) {
      for (int i = 0; i < 9; ++i) {
        oracle::Row direction(dim);
        for (double& x : direction) x = gauss();
        directions_.push_back(direction);
      }
    }
    oracle::Row k(dim);
    if (random_() % 97 == 0) return k;  // a key of length 0
    const oracle::Row& mine = directions_[1 + random_() % 8];
    const double strength = 2.0 * static_cast<double>(random_() % 100) / 100;
    for (size_t d = 0; d < dim; ++d) k[d] = 0.7 * directions_[0][d] + strength * mine[d] + 0.8 * gauss();
    const auto half = static_cast<size_t>(shape_.rotary_dim) / 2;
    for (size_t j = 0; j < half; ++j) {
      const double angle = position / std::pow(sequence_.theta, 2.0 * static_cast<double>(j) / shape_.rotary_dim);
      const double x = k[j], y = k[j + half];
      k[j] = (x * std::cos(angle) - y * std::sin(angle)) * shape_.rope_scale;
      k[j + half] = (y * std::cos(angle) + x * std::sin(angle)) * shape_.rope_scale;
    }
    for (double& x : k) x = rounded(x);
    return k;
  }

  void push_slot(int layer, int head, int position) {
    oracle::Head& h = sequence_.heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
    h.k.push_back(make_key(position));
    oracle::Row v(static_cast<size_t>(shape_.head_dim));
    for (double& x : v) x = rounded(gauss());
    h.v.push_back(std::move(v));
    h.position.push_back(position);
    h.previous.push_back(0);
  }

  void make_queries() {
    const int window = shape_.window;
    const int num_heads = sequence_.num_heads;
    sequence_.q.assign(static_cast<size_t>(shape_.num_layers), {});
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      auto& rows = sequence_.q[static_cast<size_t>(layer)];
      rows.clear();
      // Earlier tokens' queries have left the ring.
      const int newest = (sequence_.logical_len - 1) / shape_.query_stride;
      for (int index = std::max(newest - window + 1, 0); index <= newest; ++index) {
        rows.emplace_back(static_cast<size_t>(num_heads));
        const int ring_row = index % window;
        for (int h = 0; h < num_heads; ++h) {
          oracle::Row q(static_cast<size_t>(shape_.head_dim));
          float* target =
              ring_data_.data() +
              ((((int64_t{layer} * ring_.num_query_slots + kQuerySlot) * window + ring_row) * num_heads + h) *
               shape_.head_dim);
          for (size_t d = 0; d < q.size(); ++d) {
            target[d] = static_cast<float>(gauss());
            q[d] = target[d];
          }
          rows.back()[static_cast<size_t>(h)] = std::move(q);
        }
      }
    }
  }

  void fill_sequence() {
    sequence_.num_slots = shape_.num_slots;
    sequence_.num_scored = shape_.num_scored;
    sequence_.logical_len = shape_.num_slots + shape_.evicted;
    sequence_.prompt_len = shape_.prompt_len;
    sequence_.window = shape_.window;
    sequence_.query_stride = shape_.query_stride;
    sequence_.num_heads = shape_.group * shape_.num_kv_heads;
    sequence_.head_dim = shape_.head_dim;
    sequence_.rotary_dim = shape_.rotary_dim;
    sequence_.rope_scale = shape_.rope_scale;
    sequence_.scale = 1.0 / std::sqrt(shape_.head_dim);
    sequence_.heads.assign(static_cast<size_t>(shape_.num_layers),
                           std::vector<oracle::Head>(static_cast<size_t>(shape_.num_kv_heads)));
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int head = 0; head < shape_.num_kv_heads; ++head) fill_head(layer, head);
    }
    ring_ = {.data = nullptr, .num_query_slots = 3, .window = shape_.window, .stride = shape_.query_stride};
    ring_data_.assign(static_cast<size_t>(shape_.num_layers * ring_.num_query_slots * shape_.window *
                                          sequence_.num_heads * shape_.head_dim),
                      NAN);
    ring_.data = ring_data_.data();
    make_queries();
    make_table(sequence_.logical_len + 4096);
  }

  void fill_head(int layer, int head) {
    // Kept slots: any ascending positions before the first new one, different for each head.
    std::set<int> kept;
    const int first_new = sequence_.logical_len - (shape_.num_slots - shape_.num_scored);
    while (static_cast<int>(kept.size()) < shape_.num_scored) {
      kept.insert(static_cast<int>(random_() % static_cast<uint32_t>(first_new)));
    }
    for (int position : kept) push_slot(layer, head, position);
    for (int position = first_new; position < sequence_.logical_len; ++position) push_slot(layer, head, position);
    oracle::Head& h = sequence_.heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
    const cpu::KvLayerView view(pool_, layer);
    for (int t = 0; t < shape_.num_slots; ++t) {
      const int block = table_[static_cast<size_t>(t / shape_.block_size)];
      const int slot = t % shape_.block_size;
      write_slot(layer, head, t, block, slot);
      if (t >= shape_.num_scored) continue;
      const auto score = static_cast<float>(random_() % 1000) / 20000.0F;
      h.previous[static_cast<size_t>(t)] = score;
      view.scores(block, head)[slot] = score;
      view.positions(block, head)[slot] = h.position[static_cast<size_t>(t)];
    }
  }

  void make_table(int positions) {
    const int half = shape_.rotary_dim / 2;
    cos_sin_.resize(static_cast<size_t>(positions) * static_cast<size_t>(shape_.rotary_dim));
    for (int p = 0; p < positions; ++p) {
      for (int j = 0; j < half; ++j) {
        const double angle = p / std::pow(sequence_.theta, 2.0 * j / shape_.rotary_dim);
        float* line = cos_sin_.data() + int64_t{p} * shape_.rotary_dim;
        line[j] = static_cast<float>(std::cos(angle) * shape_.rope_scale);
        line[j + half] = static_cast<float>(std::sin(angle) * shape_.rope_scale);
      }
    }
  }

  Shape shape_;
  std::mt19937 random_;
  KvGeometry geometry_;
  KvPool pool_;
  QueryRing ring_;
  oracle::Sequence sequence_;
  std::vector<oracle::Row> directions_;
  std::vector<uint16_t> data_;
  std::vector<float> scores_, ring_data_, cos_sin_;
  std::vector<int32_t> positions_, table_, unused_;
};

}  // namespace zipage::test
