// The whole sampler on the device: one block a row, nothing is sorted. Of few rows a greedy one is shared by several
// blocks, of which the last to end brings their best together.
//
// The filters come down to a least value, as on the CPU. Pass A finds the largest value and the largest of every
// thread. The k-th largest of the threads' own is no more than the k-th of all; for top_p alone, pass B sums the
// weights by bins of value and finds the bin where the share is reached. Either way a floor is known, and the next pass
// collects the few values above it: the filters and the draw run on that list. A row whose list does not fit is
// searched by bisection over all of it. Ids whose logits are changed by penalties or bias are marked in bit maps: the
// passes skip them and visit them by their lists, so the logits stay as they are.
#include <algorithm>

#include "ops/cuda/device.cuh"
#include "ops/cuda/launch.h"
#include "ops/sample_noise.h"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 1024;
constexpr int kVector = 4;  // ids a thread takes at once
constexpr int kAhead = 4;   // vectors on their way
constexpr int kBins = 1024;
constexpr float kBinsPerUnit = 32.0F;  // bins cover relative values down to -32
constexpr int kListTopK = 512;         // top_k up to here gets a list by pass A
constexpr int kMaxParts = 10;          // blocks of a greedy row: together they read 160,000 logits in one go
constexpr float kGreedyTemperature = 1e-5F;
constexpr float kWeightless = -30.0F;           // e^x of a relative value x below this rounds to no weight
constexpr float kWeightOne = 1099511627776.0F;  // 2^40: sums of weights are exact integers, so their order is no matter

struct Args {
  SampleParams p;
  int list_capacity;
  int bitmap_words;           // of each of two bit maps
  int parts;                  // blocks of a greedy row
  unsigned long long* bests;  // [rows, parts]
  int32_t* ended;             // [rows] zeros
};

struct Shared {
  float reduction[kWarpSize];
  float best_value[kWarpSize];
  int best_id[kWarpSize];
  unsigned long long sums[kWarpSize];
  unsigned long long bins[kBins];  // weights by value
  int list_size;
  int bin;
};

// ---- kernels ----

// An unsigned integer in the order of the float, -0 as 0.
__device__ uint32_t order_key(float f) {
  const uint32_t bits = __float_as_uint(f + 0.0F);
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}
__device__ float from_order_key(uint32_t key) {
  return __uint_as_float(key & 0x80000000U ? key & 0x7fffffffU : ~key);
}

// The row's logits with mask, bias and penalties.
struct Row {
  const SampleParams& p;
  const float* logits;
  const uint32_t* allowed;         // or null
  uint32_t *in_history, *in_bias;  // bit maps, or null when the row has no list
  int row, history_begin, history_end, bias_begin, bias_end;
  int part = 0, parts = 1;  // that for_each() visits, of all
  float repetition, presence, frequency;

  __device__ float raw(int id) const {
    const float x = logits[id];
    const bool open = allowed == nullptr || (allowed[id / 32] >> (id % 32) & 1U) != 0;
    return open && isfinite(x) ? x : -INFINITY;
  }
  __device__ static bool marked(const uint32_t* map, int id) {
    return map != nullptr && (map[id / 32] >> (id % 32) & 1U) != 0;
  }
  __device__ float biased(int id) const {
    float x = raw(id);
    if (marked(in_bias, id)) {
      for (int i = bias_begin; i < bias_end; ++i) x += p.bias_ids[i] == id ? p.bias_values[i] : 0.0F;
    }
    return x;
  }
  __device__ float penalised(int id, int count) const {
    float x = biased(id);
    if (x == -INFINITY) return x;
    x = x > 0.0F ? x / repetition : x * repetition;
    if (count > 0) x -= presence + frequency * static_cast<float>(count);
    return x;
  }

  __device__ void mark() const {
    const int words = (p.vocab + 31) / 32;
    for (int i = threadIdx.x; i < words; i += kThreads) {
      if (in_history != nullptr) in_history[i] = 0;
      if (in_bias != nullptr) in_bias[i] = 0;
    }
    __syncthreads();
    for (int i = history_begin + threadIdx.x; i < history_end; i += kThreads) {
      const int id = p.history_ids[i];
      if (id >= 0 && id < p.vocab) atomicOr(&in_history[id / 32], 1U << (id % 32));
    }
    for (int i = bias_begin + threadIdx.x; i < bias_end; i += kThreads) {
      const int id = p.bias_ids[i];
      if (id >= 0 && id < p.vocab) atomicOr(&in_bias[id / 32], 1U << (id % 32));
    }
    __syncthreads();
  }

  // f(id, value) for every id below vocab whose value is no less than `reach` (or, for speed, a few more), spread over
  // the block; f may raise `reach` as it learns.
  template <typename F>
  __device__ void for_each(float& reach, F&& f) const {
    const bool aligned = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    const int vectors = aligned ? p.vocab / kVector : 0;
    for (int first = part * kAhead * kThreads + static_cast<int>(threadIdx.x); first < vectors;
         first += parts * kAhead * kThreads) {
      float4 ahead[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int i = first + u * kThreads;
        ahead[u] = i < vectors ? reinterpret_cast<const float4*>(logits)[i]
                               : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        // Nearly all ids end at this comparison; it also takes out NaN.
        const int i = first + u * kThreads;
        if (!(fmaxf(fmaxf(ahead[u].x, ahead[u].y), fmaxf(ahead[u].z, ahead[u].w)) >= reach) || i >= vectors) continue;
        const float x[kVector] = {ahead[u].x, ahead[u].y, ahead[u].z, ahead[u].w};
        const int word = i * kVector / 32,
                  bit = i * kVector % 32;  // of the four ids in every bit map
        unsigned open = allowed != nullptr ? allowed[word] >> bit : ~0U;
        if (in_history != nullptr) open &= ~(in_history[word] >> bit);
        if (in_bias != nullptr) open &= ~(in_bias[word] >> bit);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          if (x[j] >= reach && (open >> j & 1U) != 0 && x[j] < INFINITY && x[j] > -INFINITY) f(i * kVector + j, x[j]);
        }
      }
    }
    if (part > 0) return;
    for (int id = vectors * kVector + threadIdx.x; id < p.vocab; id += kThreads) {
      if (!marked(in_history, id) && !marked(in_bias, id)) offer(reach, id, raw(id), f);
    }
    for (int i = history_begin + threadIdx.x; i < history_end; i += kThreads) {
      const int id = p.history_ids[i];
      if (id >= 0 && id < p.vocab) offer(reach, id, penalised(id, p.history_counts[i]), f);
    }
    for (int i = bias_begin + threadIdx.x; i < bias_end; i += kThreads) {
      const int id = p.bias_ids[i];
      if (id < 0 || id >= p.vocab || marked(in_history, id)) continue;
      bool first = true;
      for (int j = bias_begin; j < i; ++j) first &= p.bias_ids[j] != id;
      if (first) offer(reach, id, biased(id), f);
    }
  }
  template <typename F>
  __device__ static void offer(float reach, int id, float x, F& f) {
    if (x >= reach && x > -INFINITY) f(id, x);
  }
};

struct Best {
  float value;
  int id;
};

// Greatest value, then lowest id; id -1 when every value is -inf.
__device__ Best block_argmax(float value, int id, Shared& shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const auto reduce = [&] {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      const float other = __shfl_xor_sync(kFullMask, value, offset);
      const int other_id = __shfl_xor_sync(kFullMask, id, offset);
      if (other_id >= 0 && (id < 0 || other > value || (other == value && other_id < id))) value = other, id = other_id;
    }
  };
  reduce();
  __syncthreads();
  if (lane == 0) shared.best_value[warp] = value, shared.best_id[warp] = id;
  __syncthreads();
  value = shared.best_value[lane], id = shared.best_id[lane];
  reduce();
  return {value, id};
}

// Called by the blocks of a row with their own best; true for the one that ends last, which gets the best id of all.
__device__ bool best_of_parts(const Args& a, int index, int part, const Best& own, int& best) {
  unsigned long long* bests = a.bests + int64_t{index} * a.parts;
  if (threadIdx.x == 0) {
    // Ordered as wanted, 0 for none.
    bests[part] = own.id < 0
                      ? 0ULL
                      : static_cast<unsigned long long>(order_key(own.value)) << 32 | static_cast<uint32_t>(~own.id);
    __threadfence();
  }
  if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(&a.ended[index], 1) == a.parts - 1)) return false;
  __threadfence();
  unsigned long long all = 0;
  for (int i = 0; i < a.parts; ++i) all = max(all, __ldcg(bests + i));
  best = all == 0 ? -1 : static_cast<int>(~static_cast<uint32_t>(all));
  if (threadIdx.x == 0) a.ended[index] = 0;
  return true;
}

__device__ unsigned long long block_sum(unsigned long long v, Shared& shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullMask, v, offset);
  __syncthreads();
  if (threadIdx.x % kWarpSize == 0) shared.sums[threadIdx.x / kWarpSize] = v;
  __syncthreads();
  v = shared.sums[threadIdx.x % kWarpSize];
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

// The largest value such that the weights of all values no less than it reach `wanted`, or -inf when all of them
// together do not. visit(f) shows every value, weight(value) is what it counts. Found bit by bit from the top of the
// value's order key.
template <typename Visit, typename Weight>
__device__ float least_value(const Visit& visit, const Weight& weight, unsigned long long wanted, Shared& shared) {
  uint32_t bound = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = bound | 1U << bit;
    unsigned long long sum = 0;
    visit([&](float value) {
      if (order_key(value) >= higher) sum += weight(value);
    });
    if (block_sum(sum, shared) >= wanted) bound = higher;
  }
  return bound <= order_key(-INFINITY) ? -INFINITY : from_order_key(bound);
}

__device__ unsigned long long weight_of(float x) {
  return static_cast<unsigned long long>(__expf(x) * kWeightOne);
}

__device__ unsigned long long share_of(unsigned long long total, float share) {
  const auto wanted = static_cast<unsigned long long>(ceil(static_cast<double>(total) * static_cast<double>(share)));
  return wanted > 0 ? wanted : 1;
}

// The lower end of the bin in which the weights, added up from the top, reach `wanted`; -inf when no bin does.
__device__ float bin_floor(unsigned long long wanted, Shared& shared) {
  static_assert(kBins == kThreads);
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  unsigned long long sum = shared.bins[threadIdx.x];
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset <<= 1) {
    const unsigned long long other = __shfl_up_sync(kFullMask, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == kWarpSize - 1) shared.sums[warp] = sum;
  if (threadIdx.x == 0) shared.bin = kBins;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += shared.sums[w];
  if (sum >= wanted) atomicMin(&shared.bin, static_cast<int>(threadIdx.x));
  __syncthreads();
  // One bin further down: the bins' borders are rounded.
  return shared.bin >= kBins - 2 ? -INFINITY : -static_cast<float>(shared.bin + 2) / kBinsPerUnit;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  extern __shared__ __align__(16) std::byte dynamic[];
  __shared__ Shared shared;
  const SampleParams& p = a.p;
  const int index = blockIdx.x / a.parts, part = blockIdx.x % a.parts;
  const float temperature = p.temperature != nullptr ? p.temperature[index] : 0.0F;
  const bool greedy = !(temperature > kGreedyTemperature);
  if (part > 0 && !greedy) return;
  auto* list = reinterpret_cast<float*>(dynamic);
  auto* list_ids = reinterpret_cast<int*>(list + a.list_capacity);
  auto* bitmaps = reinterpret_cast<uint32_t*>(list_ids + a.list_capacity);

  Row row{p, static_cast<const float*>(p.logits.data) + index * p.logits.stride};
  row.row = index;
  if (greedy) row.part = part, row.parts = a.parts;
  const bool masked = p.allowed != nullptr && (p.use_allowed == nullptr || p.use_allowed[index] != 0);
  row.allowed = masked ? p.allowed + int64_t{index} * ((p.vocab + 31) / 32) : nullptr;
  row.history_begin = p.history_start != nullptr ? p.history_start[index] : 0;
  row.history_end = p.history_start != nullptr ? p.history_start[index + 1] : 0;
  row.bias_begin = p.bias_start != nullptr ? p.bias_start[index] : 0;
  row.bias_end = p.bias_start != nullptr ? p.bias_start[index + 1] : 0;
  row.in_history = row.history_begin < row.history_end ? bitmaps : nullptr;
  row.in_bias = row.bias_begin < row.bias_end ? bitmaps + a.bitmap_words : nullptr;
  row.repetition = p.repetition_penalty != nullptr ? p.repetition_penalty[index] : 1.0F;
  row.presence = p.presence_penalty != nullptr ? p.presence_penalty[index] : 0.0F;
  row.frequency = p.frequency_penalty != nullptr ? p.frequency_penalty[index] : 0.0F;
  if (row.in_history != nullptr || row.in_bias != nullptr) row.mark();

  float own = -INFINITY;
  int own_id = -1;
  row.for_each(own, [&](int id, float x) {
    if (x > own || own_id < 0 || id < own_id) own = x, own_id = id;
  });
  const Best found = block_argmax(own, own_id, shared);
  int best = found.id;
  if (greedy && a.parts > 1 && !best_of_parts(a, index, part, found, best)) return;
  if (best < 0 || greedy) {
    if (threadIdx.x == 0) p.out_token[index] = best;
    return;
  }
  const float largest = block_reduce<Max>(own, shared.reduction);
  const auto relative = [&](float x) { return (x - largest) / temperature; };
  // A logit below cut(x) has a relative value below x, whatever the rounding: most ids end at this comparison.
  const auto cut = [&](float x) { return largest + temperature * (x - 1e-3F) - fabsf(largest) * 1e-6F; };

  const int top_k = p.top_k != nullptr && p.top_k[index] > 0 && p.top_k[index] < p.vocab ? p.top_k[index] : 0;
  const float top_p = p.top_p != nullptr ? p.top_p[index] : 1.0F;
  const float min_p = p.min_p != nullptr ? p.min_p[index] : 0.0F;
  const SampleNoiseKey key = sample_noise_key(p.seed[index], p.position[index]);
  float least = -INFINITY;  // of relative values
  if (min_p > 0.0F) least = fminf(logf(min_p), 0.0F);

  // A value below `floor` cannot stay, whatever the filters find.
  float floor = -INFINITY;
  if (top_k > 0 && top_k <= kListTopK) {
    const auto threads = [&](auto&& f) { f(own_id >= 0 ? relative(own) : -INFINITY); };
    const auto count = [](float) { return 1ULL; };
    floor = least_value(threads, count, static_cast<unsigned long long>(top_k), shared);
  } else if (top_p < 1.0F) {
    // All values below it together weigh less than the share that top_p drops: the largest alone weighs 1.
    floor = logf(fmaxf(1.0F - top_p, 1e-7F) / static_cast<float>(p.vocab));
  }
  const bool filtered = top_k > 0 || top_p < 1.0F;

  float value = -INFINITY;
  int token = -1;
  const auto draw = [&](int id, float x) {
    if (!(x >= least) || x == -INFINITY) return;
    const float u = sample_noise_uniform(sample_noise_bits(key, static_cast<uint32_t>(id)));
    const float noisy = x - logf(-log1pf(-u));
    if (noisy > value || (noisy == value && id < token)) value = noisy, token = id;
  };
  const auto draw_all = [&] {
    draw(best, 0.0F);  // the likeliest sets a value that few can reach
    const float inverse = 1.0F / temperature;
    float reach = cut(fmaxf(value - kSampleNoiseLargest, least));
    row.for_each(reach, [&](int id, float logit) {
      // -log(-log(1 - u)) is at most -log(u), so a u above e^(x - value) loses without a division or a logarithm.
      const float u = sample_noise_uniform(sample_noise_bits(key, static_cast<uint32_t>(id)));
      if (u > __expf((logit - largest) * inverse - value) * 1.01F || id == best) return;
      draw(id, relative(logit));
      reach = cut(fmaxf(value - kSampleNoiseLargest, least));
    });
  };
  if (!filtered) {
    draw_all();
  } else {
    unsigned long long total = 0;
    if (top_k == 0) {
      for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
      __syncthreads();
      float weightless = cut(kWeightless);
      row.for_each(weightless, [&](int, float logit) {
        const float x = relative(logit);
        const unsigned long long weight = weight_of(x);
        total += weight;
        if (x >= floor) atomicAdd(&shared.bins[min(static_cast<int>(-x * kBinsPerUnit), kBins - 1)], weight);
      });
      total = block_sum(total, shared);
      floor = fmaxf(floor, bin_floor(share_of(total, top_p), shared));
    }
    if (threadIdx.x == 0) shared.list_size = 0;
    __syncthreads();
    float kept_from = cut(floor);
    row.for_each(kept_from, [&](int id, float logit) {
      const float x = relative(logit);
      if (!(x >= floor)) return;
      const int at = atomicAdd(&shared.list_size, 1);
      if (at < a.list_capacity) list[at] = x, list_ids[at] = id;
    });
    __syncthreads();
    const int size = shared.list_size;
    const bool fits = size <= a.list_capacity;
    const auto visit = [&](auto&& f) {  // every value that may stay
      if (fits) {
        for (int i = threadIdx.x; i < size; i += kThreads) f(list[i]);
      } else {
        float all = -INFINITY;
        row.for_each(all, [&](int, float x) { f(relative(x)); });
      }
    };
    float least_k = -INFINITY;
    if (top_k > 0) {
      const auto count = [](float) { return 1ULL; };
      least_k = least_value(visit, count, static_cast<unsigned long long>(top_k), shared);
    }
    if (top_p < 1.0F) {
      const auto heavy = [&](float x) { return x >= least_k ? weight_of(x) : 0ULL; };
      if (top_k > 0) {
        visit([&](float x) { total += heavy(x); });
        total = block_sum(total, shared);
      }
      least = fmaxf(least, least_value(visit, heavy, share_of(total, top_p), shared));
    }
    least = fminf(fmaxf(least, least_k), 0.0F);
    if (fits) {
      for (int i = threadIdx.x; i < size; i += kThreads) draw(list_ids[i], list[i]);
    } else {
      draw_all();
    }
  }
  token = block_argmax(value, token, shared).id;
  if (threadIdx.x == 0) p.out_token[index] = token;
}

}  // namespace

// ---- launcher ----

void sample(const Launch& launch, const SampleParams& p) {
  Args a{};
  a.p = p;
  const bool lists = p.history_start != nullptr || p.bias_start != nullptr;
  a.bitmap_words = lists ? (p.vocab + 31) / 32 : 0;
  const int bitmap_bytes = 2 * a.bitmap_words * static_cast<int>(sizeof(uint32_t));
  const int room = launch.max_shared_bytes - static_cast<int>(sizeof(Shared)) - bitmap_bytes;
  a.list_capacity = std::min(4096, room / 8) / 4 * 4;
  const int bytes = bitmap_bytes + a.list_capacity * 8;
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "sample");
  const int rows = static_cast<int>(p.logits.rows);
  a.parts = std::clamp(launch.num_sms / rows, 1, kMaxParts);
  a.bests = reinterpret_cast<unsigned long long*>(launch.scratch);
  a.ended = launch.counters;
  run(launch, sample_kernel, rows * a.parts, kThreads, bytes, a);
}

}  // namespace zipage::cuda
