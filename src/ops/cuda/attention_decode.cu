// Paged decode attention: one query token a sequence, limited by how fast K and V are read.
//
// All (sequence, KV head) units, cut into tiles of 16 slots, form one line of work, in which the end of a unit counts
// as some tiles too (+): a block with many short sequences would be the last otherwise. Each block takes an equal
// piece (but where there are few and short units, each of which one block takes):
//
//      |+-- unit 0 ---|+------ unit 1 -------|+- unit 2 --| ...       unit = sequence * num_kv_heads + head
//      |---- block 0 ----|---- block 1 ----|---- block 2 ----|
//
// The pieces follow from seq_lens inside the kernel, so a captured graph stays right when lengths change. Within a
// block every warp has tiles of its own and a pipeline of its own that runs on across units: no barrier stands between
// memory and the next load. A unit that one block holds alone is finished there; of a shared unit each block leaves a
// partial result, and the block that arrives last merges them in the order of the blocks.
//
// A tile's scores are computed transposed, S^T = K Q^T and O^T += V^T P^T, so that the 16 rows of a tensor-core tile
// are slots and the 8 columns the query heads of the group: nothing is padded up to 16 query rows.
#include "ops/cuda/attention_decode.cuh"

namespace zipage::cuda {
namespace {

// ---- kernels ----

constexpr int kWholeTiles = 6;  // a warp; to bring a unit's parts together takes about as long

// Few short units: each is one block's.
__device__ bool units_stay_whole(const int* first, int num_seqs, int num_kv_heads, int longest) {
  bool whole = num_seqs * num_kv_heads <= static_cast<int>(gridDim.x);
  for (int seq = 0; whole && seq < num_seqs; ++seq) whole = first[seq + 1] - first[seq] <= longest;
  return whole;
}
__device__ Piece unit_piece(const int* first, int num_seqs, int num_kv_heads) {
  const int seq = static_cast<int>(blockIdx.x) / num_kv_heads, head = static_cast<int>(blockIdx.x) % num_kv_heads;
  if (seq >= num_seqs) return {0, 0};
  const int size = first[seq + 1] - first[seq], begin = first[seq] * num_kv_heads + head * size;
  return {begin, begin + size};
}

template <bool kFp8, int kHeadDim, int kHeadTiles, bool kAppends>
__global__ void __launch_bounds__(DecodeShape<kFp8, kHeadDim, kHeadTiles>::kWarps* kWarpSize, 1)
    decode_kernel(const __grid_constant__ DecodeArgs a) {
  using S = DecodeShape<kFp8, kHeadDim, kHeadTiles>;
  constexpr int kChunks = S::kRowBytes / 16;
  constexpr int kUnitCost = S::kUnitCost;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ int warp_sums[kMaxWarps];
  __shared__ int is_last;
  const int warps = blockDim.x / kWarpSize, warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int num_kv_heads = a.kv.num_kv_heads;

  std::byte* stages = shared + warp * S::kStages * S::kStageBytes;
  auto* merge_out = reinterpret_cast<float*>(shared + warps * S::kStages * S::kStageBytes);  // [warps, group, head_dim]
  auto* merge_stats = reinterpret_cast<float2*>(merge_out + warps * a.group * kHeadDim);     // [warps, group]
  int* first_tile = reinterpret_cast<int*>(merge_stats + warps * a.group);                   // [num_seqs + 1]
  // Lengths and tables are uploaded before a step, and of a sequence's K and V the step writes the last slot alone: the
  // split is made and the first tiles are fetched while the kernel before this one drains.
  let_next_start();
  int* positions = first_tile + a.num_seqs + 1;  // with an append [num_seqs]
  if constexpr (kAppends) {
    for (int i = threadIdx.x; i < a.num_seqs; i += blockDim.x) positions[i] = a.append.positions[i];
  }
  sum_tiles<kTile, kUnitCost>(a.seq_lens, a.num_seqs, first_tile, warp_sums);

  const int total = first_tile[a.num_seqs] * num_kv_heads;
  const int per_block = max(ceil_div(total, static_cast<int>(gridDim.x)), warps);
  const bool whole = units_stay_whole(first_tile, a.num_seqs, num_kv_heads, kUnitCost + kWholeTiles * warps);
  const Piece piece = whole ? unit_piece(first_tile, a.num_seqs, num_kv_heads) : equal_piece(total, per_block);
  // Of the segment's first tile in the line.
  Cursor<kUnitCost> load;
  int load_position = piece.end;
  if (piece.begin < piece.end) load_position = load.seek(first_tile, a.num_seqs, num_kv_heads, piece.begin, a.seq_lens);
  if (load_position >= piece.end) {
    // A block without work leaves its multiprocessor to the next kernel at once; one block always stays, so that this
    // kernel does not end before the one before it.
    bool pads = a.query_start_loc[a.num_batch_seqs] + static_cast<int>(blockIdx.x) < a.num_tokens;
    for (int seq = blockIdx.x; seq < a.num_seqs; seq += gridDim.x) pads |= first_tile[seq + 1] == first_tile[seq];
    if (!pads && blockIdx.x != 0) return;
    wait_till_previous_ended();
    return clear_padding<kHeadDim>(a, first_tile, blockDim.x);
  }

  // The warp's tiles of a unit segment are first + warp, + warps, ...: the loader walks them ahead of the arithmetic.
  int position = load_position;
  Cursor<kUnitCost> unit = load;
  int load_tile = load.tile + warp;  // within the unit
  int load_segment_end = min(load.num_tiles, load.tile + piece.end - load_position);
  int table_base = -1;  // block-table entries that the lanes hold
  int table_entry = 0;
  const int tiles_per_block = a.kv.block_size / kTile;

  const auto next_segment = [&] {  // false at the end of the piece
    load_position += load_segment_end - load.tile + kUnitCost;
    if (load_position >= piece.end) return false;
    if (load.next_unit(first_tile, num_kv_heads, a.seq_lens)) table_base = -1;
    load_tile = warp;
    load_segment_end = min(load.num_tiles, piece.end - load_position);
    return true;
  };
  const uint64_t policy = evict_first();  // what is read once a step leaves the cache to what is read again
  bool loading = true, waited = false;
  int load_stage = 0;
  const auto issue = [&] {  // the warp's next tile, if any is left, as one group of copies
    while (loading && load_tile >= load_segment_end) loading = next_segment();
    if (loading) {
      if (!kAppends && !waited && (load_tile + 1) * kTile >= load.seq_len) {
        wait_till_previous_ended();
        waited = true;
      }
      const int block = load_tile / tiles_per_block;
      if (table_base < 0 || block < table_base || block >= table_base + kWarpSize) {
        table_base = block;
        const int entry = min(block + lane, a.max_blocks_per_seq - 1);
        table_entry = a.block_table[int64_t{load.seq} * a.max_blocks_per_seq + entry];
      }
      const int64_t id = __shfl_sync(kFullMask, table_entry, block - table_base);
      const std::byte* from = a.kv.key_row(a.layer, id, load.head, (load_tile % tiles_per_block) * kTile);
      const uint32_t to = shared_address(stages + load_stage * S::kStageBytes);
      const int valid = load.seq_len - load_tile * kTile - (kAppends ? 1 : 0);  // the last slot is appended
#pragma unroll
      for (int i = 0; i < kTile * kChunks / kWarpSize; ++i) {
        const int chunk = i * kWarpSize + lane, row = chunk / kChunks;
        const uint32_t at = to + swizzle<S::kRowBytes>(row, chunk % kChunks);
        // Slots past the end may hold anything, NaN too: they are read as zeros.
        copy_async16(at, from + chunk * 16, row < valid, policy);
        copy_async16(at + kTile * S::kRowBytes, from + a.kv.value_offset + chunk * 16, row < valid, policy);
      }
      load_tile += warps;
    }
    load_stage = load_stage + 1 == S::kStages ? 0 : load_stage + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) issue();
  DecodeWarp<kFp8, kHeadDim, kHeadTiles> state;
  if constexpr (kAppends) {
    state.prefetch_norms(a);
    state.prefetch_angles(a, positions[unit.seq]);
  }
  wait_till_previous_ended();
  waited = true;

  // Whether the warp has the last tile of the unit, which holds the new slot.
  const auto appends = [&](int at) {
    const int last = unit.num_tiles - 1;
    return last < unit.tile + piece.end - at && (last - unit.tile) % warps == warp;
  };
  const auto load_unit = [&](int at) {
    state.load_query(a, unit.seq, unit.head);
    if constexpr (kAppends) {
      if (appends(at)) state.load_slot(a, unit.seq, unit.head);
      state.prefetch_angles(a, positions[unit.seq]);
    }
  };
  load_unit(position);
  clear_padding<kHeadDim>(a, first_tile, blockDim.x);
  int stage = 0;
  while (position < piece.end) {
    const int segment_end = min(unit.num_tiles, unit.tile + piece.end - position);
    if constexpr (kAppends) {
      const bool mine = appends(position);
      if (mine) state.append_slot(a, unit.seq, unit.head, positions[unit.seq]);
      state.rotate_query(a, unit.seq, unit.head, positions[unit.seq], mine);
    }
    if constexpr (kFp8) state.convert_query();
    state.scale_log2 = a.scale * kLog2e * (kFp8 ? a.k_scale[a.layer * num_kv_heads + unit.head] : 1.0F);
    state.reset();
    for (int tile = unit.tile + warp; tile < segment_end; tile += warps) {
      issue();
      copy_wait<S::kStages - 1>();
      __syncwarp();
      std::byte* tiles = stages + stage * S::kStageBytes;
      if (kAppends && (tile + 1) * kTile >= unit.seq_len) {
        state.place_slot((unit.seq_len - 1) % kTile, tiles, tiles + kTile * S::kRowBytes);
        __syncwarp();
      }
      const uint32_t keys = shared_address(tiles);
      state.compute(keys, keys + kTile * S::kRowBytes, unit.seq_len - tile * kTile);
      __syncwarp();  // every lane has read the stage before it is filled again
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }

    // The next unit's queries are on their way while this one is finished.
    const Cursor<kUnitCost> finished = unit;
    const int next_position = position + segment_end - unit.tile + kUnitCost;
    if (next_position < piece.end) {
      unit.next_unit(first_tile, num_kv_heads, a.seq_lens);
      load_unit(next_position);
    }
    state.leave(merge_out + warp * a.group * kHeadDim, merge_stats + warp * a.group, a.group);
    __syncthreads();
    const float v_scale = kFp8 ? a.v_scale[a.layer * num_kv_heads + finished.head] : 1.0F;
    const UnitEnd end = end_of<kHeadDim>(a, finished, piece, position, per_block, v_scale);
    const auto own = [&](int i, int head) {
      Merged merged;
      for (int w = 0; w < warps; ++w)
        merged.add(merge_stats[w * a.group + head], merge_out[w * a.group * kHeadDim + i]);
      return merged;
    };
    finish_unit<kHeadDim>(
        end, whole || end.first_block == end.last_block, threadIdx.x, blockDim.x, own, [] { __syncthreads(); },
        is_last);
    __syncthreads();  // merge_out is free again

    position = next_position;
  }
}

}  // namespace

// ---- launcher ----

namespace {

template <bool kFp8, int kHeadDim, int kHeadTiles>
void launch_decode(const Launch& launch, const DecodeArgs& a) {
  using S = DecodeShape<kFp8, kHeadDim, kHeadTiles>;
  const int fixed = (2 * a.num_seqs + 1) * static_cast<int>(sizeof(int)) + 16;
  const int per_warp = S::kStages * S::kStageBytes +
                       a.group * (kHeadDim * static_cast<int>(sizeof(float)) + static_cast<int>(sizeof(float2)));
  int warps = S::kWarps;
  while (warps > 1 && warps * per_warp + fixed > launch.max_shared_bytes) --warps;
  const int bytes = warps * per_warp + fixed;
  const auto kernel = a.append.positions != nullptr ? decode_kernel<kFp8, kHeadDim, kHeadTiles, true>
                                                    : decode_kernel<kFp8, kHeadDim, kHeadTiles, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention_decode");
  run(launch, kernel, launch.num_sms, warps * kWarpSize, bytes, a);
}

template <bool kFp8, int kHeadDim>
void launch_group(const Launch& launch, const DecodeArgs& a) {
  if (a.group <= kHeadsPerTile) {
    launch_decode<kFp8, kHeadDim, 1>(launch, a);
  } else {
    launch_decode<kFp8, kHeadDim, 2>(launch, a);
  }
}

}  // namespace

size_t attention_decode_scratch_bytes(int num_sms, int group, int head_dim) {
  return 2 * static_cast<size_t>(num_sms) * group * (head_dim * sizeof(float) + sizeof(float2));
}

// With more, warps that prepare queries wait in front of every sequence's tiles: a kernel of its own is faster then.
bool serves_append(const Launch& launch, const QkvRopeAppendParams& p) {
  const KvGeometry& g = p.kv.geometry;
  return p.batch.num_decodes == p.batch.num_seqs && p.rotary_dim == g.head_dim &&
         2 * p.batch.num_seqs * g.num_kv_heads <= launch.num_sms;
}

void attention_decode(const Launch& launch, const AttentionParams& p, const QkvRopeAppendParams* append) {
  const KvGeometry& g = p.kv.geometry;
  DecodeArgs a{};
  a.q = static_cast<const bf16*>(p.q.data);
  a.q_stride = p.q.stride;
  a.out = static_cast<bf16*>(p.out.data);
  a.out_stride = p.out.stride;
  a.num_seqs = p.batch.num_decodes;
  a.num_heads = p.num_heads;
  a.group = p.num_heads / g.num_kv_heads;
  a.layer = p.layer;
  a.max_blocks_per_seq = p.batch.max_blocks_per_seq;
  a.num_tokens = p.batch.num_tokens;
  a.num_batch_seqs = p.batch.num_seqs;
  a.scale = p.scale;
  a.query_start_loc = p.batch.query_start_loc;
  a.seq_lens = p.batch.seq_lens;
  a.block_table = p.batch.block_table;
  a.kv = KvLayout(p.kv);
  a.k_scale = p.kv.k_scale;
  a.v_scale = p.kv.v_scale;
  a.partial_stats = reinterpret_cast<float2*>(launch.scratch);
  a.partial_out = reinterpret_cast<float*>(a.partial_stats + 2 * static_cast<size_t>(launch.num_sms) * a.group);
  a.counters = launch.counters;
  if (append == nullptr && serves_decode_hopper(launch, p)) return attention_decode_hopper(launch, p, a);
  if (append != nullptr) {
    a.append = {.q_norm = append->q_norm,
                .k_norm = append->k_norm,
                .cos_sin = append->cos_sin,
                .eps = append->norm_eps,
                .positions = append->batch.positions,
                .slot_mapping = append->batch.slot_mapping,
                .ring_rows = append->batch.query_ring_rows,
                .ring = static_cast<bf16*>(append->ring.data),
                .num_ring_rows = append->ring.num_query_slots * append->ring.window};
  }
  dispatch<64, 96, 128, 256>(g.head_dim, [&]<int kHeadDim>() {
    if (a.kv.is_fp8) {
      launch_group<true, kHeadDim>(launch, a);
    } else {
      launch_group<false, kHeadDim>(launch, a);
    }
  });
}

}  // namespace zipage::cuda
