// Paged decode attention on Hopper. That there are no padded query rows, and how the work is cut, is as in
// attention_decode.cu (but for units that stay whole there); but who fetches does nothing else, so that memory is kept
// busy at the ends of units too, and tiles of 64 slots are multiplied where they lie
// (docs/decisions/0013-gpu-decode-attention.md).
//
// Four warps fetch a tile each, two warpgroups take tiles in turn. Of a tile, S^T [slots, heads] = K Q^T, then O^T
// [head_dim, heads] += V^T P^T with P^T through shared memory. All of a warpgroup share a reference that scores are
// relative to, no more than kSlack below the largest one so far: a barrier that P needs anyway tells whether it must
// grow, which is rare behind a unit's first tiles.
#include <algorithm>

#include "ops/cuda/attention_decode_line.cuh"
#include "ops/cuda/hopper.cuh"

// Compiled for other machines, the kernel is empty and what it calls has no caller.
#pragma nv_diag_suppress 177

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kGroups = 2;          // warpgroups that multiply
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroupWarps = kGroupThreads / kWarpSize;
constexpr int kConsumers = kGroups * kGroupThreads;
constexpr int kThreads = kConsumers + kGroupThreads;
constexpr int kFetchers = 4;  // a warp each
constexpr int kFetcherThreads = kGroupThreads / kFetchers;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSlots = 64;                 // a tile
constexpr int kHeads = 8;                  // a group at most
constexpr int kPanelBytes = kSlots * 128;  // 64 columns of a tile
constexpr int kQueryPanelBytes = kHeads * 128;
constexpr int kProbabilityBytes = kSlots * kHeads * 2;
constexpr float kSlack = 8.0F;
constexpr int kMaxStages = 12;
constexpr int kStageBytesTogether = 192 * 1024;
constexpr int kMaxSeqs = 16384;                 // whose places in the line lie beside the fewest stages
constexpr int kConsumersBarrier = 1 + kGroups;  // before it those of the warpgroups

template <int kHeadDim>
struct Shape {
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;  // K, V
  static constexpr int kUnitCost = kUnitBytes / kStageBytes;
  static constexpr int kQueryBytes = kPanels * kQueryPanelBytes;
};

struct Args {
  DecodeArgs decode;
  int stages;
};

// Of a warpgroup, [heads], and what its warps have to say to each other.
struct Stats {
  float reference[kGroups][kHeads];
  float of_warps[kGroups][kGroupWarps][kHeads];  // maxima, in the end sums
};

struct Shared {
  uint64_t full[kMaxStages], free[kMaxStages];
  Stats stats;
  int warp_sums[kWarps];
  int is_last;
};

// ---- kernels ----

// Tiles of K and V, as stages become free: a few warps take every kFetchers-th tile. A thread takes 16 bytes of a row
// at a time, to where the copy engine's permutation would put them.
template <int kHeadDim>
__device__ void fetch(const Args& args, const int* first_tile, const Piece& piece, int position,
                      Cursor<Shape<kHeadDim>::kUnitCost> unit, std::byte* stages, Shared& shared) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8, kRowsAtOnce = kFetcherThreads / kChunks, kRounds = kSlots / kRowsAtOnce;
  const DecodeArgs& a = args.decode;
  const int fetcher = static_cast<int>(threadIdx.x) % kGroupThreads / kFetcherThreads;
  const int thread = threadIdx.x % kFetcherThreads, chunk = thread % kChunks, first_row = thread / kChunks;
  const int num_kv_heads = a.kv.num_kv_heads, block_size = a.kv.block_size;
  const bool whole_blocks = block_size % kSlots == 0;
  const int at = chunk / 8 * kPanelBytes + first_row * 128, permuted = (chunk ^ first_row) & 7;
  const uint64_t policy = evict_first();  // what is read once a step leaves the cache to what is read again
  Turn turn{.stage = fetcher};
  bool waited = false;
  int next_tile = fetcher, seen = 0;  // of the block's tiles: the next one to fetch, those before the segment
  // Lines of the block table of this sequence and the next one: what is not near takes as long as all that memory has
  // been asked for before.
  const auto prefetch_tables = [&] {
    constexpr int kLine = 32;  // entries
    if (threadIdx.x % kGroupThreads >= kWarpSize) return;
    const int lane = threadIdx.x % kWarpSize;
    const int32_t* line = a.block_table + int64_t{unit.seq} * a.max_blocks_per_seq + lane * kLine;
    for (int seq = unit.seq; seq < min(unit.seq + 2, a.num_seqs); ++seq, line += a.max_blocks_per_seq) {
      if (lane * kLine < a.max_blocks_per_seq) prefetch_near(line);
    }
  };
#pragma unroll 1
  while (position < piece.end) {
    prefetch_tables();
    const int segment_end = min(unit.num_tiles, unit.tile + piece.end - position);
    const int32_t* table = a.block_table + int64_t{unit.seq} * a.max_blocks_per_seq;
#pragma unroll 1
    for (int tile = unit.tile + next_tile - seen; tile < segment_end; tile += kFetchers, next_tile += kFetchers) {
      if (!waited && (tile + 1) * kSlots >= unit.seq_len) {
        wait_till_previous_ended();
        waited = true;
      }
      const uint32_t to = shared_address(stages + turn.stage * S::kStageBytes) + at;
      const int valid = unit.seq_len - tile * kSlots - first_row;
      // Slots past the end may hold anything, NaN too: they are read as zeros.
      const auto copy = [&](int round, const std::byte* from) {
        const bool counts = round * kRowsAtOnce < valid;
        const uint32_t place = to + round * kRowsAtOnce * 128 + (permuted ^ (round * kRowsAtOnce & 7)) * 16;
        copy_async16(place, from, counts, policy);
        copy_async16(place + S::kTileBytes, from + a.kv.value_offset, counts, policy);
      };
      const auto row = [&](int slot) {  // block tables end with the sequence
        const int id = slot < unit.seq_len ? table[slot / block_size] : 0;
        return a.kv.key_row(a.layer, id, unit.head, slot % block_size) + chunk * 16;
      };
      const std::byte* from = whole_blocks ? row(tile * kSlots) + first_row * kHeadDim * 2 : nullptr;
      barrier_wait(&shared.free[turn.stage], turn.phase ^ 1);
      if (whole_blocks) {
#pragma unroll
        for (int i = 0; i < kRounds; ++i) copy(i, from + i * kRowsAtOnce * kHeadDim * 2);
      } else {
#pragma unroll
        for (int i = 0; i < kRounds; ++i) copy(i, row(tile * kSlots + i * kRowsAtOnce + first_row));
      }
      copy_async_arrive(&shared.full[turn.stage]);
      turn.advance(args.stages, kFetchers);
    }
    seen += segment_end - unit.tile;
    position += segment_end - unit.tile + S::kUnitCost;
    if (position < piece.end) unit.next_unit(first_tile, num_kv_heads, a.seq_lens);
  }
  copy_wait_all();
}

// A thread's part of what a warpgroup works out: of the slots (or elements) lane / 4 and lane / 4 + 8 of its warp's 16,
// the heads 2 (lane % 4) and the next one.
template <int kHeadDim>
struct Unit {
  using S = Shape<kHeadDim>;

  float out[S::kPanels][4];  // O^T
  float reference[2], sum[2];

  __device__ void reset() {
    reference[0] = reference[1] = -INFINITY;
    sum[0] = sum[1] = 0.0F;
#pragma unroll
    for (int h = 0; h < S::kPanels; ++h) out[h][0] = out[h][1] = out[h][2] = out[h][3] = 0.0F;
  }

  // One tile, of which `valid` slots count.
  __device__ void add(uint32_t keys, uint32_t queries, uint32_t probabilities, int valid, float scale_log2, int group,
                      Stats& stats) {
    const int thread = threadIdx.x % kGroupThreads, lane = thread % kWarpSize, warp = thread / kWarpSize;
    const uint32_t values = keys + S::kTileBytes;
    float s[4];
    product_begin();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const int inside = k % 4 * 32;
      product_ss<false>(s, operand(keys + k / 4 * kPanelBytes + inside, 16, 1024),
                        operand(queries + k / 4 * kQueryPanelBytes + inside, 16, 1024), k > 0);
    }
    product_commit();
    product_wait<0>();
    pin(s);

    const int slot = warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = slot + i / 2 * 8 < valid ? s[i] * scale_log2 : -INFINITY;
    const bool grows = fmaxf(s[0], s[2]) > reference[0] + kSlack || fmaxf(s[1], s[3]) > reference[1] + kSlack;
    float p[4];
    weigh(s, p, probabilities);
    if (any_of_threads(1 + group, kGroupThreads, grows)) {
      grow(s, stats.of_warps[group], group);
      weigh(s, p, probabilities);
      sync_threads(1 + group, kGroupThreads);
    }
    sum[0] += p[0] + p[2];
    sum[1] += p[1] + p[3];

    product_begin();
#pragma unroll
    for (int k = 0; k < kSlots / 16; ++k) {
#pragma unroll
      for (int h = 0; h < S::kPanels; ++h) {
        product_ss<true>(out[h], operand(values + h * kPanelBytes + k * 16 * 128, kPanelBytes, 1024),
                         narrow_operand(probabilities + k * 16 * kHeads * 2), true);
      }
    }
    product_commit();
    product_wait<0>();
#pragma unroll
    for (int h = 0; h < S::kPanels; ++h) pin(out[h]);
  }

  // p = 2^(s - reference), into shared memory as the second product reads it.
  __device__ void weigh(const float (&s)[4], float (&p)[4], uint32_t probabilities) const {
    const int thread = threadIdx.x % kGroupThreads, lane = thread % kWarpSize, warp = thread / kWarpSize;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float r = reference[i % 2];
      p[i] = exp2_fast(s[i] - (r == -INFINITY ? 0.0F : r));
    }
    const uint32_t to = probabilities + (warp * 16 + lane / 4) * kHeads * 2 + lane % 4 * 4;
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(pack(p[0], p[1])) : "memory");
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to + 8 * kHeads * 2), "r"(pack(p[2], p[3])) : "memory");
    fence_async_proxy();
  }

  // The reference becomes the tile's largest score where that is larger.
  __device__ void grow(const float (&s)[4], float (&of_warps)[kGroupWarps][kHeads], int group) {
    const int thread = threadIdx.x % kGroupThreads, lane = thread % kWarpSize, warp = thread / kWarpSize;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float m = fmaxf(s[c], s[c + 2]);
#pragma unroll
      for (int offset = 4; offset < kWarpSize; offset <<= 1) m = fmaxf(m, __shfl_xor_sync(kFullMask, m, offset));
      if (lane < 4) of_warps[warp][2 * lane + c] = m;
    }
    sync_threads(1 + group, kGroupThreads);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float next = reference[c];
#pragma unroll
      for (int w = 0; w < kGroupWarps; ++w) next = fmaxf(next, of_warps[w][lane % 4 * 2 + c]);
      const float factor = next > reference[c] ? exp2_fast(reference[c] - next) : 1.0F;
      reference[c] = next;
      sum[c] *= factor;
#pragma unroll
      for (int h = 0; h < S::kPanels; ++h) out[h][c] *= factor, out[h][c + 2] *= factor;
    }
  }

  // The unit's share of this warpgroup into shared memory: out [group, head_dim].
  __device__ void leave(float* shared_out, Stats& stats, int group, int num_heads) const {
    const int thread = threadIdx.x % kGroupThreads, lane = thread % kWarpSize, warp = thread / kWarpSize;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float total = sum[c];
#pragma unroll
      for (int offset = 4; offset < kWarpSize; offset <<= 1) total += __shfl_xor_sync(kFullMask, total, offset);
      const int head = lane % 4 * 2 + c;
      if (lane < 4) {
        stats.of_warps[group][warp][head] = total;
        stats.reference[group][head] = reference[c];  // all warps say the same
      }
      if (head >= num_heads) continue;
#pragma unroll
      for (int h = 0; h < S::kPanels; ++h) {
        float* to = shared_out + head * kHeadDim + h * 64 + warp * 16 + lane / 4;
        to[0] = out[h][c], to[8] = out[h][c + 2];
      }
    }
  }
};

// Two warpgroups: the units of the block's piece.
template <int kHeadDim>
__device__ void attend(const Args& args, const int* first_tile, const Piece& piece, int position, int per_block,
                       Cursor<Shape<kHeadDim>::kUnitCost> unit, std::byte* stages, uint32_t queries,
                       uint32_t probabilities, float* merge_out, Shared& shared) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;  // of a query
  const DecodeArgs& a = args.decode;
  const int thread = threadIdx.x, group = thread / kGroupThreads, num_kv_heads = a.kv.num_kv_heads;
  const auto sync = [] { sync_threads(kConsumersBarrier, kConsumers); };
  const int head = thread / kChunks, chunk = thread % kChunks;  // of a query, that the thread brings
  uint4 query = make_uint4(0, 0, 0, 0);
  const auto load_query = [&](const Cursor<S::kUnitCost>& of) {
    if (head >= a.group) return;
    const bf16* from = a.q + of.seq * a.q_stride + (int64_t{of.head} * a.group + head) * kHeadDim;
    query = reinterpret_cast<const uint4*>(from)[chunk];
  };
  const auto place_query = [&] {
    if (head >= kHeads) return;
    const uint32_t to = queries + chunk / 8 * kQueryPanelBytes + head * 128 + ((chunk ^ head) & 7) * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(query.x), "r"(query.y), "r"(query.z),
                 "r"(query.w)
                 : "memory");
    fence_async_proxy();
  };
  load_query(unit);
  place_query();
  sync();

  Unit<kHeadDim> state;
  const float scale_log2 = a.scale * kLog2e;
  Turn turn{.stage = group};
  int next_tile = group, seen = 0;  // of the block's tiles: the warpgroup's next one, those before the segment
#pragma unroll 1
  while (position < piece.end) {
    const int segment_end = min(unit.num_tiles, unit.tile + piece.end - position);
    // The next unit's queries are on their way long before its turn.
    const int next_position = position + segment_end - unit.tile + S::kUnitCost;
    Cursor<S::kUnitCost> next = unit;
    if (next_position < piece.end) {
      next.next_unit(first_tile, num_kv_heads, a.seq_lens);
      load_query(next);
    }
    state.reset();
#pragma unroll 1
    for (int tile = unit.tile + next_tile - seen; tile < segment_end; tile += kGroups, next_tile += kGroups) {
      barrier_wait(&shared.full[turn.stage], turn.phase);
      fence_async_proxy();  // copies of threads are ordinary writes
      // P has two places, since a warp may still read one when another warp is at the next tile.
      const uint32_t to = probabilities + (2 * group + next_tile / kGroups % 2) * kProbabilityBytes;
      state.add(shared_address(stages + turn.stage * S::kStageBytes), queries, to, unit.seq_len - tile * kSlots,
                scale_log2, group, shared.stats);
      barrier_arrive(&shared.free[turn.stage]);
      turn.advance(args.stages, kGroups);
    }
    seen += segment_end - unit.tile;

    state.leave(merge_out + group * a.group * kHeadDim, shared.stats, group, a.group);
    sync();
    if (next_position < piece.end) place_query();
    const UnitEnd end = end_of<kHeadDim>(a, unit, piece, position, per_block, 1.0F);
    const auto own = [&](int i, int of_head) {
      Merged merged;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float total = 0.0F;
#pragma unroll
        for (int w = 0; w < kGroupWarps; ++w) total += shared.stats.of_warps[g][w][of_head];
        merged.add(make_float2(shared.stats.reference[g][of_head], total), merge_out[g * a.group * kHeadDim + i]);
      }
      return merged;
    };
    finish_unit<kHeadDim>(end, end.first_block == end.last_block, thread, kConsumers, own, sync, shared.is_last);
    sync();  // merge_out is free again, and the next queries are there
    position = next_position;
    unit = next;
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1) decode_hopper_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kHeadDim>;
  extern __shared__ std::byte unaligned[];
  __shared__ Shared shared;
  const DecodeArgs& a = args.decode;
  std::byte* stages = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  std::byte* queries = stages + args.stages * S::kStageBytes;
  std::byte* probabilities = queries + S::kQueryBytes;
  auto* merge_out = reinterpret_cast<float*>(probabilities + kGroups * 2 * kProbabilityBytes);
  int* first_tile = reinterpret_cast<int*>(merge_out + kGroups * a.group * kHeadDim);
  // Lengths and tables are uploaded before a step, and of a sequence's K and V the step writes the last slot alone: the
  // split is made and the first tiles are fetched while the kernel before this one drains.
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; ++i) {
      barrier_init(&shared.full[i], kFetcherThreads);
      barrier_init(&shared.free[i], kGroupThreads);
    }
    barrier_init_done();
  }
  sum_tiles<kSlots, S::kUnitCost>(a.seq_lens, a.num_seqs, first_tile, shared.warp_sums);

  const int total = first_tile[a.num_seqs] * a.kv.num_kv_heads;
  const int per_block = max(ceil_div(total, static_cast<int>(gridDim.x)), kGroups);
  const Piece piece = equal_piece(total, per_block);
  Cursor<S::kUnitCost> unit;
  int position = piece.end;
  if (piece.begin < piece.end) position = unit.seek(first_tile, a.num_seqs, a.kv.num_kv_heads, piece.begin, a.seq_lens);
  if (threadIdx.x >= kConsumers) {
    fetch<kHeadDim>(args, first_tile, piece, position, unit, stages, shared);
    return;
  }
  wait_till_previous_ended();
  clear_padding<kHeadDim>(a, first_tile, kConsumers);
  if (position >= piece.end) return;
  attend<kHeadDim>(args, first_tile, piece, position, per_block, unit, stages, shared_address(queries),
                   shared_address(probabilities), merge_out, shared);
#endif
}

// ---- launcher ----

template <int kHeadDim>
int shared_bytes(int stages, int group, int num_seqs) {
  using S = Shape<kHeadDim>;
  return 1024 + stages * S::kStageBytes + S::kQueryBytes + kGroups * 2 * kProbabilityBytes +
         static_cast<int>(kGroups * group * kHeadDim * sizeof(float) + (num_seqs + 1) * sizeof(int));
}

template <int kHeadDim>
void launch_decode(const Launch& launch, Args args) {
  const DecodeArgs& a = args.decode;
  args.stages = std::min(kMaxStages, kStageBytesTogether / Shape<kHeadDim>::kStageBytes);
  while (args.stages > kFetchers && shared_bytes<kHeadDim>(args.stages, a.group, a.num_seqs) > launch.max_shared_bytes)
    args.stages -= kGroups;  // so that a stage stays with its warpgroup
  const int bytes = shared_bytes<kHeadDim>(args.stages, a.group, a.num_seqs);
  check(cudaFuncSetAttribute(decode_hopper_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention_decode");
  run(launch, decode_hopper_kernel<kHeadDim>, launch.num_sms, kThreads, static_cast<size_t>(bytes), args);
}

}  // namespace

bool serves_decode_hopper(const Launch& launch, const AttentionParams& p) {
  const KvGeometry& g = p.kv.geometry;
  return launch.compute_capability == 90 && g.dtype == DType::kBF16 && (g.head_dim == 64 || g.head_dim == 128) &&
         p.num_heads / g.num_kv_heads <= kHeads && p.batch.num_decodes <= kMaxSeqs;
}

void attention_decode_hopper(const Launch& launch, const AttentionParams& p, const DecodeArgs& decode) {
  const Args args{.decode = decode, .stages = 0};
  if (p.kv.geometry.head_dim == 64) {
    launch_decode<64>(launch, args);
  } else {
    launch_decode<128>(launch, args);
  }
}

}  // namespace zipage::cuda
